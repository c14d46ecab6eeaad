"""timm's train.py: factories, EMA, mixup, clipping, and NativeScaler."""

import argparse
import contextlib

import numpy
import timm
import torch
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp-dtype", default="")
    args = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    timm.utils.random_seed(42, 0)
    autocast, scaler = contextlib.nullcontext, None
    if args.amp_dtype:

        def autocast():
            return torch.autocast(
                device_type=device.type, dtype=getattr(torch, args.amp_dtype)
            )

        scaler = NativeScaler(device=device.type)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=96,
        depth=3,
        num_classes=10,
        drop_path_rate=0.1,
    )
    model.to(device=device)
    optimizer = create_optimizer_v2(
        model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75
    )
    average = ModelEmaV3(model, decay=0.9)
    schedule, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=2, warmup_epochs=1
    )
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10)
    criterion = SoftTargetCrossEntropy().to(device=device)
    images = torch.randn(3, 32, 3, 32, 32)
    labels = torch.randint(0, 10, (3, 32))
    for epoch in range(2):
        model.train()
        losses = AverageMeter()
        for step, (image, label) in enumerate(zip(images, labels, strict=True)):
            x, target = mixup(image.clone().to(device), label.to(device))
            with autocast():
                loss = criterion(model(x), target)
            if scaler is not None:
                scaler(
                    loss,
                    optimizer,
                    clip_grad=1.0,
                    parameters=model.parameters(),
                )
            else:
                loss.backward()
                timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()
            average.update(model, step=epoch * 3 + step)
            losses.update(loss.item(), image.size(0))
            if device.type == "cuda":
                torch.cuda.synchronize()
            print("loss", losses.val, losses.avg)
        model.eval()
        with torch.no_grad():
            for image, label in zip(images, labels, strict=True):
                output = model(image.to(device))
                top1, top5 = accuracy(output, label.to(device), topk=(1, 5))
                print("top", top1.item(), top5.item())
        schedule.step(epoch + 1, losses.avg)
    numpy.random.seed(0)
    print(
        sum(
            p.detach().cpu().double().sum().item()
            for p in average.module.parameters()
        )
    )


if __name__ == "__main__":
    main()
