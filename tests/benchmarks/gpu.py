"""Times of a training step on a GPU: native CUDA, and within budgets.

    python tests/benchmarks/gpu.py [--layers N] [--width N] [--steps N]

A GPT in bf16 autocast with fused AdamW. Native CUDA runs in a process of its
own; chameleon runs without a limit and at its peak divided by 1.25, 2 and 4.
Writes tests/benchmarks/results/<gpu>.json. Times are measured: the host waits
for the device after every step.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

RESULTS = Path(__file__).with_name("results")
FACTORS = (1.0, 1.25, 2.0, 4.0)


class Gpt(nn.Module):
    def __init__(self, layers, width, vocabulary=32000):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, 0.0, batch_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        values = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], device=tokens.device, dtype=values.dtype
        )
        for layer in self.layers:
            values = layer(values, src_mask=mask, is_causal=True)
        return self.head(values)


def measured(device, given, before_step=lambda: None):
    """Milliseconds of each step."""
    torch.manual_seed(0)
    module = getattr(torch, device)
    model = Gpt(given.layers, given.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 32000, (given.batch, given.length)).to(device)
    times = []
    for _ in range(given.warm_up + given.steps):
        before_step()
        start = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), tokens.flatten()
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        module.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return times[given.warm_up :]


def summary(times):
    ordered = sorted(times)
    return {
        "median_ms": statistics.median(times),
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }


def here(given, peak, factor):
    import torch_chameleon

    torch_chameleon.config.physical_device = "cuda"
    torch_chameleon.config.oversubscription = 8
    if factor > 1:
        torch_chameleon.config.hbm_budget = int(peak / factor)
    times = measured(
        "chameleon", given, lambda: torch_chameleon.reset_swap_stats()
    )
    stats = torch_chameleon.swap_stats()  # of the last step
    keys = ("bytes_in", "bytes_out", "stall_ns", "host_waits", "foreign_bytes")
    keys += ("faults", "evictions", "peak_resident_bytes", "peak_host_bytes")
    return {**summary(times), **{key: stats[key] for key in keys}}


def in_process(arguments, *extra):
    command = [sys.executable, __file__, *arguments, *extra]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("layers", 12),
        ("width", 1024),
        ("batch", 8),
        ("length", 1024),
        ("steps", 10),
        ("warm-up", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", help="native, or a factor")
    parser.add_argument("--peak", type=int, default=0)
    given = parser.parse_args()
    if given.only == "native":
        row = {**summary(measured("cuda", given))}
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(row))
        return
    if given.only:
        print(json.dumps(here(given, given.peak, float(given.only))))
        return
    arguments = sys.argv[1:]
    rows = {"native": in_process(arguments, "--only=native")}
    peak = 0
    for factor in FACTORS:
        extra = (f"--only={factor}", f"--peak={peak}")
        row = in_process(arguments, *extra)
        row["of_native"] = row["median_ms"] / rows["native"]["median_ms"]
        peak = peak or row["peak_resident_bytes"]
        rows[f"k={factor}"] = row
        print(factor, json.dumps(row), flush=True)
    gpu = torch.cuda.get_device_name(0)
    report = {
        "kind": "measured",
        "gpu": gpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["tests/benchmarks/gpu.py", *arguments]),
        "model": {k: v for k, v in vars(given).items() if k != "only"},
        "rows": rows,
    }
    path = RESULTS / f"{gpu.lower().replace(' ', '-')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
