"""Scripts that say "cuda", as they are: natively, and under `run`.

    python scripts.py PLACE [NAME...]

Each of tests/integration/cuda_scripts runs natively twice, then on chameleon
without a limit and once more with everything evicted before every op. It has to
print the same, every loss with every digit, but for what differs between the
two native ones. A script is one JSON line. On "cpu" the native one is the CPU.
"""

import concurrent.futures
import json
import os
import subprocess
import sys

import places

SCRIPTS = places.ROOT / "tests/integration/cuda_scripts"
AT_A_TIME = 8  # they have little for a GPU to do
LIMIT_S = 60
WAYS = ("resident", "evicted")

# Beside the script itself, where it has more than one way.
ARGUMENTS = {"nanogpt": ["--dtype=bfloat16"]}
# The command, and a word on the memory when the script has ended.
HERE = """
import atexit, json, sys
import places, torch, torch_chameleon
from torch_chameleon import _testing
places.begin(sys.argv.pop(1))
if sys.argv.pop(1) == "evicted":
    torch.chameleon.init()
    _testing.set_stress("all", 0)
from torch_chameleon.run import main

@atexit.register
def tell():
    print(json.dumps(torch_chameleon.swap_stats()), file=sys.stderr)

sys.exit(main(sys.argv[1:]))
"""


def trained(place, command, is_native):
    """What a process prints, and what its last line on stderr is."""
    own = {} if is_native else places.environment(place, places.ROOT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={
            **os.environ,
            **places.common_environment(place),
            **own,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    told = done.stderr.splitlines() or [""]
    if done.returncode != 0:
        raise RuntimeError(f"status {done.returncode}: {' '.join(told[-6:])}")
    return done.stdout.splitlines(), told[-1]


def compared(place, name):
    """A script's row."""
    row = {"script": name}
    command = [str(SCRIPTS / f"{name}.py"), *ARGUMENTS.get(name, ())]
    try:
        first, _ = trained(place, command, is_native=True)
        again, _ = trained(place, command, is_native=True)
        pairs = enumerate(zip(first, again, strict=True))
        stable = [i for i, (one, other) in pairs if one == other]
        row |= {"lines": len(first), "stable": len(stable)}
        for way in WAYS:
            ours, stats = trained(
                place, ["-c", HERE, place, way, *command], is_native=False
            )
            differ = [i for i in stable if ours[i : i + 1] != first[i : i + 1]]
            if len(ours) != len(first):
                differ.append(len(ours))
            shown = [[first[i], *ours[i : i + 1]] for i in differ[:3]]
            row[way] = {"different": len(differ), "shown": shown}
            row[way]["evictions"] = json.loads(stats)["evictions"]
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        row["error"] = str(error)[-2000:]
    return row


def is_good(row):
    """Whether a script ended, and printed what it prints natively."""
    ways = (row.get(way, {}) for way in WAYS)
    return "error" not in row and not any(way.get("different") for way in ways)


def main():
    place, *names = sys.argv[1:]
    names = names or sorted(path.stem for path in SCRIPTS.glob("*.py"))
    good = True
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for row in pool.map(lambda name: compared(place, name), names):
            print(json.dumps(row), flush=True)
            good = good and is_good(row)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
