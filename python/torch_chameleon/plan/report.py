"""What `plan` found, as text."""

from typing import Any

from torch_chameleon.plan import overlay

_GB = 1e9
_GIB = 1 << 30


def text_of(figures: dict[str, Any]) -> str:
    """The answers, one a line, and the tables.

    Args:
        figures: Of `plan`.
    """
    lines = [
        f"{figures['script']} on {figures['gpu']}, modelled: nothing ran on "
        "a GPU",
        "",
        *(f"  {name:<12}{text}" for name, text in _answers(figures)),
    ]
    if figures["curve"]:
        lines += ["", *_table(*_curve(figures))]
    if figures.get("cards"):
        lines += ["", *_table(*_cards(figures))]
    lines += ["", overlay.sentence(figures["kept_away"])]
    return "\n".join(lines)


def _answers(figures: dict[str, Any]) -> list[tuple[str, str]]:
    budget, peak = figures["budget_bytes"], figures["peak_bytes"]
    rows = [
        (
            "peak",
            f"{_gib(peak)} of tensors at a time; at least "
            f"{_gib(figures['largest_op_bytes'])} at once, for "
            f"{figures['largest_op']}",
        ),
        ("in memory", f"{_ms(figures['in_memory_ns'])} a step"),
    ]
    if figures["fits"] == "in memory":
        return [*rows, ("fits", f"yes, into {_gib(budget)}")]
    k = peak / budget
    if figures["fits"] == "no":
        why = (
            "one op alone needs more"
            if figures["largest_op_bytes"] > budget
            else f"the limit is 4 times; here it is {k:.1f}"
        )
        return [*rows, ("fits", f"no, not into {_gib(budget)}: {why}")]
    step = figures["step_ns"]
    slowdown = step / figures["in_memory_ns"]
    rows += [
        ("fits", f"swapped: {k:.2f} times what {_gib(budget)} hold"),
        (
            "step",
            f"{_ms(step)}, {slowdown:.2f} times as long as in memory; with "
            f"these bytes at least {_ms(figures['bound_ns'])}",
        ),
        (
            "moved",
            f"{_gb(figures['bytes_in'])} in, {_gb(figures['bytes_out'])} out "
            f"a step; {figures['stall_ns'] / step:.0%} of it compute waits",
        ),
        ("host", f"{_gib(figures['host_bytes'])} of pinned memory"),
    ]
    factor, link = figures["link_factor"], figures["link_bytes_per_s"]
    if factor is None:
        rows.append(("hidden", "by no link that exists"))
    elif factor == 1:
        rows.append(("hidden", "by this link, nearly"))
    else:
        rows.append(
            (
                "hidden",
                f"by a link of {factor * link / _GB:.0f} GB/s each way; this "
                f"one has {link / _GB:.0f}",
            )
        )
    return rows


def _curve(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = ["budget", "peak/budget", "step (model, swaps alone)", "slowdown"]
    return names, [
        [
            _gib(row["budget_bytes"]),
            f"{row['k']:.2f}",
            _ms(row["step_ns"]),
            f"{row['step_ns'] / figures['in_memory_ns']:.2f}",
        ]
        for row in figures["curve"]
    ]


def _cards(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = ["card", "memory", "in memory", "step (model, swaps alone)"]
    names += ["slowdown"]
    return names, [
        [
            row["gpu"],
            _gib(row["memory_bytes"]),
            _ms(row["in_memory_ns"]),
            "-" if row["step_ns"] is None else _ms(row["step_ns"]),
            "does not fit"
            if row["step_ns"] is None
            else f"{row['step_ns'] / row['in_memory_ns']:.2f}",
        ]
        for row in figures["cards"]
    ]


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


def _gib(size: float) -> str:
    if size < _GIB:
        return f"{size / _GIB * 1024:.0f} MiB"
    return f"{size / _GIB:.1f} GiB"


def _gb(size: float) -> str:
    return f"{size / _GB:.1f} GB"


def _ms(duration_ns: float) -> str:
    return f"{duration_ns / 1e6:.4g} ms"
