"""What a truth must be where a script asks for it, so that the script goes on.

A script checks values where it asserts something, and where it raises an error
if something is so. With values, both let a good training pass. So does `plan`,
which has none: what the code does next with the truth tells which one that is.
"""

import bisect
import dis
import functools
from types import CodeType, FrameType

_EXITS = {"exit", "quit", "_exit", "abort"}  # as raising an error
_BESIDE = {"TO_BOOL", "EXTENDED_ARG", "NOP"}
_FAR = 500  # instructions; no error is raised behind so many


def expected(frame: FrameType) -> bool | None:
    """The truth that lets the script go on; None: either does.

    Args:
        frame: Who reads it, in the midst of it.
    """
    code = _code(frame.f_code)
    jump, inverted = code.tested(frame.f_lasti)
    if jump is None:
        return None
    taken_if = "TRUE" in code.instructions[jump].opname
    jumps_fails, goes_fails = (
        code.fails(each, _FAR) for each in (code.target(jump), jump + 1)
    )
    if jumps_fails == goes_fails:
        return None
    return (taken_if if goes_fails else not taken_if) != inverted


class _Code:
    """The instructions of a function, and where they lead."""

    def __init__(self, code: CodeType) -> None:
        self.instructions = list(dis.get_instructions(code))
        self._number = {
            each.offset: number for number, each in enumerate(self.instructions)
        }

    def tested(self, offset: int) -> tuple[int | None, bool]:
        """The jump that depends on what an instruction reads.

        Args:
            offset: Of the instruction, which may be that jump.

        Returns:
            Its number; None: there is none. And whether it sees the opposite.
        """
        # An offset may be that of a cache behind the instruction.
        offsets, inverted = list(self._number), False
        number = bisect.bisect_right(offsets, offset) - 1
        if not self._is_branch(number):
            inverted = self.instructions[number].opname == "UNARY_NOT"
            number += 1
        while number < len(self.instructions):
            name = self.instructions[number].opname
            if self._is_branch(number):
                return number, inverted
            if name == "UNARY_NOT":
                inverted = not inverted
            elif name not in _BESIDE:
                break
            number += 1
        return None, False

    def target(self, number: int) -> int:
        """Where a jump leads.

        Args:
            number: Of the jump.
        """
        return self._number[self.instructions[number].argval]

    def _is_branch(self, number: int) -> bool:
        name = self.instructions[number].opname
        return "JUMP" in name and name.endswith(_BRANCHES)

    def fails(self, number: int, most: int) -> bool:
        """Whether all ways from an instruction lead to an error.

        Args:
            number: Of the instruction.
            most: Instructions to look at.
        """
        while most > 0:
            if number >= len(self.instructions):
                return False
            here = self.instructions[number]
            most -= 1
            if here.opname == "RAISE_VARARGS" or here.argval in _EXITS:
                return True
            if here.opname.startswith(("RETURN", "YIELD", "SEND")):
                return False
            if here.opcode not in _JUMPS:
                number += 1
            elif here.opname in _ALWAYS:
                number = self.target(number)
            else:
                return self.fails(number + 1, most // 2) and self.fails(
                    self.target(number), most // 2
                )
        return False


_code = functools.cache(_Code)
_BRANCHES = ("_IF_TRUE", "_IF_FALSE", "_IF_TRUE_OR_POP", "_IF_FALSE_OR_POP")
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_ALWAYS = {
    *("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE"),
    "JUMP_BACKWARD_NO_INTERRUPT",
}
