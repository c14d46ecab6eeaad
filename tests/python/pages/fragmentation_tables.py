"""How much memory is lost to fragmentation, as the pages for users show it."""

from fragmentation import page

NAMES = {
    "default": "PyTorch's allocator",
    "expandable": "with `expandable_segments:True`",
    "chameleon": "this device",
}
MODELS = {
    "llama_1.3b_checkpointed_fused": "Llama, 1.3 B, checkpointed",
    "llama_1.3b_foreach_adamw": "Llama, 1.3 B, foreach AdamW",
    "llama_1.3b_fused_adamw": "Llama, 1.3 B, fused AdamW",
    "lora_7b": "LoRA of a 7 B Llama",
    "resnet50_b256": "ResNet-50, batch 256",
    "llama_7b_pipeline": "a rank of a pipeline, 7 B",
    "llama_varying_lengths": "Llama, lengths vary",
    "moe_varying_routing": "mixture of experts, routing varies",
}


def _table(first, rows):
    lines = [[first, *NAMES.values()], ["--"] * (len(NAMES) + 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _lost(row):
    return [row[name]["smallest"]["lost"] for name in NAMES]


def smallest_cards():
    """A row for each training."""
    rows = page.kept()
    return _table(
        "training",
        [
            [MODELS[name], *(f"{lost:.2%}" for lost in _lost(row))]
            for name, row in rows.items()
        ],
    )


def from_to():
    """One row for all."""
    columns = zip(*map(_lost, page.kept().values()), strict=True)
    spans = [f"{min(each):.2%} to {max(each):.2%}" for each in columns]
    return _table("", [["memory lost", *spans]])
