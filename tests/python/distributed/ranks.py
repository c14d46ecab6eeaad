"""Runs scenarios on several ranks, natively and on chameleon.

`python ranks.py DEVICE OUT SCENARIO...` is one rank: torchrun's variables are
in its environment. It runs each scenario in turn and writes what came of it
to OUT/RANK.json. `launch` starts all ranks and reads that.
"""

import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).parent
MODULES = (
    "scenarios",
    "attention_scenarios",
    "checkpoint_scenarios",
    "fsdp_scenarios",
    "hook_scenarios",
    "pipeline_scenarios",
)
# So long may all scenarios of a launch take; one collective, a third of it.
TIMEOUT_S = 300


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environment(rank, world, port, **more):
    """What torchrun sets."""
    return os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        **more,
    }


@contextlib.contextmanager
def started(*arguments, world=2, stderr=subprocess.PIPE, **environment):
    """The processes of `python ARGUMENTS`, one a rank; none outlives it."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=rank_environment(rank, world, port, **environment),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def launch(folder, device, world, names, **environment):
    """Runs the scenarios on `world` ranks; what each rank has of each.

    Args:
        folder: Where the ranks write.
        device: "cpu" for native, "chameleon".
        world: Number of ranks.
        names: Scenarios, in the order in which they run.
        environment: More variables.

    Returns:
        A list by rank of dicts by scenario.
    """
    arguments = __file__, device, folder, *names
    outputs = []
    with started(
        *arguments, world=world, stderr=subprocess.STDOUT, **environment
    ) as processes:
        for process in processes:
            outputs.append(process.communicate(timeout=TIMEOUT_S)[0])
    assert not any(process.returncode for process in processes), "\n".join(
        f"---- rank {rank}\n{output[-4000:]}"
        for rank, output in enumerate(outputs)
    )
    return [
        json.loads((pathlib.Path(folder) / f"{rank}.json").read_text())
        for rank in range(world)
    ]


def digest(value):
    """A hash of all tensors in it, to the bit, and of all else as text."""
    hasher = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                hasher.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            if hasattr(value, "full_tensor"):
                value = value.full_tensor()
            value = value.detach().cpu().contiguous()
            hasher.update(str((value.dtype, value.shape)).encode())
            hasher.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            hasher.update(repr(value).encode())

    add(value)
    return hasher.hexdigest()[:16]


def run(function, device):
    try:
        value = function(device, dist.get_rank(), dist.get_world_size())
        return {"digest": digest(value)}
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # the others would wait for this rank


def run_within(function, device):
    """Once with all in HBM, then with a half, a third of what that took.

    What takes next to nothing has all evicted before each op instead, or some.
    """
    import torch_chameleon
    from torch_chameleon import _testing

    module = sys.modules[function.__module__]
    floor = module.LARGEST_OP_BYTES.get(function.__name__, 160 << 10)
    results = {}
    peak = 0
    for k in (1, 2, 3):
        if k == 1:
            torch_chameleon.config.hbm_budget = "1GiB"
        else:
            torch_chameleon.config.hbm_budget = max(peak // k, floor)
            if peak < 2 * floor:
                _testing.set_stress("all" if k == 2 else "random", k)
        torch_chameleon.reset_swap_stats()
        dist.barrier()
        results[str(k)] = run(function, device)
        _testing.set_stress("never", 0)
        after = torch_chameleon.swap_stats()
        if k == 1:
            peak = after["peak_resident_bytes"]
        results[str(k)]["figures"] = {
            name: after[name] for name in ("evictions", "faults")
        } | {
            "peak_bytes": peak,
            "budget_bytes": torch_chameleon.config.hbm_budget,
        }
    return results


def find(name):
    """A scenario: each module of them may have it."""
    sys.path.insert(0, str(HERE))
    modules = map(importlib.import_module, MODULES)
    return next(vars(each)[name] for each in modules if name in vars(each))


def main(device, folder, names):
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S / 3)
    if device == "cpu":
        dist.init_process_group("gloo", timeout=timeout)
    else:
        import torch_chameleon

        torch_chameleon.config.physical_device = "cpu"
        torch_chameleon.config.host_budget = "1GiB"
        torch_chameleon.config.oversubscription = 64
        torch.chameleon.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(timeout=timeout)
    os.environ["TEST_FOLDER"] = folder
    each = run if device == "cpu" else run_within
    results = {}
    for name in names:
        print("scenario", name, flush=True)
        results[name] = each(find(name), device)
    (pathlib.Path(folder) / f"{dist.get_rank()}.json").write_text(
        json.dumps(results)
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
