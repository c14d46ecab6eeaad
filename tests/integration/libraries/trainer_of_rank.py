"""One rank of a trainer's example: three trainings, and what each leaves.

`torchrun --nproc-per-node 2 trainer_of_rank.py NAME FOLDER` trains with room
for everything, with half of the rank's own peak, and natively. Our process
group is the first one, so the trainer has made it our way; the CPU's tensors
go to its gloo. RANK.json in the folder has hashes of all tensors.
"""

import gc
import hashlib
import importlib
import json
import math
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch_chameleon


def digest(tensors):
    """A hash of tensors by name, to the bit."""
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        x = torch.as_tensor(tensors[name]).detach().cpu().contiguous()
        hasher.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        hasher.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()[:16]


def forget_accelerate():
    """It keeps the device for the process's life."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def accelerate(module, folder, native):
    forget_accelerate()
    os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
    if not native:
        module.enable()
    options = {"cpu": native, "mixed_precision": "bf16"}
    module.train(folder, **options)
    model = module.train(folder, resume=True, **options)
    return model.state_dict(), model[0].weight.device


def transformers(module, folder, native):
    forget_accelerate()
    options = {"use_cpu": native, "bf16": True}
    module.train(folder, 2, **options)
    saved = f"{folder}/checkpoint-2"
    trainer = module.train(folder, 4, saved, **options)
    tensors = dict(trainer.model.state_dict())
    for index, row in enumerate(trainer.state.log_history):
        for name in {"loss", "grad_norm", "eval_loss"} & row.keys():
            tensors[f"logged.{index}.{name}"] = torch.tensor(row[name])
    return tensors, trainer.model.device


def lightning(module, folder, native):
    arguments = {
        **{"accelerator": "cpu", "strategy": "ddp", "devices": 2},
        "precision": "bf16-mixed",
    }
    if not native:
        arguments = module.trainer_kwargs("bf16-mixed")
    trained = module.train(folder, **arguments)
    (device,) = trained.devices
    return trained.state_dict(), device


EXAMPLES = {
    "accelerate": ("accelerate_loop", accelerate),
    "transformers": ("huggingface_trainer", transformers),
    "lightning": ("lightning_fit", lightning),
}


def main(name, folder):
    example, train = EXAMPLES[name]
    module = importlib.import_module(example)
    torch.set_num_threads(1)
    config = torch_chameleon.config
    config.physical_device = "cpu"
    config.host_budget = "1GiB"
    results = {}
    budget = 1 << 30
    for how in ("room", "half", "native"):
        config.hbm_budget = budget
        torch_chameleon.reset_swap_stats()
        tensors, device = train(module, f"{folder}/{how}", how == "native")
        stats = torch_chameleon.swap_stats()
        results[how] = {
            "digest": digest(tensors),
            "device": str(device),
            "evictions": stats["evictions"],
            "resident": stats["peak_resident_bytes"] / budget,
        }
        if how == "room":
            budget = math.ceil(stats["peak_logical_bytes"] / 2)
        del tensors
        gc.collect()
    path = pathlib.Path(folder) / f"{os.environ['RANK']}.json"
    path.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
