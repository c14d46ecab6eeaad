"""Other projects' trainers leave the native bits with half of the memory.

What trains is python/examples. Each runs natively, with room for everything,
and with half of its peak.
"""

import gc
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch_chameleon
from support import ROOT, same_bits
from trainings import budget

EXAMPLES = ROOT / "python" / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch, tmp_path):
    """Examples can be imported; nothing asks the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "")  # taken back afterwards
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    yield
    forget_accelerate()


def forget_accelerate():
    """It keeps the device for the process's life."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def example(name, *libraries):
    for library in libraries:
        pytest.importorskip(library, reason=f"{library} is not installed")
    return importlib.import_module(name)


def tensors_of(model, optimizer=None):
    """Everything that a training leaves, by name, on the CPU."""
    found = {name: x.cpu() for name, x in model.state_dict().items()}
    state = {} if optimizer is None else optimizer.state_dict()["state"]
    for index, values in state.items():
        for name, x in values.items():
            found[f"{index}.{name}"] = torch.as_tensor(x).cpu()
    return found


def check(train):
    """`train(native)` returns tensors by name and says where it trained."""

    def run(native):
        forget_accelerate()
        tensors, device = train(native)
        assert torch.device(device).type == ("cpu" if native else "chameleon")
        gc.collect()
        return tensors

    expected = run(native=True)
    with budget(1 << 30):
        with_room = run(native=False)
        stats = torch_chameleon.swap_stats()
    assert stats["evictions"] == 0
    assert different(with_room, expected) == []
    with budget(math.ceil(stats["peak_logical_bytes"] / 2)):
        with_half = run(native=False)
        stats = torch_chameleon.swap_stats()
    assert stats["evictions"] > 0
    assert stats["bytes_in"] > 0
    assert different(with_half, expected) == []


def different(tensors, expected):
    assert tensors.keys() == expected.keys()
    return [
        name
        for name in expected
        if not same_bits(tensors[name], expected[name])
    ]


def losses(trainer):
    """What a Trainer logged, times aside."""
    rows = [
        [row.get(key, 0.0) for key in ("loss", "grad_norm", "eval_loss")]
        for row in trainer.state.log_history
    ]
    return {"logged": torch.tensor(rows, dtype=torch.float64)}


# ---- Hugging Face


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
def test_trainer(bf16, tmp_path):
    module = example("huggingface_trainer", "transformers", "accelerate")

    def train(native):
        folder = str(tmp_path / str(native))
        trainer = module.train(folder, use_cpu=native, bf16=bf16)
        tensors = tensors_of(trainer.model, trainer.optimizer)
        return tensors | losses(trainer), trainer.model.device

    check(train)


def test_trainer_goes_on_where_it_stopped(tmp_path):
    module = example("huggingface_trainer", "transformers", "accelerate")

    def train(native):
        folder = str(tmp_path / str(native))
        options = {"use_cpu": native, "bf16": True}
        module.train(folder, 2, **options)
        forget_accelerate()
        saved = f"{folder}/checkpoint-2"
        trainer = module.train(folder, 4, saved, **options)
        tensors = tensors_of(trainer.model, trainer.optimizer)
        return tensors | losses(trainer), trainer.model.device

    check(train)


@pytest.mark.slow
def test_trainer_goes_on_as_if_it_had_not_stopped(tmp_path):
    module = example("huggingface_trainer", "transformers", "accelerate")
    through = module.train(str(tmp_path / "a"), 4)
    checkpoint = str(tmp_path / "a" / "checkpoint-2")
    resumed = module.train(str(tmp_path / "b"), 4, checkpoint)
    assert (
        different(
            tensors_of(resumed.model, resumed.optimizer),
            tensors_of(through.model, through.optimizer),
        )
        == []
    )


def test_random_numbers_in_the_checkpoint(tmp_path, monkeypatch):
    """Where the device has a generator of its own, as on cuda."""
    example("huggingface_trainer", "transformers", "accelerate")
    from torch_chameleon.integrations import transformers

    states = [torch.arange(16, dtype=torch.uint8)]
    chameleon = transformers.chameleon
    monkeypatch.setattr(chameleon, "get_rng_state_all", lambda: states)
    callback = transformers.DeviceRng()
    saved = json.loads(json.dumps(callback.state()))
    found = []
    monkeypatch.setattr(chameleon, "set_rng_state_all", found.append)

    state = SimpleNamespace(
        global_step=2, stateful_callbacks={"DeviceRng": saved}
    )
    resumed = transformers.DeviceRng()
    resumed.on_train_begin(None, state, None)
    assert found == []
    for _ in range(2):
        resumed.on_step_begin(None, state, None)
    assert len(found) == 1
    assert torch.equal(found[0][0], states[0])


def test_fp16_is_refused(tmp_path):
    module = example("huggingface_trainer", "transformers", "accelerate")
    with pytest.raises(ValueError, match=r"use bf16=True\.$"):
        module.train(str(tmp_path), fp16=True)


