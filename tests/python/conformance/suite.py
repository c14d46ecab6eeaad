"""Runs cases, consults the table of known differences, counts."""

from conformance.compare import difference, observe
from conformance.counting import count
from conformance.known_differences import known
from conformance.pagers import PAGERS, LeastBudget, run_under, seed_of


class Suite:
    """One database's cases; `verify()` fails with all that differ.

    Args:
        name: The suite's name in the table of counts.
    """

    def __init__(self, name):
        self.name = name
        self.failures = []

    def case(
        self,
        name,
        check,
        dtype,
        actions,
        pagers=PAGERS,
        *,
        values=True,
        complete=True,
    ):
        """Runs actions natively and under each pager.

        Args:
            name: The entry: an op, a module, an optimizer.
            check: "forward", "backward", "out" ...
            dtype: A torch dtype, or a name.
            actions: Functions of a device, each returning a tree.
            pagers: Under which pagers to run.
            values: False where results are uninitialised memory.
            complete: Whether these are all of the entry's samples, so that a
                known difference must show.
        """
        dtype = str(dtype).removeprefix("torch.")
        found = {pager: [] for pager in pagers}
        least = LeastBudget()
        samples = 0
        for number, action in enumerate(actions):
            native = observe(action, "cpu")
            samples += 1
            for pager in pagers:
                seed = seed_of(f"{self.name}/{name}/{check}/{dtype}/{number}")
                ours = run_under(
                    pager,
                    seed,
                    lambda action=action: observe(action, "chameleon"),
                    least,
                )
                differs = difference(native, ours, values)
                if differs == "bits: NaN payloads" and varies(native, action):
                    differs = None
                if differs:
                    label = f"{pager} (seed {seed}), sample {number}"
                    found[pager].append(f"{label}: {differs}")
        if samples:
            row = known(self.name, name, check, dtype)
            for pager, differences in found.items():
                case = f"{self.name} {name} {check} {dtype}"
                self._verdict(case, pager, differences, row, samples, complete)

    def _verdict(self, case, pager, differences, row, samples, complete):
        excused = row is not None and bool(differences)
        _, _, _, dtype = case.split(" ")
        count(self.name, dtype, pager, not differences, excused, samples)
        if differences and row is None:
            more = len(differences) - 1
            tail = f" (and {more} more samples)" if more else ""
            self.failures.append(f"{case} {differences[0]}{tail}")
        elif row and not differences and complete and not row.sometimes:
            self.failures.append(
                f"{case} {pager}: agrees, but known_differences has it: "
                f"{row.reason}"
            )

    def verify(self):
        """Fails if a case differed that may not, or may and did not."""
        failures, self.failures = self.failures, []
        assert not failures, "\n" + "\n".join(failures)


def varies(native, action, attempts=3):
    """Whether native itself gives other bits when run again."""
    return any(
        difference(native, observe(action, "cpu")) for _ in range(attempts)
    )
