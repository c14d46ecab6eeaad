"""What native kernels write although their schema says that they read it.

A host copy stays valid until an op writes, so each such argument must be in
kernels/device_rules.cpp. Native runs are watched: operands whose bits change.
On a GPU tests/gpu/silent_writers.py does the same.
"""

import itertools

import pytest
import torch
from silent_writers import Watch
from torch.testing._internal.common_methods_invocations import op_db
from torch_chameleon import _testing

from conformance.databases import op_checks
from conformance.harness import selection

PARTS = 12
ENTRIES = [op for op in op_db if torch.float32 in op.dtypes]


def changed_by(entries, dtype, samples):
    watch = Watch()
    for op in entries:
        for check in (op_checks.forward, op_checks.backward):
            for action in itertools.islice(check(op, dtype), samples):
                with watch:
                    try:
                        action("cpu")
                    except Exception:
                        continue  # what native refuses writes nothing
    return watch.changed


def unknown(changed):
    return [row for row in changed if not _testing.writes_unannounced(*row)]


def test_sample_of_unannounced_writes():
    entries = [
        op for op in ENTRIES if selection.hashed(op.name) % (2 * PARTS) == 0
    ]
    assert unknown(changed_by(entries, torch.float32, 2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_unannounced_writes(part):
    assert unknown(changed_by(ENTRIES[part::PARTS], torch.float32, 20)) == []


def test_watching_finds_the_statistics_of_batch_norm():
    def statistics():
        return torch.zeros(3), torch.ones(3)

    x = torch.rand(2, 3, 4)
    watch = Watch()
    with watch:
        torch.nn.functional.batch_norm(x, *statistics(), training=True)
        torch.batch_norm_update_stats(x, *statistics(), 0.1)
    assert watch.changed == {
        (f"aten::{op}", argument)
        for op in ("native_batch_norm", "batch_norm_update_stats")
        for argument in ("running_mean", "running_var")
    }
    assert unknown(watch.changed) == []