@pytest.mark.parametrize(
    "precision", [pytest.param("no", marks=pytest.mark.slow), "bf16"]
)
def test_accelerate(precision, tmp_path):
    module = example("accelerate_loop", "accelerate")

    def train(native):
        if not native:
            module.enable()
        arguments = {"cpu": native, "mixed_precision": precision}
        folder = str(tmp_path / str(native))
        first = tensors_of(module.train(folder, **arguments))
        second = module.train(folder, resume=True, **arguments)
        tensors = tensors_of(second)
        tensors |= {f"first.{key}": x for key, x in first.items()}
        return tensors, second[0].weight.device

    check(train)


def test_accelerate_is_told_too_late():
    module = example("accelerate_loop", "accelerate")
    from accelerate import Accelerator

    Accelerator(cpu=True)
    with pytest.raises(RuntimeError, match="before the first Accelerator"):
        module.enable()


def test_device_map(tmp_path):
    """Weights from files straight to the device."""
    module = example("huggingface_trainer", "transformers", "accelerate")
    model = module.tiny_llama()
    model.save_pretrained(tmp_path)
    loaded = module.LlamaForCausalLM.from_pretrained(
        tmp_path, device_map={"": "chameleon:0"}
    )
    assert loaded.device.type == "chameleon"
    assert different(tensors_of(loaded), tensors_of(model)) == []


def test_peft(tmp_path):
    module = example("peft_lora", "transformers", "accelerate", "peft")
    import peft

    def train(native):
        folder = tmp_path / str(native)
        model = module.train(str(folder), use_cpu=native)
        tensors, device = tensors_of(model), model.device
        base = module.base_model().to(device)
        merged = peft.PeftModel.from_pretrained(base, folder)
        merged = merged.merge_and_unload()
        tensors |= {f"merged.{k}": x for k, x in tensors_of(merged).items()}
        return tensors, device

    check(train)


def test_sft(tmp_path):
    module = example("trl_sft", "transformers", "trl", "datasets")

    def train(native):
        model = module.train(str(tmp_path), use_cpu=native)
        return tensors_of(model), model.device

    check(train)


PLANNED = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_positions=64))
rows = [{"input_ids": x, "labels": x} for x in torch.ones(64, 64).long()]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, bf16=True, report_to="none",
)
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""


@pytest.mark.slow
def test_plan_of_a_trainer(tmp_path):
    """A script that never heard of the device, written for a GPU."""
    example("huggingface_trainer", "transformers", "accelerate")
    script = tmp_path / "train.py"
    script.write_text(PLANNED)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_chameleon", "plan"),
            *("--json", "plan.json", str(script)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(Path("plan.json").read_text())
    assert figures["fits"] == "in memory"
    weights = 4 * (50257 * 768 + 64 * 768 + 2 * 12 * 768**2)
    assert 4 * weights < figures["peak_bytes"] < 8 * weights


# ---- Lightning


@pytest.mark.parametrize(
    "precision", [pytest.param("32-true", marks=pytest.mark.slow), "bf16-mixed"]
)
def test_lightning(precision, tmp_path):
    module = example("lightning_fit", "lightning")

    def train(native):
        arguments = {"accelerator": "cpu", "precision": precision}
        if not native:
            arguments = module.trainer_kwargs(precision)
        trained = module.train(str(tmp_path), **arguments)
        (device,) = trained.devices
        return tensors_of(trained), device

    check(train)


def test_lightning_does_not_train_on_the_cpu_in_silence(tmp_path):
    module = example("lightning_fit", "lightning")
    from torch_chameleon.integrations.lightning import ChameleonAccelerator

    with pytest.raises(RuntimeError, match=r"device cpu.*trainer_kwargs\(\)"):
        module.train(str(tmp_path), accelerator=ChameleonAccelerator())


def test_lightning_with_two_devices(tmp_path):
    module = example("lightning_fit", "lightning")
    arguments = module.trainer_kwargs() | {"devices": 2}
    with pytest.raises(ValueError, match="devices=2 is not possible"):
        module.train(str(tmp_path), **arguments)


# ---- Loops that are written out


def test_timm():
    module = example("timm_train", "timm")

    def train(native):
        device = "cpu" if native else "chameleon"
        model, average = module.train(device)
        tensors = {f"average.{k}": x for k, x in tensors_of(average).items()}
        return tensors | tensors_of(model), model.cls_token.device

    check(train)


def test_torchvision_reference():
    module = example("torchvision_reference", "torchvision")

    def train(native):
        device = "cpu" if native else "chameleon"
        model, average, losses = module.train(device)
        tensors = {f"average.{k}": x for k, x in tensors_of(average).items()}
        tensors["losses"] = torch.tensor(losses)
        return tensors | tensors_of(model), model.fc.weight.device

    check(train)


def test_plain_loop():
    module = example("plain_loop")

    def train(native):
        device = torch.accelerator.current_accelerator()
        model, loss = module.train("cpu" if native else device)
        tensors = tensors_of(model) | {"loss": torch.tensor(loss)}
        return tensors, model.fc1.weight.device

    check(train)
