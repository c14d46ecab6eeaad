"""Charts as inline SVG, stretched to the page's width; text is HTML below.

So text has the page's size on every screen. Colours are the page's variables.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

from torch_chameleon._report.residency import Tensor

_WIDTH = 1000  # the x axis, in the SVG's units
_HEIGHT = 100
_MOST_POINTS = 600
_ROW = 3  # the map's rows, in pixels


def steps(points: Sequence[tuple[float, float]], top: float) -> str:
    """A path that goes in steps: each value holds until the next.

    Args:
        points: (share of the width, value), ascending.
        top: The value at the upper edge.
    """
    path: list[str] = []
    last_y = ""
    for x, y in thinned(points):
        at = _number(x * _WIDTH)
        up = _number(_HEIGHT - y / top * _HEIGHT if top else _HEIGHT)
        if not path:
            path.append(f"M{at} {up}")
        elif up != last_y:
            path.append(f"H{at}V{up}")
        last_y = up
    path.append(f"H{_WIDTH}")
    return "".join(path)


def thinned(
    points: Sequence[tuple[float, float]], most: int = _MOST_POINTS
) -> list[tuple[float, float]]:
    """So many points at most: of each group the highest, so peaks stay.

    Args:
        points: (x, value).
        most: How many.
    """
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / most)
    return [
        max(points[at : at + size], key=lambda point: point[1])
        for at in range(0, len(points), size)
    ]


def chart(
    layers: Iterable[str],
    x_labels: Sequence[str],
    title: str,
    height: int = 200,
) -> str:
    """A chart: paths in a stretched SVG, labels below it.

    Args:
        layers: SVG elements.
        x_labels: Texts from left to right.
        title: What a screen reader says.
        height: In pixels.
    """
    return (
        f'<div class="plot" style="height:{height}px">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(title)}">'
        + "".join(layers)
        + "</svg></div>"
        + f'<div class="x">{_spans(x_labels)}</div>'
    )


def line(path: str, colour: str, dashed: bool = False) -> str:
    """A line of constant width.

    Args:
        path: Of `steps`.
        colour: A variable of the page.
        dashed: Instead of solid.
    """
    kind = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<path d="{path}" fill="none" stroke="var(--{colour})"{kind} '
        'stroke-width="1.5" vector-effect="non-scaling-stroke"/>'
    )


def area(path: str, colour: str) -> str:
    """What is under a line.

    Args:
        path: Of `steps`.
        colour: A variable of the page.
    """
    first = path[1:].split(" ", 1)[0]
    return (
        f'<path d="{path}V{_HEIGHT}H{first}Z" fill="var(--{colour})" '
        'fill-opacity=".25"/>'
    )


def polyline(points: Sequence[tuple[float, float]], top: float) -> str:
    """A path from point to point.

    Args:
        points: (share of the width, value).
        top: The value at the upper edge.
    """
    return "M" + "L".join(
        f"{_number(x * _WIDTH)} {_number(_HEIGHT - y / top * _HEIGHT)}"
        for x, y in points
    )


def residency_map(tensors: Sequence[Tensor], ops: int) -> str:
    """A row a tensor, an op a column: a colour for where its bytes were.

    Args:
        tensors: From top to bottom.
        ops: Of the step.
    """
    height = max(len(tensors), 1) * _ROW
    paths: dict[str, list[str]] = {"hbm": [], "host": [], "dropped": []}
    for row, tensor in enumerate(tensors):
        y = row * _ROW + _ROW / 2
        for span in tensor.spans:
            begin = span.begin / max(ops, 1) * _WIDTH
            width = (span.end - span.begin) / max(ops, 1) * _WIDTH
            if width >= 0.2:  # a fifth of a pixel: nothing to see
                paths[span.state].append(
                    f"M{_number(begin)} {_number(y)}h{_number(width)}"
                )
    drawn = "".join(
        f'<path d="{"".join(path)}" stroke="var(--{state})" '
        f'stroke-width="{_ROW}" shape-rendering="crispEdges"/>'
        for state, path in paths.items()
        if path
    )
    return (
        f'<div class="plot map" style="height:{height}px">'
        f'<svg viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" '
        'role="img" aria-label="Where each tensor was, op by op">'
        f"{drawn}</svg></div>"
        f'<div class="x">{_spans(["op 1", f"op {ops:,}"])}</div>'
    )


def _spans(texts: Sequence[str]) -> str:
    return "".join(f"<span>{escape(text)}</span>" for text in texts)


def _number(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
