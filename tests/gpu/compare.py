"""Runs workloads natively or on chameleon, and compares every bit.

    python compare.py native|here FOLDER PLACE WORKLOAD...

Two processes, which may run at a time: PyTorch differentiates for one kind of
accelerator a process, and the native one never imports torch_chameleon. It
computes everything twice; what differs then is not compared but counted, as
`unstable` (sums by atomic additions), and leaves its results in FOLDER. The
other one takes them up as they come. On chameleon each workload runs without a
limit, to learn its peak, then with budgets of that peak divided by 2 and 4,
then once more, to show that it repeats. Budgets under 16 MiB are no budgets:
there all tensors are evicted before every op. Each run is one JSON line.
"""

import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import lease_workloads as workloads
import places
import torch
from deadline import ENDED, Journal

FACTORS = (1.0, 2.0, 4.0, 4.0)
SMALLEST = 16 << 20
SHOWN = 20
COUNTERS = ("peak_resident_bytes", "faults", "evictions", "host_waits")
COUNTERS += ("foreign_bytes", "pageable_bytes", "pinning_refusals")


def quiet():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def lost():
    """Ends the process: after this error no call to the GPU succeeds in it."""
    traceback.print_exc()
    os.abort()


def native(folder, place, names):
    """Leaves each workload's results, None if it fails; whether none did."""
    places.begin_native(place)
    journal = Journal(folder / "native.journal")
    good = True
    for name in names:
        path = folder / f"{name}.pt"
        if path.exists():
            continue
        row, kept = {"workload": name, "side": "native"}, None
        try:
            if name in journal.known:
                raise RuntimeError(f"{name} ended its process")
            journal.begin(name)
            kept = twice(getattr(workloads, name), places.NATIVE[place])
            row["results"] = len(kept["values"])
            row["unstable"] = names_of(kept["values"], kept["unstable"])[:SHOWN]
        except torch.AcceleratorError:
            lost()
        except Exception:
            row["error"], good = traceback.format_exc(limit=-3), False
        part = folder / "native.part"
        torch.save(kept, part)
        part.rename(path)
        print(json.dumps(row), flush=True)
    return good


def twice(workload, device):
    """What it computes, and which results differ from one time to the next."""
    values, again = workload(device), workload(device)
    pairs = enumerate(zip(values, again, strict=True))
    return {
        "values": values,
        "unstable": [i for i, pair in pairs if not same(*pair)],
    }


def here(folder, place, names):
    """Compares with what `native` left; whether all is the same."""
    places.begin(place)
    journal = Journal(folder / "here.journal")
    good = True
    for name in names:
        path = folder / f"{name}.pt"
        while not path.exists() and not (folder / ENDED).exists():
            time.sleep(0.02)
        expected = torch.load(path) if path.exists() else None
        if expected is None or name in journal.known:
            continue
        journal.begin(name)
        good = compared(name, expected) and good
    return good


def compared(name, expected):
    """Runs a workload within each budget; whether all bits are native's."""
    import torch_chameleon
    from torch_chameleon import _testing

    peak, good = 0, True
    for factor in FACTORS:
        row = {"workload": name, "side": "here", "k": factor}
        try:
            budget = int(peak / factor)
            torch_chameleon.config.hbm_budget = (
                max(SMALLEST, budget) if peak else None
            )
            # Where little is enough all tensors leave before every op.
            is_little = peak and budget < SMALLEST
            torch.chameleon.init()
            _testing.set_stress("all" if is_little else "never", 0)
            torch_chameleon.reset_swap_stats()
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                values = getattr(workloads, name)("chameleon")
            row["warned"] = ours_of(warned)
            torch.chameleon.synchronize()
            torch_chameleon._C.check_invariants(0, 2)
            stats = torch_chameleon.swap_stats()
            peak = peak or stats["peak_resident_bytes"]
            different = list(differences(values, **expected))
            row["compared"] = len(values) - len(expected["unstable"])
            row["different"] = different[:SHOWN]
            row |= {key: stats[key] for key in COUNTERS}
            good = good and not different
        except torch.AcceleratorError:
            lost()
        except Exception:
            row["error"], good = traceback.format_exc(limit=-3), False
        print(json.dumps(row), flush=True)
    return good


def ours_of(warned):
    """What chameleon warned of: of another plan of cuDNN's, say."""
    texts = {str(each.message) for each in warned}
    return sorted(text for text in texts if "chameleon" in text)


def differences(ours, values, unstable):
    """Names of the results that are not native's."""
    if len(ours) != len(values):
        yield f"{len(ours)} results, {len(values)} natively"
    left_out = set(unstable)
    for i, pair in enumerate(zip(ours, values, strict=False)):
        if i not in left_out and not same(*pair):
            yield from names_of(ours, [i])


def names_of(values, indices):
    return [f"result {i} of {len(values)}" for i in indices]


def same(one, other):
    if not isinstance(one, torch.Tensor):
        return one == other
    if not isinstance(other, torch.Tensor):
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bits(one), bits(other))


def bits(tensor):
    plain = tensor.resolve_conj().resolve_neg().contiguous().flatten()
    return plain.view(torch.uint8) if plain.numel() else plain


def main():
    side, folder, place, *names = sys.argv[1:]
    quiet()
    good = {"native": native, "here": here}[side](Path(folder), place, names)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
