"""torchvision's ResNet in DataParallel: meters, events, a checkpoint."""

import argparse
import os
import shutil
import tempfile

import torch
import torchvision
from torch import nn
from torch.backends import cudnn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True) for k in topk
        ]


def train(loader, model, criterion, optimizer, device, gpu):
    model.train()
    losses, top1 = AverageMeter(), AverageMeter()
    for images, target in loader:
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        if gpu:
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
        output = model(images)
        loss = criterion(output, target)
        acc1, _ = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if gpu:
            end.record()
            torch.cuda.synchronize()
            assert begin.elapsed_time(end) >= 0
        print("loss", loss.item(), losses.avg, top1.avg)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-a", "--arch", default="resnet18")
    parser.add_argument("--gpu", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    cudnn.deterministic = True
    gpu = torch.cuda.is_available()
    model = torchvision.models.__dict__[args.arch](num_classes=10)
    if not gpu:
        device = torch.device("cpu")
    elif args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
        device = torch.device(f"cuda:{args.gpu}")
    else:
        model = torch.nn.DataParallel(model).cuda()
        device = torch.device("cuda")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    draws = torch.Generator().manual_seed(2)
    dataset = TensorDataset(
        torch.randn(24, 3, 64, 64, generator=draws),
        torch.randint(0, 10, (24,), generator=draws),
    )
    loader = DataLoader(dataset, 8, num_workers=1, pin_memory=True)
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "checkpoint.pth.tar")
    for epoch in range(args.epochs):
        train(loader, model, criterion, optimizer, device, gpu)
        scheduler.step()
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, path)
        loc = f"cuda:{args.gpu or 0}" if gpu else "cpu"
        checkpoint = torch.load(path, map_location=loc)
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    shutil.rmtree(folder)
    print(
        sum(p.detach().cpu().double().sum().item() for p in model.parameters())
    )


if __name__ == "__main__":
    main()
