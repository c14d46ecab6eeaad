"""A recommender with sparse gradients, whose tables do not fit.

As DLRM: bags of categories from large tables, a bottom and a top MLP, and the
dot products of everything with everything between. A step reads and writes a
few rows of each table, and the gradients are those rows only.
"""

import io
import json
import os
import pathlib
import sys

import pytest
import torch
import torch_chameleon
from support import evicting, same_bits
from torch import nn
from trainings import budget

TABLES, ROWS, WIDTH = 8, 4096, 16
TABLE_BYTES = ROWS * WIDTH * 4
BATCH, DENSE, STEPS = 16, 13, 4
# All tables together are four times that; one and its optimizer state fit.
BUDGET = TABLES * TABLE_BYTES // 4


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
            for _ in range(TABLES)
        )
        self.bottom = nn.Sequential(
            *(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        )
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(
            *(nn.Linear(WIDTH + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        )

    def forward(self, numbers, categories):
        x = self.bottom(numbers)
        features = torch.stack(
            [
                x,
                *(
                    table(*bag)
                    for table, bag in zip(self.tables, categories, strict=True)
                ),
            ],
            dim=1,
        )
        products = features @ features.transpose(1, 2)
        i, j = torch.tril_indices(
            TABLES + 1, TABLES + 1, offset=-1, device=x.device
        )
        return self.top(torch.cat([x, products[:, i, j]], dim=1)).squeeze(1)


def batches(device):
    draws = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        numbers = torch.randn(BATCH, DENSE, generator=draws)
        categories = []
        for _ in range(TABLES):
            counts = torch.randint(1, 5, (BATCH,), generator=draws)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts])
            rows = torch.randint(ROWS, (int(counts.sum()),), generator=draws)
            categories.append(
                (rows.to(device), offsets.cumsum(0)[:-1].to(device))
            )
        clicks = torch.randint(2, (BATCH,), generator=draws).float()
        yield numbers.to(device), categories, clicks.to(device)


OPTIMIZERS = {
    "sgd": lambda tables, rest: [torch.optim.SGD([*tables, *rest], lr=0.1)],
    "adagrad": lambda tables, rest: [
        torch.optim.Adagrad([*tables, *rest], lr=0.05)
    ],
    "sparse_adam": lambda tables, rest: [
        torch.optim.SparseAdam(tables, lr=0.01),
        torch.optim.Adam(rest, lr=0.01, foreach=True),
    ],
}


def train(device, name):
    """Returns all that is left, by name, on the CPU."""
    torch.manual_seed(0)
    model = Recommender().to(device)
    optimizers = OPTIMIZERS[name](
        list(model.tables.parameters()),
        [*model.bottom.parameters(), *model.top.parameters()],
    )
    left = {}
    for step, (numbers, categories, clicks) in enumerate(batches(device)):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(numbers, categories), clicks
        )
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        left[f"loss {step}"] = loss.detach().cpu()
    for key, parameter in model.named_parameters():
        left[key] = parameter.detach().cpu()
        left[f"{key} gradient"] = parameter.grad.cpu()
    for i, optimizer in enumerate(optimizers):
        for number, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    left[f"{i} {number} {key}"] = value.cpu()
    return left


@pytest.fixture(scope="module")
def native():
    """Each training once on the CPU."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = train("cpu", name)
        return known[name]

    return of


def differences(native, ours):
    assert native.keys() == ours.keys()

    def same(a, b):
        if a.layout != torch.sparse_coo:
            return b.layout == a.layout and same_bits(a, b)
        return (
            b.layout == a.layout
            and a.is_coalesced() == b.is_coalesced()
            and same_bits(a._indices(), b._indices())
            and same_bits(a._values(), b._values())
        )

    return [key for key in native if not same(native[key], ours[key])]


@pytest.mark.parametrize("policy", ["lru", "forecast"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_of_four_budgets(name, policy, native):
    before = torch.chameleon.memory_allocated()
    with (
        torch_chameleon.config.patch(policy=policy),
        budget(BUDGET, oversubscription=16.0),
    ):
        ours = train("chameleon", name)
        stats = torch_chameleon.swap_stats()
    assert differences(native(name), ours) == []
    assert stats["peak_resident_bytes"] <= BUDGET
    assert stats["evictions"] > TABLES
    assert torch.chameleon.memory_allocated() == before


@pytest.mark.parametrize("which", ["all", "random"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_everything_leaves_before_every_op(name, which, native):
    with evicting(which):
        ours = train("chameleon", name)
    assert differences(native(name), ours) == []


def test_gradients_are_rows():
    """A table's gradient takes what its rows take, and no more."""
    model = Recommender().to("chameleon")
    numbers, categories, _ = next(batches("chameleon"))
    model(numbers, categories).sum().backward()
    torch.chameleon.synchronize()
    for table, (rows, _) in zip(model.tables, categories, strict=True):
        assert table.weight.grad.is_sparse
        assert table.weight.grad._nnz() == rows.numel()
    before = torch.chameleon.memory_allocated()
    # The indices are those of the batch.
    taken = sum(
        table.weight.grad._values().untyped_storage().nbytes()
        for table in model.tables
    )
    for table in model.tables:
        table.weight.grad = None
    assert before - torch.chameleon.memory_allocated() == taken
    assert taken < TABLE_BYTES


def test_gradients_are_saved():
    model = Recommender().to("chameleon")
    numbers, categories, _ = next(batches("chameleon"))
    model(numbers, categories).sum().backward()
    gradients = {
        name: parameter.grad for name, parameter in model.named_parameters()
    }
    file = io.BytesIO()
    torch.save(gradients, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu")
    assert differences(loaded, {k: g.cpu() for k, g in gradients.items()}) == []


_SIMULATED = """
import json, warnings
import torch, torch_chameleon
torch_chameleon.config.physical_device = "simulated"
warnings.simplefilter("ignore")
import test_recommender as t

left = {}
torch_chameleon.config.hbm_budget = t.BUDGET
torch_chameleon.config.oversubscription = 16.0
for name in t.OPTIMIZERS:
    before = torch_chameleon.swap_stats()["evictions"]
    left[name] = {
        key: (str(x.layout), list(x.shape), str(x.dtype))
        for key, x in t.train("chameleon", name).items()
    }
    left[name]["evictions"] = torch_chameleon.swap_stats()["evictions"] - before
torch.chameleon.synchronize()
torch_chameleon._C.check_invariants(0, 2)
left["bytes"] = torch.chameleon.memory_allocated()
print(json.dumps(left))
"""


def test_simulated(fresh, native):
    """Without data: the same tensors, and tables that go in and out."""
    here = str(pathlib.Path(__file__).parent)
    path = os.pathsep.join([here, *sys.path])
    left = json.loads(fresh(_SIMULATED, PYTHONPATH=path).splitlines()[-1])
    assert left.pop("bytes") == 0
    for name, tensors in left.items():
        assert tensors.pop("evictions") > TABLES
        assert tensors == {
            key: [str(x.layout), list(x.shape), str(x.dtype)]
            for key, x in native(name).items()
        }
