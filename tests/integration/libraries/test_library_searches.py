"""What libraries look for by name or by text is found on this device.

Searches for a batch size try a smaller one after an out-of-memory error, which
they know by its text; afterwards all of the memory is there again.
"""

import gc

import pytest
import torch
import torch_chameleon
from support import MIB, same_bits
from torch import nn
from torch_chameleon import _C

WIDTH = 256
ROOM = 2 * MIB
TIMES = 1.5


@pytest.fixture(autouse=True)
def little_memory():
    """A logical limit that a large batch goes past; nothing may stay."""
    gc.collect()
    before = torch.chameleon.memory_allocated()
    limits = {"hbm_budget": before + ROOM, "oversubscription": TIMES}
    with torch_chameleon.config.patch(**limits):
        yield
        gc.collect()
        assert torch.chameleon.memory_allocated() == before
        assert _C.swap_stats(0)["pinned_bytes"] == 0


def bytes_of_a_step(batch):
    """At least: the input and two layers' results."""
    return 3 * batch * 4 * WIDTH


def fits(batch):
    return bytes_of_a_step(batch) < ROOM * TIMES


def test_accelerate_finds_a_batch_size():
    utils = pytest.importorskip(
        "accelerate.utils", reason="accelerate is not installed"
    )
    tried = []

    @utils.find_executable_batch_size(starting_batch_size=2048)
    def train(batch_size):
        tried.append(batch_size)
        layer = nn.Linear(WIDTH, WIDTH).to("chameleon")
        x = torch.ones(batch_size, WIDTH, device="chameleon")
        layer(layer(x)).sum().backward()
        return batch_size

    found = train()
    assert tried[0] == 2048
    assert found == tried[-1] < 2048
    assert fits(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_huggingface_trainer_finds_a_batch_size(tmp_path, monkeypatch):
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed"
    )
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.state import AcceleratorState
    from torch_chameleon.integrations.transformers import TrainingArguments

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.tried = []

        def forward(self, x, labels):
            self.tried.append(len(x))
            return {"loss": self.layer(self.layer(x)).sum() - labels.sum()}

    rows = [{"x": torch.ones(WIDTH), "labels": torch.ones(1)}] * 2048
    arguments = TrainingArguments(
        str(tmp_path),
        auto_find_batch_size=True,
        per_device_train_batch_size=2048,
        max_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    model = Model()
    transformers.Trainer(model, arguments, train_dataset=rows).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    assert model.tried[0] == 2048
    assert model.tried[-1] < 2048
    assert fits(model.tried[-1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "mode", ["power", pytest.param("binsearch", marks=pytest.mark.slow)]
)
def test_lightning_finds_a_batch_size(mode, tmp_path):
    lightning = pytest.importorskip(
        "lightning.pytorch", reason="lightning is not installed"
    )
    from lightning.pytorch.tuner import Tuner
    from torch_chameleon.integrations.lightning import trainer_kwargs

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.batch_size = 512
            self.tried = []

        def training_step(self, batch, index):
            self.tried.append(len(batch))
            return self.layer(self.layer(batch)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_dataloader(self):
            rows = torch.ones(8192, WIDTH)
            return torch.utils.data.DataLoader(rows, self.batch_size)

    model = Model()
    trainer = lightning.Trainer(
        **trainer_kwargs(),
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
    )
    found = Tuner(trainer).scale_batch_size(
        model, mode=mode, steps_per_trial=1, init_val=512, max_trials=6
    )
    assert not fits(max(model.tried))
    assert found < max(model.tried)
    assert fits(found)


# ---- checkpoints, straight to devices


@pytest.fixture
def checkpoint(tmp_path):
    accelerate = pytest.importorskip(
        "accelerate", reason="accelerate is not installed"
    )
    safetensors = pytest.importorskip(
        "safetensors.torch", reason="safetensors is not installed"
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    safetensors.save_file(
        model.state_dict(), tmp_path / "model.safetensors", {"format": "pt"}
    )

    def load(device_map):
        with accelerate.init_empty_weights():
            empty = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        return accelerate.load_checkpoint_and_dispatch(
            empty, str(tmp_path / "model.safetensors"), device_map=device_map
        )

    return load, model


@pytest.mark.parametrize(
    "device", ["chameleon", "chameleon:0", torch.device("chameleon")], ids=str
)
def test_accelerate_loads_to_the_device(checkpoint, device):
    load, model = checkpoint
    loaded = load({"": device})
    assert all(x.is_chameleon for x in loaded.parameters())
    x = torch.ones(1, 4)
    assert same_bits(loaded(x.to("chameleon")), model(x))


def test_accelerate_splits_between_device_and_host(checkpoint):
    load, model = checkpoint
    loaded = load({"0": "chameleon", "1": "cpu"})
    assert loaded[0].weight.is_chameleon
    x = torch.ones(1, 4)
    assert same_bits(loaded(x), model(x))
