"""What a card and a machine give to a training that asks for nothing."""

from torch_chameleon import _C

# Of an H100 of 80 GiB, 79.2 GiB were there for programs, and 78.7 free beside
# a context: measured, driver 580. Others are taken to be alike.
_FOR_PROGRAMS = 0.99
CONTEXT_BYTES = 512 << 20
_OF_WHAT_IS_FREE = 0.9  # config.hbm_budget's default on `cuda`
OF_THE_HOST = 0.8  # config.host_budget's default
_ROOM = "2TiB"


def default_budget(card_bytes: int) -> int:
    """What `cuda` takes of a card with nothing else on it.

    Args:
        card_bytes: The card's memory.
    """
    free = for_programs(card_bytes) - CONTEXT_BYTES
    return max(1 << 20, int(free * _OF_WHAT_IS_FREE))


def for_programs(card_bytes: int) -> int:
    """How much of its memory a card has for programs.

    Args:
        card_bytes: The card's memory.
    """
    return int(card_bytes * _FOR_PROGRAMS)


def default_host(gpu: str) -> tuple[int, str]:
    """How much host memory there is for tensors.

    Args:
        gpu: A card, or figures; these may have a host.

    Returns:
        Bytes, and of what.
    """
    if "host_memory" in _figures(gpu):
        total = _C.gpu_profile(gpu)["host_memory_bytes"]
        return int(total * OF_THE_HOST), "80 % of its host's"
    total = _C.machine_memory()[0]
    return int(total * OF_THE_HOST), "80 % of this machine's"


def with_room(gpu: str) -> str:
    """The card with far more memory: what does not fit is said by name.

    Args:
        gpu: A card, or figures.
    """
    figures = _figures(gpu)
    figures |= {"memory": _ROOM, "host_memory": _ROOM}
    return ", ".join(f"{key}={value}" for key, value in figures.items())


def with_network(gpu: str, bytes_per_s: float | None) -> str:
    """The card with another part of the network between machines.

    Args:
        gpu: A card, or figures.
        bytes_per_s: What one GPU has of it, each way; None: the card's own.
    """
    if bytes_per_s is None:
        return gpu
    figures = _figures(gpu) | {"network": f"{bytes_per_s:.0f}"}
    return ", ".join(f"{key}={value}" for key, value in figures.items())


def _figures(gpu: str) -> dict[str, str]:
    if "=" not in gpu:
        return {"base": gpu.strip()}
    pairs = (part.split("=", 1) for part in gpu.split(",") if part)
    return {key.strip(): value.strip() for key, value in pairs}
