#!/usr/bin/env python3
"""The report's page of a Llama-style model of 1.3 B parameters, modelled.

    python tests/benchmarks/report_page.py PAGE.html [PICTURE.png]

Trains on a simulated H200 with a quarter of the memory that the model needs,
until plans are known; takes the page of three steps more, and its picture with
Chromium, if that is asked for.
"""

import pathlib
import shutil
import subprocess
import sys

import torch
import torch_chameleon

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "integration"))
from llama import Llama

STEPS = 12  # before those that are recorded
SIZE = (1000, 4300)  # pixels


def train() -> None:
    """Makes the model, and leaves three steps recorded."""
    config = torch_chameleon.config
    config.physical_device, config.simulated_gpu = "simulated", "h200"
    config.hbm_budget, config.host_budget = "16GiB", "200GiB"
    config.oversubscription = 8.0
    with torch.device("chameleon"):
        model = Llama(24, 2048, 16, 5504, 32000)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        tokens = torch.randint(0, 32000, (8, 2048), device="chameleon")
        with torch.autocast("chameleon", dtype=torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_chameleon.step()

    with torch_chameleon.watch(interval_s=0):
        for _ in range(STEPS):
            step()
        with torch_chameleon.recording():
            for _ in range(3):
                step()


def picture(page: pathlib.Path, path: pathlib.Path) -> None:
    """Takes it with a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("neither chromium nor google-chrome is on the path")
    size = ",".join(map(str, SIZE))
    options = ["--headless", "--no-sandbox", "--hide-scrollbars"]
    options += [f"--window-size={size}", f"--screenshot={path.resolve()}"]
    subprocess.run(
        [browser, *options, page.resolve().as_uri()],
        stderr=subprocess.DEVNULL,
        check=True,
    )


def main() -> None:
    """The command."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    page = pathlib.Path(sys.argv[1])
    train()
    torch_chameleon.report(page)
    if len(sys.argv) == 3:
        picture(page, pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
