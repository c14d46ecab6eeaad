"""`python -m torch_chameleon elastic`: torchrun, with states that outlive it.

Takes torchrun's options (they are its own, and so is the agent), holds the
memory of the ranks, and says at the end what failed and what was lost.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable

from torch.distributed.elastic.metrics import api as metrics
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import (
    determine_local_world_size,
    get_args_parser,
    parse_min_max_nnodes,
    run,
)

from torch_chameleon import _script
from torch_chameleon._config import config
from torch_chameleon.elastic import _healing, _keeper
from torch_chameleon.elastic._checkpoints import (
    FOLDER_VARIABLE,
    STEPS,
    STEPS_VARIABLE,
)
from torch_chameleon.elastic._devices import is_lost
from torch_chameleon.elastic._explaining import REPAIR_VARIABLE
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._failures import AGENT, Failures, Seen
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._partner.partners import (
    ONE_MACHINE_VARIABLE,
    PARTNER_VARIABLE,
)
from torch_chameleon.elastic._policies import BUILT, NAMES
from torch_chameleon.elastic._pricing import REPAIR_S
from torch_chameleon.elastic._shares import SHARES_VARIABLE
from torch_chameleon.elastic._situation import Situation

_RESTARTS = 3
# With --start-method forkserver workers are copies of a process that has loaded
# what takes long: all that trainings of several ranks use.
_LOADED = (
    "torch_chameleon",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
)


def main(arguments: list[str] | None = None) -> int:
    """Launches a training and looks after it.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    if options.policy == "heal":
        return _healing.launch(options, _agent)
    return _agent(options, lambda seen: print(seen.line(), flush=True))


def _agent(options: argparse.Namespace, tell: Callable[[Seen], None]) -> int:
    """Runs torch's agent, again and again if it must be.

    Args:
        options: The launcher's.
        tell: Is told what was seen, at the end.

    Returns:
        The exit status.
    """
    ranks = int(options.nproc_per_node)
    descriptors = [Memory.create(rank) for rank in range(ranks)]
    os.environ[_keeper.KEEPER_VARIABLE] = _keeper.address(descriptors)
    os.environ["CHAMELEON_MIRROR_STEPS"] = str(options.mirror_steps)
    os.environ[REPAIR_VARIABLE] = str(options.repair_seconds)
    if options.partner:
        os.environ[PARTNER_VARIABLE] = "1"
    if options.checkpoint is not None:
        os.environ[FOLDER_VARIABLE] = os.path.abspath(options.checkpoint)
        os.environ[STEPS_VARIABLE] = str(options.checkpoint_steps)
    # The workers' own store instead of the agent's, which remembers where those
    # of their first life listened (pytorch#167288).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    multiprocessing.set_forkserver_preload(list(_LOADED))
    memories = [Memory(each) for each in descriptors]
    failures = Failures(memories)
    metrics.configure(failures, AGENT)
    try:
        return _launch(options, memories, failures)
    finally:
        tell(failures.seen())


def _launch(
    options: argparse.Namespace, memories: list[Memory], failures: Failures
) -> int:
    policy, restarts = BUILT[options.policy](), 0
    if not options.restarted_by_agents:
        restarts, options.max_restarts = options.max_restarts, 0
    while True:
        if options.allow_fewer_samples:
            _say_shares(options)
        try:
            run(options)
            return 0
        except ChildFailedError as error:
            ranks, done = int(options.nproc_per_node), None
            if restarts:
                rank = Failure.first(error)
                failure = Failure(
                    rank,
                    Situation.of(memories[:ranks], ranks),
                    memories,
                    failures.restart_s(),
                    is_lost(rank, ranks),
                )
                done = policy.next_launch(options, failure)
            failures.chose(done or "given up")
            if done is None:
                print(error, file=sys.stderr, flush=True)
                return 1
            restarts -= 1


def _say_shares(options: argparse.Namespace) -> None:
    """Tells the workers to come among how many a step is divided."""
    shares = str(options.shares)
    if os.environ.get(SHARES_VARIABLE, shares) != shares:
        options.start_method = "spawn"  # a fork server keeps its environment
    os.environ[SHARES_VARIABLE] = shares


