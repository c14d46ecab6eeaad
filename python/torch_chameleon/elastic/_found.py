"""A generation that every rank has."""

from collections.abc import Iterable
from typing import NamedTuple

from torch_chameleon.elastic._image import Image


class Found(NamedTuple):
    """A generation that every rank has."""

    number: int  # 0: it was on disk
    steps: int
    own: Image
    images: Iterable[Image]  # one after the other; all that `own` lacks
