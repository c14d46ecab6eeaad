"""PyTorch's database of operators, one by one, natively or on chameleon.

    python operators.py native|here FOLDER PLACE SECONDS [PREFIX...]

Two processes, which may run at a time, as compare.py's: the native one computes
each operator twice and leaves what it gives in FOLDER, as hashes; the other one
follows it, with all tensors evicted before every op, and prints what differs.
The order is a shuffled one that is always the same, so that what there was time
for is a sample. After SECONDS each ends by itself; called again, it goes on
where it stopped, behind an operator that ended its process. With PREFIX only
operators of these names.
"""

import hashlib
import json
import random
import sys
import time
from pathlib import Path

import lease_workloads as workloads
import places
import torch
from compare import bits, lost, quiet
from deadline import ENDED, Journal

RESULTS = "operators.jsonl"


def digest(value):
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.detach().cpu()
    kind = repr((tuple(plain.shape), plain.dtype)).encode()
    data = bits(plain).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(data + kind).hexdigest()[:16]


def outcome(op, device):
    """What an operator gives for the first samples, as hashes.

    An error is its type's name: the same must be refused.
    """
    found = []
    for sample in workloads.samples(op):
        there = workloads.moved(sample, device)
        torch.manual_seed(10)
        try:
            result = op(there.input, *there.args, **there.kwargs)
            parts = torch.utils._pytree.tree_leaves(result)
            found.append([digest(p) for p in parts if torch.is_tensor(p)])
        except torch.AcceleratorError:
            lost()
        except Exception as error:
            found.append([type(error).__name__])
    return found


def shuffled(prefixes):
    ops = workloads.operators(tuple(prefixes))
    random.Random(0).shuffle(ops)
    return ops


class Expected:
    """Follows what the native process writes."""

    def __init__(self, folder, end):
        self._path, self._ended = folder / RESULTS, folder / ENDED
        self._end = end
        self._known, self._file, self._part = {}, None, ""

    def of(self, name):
        """(values, whether they repeat); None if there is none in time."""
        while name not in self._known:
            # In this order: what was written before it ended is read.
            is_over = self._ended.exists() or time.monotonic() > self._end
            if not self._read() and is_over:
                return None
        return self._known[name]

    def _read(self):
        """Takes up a line; whether there was one."""
        if self._file is None and self._path.exists():
            self._file = self._path.open()
        self._part += self._file.readline() if self._file else ""
        if not self._part.endswith("\n"):
            time.sleep(0.01)
            return False
        name, *rest = json.loads(self._part)
        self._known[name], self._part = rest, ""
        return True


def native(folder, place, end, prefixes):
    places.begin_native(place)
    journal = Journal(folder / "native_operators.journal")
    device = places.NATIVE[place]
    path = folder / RESULTS
    text = path.read_text() if path.exists() else ""
    told = {json.loads(line)[0] for line in text.splitlines()}
    with path.open("a") as file:
        for op in shuffled(prefixes):
            if time.monotonic() > end:
                break
            name = op.full_name
            if name in told:
                continue
            values = again = None  # it ended its process
            if name not in journal.known:
                journal.begin(name)
                values, again = outcome(op, device), outcome(op, device)
            row = [name, values, values is not None and values == again]
            file.write(json.dumps(row) + "\n")
            file.flush()
    return True


def here(folder, place, end, prefixes):
    import torch_chameleon
    from torch_chameleon import _testing

    places.begin(place)
    torch_chameleon.config.hbm_budget = "64MiB"
    torch.chameleon.init()
    _testing.set_stress("all", 0)
    journal = Journal(folder / "here_operators.journal")
    expected = Expected(folder, end)
    counts = dict.fromkeys(("same", "unstable", "different"), 0)
    for op in shuffled(prefixes):
        name = op.full_name
        if name in journal.known:
            continue
        native_one = None if time.monotonic() > end else expected.of(name)
        if native_one is None:
            break
        journal.begin(name)
        values, is_stable = native_one
        ours = outcome(op, "chameleon")
        kind = "same" if ours == values else "different"
        if kind == "different" and is_stable:
            row = {"operator": name, "native": values, "here": ours}
            print(json.dumps(row), flush=True)
        elif kind == "different":
            kind = "unstable"
        counts[kind] += 1
        if sum(counts.values()) % 50 == 0:
            print(json.dumps({"operators": counts}), flush=True)
            counts = dict.fromkeys(counts, 0)
    torch.chameleon.synchronize()
    torch_chameleon._C.check_invariants(0, 2)
    print(json.dumps({"operators": counts}), flush=True)
    return counts["different"] == 0


def main():
    side, folder, place, seconds, *prefixes = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    quiet()
    run = {"native": native, "here": here}[side]
    good = run(Path(folder), place, end, prefixes)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
