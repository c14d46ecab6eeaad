"""One network for pairs of images: logic on labels, a triplet loss as well."""

import argparse

import torch
import torchvision
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.resnet = torchvision.models.resnet18(weights=None)
        self.resnet.conv1 = nn.Conv2d(1, 64, (7, 7), (2, 2), (3, 3), bias=False)
        self.features = self.resnet.fc.in_features
        self.resnet = nn.Sequential(*(list(self.resnet.children())[:-1]))
        self.fc = nn.Sequential(
            nn.Linear(self.features * 2, 256),
            nn.ReLU(inplace=True),
            nn.Linear(256, 1),
        )
        self.sigmoid = nn.Sigmoid()
        self.resnet.apply(self.init_weights)
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        output = self.resnet(x)
        return output.view(output.size()[0], -1)

    def forward(self, input1, input2):
        output1, output2 = self.forward_once(input1), self.forward_once(input2)
        output = self.sigmoid(self.fc(torch.cat((output1, output2), 1)))
        return output, output1, output2


class Pairs(Dataset):
    def __init__(self, count, draws):
        self.data = torch.rand(2 * count, 28, 28, generator=draws)
        self.targets = torch.randint(0, 4, (2 * count,), generator=draws)

    def __len__(self):
        return len(self.data) // 2

    def __getitem__(self, index):
        one, other = self.data[2 * index], self.data[2 * index + 1]
        same = self.targets[2 * index] == self.targets[2 * index + 1]
        return one.unsqueeze(0), other.unsqueeze(0), same.float()


def train(model, device, loader, optimizer, epoch):
    model.train()
    criterion = nn.BCELoss()
    triplet = nn.TripletMarginLoss(margin=0.5)
    for batch_idx, (images_1, images_2, targets) in enumerate(loader):
        images_1, images_2 = images_1.to(device), images_2.to(device)
        targets = targets.to(device)
        optimizer.zero_grad()
        outputs, one, other = model(images_1, images_2)
        loss = criterion(outputs.squeeze(), targets)
        loss = loss + 0.1 * triplet(one, other, other.roll(1, 0))
        loss.backward()
        optimizer.step()
        print(f"Train Epoch: {epoch} [{batch_idx}]\tLoss: {loss.item()!r}")


def test(model, device, loader):
    model.eval()
    test_loss = correct = 0
    criterion = nn.BCELoss()
    with torch.no_grad():
        for images_1, images_2, targets in loader:
            images_1, images_2 = images_1.to(device), images_2.to(device)
            targets = targets.to(device)
            outputs = model(images_1, images_2)[0].squeeze()
            test_loss += criterion(outputs, targets).sum().item()
            pred = torch.where(outputs > 0.5, 1, 0)
            correct += pred.eq(targets.view_as(pred)).sum().item()
    print(f"Test set: Average loss: {test_loss!r}, Accuracy: {correct}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--no-accel", action="store_true")
    args = parser.parse_args()
    use_accel = not args.no_accel and torch.accelerator.is_available()
    torch.manual_seed(1)
    device = (
        torch.accelerator.current_accelerator()
        if use_accel
        else torch.device("cpu")
    )
    dataset = Pairs(16, torch.Generator().manual_seed(9))
    loader = DataLoader(dataset, batch_size=4)
    model = SiameseNetwork().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(model, device, loader, optimizer, epoch)
        test(model, device, loader)
        scheduler.step()
    print(
        sum(p.detach().cpu().double().sum().item() for p in model.parameters())
    )


if __name__ == "__main__":
    main()
