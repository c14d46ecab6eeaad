"""How many tokens a step of each language training has."""

from typing import NamedTuple


class Text(NamedTuple):
    """What a step is given.

    Attributes:
        batch: How many sequences.
        length: Tokens of each.
    """

    batch: int
    length: int

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.length


# By the training's name; those whose steps differ in length have none.
TEXTS = {
    "tiny": Text(4, 32),
    "llama_1.3b": Text(8, 2048),
    "llama_7b": Text(4, 2048),
    "llama_14b": Text(1, 2048),
    "llama_20b": Text(1, 2048),
    "lora_8b": Text(2, 2048),
    "moe_8x16": Text(16, 1024),
}
SMALL = Text(4, 32)  # for tests


def tokens_per_s(training: str, ms: float) -> float | None:
    """How fast a training reads, at so long a step; None: it has no text."""
    text = TEXTS.get(training)
    return text and text.tokens / ms * 1e3


def told(training: str, ms: float) -> str | None:
    """The same in words, as of "42,600 tokens/s": three digits count."""
    speed = tokens_per_s(training, ms)
    return speed and f"{float(f'{speed:.3g}'):,.0f} tokens/s"