def _check(parser: _script.CommandParser, options: argparse.Namespace) -> None:
    """Refuses what is wrong, and fills in what torchrun would not."""
    if options.policy == "heal" and (why_not := _healing.why_not()):
        parser.error(f"--policy heal: {why_not}")
    if options.policy == "heal" and options.checkpoint is not None:
        parser.error(
            "--policy heal takes no --checkpoint: replicas would write to one"
        )
    if options.policy == "checkpoint" and options.checkpoint is None:
        parser.error("--policy checkpoint needs --checkpoint FOLDER")
    asks_for_steps = options.checkpoint_steps is not None
    if not asks_for_steps:
        options.checkpoint_steps = STEPS
    least_of = {
        "mirror_steps": 1,
        "checkpoint_steps": 1,
        "max_restarts": 0,
        "repair_seconds": 0,
    }
    for name, least in least_of.items():
        value = getattr(options, name)
        if not value >= least:  # nor what is not a number
            option = name.replace("_", "-")
            parser.error(f"--{option} = {value} must be at least {least}")
    if asks_for_steps and options.checkpoint is None:
        parser.error(
            "--checkpoint-steps: nothing is written without --checkpoint FOLDER"
        )
    if not options.module and not os.path.isfile(options.training_script):
        parser.error(f"no file {options.training_script}")
    try:
        _, most_nodes = parse_min_max_nnodes(options.nnodes)
    except (ValueError, RuntimeError):
        parser.error(
            f"--nnodes = {options.nnodes!a} must be a number of machines, or "
            "the least and the most (1:2)"
        )
    try:
        ranks = determine_local_world_size(options.nproc_per_node)
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    if ranks < 1:
        parser.error(f"--nproc-per-node = {ranks} is less than 1")
    options.nproc_per_node = str(ranks)
    options.shares = ranks
    options.restarted_by_agents = most_nodes > 1
    if (
        options.partner
        and most_nodes == 1
        and ONE_MACHINE_VARIABLE not in os.environ
    ):
        parser.error(
            "--partner: with one machine a partner's memory is lost, too; it "
            "needs several (--nnodes 2)"
        )
    if not options.restarted_by_agents:
        options.standalone = not options.rdzv_endpoint
    elif options.allow_fewer_samples:
        parser.error("--allow-fewer-samples is for one machine: --nnodes 1")
    elif options.policy == "auto":
        options.policy = "in-place"  # the agents' own, and no other is for many
    elif options.policy != "in-place":
        parser.error(
            f"--policy {options.policy} is for one machine: --nnodes 1"
        )


def _parser() -> _script.CommandParser:
    parser = _script.CommandParser(
        prog="python -m torch_chameleon elastic",
        description="Launches a training as torchrun does, whose workers come "
        "back to what torch_chameleon.elastic.State committed. What is not "
        "named here is torchrun's.",
        parents=[get_args_parser()],
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    parser.set_defaults(max_restarts=_RESTARTS)
    add = parser.add_argument
    add(
        "--mirror-steps",
        type=int,
        default=config.mirror_steps,
        metavar="STEPS",
        help="config.mirror_steps of the workers: keep the state of each so "
        "many-th commit (default: %(default)s)",
    )
    add(
        "--policy",
        choices=NAMES,
        default="auto",
        help="what is done when a worker fails; auto: the cheapest that can be "
        "(default: %(default)s)",
    )
    add(
        "--partner",
        action="store_true",
        help="copy what is kept to the memory of another machine, too, for "
        "when one dies",
    )
    add(
        "--checkpoint",
        metavar="FOLDER",
        help="write checkpoints there, for when no memory is left; a folder "
        "that all machines see, for this training alone",
    )
    add(
        "--checkpoint-steps",
        type=int,
        metavar="STEPS",
        help=f"write one every so many steps (default: {STEPS})",
    )
    add(
        "--repair-seconds",
        type=float,
        default=REPAIR_S,
        metavar="SECONDS",
        help="how long a lost device is away, for --policy auto "
        "(default: %(default)s)",
    )
    add(
        "--lost-devices",
        action="store_true",
        help="a worker that fails has lost its device, for --policy auto",
    )
    add(
        "--allow-fewer-samples",
        action="store_true",
        help="those that are left may go on with their own samples alone, for "
        "--policy auto and reshard (scripts ask elastic.shares())",
    )
    return parser
