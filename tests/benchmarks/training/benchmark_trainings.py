"""Trainings to time: real models at full size, and small ones for tests.

Weights are float32 and computed with in bfloat16 (autocast), AdamW's state is
float32; the frozen base under LoRA is bfloat16. Data are
random and stay the same, so every way to train a model computes the same thing.
Weights of Llamas from 7b on are bfloat16 throughout, their gradients and
AdamW's state too: 8 bytes a parameter.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence

import torch
from integration.llama import Llama
from texts import SMALL, TEXTS
from torch import Tensor, nn
from torch.nn import functional

# Loss of one part of the batch: (part, parts) -> scalar.
Loss = Callable[[int, int], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclasses.dataclass
class Training:
    """A model, its optimizer, and the loss of a batch.

    Attributes:
        model: On the device, in training mode.
        make_optimizer: Given the parameters to train.
        loss: Mean loss of one of so many equal parts of the batch.
        blocks: The repeated modules, in order: what is checkpointed or
            sharded one by one.
        batch: How many examples a step has.
        rewind: What is drawn for the steps begins anew: steps that are timed
            are the same ones every way.
        is_varying: Whether steps differ in the sizes of their tensors.
        optimizer: Over the model's trainable parameters.
    """

    model: nn.Module
    make_optimizer: MakeOptimizer
    loss: Loss
    blocks: Sequence[nn.Module]
    batch: int
    rewind: Callable[[], None] = lambda: None
    is_varying: bool = False
    optimizer: torch.optim.Optimizer = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.remake_optimizer()

    def remake_optimizer(self) -> None:
        """Anew, for the parameters that the model has now."""
        self.optimizer = self.make_optimizer(
            [p for p in self.model.parameters() if p.requires_grad]
        )


def _made(
    device: str, dtype: torch.dtype, make: Callable[[], nn.Module]
) -> nn.Module:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make()
    finally:
        torch.set_default_dtype(before)


def _part(batch: Tensor, part: int, parts: int) -> Tensor:
    return batch.chunk(parts)[part]


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _language(
    device: str,
    model: nn.Module,
    blocks: Sequence[nn.Module],
    tokens: Tensor,
    loss_of: Callable[[Tensor], Tensor],
    is_cast: bool = True,
    is_varying: bool = False,
) -> Training:
    tokens = tokens.to(device)

    def loss(part: int, parts: int) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=is_cast):
            return loss_of(_part(tokens, part, parts))

    return Training(
        model, _adamw, loss, blocks, len(tokens), is_varying=is_varying
    )


def _tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocabulary, (batch, length), generator=generator)


def _text(training: str, small: bool, vocabulary: int) -> Tensor:
    return _tokens(*(SMALL if small else TEXTS[training]), vocabulary)


def llama(device: str, small: bool) -> Training:
    """A Llama-style decoder of 1.3 billion parameters, all trained."""
    sizes = (2, 64, 2, 128, 256) if small else (24, 2048, 16, 5504, 32000)
    model = _made(device, torch.float32, lambda: Llama(*sizes))
    tokens = _text("llama_1.3b", small, sizes[-1])
    return _language(device, model, model.blocks, tokens, model)


def _fill(model: nn.Module, different: int) -> None:
    """The same random weights on every device, without a minute on the host.

    So many different ones, again and again.
    """
    generator = torch.Generator().manual_seed(0)
    first = next(model.parameters())
    some = torch.randn(different, generator=generator).mul(0.02)
    some = some.to(first.device, first.dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1)  # a norm's
                continue
            flat = parameter.view(-1)
            whole = flat.numel() // different * different
            flat[:whole].view(-1, different).copy_(some)
            flat[whole:].copy_(some[: flat.numel() - whole])


# Layers, width, heads, inner width, vocabulary.
_BFLOAT16 = {
    "llama_7b": (32, 4096, 32, 11008, 32000),
    "llama_14b": (44, 5120, 40, 13824, 32000),
    "llama_20b": (44, 6144, 48, 16384, 32000),
}
_BFLOAT16_SMALL = (4, 64, 2, 128, 256)


def _unmade(training: str, small: bool) -> Llama:
    sizes = _BFLOAT16_SMALL if small else _BFLOAT16[training]
    return _made("meta", torch.bfloat16, lambda: Llama(*sizes))


def state_bytes(training: str, small: bool) -> int:
    """Bytes of a training's parameters, gradients and AdamW's two moments.

    So many there must be at least; 0: not said.
    """
    if training not in _BFLOAT16:
        return 0
    model = _unmade(training, small)
    return 4 * sum(p.numel() * p.element_size() for p in model.parameters())


def _bfloat16(training: str) -> Callable[[str, bool], Training]:
    """Full fine-tuning of a Llama-style decoder in bfloat16.

    Weights are random, made where they stay.
    """

    def make(device: str, small: bool) -> Training:
        model = _unmade(training, small)
        model.to_empty(device=device)
        _fill(model, 1 << (12 if small else 20))
        vocabulary = model.embedding.num_embeddings
        tokens = _text(training, small, vocabulary)
        return _language(
            device, model, model.blocks, tokens, model, is_cast=False
        )

    return make


def tiny(device: str, small: bool) -> Training:
    """A decoder so small that launching its kernels takes longer than they."""
    sizes = (2, 64, 2, 128, 256) if small else (4, 128, 4, 256, 1024)
    model = _made(device, torch.float32, lambda: Llama(*sizes))
    tokens = _text("tiny", small, sizes[-1])
    return _language(device, model, model.blocks, tokens, model)


class _Adapted(nn.Module):
    """A frozen linear layer with an adapter of rank 16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(
            linear.in_features, 16, bias=False, dtype=torch.float32
        )
        self.up = nn.Linear(
            16, linear.out_features, bias=False, dtype=torch.float32
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.up(self.down(x))


def lora(device: str, small: bool) -> Training:
    """Adapters on a frozen decoder of 8 billion parameters' shape."""
    sizes = (2, 64, 2, 128, 256) if small else (32, 4096, 32, 14336, 128256)

    def make() -> nn.Module:
        model = Llama(*sizes).requires_grad_(False)
        for block in model.blocks:
            for name in ("qkv", "out", "gate", "up", "down"):
                setattr(block, name, _Adapted(getattr(block, name)))
        return model

    model = _made(device, torch.bfloat16, make)
    tokens = _text("lora_8b", small, sizes[-1])
    return _language(device, model, model.blocks, tokens, model)


def _images(
    device: str,
    model: nn.Module,
    blocks: Sequence[nn.Module],
    batch: int,
    side: int,
    optimizer: MakeOptimizer,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Training:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, side, side, generator=generator)
    images = images.to(device, memory_format=memory_format)
    model.to(memory_format=memory_format)
    labels = torch.randint(0, 10, (batch,), generator=generator).to(device)

    def loss(part: int, parts: int) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(_part(images, part, parts))
        return functional.cross_entropy(
            logits.float(), _part(labels, part, parts)
        )

    return Training(model, optimizer, loss, blocks, batch)


def _resnet(
    name: str,
    batch: int,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Callable[[str, bool], Training]:
    def make(device: str, small: bool) -> Training:
        import torchvision

        kind = "resnet18" if small else name
        model = _made(device, torch.float32, getattr(torchvision.models, kind))
        blocks = [
            block
            for layer in (
                model.layer1,
                model.layer2,
                model.layer3,
                model.layer4,
            )
            for block in layer
        ]
        sizes = (4, 32) if small else (batch, 224)
        return _images(device, model, blocks, *sizes, _sgd, memory_format)

    return make


def vit_l(device: str, small: bool) -> Training:
    """ViT-L/16 on 128 images."""
    import torchvision

    def make() -> nn.Module:
        if not small:
            return torchvision.models.vit_l_16()
        return torchvision.models.VisionTransformer(32, 16, 2, 2, 64, 128)

    model = _made(device, torch.float32, make)
    sizes = (4, 32) if small else (128, 224)
    return _images(device, model, list(model.encoder.layers), *sizes, _adamw)


def bert_large(device: str, small: bool) -> Training:
    """BERT-large; four lengths of text, drawn for every step."""
    import transformers

    vocabulary = 256 if small else 30522
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 64 if small else 1024,
        "num_hidden_layers": 2 if small else 24,
        "num_attention_heads": 2 if small else 16,
        "intermediate_size": 128 if small else 4096,
    }
    model = _made(
        device,
        torch.float32,
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**sizes)),
    )
    lengths = (8, 16, 24, 32) if small else (128, 256, 384, 512)
    batch = 4 if small else 32
    draw = random.Random(0)
    drawn: dict[str, Tensor] = {}

    def loss(part: int, parts: int) -> Tensor:
        if part == 0:
            length = draw.choice(lengths)
            drawn["tokens"] = _tokens(batch, length, vocabulary).to(device)
        tokens = _part(drawn["tokens"], part, parts)
        with torch.autocast(device, dtype=torch.bfloat16):
            return model(tokens, labels=tokens).loss

    blocks = list(model.bert.encoder.layer)
    return Training(
        model,
        _adamw,
        loss,
        blocks,
        batch,
        lambda: draw.seed(0),
        is_varying=True,
    )


