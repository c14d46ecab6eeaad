"""torchvision's classification reference, reduced to what it does a step.

Label smoothing, mixup in the collate function, warm-up, EMA of the weights
and buffers, channels last, evaluation, and a checkpoint to go on from.
"""

import io

import torch
import torch_chameleon
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import shufflenet_v2_x0_5
from torchvision.transforms import v2


def batches():
    """Four batches of images, mixed up as the reference does."""
    mixup = v2.MixUp(num_classes=10, alpha=0.2)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 8, 3, 64, 64, generator=generator)
    labels = torch.randint(0, 10, (3, 8), generator=generator)
    return [mixup(x, y) for x, y in zip(images, labels, strict=True)]


def evaluate(model, loader, device):
    """Returns the mean loss."""
    model.eval()
    with torch.inference_mode():
        losses = [
            nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            for x, y in loader
        ]
    model.train()
    return torch.stack(losses).mean().item()


def train(device):
    """Two epochs, the second from a checkpoint; returns everything."""
    torch.manual_seed(0)
    model = shufflenet_v2_x0_5(num_classes=10)
    model = model.to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    average = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    saved, losses = {}, []
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    for epoch in range(2):
        if epoch == 1:
            saved.seek(0)
            checkpoint = torch.load(saved, map_location=device)
            for name, part in parts.items():
                part.load_state_dict(checkpoint[name])
        loader = batches()
        for x, y in loader:
            x = x.to(device, memory_format=torch.channels_last)
            loss = criterion(model(x), y.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
        losses.append(evaluate(model, loader, device))
        saved = io.BytesIO()
        torch.save({k: part.state_dict() for k, part in parts.items()}, saved)
    return model, average, losses


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "24MiB"
    _, _, losses = train("chameleon")
    print(losses, torch_chameleon.swap_stats()["evictions"])
