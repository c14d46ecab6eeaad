"""A convolutional network on digits: workers, pinned batches, a checkpoint."""

import argparse
import os
import tempfile

import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        print(f"Train Epoch: {epoch} [{batch_idx}]\tLoss: {loss.item()!r}")


def test(model, device, loader):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    print(f"Test set: Average loss: {test_loss!r}, Accuracy: {correct}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()
    use_cuda = not args.no_cuda and torch.cuda.is_available()
    torch.manual_seed(1)
    device = torch.device("cuda" if use_cuda else "cpu")

    options = {"batch_size": args.batch_size}
    if use_cuda:
        options.update(num_workers=1, pin_memory=True)
    draws = torch.Generator().manual_seed(5)
    images = torch.rand(64, 1, 28, 28, generator=draws)
    labels = torch.randint(0, 10, (64,), generator=draws)
    dataset = TensorDataset(images, labels)
    train_loader = DataLoader(dataset, **options)
    test_loader = DataLoader(dataset, **options)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mnist_cnn.pt")
        torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path, map_location=device))
    print(
        sum(p.detach().cpu().double().sum().item() for p in model.parameters())
    )


if __name__ == "__main__":
    main()
