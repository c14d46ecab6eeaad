"""Every difference from native that may be, each with its reason.

A row excuses the cases that it matches. It is strict: a case that it matches
and that does not differ fails the run, so that a row goes when its reason
does. Only where native itself varies from run to run may a row be `sometimes`.
"""

import dataclasses
import fnmatch


@dataclasses.dataclass(frozen=True)
class Known:
    """One row; names and checks are shell patterns, `|` between them."""

    suite: str
    name: str
    check: str
    reason: str
    dtypes: str = "*"
    issue: str = ""  # upstream, where there is one
    sometimes: bool = False

    def matches(self, suite, name, check, dtype):
        return all(
            any(fnmatch.fnmatchcase(value, p) for p in pattern.split("|"))
            for value, pattern in (
                (suite, self.suite),
                (name, self.name),
                (check, self.check),
                (dtype, self.dtypes),
            )
        )


KNOWN = ()

# What these return is not initialised: everything but the bits is compared.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)


def known(suite, name, check, dtype):
    """The first row that matches, or None."""
    for row in KNOWN:
        if row.matches(suite, name, check, dtype):
            return row
    return None
