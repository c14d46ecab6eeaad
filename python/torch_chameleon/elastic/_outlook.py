"""What a failure would cost, or does, by what is done about it."""

from typing import NamedTuple

from torch_chameleon.elastic._option import Option
from torch_chameleon.elastic._situation import Situation

_HEAD = ("option", "total", "back", "steps lost", "slower")


class Outlook(NamedTuple):
    """All options with their prices, which prints as a small table.

    Attributes:
        now: Where the training is.
        options: What can be done.
        impossible: Why the rest cannot, by name.
    """

    now: Situation
    options: list[Option]
    impossible: dict[str, str]

    @property
    def best(self) -> Option | None:
        """The cheapest one; of equals, to the millisecond, the first."""
        return min(
            self.options, key=lambda x: round(x.price_s, 3), default=None
        )

    def line(self) -> str:
        """All numbers and the choice, for a log."""
        prices = [
            f"{x.name} {x.price_s:.2f} s ({x.recovery_s:.2f} back + "
            f"{x.lost_s:.2f} steps lost + {x.slower_s:.2f} slower)"
            for x in self.options
        ]
        prices += [f"{name}: {why}" for name, why in self.impossible.items()]
        chosen = self.best.name if self.best else "nothing"
        return (
            f"{'; '.join(prices)}; a step takes {self._step}; chosen: {chosen}"
        )

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [_HEAD]
        rows += [
            (
                x.name,
                *map(_seconds, (x.price_s, x.recovery_s, x.lost_s, x.slower_s)),
            )
            for x in self.options
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [name.ljust(widths[0])]
                + [
                    text.rjust(width)
                    for text, width in zip(texts, widths[1:], strict=True)
                ]
            )
            for name, *texts in rows
        ]
        lines += [
            f"{name.ljust(widths[0])}  {why}"
            for name, why in self.impossible.items()
        ]
        head = (
            f"If one of {self._who} were lost now (a step takes {self._step}):"
        )
        return "\n".join([head, *lines])

    @property
    def _who(self) -> str:
        ranks = f"{self.now.ranks} ranks"
        machines = self.now.machines
        return ranks if machines == 1 else f"{ranks} on {machines} machines"

    @property
    def _step(self) -> str:
        step_s = self.now.figures.step_s
        then = step_s * self.now.figures.slowdown
        less = "a rank" if self.now.machines == 1 else "a machine"
        with_fewer = f", {then:.3g} s with {less} less" if then else ""
        return f"{step_s:.3g} s{with_fewer}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
