"""Whose memory has a copy of a rank's generations."""

from collections.abc import Sequence


def partner_of(rank: int, world: int) -> int:
    """The rank half the world away, which has a copy of this one's.

    Machines that have equally many ranks are no longer than half the world, so
    it is on another one, and so is that of whom this one has a copy.

    Args:
        rank: Whose generations are copied.
        world: How many ranks there are.
    """
    return (rank + world // 2) % world


def partnered(rank: int, world: int) -> int:
    """The rank of whose generations this one has a copy.

    Args:
        rank: Who has it.
        world: How many ranks there are.
    """
    return (rank - world // 2) % world


def why_not(machines: Sequence[int], may_be_one: bool = False) -> str:
    """Why there are no partners; "": there are.

    Args:
        machines: On which machine each rank is.
        may_be_one: Whether a partner on the same machine will do.
    """
    world = len(machines)
    if world == 1 or (len(set(machines)) == 1 and not may_be_one):
        return (
            f"all ranks (there are {world}) are on one machine, and with it a "
            "partner's memory is lost, too; it needs several (--nnodes 2)"
        )
    for rank, machine in enumerate(machines):
        partner = partner_of(rank, world)
        if machine == machines[partner] and not may_be_one:
            return (
                f"rank {rank} and its partner, rank {partner}, are on one "
                "machine; each machine needs equally many (--nproc-per-node)"
            )
    return ""
