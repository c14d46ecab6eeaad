"""What the pages for users say in figures, out of the data behind them.

A page says each of these words for word, line breaks aside. A figure that no
sentence here has and FACTS does not know stands on no page
(tests/python/pages/test_pages.py).
"""

import json
import statistics

import texts
from cost_tables import ROOT, Modelled
from page_parts import DEMO
from training_table import plan_of
from trust_table import H100

_GIB = 1 << 30
# What the code says: (page, figure): a file and the text in it.
_OPTIONS = "python/docs/configuration.md"  # out of the code
_CARDS = "backend/runtime/simulated/gpu_profiles.cpp"
FACTS = {
    ("README.md", "2.7 GB"): ("ci/lib.sh", "about 2.7 GB, once"),
    ("docs/allocator.md", "5 %"): (
        "tests/integration/measuring/test_fragmentation.py",
        "trace.peak_bytes * 105 // 100",
    ),
    ("docs/checkpoints.md", "16 MiB"): (
        "python/torch_chameleon/_safetensors.py",
        "_CHUNK_BYTES = 16 << 20",
    ),
    ("docs/cost.md", "4,000 GB/s"): (_CARDS, "4.0e12 B/s"),
    ("docs/install.md", "1.7 MB"): ("ci/README.md", "1.7 MB"),
    ("docs/limits.md", "80 %"): (_OPTIONS, "none: 80 % of"),
    ("docs/limits.md", "250 MiB"): (
        "python/torch_chameleon/_patches/first_broadcast.py",
        "in pieces of 250 MiB",
    ),
    ("docs/plan.md", "80 %"): (
        "python/torch_chameleon/plan/arguments.py",
        "or 80 %% of this machine's",
    ),
    ("docs/plan.md", "90 %"): (_OPTIONS, "90 % of free HBM"),
    ("docs/plan.md", "1.05 times"): (
        "python/torch_chameleon/_changes/advice.py",
        "_SLOW = 1.05  # times",
    ),
    ("docs/plan.md", "5 %"): (
        "python/torch_chameleon/_changes/advice.py",
        "_WORTH = 0.95  # of the peak",
    ),
    ("docs/troubleshooting.md", "80 %"): (_OPTIONS, "none: 80 % of"),
    ("docs/tutorial.md", "90 %"): (_OPTIONS, "90 % of free HBM"),
    ("docs/looking-at-a-run.md", "10 s"): (
        "python/torch_chameleon/_watch.py",
        "_ELSEWHERE_S = 0.5, 10.0",
    ),
    ("docs/security.md", "1 GiB"): (
        "profiler/trace/trace_reader.cpp",
        "it has more than 1 GiB",
    ),
    ("docs/tutorial.md", "28 MiB"): (
        "python/docs/tutorial.md",
        'hbm_budget = "28MiB"',
    ),
}


def _points():
    return json.loads(H100.read_text())["points"]


def measured_on_the_first_page():
    """README's table."""
    points = _points()

    def step(point):
        """Its time, and of a language model its speed."""
        row = points[point]
        speed = texts.told(point.split()[0], row["ms"])
        return f"{row['ms']:.0f} ms" + (f", {speed}" if speed else "")

    def plan(point):
        return plan_of(point, points[point])

    def fails(point):
        assert points[point]["error"].startswith("out of memory")
        return "out of memory"

    fails("llama_7b in_memory 75GB")
    large = points["llama_7b chameleon 75GB"]["logical_peak_bytes"] / 1e9
    yield (
        "| Llama-style, 1.3 B parameters | as much as it wants "
        f"| {step('llama_1.3b in_memory 0')} "
        f"| {step('llama_1.3b chameleon 0')} | - |"
    )
    yield (
        "| the same | half of that | "
        f"{step('llama_1.3b checkpoint 2')}, with checkpointing "
        f"| {step('llama_1.3b chameleon 2')} "
        f"| {plan('llama_1.3b chameleon 2')} |"
    )
    yield (
        f"| the same | a quarter of that | {fails('llama_1.3b checkpoint 4')}, "
        f"with checkpointing too | {step('llama_1.3b chameleon 4')} "
        f"| {plan('llama_1.3b chameleon 4')} |"
    )
    yield (
        f"| Llama-style, 6.7 B parameters, {large:.0f} GB of tensors | 75 GB | "
        f"{step('llama_7b fsdp2_offload_checkpoint 75GB')}, FSDP2 with CPU "
        f"offload and checkpointing | {step('llama_7b chameleon 75GB')} "
        f"| {plan('llama_7b chameleon 75GB')} |"
    )
    yield (
        "| ResNet-50, batch 256 | half of what it wants "
        f"| {step('resnet50 in_memory 0')}, with all of it "
        f"| {step('resnet50 chameleon 2')} | {plan('resnet50 chameleon 2')} |"
    )
    yield "Measured on one H100 with 80 GB"


