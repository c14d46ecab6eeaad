"""A Hugging Face Trainer with a callback, in one of two processes.

Usage: trainer_survivor.py OUT. Eight steps, three to an epoch; each life of a
rank adds a line to OUT/lives.RANK, and the last one leaves OUT/RANK.json.
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch_chameleon
import transformers
from torch_chameleon.integrations.transformers import (
    ElasticCallback,
    TrainingArguments,
)


class Begin(transformers.TrainerCallback):
    """Says at which step a life begins."""

    def __init__(self, out):
        self._out = out

    def on_train_begin(self, args, state, control, **_):
        with open(self._out / f"lives.{args.process_index}", "a") as file:
            file.write(f"{state.global_step} {args.world_size}\n")


def main(out):
    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2
        )
    )
    rows = torch.randint(64, (24, 8), generator=torch.Generator())
    trainer = transformers.Trainer(
        model,
        TrainingArguments(
            output_dir=str(out / os.environ["RANK"]),
            max_steps=8,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            logging_steps=3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )
    trainer.add_callback(ElasticCallback(trainer))
    trainer.add_callback(Begin(out))
    trainer.train()
    found = {
        "parameters": [
            x.detach().cpu().double().flatten().tolist()
            for x in trainer.model.parameters()
        ],
        "logged": [
            [row["step"], row["epoch"], row.get("loss"),
             row.get("train_loss"), row.get("learning_rate")]
            for row in trainer.state.log_history
        ],
    }  # fmt: skip
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
