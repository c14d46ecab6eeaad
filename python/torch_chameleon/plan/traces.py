"""What a traced step tells of memory: its largest op, and swapping alone."""

import torch

from torch_chameleon import _C
from torch_chameleon._changes.traces import ops_of


def swapping_ns(trace: str, budget: int | None) -> int | None:
    """What a step would take by swapping alone, by the planner's model.

    Args:
        trace: The step, as it ran within that budget.
        budget: Bytes; None: there is room for everything.

    Returns:
        The time; None: it does not get along with so little.
    """
    if budget is None:
        return None
    step = _C.what_if(trace, [budget], 1.0)["steps"][0]
    return None if step is None else int(step["duration_ns"])


def largest_op(trace: str) -> tuple[str, int]:
    """The op that needs the most bytes at a time.

    Lists go in pieces; the least has a tensor of each list.

    Args:
        trace: A file that `export_trace` wrote.

    Returns:
        Its name, and the bytes.
    """
    largest = ("", 0)
    for record in ops_of(trace):
        name = record["op"]
        sizes = [each for _, each in record["in"] + record["out"]]
        if name.startswith(("aten::_foreach", "aten::_fused")) and sizes:
            most = max(sizes)
            size = most * min(sizes.count(most), _lists_of(name))
        else:
            size = sum(sizes) + record.get("workspace", 0)
        largest = max(largest, (name, size), key=lambda pair: pair[1])
    return largest


def _lists_of(name: str) -> int:
    """How many lists of tensors an op takes and returns, at most."""
    op, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, op, None)
    found = getattr(packet, overload or "default", None)
    if found is None:
        return 1
    values = [*found._schema.arguments, *found._schema.returns]
    return sum(str(value.type) == "List[Tensor]" for value in values)
