"""Holds the files that it inherited until a process ends: no more than that.

`python _keeper_process.py AGENT RANK DESCRIPTOR...`: the last descriptor is a
pidfd of the agent. It imports nothing of the package, so it is small, and the
files are gone when it ends.
"""

import select
import sys


def main(agent: int) -> None:
    """Returns when a process has ended.

    Args:
        agent: A pidfd of it.
    """
    watched = select.poll()
    watched.register(agent, select.POLLIN)
    watched.poll()


if __name__ == "__main__":
    main(int(sys.argv[-1]))
