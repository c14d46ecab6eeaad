"""The lower bound: pencil and paper, brute force on tiny steps, real traces."""

import functools
import heapq
import itertools
import math
import random

import pytest
from bound import (
    Links,
    Step,
    Storage,
    fluid_bound_ns,
    joint_bound_ns,
    lower_bound_ns,
    window_bound_ns,
)
from support import ROOT

TRACES = ROOT / "tests/benchmarks/policy/traces"
UNIT = Links(1e9, 1e9, 2e9)  # one byte a nanosecond, each way
HALF = Links(1e9, 1e9, 1e9)  # one way at a time
FAIR = Links(0.5e9, 0.5e9, 2e9 / 3)  # both ways at once at two thirds each
STUDY = Links(55e9, 55e9, 90e9)


def record(duration, reads=(), creates=(), writes=(), frees=(), sizes=None):
    def size(key):
        return [key, (sizes or {}).get(key, 1)]

    return {
        "op": "op",
        "dur_ns": duration,
        "in": [size(key) for key in reads],
        "out": [size(key) for key in creates],
        "write": [*writes, *creates],
        "free": list(frees),
    }


def megabytes(records):
    """Sizes in MB and durations in ms, for the fluid bound's least size."""
    return Step.from_records(
        [
            {
                **entry,
                "dur_ns": entry["dur_ns"] * 1_000_000,
                "in": [[k, b * 1_000_000] for k, b in entry["in"]],
                "out": [[k, b * 1_000_000] for k, b in entry["out"]],
            }
            for entry in records
        ]
    )


def bounds(records, budget, links):
    step = megabytes(records)
    return [
        function(step, budget * 1_000_000, links) / 1e6
        for function in (window_bound_ns, fluid_bound_ns)
    ]


def test_all_fits():
    step = [record(5, [1], [2]), record(7, [1, 2], frees=[2])]
    assert bounds(step, 2, UNIT) == [12, 12]


def test_frozen_weights_come_in_every_step():
    # Belady on a cycle of 4 pages with 2 frames: (4 - 2) / (4 - 1) miss.
    sizes = dict.fromkeys(range(4), 10)
    step = [record(1, [key], sizes=sizes) for key in range(4)]
    window, fluid = bounds(step, 20, UNIT)
    assert window == pytest.approx(20)  # 40 are read, 20 may have stayed
    assert fluid == pytest.approx(40 * 2 / 3)
    assert bounds(step, 20, HALF) == [window, fluid]  # nothing goes out


def test_written_state_crosses_both_links():
    sizes = dict.fromkeys(range(4), 10)
    step = [record(1, [key], writes=[key], sizes=sizes) for key in range(4)]
    assert bounds(step, 20, UNIT) == pytest.approx([20, 40 * 2 / 3])
    assert bounds(step, 20, HALF) == pytest.approx([40, 80 * 2 / 3])


def test_ways_at_once_are_fair():
    assert STUDY.time_ns(55, 0) == STUDY.time_ns(0, 55) == 1
    assert STUDY.time_ns(45, 45) == pytest.approx(1)
    # 45 of each at once, then 11 one way alone.
    assert STUDY.time_ns(45, 56) == pytest.approx(1.2)
    assert STUDY.time_ns(56, 45) == pytest.approx(1.2)
    # What the slower way leaves of the limit is the other's.
    slow_out = Links(55e9, 10e9, 60e9)
    assert slow_out.time_ns(50, 10) == pytest.approx(1)
    assert slow_out.time_ns(50 + 55, 10) == pytest.approx(2)
    assert slow_out.time_ns(50, 10 + 10) == pytest.approx(2)


def test_what_is_overwritten_need_not_come_in():
    # Written one after the other, then read so: of 40 at most 20 stay.
    sizes = dict.fromkeys(range(4), 10)
    step = [record(1, writes=[key]) for key in range(4)]
    step += [record(1, [key], sizes=sizes) for key in range(4)]
    step = step[4:] + step[:4]
    assert bounds(step, 20, HALF)[0] == pytest.approx(40)
    assert bounds(step, 40, HALF) == [8, 8]


