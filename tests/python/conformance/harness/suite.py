"""Runs cases, consults the table of known differences, counts."""

from conformance.harness.compare import difference, observe
from conformance.harness.counting import count
from conformance.harness.known_differences import known
from conformance.harness.pagers import PAGERS, LeastBudget, run_under, seed_of


class Suite:
    """One database's cases; `verify()` fails with all that differ.

    Args:
        name: The suite's name in the table of counts.
        known_as: The suite whose known differences are these, too.
    """

    def __init__(self, name, known_as=None):
        self.name = name
        self.known_as = known_as or name
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
                if (
                    differs
                    and differs.endswith("NaN payloads")
                    and varies(native, action)
                ):
                    differs = None
                if differs:
                    label = f"(seed {seed}), sample {number}"
                    found[pager].append((label, differs))
        if samples:
            case = (self.name, name, check, dtype)
            for pager, differences in found.items():
                self._verdict(case, pager, differences, samples, complete)

    def _verdict(self, case, pager, differences, samples, complete):
        rows = known(self.known_as, *case[1:])
        used, failed = set(), []
        for label, text in differences:
            row = next((r for r in rows if r.excuses(text)), None)
            if row is None:
                failed.append(f"{label}: {text}")
            else:
                used.add(row)
        title = " ".join(case)
        if failed:
            more = f" (and {len(failed) - 1} more)" if failed[1:] else ""
            self.failures.append(f"{title} {pager} {failed[0]}{more}")
        for row in rows:
            if complete and row not in used and not row.sometimes:
                self.failures.append(
                    f"{title} {pager} agrees, but known_differences says: "
                    f"{row.reason}"
                )
        excused = bool(differences) and not failed
        suite, _, _, dtype = case
        count(suite, dtype, pager, not differences, excused, samples)

    def verify(self):
        """Fails if a case differed that may not, or may and did not."""
        failures, self.failures = self.failures, []
        assert not failures, "\n" + "\n".join(failures)


def varies(native, action, attempts=3):
    """Whether native itself gives other bits when run again."""
    return any(
        difference(native, observe(action, "cpu")) for _ in range(attempts)
    )
