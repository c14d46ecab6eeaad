"""A plain loop, as in pytorch/examples: the accelerator is found by torch.

Nothing in it is about chameleon but the import, and not even that with
CHAMELEON_AUTOLOAD=1 in the environment.
"""

import torch
import torch_chameleon
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Net(nn.Module):
    """The network of the MNIST example."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        """Returns logarithms of probabilities."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def test(model, loader, device):
    """Returns the sum of the losses."""
    model.eval()
    loss = 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data.to(device))
            target = target.to(device)
            loss += F.nll_loss(output, target, reduction="sum").item()
    return loss


def train(device):
    """Trains and tests; returns the model and the test loss."""
    torch.manual_seed(1)
    images, labels = torch.rand(96, 1, 28, 28), torch.randint(0, 10, (96,))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels),
        batch_size=32,
        shuffle=True,
    )
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    for _ in range(2):
        model.train()
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        schedule.step()
    return model, test(model, loader, device)


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "24MiB"
    device = torch.accelerator.current_accelerator()
    model, loss = train(device)
    print(device, loss, torch_chameleon.swap_stats()["evictions"])
