"""Sparse tensors are made of dense ones, which move as any others do."""

import copy
import io
import pickle

import pytest
import torch
import torch_chameleon
from support import evicting, needs_testing, same_bits
from torch import nn
from torch.nn import functional as F  # noqa: N812

PAGERS = ("never", "all", "random")
INDICES = torch.tensor([[0, 3, 1, 3, 0], [2, 0, 1, 0, 3]])  # one comes twice


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sparse(device, dense_dim=0, seed=0):
    values = drawn(5, *(2,) * dense_dim, seed=seed)
    size = (5, 4) + (2,) * dense_dim
    return torch.sparse_coo_tensor(INDICES.to(device), values.to(device), size)


def dense(device, *shape, seed=1):
    return drawn(*shape, seed=seed).to(device)


def told(result):
    """All that a result says, as dense tensors and plain values."""
    if isinstance(result, (tuple, list)):
        return [fact for part in result for fact in told(part)]
    if not isinstance(result, torch.Tensor):
        return [result]
    tensor = result.detach()
    if tensor.layout == torch.strided:
        return [tensor]
    facts = [tensor.layout, tensor.shape, tensor.dtype]
    if tensor.layout == torch.sparse_coo:
        facts += [tensor.is_coalesced(), tensor.sparse_dim()]
        return [*facts, tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        facts += [tensor.crow_indices(), tensor.col_indices()]
    else:
        facts += [tensor.ccol_indices(), tensor.row_indices()]
    return [*facts, tensor.values()]


def same(native, ours):
    native, ours = told(native), told(ours)
    assert len(native) == len(ours)
    for one, other in zip(native, ours, strict=True):
        if isinstance(one, torch.Tensor):
            assert other.device.type == "chameleon"
            assert same_bits(one, other)
        else:
            assert one == other
    return True


def changed(change, dense_dim=0):
    """An op in place, of which the tensor is the result."""

    def act(device):
        x = sparse(device, dense_dim)
        change(x, device)
        return x

    return act


OPS = {
    "of parts": sparse,
    "without size": lambda d: torch.sparse_coo_tensor(
        INDICES.to(d), dense(d, 5)
    ),
    "device=": lambda d: torch.sparse_coo_tensor(
        INDICES, drawn(5), (5, 4), device=d
    ),
    "empty": lambda d: torch.empty(3, 4, layout=torch.sparse_coo, device=d),
    "zeros_like": lambda d: torch.zeros_like(sparse(d)),
    "to": lambda d: sparse("cpu").to(d),
    "to dtype": lambda d: sparse("cpu").to(d, torch.float64),
    "cpu and back": lambda d: sparse(d).cpu().to(d),
    "to_sparse": lambda d: dense(d, 4, 5).relu().to_sparse(),
    "to_sparse of one dim": lambda d: dense(d, 4, 5).to_sparse(1),
    "coalesce": lambda d: sparse(d, 1).coalesce(),
    "to_dense": lambda d: sparse(d, 1).to_dense(),
    "indices": lambda d: sparse(d).coalesce().indices(),
    "values": lambda d: sparse(d).coalesce().values(),
    "mm": lambda d: torch.sparse.mm(sparse(d), dense(d, 4, 3)),
    "mm of two": lambda d: torch.sparse.mm(sparse(d), sparse(d).t()),
    "addmm": lambda d: torch.sparse.addmm(
        dense(d, 5, 3), sparse(d), dense(d, 4, 3), beta=0.5, alpha=2
    ),
    "mv": lambda d: sparse(d) @ dense(d, 4),
    "bmm": lambda d: torch.bmm(
        dense(d, 2, 5, 4).relu().to_sparse(), dense(d, 2, 4, 3)
    ),
    "hspmm": lambda d: torch.hspmm(sparse(d), dense(d, 4, 3)),
    "dense by sparse": lambda d: dense(d, 3, 5) @ sparse(d),
    "add": lambda d: sparse(d) + sparse(d, seed=3) * 2,
    "add to dense": lambda d: torch.add(dense(d, 5, 4), sparse(d), alpha=-0.1),
    "sub": lambda d: sparse(d) - sparse(d, seed=3),
    "mul": lambda d: sparse(d) * sparse(d, seed=3),
    "mul by dense": lambda d: sparse(d) * dense(d, 5, 4),
    "mul by number": lambda d: sparse(d) * 0.3,
    "div": lambda d: sparse(d) / 3,
    "neg": lambda d: -sparse(d),
    "pow": lambda d: sparse(d).pow(2),
    "unary": lambda d: [
        f(sparse(d)) for f in (torch.sin, torch.abs, torch.tanh, torch.sqrt)
    ],
    "norm": lambda d: [sparse(d).norm(), sparse(d, 1).norm(1)],
    "sum": lambda d: [
        torch.sparse.sum(sparse(d)),
        torch.sparse.sum(sparse(d), 0),
    ],
    "softmax": lambda d: torch.sparse.softmax(sparse(d), 1),
    "index_select": lambda d: sparse(d).index_select(
        0, torch.tensor([3, 3, 0], device=d)
    ),
    "select": lambda d: sparse(d)[3],
    "narrow": lambda d: sparse(d).narrow_copy(0, 1, 3),
    "t": lambda d: sparse(d, 1).transpose(0, 1),
    "unsqueeze": lambda d: sparse(d).unsqueeze(0),
    "cat": lambda d: torch.cat([sparse(d), sparse(d, seed=3)], 1),
    "stack": lambda d: torch.stack([sparse(d), sparse(d, seed=3)]),
    "sparse_mask": lambda d: dense(d, 5, 4).sparse_mask(sparse(d).coalesce()),
    "clone": lambda d: sparse(d).clone(),
    "deepcopy": lambda d: copy.deepcopy(sparse(d)),
    "detach": lambda d: sparse(d).detach(),
    "facts": lambda d: [
        sparse(d).is_sparse,
        sparse(d)._nnz(),
        sparse(d).dense_dim(),
        sparse(d).is_pinned(),
        sparse(d).is_coalesced(),
    ],
    # in place
    "add_": changed(lambda x, d: x.add_(sparse(d, seed=3), alpha=0.1)),
    "mul_": changed(lambda x, d: x.mul_(3), 1),
    "mul_ by sparse": changed(lambda x, d: x.mul_(sparse(d, seed=3))),
    "div_": changed(lambda x, d: x.div_(3)),
    "neg_": changed(lambda x, d: x.neg_()),
    "coalesced, sin_": lambda d: sparse(d).coalesce().sin_(),
    "zero_": changed(lambda x, d: x.zero_()),
    "copy_": changed(lambda x, d: x.copy_(sparse(d, seed=3).coalesce())),
    "copy_ from the CPU": changed(lambda x, d: x.copy_(sparse("cpu", seed=3))),
    "resize": changed(lambda x, d: x.sparse_resize_((7, 8), 2, 0)),
    "resize and clear": changed(
        lambda x, d: x.sparse_resize_and_clear_((7, 8, 2), 2, 1)
    ),
    "values in place": changed(lambda x, d: x._values().add_(1)),
    "out=": changed(lambda x, d: torch.add(x, sparse(d, seed=3), out=x)),
}


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("name", OPS)
def test_op(name, pager):
    native = OPS[name]("cpu")
    with evicting(pager):
        assert same(native, OPS[name]("chameleon"))


@pytest.mark.parametrize("name", OPS)
def test_op_in_little_memory(name):
    """Of 8 KiB, which the operands of some ops take up."""
    native = OPS[name]("cpu")
    with torch_chameleon.config.patch(
        hbm_budget=8 << 10, oversubscription=1024
    ):
        assert same(native, OPS[name]("chameleon"))


# ---- parts


def test_parts_are_views_as_natively():
    """Some ops write a tensor's parts, and some give it others."""
    changes = {
        "mul_": lambda x: x.mul_(2),
        "sin_": lambda x: x.sin_(),
        "neg_": lambda x: x.neg_(),
        "zero_": lambda x: x.zero_(),
        "add_": lambda x: x.add_(x),
        "values": lambda x: x._values().add_(1),
    }
    for name, change in changes.items():
        results = []
        for device in ("cpu", "chameleon"):
            x = sparse(device).coalesce()
            values, version = x._values(), x._version
            change(x)
            results.append((x, values, x._version - version))
        assert same(*results), name


def test_every_byte_is_given_back():
    before = torch.chameleon.memory_allocated()
    x = sparse("chameleon", 1)
    y = x.coalesce()
    taken = torch.chameleon.memory_allocated() - before
    # int64 and float32, 5 elements and then 4 in the room of 5
    assert taken == 2 * (2 * 5 * 8) + 2 * (5 * 2 * 4)
    for _ in range(3):
        y.add_(x)
        x = x * 2
        (x + y).to_dense()
    del x, y
    assert torch.chameleon.memory_allocated() == before


def test_parts_leave_and_come_back():
    """One eviction and one fault of each of the two."""
    x = sparse("chameleon", 1)
    torch.chameleon.synchronize()
    with evicting("all"):
        before = torch_chameleon.swap_stats()
        x.mul_(2)
        after = torch_chameleon.swap_stats()
    assert after["faults"] - before["faults"] == 2


def test_what_does_not_fit_changes_nothing():
    x = torch.sparse_coo_tensor(
        torch.arange(1024).view(1, -1), torch.ones(1024), (1 << 20,)
    ).to("chameleon")
    native = x.cpu()
    with (
        torch_chameleon.config.patch(hbm_budget=1 << 20),
        pytest.raises(torch.OutOfMemoryError, match="aten::_to_dense"),
    ):
        x.to_dense()
    with (
        torch_chameleon.config.patch(hbm_budget=18 << 10),
        pytest.raises(torch.OutOfMemoryError, match="aten::add_"),
    ):
        x.add_(x)
    assert same(native, x)
    assert same(native * 2, x.mul_(2))


def test_without_a_kernel_one_sentence():
    with pytest.raises(NotImplementedError) as raised:
        sparse("chameleon").exp()
    assert str(raised.value).startswith("aten::exp: PyTorch has no kernel")
    assert "to_dense()" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_native_code_works_on_the_parts():
    x = sparse("chameleon")
    with (
        pytest.raises(ValueError, match="its indices and values"),
        torch_chameleon.resident(x),
    ):
        pass
    with torch_chameleon.resident(x._values()) as (values,):
        values.numpy()[:] = 7
    assert x.to_dense().sum().item() == 35


def test_mixed_devices_are_refused_as_by_cuda():
    with pytest.raises(RuntimeError, match="same device"):
        sparse("cpu") @ dense("chameleon", 4, 3)
    with pytest.raises(RuntimeError, match="same device"):
        sparse("chameleon") @ dense("cpu", 4, 3)
    with pytest.raises(RuntimeError, match="backend of indices"):
        torch.sparse_coo_tensor(INDICES, dense("chameleon", 5)).coalesce()


# ---- being kept


def test_print():
    text = repr(sparse("chameleon"))
    assert "chameleon" in text
    assert text.replace("\n", "").replace(" ", "").replace(
        "device='chameleon:0',", ""
    ) == repr(sparse("cpu")).replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.parametrize("way", ["pickle", "save", "save for the CPU"])
def test_save(way, layout):
    x = dense("chameleon", 4, 6).relu()
    x = x.to_sparse(
        layout=getattr(torch, f"sparse_{layout}"),
        blocksize=(2, 2) if layout.startswith("bs") else None,
    )
    if way == "pickle":
        assert same(x.cpu(), pickle.loads(pickle.dumps(x)))
        return
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    if way == "save":
        assert same(x.cpu(), torch.load(file))
    else:
        loaded = torch.load(file, map_location="cpu")
        assert loaded.device.type == "cpu"
        assert same(loaded, x)


# ---- gradients


def embedded(device, weight):
    index = torch.tensor([[1, 2, 1], [0, 3, 3]], device=device)
    return F.embedding(index, weight, sparse=True)


def bagged(mode, weights=False):
    def act(device, weight):
        return F.embedding_bag(
            torch.tensor([1, 2, 1, 3, 0], device=device),
            weight,
            torch.tensor([0, 2, 2], device=device),
            sparse=True,
            mode=mode,
            per_sample_weights=dense(device, 5) if weights else None,
        )

    return act


def backward_twice(device, weight, first, second):
    for act in (first, second):
        (act(device, weight).square().sum()).backward()


def squared(device, weight):
    return weight * 2


GRADIENTS = {
    "embedding": lambda d, w: embedded(d, w).square().sum().backward(),
    "bag of mean": lambda d, w: bagged("mean")(d, w).square().sum().backward(),
    "bag of sum": lambda d, w: bagged("sum", True)(d, w).sum().backward(),
    "sparse and sparse": lambda d, w: backward_twice(d, w, embedded, embedded),
    "sparse and dense": lambda d, w: backward_twice(d, w, embedded, squared),
    "dense and sparse": lambda d, w: backward_twice(d, w, squared, embedded),
    "in one graph": lambda d, w: (
        (embedded(d, w).sum() + (w * w).sum() + bagged("sum")(d, w).sum())
        .exp()
        .backward()
    ),
    "gather": lambda d, w: (
        torch.gather(
            w,
            0,
            torch.tensor([[1, 2, 1], [0, 0, 1]], device=d),
            sparse_grad=True,
        )
        .square()
        .sum()
        .backward()
    ),
}


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name, pager):
    results = []
    for device in ("cpu", "chameleon"):
        with evicting(pager if device == "chameleon" else "never"):
            weight = dense(device, 4, 3).requires_grad_()
            GRADIENTS[name](device, weight)
            results.append(weight.grad)
    assert same(*results)


