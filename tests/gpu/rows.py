"""What a lease does, in the order of its worth, and how long each may take."""

KINDS = ("probe", "first", "doctor", "bits", "operators")
KINDS += ("scripts", "silent_writers", "rest")

# By worth: what a GPU has of its own first. Functions of lease_workloads.py.
WORKLOADS = ("adamw_fused", "adamw_foreach", "convolutions", "transformer")
WORKLOADS += ("attention", "lstm", "random_numbers", "scaled_sgd", "gru")
WORKLOADS += ("streams",)

# Checks in one process each, under tests/python.
FIRST = {"first": "on_emulated_cuda", "as_cuda": "on_as_cuda"}

# Where some are left out: what only a GPU has. Attention is CUDA's own kernels,
# which an emulated GPU does not compute.
LEFT_OUT = {
    "cuda": (),
    "cpu": ("attention", "streams"),
    "emulated": ("attention",),
}

# Few where each takes long, and an emulated GPU is none to a script of its own.
SCRIPTS = {"cuda": ["scripts"], "cpu": ["scripts/mnist"], "emulated": []}

# Those in which ops are watched.
SILENT_WRITERS = {
    "cuda": WORKLOADS,
    "emulated": ("convolutions", "lstm", "gru"),
}

# By names' beginnings; empty: all.
OPERATORS = {
    "cuda": (),
    "cpu": (),
    "emulated": ("add", "mul", "sub", "neg", "exp", "sort", "matmul"),
}

# Seconds at most on a GPU, by a row's kind or its training.
_LIMITS = {"probe": 30, "first": 60, "doctor": 40, "bits": 90, "rest": 90}
_LIMITS |= {
    "silent_writers": 90,
    "operators": 90,
    "scripts": 120,
    "llama_1.3b": 50,
    "llama_7b": 75,
}
_LIMIT = 90  # of all others
_SLOWER = 3  # where none is
LEAST = 15  # a training is not begun with less

# Of these one more step runs under torch.profiler.
PROFILED = ("llama_1.3b/in_memory/0", "llama_1.3b/chameleon/2")


def limit_s(row: str, place: str) -> float:
    """Seconds that a row may take at most."""
    limit = _LIMITS.get(row.partition("/")[0], _LIMIT)
    return limit if place == "cuda" else limit * _SLOWER


def workloads(place: str) -> list[str]:
    """Those that can be compared there."""
    return [name for name in WORKLOADS if name not in LEFT_OUT[place]]


def by_worth(place: str) -> list[list[str]]:
    """Groups of rows that run at a time."""
    seven = "75GB" if place == "cuda" else "4MB"
    ways = ("in_memory/0", "chameleon/2", "chameleon/0", "checkpoint/2")
    ways += ("chameleon/4", "chameleon/1.25", "save_on_cpu/2")
    sevens = (f"chameleon/{seven}", f"fsdp2_offload_checkpoint/{seven}")
    sevens += (f"in_memory/{seven}",)
    with_driver = [["probe"], ["first", "doctor"]]
    return [
        *([["doctor"]] if place == "cpu" else with_driver),
        ["bits", "operators"],
        *([f"llama_1.3b/{way}"] for way in ways),
        *([f"llama_7b/{way}"] for way in sevens),
        ["silent_writers", *SCRIPTS[place]],
        ["rest"],
    ]
