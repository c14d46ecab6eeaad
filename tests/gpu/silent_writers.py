"""Which ops change an operand although their schema says that they read it.

    python tests/gpu/silent_writers.py [--on cuda|cpu|emulated] [--samples n]
        [--seconds s]

A host copy of a tensor is good until an op writes the tensor, so chameleon must
know each of them (kernels/device_rules.cpp). Natively, operands that the schema
does not write are compared before and after every op: of PyTorch's database of
operators, forward and backward, and on a GPU of the workloads, which have
cuDNN's layers. On an emulated GPU operators are the CPU's, and cuDNN's a
stand-in that writes what is known: its layers show that they would be found.
After the seconds no further operator begins; their order is a shuffled one.
Fails where an op changes an operand and chameleon does not know.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time

import lease_workloads as workloads
import places
import rows
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watch(TorchDispatchMode):
    """Collects the (op, argument) that changed without announcement."""

    def __init__(self):
        super().__init__()
        self.changed = set()
        self.calls = self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        read, written = [], set()
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info and argument.alias_info.is_write
            for tensor in tensors(value):
                if tensor.layout != torch.strided:
                    continue
                if writes:
                    written.add(tensor.untyped_storage()._cdata)
                else:
                    read.append((argument.name, tensor, bits(tensor)))
        result = func(*args, **kwargs)
        self.calls += 1
        for name, tensor, before in read:
            if tensor.untyped_storage()._cdata in written:
                continue
            if not torch.equal(bits(tensor), before):
                self.changed.add((func._schema.name, name))
        return result


def tensors(tree):
    return [
        leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)
    ]


def bits(tensor):
    """A copy of all elements in a row, as bytes."""
    row = tensor.flatten().clone(memory_format=torch.contiguous_format)
    return row.resolve_conj().resolve_neg().view(torch.uint8)


def operators(device, count, end):
    """Runs samples of the database, forward and backward; of how many ops."""
    ops = workloads.operators()
    random.Random(0).shuffle(ops)
    for number, op in enumerate(ops):
        if time.monotonic() > end:
            return number
        if torch.float32 not in op.supported_dtypes(device):
            continue
        grad = op.supports_autograd
        samples = op.sample_inputs_func(op, "cpu", torch.float32, grad)
        try:
            for sample in itertools.islice(samples, count):
                _run(op, workloads.moved(sample, device))
        except Exception:
            continue  # what native refuses writes nothing
    return len(ops)


def _run(op, sample):
    results = [
        result
        for result in tensors(op(sample.input, *sample.args, **sample.kwargs))
        if result.requires_grad
    ]
    if results:
        roots = [each.abs() if each.is_complex() else each for each in results]
        sum(root.sum() for root in roots).backward()


def watched(place, count, seconds):
    end = time.monotonic() + seconds
    places.begin_native(place)
    device = places.NATIVE[place]
    watch = Watch()
    with watch:
        if device == "cuda":  # the CPU would take minutes
            for name in rows.SILENT_WRITERS[place]:
                getattr(workloads, name)(device)
        if place != "emulated":  # its operators are the CPU's
            watch.operators = operators(device, count, end)
    return watch


def unknown(changed):
    """Those that chameleon does not know; asked in a process of its own."""
    code = "import json, sys; from torch_chameleon import _testing\n"
    code += "print(json.dumps([row for row in json.loads(sys.argv[1])"
    code += " if not _testing.writes_unannounced(*row)]))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(changed)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="cuda", choices=places.PLACES)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    watch = watched(given.on, given.samples, given.seconds)
    changed = sorted(map(list, watch.changed))
    missed = unknown(changed)
    row = {"finding": "silent_writers", "calls": watch.calls}
    row["of"] = watch.operators
    row |= {"changed": changed, "unknown": missed}
    print(json.dumps(row), flush=True)
    os._exit(1 if missed else 0)  # threads may still let go of the mode


if __name__ == "__main__":
    main()
