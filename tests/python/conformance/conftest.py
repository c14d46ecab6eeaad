"""Process-wide settings of the conformance tests.

CONFORMANCE_ADVERSARY   behaviour of the cpu runtime for the whole process, as
                        in backend/runtime/cpu_adversary.h
CONFORMANCE_COUNTS      a folder for the counts (counting.py)
CONFORMANCE_PART        a part of the slow tests (selection.py)
"""

import os

from torch_chameleon import _C

from conformance import counting, selection

# While tests are collected nothing has used the device yet.
if adversary := os.environ.get("CONFORMANCE_ADVERSARY"):
    _C.set_cpu_adversary(adversary)


def pytest_collection_modifyitems(config, items):
    """Leaves out the slow tests that are in other parts."""
    left, out = [], []
    for item in items:
        ours = "conformance" in item.path.parts
        slow = item.get_closest_marker("slow") is not None
        other = ours and slow and not selection.in_part(item.nodeid)
        (out if other else left).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = left


def pytest_sessionfinish():
    counting.save()
