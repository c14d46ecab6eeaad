"""Dtypes that most of op_db leaves out: float8, wide unsigned, half complex.

Where native refuses, so do we, in the same words.
"""

import pytest
import torch

from conformance.harness.placing import Placer
from conformance.harness.suite import Suite

DTYPES = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex32,
)

ACTIONS = {
    "to float": lambda x, y: x.to(torch.float32),
    "from float": lambda x, y: torch.arange(6.0, device=x.device).to(x.dtype),
    "clone": lambda x, y: x.clone(),
    "contiguous": lambda x, y: x.t().contiguous(),
    "copy_": lambda x, y: x.copy_(y),
    "copy_ strided": lambda x, y: x[:, ::2].copy_(y[:, ::2]),
    "fill_": lambda x, y: x.fill_(1),
    "zero_": lambda x, y: x.zero_(),
    "item": lambda x, y: x[0, 0].item(),
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "reshape": lambda x, y: x.t().reshape(-1),
    "bits": lambda x, y: x.view(torch.uint8),
    "index": lambda x, y: x[torch.tensor([1, 0], device=x.device)],
    "index_put_": lambda x, y: x.index_put_(
        (torch.tensor([0], device=x.device),), y[:1]
    ),
    "index_select": lambda x, y: x.index_select(
        0, torch.tensor([1], device=x.device)
    ),
    "where": lambda x, y: torch.where(x.view(x.shape) == y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(
        torch.ones_like(x, dtype=torch.bool), 0
    ),
    "flip": lambda x, y: x.flip(0),
    "roll": lambda x, y: x.roll(1, 0),
    "eq": lambda x, y: x == y,
    "lt": lambda x, y: x < y,
    "isnan": lambda x, y: x.isnan(),
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * 2,
    "sum": lambda x, y: x.sum(),
    "max": lambda x, y: x.max(),
    "matmul": lambda x, y: x @ y.t(),
    "sort": lambda x, y: x.sort(),
    "bitwise_and": lambda x, y: x & y,
    "scaled_mm": lambda x, y: torch._scaled_mm(
        x, y.t(), *torch.ones(2, device=x.device), out_dtype=torch.bfloat16
    ),
    "zeros_like": lambda x, y: torch.zeros_like(x),
    "expand": lambda x, y: x[:1].expand(3, -1).clone(),
    "foreach_mul_": lambda x, y: torch._foreach_mul_([x, y], 2.0),
    "unique": lambda x, y: x.unique(),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_rare_dtype(name):
    suite = Suite("rare dtypes")
    for dtype in DTYPES:
        values = torch.arange(1.0, 13).reshape(2, 6)
        x, y = values.to(dtype), values.flip(1).to(dtype)

        def action(device, operands=(x, y)):
            placed = Placer(device)(operands)
            return ACTIONS[name](*placed), placed

        suite.case(name, "forward", dtype, [action])
    suite.verify()
