"""A small GPT under torchrun: DistributedDataParallel, snapshots of rank 0."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS = 96, 32, 64, 4, 3
local_rank = int(os.environ["LOCAL_RANK"])
rank = int(os.environ["RANK"])
on_gpu = torch.cuda.is_available()


class Text(Dataset):
    def __init__(self):
        draws = torch.Generator().manual_seed(1)
        self.data = torch.randint(0, VOCABULARY, (2048,), generator=draws)

    def __len__(self):
        return 128

    def __getitem__(self, index):
        chunk = self.data[index : index + TOKENS + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.register_buffer(
            "mask", torch.triu(torch.ones(TOKENS, TOKENS), 1).bool()
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.attend(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.zeros(1, TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x, targets):
        x = self.blocks(self.tokens(x) + self.places)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


class Trainer:
    def __init__(self, model, optimizer, dataset, path):
        self.place = local_rank if on_gpu else "cpu"
        self.model, self.optimizer, self.path = model, optimizer, path
        self.loader = DataLoader(
            dataset,
            batch_size=16,
            pin_memory=on_gpu,
            shuffle=False,
            sampler=DistributedSampler(dataset),
        )
        self.scaler = torch.amp.GradScaler("cuda", enabled=False)
        self.epochs_run = 0
        if os.path.exists(path):
            self._load_snapshot()
        self.raw = self.model
        self.model = DistributedDataParallel(
            self.model, device_ids=[local_rank] if on_gpu else None
        )

    def _load_snapshot(self):
        places = {"cuda:0": f"cuda:{local_rank}"}
        snapshot = torch.load(self.path, map_location=places)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.epochs_run = snapshot["epoch"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _save_snapshot(self, epoch):
        snapshot = {
            "model": self.raw.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": epoch + 1,
        }
        torch.save(snapshot, self.path)
        print(f"Snapshot saved at epoch {epoch}")

    def _run_batch(self, x, y):
        kind = "cuda" if on_gpu else "cpu"
        with torch.autocast(kind, dtype=torch.bfloat16):
            _, loss = self.model(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for x, y in self.loader:
                x = x.to(self.place, non_blocking=True)
                y = y.to(self.place, non_blocking=True)
                loss = self._run_batch(x, y)
            mean = loss / dist.get_world_size()
            dist.all_reduce(mean)
            print(f"[GPU{rank}] Epoch {epoch} | loss {mean.item()!r}")
            if rank == 0:
                self._save_snapshot(epoch)
        if on_gpu:
            dist.barrier(device_ids=[local_rank])
        else:
            dist.barrier()


def new_model():
    torch.manual_seed(0)
    model = GPT()
    if on_gpu:
        model = model.cuda(local_rank)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4)


def main():
    if on_gpu:
        torch.cuda.set_device(local_rank)
        assert dist.is_nccl_available()
        dist.init_process_group(
            "nccl", device_id=torch.device("cuda", local_rank)
        )
        assert dist.get_backend() == "nccl"
    else:
        dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    path = os.path.join(folder[0], "snapshot.pt")
    dataset = Text()
    Trainer(*new_model(), dataset, path).train(1)
    trainer = Trainer(*new_model(), dataset, path)
    trainer.train(3)
    total = sum(p.double().sum() for p in trainer.raw.parameters())
    print(f"[GPU{rank}] parameters {total.item()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
