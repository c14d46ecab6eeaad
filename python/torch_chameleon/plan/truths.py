"""What a truth must be where a script asks for it, so that the script goes on.

A script checks values where it asserts something, and where it raises an error
if something is so. With values, both let a good training pass. So does `plan`,
which has none: what the code does next with the truth tells which one that is.
"""

import bisect
import dis
import functools
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

_EXITS = {"exit", "quit", "_exit", "abort"}  # as raising an error
_BESIDE = {"TO_BOOL", "EXTENDED_ARG", "NOP", "COPY", "DUP_TOP"}
_FAR = 500  # instructions; nothing is looked for behind so many


def expected(frame: FrameType) -> bool | None:
    """The truth that lets the script go on; None: either does.

    Args:
        frame: Who reads it, in the midst of it.
    """
    return _code(frame.f_code).expected(frame.f_lasti)


def waits(frame: FrameType | None) -> bool:
    """Whether the innermost loop around a read is one of `while`.

    One of `for` ends where what it goes over ends; that of `while` may wait for
    what is read.

    Args:
        frame: Who reads it, in the midst of it.
    """
    while frame is not None:
        loop = _code(frame.f_code).loop(frame.f_lasti)
        if loop:
            return loop == "while"
        if frame.f_code.co_name == "<module>":
            break  # what runs the script has loops of its own
        frame = frame.f_back
    return False


class _Instruction(NamedTuple):
    """One that does one thing.

    Attributes:
        offset: Where it is.
        name: What it does.
        argument: A name, or where a jump leads; what else it is about.
    """

    offset: int
    name: str
    argument: Any

    @property
    def is_branch(self) -> bool:
        """Whether a truth decides what comes next."""
        return "JUMP" in self.name and self.name.endswith(_BRANCHES)

    @property
    def is_error(self) -> bool:
        """Whether it raises one, or takes what ends the process."""
        exits = self.name.startswith(_LOADS) and self.argument in _EXITS
        return exits or self.name == "RAISE_VARARGS"

    def kept(self, other: "_Instruction") -> bool:
        """Whether another one is about the variable that this one keeps."""
        kind, other_kind = (
            each.name.partition("_")[2].partition("_")[0]
            for each in (self, other)
        )
        return kind == other_kind and self.argument == other.argument


class _Code:
    """The instructions of a function, and where they lead."""

    def __init__(self, code: CodeType) -> None:
        self._all = list(_instructions(code))
        self._number: dict[int, int] = {}
        for number, each in enumerate(self._all):
            self._number.setdefault(each.offset, number)
        self._offsets = list(self._number)
        self._known: dict[int, bool | None] = {}  # by offset
        self._loops: dict[int, str] = {}  # by offset

    def expected(self, offset: int) -> bool | None:
        """The truth that lets the code go on; None: either does.

        Args:
            offset: Of the instruction that reads it.
        """
        if offset not in self._known:
            number = self._at(offset)
            here = self._all[number]
            takes = here.is_branch or here.name == "UNARY_NOT"
            self._known[offset] = self._wanted(number + (not takes))
        return self._known[offset]

    def loop(self, offset: int) -> str:
        """The innermost loop around an instruction: "for", "while" or ""."""
        if offset not in self._loops:
            here = self._at(offset)
            begins = [
                self._target(number)
                for number, each in enumerate(self._all)
                if each.name in _JUMPS
                and self._target(number) <= here <= number
            ]
            name = self._all[max(begins)].name if begins else ""
            waits = name and name not in ("FOR_ITER", "SEND")
            self._loops[offset] = "while" if waits else name and "for"
        return self._loops[offset]

    def _at(self, offset: int) -> int:
        """The number of the instruction there."""
        # An offset may be that of a cache behind the instruction.
        at = bisect.bisect_right(self._offsets, offset) - 1
        return self._number[self._offsets[at]]

    def _wanted(self, number: int) -> bool | None:
        """The truth of what lies on the stack before an instruction."""
        inverted = False
        while number < len(self._all):
            here = self._all[number]
            truth = None
            if here.is_branch:
                truth = self._decided(number)
            elif here.name.startswith(_STORES):
                truth = self._of_variable(number)
                if truth is None and self._all[number - 1].name in _COPIES:
                    number += 1  # and it is on the stack as before
                    continue
            elif here.name == "UNARY_NOT" or here.name in _BESIDE:
                inverted ^= here.name == "UNARY_NOT"
                number += 1
                continue
            return None if truth is None else truth != inverted
        return None

    def _of_variable(self, number: int) -> bool | None:
        """The truth that the next test of a variable wants.

        Args:
            number: Of the instruction that keeps it there.
        """
        store = self._all[number]
        for later in range(number + 1, min(len(self._all), number + _FAR)):
            each = self._all[later]
            if not store.kept(each):
                continue
            if not each.name.startswith("LOAD"):
                return None  # it holds something else
            truth = self._wanted(later + 1)
            if truth is not None:
                return truth
        return None

    def _decided(self, jump: int) -> bool | None:
        """The truth that leads to no error at a branch."""
        branch, target = self._all[jump], self._target(jump)
        jumps_fails, goes_fails = (
            self._fails(each, jump) for each in (target, jump + 1)
        )
        if jumps_fails != goes_fails:
            return ("TRUE" in branch.name) == goes_fails
        before = [
            each.name
            for each in self._all[max(0, jump - 2) : jump]
            if each.name != "TO_BOOL"
        ]
        is_kept = branch.name.endswith("_OR_POP") or before[-1] in _COPIES
        if is_kept and self._all[target].name.startswith(_STORES):
            # One side of `and` or `or`: the whole is as this side is.
            return self._of_variable(target)
        return None

    def _target(self, number: int) -> int:
        return self._number[self._all[number].argument]

    def _fails(self, start: int, test: int) -> bool:
        """Whether all ways from an instruction lead to an error.

        Args:
            start: Its number.
            test: Who gets to that instruction again, or before it, goes on.
        """
        seen: set[int] = set()
        ahead, fails = [start], False
        while ahead:
            number = ahead.pop()
            if number in seen:
                continue
            seen.add(number)
            if not test < number < len(self._all) or len(seen) > _FAR:
                return False
            here = self._all[number]
            if here.name.startswith(("RETURN", "YIELD", "SEND")):
                return False
            if here.is_error:
                fails = True
                continue
            if here.name in _JUMPS:
                ahead.append(self._target(number))
            if here.name not in _ALWAYS:
                ahead.append(number + 1)
        return fails


def _instructions(code: CodeType) -> Iterator[_Instruction]:
    """Those of a function; what does two things is two."""
    for each in dis.get_instructions(code):
        if isinstance(each.argval, tuple) and each.opname.count("_FAST") == 2:
            # As STORE_FAST_LOAD_FAST.
            cut = each.opname.index("_FAST") + len("_FAST")
            names = each.opname[:cut], each.opname[cut + 1 :]
            for name, variable in zip(names, each.argval, strict=True):
                yield _Instruction(each.offset, name, variable)
        else:
            yield _Instruction(each.offset, each.opname, each.argval)


_code = functools.cache(_Code)
_BRANCHES = ("_IF_TRUE", "_IF_FALSE", "_IF_TRUE_OR_POP", "_IF_FALSE_OR_POP")
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD")
_COPIES = ("COPY", "DUP_TOP")
_JUMPS = {dis.opname[each] for each in [*dis.hasjrel, *dis.hasjabs]}
_ALWAYS = {
    *("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE"),
    "JUMP_BACKWARD_NO_INTERRUPT",
}