@pytest.mark.parametrize("pager", PAGERS)
def test_derivatives_of_sparse_operands(pager):
    def act(device):
        x = sparse("cpu").coalesce().to(device).requires_grad_()
        w, b = (
            dense(device, *shape).requires_grad_() for shape in ((4, 3), (5, 3))
        )
        torch.sparse.addmm(b, x, w).square().sum().backward()
        y = dense(device, 5, 4).requires_grad_()
        (y.relu().to_sparse() * 3).to_dense().square().sum().backward()
        z = sparse("cpu").coalesce().to(device).requires_grad_()
        torch.sparse.softmax(z, 1).to_dense()[0].sum().backward()
        return x.grad, w.grad, b.grad, y.grad, z.grad

    native = act("cpu")
    with evicting(pager):
        assert same(native, act("chameleon"))


def test_gradients_are_not_copied():
    """The first one becomes `.grad` as it is, as natively."""
    weight = dense("chameleon", 4, 3).requires_grad_()
    before = torch.chameleon.memory_allocated()
    embedded("chameleon", weight).sum().backward()
    nnz = weight.grad._nnz()
    assert torch.chameleon.memory_allocated() - before == nnz * (8 + 3 * 4)


def test_zero_grad():
    results = []
    for device in ("cpu", "chameleon"):
        weight = nn.Parameter(dense(device, 4, 3))
        optimizer = torch.optim.SGD([weight], 0.1)
        embedded(device, weight).sum().backward()
        optimizer.zero_grad(set_to_none=False)
        kept = weight.grad.clone()
        embedded(device, weight).sum().backward()
        results.append((kept, weight.grad))
    assert same(*results)


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_as_natively(clip):
    """Which has no kernel for the norm, and one for the value's bounds."""
    errors = []
    for device in ("cpu", "chameleon"):
        weight = dense(device, 4, 3).requires_grad_()
        embedded(device, weight).sum().backward()
        with pytest.raises(NotImplementedError) as raised:
            getattr(nn.utils, clip)([weight], 0.5)
        errors.append(str(raised.value))
    ops = [text.split("aten::")[1].split("'")[0] for text in errors]
    assert ops[1].split(":")[0] == ops[0]


