"""CUDA graphs, which programs can be told to leave out."""

from typing import Any, NoReturn

from torch_chameleon._as_cuda.cuda_module import replace


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "a CUDA graph cannot capture ops on chameleon tensors, whose memory "
        "moves between replays: run without the graph"
    )


class CUDAGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse()


def install() -> None:
    """Turns it on, for the rest of the process."""
    replace("CUDAGraph", CUDAGraph)
    replace("graph", _refuse)
    replace("make_graphed_callables", _refuse)
