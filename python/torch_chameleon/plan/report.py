"""What `plan` found, as text."""

import textwrap
from typing import Any

from torch_chameleon._changes.advice import advice
from torch_chameleon._units import decimal, duration, size
from torch_chameleon.plan import overlay
from torch_chameleon.plan.clusters import cluster, fewer, where
from torch_chameleon.plan.reads import named
from torch_chameleon.plan.sentences import (
    in_memory,
    longest,
    not_known,
    steps,
    swapped,
    why_not,
)


def text_of(figures: dict[str, Any], columns: int | None = None) -> str:
    """The answers, one a line.

    Args:
        figures: Of `plan`.
        columns: Longer answers go on below; None: on one line.
    """
    lines = [
        f"{figures['script']} on {where(figures)}, modelled: nothing ran on "
        "a GPU",
        "",
        *(
            _wrapped(f"  {name:<11}", text, columns)
            for name, text in _answers(figures)
        ),
    ]
    return "\n".join(lines)


def kept_away(figures: dict[str, Any], columns: int | None = None) -> str:
    """What the script wrote, as the last line.

    Args:
        figures: Of `plan`.
        columns: As for `text_of`.
    """
    return "\n" + _wrapped("", overlay.sentence(figures["kept_away"]), columns)


def tables_of(figures: dict[str, Any]) -> str:
    """The tables that were asked for.

    Args:
        figures: Of `plan`.
    """
    tables = []
    if figures.get("fewer"):
        tables += [_table(*fewer(figures))]
    if figures["curve"]:
        tables += [[*_table(*_curve(figures)), *_raised(figures)]]
    if figures.get("cards"):
        tables += [_table(*_cards(figures))]
    if not tables:
        return "\n  no budget below the peak holds a step"
    return "\n".join(line for table in tables for line in ["", *table])


