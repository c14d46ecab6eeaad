"""What several ranks did, natively and on chameleon, once a process."""

import functools
import pathlib
import tempfile

import ranks

KS = (1, 2, 3)


class Results:
    """What scenarios gave natively and on chameleon, by rank."""

    def __init__(self, folder, world, names):
        self.native, self.ours = (
            ranks.launch(self._made(folder / device), device, world, names)
            for device in ("cpu", "chameleon")
        )

    @staticmethod
    def _made(folder):
        folder.mkdir()
        return str(folder)

    def check(self, name):
        """All ranks have native's bits, with all in HBM and with less."""
        for rank, (native, ours) in enumerate(
            zip(self.native, self.ours, strict=True)
        ):
            for k in map(str, KS):
                assert ours[name][k]["digest"] == native[name]["digest"], (
                    rank,
                    k,
                )

    def evictions(self, name):
        """Over all ranks and budgets."""
        return sum(
            each[name][str(k)]["figures"]["evictions"]
            for each in self.ours
            for k in KS
        )


@functools.cache
def _launched(world, names):
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Results(pathlib.Path(folder), world, list(names))
        except AssertionError as error:
            return error


def results(world, names):
    """Results of a world's scenarios; each world is launched once."""
    found = _launched(world, tuple(names))
    if isinstance(found, AssertionError):
        raise found
    return found