def test_hooks_and_scaled_gradients():
    """Hooks see them, and GradScaler unscales their values."""

    def act(device):
        torch.manual_seed(0)
        table = nn.EmbeddingBag(8, 4, sparse=True, mode="sum")
        head = nn.Linear(4, 1)
        for module in (table, head):
            module.to(device)
        seen = []
        table.weight.register_hook(lambda g: seen.append(g.is_sparse) or g * 2)
        table.weight.register_post_accumulate_grad_hook(
            lambda p: seen.append(p.grad._nnz())
        )
        optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()])
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        for _ in range(2):
            optimizer.zero_grad()
            rows = torch.tensor([1, 2, 1, 4], device=device)
            with torch.autocast(device, dtype=torch.bfloat16):
                y = head(table(rows, torch.tensor([0, 2], device=device)))
            scaler.scale(y.float().square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return *seen, table.weight, head.weight, table.weight.grad

    assert same(act("cpu"), act("chameleon"))


def test_deterministic():
    def act(device):
        x = sparse(device, 1)
        weight = dense(device, 4, 3).requires_grad_()
        embedded(device, weight).square().sum().backward()
        return x.coalesce(), x.to_dense(), weight.grad.coalesce()

    torch.use_deterministic_algorithms(True)
    try:
        assert same(act("cpu"), act("chameleon"))
    finally:
        torch.use_deterministic_algorithms(False)


# ---- modules and optimizers


def test_module_with_sparse_gradients_moves():
    table = nn.Embedding(4, 3, sparse=True)
    embedded("cpu", table.weight).square().sum().backward()
    gradient, native = table.weight.grad, table.weight.grad.clone()
    table.to("chameleon")
    assert table.weight.grad is gradient
    assert same(native, gradient)
    table.double()
    assert same(native.double(), gradient)
    table.float().cpu()
    assert gradient.device.type == "cpu"
    assert same_bits(gradient._values(), native._values())


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.1, foreach=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adagrad, foreach": lambda p: torch.optim.Adagrad(p, 0.1, foreach=True),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, 0.1),
}


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name, pager):
    """Some steps, then on from what was saved."""

    def act(device):
        weights = [nn.Parameter(dense(device, 4, 3, seed=s)) for s in (1, 2)]
        make = OPTIMIZERS[name]
        optimizer = make(weights)
        for step in range(4):
            if step == 2:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer = make(weights)
                optimizer.load_state_dict(torch.load(file))
            optimizer.zero_grad()
            sum(embedded(device, w).square().sum() for w in weights).backward()
            optimizer.step()
        return [
            *(w.detach() for w in weights),
            *(w.grad for w in weights),
            *(
                value
                for w in weights
                for key, value in sorted(optimizer.state[w].items())
                if isinstance(value, torch.Tensor) and key != "step"
            ),
        ]

    native = act("cpu")
    with evicting(pager):
        assert same(native, act("chameleon"))


@needs_testing
def test_time_that_is_modelled(fresh):
    """A model of time asks what an op touches, of tensors without strides."""
    code = """
import torch, torch_chameleon
from torch_chameleon import _testing, config
config.physical_device = "cpu"
_testing.set_cpu_clock("rtx3090")
x = torch.eye(4).view(4, 4)
ones = torch.ones(4, 2, device="chameleon")
for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
    print((sparse.to("chameleon") @ ones).sum().item(), end=" ")
print(x.to_sparse_bsr((2, 2)).to("chameleon").to_dense().sum().item())
"""
    assert fresh(code) == "8.0 8.0 8.0 4.0"