# What is at least 8 MB can be made again: units of 10 MB and 10 ms.
def joint(records, budget, links, may_rerun=lambda name: True):
    tens = [
        {
            **entry,
            "dur_ns": entry["dur_ns"] * 10,
            "in": [[k, b * 10] for k, b in entry["in"]],
            "out": [[k, b * 10] for k, b in entry["out"]],
        }
        for entry in records
    ]
    bound = joint_bound_ns(
        megabytes(tens), budget * 10_000_000, links, may_rerun
    )
    return bound / 1e7


def test_what_can_be_made_again_need_not_move():
    step = [
        record(5, [1], ["a"], sizes={1: 1}),
        record(6, ["a"], ["b"]),
        record(6, ["b"], ["c"], frees=["b"]),
        record(1, ["c"], frees=["c"]),
        record(1, [1, "a"], frees=["a"]),
    ]
    slow = Links(1, 1, 1)  # a byte a second
    assert joint(step, 4, slow) == 19
    # `a` leaves for `c`, and is made again from what is there.
    assert joint(step, 3, slow) == pytest.approx(19 + 5, rel=1e-6)
    assert joint(step, 3, slow, lambda name: False) > 1e6
    fast = Links(1e12, 1e12, 1e12)
    assert joint(step, 3, fast) == 19


def test_what_finishes_a_value_in_place_runs_again_too():
    step = [
        record(5, [1], ["a"]),
        record(2, ["a"], writes=["a"]),
        record(6, ["a"], ["b"]),
        record(6, ["b"], ["c"], frees=["b"]),
        record(1, ["c"], frees=["c"]),
        record(1, [1, "a"], frees=["a"]),
    ]
    bound = joint(step, 3, Links(1, 1, 1))
    assert bound == pytest.approx(21 + 7, rel=1e-6)


def test_an_op_that_never_fits():
    step = megabytes([record(1, [1, 2, 3])])
    for function in (window_bound_ns, fluid_bound_ns, lower_bound_ns):
        with pytest.raises(ValueError, match="op 0 alone touches 3000000"):
            function(step, 2_000_000, UNIT)


def test_a_step_must_be_a_cycle():
    with pytest.raises(ValueError, match="must be a cycle"):
        Step([1], [Storage(1, [0], [False], [True], created=0)])


# ---- brute force ------------------------------------------------------------


