"""Starts training runs as processes and shows how far they are."""

import json
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch_chameleon.demo.train import Run


def run_in_process(run: Run, on_step: Callable[[float], None]) -> Any:
    """Trains in a new process and returns what it measured.

    Args:
        run: What to train.
        on_step: Called with the loss after every step.

    Raises:
        SystemExit: The run failed; its own error is on stderr.
    """
    code = "from torch_chameleon.demo import train; train.main()"
    result = None
    with subprocess.Popen(
        [sys.executable, "-c", code, run.to_json()],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if "step" in event:
                on_step(event["loss"])
            result = event.get("result", result)
    if process.returncode != 0 or result is None:
        raise SystemExit(
            f"torch_chameleon demo: the run on {run.device} failed "
            f"(exit status {process.returncode}); its error is above"
        )
    return result


class ProgressBar:
    """A bar over the steps of all runs: tqdm's, else one of ours.

    Where stderr is no terminal, one line for each run.
    """

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._label = ""
        self._tqdm: Any = None
        self._is_terminal = sys.stderr.isatty()
        if not self._is_terminal:
            return
        try:
            import tqdm
        except ModuleNotFoundError:
            return
        self._tqdm = tqdm.tqdm(
            total=total,
            unit="step",
            bar_format="{desc} {bar:30} {n}/{total} [{elapsed}<{remaining}]",
        )

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tqdm is not None:
            self._tqdm.close()
        elif self._is_terminal:
            print(file=sys.stderr)

    def start(self, label: str) -> None:
        """Names the run whose steps follow."""
        self._label = label
        if self._is_terminal:
            self._show("")
        else:
            print(f"{label} ...", file=sys.stderr, flush=True)

    def advance(self, loss: float) -> None:
        """Counts one step."""
        self._done += 1
        if self._is_terminal:
            self._show(f"loss {loss:.3f}")

    def _show(self, text: str) -> None:
        label = f"{self._label:<24} {text:<10}"
        if self._tqdm is not None:
            self._tqdm.set_description_str(label, refresh=False)
            self._tqdm.n = self._done
            self._tqdm.refresh()
            return
        filled = 30 * self._done // self._total
        bar = "#" * filled + "." * (30 - filled)
        print(
            f"\r{label} {bar} {self._done}/{self._total}",
            end="",
            file=sys.stderr,
            flush=True,
        )
