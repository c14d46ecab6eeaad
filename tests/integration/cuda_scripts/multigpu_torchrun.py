"""A trainer with snapshots: it resumes, and goes parallel under torchrun."""

import argparse
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, path):
        self.is_parallel = "RANK" in os.environ
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        cuda = torch.cuda.is_available()
        self.device = torch.device(f"cuda:{rank}" if cuda else "cpu")
        self.model = model.to(self.device)
        self.train_data = train_data
        self.optimizer = optimizer(self.model)
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = path
        if os.path.exists(path):
            print("Loading snapshot")
            self._load_snapshot(path)
        self.unwrapped = self.model
        if self.is_parallel:
            ids = [rank] if cuda else None
            self.model = DistributedDataParallel(self.model, device_ids=ids)

    def _load_snapshot(self, path):
        snapshot = torch.load(path, map_location=self.device)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _save_snapshot(self, epoch):
        snapshot = {
            "MODEL_STATE": self.unwrapped.state_dict(),
            "OPTIMIZER_STATE": self.optimizer.state_dict(),
            "EPOCHS_RUN": epoch + 1,
        }
        torch.save(snapshot, self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved")

    def _run_epoch(self, epoch):
        if self.is_parallel:
            self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            source, targets = source.to(self.device), targets.to(self.device)
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            print(f"Epoch {epoch} | loss {loss.item()!r}")

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def main(total_epochs, save_every, path):
    is_parallel = "RANK" in os.environ
    if is_parallel:
        cuda = torch.cuda.is_available()
        init_process_group(backend="nccl" if cuda else "gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    draws = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.rand(256, 64, generator=draws),
        torch.randint(0, 10, (256,), generator=draws),
    )
    loader = DataLoader(
        data,
        batch_size=64,
        pin_memory=True,
        sampler=DistributedSampler(data) if is_parallel else None,
    )
    trainer = Trainer(
        *(model, loader, lambda net: torch.optim.AdamW(net.parameters())),
        *(save_every, path),
    )
    trainer.train(total_epochs)
    if is_parallel:
        destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--snapshot-path", default="snapshot.pt")
    args = parser.parse_args()
    main(args.epochs, args.save_every, args.snapshot_path)