def _wrapped(before: str, text: str, columns: int | None) -> str:
    if columns is None:
        return before + text
    return textwrap.fill(
        text,
        max(columns, len(before) + 20),
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _answers(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("fits", _fits(figures))]
    if figures["fits"] == "swapped":
        rows += _swapped(figures)
    else:
        rows.append(("step", in_memory(figures)))
    rows += [
        *cluster(figures),
        ("steps", steps(figures)),
        *_evaluation(figures),
        ("times", figures["trust"]["sentence"]),
        (
            "peak",
            f"{size(figures['peak_bytes'])} of tensors at a time; "
            f"{figures['largest_op']} needs "
            f"{size(figures['largest_op_bytes'])} at once",
        ),
        ("budget", _budget(figures)),
    ]
    if figures["reads"]:
        rows.append(
            (
                "values",
                "do not exist; stand-ins such as 1 or False were read at "
                f"{named(figures['reads'])}: what depends on them may be "
                "otherwise",
            )
        )
    changes = [("change", each) for each in advice(figures)]
    return rows + _sizes(figures) + changes


def _sizes(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines whose sizes depend on values, and what was taken."""
    share, rows = figures["share"], []
    unknown, known = (figures["sizes"].get(k) for k in ("unknown", "known"))
    if unknown:
        taken = (
            "at most this large, and so is all of the above; --share takes less"
            if share == 1
            else f"taken as {share:g} of the largest (--share)"
        )
        rows.append(("sizes", f"depend on values at {named(unknown)}: {taken}"))
    if known:
        rows.append(
            (
                "sizes",
                f"depend on values at {named(known)}: taken as if each choice "
                "were as frequent as the others, and no number NaN",
            )
        )
    return rows


def _fits(figures: dict[str, Any]) -> str:
    budget = figures["budget_bytes"]
    if figures["fits"] == "in memory":
        return f"yes, {size(budget)} hold all of it" + _moved(figures)
    if figures["fits"] == "swapped":
        return (
            "yes, by swapping and running ops again: a step takes "
            f"{_times(figures['step_ns'], figures)} times its time in memory"
            + longest(figures)
        )
    if figures["fits"] == "not known":
        return not_known(figures)
    return why_not(figures)


def _moved(figures: dict[str, Any]) -> str:
    """What some steps moved where a usual one moves nothing."""
    if "moved" not in figures:
        return ""
    moved = figures["moved"]
    return (
        f"; {moved['steps']} of {moved['of']} steps moved "
        f"{decimal(moved['bytes'])}, the others nothing"
    )


def _swapped(figures: dict[str, Any]) -> list[tuple[str, str]]:
    step = figures["step_ns"]
    return [
        ("step", swapped(figures)),
        (
            "moved",
            f"{decimal(figures['bytes_in'])} in, "
            f"{decimal(figures['bytes_out'])} out a step; compute waits "
            f"{figures['stall_ns'] / step * 100:.0f} % of it",
        ),
        ("host", _host(figures)),
        *_unsettled(figures),
    ]


def _evaluation(figures: dict[str, Any]) -> list[tuple[str, str]]:
    if figures.get("evaluation") is None:
        return []
    return [
        (
            "but",
            f"an evaluation behind step {figures['seen']['seen']} failed with "
            f"{figures['evaluation']}; plan has no values, which it may need: "
            "what it takes is not known",
        )
    ]


def _unsettled(figures: dict[str, Any]) -> list[tuple[str, str]]:
    if figures["settled"]:
        return []
    return [
        (
            "but",
            f"the script made only {figures['steps']} steps, and the first "
            "are slower: let it make more",
        )
    ]


def _host(figures: dict[str, Any]) -> str:
    text = (
        f"{size(figures['host_bytes'])} in a settled step, "
        f"{size(figures['peak_host_bytes'])} at the peak, pinned, of "
        f"{size(figures['host_budget_bytes'])} ({figures['host_source']})"
    )
    more = figures.get("with_host")
    if more is None:
        return text
    return (
        f"{text}; with {size(more['host_bytes'])} a step takes "
        f"{duration(more['step_ns'])}, {_times(more['step_ns'], figures)} times"
    )


def _budget(figures: dict[str, Any]) -> str:
    if figures["budget_is_given"]:
        source = figures["budget_source"]
        return f"{size(figures['budget_bytes'])} ({source})"
    return (
        f"{size(figures['budget_bytes'])} of "
        f"{size(figures['memory_bytes'])}: 90 % of what is free beside a "
        "context, as on cuda"
    )


def _curve(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = ["budget", "peak/budget", "step", "slowdown", "swapping alone"]
    return names, [
        [
            size(row["budget_bytes"]),
            f"{row['k']:.2f}",
            duration(row["step_ns"]),
            _times(row["step_ns"], figures) + "*" * ("alone_ns" in row),
            "-"
            if row["swapping_ns"] is None
            else _times(row["swapping_ns"], figures),
        ]
        for row in figures["curve"]
    ]


def _raised(figures: dict[str, Any]) -> list[str]:
    """What a star says."""
    alone = [row["alone_ns"] for row in figures["curve"] if "alone_ns" in row]
    if not alone:
        return []
    times = ", ".join(_times(each, figures) for each in alone)
    return [
        f"  * by itself {times}: each row has a plan of its own, found in few "
        "steps;",
        "    less memory is not said to be faster, so look at the first of "
        "such rows again with more --steps",
    ]


def _cards(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = ["card", "memory", "budget", "in memory", "step", "slowdown"]
    return names, [
        [
            row["gpu"],
            size(row["memory_bytes"]),
            size(row["budget_bytes"]),
            duration(row["in_memory_ns"]),
            "-" if row["step_ns"] is None else duration(row["step_ns"]),
            _slowdown(row),
        ]
        for row in figures["cards"]
    ]


def _slowdown(row: dict[str, Any]) -> str:
    if row["step_ns"] is None:
        return "host too small" if row["why"] == "host" else "does not fit"
    return f"{row['step_ns'] / row['in_memory_ns']:.2f}"


def _times(duration_ns: float, figures: dict[str, Any]) -> str:
    return f"{duration_ns / figures['in_memory_ns']:.2f}"


def _table(names: list[str], rows: list[list[str]]) -> list[str]:
    widths = [
        max(map(len, column)) for column in zip(names, *rows, strict=True)
    ]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) for cell, width in zip(row, widths, strict=True)
        )
        for row in [names, *rows]
    ]
