"""The shapes that trainings have: what they do between two optimizer steps.

Each maker returns one step of a training, to call again and again. Nothing in a
step marks its end. Values are not read, so that all of them run on a simulated
device too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from integration.changing_programs import DEVICE, Size
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]


FULL = Size(
    layers=8, width=2048, heads=16, vocabulary=8000, batch=4, length=1024
)


class LoraLinear(nn.Linear):
    """A frozen layer with a trained detour of rank 16, as PEFT makes it."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, bias=False)
        self.weight.requires_grad_(False)
        full = {"dtype": torch.float32, "bias": False}
        self.down = nn.Linear(inputs, 16, **full)
        self.up = nn.Linear(16, outputs, **full)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        detour = self.up(self.down(x.to(self.down.weight.dtype)))
        return y + (detour * 2).to(y.dtype)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    """A layer of a Llama: rotated queries and keys, a gated feed-forward."""

    def __init__(self, size: Size, linear: Callable[[int, int], nn.Linear]):
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.v = linear(width, width), linear(width, width)
        self.k, self.out = _linear(width, width), _linear(width, width)
        self.gate, self.up = (
            _linear(width, 2 * width),
            _linear(width, 2 * width),
        )
        self.down = _linear(2 * width, width)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = (part * turns + part.roll(1, -1) * turns for part in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A language model; `forward` returns its loss.

    checkpointed: None, "reentrant" or "not reentrant".
    """

    def __init__(
        self,
        size: Size = FULL,
        *,
        lora: bool = False,
        checkpointed: str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ):
        super().__init__()
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        linear = LoraLinear if lora else _linear
        with torch.device(DEVICE):
            self.embedding = nn.Embedding(size.vocabulary, size.width)
            self.blocks = nn.ModuleList(
                Block(size, linear) for _ in range(size.layers)
            )
            self.norm = nn.RMSNorm(size.width)
            self.head = _linear(size.width, size.vocabulary)
        torch.set_default_dtype(before)
        if lora:
            for name, parameter in self.named_parameters():
                is_detour = ".down.weight" in name or ".up.weight" in name
                parameter.requires_grad_(
                    is_detour
                    and "blocks" in name
                    and (".q." in name or ".v." in name)
                )
        self.size, self.checkpointed = size, checkpointed

    def tokens(self) -> torch.Tensor:
        shape = (self.size.batch, self.size.length)
        return torch.zeros(shape, dtype=torch.long, device=DEVICE)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        if self.checkpointed:
            x.requires_grad_() if x.is_leaf else None
        head = self.size.width // self.size.heads
        angles = torch.arange(tokens.shape[1], device=DEVICE).float()[:, None]
        turns = (angles * torch.arange(head, device=DEVICE)).cos().to(x.dtype)
        for block in self.blocks:
            if self.checkpointed:
                reentrant = self.checkpointed == "reentrant"
                x = checkpoint(block, x, turns, use_reentrant=reentrant)
            else:
                x = block(x, turns)
        return self.head(self.norm(x))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.logits(tokens).float().flatten(0, 1)
        return F.cross_entropy(logits, tokens.flatten())


def _adamw(model: nn.Module, **more: object) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, **more)


def _autocast(on: bool = True) -> torch.autocast:
    return torch.autocast(DEVICE, torch.bfloat16, enabled=on)


def _training(
    model: Decoder,
    *,
    accumulation: int = 1,
    autocast: bool = False,
    clip: bool = False,
    evaluate_every: int = 0,
) -> Step:
    optimizer = _adamw(model)
    steps = 0

    def step() -> None:
        nonlocal steps
        for _ in range(accumulation):
            with _autocast(autocast):
                loss = model(model.tokens())
            (loss / accumulation).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if evaluate_every and steps % evaluate_every == 0:
            with torch.no_grad():
                for _ in range(4):
                    model(model.tokens())

    return step


def lora() -> Step:
    """PEFT's defaults: q and v, adapters in float32."""
    return _training(Decoder(lora=True))


def lora_accumulated() -> Step:
    """In float32, gradients of four batches clipped."""
    model = Decoder(lora=True, dtype=torch.float32)
    return _training(model, accumulation=4, clip=True)


def lora_autocast() -> Step:
    """Weights in float32, ops in bfloat16."""
    model = Decoder(lora=True, dtype=torch.float32)
    return _training(model, autocast=True)


def lora_checkpointed() -> Step:
    """Each layer's forward pass is run again in the backward pass."""
    return _training(Decoder(lora=True, checkpointed="not reentrant"))


def scaled() -> Step:
    """Autocast to float16 with a loss scale."""
    model = Decoder(dtype=torch.float32)
    optimizer = _adamw(model)
    scaler = torch.amp.GradScaler(DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, torch.float16):
            loss = model(model.tokens())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def full() -> Step:
    """All weights, in bfloat16."""
    return _training(Decoder())


def full_autocast() -> Step:
    """All weights, in float32 under autocast."""
    return _training(Decoder(dtype=torch.float32), autocast=True)


def accumulated_4() -> Step:
    """Four batches a step."""
    return _training(Decoder(), accumulation=4)


def accumulated_32() -> Step:
    """Thirty-two batches a step."""
    return _training(Decoder(), accumulation=32)


def evaluated() -> Step:
    """Four batches of evaluation after every tenth step."""
    return _training(Decoder(), evaluate_every=10)


def reentrant() -> Step:
    """Checkpointed by the older of PyTorch's two ways."""
    return _training(Decoder(checkpointed="reentrant"))


def preferences() -> Step:
    """DPO: chosen and rejected, each by the model and a frozen reference."""
    model, reference = Decoder(), Decoder()
    reference.requires_grad_(False)
    optimizer = _adamw(model)

    def likelihood(net: Decoder, tokens: torch.Tensor) -> torch.Tensor:
        odds = net.logits(tokens).float().log_softmax(-1)
        return odds.gather(-1, tokens.unsqueeze(-1)).sum((1, 2))

    def step() -> None:
        batches = model.tokens(), model.tokens()
        with torch.no_grad():
            usual = [likelihood(reference, batch) for batch in batches]
        chosen, rejected = (likelihood(model, batch) for batch in batches)
        margin = (chosen - usual[0]) - (rejected - usual[1])
        F.logsigmoid(0.1 * margin).mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _convolutions(*channels: int, transposed: bool) -> nn.Sequential:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(channels):
        layers += [kind(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs)]
        layers += [nn.ReLU() if transposed else nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-2])


