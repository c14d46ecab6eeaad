"""TRL: SFTTrainer on text, with a tokenizer made on the spot."""

import tempfile

import torch
import torch_chameleon
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch_chameleon.integrations.transformers import OnChameleon
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from trl import SFTConfig, SFTTrainer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs"]


class Arguments(OnChameleon, SFTConfig):
    """SFTConfig, on chameleon."""


def word_tokenizer():
    """A tokenizer that knows WORDS."""
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


def train(folder, **arguments):
    """Trains and returns the model."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=160,
            intermediate_size=432,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    lines = [" ".join(WORDS[i % 5 :] * 3) for i in range(16)]
    trainer = SFTTrainer(
        model=model,
        args=Arguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=2,
            max_length=32,
            learning_rate=1e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=Dataset.from_dict({"text": lines}),
        processing_class=word_tokenizer(),
    )
    trainer.train()
    return trainer.model


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "8MiB"
    with tempfile.TemporaryDirectory() as folder:
        model = train(folder)
    print(model.device, torch_chameleon.swap_stats()["evictions"])
