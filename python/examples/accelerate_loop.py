"""Hugging Face accelerate: accumulation, bf16, saving and going on."""

import sys
import tempfile

import torch
import torch_chameleon
from accelerate import Accelerator
from torch import nn
from torch_chameleon.integrations.accelerate import RngState, enable


def train(folder, resume=False, **arguments):
    """Takes 4 updates and saves in `folder`, or loads and takes 4 more."""
    accelerator = Accelerator(gradient_accumulation_steps=2, **arguments)
    accelerator.register_for_checkpointing(RngState())
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 512),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(512, 256),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    rows = torch.randn(8 * 64, 256)
    loader = torch.utils.data.DataLoader(rows, batch_size=64)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, loader, schedule
    )
    if resume:
        accelerator.load_state(folder)
    for x in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = nn.functional.mse_loss(model(x), x)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    if not resume:
        accelerator.save_state(folder)
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "3MiB"
    enable()
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    train(folder, mixed_precision="bf16")
    model = train(folder, resume=True, mixed_precision="bf16")
    print(model[0].weight.device, torch_chameleon.swap_stats()["evictions"])
