"""Programs: lines of text, how often they run, and under which settings."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

# Lines that begin so run on chameleon alone: settings, evictions, drops.
OURS = "chameleon: "

# What a program runs under, at its mildest; shrinking goes there.
MILDEST: dict[str, Any] = {
    "hbm_budget": 64 << 20,
    "policy": "lru",
    "recompute": "off",
    "adversary": None,  # backend/runtime/cpu/cpu_adversary.h; with the checker
    "clock": None,  # a simulated GPU's, or None: the machine's
    "evict": "never",
    "drop": "never",
    "check": 0.0,  # how often values are looked at between rounds
    "collect": None,  # the garbage collector's first threshold
}


@dataclasses.dataclass
class Program:
    """What to run.

    Args:
        seed: Of random numbers that lines draw.
        setup: Lines that run once.
        bodies: Lines by name.
        schedule: (name of a body, how often it runs in a row).
        settings: As MILDEST.
    """

    seed: int
    setup: list[str]
    bodies: dict[str, list[str]]
    schedule: list[tuple[str, int]]
    settings: dict[str, Any]

    def clone(self):
        return copy.deepcopy(self)

    def to_dict(self):
        return dataclasses.asdict(self)

    @classmethod
    def of_dict(cls, fields):
        fields = {f.name: fields[f.name] for f in dataclasses.fields(cls)}
        fields["schedule"] = [tuple(row) for row in fields["schedule"]]
        return cls(**fields)

    @classmethod
    def load(cls, path):
        return cls.of_dict(json.loads(Path(path).read_text()))

    def save(self, path):
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def line_count(self):
        """How many lines run."""
        rounds = sum(len(self.bodies[name]) * n for name, n in self.schedule)
        return len(self.setup) + rounds

    def text(self):
        """For a reader."""
        changed = {
            key: value
            for key, value in self.settings.items()
            if value != MILDEST[key]
        }
        rows = [f"seed {self.seed}, settings {changed}", *self.setup]
        for name, lines in self.bodies.items():
            times = [n for body, n in self.schedule if body == name]
            rows.append(f"{name}, {times} times:")
            rows.extend(f"    {line}" for line in lines)
        return "\n".join(rows)
