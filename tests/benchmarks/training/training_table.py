"""Takes in what a lease of a GPU measured, and makes a table of it.

    python training_table.py [FOLDER] [--page FILE] [--results FOLDER]

FOLDER is what `ci/gpu lease` filled. What it measured goes to <gpu>.json of the
results, row by row, with two figures that are not measured: the least time in
which any policy could have made the step (from its trace, with the link as it
was measured) without running anything again, and what chameleon's model of that
GPU says of the row. Both take a while, which a lease has not. Without FOLDER
there is only the table, of all results. Without --page it is printed; with
it, it goes between the marks.

What a lease found with something else in the GPU's place is refused.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import textwrap
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE.parent),
    str(HERE.parent / "policy"),
    str(HERE.parents[1] / "gpu"),
]

import findings  # noqa: E402
import marked_part  # noqa: E402
import places  # noqa: E402
import scripts  # noqa: E402
import texts  # noqa: E402

RESULTS = HERE.parent / "results"
BEGIN = "<!-- training/training_table.py writes from here -->"
END = "<!-- to here -->"
NOTHING = "Not measured yet: no GPU was at hand."
HEAD = (
    *("training", "memory", "way", "ms a step", "tokens/s", "worst"),
    *("of in memory", "plan"),
    *("modelled, ms", "measured/modelled", "GB in/out"),
    *("link busy, ms in/out/both", "least by swapping alone", "stall"),
    *("host waits", "commits", "active/reserved", "peak, GiB", "host, GiB"),
)
MODELLED = ("in_memory", "chameleon", "checkpoint")
MODEL_S = 600.0
_COUNTS = ("host_waits", "commits")  # a step
_WAYS = ("in", "out", "both")  # bytes on the link
_GIB = 1 << 30
_WIDTH = 117  # of a page's lines


# ---- what is taken in


def taken_in(folder: pathlib.Path, results: pathlib.Path) -> pathlib.Path:
    """Merges what a lease left into <gpu>.json of the results; its path.

    Raises:
        SystemExit: It is no measurement of a GPU, or there is none.
    """
    found = {
        path: json.loads(path.read_text())
        for path in sorted(folder.glob("*.json"))
    }
    measured = [
        path for path, each in found.items() if each["machine"].get("is_gpu")
    ]
    if not measured:
        raise SystemExit(
            f"{folder} has no measurement of a GPU: "
            + (", ".join(path.name for path in found) or "no results at all")
        )
    [path] = measured
    new = found[path]
    file = results / path.name
    old = json.loads(file.read_text()) if file.exists() else {}
    _add_bounds(new["points"], folder / "traces.zip")
    _add_modelled(new["points"], new["machine"]["gpu"])
    # What was measured again replaces what was; the rest stays.
    merged = {**old, **{key: new[key] for key in new if new[key]}}
    for each in ("points", "bits", "scripts", "steps"):
        merged[each] = {**old.get(each, {}), **new.get(each, {})}
    file.write_text(json.dumps(merged).replace('}, "', '},\n"') + "\n")
    return file


def _add_bounds(points: dict, traces: pathlib.Path) -> None:
    if not traces.exists():
        return
    with zipfile.ZipFile(traces) as archive:
        names = set(archive.namelist())
        for key, row in points.items():
            name = f"{key}.jsonl.gz"
            if name in names and "ms" in row and row["budget_bytes"]:
                text = gzip.decompress(archive.read(name))
                row["bound_ms"] = bound_ms(text, row["budget_bytes"])


def bound_ms(trace: bytes, budget: int) -> float:
    """The least time of a step, with the link that its trace tells."""
    from bound import Links, lower_bound_ns
    from yardsticks import read_cycle

    header = json.loads(trace.splitlines()[0])
    links = Links(header["bw_in"], header["bw_out"], header["bw_both"])
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.jsonl"
        file.write_bytes(trace)
        return lower_bound_ns(read_cycle(file), budget, links) / 1e6


def profile_of(gpu: str) -> str | None:
    """The name of the model's profile of a GPU; None: it has none."""
    from torch_chameleon import _C

    names = [profile["name"] for profile in _C.gpu_profiles()]
    whole = gpu.lower().replace(" ", "")
    fit = [
        name for name in names if all(part in whole for part in name.split("-"))
    ]
    return max(fit, key=len, default=None)


