"""Sizes and times as they are shown."""

_UNITS_OF_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1024, "KiB"))
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(number: float) -> str:
    """Bytes of memory, as 28.4 GiB.

    Args:
        number: Bytes.
    """
    return _in_units(number, _BINARY, "bytes")


def decimal(number: float) -> str:
    """Bytes that move, as 6.02 GB.

    Args:
        number: Bytes.
    """
    return _in_units(number, _DECIMAL, "bytes")


def duration(duration_ns: float) -> str:
    """A time, as 782 ms.

    Args:
        duration_ns: The time.
    """
    return _in_units(duration_ns, _UNITS_OF_TIME, "ns")


def _in_units(
    number: float, units: tuple[tuple[float, str], ...], rest: str
) -> str:
    """Three digits, and never a power of ten."""
    for factor, unit in units:
        value = number / factor
        if value >= 0.9995:
            digits = max(0, 2 - len(str(int(value + 0.0005))) + 1)
            return f"{value:.{digits}f} {unit}"
    return f"{number:.0f} {rest}"