class Machine:
    """The best periodic schedule of a tiny step, by search.

    Sizes and durations are small whole numbers, a copy is never broken off,
    steps begin with idle links. If asked to, it also runs ops again: those
    that made what is still alive and was not written since, on inputs that
    were not either.
    """

    def __init__(self, records, budget, links, reruns=False):
        self.records = records
        self.budget = budget
        self.one_way = links is HALF
        # A unit of bytes in parts, and how many pass in a unit of time: one
        # way alone, and each way where both are in use.
        self.unit, self.alone, self.shared = (
            (6, 3, 2) if links is FAIR else (1, 1, 1)
        )
        self.sizes = {}
        for entry in records:
            self.sizes.update(entry["in"])
            self.sizes.update(entry["out"])
        created = {k for entry in records for k, _ in entry["out"]}
        self.persistent = sorted(self.sizes.keys() - created)
        self.makers = {}  # key -> its op
        if reruns:
            turn = int(Step.from_records(records).live_bytes.argmax())
            for op, entry in enumerate(records[: turn + 1]):
                out = {k for k, _ in entry["out"]}
                if not {k for k, _ in entry["in"]} & set(entry["write"]):
                    self.makers |= dict.fromkeys(out, op)

    def unwritten(self, keys, begin, end):
        written = (set(e["write"]) for e in self.records[begin + 1 : end])
        return not any(keys & each for each in written)

    def can_rerun(self, key, op):
        """Whether a value can be made again before an op."""
        maker = self.makers.get(key)
        if maker is None or not maker < op < len(self.records):
            return False
        keys = {k for k, _ in self.records[maker]["in"]} | {key}
        return self.unwritten(keys, maker, op) and all(
            key not in e["free"] for e in self.records[:op]
        )

    def shortest(self):
        best = math.inf
        keys = self.persistent
        for held in itertools.product((0, 1, 2), repeat=len(keys)):
            # 0 outside, 1 resident and dirty, 2 resident with a copy outside
            resident = frozenset(
                k for k, h in zip(keys, held, strict=True) if h
            )
            clean = frozenset(
                k for k, h in zip(keys, held, strict=True) if h != 1
            )
            if sum(self.sizes[k] for k in resident) <= self.budget:
                best = min(best, self.cycle(resident, clean, best))
        return best

    def cycle(self, resident, clean, limit):
        """The shortest time from this state to the same one, a step later."""
        start = (0, 0, resident, clean, None, None, None)
        goal = (len(self.records), 0, resident, clean, None, None, None)
        queue = [(0, 0, start)]
        seen = {}
        tie = itertools.count()
        while queue:
            time, _, state = heapq.heappop(queue)
            if time >= limit or seen.get(state, math.inf) < time:
                continue
            if state == goal:
                return time
            for cost, after in self.moves(state):
                if time + cost < seen.get(after, math.inf):
                    seen[after] = time + cost
                    heapq.heappush(queue, (time + cost, next(tie), after))
        return math.inf

    def used(self, resident, incoming, op, busy):
        total = sum(self.sizes[k] for k in resident)
        if incoming:
            total += self.sizes[incoming[0]]
        return total

    def moves(self, state):
        op, busy, resident, clean, incoming, outgoing, again = state
        entry = self.records[op] if op < len(self.records) else None
        free = self.budget - self.used(resident, incoming, op, busy)
        working = set()
        if entry and busy:
            runs = entry if again is None else self.records[again]
            working = {k for k, _ in runs["in"]} | set(runs["write"])
        # start an op: no time
        if entry and not busy:
            created = {k for k, _ in entry["out"]}
            written = set(entry["write"])
            reads = {k for k, _ in entry["in"]}
            new = (created | (written - reads)) - resident
            coming = incoming and incoming[0] in reads | written
            going = outgoing and outgoing[0] in written
            if (
                reads <= resident
                and not coming
                and not going
                and sum(self.sizes[k] for k in new) <= free
            ):
                yield (
                    0,
                    (
                        op,
                        entry["dur_ns"],
                        resident | new,
                        clean - written,
                        incoming,
                        outgoing,
                        None,
                    ),
                )
        # run one again
        for key, maker in self.makers.items() if not busy else ():
            made = self.records[maker]
            out = {k for k, _ in made["out"]}
            if (
                self.can_rerun(key, op)
                and all(self.can_rerun(k, op) for k in out)
                and not out & resident
                and not (incoming and incoming[0] in out)
                and {k for k, _ in made["in"]} <= resident
                and sum(self.sizes[k] for k in out) <= free
            ):
                there = (resident | out, clean, incoming, outgoing, maker)
                yield 0, (op, made["dur_ns"], *there)
        for key in resident - working:
            leaving = outgoing and outgoing[0] == key
            rest = (clean, incoming, outgoing, again)
            if (key in clean or self.can_rerun(key, op)) and not leaving:
                yield 0, (op, busy, resident - {key}, *rest)
            if key not in clean and outgoing is None:
                out = (key, self.sizes[key] * self.unit)
                yield 0, (op, busy, resident, clean, incoming, out, again)
        if incoming is None:
            for key in clean - resident:
                if self.sizes[key] <= free:
                    coming = (key, self.sizes[key] * self.unit)
                    there = (resident, clean, coming, outgoing, again)
                    yield 0, (op, busy, *there)
        # a unit of time passes
        ways = [(True, True)]
        if self.one_way and incoming and outgoing:
            ways = [(True, False), (False, True)]
        for moves_in, moves_out in ways:
            if not (busy or incoming or outgoing):
                break
            yield 1, self.tick(state, moves_in, moves_out)

    def tick(self, state, moves_in, moves_out):
        op, busy, resident, clean, incoming, outgoing, again = state
        if busy:
            busy -= 1
            if busy == 0 and again is not None:
                again = None
            elif busy == 0:
                gone = set(self.records[op]["free"])
                resident, clean = resident - gone, clean - gone
                op += 1
                if outgoing and outgoing[0] in gone:
                    outgoing = None
        both = incoming and moves_in and outgoing and moves_out
        parts = self.shared if both else self.alone
        if incoming and moves_in:
            key, left = incoming
            incoming = (key, left - parts) if left > parts else None
            if incoming is None:
                resident = resident | {key}
        if outgoing and moves_out:
            key, left = outgoing
            outgoing = (key, left - parts) if left > parts else None
            if outgoing is None:
                clean = clean | {key}
        return op, busy, resident, clean, incoming, outgoing, again


