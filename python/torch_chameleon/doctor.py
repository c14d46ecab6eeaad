"""`python -m torch_chameleon doctor`: what a bug report needs, and a self-test.

Says what is installed and what limits hold, measures the link between device
and host memory, and trains a small model twice, without a limit and within a
third of the memory that it needs: every bit has to be the same. Uses the device
that is configured (`CHAMELEON_*`); takes a few seconds; sends nothing anywhere.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

import torch_chameleon
from torch_chameleon import _C, _ranks, chameleon, config

_Facts = dict[str, object]
_MIB = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Prints the report.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status: 0 if the device works, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m torch_chameleon doctor", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    report: dict[str, _Facts] = {}
    works = True
    for title, examine in _SECTIONS.items():
        try:
            report[title] = examine()
        except Exception as error:  # what fails is part of the report
            report[title] = {"failed": f"{type(error).__name__}: {error}"}
        works = works and "failed" not in report[title]
    print(json.dumps(report, indent=2) if options.json else _as_text(report))
    return 0 if works else 1


def _as_text(report: dict[str, _Facts]) -> str:
    lines = []
    for title, facts in report.items():
        lines.append(title)
        lines += [f"  {name:24} {value}" for name, value in facts.items()]
    return "\n".join(lines)


def _versions() -> _Facts:
    return {
        "torch_chameleon": torch_chameleon.__version__,
        "built for torch": _C.built_for_torch,
        "torch": torch.__version__,
        "torch for CUDA": torch.version.cuda or "no",
        "C++11 ABI, ours/torch": (
            f"{_C.built_for_abi}/{torch.compiled_with_cxx11_abi()}"
        ),
        "Python": platform.python_version(),
        "system": platform.platform(),
        "glibc": " ".join(platform.libc_ver()),
    }


def _machine() -> _Facts:
    facts: _Facts = {
        "processor": _field("/proc/cpuinfo", "model name"),
        "cores, ours/all": f"{len(os.sched_getaffinity(0))}/{os.cpu_count()}",
        "torch threads": torch.get_num_threads(),
        "memory": _memory("MemTotal"),
        "memory available": _memory("MemAvailable"),
        "swap": _memory("SwapTotal"),
        "cgroup memory limit": _cgroup_limit(),
    }
    for name, limit in (
        ("address space limit", resource.RLIMIT_AS),
        ("locked memory limit", resource.RLIMIT_MEMLOCK),
    ):
        soft, _ = resource.getrlimit(limit)
        facts[name] = (
            "none" if soft == resource.RLIM_INFINITY else _C.format_bytes(soft)
        )
    return facts


def _field(path: str, name: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return "unknown"


def _memory(name: str) -> str:
    text = _field("/proc/meminfo", name)
    number, _, unit = text.partition(" ")
    if unit != "kB" or not number.isdigit():
        return text
    return _C.format_bytes(int(number) * 1024)


def _cgroup_limit() -> str:
    """The least of the limits from the process's group up to the root."""
    least = None
    for line in _lines("/proc/self/cgroup"):
        number, _, group = line.split(":", 2)
        root, limit = {
            "0": ("/sys/fs/cgroup", "memory.max"),
        }.get(number, ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))
        if number != "0" and "memory" not in line.split(":")[1]:
            continue
        folder = Path(root + group)
        for each in (folder, *folder.parents):
            if not each.is_relative_to(root):
                break
            for text in _lines(str(each / limit)):
                if text.isdigit() and int(text) < 1 << 60:
                    least = min(int(text), least or int(text))
    return "none" if least is None else _C.format_bytes(least)


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().split("\n")[:-1]
    return []


def _configuration() -> _Facts:
    facts: _Facts = {
        row["key"]: "not set" if value is None else value
        for row in _C.option_specs()
        for value in [_C.get_option(row["key"])]
    }
    for name in sorted(os.environ):
        if name.startswith(("CHAMELEON_", "PYTORCH_", "CUDA_", "OMP_", "MKL_")):
            facts[name] = os.environ[name]
    return facts


def _distributed() -> _Facts:
    """What collectives of the device go through, and this process's peers."""
    if not torch.distributed.is_available():
        return {"collectives": "none: torch was built without them"}
    facts: _Facts = {"collectives": _collectives()}
    if not _ranks.is_launched():
        facts["ranks"] = "1: no launcher such as torchrun started this process"
        return facts
    rank, ranks = _ranks.place()
    local, local_ranks = _C.local_ranks()
    facts["rank"] = f"{rank} of {ranks}"
    facts["local rank"] = f"{local} of {local_ranks} on this machine"
    facts["device of this rank"] = str(_ranks.device_of_rank())
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        facts[name] = os.environ.get(name, "not set")
    return facts


