"""PEFT: LoRA on a frozen model, with the Hugging Face Trainer.

Frozen weights go to the host once and are only read from there, so they cost
half the transfers of weights that are trained.
"""

import tempfile

import torch
import torch_chameleon
from peft import LoraConfig, get_peft_model
from torch_chameleon.integrations.transformers import TrainingArguments
from transformers import GPT2Config, GPT2LMHeadModel, Trainer


def base_model():
    """What is not trained."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=64, n_embd=256, n_layer=3, n_head=4
        )
    )


def train(folder, **arguments):
    """Trains and returns the model, whose adapter is in `folder`."""
    model = get_peft_model(
        base_model(),
        LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=["c_attn"],
            fan_in_fan_out=True,
        ),
    )
    rows = torch.randint(0, 256, (32, 64))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )
    trainer.train()
    trainer.save_model(folder)
    return trainer.model


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "12MiB"
    with tempfile.TemporaryDirectory() as folder:
        model = train(folder)
    model.print_trainable_parameters()
    stats = torch_chameleon.swap_stats()
    print(model.device, stats["evictions"], stats["clean_evictions"])
