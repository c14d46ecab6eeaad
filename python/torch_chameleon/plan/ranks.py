"""One rank of a cluster: the first of as many as `--gpus` says.

It is told what torchrun would tell it, and its process groups have all ranks,
though there is this one process alone. Other ranks are taken to do the same at
the same time; what they would send has no values. CPU tensors and objects come
back as this rank gave them.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed
import torch.multiprocessing

from torch_chameleon.plan.buckets import Buckets

_PORT = 29500  # torchrun's; nobody listens


class RanksError(BaseException):
    """Leaves the script, for a reason that is its message."""


def variables(gpus: int, nodes: int) -> dict[str, str]:
    """What torchrun sets for the first rank; nothing where there is one GPU.

    Args:
        gpus: Ranks, one a GPU.
        nodes: Machines, with equally many.
    """
    if gpus == 1:
        return {}
    names = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "GROUP_RANK": 0,
        "ROLE_RANK": 0,
        "WORLD_SIZE": gpus,
        "LOCAL_WORLD_SIZE": gpus // nodes,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": gpus,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _PORT,
        "TORCHELASTIC_RUN_ID": "plan",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in names.items()}


class Ranks:
    """Process groups without processes.

    Args:
        script: The user's file, for messages.
        gpus: Ranks; 1: the script may have no group.
        nodes: Machines.
    """

    def __init__(self, script: str, gpus: int, nodes: int) -> None:
        self.made_a_group = False
        self._script = script
        self._gpus = gpus
        self._here = gpus // nodes

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While the script runs."""
        from torch.distributed import distributed_c10d
        from torch.nn.parallel import distributed as data_parallel

        named: list[tuple[Any, str, Any]]
        if self._gpus == 1:
            named = [
                (torch.distributed, "init_process_group", self._refuse),
                (torch.multiprocessing, "spawn", self._refuse),
                (torch.multiprocessing, "start_processes", self._refuse),
            ]
        else:
            c10d: Any = distributed_c10d
            parallel: Any = data_parallel
            torch_mp: Any = torch.multiprocessing
            named = [
                (torch_mp, "spawn", self._spawn),
                (torch_mp, "start_processes", self._refuse_to_start),
                *Buckets().replacements(),
                (
                    parallel,
                    "_verify_param_shape_across_processes",
                    lambda *_, **__: None,
                ),
                *(
                    (module, name, replacement)
                    for module in (torch.distributed, c10d)
                    for name, replacement in (
                        (
                            "init_process_group",
                            self._init(c10d.init_process_group),
                        ),
                        ("new_group", _new_group(c10d.new_group)),
                        ("split_group", _split_group),
                        ("gather_object", _gather_object),
                        ("scatter_object_list", _scatter_object_list),
                    )
                ),
            ]
        with contextlib.ExitStack() as stack:
            for owner, name, replacement in named:
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    def _refuse(self, *args: Any, **options: Any) -> None:
        raise RanksError(
            f"{self._script} trains in several processes (torch.distributed): "
            "say on how many GPUs, such as --gpus 8, or give it the options "
            "for a single one"
        )

    def _refuse_to_start(self, *args: Any, **options: Any) -> None:
        raise RanksError(
            f"{self._script} starts processes of its own; plan is one rank of "
            "what torchrun starts"
        )

    def _spawn(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        *rest: Any,
        **options: Any,
    ) -> None:
        """`torch.multiprocessing.spawn`: its first process is this one."""
        if nprocs not in (self._here, self._gpus):
            raise RanksError(
                f"{self._script} starts {nprocs} processes; a plan of that "
                f"is one of --gpus {nprocs}, and it is {self._gpus}"
            )
        fn(0, *args)

    def _init(self, init: Callable[..., Any]) -> Callable[..., None]:
        def made(
            backend: Any = None,
            init_method: Any = None,
            timeout: Any = None,
            world_size: int = -1,
            rank: int = -1,
            *rest: Any,
            **options: Any,
        ) -> None:
            if world_size not in (-1, self._gpus):
                raise RanksError(
                    f"{self._script} makes a group of {world_size} processes; "
                    f"a plan of that is one of --gpus {world_size}, and it is "
                    f"{self._gpus}"
                )
            if rank not in (-1, 0):
                raise RanksError(
                    f"{self._script} says that it is rank {rank}; plan is "
                    "rank 0"
                )
            from torch.testing._internal.distributed.fake_pg import FakeStore

            self.made_a_group = True
            init(
                "fake",
                timeout=timeout,
                world_size=self._gpus,
                rank=0,
                store=FakeStore(),
            )

        return made


def _new_group(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        options.pop("device_id", None)
        return make(ranks, timeout, None, None, *rest, **options)

    return made


def _split_group(
    parent_pg: Any = None,
    split_ranks: Any = None,
    *rest: Any,
    **options: Any,
) -> Any:
    """The part that has this rank, which is 0 in every group."""
    parent = parent_pg or torch.distributed.group.WORLD
    members = torch.distributed.get_process_group_ranks(parent)
    for ranks in split_ranks or []:
        if 0 in ranks:
            return torch.distributed.new_group([members[i] for i in ranks])
    return None


def _gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    *rest: Any,
    **options: Any,
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *rest: Any,
    **options: Any,
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[0]
