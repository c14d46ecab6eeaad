"""What replicas that heal each other leave, and what is promised of it."""

import itertools
from typing import NamedTuple


class Step(NamedTuple):
    """What a replica has after a step."""

    number: int
    replicas: int  # that took part
    digest: str


class Life(NamedTuple):
    """From the start of a replica's process to its end."""

    begun: int  # with the step that its own memory had
    healed: int  # with that of the others
    steps: list[Step]

    @property
    def reached(self):
        return self.steps[-1].number if self.steps else self.healed


def lives(folder, replica):
    found = []
    for line in (folder / f"lives.{replica}").read_text().splitlines():
        what, *words = line.split()
        if what == "life":
            found.append(Life(*map(int, words), []))
        else:
            number, replicas, digest = words
            found[-1].steps.append(Step(int(number), int(replicas), digest))
    return found


def check(folder, run, failures):
    """No wrong bit, at most a step lost for each failure, and nobody waits."""
    made = [lives(folder, replica) for replica in range(run.ranks)]
    all_steps = [step for life in itertools.chain(*made) for step in life.steps]
    bits = {}  # the same after each step, whoever made it
    for step in all_steps:
        assert bits.setdefault(step.number, step.digest) == step.digest
    # 0: of a first step that was not done, as one died in it.
    assert sorted({0, *bits}) == list(range(run.steps + 1))
    assert {its[-1].reached for its in made} == {run.steps}
    # Others go on; one that is back at once takes part in their next step.
    assert run.ranks - 1 in {step.replicas for step in all_steps}
    for replica, its in enumerate(made):
        came = [each for each in failures if each.rank == replica]
        for failure, life, again in zip(came, its[:-1], its[1:], strict=True):
            # Steps in which another one died count for `failure`, but are done
            # again.
            least = failure.step - 1 - len(failures)
            most = max(failure.step, life.healed) + 1
            assert least <= life.reached <= most, (failure, life, again)
            # One that is killed soon after it healed has little of its own.
            if len(life.steps) > 1 and failure.kind != "lose":
                lost = life.reached - again.begun
                assert 0 <= lost <= 1, (failure, life, again)
            # The others have it, but for a step that only this one had done.
            assert life.reached - again.healed <= 1, (failure, life, again)
