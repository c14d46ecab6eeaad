"""A Hugging Face Trainer whose workers fail ends as the one that did not."""

import functools
import tempfile
import types
from pathlib import Path

import pytest
from launching import last_line, launch, lives, ours, results
from torch_chameleon.elastic import chaos

SCRIPT = Path(__file__).with_name("trainer_survivor.py")


def run(folder, failures=""):
    """Runs it to its end; its last line, and what each rank has."""
    command = ours(2, "--policy", "in-place")
    printed = launch([*command, SCRIPT, folder], failures)
    return last_line(printed), results(folder, 2)


@functools.cache
def without_failure():
    with tempfile.TemporaryDirectory() as folder:
        said, found = run(Path(folder))
    assert said == "elastic: no failures; no steps lost"
    steps = [step for step, *_ in found[0]["logged"]]
    assert steps == [3, 6, 8]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "failures",
    [
        # Within an epoch, at its end, and in the one after it.
        "kill:1:2:backward,kill:0:3:forward,error:1:6:backward",
        "kill:0:1:optimizer,kill:1:4:commit,kill:0:7:forward",
    ],
)
def test_it_ends_with_the_same_bits_and_logs(failures, tmp_path):
    said, found = run(tmp_path, failures)
    assert said.startswith("elastic: 3 failures (in place, in place, in place)")
    assert found == without_failure()
    begun = [step for step, _ in lives(tmp_path)]
    assert begun == [step for step, _ in lives(tmp_path, 1)]
    made = chaos.parse(failures)
    for failure, step in zip(made, begun[1:], strict=True):
        assert 0 <= failure.step - step <= 1, (failures, begun)


@pytest.mark.slow
def test_a_trainer_of_another_kind_is_refused():
    from torch_chameleon.integrations.transformers import ElasticCallback

    with pytest.raises(RuntimeError, match=r"a Trainer has no _load_rng_state"):
        ElasticCallback(types.SimpleNamespace(_run_epoch=None))
