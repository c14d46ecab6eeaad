"""Of what kind a training is, as far as modelled times are trusted by kind."""

from collections import Counter
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_forward_hook

from torch_chameleon._changes.traces import ops_of

# Measured beside an H100: the host took 8.0 ms for a step of 386 ops. Where the
# card is faster than that, the host decides how long a step takes.
HOST_NS_AN_OP = 21_000
# Of a step's time; where less is in products or in convolutions, something
# else decides.
_LEAST_SHARE = 0.15
_GROUPED_SHARE = 0.1  # of what the convolutions write
_MOST = 1 / 2
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_PRODUCTS = {
    f"aten::{name}"
    for name in (
        *("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm"),
        *("_addmm_activation", "_grouped_mm", "_scaled_mm", "_int_mm"),
    )
}


class Convolutions:
    """Sees the convolutions of all modules, from its making to `close`.

    What they write is counted, in elements: of all, of those with groups, of
    those whose result is channels-last, and of those over images or volumes.
    """

    def __init__(self) -> None:
        self._written: Counter[str] = Counter()
        self._handle = register_module_forward_hook(self._called)

    def close(self) -> None:
        """Sees no more of them."""
        self._handle.remove()

    def _called(self, module: Any, inputs: Any, output: Any) -> None:
        if not isinstance(module, _ConvNd):
            return
        if not isinstance(output, torch.Tensor) or output.device.type == "cpu":
            return  # it is traced, or does not run on the device
        written = output.numel()
        self._written["all"] += written
        self._written["grouped"] += written * (module.groups > 1)
        self._written["channels_last"] += written * _is_channels_last(output)
        self._written["images"] += written * (output.dim() in _FORMATS)

    def shares(self) -> dict[str, float] | None:
        """How much of it is of which sort; None: none was seen."""
        if not self._written["all"]:
            return None
        return {
            name: self._written[name] / self._written["all"]
            for name in ("grouped", "channels_last", "images")
        }


def _is_channels_last(tensor: torch.Tensor) -> bool:
    layout = _FORMATS.get(tensor.dim())
    return (
        layout is not None
        and tensor.is_contiguous(memory_format=layout)
        and not tensor.is_contiguous()
    )


def kind_of(trace: str, convolutions: dict[str, float] | None) -> str | None:
    """The kind of a training.

    Args:
        trace: A step with room for everything, a file that `export_trace`
            wrote.
        convolutions: `Convolutions.shares`.

    Returns:
        A key of `trust.json`'s kinds; None: another kind.
    """
    times: Counter[str] = Counter()
    ops = 0
    for record in ops_of(trace):
        times[record["op"]] += record["dur_ns"]
        ops += 1
    step = times.total()
    if step < HOST_NS_AN_OP * ops:
        return "small"
    convolving = sum(times[name] for name in times if "conv" in name)
    attending = sum(times[name] for name in times if "_attention" in name)
    multiplying = attending + sum(times[name] for name in _PRODUCTS)
    if max(convolving, multiplying) < _LEAST_SHARE * step:
        return None
    if convolving > multiplying:
        return None if convolutions is None else _kind_of_cnn(convolutions)
    attends = attending or {"aten::_softmax", "aten::bmm"} <= times.keys()
    if attends:
        return "transformer"
    return _kind_of_layers(convolutions or {})


def _kind_of_cnn(convolutions: dict[str, float]) -> str:
    if convolutions["grouped"] > _GROUPED_SHARE:
        return "grouped_cnn"
    if convolutions["channels_last"] > _MOST:
        return "dense_cnn_channels_last"
    return "dense_cnn_channels_first"


def _kind_of_layers(convolutions: dict[str, float]) -> str | None:
    """Where products take the time and nothing attends, as in ConvNeXt."""
    shares = (convolutions.get(name, 0.0) for name in ("grouped", "images"))
    return "depthwise_and_products" if min(shares) > _MOST else None
