"""`python -m torch_chameleon demo`."""

import json
import subprocess
import sys

import pytest
import torch
from torch_chameleon.demo import arguments, data, model, report, run, train
from torch_chameleon.demo.model import Shape


def command(*options):
    return subprocess.run(
        [sys.executable, "-m", "torch_chameleon", *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_explains_every_option():
    text = arguments.parser("x").format_help()
    for action in arguments.parser("x")._actions:
        assert action.help
        assert action.option_strings[-1] in text


def test_presets_and_sizes():
    options = arguments.parse(["--preset", "tiny", "--width", "32"], "x")
    assert (options.layers, options.width, options.heads) == (2, 32, 2)
    base = arguments.parse([], "x")
    assert base.k == 4
    sizes = (base.layers, base.width, base.heads, base.context, base.batch)
    with torch.device("meta"):
        parameters = model.GPT(Shape(*sizes)).parameters()
    assert sum(p.numel() for p in parameters) >= 10_000_000


@pytest.mark.parametrize(
    "wrong",
    [["--k", "0.5"], ["--steps", "0"], ["--width", "10"], ["--preset", "x"]],
)
def test_wrong_options(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        arguments.parse(wrong, "x")
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_text_is_real_and_always_the_same():
    text = data.standard_library(100_000)
    assert len(text) == 100_000
    assert torch.equal(text, data.standard_library(100_000))
    assert b"import" in bytes(text.tolist())
    shape = Shape(1, 8, 1, context=16, batch=3)
    tokens, targets = next(data.batches(text, shape, seed=0))
    assert tokens.shape == targets.shape == (3, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_model_is_causal():
    gpt = model.GPT(Shape(2, 16, 2, context=8, batch=1)).eval()
    a = torch.arange(8)[None]
    b = a.clone()
    b[0, 5:] = 0
    assert torch.equal(gpt(a)[0, :5], gpt(b)[0, :5])
    assert gpt.head.weight is gpt.token.weight
    assert model.generate(gpt, b"ab", 3, seed=0)[:2] == b"ab"


def test_a_run_as_text():
    job = train.Run(Shape(1, 8, 1, 16, 2), 3, 0, "cpu", {"k": 1.5})
    assert train.Run.from_json(job.to_json()) == job


def test_failed_run_is_reported():
    job = train.Run(Shape(1, 8, 1, 16, 2), 3, 0, "abacus", {})
    with pytest.raises(SystemExit, match="abacus"):
        run.run_in_process(job, lambda loss: None)


@pytest.mark.parametrize("bar_of", ["tqdm", "ours"])
def test_progress(bar_of, monkeypatch, capsys):
    if bar_of == "ours":
        monkeypatch.setitem(sys.modules, "tqdm", None)
    else:
        pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with run.ProgressBar(2) as bar:
        bar.start("one")
        bar.advance(1.5)
        bar.advance(1.25)
    text = capsys.readouterr().err
    assert "loss 1.250" in text
    assert "2/2" in text


def test_progress_in_a_log(capsys):
    with run.ProgressBar(2) as bar:
        bar.start("one")
        bar.advance(1.5)
        bar.start("two")
        bar.advance(1.25)
    assert capsys.readouterr().err == "one ...\ntwo ...\n"


def test_unequal_bits_are_shown():
    results = {
        name: {
            "parameters": 1,
            "losses": [1.0],
            "loss_bits": [name],
            "state_sha256": "same",
            "sample": "same",
            "step_ns": 1,
            "bytes_in_per_step": 1,
            "bytes_out_per_step": 1,
            "physical_device": "cpu",
            "threads": 1,
            "stats": dict.fromkeys(
                (
                    "peak_logical_bytes",
                    "hbm_budget",
                    "peak_resident_bytes",
                    "peak_host_bytes",
                ),
                1,
            ),
        }
        for name in ("native", "unlimited", "limited", "for_loop")
    }
    rows = dict(report.table(report.summarize(**results, k=2)))
    assert rows["losses equal"] == "NO"
    assert rows["parameters, gradients, optimizer equal"] == "yes, every bit"


@pytest.mark.slow
def test_whole(tmp_path):
    options = ["--preset=tiny", "--steps=4", "--width=128", f"--out={tmp_path}"]
    done = command("demo", *options)
    assert done.returncode == 0, done.stderr
    assert "losses equal" in done.stdout
    summary = json.loads((tmp_path / "demo.json").read_text())["summary"]
    assert summary["losses_equal"]
    assert summary["states_equal"]
    assert summary["samples_equal"]
    budget = summary["hbm_budget_bytes"]
    assert summary["peak_resident_bytes"] <= budget < summary["peak_bytes"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.slow
def test_bad_policy_is_named():
    done = command("demo", "--preset=tiny", "--policy=magic")
    assert done.returncode != 0
    assert "magic" in done.stderr
    assert "Traceback" not in done.stderr
