"""Runs one workload natively and on chameleon, and compares every bit.

    python tests/gpu/compare.py [workload...]

The native run has a process of its own, which never imports torch_chameleon:
PyTorch differentiates for one kind of accelerator a process. On chameleon each
workload runs without a limit, to learn its peak, then with budgets of that
peak divided by 1.25, 2 and 4, then once more, to show that it repeats.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import workloads

FACTORS = (1.0, 1.25, 2.0, 4.0, 4.0)
SMALLEST = 16 << 20


def quiet():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def native(name, path):
    quiet()
    torch.save(getattr(workloads, name)("cuda"), path)


def here(name, path):
    import torch_chameleon

    quiet()
    torch_chameleon.config.physical_device = "cuda"
    torch_chameleon.config.oversubscription = 64
    expected = torch.load(path)
    peak = 0
    for factor in FACTORS:
        if factor > 1:
            budget = max(SMALLEST, int(peak / factor))
            torch_chameleon.config.hbm_budget = budget
        torch_chameleon.reset_swap_stats()
        values = getattr(workloads, name)("chameleon")
        torch.chameleon.synchronize()
        torch_chameleon._C.check_invariants(0, 2)
        stats = torch_chameleon.swap_stats()
        peak = peak or stats["peak_resident_bytes"]
        different = list(differences(values, expected))
        row = {
            "workload": name,
            "k": factor,
            "compared": len(expected),
            "different": different[:8],
            "peak_resident_bytes": stats["peak_resident_bytes"],
            "faults": stats["faults"],
            "evictions": stats["evictions"],
            "host_waits": stats["host_waits"],
            "foreign_bytes": stats["foreign_bytes"],
        }
        print(json.dumps(row), flush=True)
        if different:
            raise SystemExit(1)


def differences(values, expected):
    if len(values) != len(expected):
        yield f"{len(values)} results, {len(expected)} natively"
    for i, (one, other) in enumerate(zip(values, expected, strict=False)):
        if not same(one, other):
            yield one[0] if isinstance(one, tuple) else f"result {i}"


def same(one, other):
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if not isinstance(one, torch.Tensor):
        return one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bits(one), bits(other))


def bits(tensor):
    plain = tensor.resolve_conj().resolve_neg().contiguous().flatten()
    return plain.view(torch.uint8) if plain.numel() else plain


def run(name):
    """Whether chameleon's bits are native's."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "native.pt")
        for side in ("native", "here"):
            done = subprocess.run(
                [sys.executable, __file__, f"--{side}", name, path], check=False
            )
            if done.returncode != 0:
                print(f"{name}: {side} ended with {done.returncode}")
                return False
    return True


def main():
    if sys.argv[1:2] in (["--native"], ["--here"]):
        return (native if sys.argv[1] == "--native" else here)(*sys.argv[2:])
    names = sys.argv[1:] or [each.__name__ for each in workloads.ALL]
    outcomes = {name: run(name) for name in names}
    passed = sum(outcomes.values())
    failed = [name for name, good in outcomes.items() if not good]
    print(f"{passed} passed, {len(failed)} failed", *failed)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
