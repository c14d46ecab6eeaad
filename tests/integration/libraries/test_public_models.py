"""Models that nobody here wrote leave the native bits, with little memory.

Three steps each by default; `--full` takes twenty.
"""

import functools
import io
import math

import pytest
import torch
import torch_chameleon
import transformers
from public_models import (
    MODELS,
    bytes_of_text,
    gpt2_config,
    llama_config,
)
from support import evicting, same_bits
from trainings import budget

STEPS = [3, pytest.param(20, marks=pytest.mark.slow)]


@functools.cache
def native(name, steps):
    return MODELS[name]("cpu", steps)


def different(name, steps, tensors):
    expected = native(name, steps)
    assert tensors.keys() == expected.keys()
    return [
        key for key in expected if not same_bits(tensors[key], expected[key])
    ]


@functools.cache
def peak_bytes(name, steps):
    """Peak of live bytes of a training without a limit, which has the bits."""
    with budget(1 << 30):
        tensors = MODELS[name]("chameleon", steps)
        stats = torch_chameleon.swap_stats()
    assert different(name, steps, tensors) == []
    assert stats["evictions"] == 0
    return stats["peak_logical_bytes"]


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_bits(name, steps, k):
    with budget(math.ceil(peak_bytes(name, steps) / k)):
        tensors = MODELS[name]("chameleon", steps)
        stats = torch_chameleon.swap_stats()
    assert different(name, steps, tensors) == []
    assert stats["evictions"] > 0
    assert stats["bytes_in"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["all", "random"])
@pytest.mark.parametrize("name", MODELS)
def test_evictions_at_any_moment(name, mode):
    size = peak_bytes(name, 2)
    with evicting(mode, 5), budget(size):
        tensors = MODELS[name]("chameleon", 2)
    assert different(name, 2, tensors) == []


# ---- beside training

LANGUAGE_MODELS = {
    "gpt2": (transformers.GPT2LMHeadModel, gpt2_config),
    "llama": (transformers.LlamaForCausalLM, llama_config),
}


def language_model(name, attention="sdpa"):
    torch.manual_seed(0)
    kind, config = LANGUAGE_MODELS[name]
    return kind(config(attn_implementation=attention)).eval()


def quarter(net):
    """A budget that holds a quarter of the parameters."""
    return budget(
        sum(p.nbytes for p in net.parameters()) // 4, oversubscription=16.0
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_greedy_generation(name, attention):
    (prompt,) = bytes_of_text(1, 2, 8)
    net = language_model(name, attention)

    def generate(device):
        made = net.to(device).generate(
            prompt.to(device),
            attention_mask=torch.ones_like(prompt).to(device),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return [made.sequences.cpu(), *(row.cpu() for row in made.logits)]

    native = generate("cpu")
    with quarter(net):
        ours = generate("chameleon")
        assert torch_chameleon.swap_stats()["evictions"] > 0
        net.cpu()
    assert len(native) == len(ours)
    assert all(map(same_bits, native, ours))


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_state_dict_round_trip(name, tmp_path):
    """Into files and back, in torch's format and in transformers' own."""
    net = language_model(name)
    expected = {key: value.clone() for key, value in net.state_dict().items()}

    def check(tensors):
        assert tensors.keys() == expected.keys()
        assert all(same_bits(tensors[key], expected[key]) for key in expected)

    with quarter(net):
        net.to("chameleon")
        stream = io.BytesIO()
        torch.save(net.state_dict(), stream)
        net.save_pretrained(tmp_path)
        stream.seek(0)
        check(torch.load(stream, map_location="cpu"))
        check(type(net).from_pretrained(tmp_path).state_dict())

        stream.seek(0)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        net.load_state_dict(torch.load(stream, map_location="chameleon"))
        check(net.state_dict())
        net.cpu()


def test_tied_weights_stay_tied():
    net = language_model("gpt2").to("chameleon")
    assert net.lm_head.weight is net.transformer.wte.weight
    assert net.lm_head.weight.is_chameleon
