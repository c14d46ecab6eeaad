"""transformers' run_clm: a causal language model with the Trainer."""

import sys
import tempfile

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class Dataset(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        draws = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, 256, (count, 64), generator=draws)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return {"input_ids": row, "labels": row}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        kept = ("loss", "grad_norm", "eval_loss", "train_loss")
        print({key: logs[key] for key in kept if key in logs})


def main():
    with tempfile.TemporaryDirectory() as folder:
        (training_args,) = HfArgumentParser(
            TrainingArguments
        ).parse_args_into_dataclasses(
            [
                *("--output_dir", folder, "--max_steps", "4"),
                *("--per_device_train_batch_size", "4"),
                *("--gradient_accumulation_steps", "2"),
                *("--eval_strategy", "steps", "--eval_steps", "2"),
                *("--save_steps", "2", "--logging_steps", "1"),
                *("--logging_strategy", "steps", "--report_to", "none"),
                *("--disable_tqdm", "true"),
                *sys.argv[1:],
            ]
        )
        set_seed(training_args.seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=256, n_positions=64, n_embd=128, n_layer=3, n_head=4
            )
        )

        def preprocess_logits_for_metrics(logits, labels):
            return logits.argmax(dim=-1)

        def compute_metrics(predictions):
            preds, labels = predictions
            return {"accuracy": float((preds == labels).mean())}

        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=Dataset(64, 1),
            eval_dataset=Dataset(8, 2),
            data_collator=default_data_collator,
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            callbacks=[Printer()],
        )
        trainer.remove_callback(PrinterCallback)  # prints times
        trainer.train()
        trainer.save_model()
        print(trainer.evaluate()["eval_loss"])
        again = GPT2LMHeadModel.from_pretrained(folder)
        print(
            sum(
                p.detach().cpu().double().sum().item()
                for p in again.parameters()
            )
        )


if __name__ == "__main__":
    main()