def checkpointing_by_hand():
    """What it takes beside the device, measured."""
    points = _points()
    by_hand, half = (
        points["llama_1.3b checkpoint 2"],
        points["llama_1.3b chameleon 2"],
    )
    quarter = points["llama_1.3b chameleon 4"]
    assert "error" in points["llama_1.3b checkpoint 4"]
    yield (
        "Measured on an H100, a Llama-style model of 1.3 B parameters takes "
        f"{by_hand['ms']:.0f} ms a step with it and "
        f"{by_hand['peak_bytes'] / _GIB:.1f} GiB. On this device, with no "
        "change to the model, the same step takes "
        f"{half['ms']:.0f} ms in {half['budget_bytes'] / _GIB:.1f} GiB. In "
        f"half of that it takes {quarter['ms']:.0f} ms, where checkpointing "
        "runs out of memory."
    )


def first_tries():
    """A choice of k, modelled."""
    modelled = Modelled()
    experts = [name for name in modelled.workloads if name.startswith("moe")]
    others = [name for name in modelled.workloads if name not in experts]
    most = max(modelled.all_times([1.25]))
    two, two_experts = (
        modelled.all_times([2], names) for names in (others, experts)
    )
    yield (
        f"in these tables k = 1.25 costs at most {most - 1:.0%}. k = 2 costs "
        f"{min(two) - 1:.0%} to {max(two) - 1:.0%}, but a mixture of experts "
        f"takes {min(two_experts):.2f} to {max(two_experts):.2f} times as long."
    ).replace("%", " %")


def changing_routes():
    """Steps whose sizes change, beside steps whose sizes do not."""
    modelled = Modelled()
    varying, fixed = (
        modelled.all_times(workloads=[name])
        for name in ("moe_8x16_varying", "moe_8x16")
    )
    most = max(ours / other for ours, other in zip(varying, fixed, strict=True))
    yield (
        "a mixture of experts with new routes at each step "
        f"(`moe_8x16_varying` above) takes at most {most - 1:.0%} longer than "
        "one with fixed routes."
    ).replace("%", " %")


def cards():
    """What a simulated card is taken to be."""
    from torch_chameleon import _C

    card = _C.gpu_profile("h200")
    ways = {card[f"link_{way}_bytes_per_s"] for way in ("in", "out")}
    [link] = ways
    yield f"the H200's link is taken to carry {link / 1e9:.0f} GB/s each way"


def demo():
    """How the demo was run."""
    found = json.loads(DEMO.read_text())
    yield (
        f"{found['machine']}, torch {found['torch'].split('+')[0]}; a GPT of "
        f"{found['parameters'] / 1e6:.1f} M parameters, AdamW with "
        f"`foreach=True`, {found['steps']} steps"
    )


def coming_back():
    """How long a training takes to be back, measured."""
    found = json.loads(
        (ROOT / "tests/benchmarks/elastic/coming_back.json").read_text()
    )
    kept = {run["bytes"] for runs in found.values() for run in runs}
    yield f"each rank has {max(kept) / (1 << 20):.0f} MiB"
    for way, runs in found.items():
        copy, state, back = (
            statistics.median(run[key] for run in runs)
            for key in ("copy_s", "state_s", "back_s")
        )
        yield f"| {way} | {copy:.2f} s | {state:.2f} s | {back:.1f} s |"


SAID = {
    "README.md": [measured_on_the_first_page],
    "docs/cost.md": [
        checkpointing_by_hand,
        first_tries,
        changing_routes,
        cards,
    ],
    "docs/elastic-choices.md": [coming_back],
    "docs/measured.md": [demo],
}
