"""What `plan` found, as text."""

import textwrap
from typing import Any

from torch_chameleon.plan import overlay
from torch_chameleon.plan.reads import named

_UNITS_OF_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1024, "KiB"))
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def text_of(figures: dict[str, Any], columns: int | None = None) -> str:
    """The answers, one a line, and the tables.

    Args:
        figures: Of `plan`.
        columns: Longer answers go on below; None: on one line.
    """
    lines = [
        f"{figures['script']} on {figures['gpu']}, modelled: nothing ran on "
        "a GPU",
        "",
        *(
            _wrapped(f"  {name:<11}", text, columns)
            for name, text in _answers(figures)
        ),
    ]
    if figures["curve"]:
        lines += ["", *_table(*_curve(figures))]
    if figures.get("cards"):
        lines += ["", *_table(*_cards(figures))]
    kept_away = overlay.sentence(figures["kept_away"])
    lines += ["", _wrapped("", kept_away, columns)]
    return "\n".join(lines)


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
        rows.append(("step", f"{duration(figures['in_memory_ns'])} in memory"))
    rows += [
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
                f"do not exist; 1 or False was {named(figures['reads'])}: "
                "what depends on them may be otherwise",
            )
        )
    return rows


def _fits(figures: dict[str, Any]) -> str:
    budget = figures["budget_bytes"]
    if figures["fits"] == "in memory":
        return f"yes, {size(budget)} hold all of it"
    if figures["fits"] == "swapped":
        return (
            "yes, by swapping and running ops again: a step takes "
            f"{_times(figures['step_ns'], figures)} times its time in memory"
        )
    if figures["why"] == "host":
        return (
            "no, the host is too small: it needs "
            f"{size(figures['host_bytes'])}, and has "
            f"{size(figures['host_budget_bytes'])} ({figures['host_source']})"
        )
    return (
        f"no, not into {size(budget)}: it needs "
        f"{size(figures['least_budget_bytes'])}, "
        + (
            f"for {figures['largest_op']} alone"
            if figures["largest_op_bytes"] * 4 > figures["peak_bytes"]
            else "a quarter of its peak"
        )
    )


def _swapped(figures: dict[str, Any]) -> list[tuple[str, str]]:
    step = figures["step_ns"]
    return [
        (
            "step",
            f"{duration(step)}; in memory {duration(figures['in_memory_ns'])}",
        ),
        (
            "moved",
            f"{decimal(figures['bytes_in'])} in, "
            f"{decimal(figures['bytes_out'])} out a step; compute waits "
            f"{figures['stall_ns'] / step * 100:.0f} % of it",
        ),
        ("host", _host(figures)),
        *_unsettled(figures),
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
        return f"{size(figures['budget_bytes'])} (--budget)"
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
            _times(row["step_ns"], figures),
            "-"
            if row["swapping_ns"] is None
            else _times(row["swapping_ns"], figures),
        ]
        for row in figures["curve"]
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


def size(number: float) -> str:
    """Bytes of memory, as 28.4 GiB.

    Args:
        number: Bytes.
    """
    return _in_units(number, _BINARY, "bytes")


def decimal(number: float) -> str:
    """Bytes that move, as 6.02 GB.

    Args:
        number: Bytes.
    """
    return _in_units(number, _DECIMAL, "bytes")


def duration(duration_ns: float) -> str:
    """A time, as 782 ms.

    Args:
        duration_ns: The time.
    """
    return _in_units(duration_ns, _UNITS_OF_TIME, "ns")


def _in_units(
    number: float, units: tuple[tuple[float, str], ...], rest: str
) -> str:
    """Three digits, and never a power of ten."""
    for factor, unit in units:
        value = number / factor
        if value >= 0.9995:
            digits = max(0, 2 - len(str(int(value + 0.0005))) + 1)
            return f"{value:.{digits}f} {unit}"
    return f"{number:.0f} {rest}"
