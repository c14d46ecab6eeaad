"""transformers' run_clm_no_trainer: the same with accelerate."""

import math
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    default_data_collator,
    get_scheduler,
)


def rows(count, seed):
    draws = torch.Generator().manual_seed(seed)
    found = torch.randint(0, 256, (count, 64), generator=draws)
    return [{"input_ids": row, "labels": row} for row in found]


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=64, n_embd=128, n_layer=3, n_head=4
        )
    )
    loader = DataLoader(
        rows(32, 1),
        shuffle=True,
        collate_fn=default_data_collator,
        batch_size=4,
    )
    eval_loader = DataLoader(
        rows(8, 2), collate_fn=default_data_collator, batch_size=4
    )
    no_decay = ["bias", "ln_"]
    groups = [
        {
            "params": [
                p
                for n, p in model.named_parameters()
                if any(nd in n for nd in no_decay) == plain
            ],
            "weight_decay": 0.0 if plain else 0.1,
        }
        for plain in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-4)
    schedule = get_scheduler(
        "linear", optimizer, num_warmup_steps=1, num_training_steps=8
    )
    model, optimizer, loader, eval_loader, schedule = accelerator.prepare(
        model, optimizer, loader, eval_loader, schedule
    )
    folder = tempfile.TemporaryDirectory()
    for epoch in range(2):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            print("loss", loss.detach().float().item())
        model.eval()
        losses = []
        for batch in eval_loader:
            with torch.no_grad():
                loss = model(**batch).loss
            losses.append(accelerator.gather_for_metrics(loss.repeat(4)))
        eval_loss = torch.mean(torch.cat(losses))
        print("eval", eval_loss.item(), math.exp(eval_loss))
        if epoch == 0:
            accelerator.save_state(folder.name)
            accelerator.load_state(folder.name)
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(folder.name, save_function=accelerator.save)
    print(
        sum(
            p.detach().cpu().double().sum().item()
            for p in unwrapped.parameters()
        )
    )
    folder.cleanup()


if __name__ == "__main__":
    main()
