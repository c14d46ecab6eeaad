"""Imports torch, checks that it is the one `_C` was built for, and loads `_C`.

The check comes before that, because loading it beside another torch
fails with an undefined symbol that explains nothing. Imported first by the
package; has no other use.
"""

import importlib
import importlib.util
import os
import sys

_WRONG = 2  # the exit status of a command line that is
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def import_torch() -> None:
    """Imports torch without the backends that `import torch` autoloads.

    Only one backend can be registered in a process, and ours may be the one
    that torch would import again, half-initialised, from inside this import.
    The variable is restored, so that child processes inherit what was set.
    """
    if "torch" in sys.modules:
        return
    saved = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        importlib.import_module("torch")
    finally:
        if saved is None:
            del os.environ[_AUTOLOAD]
        else:
            os.environ[_AUTOLOAD] = saved


def mismatch(
    built_for: str, built_with_abi: bool, found: str, found_abi: bool
) -> str | None:
    """Says in one sentence why the extension cannot load, or None.

    Args:
        built_for: The torch release the extension was built for, "2.11.0".
        built_with_abi: Whether it was built with the C++11 ABI.
        found: The version of the torch at hand, "2.11.0+cu130".
        found_abi: Whether that torch was built with the C++11 ABI.
    """
    minor = ".".join(built_for.split(".")[:2])
    if found.split("+")[0].split(".")[:2] != minor.split("."):
        return (
            f"torch_chameleon was built for torch {minor} but found torch "
            f"{found}: install the matching release with `pip install "
            f'"torch=={minor}.*"`, or build torch_chameleon again with `pip '
            "install --no-build-isolation --force-reinstall torch_chameleon`."
        )
    if built_with_abi != found_abi:
        return (
            "torch_chameleon was built with the C++11 ABI "
            f"{_switch(built_with_abi)} but found torch {found} with it "
            f"{_switch(found_abi)}: build torch_chameleon again with `pip "
            "install --no-build-isolation --force-reinstall torch_chameleon`."
        )
    return None


def _switch(on: bool) -> str:
    return "on" if on else "off"


def check_torch() -> None:
    """Raises ImportError where `_C` is missing or cannot load beside torch."""
    torch = importlib.import_module("torch")
    modules = ("torch_chameleon._C", "torch_chameleon._build_info")
    if None in map(importlib.util.find_spec, modules):
        raise ImportError(
            "torch_chameleon is not built: the extension torch_chameleon._C "
            "is missing; run `pip install --no-build-isolation -e .` in the "
            "checkout."
        )
    info = importlib.import_module("torch_chameleon._build_info")
    message = mismatch(
        info.BUILT_FOR_TORCH,
        info.BUILT_WITH_CXX11_ABI,
        str(torch.__version__),
        torch.compiled_with_cxx11_abi(),
    )
    if message is not None:
        raise ImportError(message)


def _is_command() -> bool:
    """Whether `python -m torch_chameleon` imports the package."""
    return sys.argv[0] == "-m" and "torch_chameleon" in sys.orig_argv


def load_core() -> None:
    """Loads `_C`, which reads the environment.

    To a command what is wrong there is as what is wrong in its command line: a
    sentence, without the frames of an import.
    """
    try:
        check_torch()
        importlib.import_module("torch_chameleon._C")
    except ImportError as error:
        if not _is_command():
            raise
        print(f"torch_chameleon: {error}", file=sys.stderr)
        sys.exit(_WRONG)


import_torch()
load_core()
