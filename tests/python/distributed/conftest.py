"""What several ranks did, once for all tests of a module."""

import pytest
import ranks

KS = (1, 2, 3)


class Results:
    """What scenarios gave natively and on chameleon, by rank."""

    def __init__(self, folder, world, names):
        self.names = names
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

    def moved(self, name):
        """Evictions and reads from the host, over all ranks and budgets."""
        return {
            what: sum(
                each[name][str(k)]["figures"][what]
                for each in self.ours
                for k in KS
            )
            for what in ("evictions", "faults")
        }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of a world's scenarios; each world is launched once."""
    known = {}

    def of(world, names):
        if world not in known:
            folder = tmp_path_factory.mktemp(f"world_{world}")
            try:
                known[world] = Results(folder, world, names)
            except AssertionError as error:
                known[world] = error
        if isinstance(known[world], AssertionError):
            raise known[world]
        return known[world]

    return of
