"""What one run of a script is asked."""

import dataclasses


@dataclasses.dataclass
class Run:
    """What to run, and on what.

    Attributes:
        script: The user's file.
        arguments: Its command line.
        gpu: The simulated card, or its figures.
        budgets: Bytes of device memory to live in, one after the other, from
            large to small; None: there is always room.
        host: Bytes of host memory; None: there is always room.
        oversubscription: How many times the budget may be live; None: what the
            environment or the script says.
        steps: With room: steps at least, see `sizes.are_seen`. Within a budget:
            at most, but for `least`.
        share: Of the largest size, where it depends on values.
        gpus: Ranks, one a GPU; this is the first.
        nodes: Machines, with equally many.
        least: Steps within the first budget at least, so that all sizes come.
        trace: Where to write traces of steps, in the overlay's folder, as
            TRACE.POINT.STEP, both from 0; empty: nowhere.
    """

    script: str
    arguments: list[str]
    gpu: str
    budgets: list[int | None]
    host: int | None = None
    oversubscription: float | None = None
    steps: int = 8
    share: float = 1.0
    gpus: int = 1
    nodes: int = 1
    least: int = 0
    trace: str = ""
