"""A GPT with device strings, autocast, a scaler, accumulation, and a sample.

`--dtype=bfloat16` and so on, as configurations are overridden there.
"""

import contextlib
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

gradient_accumulation_steps = 2
batch_size = 8
block_size = 64
n_layer, n_head, n_embd = 3, 4, 128
vocab_size = 96
dropout = 0.1
learning_rate, weight_decay = 1e-3, 1e-1
max_iters, warmup_iters = 4, 2
grad_clip = 1.0
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = "float32"
compile_model = False
for argument in sys.argv[1:]:
    key, value = argument.lstrip("-").split("=")
    globals()[key] = value


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.c_out = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        q, k, v = (
            each.view(b, t, n_head, c // n_head).transpose(1, 2)
            for each in (q, k, v)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout if self.training else 0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.dropout(self.c_proj(y))
        return x + self.dropout(self.c_out(F.gelu(self.c_fc(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        device = idx.device
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )
        return logits, loss

    def configure_optimizers(self):
        params = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {
                "params": [p for p in params if p.dim() >= 2],
                "weight_decay": weight_decay,
            },
            {
                "params": [p for p in params if p.dim() < 2],
                "weight_decay": 0.0,
            },
        ]
        return torch.optim.AdamW(groups, lr=learning_rate)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -block_size:])
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx_next = torch.multinomial(probs, num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}[dtype]
ctx = (
    contextlib.nullcontext()
    if dtype == "float32"
    else torch.amp.autocast(device_type=device_type, dtype=ptdtype)
)
text = "".join(chr(32 + (i * i + 7 * i) % 90) for i in range(5000))
data = torch.tensor([ord(c) - 32 for c in text])


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    if device_type == "cuda":
        return (
            x.pin_memory().to(device, non_blocking=True),
            y.pin_memory().to(device, non_blocking=True),
        )
    return x.to(device), y.to(device)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return learning_rate * 0.5 * (1 + math.cos(math.pi * it / max_iters))


model = GPT().to(device)
scaler = torch.amp.GradScaler(device_type, enabled=dtype == "float16")
optimizer = model.configure_optimizers()
if compile_model:
    model = torch.compile(model)
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    for _ in range(gradient_accumulation_steps):
        X, Y = get_batch()
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print("iter", it, "loss", loss.item() * gradient_accumulation_steps)
model.eval()
with torch.no_grad(), ctx:
    start = torch.zeros((1, 1), dtype=torch.long, device=device)
    print(model.generate(start, 20)[0].tolist())
print(sum(p.detach().cpu().double().sum().item() for p in model.parameters()))
