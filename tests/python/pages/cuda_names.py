"""torch.chameleon beside torch.cuda, name by name.

For python/docs/from-cuda.md. What is missing has a reason here.
"""

from __future__ import annotations

import torch
import torch_chameleon  # registers torch.chameleon

assert torch_chameleon

_TYPES = "legacy types: `dtype=` and `device=` say the same"
_GRAPHS = "graphs hold addresses, and tensors here have none"
_DEPRECATED = "deprecated in torch.cuda as well"
_SENSOR = "a sensor of the GPU: ask torch.cuda"
_CUDA = "CUDA's own: ask torch.cuda"
REASONS: dict[str, str] = {
    **{
        f"{kind}{what}": _TYPES
        for kind in (
            *("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half"),
            *("Int", "Long", "Short", "ComplexDouble", "ComplexFloat"),
        )
        for what in ("Storage", "Tensor")
    },
    **dict.fromkeys(
        (
            *("CUDAGraph", "graph", "graph_pool_handle", "graphs"),
            *("make_graphed_callables", "MemPool", "use_mem_pool"),
        ),
        _GRAPHS,
    ),
    **dict.fromkeys(
        (
            *("memory_cached", "max_memory_cached", "reset_max_memory_cached"),
            *("reset_max_memory_allocated", "has_half", "has_magma"),
        ),
        _DEPRECATED,
    ),
    **dict.fromkeys(
        (
            *("utilization", "memory_usage", "temperature", "power_draw"),
            *("clock_rate", "device_memory_used", "list_gpu_processes"),
        ),
        _SENSOR,
    ),
    **dict.fromkeys(
        (
            *("CudaError", "DeferredCudaCallError", "GreenContext", "cudart"),
            *("cudaStatus", "check_error", "current_blas_handle", "jiterator"),
            *("nccl", "nvtx", "profiler", "sparse", "tunable"),
            *("ExternalStream", "get_stream_from_external"),
            *("get_sync_debug_mode", "set_sync_debug_mode"),
        ),
        _CUDA,
    ),
    **dict.fromkeys(
        (
            *("CUDAPluggableAllocator", "change_current_allocator"),
            *("caching_allocator_alloc", "caching_allocator_delete"),
            "caching_allocator_enable",
        ),
        "the device has one allocator",
    ),
    **dict.fromkeys(
        (
            *("host_memory_stats", "host_memory_stats_as_nested_dict"),
            "reset_accumulated_host_memory_stats",
            "reset_peak_host_memory_stats",
        ),
        "`torch_chameleon.swap_stats()` has host memory",
    ),
}


def rows() -> list[tuple[str, str]]:
    """(name, "yes" or why not), of all public names of torch.cuda.

    Raises:
        AssertionError: A name is missing without a reason, or has one and is
            there.
    """
    names = sorted({*torch.cuda.__all__}, key=lambda n: (n.lower(), n))
    there = {name for name in names if hasattr(torch.chameleon, name)}
    unexplained = set(names) - there - REASONS.keys()
    assert not unexplained, sorted(unexplained)
    assert not there & REASONS.keys(), sorted(there & REASONS.keys())
    return [(name, "yes" if name in there else REASONS[name]) for name in names]


def table() -> str:
    """The table as Markdown: what is there, then what is not, by reason."""
    there = [name for name, what in rows() if what == "yes"]
    missing: dict[str, list[str]] = {}
    for name, what in rows():
        if what != "yes":
            missing.setdefault(what, []).append(name)

    def listed(names: list[str]) -> str:
        return " ".join(f"`{name}`" for name in names)

    lines = ["| `torch.cuda` | `torch.chameleon` |", "|---|---|"]
    lines.append(f"| {listed(there)} | the same name |")
    lines += [f"| {listed(names)} | {why} |" for why, names in missing.items()]
    return "\n".join(lines)
