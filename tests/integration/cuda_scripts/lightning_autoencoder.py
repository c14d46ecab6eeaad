"""Lightning's first example: `accelerator="auto"` finds the GPU."""

import argparse
import itertools
import logging
import tempfile
import warnings

import lightning
import torch
from torch import nn, utils

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        sizes = 784, 256, 128, 64
        self.encoder = nn.Sequential(*self.layers(sizes))
        self.decoder = nn.Sequential(*self.layers(sizes[::-1]))

    def layers(self, sizes):
        for size, following in itertools.pairwise(sizes):
            yield nn.Linear(size, following)
            yield nn.ReLU()

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x = x.view(x.size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        print("loss", loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    lightning.seed_everything(7)
    model = LitAutoEncoder()
    draws = torch.Generator().manual_seed(1)
    data = utils.data.TensorDataset(torch.rand(48, 1, 28, 28, generator=draws))
    loader = utils.data.DataLoader(data, batch_size=8, pin_memory=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="auto",
            devices=1,
            precision=args.precision,
            default_root_dir=folder,
            max_epochs=2,
            gradient_clip_val=1.0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        model = LitAutoEncoder.load_from_checkpoint(f"{folder}/last.ckpt")
    print(
        sum(p.detach().cpu().double().sum().item() for p in model.parameters())
    )


if __name__ == "__main__":
    main()
