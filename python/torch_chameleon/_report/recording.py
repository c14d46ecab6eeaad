"""What happens while a report's picture is taken: one thing, plainly recorded.

The device records (timeline, decisions, births and deaths of tensors, memory
over time); Python adds which module was running. All have the number of the
device's op call, `_C.calls()`, which is what joins them.
"""

import bisect
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.types import Device

from torch_chameleon import _C, _steps
from torch_chameleon._changes.optimizers import Optimizers
from torch_chameleon.chameleon._utils import _get_device_index

_MOST_DECISIONS = 1 << 21
_MOST_EVENTS = 1 << 20
OUTSIDE = ""  # of every module and optimizer


class Mark(NamedTuple):
    """From the calls after `call` on, the ops belong to `where`."""

    call: int
    where: str


class Recording:
    """Records from `start` to `stop`; then the fields have what was seen."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.has_begun = False  # the device was used
        self.begin_call = 0
        self.end_call = 0
        self.marks: list[Mark] = [Mark(0, OUTSIDE)]
        self.step_ends: list[int] = []  # calls
        self.optimizers = Optimizers()
        # Of parameters, buffers and optimizer state, by logical address; they
        # live to the end.
        self.names: dict[int, str] = {}
        self.last_blocks: list[_C.SnapshotBlock] = []
        self.blocks: list[_C.SnapshotBlock] = []  # live at the start
        self.events: list[_C.SnapshotEvent] = []
        self.decisions: list[tuple[int, str, int, int, int]] | None = None
        self.timeline: list[
            tuple[str, str | None, int, int, int, str | None, int]
        ] = []
        self.memory: list[tuple[int, int, int, int]] = []
        self._modules: list[str] = []  # that are running, innermost last
        self._interrupted = OUTSIDE
        self._names: dict[int, str] = {}  # of modules, by id
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Starts: from now on every op is timed, which costs time.

        Where the device was not used yet, from its first use on: what has to be
        set before that can still be.
        """
        self._hooks = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(
                self._leave, always_call=True
            ),
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        _steps.listen(self._step_ended)
        if _C.first_use() is None:
            _C.at_first_use(self._device_used)
            return
        try:
            self._device_used()
        except BaseException:
            self._stop_listening()
            raise

    def _device_used(self) -> None:
        self.has_begun = True
        _C.init()
        _C.synchronize(self.index)
        self.begin_call = _C.calls(self.index)
        self.marks.append(Mark(self.begin_call, self.marks[-1].where))
        self.blocks = _C.memory_snapshot(self.index, False)["blocks"]
        _C.record_memory_history("none", False, True, _MOST_EVENTS, True)
        _C.start_decision_log(_MOST_DECISIONS, self.index)
        _C.reset_memory_history(self.index)
        _C.record_timeline(self.index, True)

    def stop(self) -> None:
        """Stops; waits until the device has nothing left to do."""
        self._stop_listening()
        if not self.has_begun:
            _C.at_first_use(None)
            return
        _C.record_timeline(self.index, False)
        _C.stop_memory_history()
        self.end_call = _C.calls(self.index)
        self.timeline = _C.timeline(self.index)
        _C.stop_memory_samples(self.index)
        self.memory = _C.memory_history(self.index)
        snapshot = _C.memory_snapshot(self.index, True)
        self.last_blocks, self.events = snapshot["blocks"], snapshot["events"]
        try:
            self.decisions = _C.decision_log(self.index)
        except RuntimeError:  # more than there was room for
            self.decisions = None
        _C.start_decision_log(0, self.index)

    def _stop_listening(self) -> None:
        _steps.stop_listening(self._step_ended)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def where(self, call: int) -> str:
        """The module, optimizer, ... that an op call belongs to."""
        at = bisect.bisect_left(self.marks, call, key=lambda mark: mark.call)
        return self.marks[max(at - 1, 0)].where

    def last_step(self) -> tuple[int, int]:
        """The calls of the last whole step: (after this one, up to that one).

        Without two ends of steps: all that was recorded.
        """
        if len(self.step_ends) >= 2:
            return self.step_ends[-2], self.step_ends[-1]
        return self.begin_call, self.end_call

    # ---- hooks ----

    def _mark(self, where: str) -> None:
        self.marks.append(Mark(_C.calls(self.index), where))

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not self._modules:
            self._learn_names(module)
            # Checkpointing runs a forward inside of a backward.
            in_backward = torch._C._current_graph_task_id() != -1
            self._interrupted = self.marks[-1].where if in_backward else OUTSIDE
        self._modules.append(self._names.get(id(module), type(module).__name__))
        self._mark(self._modules[-1])

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._modules:  # it began before the recording
            return
        name = self._modules.pop()
        self._mark(self._modules[-1] if self._modules else self._interrupted)
        for tensor in _tensors(output):
            # Its gradient is where the module's backward begins. A module's
            # own output may be an inner one's, which has a mark already.
            if tensor.grad_fn is not None and not hasattr(tensor, _MARKED):
                setattr(tensor, _MARKED, True)
                tensor.register_hook(
                    functools.partial(self._backward, f"{name} (backward)")
                )

    def _backward(self, where: str, gradient: Tensor) -> None:
        if self._hooks:  # else: the recording has ended
            self._mark(where)

    def _optimizer_begins(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> None:
        self._mark(f"optimizer {type(optimizer).__name__}")

    def _optimizer_ended(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> None:
        self._mark(OUTSIDE)
        self.optimizers.stepped(optimizer)
        for parameter, state in optimizer.state.items():
            name = self._name_of(parameter)
            for key, value in state.items():
                if isinstance(value, Tensor):
                    self._name(value, f"{name} ({key})")

    def _step_ended(self) -> None:
        if self.has_begun:
            self.step_ends.append(_C.calls(self.index))

    # ---- names ----

    def _learn_names(self, root: nn.Module) -> None:
        for name, module in root.named_modules():
            self._names[id(module)] = name or type(module).__name__
        for name, parameter in root.named_parameters():
            self._name(parameter, name)
        for name, buffer in root.named_buffers():
            self._name(buffer, name)

    def _name(self, tensor: Tensor, name: str) -> None:
        address = self._address_of(tensor)
        if address is not None:
            self.names[address] = name

    def _name_of(self, tensor: object) -> str:
        address = self._address_of(tensor)
        return "state" if address is None else self.names.get(address, "state")

    def _address_of(self, tensor: object) -> int | None:
        """None: it is elsewhere, or has no storage of its own.

        Sparse tensors have none, nor have subclasses that wrap other tensors.
        """
        if (
            isinstance(tensor, Tensor)
            and tensor.device == torch.device("chameleon", self.index)
            and tensor.layout == torch.strided
            and type(tensor.data) is Tensor
        ):
            return tensor.untyped_storage().data_ptr()
        return None


_MARKED = "_chameleon_marked"
_latest: Recording | None = None
_current: Recording | None = None


def latest() -> Recording | None:
    """The recording that ended last, if one did."""
    return _latest


class recording:  # noqa: N801 (it is called like a function)
    """Records what `report` shows, inside a `with` block.

    Two or three steps are enough: the page shows the last whole one. It may
    begin before the device is used, and is no use of it. Meanwhile
    every op is timed and every module announces itself, which costs time; and
    a history that `_record_memory_history` began ends.

    Args:
        device: The device that is recorded, default the current one.

    Raises:
        ValueError: There is no such device.

    Examples:
        >>> import torch, torch_chameleon
        >>> model = torch.nn.Linear(8, 8).to("chameleon")
        >>> with torch_chameleon.recording():
        ...     for _ in range(3):
        ...         y = model(torch.ones(4, 8, device="chameleon"))
        ...         torch_chameleon.step()
    """

    def __init__(self, device: Device = None) -> None:
        self._index = _get_device_index(device, optional=True)
        if not 0 <= self._index < _C.device_count():
            raise ValueError(
                "torch_chameleon.recording: there is no device "
                f"chameleon:{self._index}"
            )

    def __enter__(self) -> None:
        global _current
        if _current is not None:
            raise RuntimeError(
                "torch_chameleon.recording: a recording is under way already; "
                "end it first"
            )
        started = Recording(self._index)
        started.start()
        _current = started

    def __exit__(self, *error: object) -> None:
        global _current, _latest
        assert _current is not None
        ended, _current = _current, None
        ended.stop()
        if ended.has_begun:
            _latest = ended


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):  # Hugging Face's outputs too
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for tensor in output if isinstance(tensor, Tensor)]
    return []
