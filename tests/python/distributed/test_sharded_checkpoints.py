"""What four ranks saved is loaded by fewer, natively and on chameleon."""

import pytest
import ranks
from support import needs_testing

pytestmark = [needs_testing, pytest.mark.slow]

DEVICES = ("cpu", "chameleon")
# Native processes know nothing of the device.
NATIVE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def digests(folder, device, world, name, checkpoint):
    """On each rank, with all in HBM and with less."""
    environment = {"TEST_CHECKPOINT": str(checkpoint)}
    if device == "cpu":
        environment |= NATIVE
    folder.mkdir()
    found = ranks.launch(str(folder), device, world, [name], **environment)
    if device == "cpu":
        return {each[name]["digest"] for each in found}
    return {each[name][k]["digest"] for each in found for k in "123"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder, and what was saved there, by device."""
    found = {}
    for device in DEVICES:
        folder = tmp_path_factory.mktemp(device)
        values = digests(
            folder / "out", device, 4, "checkpoint_saved", folder / "saved"
        )
        assert len(values) == 1
        found[device] = folder / "saved", values
    return found


def test_both_save_the_same(saved):
    assert saved["cpu"][1] == saved["chameleon"][1]


@pytest.mark.parametrize(
    ("loader", "world", "name"),
    [
        ("cpu", 2, "checkpoint_loaded"),
        ("cpu", 1, "checkpoint_loaded_whole"),
        ("chameleon", 2, "checkpoint_loaded"),
        ("chameleon", 1, "checkpoint_loaded_whole"),
    ],
)
@pytest.mark.parametrize("saver", DEVICES)
def test_fewer_ranks_load_the_same(saved, tmp_path, saver, loader, world, name):
    checkpoint, expected = saved[saver]
    assert (
        digests(tmp_path / "out", loader, world, name, checkpoint) == expected
    )