def _add_modelled(points: dict, gpu: str) -> None:
    profile = profile_of(gpu)
    for key, row in points.items():
        training, way, _ = key.split()
        if profile is None or "ms" not in row or way not in MODELLED:
            continue
        # What does not swap has all memory there.
        budget = row["budget_bytes"] if way == "chameleon" else 0
        row["modelled_ms"] = modelled_ms(training, way, budget, profile)


def modelled_ms(
    training: str, way: str, budget: int, gpu: str, small: bool = False
) -> float | None:
    """What the model of a GPU says of a row; None: it does not say."""
    arguments = {"training": training, "way": way, "budget": budget}
    arguments |= {"place": "simulated", "gpu": gpu, "small": small}
    arguments["seconds"] = MODEL_S / 2
    command = [sys.executable, "-W", "ignore", str(HERE / "training_point.py")]
    try:
        done = subprocess.run(
            [*command, json.dumps(arguments)],
            env={**os.environ, **places.common_environment("cpu")},
            capture_output=True,
            text=True,
            check=False,
            timeout=MODEL_S,
        )
    except subprocess.TimeoutExpired:
        return None
    rows = [json.loads(x) for x in done.stdout.splitlines() if x[:1] == "{"]
    return rows[-1].get("point", {}).get("ms") if rows else None


# ---- the table


def _memory(given: str, row: dict) -> str:
    if given == "0":
        return "all"
    if given.endswith("B"):
        return given
    return f"peak / {given} = {row.get('budget_bytes', 0) / 1e9:.1f} GB"


def plan_of(key: str, row: dict) -> str:
    """Whether a row is of the plan that stays; "-": it follows none."""
    way = key.split()[1]
    if way != "chameleon" or "ms" not in row or not row["budget_bytes"]:
        return "-"
    return "settled" if row.get("settled") else "not yet"


def active_share(row: dict) -> float | None:
    """Bytes in use over bytes taken from the card, each at its most.

    Of chameleon's only with a budget: it may take so much, and all of it.
    """
    reserved = row.get("reserved_bytes") or row.get("budget_bytes")
    return row["peak_bytes"] / reserved if reserved else None


def _row(key: str, row: dict, roomy_ms: float | None) -> list[str]:
    training, way, given = key.split()
    start = [training, _memory(given, row), row.get("way", way)]
    if "ms" not in row:
        why = row["error"].split(":")[0]
        return [*start, why, *[""] * (len(HEAD) - 4)]
    least, modelled = row.get("bound_ms"), row.get("modelled_ms")
    speed = texts.told(training, row["ms"])
    active, busy = active_share(row), row.get("link_busy")
    return [
        *start,
        f"{row['ms']:.1f}",
        speed.removesuffix(" tokens/s") if speed else "-",
        f"{row['worst_ms']:.1f}",
        f"{row['ms'] / roomy_ms:.2f}" if roomy_ms else "-",
        plan_of(key, row),
        f"{modelled:.1f}" if modelled else "-",
        f"{row['ms'] / modelled:.2f}" if modelled else "-",
        f"{row['in_gb']:.1f}/{row['out_gb']:.1f}" if "in_gb" in row else "-",
        "/".join(f"{busy[f'{way}_ms']:.0f}" for way in _WAYS) if busy else "-",
        f"{least:.1f}" if least else "-",
        f"{row['stall_share']:.2f}" if "stall_share" in row else "-",
        *(f"{row[key]:.1f}" if key in row else "-" for key in _COUNTS),
        f"{active:.2f}" if active else "-",
        f"{row['peak_bytes'] / _GIB:.1f}",
        f"{row['machine_host_bytes'] / _GIB:.1f}",
    ]


def _bits(results: dict) -> list[str]:
    """What was compared with native CUDA, a sentence each."""
    runs = [
        run
        for sides in results.get("bits", {}).values()
        for run in sides.get("here", [])
    ]
    parts = []
    if runs:
        compared = sum(run.get("compared", 0) for run in runs)
        different = sum(len(run.get("different", ())) for run in runs)
        broken = [_failure(run) for run in runs if "error" in run]
        parts.append(
            f"{len(results['bits'])} trainings, {len(runs)} runs at k = 1, 2, "
            f"4 and 4: {compared} results compared with native CUDA's, "
            f"{different} different, {len(broken)} runs failed"
            + (f" ({', '.join(sorted(set(broken)))})." if broken else ".")
        )
    counts = results.get("operators", {})
    if counts:
        parts.append(
            "Operators, one by one, everything evicted before each: "
            f"{counts['same']} the same, {counts['different']} different, "
            f"{counts['unstable']} that do not repeat natively."
        )
    if results.get("scripts"):
        parts.append(_scripts(list(results["scripts"].values())))
    return parts


