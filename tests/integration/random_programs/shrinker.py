"""Makes a failing program small: fewer rounds, fewer lines, milder settings."""

import time

from random_programs import runner
from random_programs.program import MILDEST


class Shrinker:
    """Takes away what the fault does not need.

    Args:
        program: A program that fails.
        seconds: How long to try.
        tries: How often a program may run before it counts as well, for
            faults that do not show every time.
        run: What runs a program.
    """

    def __init__(self, program, seconds=600.0, tries=1, run=runner.run):
        self.program = program
        self.deadline = time.monotonic() + seconds
        self.tries = tries
        self.run = run
        self.fault = None

    def shrink(self):
        """The smallest program found; None where it does not fail at all."""
        self.fault = self.run(self.program).difference
        if self.fault is None:
            return None
        changed = True
        while changed and time.monotonic() < self.deadline:
            changed = self._rounds()
            changed |= self._lines()
            changed |= self._settings()
        return self.program

    def _fails(self, program):
        return time.monotonic() < self.deadline and any(
            self.fault.alike(self.run(program).difference)
            for _ in range(self.tries)
        )

    def _take(self, program):
        """Goes on with a smaller program, if it fails."""
        if not self._fails(program):
            return False
        self.program = program
        return True

    def _rounds(self):
        changed, place = False, 0
        while place < len(self.program.schedule):
            name, times = self.program.schedule[place]
            for fewer in sorted({0, 1, 2, times // 2}):
                smaller = self.program.clone()
                smaller.schedule[place] = (name, fewer)
                if fewer == 0:
                    del smaller.schedule[place]
                if fewer < times and self._take(smaller):
                    changed = True
                    break
            place += 1
        used = {name for name, _ in self.program.schedule}
        for name in self.program.bodies.keys() - used:
            del self.program.bodies[name]
        return changed

    def _lines(self):
        changed = False
        for key in [*self.program.bodies, None]:
            changed |= self._lines_of(key)
        return changed

    def _lines_of(self, key):
        """Takes halves away, then quarters, and so on."""

        def lines(program):
            return program.setup if key is None else program.bodies[key]

        changed = False
        size = max(1, len(lines(self.program)) // 2)
        while size >= 1:
            place = 0
            while place < len(lines(self.program)):
                smaller = self.program.clone()
                del lines(smaller)[place : place + size]
                if self._take(smaller):
                    changed = True
                else:
                    place += size
            size //= 2
        return changed

    def _settings(self):
        changed = False
        for key, mildest in MILDEST.items():
            if self.program.settings[key] != mildest:
                milder = self.program.clone()
                milder.settings[key] = mildest
                changed |= self._take(milder)
        return changed
