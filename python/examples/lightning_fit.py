"""Lightning: accelerator, strategy and precision from one function."""

import sys
import tempfile

import lightning.pytorch as pl
import torch
import torch_chameleon
from torch import nn
from torch_chameleon.integrations.lightning import trainer_kwargs


class Autoencoder(pl.LightningModule):
    """Learns to say what it was told."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256)
        )
        self.devices = set()

    def training_step(self, batch, index):
        """Returns the loss."""
        self.devices |= {batch.device.type, self.net[0].weight.device.type}
        loss = nn.functional.mse_loss(self.net(batch), batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        """Logs the loss."""
        self.log("validation", nn.functional.mse_loss(self.net(batch), batch))

    def configure_optimizers(self):
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters())


def train(folder, **arguments):
    """Trains for two epochs and returns the module."""
    torch.manual_seed(0)
    module = Autoencoder()
    rows = torch.randn(256, 256)
    trainer = pl.Trainer(
        default_root_dir=folder,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(
        module,
        torch.utils.data.DataLoader(rows, batch_size=64),
        torch.utils.data.DataLoader(rows[:64], batch_size=64),
    )
    return module


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "3MiB"
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    module = train(folder, **trainer_kwargs("bf16-mixed"))
    print(module.devices, torch_chameleon.swap_stats()["evictions"])
