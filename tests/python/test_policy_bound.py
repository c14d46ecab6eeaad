"""The lower bound: pencil and paper, brute force on tiny steps, real traces."""

import functools
import heapq
import itertools
import math
import pathlib
import random

import pytest
from bound import (
    Links,
    Step,
    Storage,
    fluid_bound_ns,
    lower_bound_ns,
    window_bound_ns,
)

TRACES = pathlib.Path(__file__).parents[1] / "benchmarks/policy/traces"
UNIT = Links(1e9, 1e9, 2e9)  # one byte a nanosecond, each way
HALF = Links(1e9, 1e9, 1e9)  # one way at a time
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


def test_what_is_overwritten_need_not_come_in():
    # Written one after the other, then read so: of 40 at most 20 stay.
    sizes = dict.fromkeys(range(4), 10)
    step = [record(1, writes=[key]) for key in range(4)]
    step += [record(1, [key], sizes=sizes) for key in range(4)]
    step = step[4:] + step[:4]
    assert bounds(step, 20, HALF)[0] == pytest.approx(40)
    assert bounds(step, 40, HALF) == [8, 8]


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

    Sizes and durations are small whole numbers, a link moves a unit of bytes
    in a unit of time, a copy is never broken off, steps begin with idle links.
    """

    def __init__(self, records, budget, one_way_at_a_time):
        self.records = records
        self.budget = budget
        self.one_way = one_way_at_a_time
        self.sizes = {}
        for entry in records:
            self.sizes.update(entry["in"])
            self.sizes.update(entry["out"])
        created = {k for entry in records for k, _ in entry["out"]}
        self.persistent = sorted(self.sizes.keys() - created)

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
        start = (0, 0, resident, clean, None, None)
        goal = (len(self.records), 0, resident, clean, None, None)
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
        op, busy, resident, clean, incoming, outgoing = state
        entry = self.records[op] if op < len(self.records) else None
        free = self.budget - self.used(resident, incoming, op, busy)
        working = set()
        if entry and busy:
            working = {k for k, _ in entry["in"]} | set(entry["write"])
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
                    ),
                )
        for key in resident - working:
            if key in clean and not (outgoing and outgoing[0] == key):
                yield 0, (op, busy, resident - {key}, clean, incoming, outgoing)
            elif key not in clean and outgoing is None:
                out = (key, self.sizes[key])
                yield 0, (op, busy, resident, clean, incoming, out)
        if incoming is None:
            for key in clean - resident:
                if self.sizes[key] <= free:
                    coming = (key, self.sizes[key])
                    yield 0, (op, busy, resident, clean, coming, outgoing)
        # a unit of time passes
        ways = [(True, True)]
        if self.one_way and incoming and outgoing:
            ways = [(True, False), (False, True)]
        for moves_in, moves_out in ways:
            if not (busy or incoming or outgoing):
                break
            yield 1, self.tick(state, moves_in, moves_out)

    def tick(self, state, moves_in, moves_out):
        op, busy, resident, clean, incoming, outgoing = state
        if busy:
            busy -= 1
            if busy == 0:
                gone = set(self.records[op]["free"])
                resident, clean = resident - gone, clean - gone
                op += 1
                if outgoing and outgoing[0] in gone:
                    outgoing = None
        if incoming and moves_in:
            key, left = incoming
            incoming = (key, left - 1) if left > 1 else None
            if incoming is None:
                resident = resident | {key}
        if outgoing and moves_out:
            key, left = outgoing
            outgoing = (key, left - 1) if left > 1 else None
            if outgoing is None:
                clean = clean | {key}
        return op, busy, resident, clean, incoming, outgoing


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


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("number", range(12))
def test_never_above_the_best_schedule(number, one_way):
    records = tiny_steps()[number]
    step = megabytes(records)
    links = HALF if one_way else UNIT
    need = int(step.operand_bytes.max()) // 1_000_000
    for budget in (need, need + 1):
        best = Machine(records, budget, one_way).shortest()
        window, fluid = bounds(records, budget, links)
        assert window <= best + 1e-6
        assert fluid <= best + 1e-6


# ---- real traces ------------------------------------------------------------

# (budget divisor, least bound in ms, best plan known in ms): the bound may
# be made tighter, never looser, and no plan may ever be faster than it.
GOLDEN = {
    "resnet50_b256": [(1.25, 81.8, 84.2), (2, 206.0, 208.0), (4, 309.9, 312.0)],
    "llama_1.3b_fused_adamw": [
        (1.25, 418.0, 422.0),
        (2, 873.5, 902.0),
        (4, 1389.0, 1422.0),
    ],
    "llama_1.3b_foreach_adamw": [
        (1.25, 419.0, 423.0),
        (2, 932.5, 964.0),
        (4, 1448.0, 1501.0),
    ],
    "llama_1.3b_checkpointed_fused": [(1.25, 411.0, 412.0), (2, 531.0, 557.0)],
    "lora_7b": [(1.25, 295.0, 295.5), (2, 469.0, 479.0), (4, 779.0, 812.0)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_real_traces(name):
    step = Step.read(TRACES / f"{name}.jsonl.gz")
    for divisor, least, best in GOLDEN[name]:
        bound = lower_bound_ns(step, int(step.peak_bytes / divisor), STUDY)
        assert least <= bound / 1e6 <= best


def test_one_real_trace():
    step = Step.read(TRACES / "resnet50_b256.jsonl.gz")
    assert step.ops == 415
    assert step.peak_bytes == 11410321152
    assert step.compute_ns == pytest.approx(30443188, rel=1e-5)
    bound = fluid_bound_ns(step, step.peak_bytes // 4, STUDY)
    assert 309.5 <= bound / 1e6 <= 312.0
