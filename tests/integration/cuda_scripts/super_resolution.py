"""Sub-pixel convolutions: PSNR, whole models as checkpoints, one resumed."""

import argparse
import os
from math import log10

import torch
from torch import nn, optim
from torch.nn import init
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 64, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.ModuleList(
            nn.Conv2d(64, 64, (3, 3), (1, 1), (1, 1)) for _ in range(4)
        )
        self.conv3 = nn.Conv2d(64, 32, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(32, upscale_factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        for conv in (self.conv1, *self.conv2, self.conv3):
            init.orthogonal_(conv.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv4.weight)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        for conv in self.conv2:
            x = self.relu(conv(x))
        x = self.relu(self.conv3(x))
        return self.pixel_shuffle(self.conv4(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--upscale_factor", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--no-cuda", action="store_true")
    opt = parser.parse_args()
    torch.manual_seed(123)
    device = torch.device("cpu")
    if not opt.no_cuda and torch.cuda.is_available():
        device = torch.device("cuda")

    draws = torch.Generator().manual_seed(6)
    large = torch.rand(12, 1, 16, 16, generator=draws)
    small = nn.functional.avg_pool2d(large, opt.upscale_factor)
    dataset = TensorDataset(small, large)
    training_loader = DataLoader(dataset, 4, num_workers=1)
    testing_loader = DataLoader(dataset, 4, num_workers=1)
    criterion = nn.MSELoss()
    model = Net(opt.upscale_factor).to(device)

    for epoch in range(1, opt.epochs + 1):
        optimizer = optim.Adam(model.parameters(), lr=1e-3)
        for batch in training_loader:
            inputs, target = batch[0].to(device), batch[1].to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), target)
            print(f"===> Epoch[{epoch}]: Loss: {loss.item()!r}")
            loss.backward()
            optimizer.step()
        psnr = 0
        with torch.no_grad():
            for batch in testing_loader:
                inputs, target = batch[0].to(device), batch[1].to(device)
                psnr += 10 * log10(1 / criterion(model(inputs), target).item())
        print(f"===> Avg. PSNR: {psnr / len(testing_loader)!r} dB")
        name = f"model_epoch_{epoch}.pth"
        torch.save(model, name)
        model = torch.load(name, weights_only=False, map_location=device)
    os.remove("model_epoch_1.pth")


if __name__ == "__main__":
    main()
