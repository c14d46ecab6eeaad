"""peft's examples: LoRA on a frozen model, saved and merged."""

import tempfile

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    get_linear_schedule_with_warmup,
    set_seed,
)

device = "cuda" if torch.cuda.is_available() else "cpu"


def base_model():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=64,
        )
    )


def main():
    set_seed(0)
    model = get_peft_model(
        base_model(),
        LoraConfig(
            task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=32, lora_dropout=0.1
        ),
    )
    model.print_trainable_parameters()
    rows = torch.randint(0, 256, (16, 64))
    loader = torch.utils.data.DataLoader(
        [{"input_ids": row, "labels": row} for row in rows],
        shuffle=True,
        batch_size=4,
        pin_memory=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, 8)
    model = model.to(device)
    for _ in range(2):
        model.train()
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            print("loss", loss.detach().float().item())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        merged = PeftModel.from_pretrained(base_model(), folder).to(device)
    merged = merged.merge_and_unload()
    merged.eval()
    tokens = merged.generate(
        rows[:1, :8].to(device), max_new_tokens=8, do_sample=False
    )
    print(tokens[0].tolist())
    print(
        sum(p.detach().cpu().double().sum().item() for p in merged.parameters())
    )


if __name__ == "__main__":
    main()
