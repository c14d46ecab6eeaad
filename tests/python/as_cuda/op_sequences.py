"""Which ops reach the backend below autograd, sample by sample.

    python op_sequences.py cuda|chameleon SAMPLES dtype,...

Runs on the emulated GPU: PyTorch's own CUDA code decides, the CPU's kernels
compute where they can (tests/emulated_cuda.py). Prints {sample: [op...]} as
JSON in the last line. Where an op raises, it ends with "RAISED ...".
"""

import functools
import json
import os
import random
import sys
import warnings

import emulated_cuda
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MIB = 1 << 20
# Not compared: what has no values, layouts that chameleon refuses, what is
# compiled for one device by hand, and what wants indices on the CPU.
LEFT_OUT = ("sparse", "to_sparse", "jiterator", "empty", "new_empty")
LEFT_OUT += ("resize", "tensor_split", "to")


class _Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


def _sequence(run):
    """The ops of forward and backward."""
    log = _Log()
    try:
        with log:
            results = [
                leaf
                for leaf in tree_leaves(run())
                if isinstance(leaf, torch.Tensor)
                and leaf.requires_grad
                and (leaf.is_floating_point() or leaf.is_complex())
            ]
            log.ops.append("--")
            if results:
                torch.autograd.backward(
                    results, [torch.ones_like(leaf) for leaf in results]
                )
    except Exception as error:
        log.ops.append(f"RAISED {type(error).__name__} {error}"[:200])
    return log.ops


def _seed(number):
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def _moved(device):
    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        copied = value.detach().to(device, copy=True)
        return copied.requires_grad_(value.requires_grad)

    return move


def _first(samples, count):
    """Samples on the CPU, the same in every process."""
    for number in range(count):
        _seed(number)
        try:
            yield next(samples := iter(samples))
        except Exception:
            return


def operators(device, dtype, count):
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.name.startswith(LEFT_OUT) or dtype not in op.supported_dtypes(
            "cuda"
        ):
            continue
        grad = op.supports_autograd and dtype in op.supported_backward_dtypes(
            "cuda"
        )
        samples = op.sample_inputs_func(op, "cpu", dtype, grad)
        for number, sample in enumerate(_first(samples, count)):
            there = sample.transform(_moved(device))
            if "device" in there.kwargs:
                there.kwargs["device"] = torch.device(device)
            torch.manual_seed(10)
            yield (
                f"{op.full_name}#{number}",
                _sequence(
                    functools.partial(
                        op, there.input, *there.args, **there.kwargs
                    )
                ),
            )


def modules(device, dtype, count):
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if dtype not in info.dtypes:
            continue
        for training in (True, False):
            _seed(0)
            samples = info.module_inputs_func(
                info,
                device="cpu",
                dtype=dtype,
                requires_grad=training,
                training=training,
            )
            for number, sample in enumerate(samples[:count]):
                made = sample.constructor_input
                given = sample.forward_input
                torch.manual_seed(0)
                module = info.module_cls(*made.args, **made.kwargs)
                module = module.to(device, dtype).train(training)
                args, kwargs = tree_map(
                    _moved(device), (given.args, given.kwargs)
                )
                with torch.set_grad_enabled(training):
                    ops = _sequence(functools.partial(module, *args, **kwargs))
                mode = "training" if training else "evaluation"
                yield f"{info.name} in {mode}#{number}", ops


def attention(device, dtype, _):
    """The choice of scaled_dot_product_attention."""
    attend = torch.nn.functional.scaled_dot_product_attention
    for width in (64, 60, 256):
        for causal, dropout, groups, mask, grad in (
            (False, 0.0, False, None, False),
            (True, 0.2, False, None, True),
            (False, 0.0, True, None, True),
            (False, 0.0, False, "bool", False),
            (False, 0.2, False, "values", True),
            (False, 0.0, False, "grad", True),
            (False, 0.0, True, "values", False),
        ):
            query = torch.ones(2, 8, 16, width, dtype=dtype).to(device)
            heads = 2 if groups else 8
            key, value = (
                torch.ones(2, heads, 16, width, dtype=dtype).to(device)
                for _ in "kv"
            )
            for each in (query, key, value):
                each.requires_grad_(grad)
            allowed = None
            if mask is not None:
                kind = torch.bool if mask == "bool" else dtype
                allowed = torch.ones(16, 16, dtype=kind).to(device)
                allowed.requires_grad_(mask == "grad")
            name = f"attention of {width}, {causal} {dropout} {groups} {mask}"
            options = {"is_causal": causal, "enable_gqa": groups}
            ops = _sequence(
                functools.partial(
                    attend,
                    *(query, key, value, allowed, dropout),
                    **options,
                )
            )
            # Whether the kernel ran is not the question: none does here.
            forward = ops[: ops.index("--")] if "--" in ops else ops[:-1]
            yield f"{name}#0", forward


def others(device, dtype, _):
    """Branches that no sample of the databases takes."""
    functional = torch.nn.functional
    if dtype is not torch.float32:
        return
    given = torch.ones(4, 3, 5).to(device).requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(given, [4, 2, 1])
    with torch.backends.cudnn.flags(enabled=False):
        for name in ("LSTM", "GRU", "RNN"):
            for options in ({}, {"bidirectional": True, "num_layers": 2}):
                layer = getattr(torch.nn, name)(5, 4, **options).to(device)
                for what, x in (("padded", given), ("packed", packed)):
                    key = f"{name} without cuDNN, {what}#{len(options)}"
                    yield key, _sequence(functools.partial(layer, x))
        layer = torch.nn.LSTM(5, 4, proj_size=2).to(device)
        yield "LSTM projected#0", _sequence(functools.partial(layer, given))
    losses = torch.zeros(5, 2, 4).to(device).requires_grad_()
    targets = torch.tensor([1, 2, 3], dtype=torch.int32)
    lengths = ((5, 5), (2, 1))
    for reduction in ("mean", "sum", "none"):
        loss = functools.partial(functional.ctc_loss, reduction=reduction)
        run = functools.partial(loss, losses, targets, *lengths)
        yield f"CTC by cuDNN, {reduction}#0", _sequence(run)


def main(device, count, dtypes):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if device == "chameleon":
        import torch_chameleon

        torch_chameleon.config.hbm_budget = 400 * MIB
        torch_chameleon.config.host_budget = 1024 * MIB
    emulated_cuda.install(native=device == "cuda")
    library = torch.library.Library("aten", "IMPL")
    for name in ("_use_miopen_ctc_loss", "_use_miopen_ctc_loss.Tensor"):
        library.impl(name, lambda *_: False, "CUDA", allow_override=True)

    found = {}
    for name in dtypes.split(","):
        for source in (operators, modules, attention, others):
            for key, ops in source(device, getattr(torch, name), int(count)):
                found[f"{name} {key}"] = ops
    print(json.dumps(found), flush=True)
    os._exit(0)  # threads of autograd may still let go of modes


if __name__ == "__main__":
    main(*sys.argv[1:])
