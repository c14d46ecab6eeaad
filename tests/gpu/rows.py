"""What a lease does, in the order of its worth, and how long each may take."""

KINDS = ("probe", "first", "doctor", "bits", "operators", "optimizer_ops")
KINDS += ("pin", "two", "scripts", "silent_writers", "rest")

# By worth: what a GPU has of its own first. Functions of lease_workloads.py.
WORKLOADS = ("adamw_fused", "adamw_foreach", "convolutions", "transformer")
WORKLOADS += ("attention", "lstm", "random_numbers", "scaled_sgd", "gru")
WORKLOADS += ("streams", "deterministic_llama")

# Checks in one process each, of tests/python/as_cuda.
FIRST = {"first": "on_emulated_cuda", "as_cuda": "on_as_cuda"}

# Workloads that are left out: what only a GPU has.
LEFT_OUT = {
    "cuda": {},
    "cpu": {
        "attention": "its kernels are CUDA's own",
        "streams": "the CPU has none",
    },
    "emulated": {"attention": "an emulated GPU does not compute its kernels"},
}

# Kinds that are left out.
_NO_DRIVER = "it asks a driver, and there is none"
NOT_THERE = {
    "cuda": {},
    "cpu": {
        "probe": _NO_DRIVER,
        "first": _NO_DRIVER,
        "pin": _NO_DRIVER,
        "optimizer_ops": "it compares the CPU with CUDA",
    },
    "emulated": {"scripts": "to a script of its own an emulated GPU is none"},
}

# Few where each takes long.
SCRIPTS = {"cuda": "scripts", "cpu": "scripts/mnist", "emulated": "scripts"}

# Those in which ops are watched; the deterministic one has no ops of its own.
SILENT_WRITERS = {
    "cuda": WORKLOADS[:-1],
    "emulated": ("convolutions", "lstm", "gru"),
}

# By names' beginnings; empty: all.
OPERATORS = {
    "cuda": (),
    "cpu": (),
    "emulated": ("add", "mul", "sub", "neg", "exp", "sort", "matmul"),
}

# Seconds at most on a GPU, by a row's kind or its training.
_LIMITS = {
    "probe": 30,
    "first": 60,
    "doctor": 40,
    "bits": 90,
    "rest": 90,
    "silent_writers": 90,
    "operators": 90,
    "scripts": 120,
    "optimizer_ops": 40,
    "pin": 40,
    "llama_1.3b": 60,
    "llama_14b": 110,
    "llama_20b": 120,
}
_LIMIT = 90  # of all others
_SLOWER = 3  # where none is
LEAST = 15  # a training is not begun with less

# Of these one more step runs under torch.profiler.
PROFILED = ("llama_1.3b/in_memory/0", "llama_1.3b/chameleon/2")

# Steps of a row in all, where it is of interest what becomes of many.
ALL_STEPS = {
    "resnet50/chameleon/2": 300,
    "resnet50_channels_last/chameleon/2": 300,
}

# Variables of a way, which PyTorch reads when it is loaded.
WAY_ENVIRONMENT = {
    "expandable_segments": {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
    }
}
# And of the workloads: cuBLAS repeats its bits with it.
BITS_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def limit_s(row: str, place: str) -> float:
    """Seconds that a row may take at most."""
    limit = _LIMITS.get(row.partition("/")[0], _LIMIT)
    return limit if place == "cuda" else limit * _SLOWER


# Where none is, budgets in which small models of that name have to swap.
_TOY = {24: "1MB", 40: "1.5MB", 75: "2MB", 35: "0.5MB"}


def by_worth(place: str) -> list[list[str]]:
    """Groups of rows that run at a time."""

    def budget(gb: int) -> str:
        return f"{gb}GB" if place == "cuda" else _TOY[gb]

    ways = ("in_memory/0", "chameleon/4", "chameleon/2", "chameleon/1.25")
    sevens = ("chameleon", "fsdp2_offload_checkpoint")
    sevens += ("torchao_offload_checkpoint",)
    largest = ("llama_14b", "llama_20b")  # that a card and its host can hold
    convolutions = ("resnet50", "resnet50_channels_last")
    # A native peak is needed first, and shows PyTorch's own allocator.
    varying = ("bert_large", "moe_8x16")
    return [
        ["probe"],
        ["first", "doctor"],
        *([f"llama_1.3b/{way}"] for way in ways),
        *(
            [f"llama_7b/{way}/{budget(gb)}"]
            for gb in (24, 40)
            for way in sevens
        ),
        *([f"{name}/chameleon/{budget(75)}"] for name in largest),
        ["optimizer_ops"],
        *([f"{name}/chameleon/2"] for name in convolutions),
        ["pin"],
        ["bits/deterministic_llama,lstm,gru"],
        *([f"{name}/chameleon/2"] for name in varying),
        *([f"{name}/expandable_segments/0"] for name in varying),
        [f"two/llama_1.3b/chameleon/{budget(35)}"],
        ["silent_writers", SCRIPTS[place]],
        ["bits", "rest"],
    ]
