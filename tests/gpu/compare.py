"""Runs one workload natively and on chameleon, and compares every bit.

    python tests/gpu/compare.py [--on cuda|cpu] [workload...]

The native run has a process of its own, which never imports torch_chameleon:
PyTorch differentiates for one kind of accelerator a process. It computes
everything twice; what differs then is not compared but counted, as `unstable`
(sums by atomic additions). On chameleon each workload runs without a limit, to
learn its peak, then with budgets of that peak divided by 1.25, 2 and 4, then
once more, to show that it repeats. Budgets under 16 MiB are no budgets: there
all tensors are evicted before every op.

`silent_writers` is no workload but a check of native alone: see its file.

`--on cpu` tries all this where no GPU is: native is the CPU, chameleon is on
`cpu`, and what only a GPU has is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import workloads

FACTORS = (1.0, 1.25, 2.0, 4.0, 4.0)
# One operator needs little; many need long.
FACTORS_OF = {"operators": (1.0, 4.0)}
SMALLEST = 16 << 20
SHOWN = 40


def quiet():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def native(name, path, device):
    quiet()
    workload = getattr(workloads, name)
    values, again = workload(device), workload(device)
    unstable = [
        i
        for i, pair in enumerate(zip(values, again, strict=True))
        if not same(*pair)
    ]
    torch.save({"values": values, "unstable": unstable}, path)


def here(name, path, device):
    import torch_chameleon

    quiet()
    torch_chameleon.config.physical_device = device
    torch_chameleon.config.oversubscription = 64
    expected = torch.load(path)
    peak = 0
    for factor in FACTORS_OF.get(name, FACTORS):
        if factor > 1:
            budget = max(SMALLEST, int(peak / factor))
            torch_chameleon.config.hbm_budget = budget
            # Where little is enough all tensors leave before every op.
            if peak / factor < SMALLEST:
                torch_chameleon._C.set_stress("all", 0)
        torch_chameleon.reset_swap_stats()
        values = getattr(workloads, name)("chameleon")
        torch.chameleon.synchronize()
        torch_chameleon._C.check_invariants(0, 2)
        stats = torch_chameleon.swap_stats()
        peak = peak or stats["peak_resident_bytes"]
        different = list(differences(values, **expected))
        row = {
            "workload": name,
            "k": factor,
            "compared": len(expected["values"]) - len(expected["unstable"]),
            "unstable": names_of(expected["values"], expected["unstable"]),
            "different": different[:SHOWN],
            "peak_resident_bytes": stats["peak_resident_bytes"],
            "faults": stats["faults"],
            "evictions": stats["evictions"],
            "host_waits": stats["host_waits"],
            "foreign_bytes": stats["foreign_bytes"],
        }
        print(json.dumps(row), flush=True)
        if different:
            raise SystemExit(1)


def differences(ours, values, unstable):
    """Names of the results that are not native's."""
    if len(ours) != len(values):
        yield f"{len(ours)} results, {len(values)} natively"
    left_out = set(unstable)
    for i, pair in enumerate(zip(ours, values, strict=False)):
        if i not in left_out and not same(*pair):
            yield from names_of(ours, [i])


def names_of(values, indices):
    return [
        values[i][0] if isinstance(values[i], tuple) else f"result {i}"
        for i in indices
    ]


def same(one, other):
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if not isinstance(one, torch.Tensor):
        return one == other
    if not isinstance(other, torch.Tensor):
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bits(one), bits(other))


def bits(tensor):
    plain = tensor.resolve_conj().resolve_neg().contiguous().flatten()
    return plain.view(torch.uint8) if plain.numel() else plain


def run(name, device):
    """Whether chameleon's bits are native's."""
    if name == "silent_writers":
        return silent_writers(device)
    # `import torch` alone may bring chameleon where it is installed.
    environment = {**os.environ, "CHAMELEON_AUTOLOAD": "0"}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "native.pt")
        for side in ("native", "here"):
            command = [sys.executable, "-W", "ignore", __file__]
            command += [f"--{side}", name, path]
            done = subprocess.run(
                [*command, device], check=False, env=environment
            )
            if done.returncode != 0:
                print(f"{name}: {side} ended with {done.returncode}")
                return False
    return True


def silent_writers(device):
    """Whether chameleon knows what native ops write in silence."""
    script = Path(__file__).with_name("silent_writers.py")
    command = [sys.executable, "-W", "ignore", script, "--on", device]
    environment = {**os.environ, "CHAMELEON_AUTOLOAD": "0"}
    return subprocess.run(command, check=False, env=environment).returncode == 0


def main():
    if sys.argv[1:2] in (["--native"], ["--here"]):
        return (native if sys.argv[1] == "--native" else here)(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    known = [each.__name__ for each in workloads.ALL] + ["silent_writers"]
    parser.add_argument("--on", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("workload", nargs="*", choices=[*known, []])
    given = parser.parse_args()
    names = given.workload or known
    if given.on == "cpu":
        left_out = {each.__name__ for each in workloads.NEED_A_GPU}
        print("not without a GPU:", *sorted(left_out & set(names)))
        names = [name for name in names if name not in left_out]
    outcomes = {name: run(name, given.on) for name in names}
    passed = sum(outcomes.values())
    failed = [name for name, good in outcomes.items() if not good]
    print(f"{passed} passed, {len(failed)} failed", *failed)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
