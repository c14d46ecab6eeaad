"""A report's numbers as one HTML page: no network, no script, no framework.

Whatever comes from a program (names of modules, ops and tensors, texts of
options) goes through `escape`.
"""

from collections.abc import Sequence
from html import escape
from string import Template

from torch_chameleon._report import advice, svg
from torch_chameleon._report.figures import Cost, Figures
from torch_chameleon._report.residency import Tensor
from torch_chameleon._report.style import STYLE
from torch_chameleon._report.text import breakable, duration, rate, size

_MOST_COSTS = 15
_MOST_MOVED = 12
_MOST_SINGLE = 6

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
<p class="muted">$subtitle</p>
</header>
<main>
$body
</main>
<footer class="muted">$footer</footer>
</body>
</html>
""")


def html_of(figures: Figures, written: str) -> str:
    """The page.

    Args:
        figures: Of `gather`.
        written: When, as text.
    """
    sections = [
        _tiles(figures),
        _warnings(figures),
        _memory(figures),
        _budgets(figures),
        _modules(figures),
        _section(
            "What waits, by op",
            "The same, by the op that had to wait.",
            _costs(figures.by_op, _MOST_COSTS),
        )
        if _stalls(figures.by_op)
        else "",
        _link(figures),
        _map(figures),
        _settings(figures),
    ]
    step = ""
    if figures.step_ops:
        step = f", step of {figures.step_ops:,} ops"
    return _PAGE.substitute(
        title="torch_chameleon: what happened to memory",
        subtitle=escape(
            f"{_device(figures)}, policy {figures.options['policy']}{step}"
        ),
        style=STYLE,
        body="\n".join(section for section in sections if section),
        footer=escape(
            f"torch_chameleon {figures.version}, written {written}. Step, "
            "stalls, memory and link are "
            + (
                "modelled: nothing ran on a GPU."
                if figures.physical_device == "simulated"
                else "measured; what other budgets would do is modelled."
            )
        ),
    )


def _device(figures: Figures) -> str:
    name = figures.physical_device
    if name == "simulated":
        return f"simulated {figures.options['simulated_gpu']}"
    return name


def _section(title: str, text: str, *parts: str) -> str:
    about = f'<p class="muted">{text}</p>' if text else ""
    return f"<section><h2>{title}</h2>{about}{''.join(parts)}</section>"


def _tiles(figures: Figures) -> str:
    stats, step = figures.stats, figures.step
    tiles = [
        ("budget", size(stats["hbm_budget"])),
        ("peak in device memory", size(stats["peak_resident_bytes"])),
        ("peak of all tensors", size(stats["peak_logical_bytes"])),
        ("peak on the host", size(stats["peak_host_bytes"])),
    ]
    if step is not None:
        tiles += [
            ("last step", duration(figures.step_ns)),
            (
                "of it waiting for bytes or room",
                f"{figures.waited_ns / max(figures.step_ns, 1):.0%}",
            ),
            ("moved in, a step", size(step["bytes_in"])),
            ("moved out, a step", size(step["bytes_out"])),
        ]
        if step["mirror_bytes_out"]:
            plan = step["plan"]
            waits_ns = plan["modelled_mirror_ns"] if plan else 0
            tiles += [
                ("out for commits, a step", size(step["mirror_bytes_out"])),
                ("that costs, by the plan", duration(waits_ns)),
            ]
    return (
        '<section class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b>'
            f'<span class="muted">{escape(name)}</span></div>'
            for name, value in tiles
        )
        + "</section>"
    )


def _warnings(figures: Figures) -> str:
    found = advice.warnings_of(figures)
    rows = [
        f'<div class="warning"><b>{escape(what)}</b>{breakable(todo)}</div>'
        for what, todo in found
    ]
    if figures.changes:
        changes = "; ".join(figures.changes) + "."
        rows.append(
            '<div class="warning"><b>Less memory would do with a change.</b>'
            f"{breakable(changes)}</div>"
        )
    rows += [f'<p class="muted">{escape(note)}</p>' for note in figures.notes]
    if not rows:
        return ""
    return _section("What to do", "", *rows)


def _legend(*entries: tuple[str, str]) -> str:
    return (
        '<ul class="legend">'
        + "".join(
            f'<li><i style="background:var(--{colour})"></i>{escape(text)}</li>'
            for colour, text in entries
        )
        + "</ul>"
    )


def _memory(figures: Figures) -> str:
    samples = figures.memory
    if len(samples) < 2:
        return ""
    end = max(samples[-1][0], 1)
    budget = figures.stats["hbm_budget"]
    top = 1.08 * max(budget, max(max(row[1:]) for row in samples))

    def path(column: int) -> str:
        return svg.steps([(row[0] / end, row[column]) for row in samples], top)

    layers = [
        svg.area(path(1), "logical"),
        svg.line(path(1), "logical"),
        svg.line(path(3), "host"),
        svg.line(path(2), "hbm"),
        svg.line(svg.steps([(0, budget)], top), "stall", dashed=True),
    ]
    peak = max(row[1] for row in samples)
    return _section(
        "Memory over time",
        "What tensors take, wherever they are; what of it is in device memory; "
        "and what the host holds.",
        svg.chart(layers, ["0 ms", duration(end)], "Memory over time"),
        _legend(
            ("logical", f"all tensors, up to {size(peak)}"),
            ("hbm", "in device memory"),
            ("host", "on the host"),
            ("stall", f"budget, {size(budget)}"),
        ),
    )


def _budgets(figures: Figures) -> str:
    rows = [row for row in figures.budgets if row.step_ns is not None]
    if not rows or figures.compute_ns <= 0:
        return ""
    gain = advice.gain_of_more(figures)
    text = (
        "The step with other budgets, by the planner's model (modelled, also "
        "where the step was measured)"
        + (
            "."
            if figures.options["recompute"] == "auto"
            else ", by swapping alone: torch_chameleon.config.recompute is off."
        )
    )
    if gain is not None:
        text += (
            f" <b>{escape(size(gain[0]))} more would save "
            f"{escape(duration(max(gain[1], 0)))} a step.</b>"
        )
    elif figures.stats["hbm_budget"] >= figures.peak_bytes:
        text += " All of a step fits already: more buys nothing."
    low, high = rows[0].bytes, rows[-1].bytes
    span = max(high - low, 1)
    top = 1.1 * max(row.step_ns or 0 for row in rows)
    points = [((row.bytes - low) / span, row.step_ns or 0) for row in rows]
    now = (figures.stats["hbm_budget"] - low) / span
    layers = [svg.line(svg.polyline(points, top), "hbm")]
    if 0 <= now <= 1:
        at = f"M{now * 1000:.1f} 0V100"
        layers.append(svg.line(at, "stall", dashed=True))
    layers.append(
        svg.line(svg.steps([(0, figures.compute_ns)], top), "good", True)
    )
    table = _table(
        ["budget", "step", "slowdown", "moved a step", "run again"],
        [
            [
                size(row.bytes),
                duration(row.step_ns or 0),
                f"{(row.step_ns or 0) / figures.compute_ns:.2f}",
                size(row.bytes_moved),
                duration(row.rerun_ns),
            ]
            for row in rows
        ],
        [row.bytes == figures.stats["hbm_budget"] for row in rows],
        wide=["moved a step", "run again"],
    )
    return _section(
        "What more memory would buy",
        text,
        svg.chart(
            layers,
            [size(low), size(high)],
            "Time of a step over the budget",
            160,
        ),
        _legend(
            ("hbm", f"step, up to {duration(points[0][1])}"),
            (
                "good",
                f"with room for everything, {duration(figures.compute_ns)}",
            ),
            ("stall", "budget now"),
        ),
        table,
    )


def _modules(figures: Figures) -> str:
    if not figures.by_module:
        return ""
    if not _stalls(figures.by_module):
        return _section("What waits, by module", "Nothing waited.")
    parts = [_costs(figures.by_kind, _MOST_COSTS)]
    if len(figures.by_kind) < len(figures.by_module):
        parts += [
            '<h2 class="next">The costliest single ones</h2>',
            _costs(figures.by_module, _MOST_SINGLE),
        ]
    return _section(
        "What waits, by module",
        f"Where compute waited for those {duration(figures.waited_ns)} of the "
        "step: for bytes of an op's operands, or for room. Modules of a list "
        "count as one (*); a module's backward is a row of its own.",
        *parts,
    )


def _stalls(costs: Sequence[Cost]) -> int:
    return sum(cost.stall_ns for cost in costs)


def _costs(costs: Sequence[Cost], most: int) -> str:
    stalls = _stalls(costs)
    waited = [cost for cost in costs if cost.stall_ns > 0]
    longest = max(cost.stall_ns for cost in waited)
    rows = "".join(
        f"<tr><td>{breakable(cost.name or 'outside of modules')}</td>"
        f"<td>{duration(cost.stall_ns)}</td>"
        f"<td>{cost.stall_ns / stalls:.0%}</td>"
        f'<td class="wide">{duration(cost.rerun_ns)}</td>'
        f'<td class="wide">{duration(cost.compute_ns)}</td>'
        f'<td class="wide">{cost.calls:,}</td>'
        f'<td class="bar"><i style="width:{cost.stall_ns / longest:.1%}"></i>'
        "</td></tr>"
        for cost in waited[:most]
    )
    left = len(waited) - len(waited[:most])
    more = f'<p class="muted">and {left:,} more</p>' if left else ""
    return (
        '<div class="scroll"><table><thead><tr><th>name</th><th>waited</th>'
        '<th>share</th><th class="wide">ran again for it</th>'
        '<th class="wide">computed</th>'
        '<th class="wide">ops</th><th></th></tr></thead><tbody>'
        f"{rows}</tbody></table></div>{more}"
    )


def _link(figures: Figures) -> str:
    shares_in, shares_out = figures.link_in, figures.link_out
    if not any(shares_in) and not any(shares_out):
        return ""
    top = 1.1 * max(1.0, *shares_in, *shares_out)

    def path(shares: Sequence[float]) -> str:
        count = max(len(shares), 1)
        return svg.steps(
            [(i / count, share) for i, share in enumerate(shares)], top
        )

    def mean(shares: Sequence[float]) -> str:
        return f"{sum(shares) / max(len(shares), 1):.0%}"

    return _section(
        "The link in the step",
        f"Of {rate(figures.link_in_bytes_per_s)} in and "
        f"{rate(figures.link_out_bytes_per_s)} out, "
        f"{mean(shares_in)} and {mean(shares_out)} were used.",
        svg.chart(
            [
                svg.area(path(shares_in), "hbm"),
                svg.line(path(shares_in), "hbm"),
                svg.line(path(shares_out), "host"),
                svg.line(svg.steps([(0, 1)], top), "logical", dashed=True),
            ],
            ["0 ms", duration(figures.step_ns)],
            "Use of the link",
            140,
        ),
        _legend(
            ("hbm", "in: to the device"),
            ("host", "out: to the host"),
            ("logical", "all of either direction"),
        ),
    )


def _map(figures: Figures) -> str:
    tensors = figures.tensors
    if not tensors:
        return ""
    text = (
        "A row a tensor, an op of the step a column. Parameters and state that "
        "live from step to step are above, what the step makes below."
    )
    if figures.tensors_left_out:
        text += (
            f" The {len(tensors):,} that take the most room for the longest "
            f"time, of either kind; {figures.tensors_left_out:,} smaller ones "
            "are left out."
        )
    moved = sorted(tensors, key=lambda each: -each.moved_bytes)[:_MOST_MOVED]
    moved = [tensor for tensor in moved if tensor.moved_bytes]
    table = (
        '<h2 class="next">Moved the most</h2>'
        + _table(
            ["tensor", "size", "moved", "in device memory"],
            [
                [
                    tensor.name,
                    size(tensor.bytes),
                    size(tensor.moved_bytes),
                    f"{_resident_share(tensor):.0%}",
                ]
                for tensor in moved
            ],
            wide=["in device memory"],
        )
        if moved
        else ""
    )
    return _section(
        "Where tensors were",
        text,
        _legend(
            ("hbm", "in device memory"),
            ("host", "on the host"),
            ("dropped", "dropped, to be made again"),
        ),
        svg.residency_map(tensors, figures.step_ops),
        table,
    )


def _resident_share(tensor: Tensor) -> float:
    whole = sum(span.end - span.begin for span in tensor.spans)
    inside = sum(
        span.end - span.begin for span in tensor.spans if span.state == "hbm"
    )
    return inside / max(whole, 1)


def _settings(figures: Figures) -> str:
    rows = [
        [key, "not set" if value is None else value]
        for key, value in figures.options.items()
    ]
    return _section("Settings", "", _table(["key", "value"], rows))


def _table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    now: Sequence[bool] = (),
    wide: Sequence[str] = (),
) -> str:
    kinds = [' class="wide"' if name in wide else "" for name in names]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>"
        for kind, name in zip(kinds, names, strict=True)
    )
    body = ""
    for number, row in enumerate(rows):
        mark = ' class="now"' if number < len(now) and now[number] else ""
        cells = "".join(
            f"<td{kind}>{breakable(cell)}</td>"
            for kind, cell in zip(kinds, row, strict=True)
        )
        body += f"<tr{mark}>{cells}</tr>"
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
