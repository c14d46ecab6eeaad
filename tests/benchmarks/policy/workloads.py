"""Full-size trainings for the simulated GPU: each makes one step, to call."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

DEVICE = "chameleon"
Step = Callable[[], None]


def on_device(make: Callable[[], nn.Module]) -> nn.Module:
    """A model in bfloat16, made on the device."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        return make()


def _step(
    loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> Step:
    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def causal_lm(**sizes: int) -> nn.Module:
    """A Llama; without sizes that of Llama 2 7B."""
    import transformers
    from transformers.integrations import sdpa_attention

    # Whether a mask is needed is read from values, which a simulated device has
    # none of; an attention of another name gets no mask.
    transformers.AttentionInterface.register(
        "causal", sdpa_attention.sdpa_attention_forward
    )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            attn_implementation="causal", use_cache=False, **sizes
        )
    )


def _language_step(
    model: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer
) -> Step:
    return _step(lambda: model(tokens, labels=tokens).loss, optimizer)


def _llama(fused: bool, checkpointed: bool) -> Step:
    model = on_device(
        lambda: causal_lm(
            hidden_size=2048,
            intermediate_size=5504,
            num_hidden_layers=24,
            num_attention_heads=16,
        )
    )
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.randint(0, 32000, (8, 2048), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused or None)
    return _language_step(model, tokens, optimizer)


def _llama_7b() -> Step:
    model = on_device(causal_lm)
    tokens = torch.randint(0, 32000, (2, 2048), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return _language_step(model, tokens, optimizer)


def _resnet50() -> Step:
    import torchvision

    model = on_device(torchvision.models.resnet50)
    images = torch.empty(256, 3, 224, 224, device=DEVICE)
    labels = torch.zeros(256, dtype=torch.long, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _step(
        lambda: functional.cross_entropy(model(images), labels), optimizer
    )


def _lora() -> Step:
    import peft

    adapters = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    model = on_device(
        lambda: peft.get_peft_model(
            causal_lm(), adapters, autocast_adapter_dtype=False
        )
    )
    tokens = torch.randint(0, 32000, (2, 2048), device=DEVICE)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    return _language_step(model, tokens, optimizer)


class _Experts(nn.Module):
    """A mixture of feed-forward layers; how many go where is drawn on the CPU.

    A router's choice would depend on values, which a simulated device has
    none of. A few experts are liked more than the others.
    """

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, inner, bias=False),
                nn.GELU(),
                nn.Linear(inner, width, bias=False),
            )
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights = self.router(flat).softmax(-1)
        likes = torch.rand(
            len(self.experts), generator=draw, device="cpu", dtype=torch.float
        )
        chosen = torch.multinomial(
            likes + 0.5, len(flat), replacement=True, generator=draw
        )
        out = torch.zeros_like(flat)
        counts = chosen.bincount(minlength=len(self.experts)).tolist()
        for number, expert in enumerate(self.experts):
            rows = torch.arange(counts[number], device=x.device)
            got = expert(flat[rows]) * weights[rows, number, None]
            out = out.index_add(0, rows, got)
        return out.view_as(x)


class _MoeBlock(nn.Module):
    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.experts = _Experts(width, 4 * width, experts)

    def forward(self, x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.experts(self.norm2(x), draw)


def moe(draw: torch.Generator, blocks: int = 8, experts: int = 16) -> Step:
    """A mixture of experts; `draw` routes its tokens."""
    width = 1024

    def make() -> nn.Module:
        return nn.ModuleDict(
            {
                "embedding": nn.Embedding(16000, width),
                "blocks": nn.ModuleList(
                    _MoeBlock(width, 16, experts) for _ in range(blocks)
                ),
                "head": nn.Linear(width, 16000),
            }
        )

    model = on_device(make)
    tokens = torch.randint(0, 16000, (16, 1024), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def loss() -> torch.Tensor:
        x = model["embedding"](tokens)
        for block in model["blocks"]:
            x = block(x, draw)
        logits = model["head"](x).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    return _step(loss, optimizer)


def _moe_alike() -> Step:
    draw = torch.Generator("cpu")
    step = moe(draw)

    def same() -> None:
        draw.manual_seed(0)
        step()

    return same


def _moe_varying() -> Step:
    draw = torch.Generator("cpu")
    draw.manual_seed(0)
    return moe(draw)


def _gpt2_xl() -> Step:
    import transformers

    config = transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    model = on_device(lambda: transformers.GPT2LMHeadModel(config))
    tokens = torch.randint(0, 50257, (4, 1024), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return _language_step(model, tokens, optimizer)


def _vit_l() -> Step:
    import torchvision

    model = on_device(torchvision.models.vit_l_16)
    images = torch.empty(128, 3, 224, 224, device=DEVICE)
    labels = torch.zeros(128, dtype=torch.long, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return _step(
        lambda: functional.cross_entropy(model(images), labels), optimizer
    )


def _bert_large() -> Step:
    import transformers

    config = transformers.BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    model = on_device(lambda: transformers.BertForMaskedLM(config))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    lengths = random.Random(0)

    def loss() -> torch.Tensor:
        length = lengths.choice((128, 256, 384, 512))
        tokens = torch.zeros(32, length, dtype=torch.long, device=DEVICE)
        return model(tokens, labels=tokens).loss

    return _step(loss, optimizer)


def _small() -> Step:
    model = on_device(
        lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    )
    x = torch.empty(4096, 512, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return _step(lambda: model(x).square().mean(), optimizer)


WORKLOADS: dict[str, Callable[[], Step]] = {
    "llama_1.3b_fused": lambda: _llama(fused=True, checkpointed=False),
    "llama_1.3b_foreach": lambda: _llama(fused=False, checkpointed=False),
    "llama_1.3b_ckpt_fused": lambda: _llama(fused=True, checkpointed=True),
    "llama_1.3b_ckpt_foreach": lambda: _llama(fused=False, checkpointed=True),
    "resnet50_b256": _resnet50,
    "moe_8x16": _moe_alike,
    "moe_8x16_varying": _moe_varying,
    "lora_7b": _lora,
    "gpt2_xl": _gpt2_xl,
    "vit_l": _vit_l,
    "bert_large": _bert_large,
}
# Steps that differ: bounds and figures are means over some.
VARYING = ("moe_8x16_varying", "bert_large")
# For host_budgets.py alone: all of Llama 2 7B is trained.
HOST_ONLY: dict[str, Callable[[], Step]] = {"llama_7b": _llama_7b}
# For tests; no part of the benchmark.
SMALL: dict[str, Callable[[], Step]] = {"small": _small}
