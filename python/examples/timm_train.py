"""timm: its training step, with model EMA, mixup, AMP and clipping."""

import numpy
import timm
import torch
import torch_chameleon
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, dispatch_clip_grad


def train(device, steps=4):
    """Trains as timm's train.py does; returns the model and its average."""
    torch.manual_seed(0)
    numpy.random.seed(0)  # timm mixes with NumPy's numbers
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=96,
        depth=3,
        num_classes=10,
        drop_path_rate=0.1,
    ).to(device)
    optimizer = create_optimizer_v2(
        model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75
    )
    schedule = CosineLRScheduler(optimizer, t_initial=steps)
    average = ModelEmaV3(model, decay=0.9)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10)
    loss_of = SoftTargetCrossEntropy()
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    model.train()
    for step in range(steps):
        x, target = mixup(images.clone().to(device), labels.to(device))
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = loss_of(model(x), target)
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        average.update(model, step=step)
        schedule.step(step + 1)
    return model, average.module


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "8MiB"
    model, _ = train("chameleon")
    device = next(model.parameters()).device
    print(device, torch_chameleon.swap_stats()["evictions"])
