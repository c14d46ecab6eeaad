"""The binding layer: thin, without logic. Private; the package wraps it."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch

class OptionSpec(TypedDict):
    key: str
    kind: str  # "bytes" | "number" | "choice" | "text"
    default: str | None
    environment: str
    choices: list[str]
    before_first_use: bool
    help: str

built_for_torch: str
built_for_abi: bool  # _GLIBCXX_USE_CXX11_ABI

# ---- options: the C++ table is the truth. ValueError with key, value and what
# is allowed; AttributeError never comes from here. Values are text or None.
def option_specs() -> list[OptionSpec]: ...
def get_option(key: str) -> str | None: ...
def set_option(key: str, text: str | None) -> None: ...
def parse_bytes(text: str) -> int: ...
def format_bytes(count: int) -> str: ...
def first_use() -> str | None: ...  # what used the device first, or None

# Called once, when a device that is not used yet is used; None: nothing is.
def at_first_use(callback: Callable[[], object] | None) -> None: ...

# ---- device
def init() -> None: ...  # first use, explicitly
def device_count() -> int: ...
def local_ranks() -> tuple[int, int]: ...  # this one, of so many

# Among how many the default budgets of device and host memory are divided;
# uses the device.
def memory_sharers(index: int) -> tuple[int, int]: ...
def current_device() -> int: ...
def set_device(index: int) -> None: ...
def exchange_device(index: int) -> int: ...  # -1: no change
def physical_device() -> str: ...  # "cpu" | ...; uses the device
def chooses_cuda() -> bool: ...  # it is or would be on CUDA; not a use
def synchronize(index: int) -> None: ...
def is_in_bad_fork() -> bool: ...
def mem_get_info(index: int) -> tuple[int, int]: ...  # logical (free, limit)

# The part of that limit which a program allows itself.
def set_memory_fraction(index: int, fraction: float) -> None: ...
def memory_fraction(index: int) -> float: ...
def say_cuda_out_of_memory() -> None: ...  # in the texts of OutOfMemoryError
def default_generator(index: int) -> torch.Generator: ...

# ---- memory
def swap_stats(index: int) -> dict[str, int]: ...
def reset_swap_stats(index: int) -> None: ...
def evict_all(index: int) -> None: ...
def evict(tensor: torch.Tensor) -> None: ...  # ValueError: it is pinned
def check_invariants(index: int, level: int) -> None: ...
def empty_cache(index: int) -> None: ...
def await_pinning(index: int) -> None: ...  # of all host memory that there is

# (t_ns, logical_bytes, resident_bytes, host_bytes), oldest first, recorded
# since reset_memory_history(); a bounded history: every op at first, thinned by
# half each time the bound is reached.
def memory_history(index: int) -> list[tuple[int, int, int, int]]: ...
def reset_memory_history(index: int) -> None: ...
def stop_memory_samples(index: int) -> None: ...  # what there is stays

# What the pager decided, from now on; limit 0: no more.
def start_decision_log(limit: int, index: int = -1) -> None: ...

# (call, decision, block, offset, bytes), see memory/decision_log.h
def decision_log(index: int = -1) -> list[tuple[int, str, int, int, int]]: ...

# Births and deaths of storages: python/csrc/allocation_history.h. `stacks` is
# none, live or all. `limit` events are kept.
def record_memory_history(
    stacks: str, cpp: bool, trace: bool, limit: int, clear: bool
) -> None: ...
def stop_memory_history() -> None: ...

class SnapshotBlock(TypedDict):
    identity: int  # order of birth
    address: int  # logical
    bytes: int
    rounded_bytes: int
    state: str  # "unbacked" | "resident" | "host" | ...
    frames: list[dict[str, Any]]

class SnapshotEvent(TypedDict):
    event: str  # "alloc" | "free" | "oom"
    identity: int
    address: int
    bytes: int
    rounded_bytes: int
    time_us: int  # since 1970
    call: int  # calls() then
    frames: list[dict[str, Any]]

class Snapshot(TypedDict):
    blocks: list[SnapshotBlock]  # live ones
    events: list[SnapshotEvent]

def memory_snapshot(index: int, with_events: bool) -> Snapshot: ...

# ---- profiler; the rows are documented in torch_chameleon/profiler.py
# Op calls so far, of a device that is not used 0. What was put off runs first.
def calls(index: int) -> int: ...
def step(index: int) -> None: ...
def last_step(index: int) -> dict[str, object]: ...  # RuntimeError: none yet
def profiler_state(index: int) -> dict[str, object]: ...
def export_trace(index: int, path: str) -> None: ...
def saved_plans(index: int) -> tuple[bytes, int]: ...  # RuntimeError: none yet
def load_plans(index: int, text: bytes) -> int: ...  # ValueError: not theirs
def gpu_profiles() -> list[dict[str, Any]]: ...
def gpu_profile(text: str) -> dict[str, Any]: ...  # ValueError: it is none

# On a simulated device: `told` hears of each size that depends on values, and
# whether something is known of them, and of zeros that are copied to the CPU,
# or taken by an op, for what is not known; what a tensor stands for, None:
# unknown.
def on_guessed_size(told: Callable[[bool], None]) -> None: ...
def on_unknown_read(told: Callable[[], None]) -> None: ...
def known_values(tensor: torch.Tensor) -> torch.Tensor | None: ...

# Bytes that this process may use of it, and that are available. `root`: before
# each path that is read.
def machine_memory(root: str = "") -> tuple[int, int]: ...
def what_if(
    path: str, budgets: list[int], link_factor: float
) -> dict[str, Any]: ...

# The same of the last step, as it ships; RuntimeError: none has ended yet.
# `choose` is given what is known without a budget, and returns the budgets.
def what_if_here(
    index: int, choose: Callable[[dict[str, Any]], list[int]]
) -> dict[str, Any]: ...
def record_timeline(index: int, enabled: bool) -> None: ...
def export_timeline(index: int, path: str) -> None: ...

# (lane, op, begin_ns, end_ns, bytes, what, call) as in
# profiler/timeline/timeline.h; op and what may be missing.
def timeline(
    index: int,
) -> list[tuple[str, str | None, int, int, int, str | None, int]]: ...

# ---- tensors
# Like `tensor.data = new_data`, also across devices (no compatibility check);
# gradient accumulators of leaves are renewed as set_data does.
class SimulatedNetwork:
    def __init__(self, rank: int, machines: list[int]) -> None: ...

class ProcessGroup:  # a torch.distributed backend; process_groups.py
    def __init__(self, inner: object, on_stream: bool) -> None: ...
    @property
    def inner(self) -> Any: ...  # torch's NCCL or gloo
    def perform_nocolor_split(self, device: torch.device) -> None: ...

def set_data(tensor: torch.Tensor, new_data: torch.Tensor) -> None: ...

# `x.data = y` does so where both are sparse and one is chameleon. Once.
def take_sparse_data() -> None: ...
def is_chameleon_storage(storage: torch.UntypedStorage) -> bool: ...

# What it means to a function that it is given no device: CUDA; the default one
# of place_by_default(), for all calls or those that are given no tensors.
class Unsaid:
    NOTHING: Unsaid
    CUDA: Unsaid
    DEFAULT: Unsaid
    DEFAULT_FOR_DATA: Unsaid

# From now on a device "cuda" among its arguments is "chameleon" to a function,
# method or constructor of torch's C++ code.
def alias_cuda_in(
    callable: Callable[..., object], unsaid: Unsaid = ...
) -> None: ...

# Whether tensors that nothing places are made here, in all threads; what
# torch.Tensor(...), or a subclass without __new__, makes is then
# construct(type, args, kwargs) (once).
def place_by_default(here: bool) -> None: ...
def construct_by(
    construct: Callable[
        [type[torch.Tensor], tuple[Any, ...], dict[str, Any] | None],
        torch.Tensor,
    ],
) -> None: ...

# torch.device("cuda", i) == torch.device("chameleon", i), from now on.
def equate_cuda_devices() -> None: ...

# Look for CPU and CUDA kernels that were registered since: of one op, of all.
def redirect_new_kernel(op: str) -> None: ...
def redirect_new_kernels() -> None: ...
def redirected_ops() -> list[str]: ...
def set_slowdown_error(type: type[RuntimeError]) -> None: ...  # raised for it

# ---- mirror

# From now on the tensor's bytes, as they are now, go to this address: until
# finish_mirror() returns, and before the next op that writes the tensor. `had`:
# which value is there; if that has not changed nothing is copied. Returns the
# one that will be there; (0, 0): unknown. Deferred ops on the tensor count as
# done. None: it cannot be mirrored.
def mirror(
    tensor: torch.Tensor, address: int, had: tuple[int, int]
) -> tuple[int, int] | None: ...
def finish_mirror() -> bool: ...  # False: the rest awaits deferred ops
def finish_awaited_by_mirror() -> None: ...  # runs them, if it does

# Whole pages that stay mapped until they are unpinned: copies between them and
# this device are asynchronous. A hint.
def pin_memory(index: int, address: int, bytes: int) -> None: ...
def unpin_memory(index: int, address: int, bytes: int) -> None: ...

class Residence:
    """Pins tensors in HBM and aliases them with native tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None: ...
    def natives(self) -> tuple[torch.Tensor, ...]: ...
    def close(self) -> None: ...
