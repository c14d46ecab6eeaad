"""Measures how long a training takes to be back, by where its state is.

Two launchers on this machine stand for two machines, with a rank each and DDP,
so each rank has all of the state. A worker is killed (its keeper has it); a
launcher is killed with all that it holds and another one takes its place, with
a partner and with a checkpoint alone. Writes coming_back.json, of which
python/docs/elastic-choices.md has the medians.

Usage: coming_back.py [RUNS]
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

RESULTS = pathlib.Path(__file__).with_name("coming_back.json")
WIDTH, LAYERS, STEPS, FAILS_AT = 1024, 16, 8, 4
LIMIT_S = 300
WAYS = {
    "the keeper": ("kill", ["restore_s"]),
    "a partner": ("stop", ["fetch_s", "restore_s"]),
    "disk": ("stop", ["reading_s"]),
}


def train(folder):
    """A rank: what it measured in its second life, or as who took over."""
    import torch
    import torch.distributed as dist
    import torch_chameleon
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    torch.chameleon.set_device(0)
    dist.init_process_group()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).to("chameleon")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    began = time.monotonic()
    state = torch_chameleon.elastic.State(
        model=model, optimizer=optimizer, step=0
    )
    took = time.monotonic() - began
    training = vars(state)["_training"]
    if state.step:
        figures = training.memory.ledger.figures
        said = {"state_s": took, "step": state.step, **figures._asdict()}
        name = f"{uuid.uuid4()}.json"
        (pathlib.Path(folder) / name).write_text(json.dumps(said))
    while state.step < STEPS:
        x = torch.randn(2, WIDTH, device="chameleon")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
        state.commit()
        partners = training.generations._partners
        if partners is not None:
            training.generations.wait()
            partners.settle()  # a step is short here
    dist.destroy_process_group()


def of_mark(mark):
    """Processes whose environment has it, and whether each stands still."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                said = (process / "stat").read_text().rpartition(")")[2]
                found[int(process.name)] = said.split()[0] == "T"
    return found


def measure(way):
    """One run."""
    import torch.distributed as dist

    kind, figures = WAYS[way]
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    run = str(uuid.uuid4())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        running = {}

        def start(machine, failure=""):
            mark = str(uuid.uuid4())
            where = {
                "the keeper": [],
                "a partner": ["--partner"],
                "disk": [
                    "--checkpoint",
                    folder / "disk",
                    "--checkpoint-steps",
                    1,
                ],
            }
            command = [
                *(sys.executable, "-m", "torch_chameleon", "elastic"),
                *("--nnodes", 2, "--nproc-per-node", 1, "--rdzv-id", run),
                *("--rdzv-backend", "c10d"),
                *("--rdzv-endpoint", f"127.0.0.1:{store.port}"),
                *("--rdzv-conf", "is_host=0,keep_alive_interval=1"),
                *where[way],
                *(__file__, "train", folder),
            ]
            with open(folder / machine, "w") as out:
                process = subprocess.Popen(
                    [*map(str, command)],
                    env={
                        **os.environ,
                        "TEST_MARK": mark,
                        "OMP_NUM_THREADS": "1",
                        "CHAMELEON_CHAOS": failure,
                    },
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            running[machine] = process, mark

        failure = f"{kind}:1:{FAILS_AT}:backward"
        start("first", failure)
        start("second", failure)
        deadline = time.monotonic() + LIMIT_S
        while kind == "stop" and len(running) == 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            for machine, (process, mark) in list(running.items()):
                found = of_mark(mark)
                if any(found.values()):
                    for each in found:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(each, signal.SIGKILL)
                    process.wait()
                    del running[machine]
        if kind == "stop":
            start("another")
        lines = []
        for machine, (process, _) in running.items():
            assert process.wait(LIMIT_S) == 0, (folder / machine).read_text()
            lines.append((folder / machine).read_text().splitlines()[-1])
        back = [re.search(r"back after ([\d.]+) s", each) for each in lines]
        said = [json.loads(each.read_text()) for each in folder.glob("*.json")]
    assert len(said) == 2, lines
    # A disk may be behind.
    assert min(each["step"] for each in said) >= FAILS_AT - 2, said
    return {
        "bytes": max(each["kept_bytes"] for each in said),
        "copy_s": max(sum(map(each.get, figures)) for each in said),
        "state_s": max(each["state_s"] for each in said),
        "back_s": max(float(each[1]) for each in back if each),
    }


def main(runs):
    found = {way: [measure(way) for _ in range(runs)] for way in WAYS}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 3)
