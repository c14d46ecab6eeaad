"""The names that lines may use.

`D` is the device; `R` and `G` draw random numbers, the same on every device,
`S` those of settings.
"""

import contextlib
import copy
import gc
import io
import math
import pickle
import random

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import torch_chameleon
from support import same_bits
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch_chameleon import _C, _testing

from random_programs import autograd_tools, models
from random_programs.autograd_tools import flat

# Not of op_db: results that native does not define bit for bit (memory that is
# not initialised, LAPACK's phases), other layouts, and what takes long.
_LEFT_OUT = (
    *("empty", "new_empty", "to_sparse", "sparse", "resize_", "resize_as_"),
    *("linalg.lstsq", "linalg.eig", "linalg.svd", "linalg.lu", "linalg.qr"),
    *("svd", "geqrf", "pinverse", "symeig", "pca_lowrank", "lu", "qr", "ormqr"),
    *("nn.functional.scaled_dot", "nn.functional.interpolate", "jiterator"),
    *("nn.functional.upsample", "nn.functional.group_norm", "torch_ops"),
    *("nn.functional.ctc_loss", "nn.functional.fractional", "stft", "istft"),
    "tensor_split",  # its indices have to be on the CPU, as on CUDA
    *("bfloat16_channel", "_segment_reduce", "linalg.pinv", "linalg.cond"),
)
OPERATORS = {
    (op.name, op.variant_test_name): op
    for op in op_db
    if not op.name.startswith(_LEFT_OUT) and "sparse" not in op.name
}
_SAMPLES_OF_AN_OPERATOR = 12
_samples = {}


def samples(name, variant, dtype, requires_grad):
    """The first samples of an operator, on the CPU, always the same."""
    key = (name, variant, dtype, requires_grad)
    if key not in _samples:
        state = torch.get_rng_state(), random.getstate(), np.random.get_state()
        torch.default_generator.manual_seed(1234)
        random.seed(1234)
        np.random.seed(1234)
        found = []
        make = OPERATORS[name, variant].sample_inputs_func
        with contextlib.suppress(Exception):
            rows = make(
                OPERATORS[name, variant],
                "cpu",
                getattr(torch, dtype),
                requires_grad,
            )
            for sample in rows:
                found.append(sample)
                if len(found) == _SAMPLES_OF_AN_OPERATOR:
                    break
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        np.random.set_state(state[2])
        _samples[key] = found
    return _samples[key]


def placed(tree, device):
    """Copies of a sample's tensors on a device."""
    if isinstance(tree, torch.Tensor):
        copied = tree.detach().to(device, copy=True)
        return copied.requires_grad_() if tree.requires_grad else copied
    if type(tree) in (list, tuple):
        return type(tree)(placed(item, device) for item in tree)
    if isinstance(tree, dict):
        return {key: placed(value, device) for key, value in tree.items()}
    if isinstance(tree, torch.device):
        return torch.device(device)
    return tree


class Toolbox:
    """Makes the names for one device and one seed."""

    def __init__(self, device, seed):
        self.device = device
        self.factor = 1  # of budgets that lines set

    def random(self, shape, seed, dtype=torch.float32):
        """A tensor of the host's random numbers."""
        draws = torch.Generator().manual_seed(seed)
        if dtype == torch.bool:
            made = torch.rand(shape, generator=draws) > 0.5
        elif dtype.is_complex:
            made = torch.randn(shape, generator=draws, dtype=dtype)
        elif dtype.is_floating_point:
            made = torch.randn(shape, generator=draws).to(dtype)
        else:
            made = torch.randint(0, 7, shape, generator=draws).to(dtype)
        return made.to(self.device)

    def operator(self, name, variant, dtype, number, how):
        """An operator of op_db on a sample: its results, and gradients."""
        sample = samples(name, variant, dtype, how == "backward")[number]
        op = OPERATORS[name, variant]
        given, args, kwargs = placed(
            (sample.input, sample.args, sample.kwargs), self.device
        )
        if how == "inplace":
            if op.inplace_variant is None:
                return []
            changed = flat(op.inplace_variant(given, *args, **kwargs))
            return [t.detach() for t in changed]
        results = flat(op(given, *args, **kwargs))
        roots = [t for t in results if t.requires_grad]
        leaves = [t for t in flat([given, args, kwargs]) if t.requires_grad]
        found = ()
        if how == "backward" and roots and leaves:
            found = torch.autograd.grad(
                roots,
                leaves,
                [torch.ones_like(t) for t in roots],
                allow_unused=True,
            )
        found = [g for g in found if g is not None]
        return [t.detach() for t in results] + found

    @contextlib.contextmanager
    def native(self, tensor):
        """A native tensor of the same memory."""
        if not isinstance(tensor, torch.Tensor):
            raise ValueError("no tensor")
        if self.device == "cpu":
            yield tensor.detach()
        else:
            with torch_chameleon.resident(tensor) as (alias,):
                yield alias

    @contextlib.contextmanager
    def side_stream(self):
        """A stream beside the current one, which waits for each other."""
        if self.device == "cpu":
            yield
            return
        current = torch.chameleon.current_stream()
        side = torch.chameleon.Stream()
        side.wait_stream(current)
        try:
            with torch.chameleon.stream(side):
                yield
        finally:
            current.wait_stream(side)

    def budget(self, size):
        """Sets the budget in force."""
        torch_chameleon.config.hbm_budget = size * self.factor

    def check_native(self, tensor):
        """What resident() gives has the bits of the tensor."""
        with torch_chameleon.resident(tensor) as (alias,):
            assert same_bits(alias, tensor), "resident() shows other bits"

    def through_a_file(self, tensors):
        file = io.BytesIO()
        torch.save(list(tensors), file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def resized(self, tensor):
        """A copy whose storage was given back and taken anew."""
        made = tensor.clone()
        made.untyped_storage().resize_(0)
        made.untyped_storage().resize_(tensor.nbytes + 64)
        return made.resize_(tensor.shape).copy_(tensor)


def names(device, seed):
    """What a program starts with."""
    box = Toolbox(device, seed)
    draws = torch.Generator(device=device)
    draws.manual_seed(seed)
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "gc": gc,
        "copy": copy,
        "pickle": pickle,
        "math": math,
        "config": torch_chameleon.config,
        "tc": torch_chameleon,
        "_C": _C,
        "_T": _testing,
        "ways": autograd_tools,
        "flat": flat,
        "D": device,
        "R": random.Random(seed),
        "S": random.Random(seed + 1),
        "G": draws,
        "bag": [],
        "box": box,
        "rnd": box.random,
        "native": box.native,
        "Task": models.Task,
        "optimizer": models.optimizer,
        "train": models.train,
        "evaluate": models.evaluate,
    }