def moe(device: str, small: bool) -> Training:
    """A Mixtral of 8 layers and 16 experts; who gets what, values decide."""
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=256 if small else 16000,
        hidden_size=64 if small else 1024,
        intermediate_size=128 if small else 4096,
        num_hidden_layers=2 if small else 8,
        num_attention_heads=2 if small else 16,
        num_key_value_heads=2 if small else 16,
        num_local_experts=4 if small else 16,
        use_cache=False,
        # The default calls grouped_mm, which autocast does not cast for: with
        # float32 weights CUDA refuses it.
        experts_implementation="eager",
    )
    model = _made(
        device,
        torch.float32,
        lambda: transformers.MixtralForCausalLM(config),
    )
    tokens = _text("moe_8x16", small, config.vocab_size)
    return _language(
        device,
        model,
        list(model.model.layers),
        tokens,
        lambda part: model(part, labels=part).loss,
        is_varying=True,
    )


TRAININGS: dict[str, Callable[[str, bool], Training]] = {
    "tiny": tiny,
    "llama_1.3b": llama,
    "llama_7b": _bfloat16("llama_7b"),
    "llama_14b": _bfloat16("llama_14b"),
    "llama_20b": _bfloat16("llama_20b"),
    "lora_8b": lora,
    "resnet50": _resnet("resnet50", 256),
    "resnet50_channels_last": _resnet("resnet50", 256, torch.channels_last),
    "resnet152": _resnet("resnet152", 128),
    "vit_l": vit_l,
    "bert_large": bert_large,
    "moe_8x16": moe,
}
