"""The Python doors of all that is parsed, on anything: a result or a sentence.

What is behind them in C++ is fuzzed in tests/cpp/fuzz.
"""

import json
import pickle
import subprocess
import sys
import unicodedata

import pytest
import torch
import torch_chameleon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_chameleon import _C, config

# The same examples in each run; `--hypothesis-profile` has no say in it.
_SETTINGS = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
_WORDS = st.sampled_from(
    [
        *("none", "512MiB", "1e9", "-1", "0", "nan", "inf", "1e999", " "),
        *("h200", "base=h200", "cpu", "lru", "auto", "zeros", "\0", "\x1b["),
        *("9223372036854775808", "1.5", "\ud800", "é", "=", ","),
    ]
)
_TEXTS = st.one_of(_WORDS, st.text(max_size=200), st.lists(_WORDS).map("".join))
_UTF8 = _TEXTS.map(lambda text: text.encode("utf-8", "replace").decode())
_NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans())
_SCALARS = st.one_of(st.none(), _TEXTS, _NUMBERS, st.binary(max_size=20))
_FIGURES = st.dictionaries(
    st.one_of(
        st.sampled_from(["base", "memory", "fp16", "link_in", "launch_ns"]),
        _TEXTS,
    ),
    st.one_of(_NUMBERS, _TEXTS),
    max_size=6,
)
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3), _FIGURES)


@pytest.fixture(autouse=True, scope="module")
def used():
    """What is set reaches the device at once."""
    torch.chameleon.init()


def is_sentence(error):
    """One line of text, of the length of a paragraph, about the cause."""
    text = str(error)
    controls = [c for c in text if unicodedata.category(c) in ("Cc", "Cs")]
    return 0 < len(text) <= 1000 and not controls


def refused(action, *allowed):
    """Runs an action that may refuse; the refusal, if it did."""
    refusal = None
    try:
        action()
    except allowed as error:
        refusal = error
    assert refusal is None or is_sentence(refusal), repr(refusal)
    return refusal


@_SETTINGS
@given(st.sampled_from([spec["key"] for spec in _C.option_specs()]), _VALUES)
def test_config_values(key, value):
    with config.patch(hbm_budget=config.hbm_budget):
        before = dict(config)
        if refused(lambda: setattr(config, key, value), ValueError):
            assert dict(config) == before
        else:
            setattr(config, key, before[key])
            assert dict(config) == before


@_SETTINGS
@given(_TEXTS, _SCALARS)
def test_config_keys(key, value):
    known = {spec["key"] for spec in _C.option_specs()}
    if key in known:
        return
    assert refused(lambda: setattr(config, key, value), AttributeError)
    assert refused(lambda: config.patch(**{key: value}), AttributeError)


@_SETTINGS
@given(_FIGURES)
def test_simulated_gpus(figures):
    refused(lambda: setattr(config, "simulated_gpu", figures), ValueError)
    assert config.simulated_gpu == "h200"


_LINE = {
    "header": {
        **{"trace": 1, "name": "x", "hbm_budget": 4096, "bw_in": 1e9},
        **{"bw_out": 1e9, "bw_both": 1.5e9, "copy_latency_ns": 7},
    },
    "op": {
        **{"op": "mm", "t": 0, "dur_ns": 5, "in": [[1, 512]]},
        **{"out": [[2, 1024]], "write": [2], "free": [2]},
    },
    "step": {"step": 1},
}
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=2)
    ),
    max_leaves=6,
)


@_SETTINGS
@given(st.data())
def test_traces(tmp_path_factory, data):
    """One field of a trace is anything, or one line is cut."""
    lines = {name: dict(fields) for name, fields in _LINE.items()}
    kind = data.draw(st.sampled_from(list(lines)))
    field = data.draw(st.sampled_from([*lines[kind], "other"]))
    lines[kind][field] = data.draw(_JSON)
    text = "".join(json.dumps(line) + "\n" for line in lines.values())
    cut = data.draw(st.integers(min_value=0, max_value=2 * len(text)))
    path = tmp_path_factory.getbasetemp() / "trace.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass")[:cut])
    budgets = [1, 1 << 20, 2**64 - 1]
    refused(lambda: _C.what_if(str(path), budgets, 1.0), ValueError)


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/no/such/file", "a\0b"])
def test_trace_files(path):
    assert refused(lambda: _C.what_if(path, [1], 1.0), ValueError)


def test_a_claim_of_a_trillion_ops_costs_its_text(tmp_path):
    path = tmp_path / "trace.jsonl"
    claims = dict.fromkeys(("ops", "steps", "storages"), 10**12)
    lines = [{**_LINE["header"], **claims}, _LINE["op"], {"step": 10**12}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    error = refused(lambda: _C.what_if(str(path), [1], 1.0), ValueError)
    assert "steps are numbered from 1" in str(error)


@_SETTINGS
@given(_UTF8)
def test_byte_texts(text):
    refused(lambda: _C.parse_bytes(text), ValueError)


def test_environment_variables():
    """A bad one makes the import fail with one sentence that names it."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch_chameleon"],
        env={
            b"CHAMELEON_HBM_BUDGET": b"\xff\x1b[2J" + b"9" * 400,
            b"PYTHONPATH": ":".join(sys.path).encode(),
        },
        capture_output=True,
        check=False,
    )
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: environment variable CHAMELEON_HBM")
    assert is_sentence(last)


def test_nothing_here_is_pickled():
    """A setting is text: what has code in it is no setting."""

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    text = pickle.dumps(Bomb()).decode("latin-1")
    for key in ("hbm_budget", "simulated_gpu", "policy"):
        with pytest.raises(ValueError, match=key):
            torch_chameleon.config.patch(**{key: text}).__enter__()
