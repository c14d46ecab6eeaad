"""The sparse databases: each entry does what it does natively.

For each layout of each entry: samples are moved to the device; dense tensors
on the device are made sparse; results are differentiated; and, of several
operands, one after the other is dense and on the device while the others stay
where they are, which is a mix of devices. Sparse results are compared in their
indices and values, with all that tells two tensors apart.
"""

import itertools

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from conformance.harness.pagers import PAGERS
from conformance.harness.parity_cases import dtype_of
from conformance.harness.placing import Placer
from conformance.harness.samples import samples_of, seeded
from conformance.harness.suite import Suite

LAYOUTS = {
    torch.sparse_coo: "coo",
    torch.sparse_csr: "csr",
    torch.sparse_csc: "csc",
    torch.sparse_bsr: "bsr",
    torch.sparse_bsc: "bsc",
}
ENTRIES = {
    op.formatted_name: op
    for op in op_db
    if any(map(op.supports_sparse_layout, LAYOUTS))
}
SAMPLES = 4  # of each layout, by default


def to_layout(tensor, layout):
    blocked = layout in (torch.sparse_bsr, torch.sparse_bsc)
    size = (1, 1) if blocked else None
    return tensor.to_sparse(layout=layout, blocksize=size)


def sparse_samples(op, layout):
    """The entry's own; where it has none, its dense ones with sparse inputs."""
    dtype = dtype_of(op)
    make = getattr(op, f"sample_inputs_sparse_{LAYOUTS[layout]}_func")
    if make.__name__ != "_sample_inputs_unspecified":
        yield from seeded(make(op, "cpu", dtype, False))
        return
    for sample in samples_of(op, dtype):
        given = sample.input
        if isinstance(given, torch.Tensor) and given.dim() == 2:
            yield SampleInput(
                to_layout(given, layout), args=sample.args, kwargs=sample.kwargs
            )


def parts(tensor):
    """What a sparse tensor is made of, and the tensor itself."""
    plain = tensor.detach()
    if plain.layout == torch.sparse_coo:
        indices = (plain._indices(),)
    elif plain.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = (plain.crow_indices(), plain.col_indices())
    elif plain.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = (plain.ccol_indices(), plain.row_indices())
    else:
        return (tensor,)
    coo = plain.layout == torch.sparse_coo
    values = plain._values() if coo else plain.values()
    return (tensor, coo and plain.is_coalesced(), *indices, values)


def call(op, leaves, structure):
    given, args, kwargs = tree_unflatten(leaves, structure)
    return tree_map(
        lambda t: parts(t) if isinstance(t, torch.Tensor) else t,
        op(given, *args, **kwargs),
    )


def moved(op, leaves, structure):
    yield lambda device: call(op, Placer(device)(leaves), structure)


def made(op, leaves, structure, layout):
    """The first operand is made sparse on the device."""

    def action(device):
        first, *rest = Placer(device)(leaves)
        return call(op, [to_layout(first.to_dense(), layout), *rest], structure)

    if isinstance(leaves[0], torch.Tensor) and leaves[0].dim() >= 2:
        yield action


def differentiated(op, leaves, structure):
    """By the operands that are floating point; gradients may be sparse."""

    def action(device):
        placed = [
            leaf.detach().requires_grad_()
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            else leaf
            for leaf in Placer(device)(leaves)
        ]
        given, args, kwargs = tree_unflatten(placed, structure)
        result = op(given, *args, **kwargs)
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            return None
        if result.layout != torch.strided:
            result = result.to_dense()
        inputs = [
            leaf
            for leaf in placed
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        gradients = torch.autograd.grad(
            result, inputs, torch.ones_like(result), allow_unused=True
        )
        return [None if g is None else parts(g) for g in gradients]

    yield action


def mixed(op, leaves, structure):
    where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    for one in where if len(where) > 1 else ():

        def action(device, one=one):
            placed = list(leaves)
            placed[one] = placed[one].to_dense().to(device)
            return call(op, placed, structure)

        yield action


def run(name, limit):
    op, suite = ENTRIES[name], Suite("sparse")
    for layout in filter(op.supports_sparse_layout, LAYOUTS):
        checks = ("moved", "made", "differentiated", "mixed")
        actions = {check: [] for check in checks}
        for sample in itertools.islice(sparse_samples(op, layout), limit):
            given = tree_flatten((sample.input, sample.args, sample.kwargs))
            actions["moved"] += moved(op, *given)
            actions["made"] += made(op, *given, layout)
            actions["differentiated"] += differentiated(op, *given)
            actions["mixed"] += mixed(op, *given)
        for check, of_check in actions.items():
            suite.case(
                name,
                f"{check} {LAYOUTS[layout]}",
                dtype_of(op),
                of_check,
                ["never"] if check == "mixed" else PAGERS,
                complete=limit is None,
            )
    suite.verify()


@pytest.mark.sample
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_op(name):
    run(name, SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_op(name):
    run(name, None)
