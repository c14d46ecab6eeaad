"""Trains a small network in a quarter of the memory that it needs."""

import torch
import torch_chameleon
from torch import nn

torch_chameleon.config.hbm_budget = "16MiB"

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(512, 1024),
    nn.GELU(),
    nn.Linear(1024, 1024),
    nn.GELU(),
    nn.Linear(1024, 512),
).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(256, 512, device="chameleon")

for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}")

stats = torch_chameleon.swap_stats()
print(
    f"live at most {stats['peak_logical_bytes'] >> 20} MiB, "
    f"resident at most {stats['peak_resident_bytes'] >> 20} MiB, "
    f"moved in {stats['bytes_in'] >> 20} MiB"
)
