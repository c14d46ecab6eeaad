"""Runs a user's program in this process as Python itself would run it."""

import argparse
import builtins
import importlib.machinery
import math
import os
import re
import runpy
import sys
import tempfile
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

_WRONG = 2  # the exit status of a command line that is
_NEVER_GIB = 1 << 20  # a number so large was meant in bytes


def lacks_unit(size: str, below: float = math.inf) -> str | None:
    """What to say of a size without a unit, which would be bytes.

    Args:
        size: As it was given.
        below: Larger numbers are meant to be bytes.

    Returns:
        None: it has a unit, or is that large.
    """
    if not re.fullmatch(r"\s*\d+(\.\d*)?\s*", size) or float(size) >= below:
        return None
    if not float(size):
        return f'"{size}" is no room for anything'
    if float(size) >= _NEVER_GIB:
        return f'"{size}" has no unit: say "{float(size) / (1 << 20):.6g}MiB"'
    return f'"{size}" has no unit: say "{size.strip()}GiB" or "MiB"'


class CommandParser(argparse.ArgumentParser):
    """Of `python -m torch_chameleon ...`: says what is wrong in a sentence."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("python -m ")
        self.exit(_WRONG, f"{name}: {message}\n")

    def check_file(self, option: str, path: str | os.PathLike[str]) -> None:
        """Ends with a sentence where a file cannot be written, before any run.

        Args:
            option: What names it, such as "--out".
            path: The file.
        """
        folder = os.path.dirname(path) or "."
        if os.path.isdir(path):
            self.error(f"{option} = {path} is a folder, not a file")
        if not os.path.isdir(folder):
            self.error(f"{option} = {path}: there is no folder {folder}")
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            self.error(f"{option} = {path}: {folder} is not writable")

    def say_unit(self, size: str) -> None:
        """Says how 24G is read, which is 24e9 bytes to some programs.

        Args:
            size: As it was given.
        """
        found = re.fullmatch(r"(.*[\d.]\s*)([KMGTkmgt])\s*", size)
        if found is not None:
            whole = f"{found[1]}{found[2].upper()}iB"
            self.say(f"{size} is read as {whole}")

    def say(self, sentence: str) -> None:
        """Tells the user something, on stderr.

        Args:
            sentence: What.
        """
        name = self.prog.removeprefix("python -m ")
        print(f"{name}: {sentence}", file=sys.stderr)

    def warn_of_ours_behind(self, script: str, arguments: list[str]) -> None:
        """Says which of our options stand behind the script, which gets them.

        What the script's text names is its own.

        Args:
            script: The file.
            arguments: What follows it.
        """
        for name in self._ours_among(script, arguments):
            self.say(
                f"{name} stands behind {script} and goes to the script; for us "
                "it stands before it"
            )

    def _ours_among(self, script: str, arguments: list[str]) -> list[str]:
        given = {text.partition("=")[0] for text in arguments}
        with open(script, errors="replace") as file:
            text = file.read()
        return sorted(
            name
            for name in given & set(self._option_string_actions)
            if name.startswith("--")
            and name != "--help"
            and not re.search(rf"{name}(?![\w-])", text)
        )


class _Uncached(importlib.machinery.SourceFileLoader):
    """Leaves no compiled file beside the program, as Python leaves none."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def run_script(path: str, arguments: list[str]) -> None:
    """Runs a file as `python path arguments...` does.

    Its module is `__main__` from now on, also after it ended: threads and
    pickles of it find their names there.

    Args:
        path: The file.
        arguments: Its command line.

    Raises:
        OSError: It cannot be read.
        BaseException: Whatever the program ends with.
    """
    _take_over(path, arguments, os.path.dirname(os.path.realpath(path)))
    file = os.path.abspath(path)
    loader = _Uncached("__main__", file)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=file,
        __builtins__=builtins,
        __loader__=loader,
        __cached__=None,
        __annotations__={},
    )
    main.__spec__ = None
    sys.modules["__main__"] = main
    _show_the_program_only()
    loader.exec_module(main)


def run_module(name: str, arguments: list[str]) -> None:
    """Runs a module as `python -m name arguments...` does.

    Args:
        name: The module's.
        arguments: Its command line.

    Raises:
        ImportError: There is none.
        BaseException: Whatever the program ends with.
    """
    _take_over(name, arguments, os.getcwd())
    _show_the_program_only()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _take_over(name: str, arguments: list[str], folder: str) -> None:
    sys.argv = [name, *arguments]
    # `python -m torch_chameleon` has put the current folder there, unless it
    # was told to put none.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _show_the_program_only() -> None:
    """An error that the program does not catch is shown without our frames."""
    shown = sys.excepthook

    def show(
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        trace = _of_the_program(trace)
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = show


# What is between this module and the program.
_AROUND = ("runpy", "importlib._bootstrap", "importlib._bootstrap_external")


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    ours = [i for i, each in enumerate(frames) if _file_of(each) == __file__]
    for each in frames[ours[-1] + 1 if ours else 0 :]:
        if each.tb_frame.f_globals.get("__name__") not in _AROUND:
            return each
    return None


def _file_of(trace: TracebackType) -> str:
    return trace.tb_frame.f_code.co_filename
