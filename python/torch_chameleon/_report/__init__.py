"""`torch_chameleon.report`: one page that shows where memory was.

`recording` records, `figures` gathers the numbers, `advice` judges them, `svg`
and `page` draw them, `summary` has the few that ranks are compared by;
`command` is `python -m torch_chameleon report`.
"""

import datetime
import json
import os

from torch.types import Device

from torch_chameleon import _ranks
from torch_chameleon._replace_file import write_private
from torch_chameleon._report.figures import gather, was_used
from torch_chameleon._report.page import html_of
from torch_chameleon._report.recording import latest, recording
from torch_chameleon._report.summary import summary_of
from torch_chameleon.chameleon._utils import _get_device_index

__all__ = ["recording", "report"]


def report(path: str | os.PathLike[str], device: Device = None) -> None:
    """Writes one HTML page about the run so far; it needs no network.

    It shows memory over time with the budget, where each tensor was during a
    step, how the link was used, which ops and which modules waited for bytes,
    what more budget would buy (modelled), and what to do. What happens in
    time is shown of the last `torch_chameleon.recording`; without one, only
    counters, the last step's figures and the budgets are.

    A path that ends in ".json" gets a few figures instead of the page: of each
    rank one file, which `python -m torch_chameleon report run*.json` compares.
    Where torchrun started several processes and each calls this, each writes a
    file of its own, "run.html", "run.rank1.html" and so on. They do not wait
    for each other.

    Args:
        path: The file, replaced if it exists. Only its owner can read it: it
            has names of your program.
        device: The device, default the current one.

    Examples:
        >>> import tempfile, torch, torch_chameleon
        >>> model = torch.nn.Linear(8, 8).to("chameleon")
        >>> with torch_chameleon.recording():
        ...     for _ in range(3):
        ...         y = model(torch.ones(4, 8, device="chameleon"))
        ...         torch_chameleon.step()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch_chameleon.report(f"{folder}/run.html")
        ...     "What waits" in open(f"{folder}/run.html").read()
        True
    """
    index = _get_device_index(device, optional=True)
    if not was_used(index):
        raise RuntimeError(
            "torch_chameleon.report: no tensor was on the device, so there is "
            "nothing to show"
        )
    figures = gather(latest(), index)
    if os.fspath(path).endswith(".json"):
        text = json.dumps(summary_of(figures, index), indent=2) + "\n"
    else:
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        text = html_of(figures, now)
    write_private(_ranks.path_of_rank(path), text.encode())
