"""Runs a user's script as often as is asked, and adds up what is told once."""

import argparse
import pathlib
import shutil
import sys
import tempfile
from typing import Any

from torch_chameleon.plan import machine
from torch_chameleon.plan.process import run_script
from torch_chameleon.plan.run import Run

Figures = dict[str, Any]


class Runs:
    """Each run is a process of its own, whose writes no other one sees."""

    def __init__(
        self, options: argparse.Namespace, folder: pathlib.Path
    ) -> None:
        self.kept_away: dict[str, list[str]] = {}
        self.reads: dict[str, None] = {}  # in order
        self.sizes: dict[str, list[str]] = {}  # as `Reads.sizes` has them
        self.least = 0  # steps that show all sizes
        self.host, self.host_source = options.host, options.host_source
        self.host_share = 1.0  # of its memory, that `host` is
        if self.host is None:
            self.host, self.host_source = machine.default_host(options.gpu)
            self.host_share = machine.OF_THE_HOST
        here = options.gpus // options.nodes  # share a machine
        if here > 1:
            self.host //= here
            self.host_source += f", for each of {here} GPUs"
        self._options = options
        self.folder = folder
        self._notes: set[str] = set()

    def run(
        self,
        gpu: str,
        budgets: list[int | None],
        has_host: bool = True,
        has_traces: bool = True,
    ) -> Figures:
        """One run.

        Args:
            gpu: The card.
            budgets: One after the other, from large to small.
            has_host: Whether the host is limited as it would be.
            has_traces: Whether the points' "traces" are there afterwards.

        Returns:
            What the script's process says. As "trace" each point has the start
            of its traces' names; the number of the step follows.
        """
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        run = Run(
            script=self._options.script,
            arguments=self._options.arguments,
            gpu=machine.with_network(gpu, self._options.network),
            budgets=budgets,
            # With room for everything nothing goes there.
            host=self.host if has_host and budgets != [None] else None,
            oversubscription=self._options.oversubscription,
            steps=self._options.steps,
            share=self._options.share,
            gpus=self._options.gpus,
            nodes=self._options.nodes,
            least=self.least,
            trace=str(folder / "trace"),
        )
        result = run_script(run, folder)
        shutil.rmtree(
            folder / "upper" if has_traces else folder, ignore_errors=True
        )
        self._add(result)
        for number, point in enumerate(result["points"]):
            point["budget"] = budgets[number]
            point["trace"] = f"{run.trace}.{number}"
        return result

    def points(
        self, gpu: str, budgets: list[int | None], has_traces: bool = True
    ) -> list[Any]:
        """The script within budgets that fall; None: it did not get along.

        Args:
            gpu: The card.
            budgets: As for `run`.
            has_traces: As for `run`.
        """
        found: list[Any] = []
        while len(found) < len(budgets):
            asked = budgets[len(found) :]
            result = self.run(gpu, asked, has_traces=has_traces)
            found += result["points"]
            if result["out_of_memory"] is not None:
                break
        return found + [None] * (len(budgets) - len(found))

    def _add(self, result: Figures) -> None:
        for kind, paths in result["kept_away"].items():
            before = self.kept_away.get(kind, [])
            self.kept_away[kind] = sorted({*before, *paths})
        self.reads |= dict.fromkeys(result["reads"])
        for kind, lines in result["sizes"].items():
            before = self.sizes.get(kind, [])
            self.sizes[kind] = list(dict.fromkeys([*before, *lines]))
        for note in result["notes"]:
            if note not in self._notes:
                self._notes.add(note)
                print(f"plan: {note}", file=sys.stderr, flush=True)