def _collectives() -> str:
    gloo = "no gloo"
    if torch.distributed.is_gloo_available():
        gloo = f"gloo, of torch {torch.__version__}"
    if not _C.chooses_cuda():
        return f"{gloo}, also where a script says nccl"
    # As torch was built: under as_cuda() torch.distributed says yes anyhow.
    version: Callable[[], tuple[int, ...]] | None
    version = getattr(torch._C, "_nccl_version", None)
    if version is None:
        return f"{gloo}; torch was built without NCCL"
    return f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}; {gloo}"


def _device() -> _Facts:
    if _ranks.is_launched():
        chameleon.set_device(_ranks.device_of_rank())
    _C.init()
    of_device, of_host = _C.memory_sharers(chameleon.current_device())
    on_what = "GPU" if _C.physical_device() == "cuda" else "machine"
    return {
        "physical device": _C.physical_device(),
        "count": chameleon.device_count(),
        "name": chameleon.get_device_name(),
        "hbm_budget": _budget("hbm_budget", of_device, on_what),
        "host_budget": _budget("host_budget", of_host, "machine"),
        "limit of live tensors": _C.format_bytes(chameleon.mem_get_info()[1]),
        "ops redirected": len(_C.redirected_ops()),
    }


def _budget(key: str, sharers: int, on_what: str) -> str:
    """A budget, and what other processes of the same launcher have of it."""
    budget = _C.format_bytes(torch_chameleon.swap_stats()[key])
    _, ranks = _C.local_ranks()
    if ranks == 1:
        return budget
    if _C.get_option(key) is not None:
        return f"{budget}: set, in each of {ranks} ranks on this machine"
    if sharers == 1:
        return budget
    return f"{budget}: 1 of {sharers} ranks on this {on_what}"


def _link() -> _Facts:
    """Speeds of evictions and fetches of one tensor, the best of three."""
    if _C.physical_device() == "simulated":
        return {"measured": "no: the device is a model"}
    budget = torch_chameleon.swap_stats()["hbm_budget"]
    count = min(64 * _MIB, budget // 4)
    x = torch.zeros(count, dtype=torch.uint8, device="chameleon")
    best = {"out": float("inf"), "in": float("inf")}
    for _ in range(3):
        x.add_(1)  # so that no copy on the host is valid
        chameleon.synchronize()
        best["out"] = min(best["out"], _seconds(lambda: _C.evict(x)))
        best["in"] = min(best["in"], _seconds(lambda: _bring_in(x)))
    return {
        "bytes": _C.format_bytes(count),
        **{
            f"{way}, GB/s, measured": round(count / seconds / 1e9, 2)
            for way, seconds in best.items()
        },
    }


def _bring_in(x: torch.Tensor) -> None:
    with torch_chameleon.resident(x):
        pass


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    chameleon.synchronize()
    return time.perf_counter() - start


def _train(budget: int | None) -> tuple[list[torch.Tensor], dict[str, int]]:
    """A few steps; what they leave, on the CPU, and what swapping did."""
    limit = {} if budget is None else {"hbm_budget": budget}
    with config.patch(**limit):
        torch_chameleon.reset_swap_stats()
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Linear(256, 256) for _ in range(6))
        ).to("chameleon")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.randn(512, 256).to("chameleon")
        left = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            left.append(loss.detach().cpu())
        left += [parameter.detach().cpu() for parameter in model.parameters()]
        chameleon.synchronize()
        _C.check_invariants(chameleon.current_device(), 3)
        return left, torch_chameleon.swap_stats()


def _self_test() -> _Facts:
    start = time.perf_counter()
    unlimited, stats = _train(None)
    peak = stats["peak_logical_bytes"]
    limited, swapped = _train(peak // 3)
    equal = all(map(torch.equal, unlimited, limited))
    facts: _Facts = {
        "peak": _C.format_bytes(peak),
        "budget": _C.format_bytes(swapped["hbm_budget"]),
        "evictions": swapped["evictions"],
        "faults": swapped["faults"],
        "peak resident": _C.format_bytes(swapped["peak_resident_bytes"]),
        "seconds": round(time.perf_counter() - start, 2),
    }
    if _C.physical_device() == "simulated":
        facts["bits"] = "none: the device has no data"
    elif equal:
        facts["bits"] = "equal"
    else:
        facts["failed"] = "the limited run has other bits"
    if swapped["evictions"] == 0:
        facts["failed"] = "nothing was evicted"
    return facts


_SECTIONS: dict[str, Callable[[], _Facts]] = {
    "versions": _versions,
    "machine": _machine,
    "configuration": _configuration,
    "torch.distributed": _distributed,
    "device": _device,
    "link": _link,
    "self-test": _self_test,
}
