"""A report's figures as text, and text that may be broken."""

import re
from html import escape

from torch_chameleon import _C


def size(count: float) -> str:
    """Bytes, as 24.00 MiB.

    Args:
        count: Of bytes.
    """
    return _C.format_bytes(int(count))


def duration(duration_ns: float) -> str:
    """A time, as 34.95 ms.

    Args:
        duration_ns: The time.
    """
    if duration_ns >= 1e9:
        return f"{duration_ns / 1e9:,.{1 if duration_ns >= 1e10 else 2}f} s"
    if duration_ns >= 1e8 or duration_ns == 0:
        return f"{duration_ns / 1e6:,.0f} ms"
    return f"{duration_ns / 1e6:,.2f} ms"


def rate(bytes_per_s: float) -> str:
    """Of a link, as 2.4 GB/s.

    Args:
        bytes_per_s: The rate.
    """
    return f"{bytes_per_s / 1e9:,.1f} GB/s"


def breakable(text: str) -> str:
    """HTML of a text whose names break where their parts end.

    Args:
        text: Anything.
    """
    return re.sub(r"([._:]+)(?=[A-Za-z])", r"\1<wbr>", escape(text))
