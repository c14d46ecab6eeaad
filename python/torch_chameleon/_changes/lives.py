"""How long tensors live in a traced step, and its peak if some did not."""

import dataclasses
import itertools
import sys
from typing import Any

from torch_chameleon._changes.traces import ops_of

_FOREACH = "aten::_foreach_"
_OPTIMIZER = (_FOREACH, "aten::_fused_")  # what reads gradients
_ZEROS = ("aten::zero_", "aten::_foreach_zero_")
_FOREVER = sys.maxsize
_EXACT = 0.03  # of a peak: so much may a trace have more

_Span = tuple[int, int, int]  # the first op, the last one, bytes


@dataclasses.dataclass
class _Life:
    """Of a storage, from one op to another one, both with it.

    Attributes:
        begin: The number of an op; 0 too where it was there before.
        maker: That op's name; empty where it was there before.
        bytes: 0: not known yet.
        end: The op that it dies after.
        is_zeroed: Nothing but that was done to it so far.
        needed: The first op that needs what it holds, if it was there before.
        is_gradient: An optimizer reads it.
    """

    begin: int = 0
    maker: str = ""
    bytes: int = 0
    end: int = _FOREVER
    is_zeroed: bool = False
    needed: int = _FOREVER
    is_gradient: bool = False

    @property
    def is_passing(self) -> bool:
        """Whether it begins and ends within the step."""
        return bool(self.maker) and self.end < _FOREVER


def peaks_after(trace: str, peak: int, states: int = 0) -> dict[str, int]:
    """The peak that a step would have after a change.

    Args:
        trace: A file that `export_trace` wrote.
        peak: Bytes of tensors, as it was.
        states: Of those, bytes of optimizers' states in float32.

    Returns:
        Bytes, by name; as "before" what is given. "fused": lists of tensors
        that `_foreach` ops make for others of them are not made. "freed":
        gradients of the step before are not there until they are made again.
        "half": what the step makes and does not keep, but for gradients and
        what else the optimizer reads, has half the size. "states": those have
        half the size, and are there all the time. Empty where the trace
        has a much higher peak, as of the first steps: it is not known yet what
        dies behind them.
    """
    lives = _lives(trace)
    spans = [(each.begin, each.end, each.bytes) for each in lives]
    # Some tensors are there that no op of the step takes.
    traced = _peak(spans)
    if traced > (1 + _EXACT) * peak:
        return {}
    others = max(0, peak - traced)
    made = [each for each in lives if each.is_passing]
    gone = {
        "fused": [
            (each.begin, each.end, each.bytes)
            for each in made
            if each.maker.startswith(_FOREACH)
        ],
        "freed": [
            (0, min(each.needed - 1, each.end), each.bytes)
            for each in lives
            if each.is_gradient and not each.maker and each.needed > 0
        ],
        "half": [
            (each.begin, each.end, each.bytes // 2)
            for each in made
            if not each.is_gradient
        ],
    }
    after = {
        name: min(peak, others + _peak(spans + _negative(less)))
        for name, less in gone.items()
    }
    return {"before": peak, **after, "states": peak - states // 2}


def highest(
    found: list[dict[str, int]], peak: int, behind: int, states: int = 0
) -> dict[str, int]:
    """The highest peak of several steps after a change.

    Args:
        found: What `peaks_after` gives for each.
        peak: That of all steps, as it was.
        behind: The peak behind the last one, which only smaller states are
            known to lower.
        states: As for `peaks_after`.

    Returns:
        Bytes, by name. Empty where no trace has that peak.
    """
    known = [each for each in found if each]
    most = max((each["before"] for each in known), default=0)
    if max(most, behind) < (1 - _EXACT) * peak:
        return {}
    least = {"states": behind - states // 2}
    return {
        name: max(least.get(name, behind), *(each[name] for each in known))
        for name in (known[0] if known else ())
        if name != "before"
    }


def _negative(spans: list[_Span]) -> list[_Span]:
    return [(begin, end, -count) for begin, end, count in spans]


def _peak(spans: list[_Span]) -> int:
    """The most bytes at a time."""
    changes: dict[int, int] = {}
    for begin, end, count in spans:
        changes[begin] = changes.get(begin, 0) + count
        changes[end + 1] = changes.get(end + 1, 0) - count
    return max(itertools.accumulate(changes[op] for op in sorted(changes)))


def _lives(trace: str) -> list[_Life]:
    found = _Lives()
    for op, record in enumerate(ops_of(trace)):
        found.add(op, record)
    return found.all()


class _Lives:
    """Follows a trace, op by op."""

    def __init__(self) -> None:
        self._found: list[_Life] = []
        self._alive: dict[int, _Life] = {}
        # Those that die before an op takes them, by their numbers: these come
        # again, with sizes, where the step makes them again.
        self._unread: dict[int, _Life] = {}

    def add(self, op: int, record: dict[str, Any]) -> None:
        """The next op.

        Args:
            op: Its number.
            record: Its line of the trace.
        """
        name = record["op"]
        for number, size in record["in"]:
            if number not in self._alive:
                self._begin(number, _Life(bytes=size))
            _use(self._alive[number], op, name)
        for number, size in record["out"]:
            self._begin(number, _Life(begin=op, maker=name, bytes=size))
            if number in self._unread:
                self._unread[number].bytes = size
        for number in record["free"]:
            if number not in self._alive:
                self._unread[number] = self._begin(number, _Life())
            self._alive.pop(number).end = op

    def all(self) -> list[_Life]:
        """Those of the step, when all ops were added."""
        for number, life in self._unread.items():
            again = self._alive.get(number)
            life.is_gradient = again is not None and again.is_gradient
        return self._found

    def _begin(self, number: int, life: _Life) -> _Life:
        self._found.append(life)
        self._alive[number] = life
        return life


def _use(life: _Life, op: int, name: str) -> None:
    """Notes that an op takes it."""
    if not life.maker and life.needed == _FOREVER:
        if name.startswith(_ZEROS) and not life.is_zeroed:
            life.is_zeroed = True
            return
        life.needed = op if life.is_zeroed else 0
    if name.startswith(_OPTIMIZER):
        life.is_gradient = True
