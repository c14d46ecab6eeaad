"""bitsandbytes' layers, moved to the device with `.to()`.

In training its 8-bit layer multiplies int8 numbers on every device but the CPU
(and XPU), where it multiplies the numbers that they stand for. So on the
physical cpu the device gives what bitsandbytes gives there on CUDA's way.
"""

import pytest
import torch
from support import same_bits
from torch import nn

bitsandbytes = pytest.importorskip(
    "bitsandbytes", reason="bitsandbytes is not installed"
)
pytestmark = pytest.mark.filterwarnings("ignore")


def eight_bits(device, threshold):
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear8bitLt(
        64, 32, has_fp16_weights=False, threshold=threshold
    )
    layer.load_state_dict(nn.Linear(64, 32).state_dict())
    return layer.to(device)


def batch():
    draws = torch.Generator().manual_seed(0)
    return torch.randn(8, 64, generator=draws).half()


@pytest.mark.parametrize("threshold", [0.0, 2.0, 6.0])
def test_eight_bits_in_training(threshold):
    from bitsandbytes.autograd import _functions

    native = eight_bits("cpu", threshold)
    ours = eight_bits("chameleon", threshold)
    found = ours(batch().to("chameleon"))
    assert ours.weight.dtype == torch.int8
    assert same_bits(ours.weight, native.weight)
    plain = native(batch())  # sets the state up
    in_int8 = _functions.MatMul8bitLt.apply(
        batch(), native.weight, None, native.bias.half(), native.state
    )
    assert same_bits(found, in_int8)
    assert not same_bits(found, plain)
    torch.testing.assert_close(found.cpu(), plain, atol=0.02, rtol=0.02)


def test_eight_bits_in_inference():
    native = eight_bits("cpu", 0.0).eval()
    ours = eight_bits("chameleon", 0.0).eval()
    with torch.no_grad():
        assert same_bits(ours(batch().to("chameleon")), native(batch()))


def four_bits(device):
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear4bit(
        64, 32, quant_type="nf4", compute_dtype=torch.float32
    )
    layer.load_state_dict(nn.Linear(64, 32).state_dict())
    return layer.to(device)


@pytest.fixture
def no_kept_tables():
    """The library keeps small tables on each device, by several names."""
    yield
    from bitsandbytes.backends import utils
    from bitsandbytes.backends.default import ops

    utils._code_4bit_cache.clear()
    for member in vars(ops).values():
        if hasattr(member, "cache_clear"):
            member.cache_clear()


@pytest.mark.usefixtures("no_kept_tables")
def test_four_bits():
    native, ours = four_bits("cpu"), four_bits("chameleon")
    assert ours.weight.is_chameleon
    assert same_bits(ours.weight, native.weight)
    x, y = (batch().float().requires_grad_() for _ in range(2))
    wanted, found = native(x), ours(y.to("chameleon"))
    wanted.sum().backward()
    found.sum().backward()
    assert same_bits(found, wanted)
    assert same_bits(y.grad, x.grad)


def test_addresses_stay_inside():
    """Of what is no op of torch.library, and calls C by pointers."""
    from bitsandbytes import functional

    x = torch.ones(4)
    assert functional.get_ptr(x).value == x.data_ptr()
    assert functional.get_ptr(None) is None
    with pytest.raises(ValueError, match=r"torch_chameleon\.resident"):
        functional.get_ptr(x.to("chameleon"))
