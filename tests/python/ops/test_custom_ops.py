"""torch.library.custom_op works without a registration for chameleon."""

import threading

import numpy as np
import pytest
import torch
import torch_chameleon
from support import on_both, same_bits, values
from torch import Tensor
from torch.library import custom_op

pytestmark = pytest.mark.usefixtures("stress")

# ---- torch.library.custom_op


@custom_op("chameleon_test::np_sin", mutates_args=(), device_types="cpu")
def np_sin(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


@np_sin.register_fake
def _(x):
    return torch.empty_like(x)


np_sin.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
np_sin.register_vmap(lambda info, in_dims, x: (np_sin(x), in_dims[0]))


def test_custom_op_with_autograd():
    def run(device):
        x = values(device, 3, 4).requires_grad_()
        y = np_sin(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        return y, gradient

    on_both(run)


def test_custom_op_in_vmap():
    on_both(lambda device: [torch.vmap(np_sin)(values(device, 3, 4))])


def test_opcheck():
    x = values("chameleon", 3).requires_grad_()
    torch.library.opcheck(
        np_sin, (x,), test_utils=("test_schema", "test_faketensor")
    )


@custom_op("chameleon_test::np_add_", mutates_args={"x"}, device_types="cpu")
def np_add_(x: Tensor, others: list[Tensor]) -> None:
    for other in others:
        x.numpy()[...] += other.numpy()


def test_custom_op_in_place():
    def run(device):
        x, y = values(device, 4, 3), values(device, 3, seed=1)
        before = x._version
        np_add_(x[1:], [y, y])
        return x, x._version - before

    on_both(run)


def test_in_place_is_detected_by_autograd():
    x = values("chameleon", 3).requires_grad_()
    saved = x * 1
    loss = saved.square().sum()
    np_add_(saved.detach(), [x.detach()])
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


@custom_op("chameleon_test::ramp", mutates_args=(), device_types="cpu")
def ramp(size: int, device: torch.device) -> Tensor:
    return torch.from_numpy(np.arange(size, dtype=np.float32))


def test_custom_op_without_tensors():
    on_both(lambda device: [ramp(5, torch.device(device))])
    with pytest.raises(RuntimeError, match="kernel registered for cuda"):
        ramp(5, torch.device("cuda"))


# ---- device-agnostic ops


def test_device_agnostic_op():
    @custom_op("chameleon_test::agnostic", mutates_args=())
    def agnostic(x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return torch.sin(x) * 2

    seen = []
    on_both(lambda device: [agnostic(values(device, 5))])
    assert seen == ["cpu", "chameleon"]


def test_target_kernel_beside_a_device_agnostic_one():
    """Which kernel runs is what native decides, at every call."""

    @custom_op("chameleon_test::both", mutates_args=())
    def both(x: Tensor) -> Tensor:
        return torch.sin(x)

    x = values("chameleon", 5)
    assert same_bits(both(x), x.sin())

    @both.register_kernel("cpu")
    def _(x):
        assert x.device.type == "cpu"
        return torch.from_numpy(np.cos(x.numpy()))

    on_both(lambda device: [both(values(device, 5))])
    assert not same_bits(both(x), x.sin())


def test_kernel_that_goes_again(library):
    library().define("goes(Tensor x) -> Tensor")
    general = library()
    general.impl("goes", lambda x: x + 1, "CompositeExplicitAutograd")
    special = library()
    special.impl("goes", lambda x: x + 2, "CPU")
    x = torch.zeros(1, device="chameleon")
    assert torch.ops.chameleon_test.goes(x).item() == 2
    special._destroy()
    assert torch.ops.chameleon_test.goes(x).item() == 1


def test_decomposition_keeps_its_derivative(library):
    ours = library()
    ours.define("decomposed(Tensor x) -> Tensor")
    ours.impl("decomposed", lambda x: x.sin(), "CompositeImplicitAutograd")

    def run(device):
        x = values(device, 3).requires_grad_()
        y = torch.ops.chameleon_test.decomposed(x)
        return y, *torch.autograd.grad(y.sum(), x)

    on_both(run)


@pytest.mark.parametrize(
    "body", [lambda x: x.numpy(), np.asarray, np.from_dlpack]
)
def test_agnostic_body_that_needs_an_address(body, library):
    ours = library()
    ours.define("needs(Tensor x) -> Tensor")
    ours.impl(
        "needs",
        lambda x: torch.from_numpy(np.sin(body(x))),
        "CompositeExplicitAutograd",
    )
    torch.ops.chameleon_test.needs(torch.ones(2))
    with pytest.raises((TypeError, BufferError), match="resident"):
        torch.ops.chameleon_test.needs(torch.ones(2, device="chameleon"))


def test_a_result_for_the_cpu_leaves_the_device(library):
    """The kernel made it in the device's memory, as it does all it makes."""
    ours = library()
    ours.define("made(Tensor x, Device device) -> Tensor")
    ours.impl("made", lambda x, device: x.add(1), "CPU")
    x = torch.ones(1024, device="chameleon")
    made = torch.ops.chameleon_test.made(x, torch.device("cpu"))
    assert made.device.type == "cpu"
    assert made.eq(2).all()
    assert torch_chameleon.swap_stats()["foreign_bytes"] == 0


def test_registrations_while_ops_run(library):
    stop = threading.Event()
    failures = []

    def work():
        x = values("chameleon", 8)
        expected = np_sin(x)
        while not stop.is_set():
            if not same_bits(np_sin(x), expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    x = torch.zeros(1, device="chameleon")
    for _ in range(20):
        ours = library("chameleon_reborn", "DEF")
        ours.define("h(Tensor x) -> Tensor")
        ours.impl("h", lambda x: x + 1, "CompositeExplicitAutograd")
        assert torch.ops.chameleon_reborn.h(x).item() == 1
        ours.impl("h", lambda x: x + 2, "CPU")
        assert torch.ops.chameleon_reborn.h(x).item() == 2
        ours._destroy()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