def adversaries() -> Step:
    """A critic's two steps, and then a generator's."""
    with torch.device(DEVICE):
        critic = _convolutions(3, 128, 256, 512, 1024, 1, transposed=False)
        maker = _convolutions(100, 1024, 512, 256, 128, 3, transposed=True)
    of_critic, of_maker = _adamw(critic), _adamw(maker)

    def noise() -> torch.Tensor:
        return torch.randn(128, 100, 2, 2, device=DEVICE)

    def step() -> None:
        for _ in range(2):
            real = torch.empty(128, 3, 64, 64, device=DEVICE)
            made = maker(noise()).detach()
            of_critic.zero_grad()
            (critic(made).mean() - critic(real).mean()).backward()
            of_critic.step()
        of_maker.zero_grad()
        critic(maker(noise())).mean().neg().backward()
        of_maker.step()

    return step


def closure() -> Step:
    """LBFGS evaluates the model several times a step."""
    model = Decoder(Size(4, 1024, 16, 8000, 4, 512), dtype=torch.float32)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=4, history_size=2
    )

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(model.tokens())
        loss.backward()
        return loss

    return lambda: optimizer.step(evaluate) and None


def by_hand() -> Step:
    """No optimizer: weights are changed in place."""
    model = Decoder()

    def step() -> None:
        model(model.tokens()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.01)
                parameter.grad = None

    return step


def inference() -> Step:
    """No gradients."""
    model = Decoder()

    def step() -> None:
        with torch.inference_mode():
            model(model.tokens())

    return step


class UNetBlock(nn.Module):
    """Two convolutions and an attention over the picture, as in SDXL."""

    def __init__(self, inputs: int, outputs: int, attends: bool):
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(1280, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1)
        self.qkv = nn.Linear(outputs, 3 * outputs) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = (
            self.conv1(F.silu(self.norm1(x)))
            + self.time(time)[:, :, None, None]
        )
        x = self.short(x) + self.conv2(F.silu(self.norm2(h)))
        if self.qkv is None:
            return x
        flat = x.flatten(2).transpose(1, 2)
        parts = self.qkv(flat).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts)
        mixed = mixed.transpose(1, 2).flatten(2)
        return x + mixed.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Three levels down and up, with what came down handed across."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 320, 3, padding=1)
        wide = (320, 640, 1280)
        self.down = nn.ModuleList(
            UNetBlock(a, b, b > 320)
            for a, b in zip((320, *wide), wide, strict=False)
        )
        self.up = nn.ModuleList(
            UNetBlock(2 * b, a, b > 320)
            for a, b in zip((640, 320, 320), reversed(wide), strict=True)
        )
        self.last = nn.Conv2d(320, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x, kept = self.first(x), []
        for level, block in enumerate(self.down):
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2) if level < 2 else x
        for level, block in enumerate(self.up):
            x = block(torch.cat([x, kept.pop()], 1), time)
            x = F.interpolate(x, scale_factor=2.0) if level < 2 else x
        return self.last(x)


def unet() -> Step:
    """SDXL's kind of network, autocast to bfloat16."""
    with torch.device(DEVICE):
        model = UNet()
    optimizer = _adamw(model)

    def step() -> None:
        x = torch.randn(8, 4, 64, 64, device=DEVICE)
        time = torch.randn(8, 1280, device=DEVICE)
        with _autocast():
            loss = F.mse_loss(model(x, time).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


SHAPES: dict[str, Callable[[], Step]] = {
    made.__name__: made
    for made in (
        *(lora, lora_accumulated, lora_autocast, lora_checkpointed, scaled),
        *(full, full_autocast, accumulated_4, accumulated_32, evaluated),
        *(reentrant, preferences, adversaries, closure, by_hand, inference),
        unet,
    )
}
