"""Process-wide settings of the conformance tests.

CONFORMANCE_COUNTS      a file for the counts (harness/counting.py)
CONFORMANCE_PART        a part of the tests (harness/selection.py)
"""

import pytest
import torch_chameleon

from conformance.harness import counting, selection


def pytest_configure():
    """No step is one: else cases that evict all are told that they are slow.

    Warnings are compared with native's.
    """
    torch_chameleon.config.step_marks = "off"


def pytest_collection_modifyitems(config, items):
    """Leaves out what is in other parts; warnings are compared, not shown."""
    left, out = [], []
    for item in items:
        ours = "conformance" in item.path.parts
        if ours:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
        other = ours and not selection.in_part(item.nodeid)
        (out if other else left).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = left


def pytest_runtest_logreport(report):
    counting.count_test(report)


def pytest_sessionfinish(exitstatus):
    counting.save(exitstatus)
