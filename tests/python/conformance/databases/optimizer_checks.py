"""What is done with one entry of the optimizer database.

Each check makes actions from the entry's hyperparameters: functions of a
device that train a few steps and return parameters and state. Where torch's
default implementation depends on the device's name, the native run names it.
"""

import copy
import importlib
import io
from contextlib import contextmanager
from unittest import mock

import torch
from torch.optim.optimizer import _get_capturable_supported_devices

from conformance.harness.placing import Placer

STEPS = 3
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
_CAPTURABLE = [
    "adadelta",
    "adam",
    "adamax",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
]


@contextmanager
def capturable_on_cpu():
    """torch lets no CPU parameter be capturable; the reference needs it."""

    def devices(*args, **kwargs):
        return [*_get_capturable_supported_devices(*args, **kwargs), "cpu"]

    patches = [
        mock.patch.object(
            importlib.import_module(f"torch.optim.{name}"),
            "_get_capturable_supported_devices",
            devices,
        )
        for name in _CAPTURABLE
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def hyperparameters(info, dtype):
    """All inputs of the entry, those that it has for CUDA only included."""
    torch.manual_seed(0)
    seen = []
    for device in ("cpu", "cuda"):
        for given in info.optim_inputs_func(device, dtype):
            if repr(given.kwargs) not in seen:
                seen.append(repr(given.kwargs))
                yield given.kwargs


class Training:
    """Parameters of every make, and gradients that are drawn on the CPU."""

    def __init__(self, info, dtype, device):
        self.info, self.dtype, self.device = info, dtype, device
        self.draws = torch.Generator().manual_seed(3)
        flat = info.name == "Muon"  # takes matrices only
        shapes = [(4, 3), (5, 2), (3, 6)] if flat else [(4, 3), (7,), (), (0,)]
        self.parameters = [
            self.draw(shape).requires_grad_() for shape in shapes
        ]
        self.parameters.append(self.draw((3, 4)).t().requires_grad_())
        without_gradient = self.draw((2, 2)).requires_grad_()
        self.parameters.append(without_gradient)
        self.targets = [self.draw(p.shape) for p in self.parameters]

    def draw(self, shape):
        drawn = torch.rand(shape, generator=self.draws, dtype=torch.float64)
        if self.dtype.is_complex:
            drawn = drawn + drawn.square() * 1j
        return drawn.to(self.dtype).to(self.device)

    def optimizer(self, kwargs, *, groups=False, lr_on_device=False):
        kwargs = copy.deepcopy(kwargs)
        if lr_on_device:
            kwargs["lr"] = torch.as_tensor(kwargs.get("lr", 0.01)).to(
                self.device
            )
        given = self.parameters
        if groups:
            given = [
                {"params": self.parameters[:2]},
                {"params": self.parameters[2:], "lr": 0.02},
            ]
        return self.info.optim_cls(given, **kwargs)

    def step(self, optimizer):
        if self.info.step_requires_closure:
            return optimizer.step(lambda: self.loss(optimizer))
        for parameter in self.parameters[:-1]:
            parameter.grad = self.gradient(parameter)
        return optimizer.step()

    def gradient(self, parameter):
        gradient = self.draw(parameter.shape)
        if self.info.only_supports_sparse_grads:
            return gradient.to_sparse()
        return gradient

    def loss(self, optimizer):
        optimizer.zero_grad()
        loss = sum(
            (p - t).abs().square().sum()
            for p, t in zip(self.parameters, self.targets, strict=True)
        )
        loss.backward()
        return loss

    def left(self, optimizer):
        return (
            [p.detach() for p in self.parameters],
            [p.grad for p in self.parameters],
            [dict(optimizer.state[p]) for p in self.parameters],
        )


def _train(info, dtype, kwargs, **options):
    def action(device):
        with capturable_on_cpu():
            training = Training(info, dtype, device)
            optimizer = training.optimizer(kwargs, **options)
            results = [training.step(optimizer) for _ in range(STEPS)]
            return results, training.left(optimizer)

    return action


def _implementation(flag, value):
    def check(info, dtype):
        if flag not in info.supported_impls:
            return
        off = {name: False for name in info.supported_impls if name != "fused"}
        for kwargs in hyperparameters(info, dtype):
            yield _train(info, dtype, {**kwargs, **off, flag: value})

    return check


def loop(info, dtype):
    off = {name: False for name in info.supported_impls if name != "fused"}
    for kwargs in hyperparameters(info, dtype):
        yield _train(info, dtype, {**kwargs, **off})


def default(info, dtype):
    """No implementation asked for: lists, as on CUDA."""
    if "foreach" not in info.supported_impls:
        return
    for kwargs in hyperparameters(info, dtype):

        def action(device, kwargs=kwargs):
            named = {"foreach": True} if device == "cpu" else {}
            return _train(info, dtype, {**kwargs, **named})(device)

        yield action


def groups(info, dtype):
    if info.supports_param_groups:
        for kwargs in hyperparameters(info, dtype):
            yield _train(info, dtype, _named(info, kwargs), groups=True)


def lr_on_device(info, dtype):
    """A learning rate in a tensor on the device, as capturable wants it."""
    for kwargs in hyperparameters(info, dtype):
        yield _train(info, dtype, _named(info, kwargs), lr_on_device=True)


def resumed(info, dtype):
    """State through a file into a new optimizer, then more steps."""
    for kwargs in hyperparameters(info, dtype):

        def action(device, kwargs=kwargs):
            kwargs = _named(info, kwargs)
            with capturable_on_cpu():
                training = Training(info, dtype, device)
                optimizer = training.optimizer(kwargs)
                training.step(optimizer)
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer = training.optimizer(kwargs)
                optimizer.load_state_dict(torch.load(file, weights_only=True))
                training.step(optimizer)
                return training.left(optimizer)

        yield action


def scheduled(info, dtype):
    """The entry's learning rate schedulers."""
    for makers in info.scheduler_inputs:

        def action(device, makers=makers):
            training = Training(info, dtype, device)
            optimizer = training.optimizer(_named(info, {"lr": 0.1}))
            schedulers = [make(optimizer) for make in makers]
            for _ in range(STEPS):
                training.step(optimizer)
                for scheduler in schedulers:
                    if isinstance(
                        scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
                    ):
                        scheduler.step(1.0)
                    else:
                        scheduler.step()
            rates = [group["lr"] for group in optimizer.param_groups]
            return rates, training.left(optimizer)

        yield action


def _named(info, kwargs):
    if "foreach" in info.supported_impls:
        return {**kwargs, "foreach": True}
    return kwargs


def errors(info, dtype):
    """Error inputs; a step that fails leaves everything as it was."""
    if info.optim_error_inputs_func is None:
        return
    torch.manual_seed(0)
    for error in info.optim_error_inputs_func("cpu", torch.float32):

        def action(device, given=error.optimizer_error_input):
            params, kwargs = Placer(device)((given.params, given.kwargs))
            return info.optim_cls(params, **kwargs).step()

        yield action


CHECKS = {
    "loop": loop,
    "foreach": _implementation("foreach", True),
    "fused": _implementation("fused", True),
    "differentiable": _implementation("differentiable", True),
    "default": default,
    "groups": groups,
    "lr_on_device": lr_on_device,
    "resumed": resumed,
    "scheduled": scheduled,
}
