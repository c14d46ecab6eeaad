"""torchvision's training reference: warm-up, EMA, mixup, AMP, channels last."""

import argparse
import time

import torch
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms import v2


class MetricLogger:
    def __init__(self):
        self.rows = []

    def log_every(self, iterable):
        mega = 1024.0 * 1024.0
        for each in iterable:
            begin = time.time()
            yield each
            row = {"time": time.time() - begin}
            if torch.cuda.is_available():
                row["max mem"] = torch.cuda.max_memory_allocated() / mega
            self.rows.append(row)


def train_one_epoch(model, criterion, optimizer, loader, device, ema, scaler):
    model.train()
    for image, target in MetricLogger().log_every(loader):
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        ema.update_parameters(model)
        print("loss", loss.item())


def evaluate(model, criterion, loader, device):
    model.eval()
    with torch.inference_mode():
        for image, target in loader:
            image = image.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            print("test", criterion(model(image), target).item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        args.device = "cpu"
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    draws = torch.Generator().manual_seed(1)
    dataset = TensorDataset(
        torch.randn(24, 3, 64, 64, generator=draws),
        torch.randint(0, 10, (24,), generator=draws),
    )
    mixup = v2.MixUp(num_classes=10, alpha=0.2)
    loader = DataLoader(
        dataset,
        batch_size=12,
        pin_memory=True,
        collate_fn=lambda rows: mixup(*default_collate(rows)),
    )
    test_loader = DataLoader(dataset, batch_size=12, pin_memory=True)
    model = torchvision.models.mobilenet_v3_small(num_classes=10)
    model.to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    groups = torchvision.ops._utils.split_normalization_params(model)
    optimizer = torch.optim.RMSprop(
        [
            {"params": p, "weight_decay": w}
            for p, w in zip(groups, (0.0, 1e-5), strict=True)
        ],
        lr=0.01,
        momentum=0.9,
        alpha=0.9,
    )
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2),
        ],
        milestones=[1],
    )
    ema = AveragedModel(
        model,
        device=device,
        multi_avg_fn=get_ema_multi_avg_fn(0.9),
        use_buffers=True,
    )
    for _ in range(2):
        train_one_epoch(
            model, criterion, optimizer, loader, device, ema, scaler
        )
        schedule.step()
        evaluate(model, criterion, test_loader, device)
        evaluate(ema, criterion, test_loader, device)
    print(sum(p.detach().cpu().double().sum().item() for p in ema.parameters()))


if __name__ == "__main__":
    main()
