"""Libraries of others are changed when they are imported, and only then."""

import importlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys

import pytest
from torch_chameleon._patches.after_import import after_import

NAME = "chameleon_test_library"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The file of a module that nobody has imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / f"{NAME}.py"
    path.write_text("value = 1\n")
    yield path
    sys.modules.pop(NAME, None)


def double(module):
    module.value *= 2


def imported():
    importlib.invalidate_caches()
    return importlib.import_module(NAME)


def test_changed_once_it_is_imported(source):
    after_import(NAME, double)
    module = imported()
    assert module.value == 2
    loader = importlib.machinery.SourceFileLoader
    assert isinstance(module.__loader__, loader)
    assert isinstance(module.__spec__.loader, loader)


def test_changed_if_it_was_imported(source):
    module = imported()
    after_import(NAME, double)
    assert module.value == 2


def test_who_only_asks_for_it(source):
    """transformers and accelerate do so for all that they can use."""
    after_import(NAME, double)
    spec = importlib.util.find_spec(NAME)
    assert spec.loader.get_source(NAME) == "value = 1\n"
    assert NAME not in sys.modules
    assert imported().value == 2


def test_import_that_fails(source):
    after_import(NAME, double)
    source.write_text("raise ImportError('not yet')\n")
    with pytest.raises(ImportError, match="not yet"):
        imported()
    source.write_text("value = 1\n")
    assert imported().value == 2


def test_reload(source):
    after_import(NAME, double)
    module = imported()
    assert importlib.reload(module).value == 2


def test_two_changes(source):
    after_import(NAME, double)
    after_import(NAME, double)
    assert imported().value == 4


@pytest.mark.parametrize("fails", [False, True])
def test_library_whose_import_asks_for_the_change(source, fails):
    """As safetensors.torch, if importing torch imports the package."""
    source.write_text(
        "from torch_chameleon._patches.after_import import after_import\n"
        "def double(module):\n    module.value *= 2\n"
        f"after_import({NAME!r}, double)\n"
        f"if {fails}: raise ImportError('not yet')\n"
        "value = 1\n"
    )
    if fails:
        with pytest.raises(ImportError, match="not yet"):
            imported()
        source.write_text("value = 1\n")
    else:
        module = imported()
        assert type(module.__spec__) is importlib.machinery.ModuleSpec
    assert imported().value == 2


def test_module_that_is_not_there(source):
    source.unlink()
    after_import(NAME, double)
    with pytest.raises(ModuleNotFoundError, match=NAME):
        imported()


@pytest.mark.parametrize("first", ["safetensors", "safetensors.torch"])
def test_safetensors_imported_first(first):
    pytest.importorskip("safetensors")
    code = (
        f"import importlib.util, {first}, torch, torch_chameleon\n"
        "from safetensors.torch import save_file, safe_open\n"
        "print(hasattr(save_file, '__wrapped__'), "
        "hasattr(safe_open, '__wrapped__'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"CHAMELEON_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True True\n", done.stderr
