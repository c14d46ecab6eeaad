"""Slots' bytes from one process to another."""

import threading
import weakref
from datetime import timedelta
from itertools import zip_longest

import torch
import torch.distributed as dist

from torch_chameleon.elastic._slot import Slot

_TIMEOUT_S = 300.0  # for a piece, until a peer is taken to be dead
_PIECE_BYTES = 4 << 20
_LAST_S = 2.0  # that an ending process waits for a piece


class Link:
    """A gloo group of its own, for messages between two processes alone.

    No collective is in it, so it may be used by a thread: a peer that dies
    raises an error, and a process that ends leaves after the piece that is
    under way.
    """

    def __init__(self, group: dist.ProcessGroup):
        """For one group.

        Args:
            group: Of the processes, for nothing else.
        """
        self._group = group
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._is_over, self._threads)

    @classmethod
    def of_all(cls) -> "Link":
        """All ranks make it at the same place of the program."""
        return cls(
            dist.new_group(
                backend="gloo", timeout=timedelta(seconds=_TIMEOUT_S)
            )
        )

    def start(self, thread: threading.Thread) -> None:
        """Starts one that uses it, the only one.

        Args:
            thread: A daemon.
        """
        self._threads[:] = [thread]
        thread.start()

    def move(
        self,
        sent: tuple[Slot, int] | None = None,
        received: tuple[Slot, int] | None = None,
    ) -> None:
        """Sends a slot's generation, receives one, or does both at once.

        What is received is committed when all of it is there.

        Args:
            sent: A slot that stays as it is, and to whom.
            received: A slot, and from whom.

        Raises:
            RuntimeError: The other process ended, or this one does.
        """
        outgoing: list[torch.Tensor] = []
        incoming: list[torch.Tensor] = []
        head = torch.tensor(sent[0].head if sent else [0])
        if sent:
            outgoing = [head]
        if received:
            incoming = [torch.empty(len(received[0].head), dtype=head.dtype)]
        self._pieces(outgoing, incoming, sent, received)
        if sent:
            outgoing = list(sent[0].body.split(_PIECE_BYTES))
        if received:
            body = received[0].receive(incoming[0].tolist())
            incoming = list(body.split(_PIECE_BYTES))
        self._pieces(outgoing, incoming, sent, received)
        if received:
            received[0].received()

    def _pieces(
        self,
        outgoing: list[torch.Tensor],
        incoming: list[torch.Tensor],
        sent: tuple[Slot, int] | None,
        received: tuple[Slot, int] | None,
    ) -> None:
        for out, into in zip_longest(outgoing, incoming):
            if self._is_over.is_set():
                raise RuntimeError("this process ends")
            works = []
            if received and into is not None:
                works.append(self._group.recv([into], received[1], 0))
            if sent and out is not None:
                works.append(self._group.send([out], sent[1], 0))
            for work in works:
                work.wait()


def _end(is_over: threading.Event, threads: list[threading.Thread]) -> None:
    """Lets nobody run into the interpreter's end, but for a peer that hangs."""
    is_over.set()
    for each in threads:
        if each is not threading.current_thread():
            each.join(_LAST_S)
