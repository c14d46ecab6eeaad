"""What a launcher tells its workers, or a user who has another one."""

import os


def steps(variable: str, default: int) -> int:
    """A number of steps from the environment.

    Args:
        variable: Its name.
        default: What it is if it is not set.

    Raises:
        ValueError: It is no such number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(
            f"environment variable {variable}={text!a} must be a number "
            "of steps, at least 1"
        )
    return int(text)


def machines() -> int:
    """How many an elastic agent says that there are now."""
    return int(os.environ.get("GROUP_WORLD_SIZE", 1))