def _failure(run: dict) -> str:
    kind = run["error"].strip().splitlines()[-1].split(":")[0]
    return f"{run['workload']} at k = {run['k']:g}: {kind}"


def _scripts(rows: list[dict]) -> str:
    ends = [row for row in rows if "evicted" in row]
    lines = sum(row["stable"] for row in ends)
    bad = sum(row[way]["different"] for row in ends for way in scripts.WAYS)
    return (
        f'{len(ends)} scripts that say "cuda", untouched, under `run`, '
        "resident and with everything evicted before every op: "
        f"{lines} lines of losses, {bad} that differ from native CUDA's."
    )


def _overlap(points: dict) -> list[str]:
    """Synchronisations and overlap in a profiled step, a sentence each."""
    told = []
    for key, row in points.items():
        if "profile" not in row:
            continue
        seen = row["profile"]
        text = f"One step of {key} under torch.profiler: {seen['waits']} "
        text += "synchronising calls"
        if seen["copies_ms"]:
            share = seen["copies_beside_kernels_ms"] / seen["copies_ms"]
            text += f", {share:.0%} of {seen['copies_ms']:.0f} ms of copies "
            text += "beside kernels"
            used = _link_used(row)
            text += f", {used:.0%} of the link's speed" if used else ""
        told.append(f"{text}.")
    return told


def _link_used(row: dict) -> float | None:
    """How fast copies were, over what the link was measured to do."""
    seen, links = row["profile"], row.get("link_gb_s", ())
    shares = [
        seen[f"{way}_gb"] / (seen["busy_ms"][way] / 1e3) / link
        for way, link in zip(("in", "out"), links, strict=False)
        if seen["busy_ms"].get(way) and link and f"{way}_gb" in seen
    ]
    return statistics.mean(shares) if shares else None


def table(results: dict) -> str:
    """The results as Markdown.

    Args:
        results: Those of one GPU.
    """
    points, machine = results["points"], results["machine"]
    dates = sorted({row["date"] for row in points.values() if "date" in row})
    when = " to ".join(dates[:1] + dates[1:][-1:])
    said = [
        f"*Measured on* {machine['gpu']}, driver {machine['driver']}, torch "
        f"{machine.get('torch', '?')}, {when}, with `./ci/gpu lease`. Times "
        "and bytes are of one step; *modelled* is what `simulated` says of "
        "the same step on that card; *least by swapping alone* is a bound "
        "that nothing beats without running ops again. A plan is *settled* "
        "where none was tried any more and three steps in a row were alike; "
        "*not yet*: others were still compared with it, or steps still "
        "differed, when the time was up.",
        *_bits(results),
        *_overlap(points),
        *findings.sentences(results),
    ]
    lines = [
        *(
            textwrap.fill(
                sentence,
                _WIDTH,
                initial_indent="- ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
            for sentence in said
        ),
        "",
        f"| {' | '.join(HEAD)} |",
        "|" + "---|" * len(HEAD),
    ]
    for key, row in sorted(points.items(), key=_place_of(points)):
        roomy = points.get(f"{key.split()[0]} in_memory 0", {})
        lines.append(f"| {' | '.join(_row(key, row, roomy.get('ms')))} |")
    return "\n".join(lines)


def _place_of(points: dict):
    """Rows of a training stand together, by memory, all of it first."""
    trainings = list(dict.fromkeys(key.split()[0] for key in points))

    def place(item: tuple[str, dict]) -> tuple:
        training, way, _ = item[0].split()
        budget = item[1].get("budget_bytes") or 1 << 60
        return trainings.index(training), -budget, way != "in_memory", way

    return place


def of_all(results: pathlib.Path) -> str:
    """The tables of all GPUs that were measured."""
    found = [json.loads(path.read_text()) for path in results.glob("*.json")]
    measured = [
        each for each in found if "points" in each and each["machine"]["is_gpu"]
    ]
    measured.sort(key=lambda each: each["machine"]["gpu"])
    return "\n\n".join(map(table, measured)) or NOTHING


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("folder", type=pathlib.Path, nargs="?")
    add("--page", type=pathlib.Path)
    add("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    if options.folder:
        print(taken_in(options.folder, options.results))
    text = of_all(options.results)
    if options.page is None:
        print(text)
        return
    marked_part.put(f"\n\n{text}\n\n", options.page, BEGIN, END)


if __name__ == "__main__":
    main()
