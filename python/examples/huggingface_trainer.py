"""Hugging Face Trainer: accumulation, evaluation, checkpoints, bf16."""

import sys
import tempfile

import torch
import torch_chameleon
from torch_chameleon.integrations.transformers import (
    DeviceRng,
    TrainingArguments,
)
from transformers import LlamaConfig, LlamaForCausalLM, Trainer


def tiny_llama():
    """A model from a configuration, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_dropout=0.1,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def rows_of_bytes(count):
    """A dataset: rows of 64 tokens."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 256, (count, 64), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def train(folder, steps=4, resume=None, **arguments):
    """Trains in `folder`; returns the Trainer."""
    trainer = Trainer(
        model=tiny_llama(),
        args=TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=rows_of_bytes(64),
        eval_dataset=rows_of_bytes(8),
        callbacks=[DeviceRng()],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "8MiB"
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    trainer = train(folder, bf16=True)
    trainer = train(folder, 6, f"{folder}/checkpoint-4", bf16=True)
    print(trainer.state.log_history[-1])
    print(trainer.model.device, torch_chameleon.swap_stats()["evictions"])
