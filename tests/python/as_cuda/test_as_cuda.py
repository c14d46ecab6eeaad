"""torch_chameleon.as_cuda: programs that say "cuda"."""

import pathlib

import pytest
import scripted_checks
import torch
from torch_chameleon._as_cuda import calls

SCRIPT = pathlib.Path(__file__).with_name("on_as_cuda.py")
CHECKS = [
    line.removeprefix("def ").split("(")[0]
    for before, line in zip(
        SCRIPT.read_text().splitlines(),
        SCRIPT.read_text().splitlines()[1:],
        strict=False,
    )
    if before == "@check"
]


@pytest.fixture(scope="module")
def outcomes(request):
    return scripted_checks.outcomes(SCRIPT, request, "late")


@pytest.mark.parametrize("physical", scripted_checks.PHYSICAL)
@pytest.mark.parametrize("check", CHECKS)
def test_as_cuda(outcomes, physical, check):
    assert outcomes(physical)[check] == "ok"


def test_no_check_is_left_out(outcomes):
    assert sorted(outcomes("cpu")) == sorted(CHECKS)


# Take a device for another reason than to be told where.
_OTHERS = {"eq", "ne"}


def test_every_function_of_torch_that_takes_a_device():
    names = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        and any(argument.name == "device" for argument in schema.arguments)
    }
    names -= _OTHERS | {"Generator"}
    inner = [getattr(torch._C, name) for name in calls._INNER if name]
    told = {*calls._TORCH, *calls._FACTORIES, *calls._OF_DATA}
    missing = [
        name
        for name in sorted(names)
        if (hasattr(torch, name) and name not in told)
        or (hasattr(torch.Tensor, name) and name not in calls._TENSOR)
        or any(
            hasattr(module, name) and name not in calls._INNER[key]
            for key, module in zip(list(calls._INNER)[1:], inner, strict=True)
        )
    ]
    assert missing == []
