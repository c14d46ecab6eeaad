"""Scripts for `plan`, and what runs them: used by its tests."""

import pathlib
import subprocess
import sys
import time

from torch_chameleon.plan.process import run_script
from torch_chameleon.plan.run import Run


def run_plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_chameleon", "plan", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def wait_until(happened):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def run_text(text, folder, **given):
    """Runs a script in this folder, for two steps with room for all."""
    pathlib.Path("train.py").write_text(text)
    folder.mkdir()
    usual = {"gpu": "h200", "budgets": [None], "steps": 2}
    return run_script(
        Run(script="train.py", arguments=[], **(usual | given)), folder
    )


# Eight layers of a width, trained with AdamW.
LAYERS = """
import torch
from torch import nn
net = nn.Sequential(*(nn.Linear({0}, {0}) for _ in range(8))).to("cuda")
optimizer = torch.optim.AdamW(net.parameters())
for step in range(99):
    optimizer.zero_grad()
    net(torch.ones(64, {0}, device="cuda")).sum().backward()
    optimizer.step()
"""


# A training of two steps, and what scripts do beside it.
BESIDE = """
import os, subprocess, sys, torch
{}
net = torch.nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.SGD(net.parameters())
for step in range(2):
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