def tiny_step(rng):
    sizes = {key: rng.randint(1, 2) for key in range(5)}
    records = []
    alive = []
    for op in range(4):
        reads = rng.sample((0, 1, 2), rng.randint(1, 2))
        reads += [key for key in alive if rng.random() < 0.5]
        writes = [key for key in reads if rng.random() < 0.4]
        creates = []
        if op < 2 and rng.random() < 0.7:
            creates = [3 + op]
            alive.append(3 + op)
        frees = []
        if op == 3:
            frees, alive = alive, []
        records.append(
            record(rng.randint(1, 2), reads, creates, writes, frees, sizes)
        )
    return records


@functools.cache
def tiny_steps():
    rng = random.Random(7)
    return [tiny_step(rng) for _ in range(12)]


@pytest.mark.parametrize("links", [UNIT, HALF, FAIR])
@pytest.mark.parametrize("number", range(12))
def test_never_above_the_best_schedule(number, links):
    records = tiny_steps()[number]
    step = megabytes(records)
    need = int(step.operand_bytes.max()) // 1_000_000
    for budget in (need, need + 1):
        best = Machine(records, budget, links).shortest()
        window, fluid = bounds(records, budget, links)
        assert window <= best + 1e-6
        assert fluid <= best + 1e-6


# Steps in which running an op again is best, and which are searched quickly.
@pytest.mark.parametrize(
    "seed", [22, 63, 68, 111, 116, 136, 147, 151, 167, 168, 183, 194, 221]
)
def test_never_above_the_best_schedule_with_reruns(seed):
    records = tiny_step(random.Random(seed))
    budget = int(megabytes(records).operand_bytes.max()) // 1_000_000
    swapping = Machine(records, budget, UNIT).shortest()
    best = Machine(records, budget, UNIT, reruns=True).shortest()
    assert best < swapping
    assert joint(records, budget, UNIT) <= best + 1e-6


# ---- real traces ------------------------------------------------------------

# (budget divisor, least bound in ms, best plan known in ms): the bound may
# be made tighter, never looser, and no plan may ever be faster than it.
GOLDEN = {
    "resnet50_b256": [(1.25, 82.8, 84.0), (2, 207.3, 208.0), (4, 311.0, 312.0)],
    "llama_1.3b_fused_adamw": [
        (1.25, 418.2, 421.7),
        (2, 893.3, 901.0),
        (4, 1408.6, 1418.9),
    ],
    "llama_1.3b_foreach_adamw": [
        (1.25, 419.5, 422.9),
        (2, 954.6, 963.7),
        (4, 1477.9, 1494.9),
    ],
    "llama_1.3b_checkpointed_fused": [(1.25, 411.4, 411.6), (2, 542.4, 549.9)],
    "lora_7b": [(1.25, 295.2, 295.3), (2, 472.7, 477.1), (4, 796.9, 811.9)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_real_traces(name):
    step = Step.read(TRACES / f"{name}.jsonl.gz")
    for divisor, least, best in GOLDEN[name]:
        bound = lower_bound_ns(step, int(step.peak_bytes / divisor), STUDY)
        assert least <= bound / 1e6 <= best


# Where nothing may run again, nodes are what moves: the same bound.
@pytest.mark.slow
@pytest.mark.parametrize(("slots", "largest"), [(20, 4), (40, 20)])
def test_without_reruns_the_joint_bound_is_the_fluid_one(slots, largest):
    step = Step.read(TRACES / "resnet50_b256.jsonl.gz")
    for divisor in (1.25, 2, 4):
        budget = int(step.peak_bytes / divisor)
        fluid = fluid_bound_ns(step, budget, STUDY, slots, largest)
        joint_ns = joint_bound_ns(
            step, budget, STUDY, lambda name: False, slots, largest
        )
        assert joint_ns == pytest.approx(fluid, rel=2e-3)
        assert joint_ns <= fluid * (1 + 1e-6)  # what is small is free


def test_one_real_trace():
    step = Step.read(TRACES / "resnet50_b256.jsonl.gz")
    assert step.ops == 415
    assert step.peak_bytes == 11410321152
    assert step.compute_ns == pytest.approx(30443188, rel=1e-5)
    bound = fluid_bound_ns(step, step.peak_bytes // 4, STUDY, 40, 60)
    assert 309.5 <= bound / 1e6 <= 312.0
