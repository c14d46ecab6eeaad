"""The CPU's part of what CUDA has of cuDNN, for an emulated GPU.

Values are those of the CPU's kernels for the same computation. What cuDNN
changes though no schema says so changes here too: the state of dropout at each
use, and the reserve of a recurrent layer in its backward.
"""

import torch

# (op, argument): written, although the schema says that it is read.
UNANNOUNCED = frozenset(
    {
        ("aten::_cudnn_rnn", "dropout_state"),
        ("aten::_cudnn_rnn_backward", "reserve"),
        ("aten::cudnn_batch_norm", "running_mean"),
        ("aten::cudnn_batch_norm", "running_var"),
    }
)

_STATE_BYTES = 4096
_LAYERS = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
_MOST = 2**63


def register(library):
    """Gives the ops kernels for the CPU, which has none.

    Args:
        library: A `torch.library.Library("aten", "IMPL")`; kernels live as long
            as it does.
    """
    for kernel in (
        _conv_depthwise2d,
        conv_depthwise3d,
        cudnn_convolution,
        cudnn_convolution_transpose,
        cudnn_batch_norm,
        cudnn_batch_norm_backward,
        cudnn_grid_sampler,
        cudnn_grid_sampler_backward,
        _cudnn_ctc_loss,
        _cudnn_init_dropout_state,
        _cudnn_rnn,
        _cudnn_rnn_backward,
    ):
        library.impl(kernel.__name__, kernel, "CPU")
    library.impl("_cudnn_ctc_loss.Tensor", _ctc_loss_of_tensors, "CPU")


# ---- images


def cudnn_convolution(given, weight, padding, stride, dilation, groups, *_):
    zeros = [0] * len(padding)
    return torch.ops.aten.convolution(
        *(given, weight, None, stride, padding, dilation, False, zeros, groups)
    )


def cudnn_convolution_transpose(
    given, weight, padding, output_padding, stride, dilation, groups, *_
):
    return torch.ops.aten.convolution(
        *(given, weight, None, stride, padding, dilation, True),
        *(output_padding, groups),
    )


def _conv_depthwise2d(given, weight, size, bias, stride, padding, dilation):
    zeros = [0] * len(padding)
    return torch.ops.aten.convolution(
        *(given, weight, bias, stride, padding, dilation, False, zeros),
        given.shape[1],
    )


def conv_depthwise3d(*given):
    return _conv_depthwise2d(*given)


def cudnn_batch_norm(
    given, weight, bias, mean, variance, training, momentum, epsilon
):
    results = torch.native_batch_norm(
        given, weight, bias, mean, variance, training, momentum, epsilon
    )
    return *results, given.new_empty(0, dtype=torch.uint8)


def cudnn_batch_norm_backward(
    given, grad, weight, mean, variance, saved_mean, saved, epsilon, reserve
):
    return torch.ops.aten.native_batch_norm_backward(
        *(grad, given, weight, mean, variance, saved_mean, saved),
        *(True, epsilon, [True] * 3),
    )


def cudnn_grid_sampler(given, grid):
    return torch.grid_sampler_2d(given, grid, 0, 0, True)


def cudnn_grid_sampler_backward(given, grid, grad):
    return torch.ops.aten.grid_sampler_2d_backward(
        grad, given, grid, 0, 0, True, [True, True]
    )


# ---- sequences


def _cudnn_ctc_loss(
    losses, targets, inputs, lengths, blank, deterministic, zero_infinity
):
    loss, alpha = torch._ctc_loss(
        losses, targets, inputs, lengths, blank, zero_infinity
    )
    grad = torch.ops.aten._ctc_loss_backward(
        *(torch.ones_like(loss), losses, targets, inputs, lengths),
        *(loss, alpha, blank, zero_infinity),
    )
    return loss, grad


def _ctc_loss_of_tensors(losses, targets, inputs, lengths, *rest):
    return _cudnn_ctc_loss(
        losses, targets, inputs.tolist(), lengths.tolist(), *rest
    )


def _cudnn_init_dropout_state(dropout, train, seed, **_):
    state = torch.zeros(_STATE_BYTES, dtype=torch.uint8)
    state.view(torch.int64)[0] = seed % _MOST
    return state


def _cudnn_rnn(
    given, weights, stride, flat, hx, cx, mode, hidden, projected, layers,
    batch_first, dropout, train, bidirectional, sizes, state,
):  # fmt: skip
    """A use of the state counts it up; the reserve keeps what it was."""
    seed = 0
    if train and dropout > 0:
        numbers = state.view(torch.int64)
        seed = numbers[0].item()
        numbers[0] = (seed + 1) % _MOST
    options = (mode, layers, batch_first, bidirectional, sizes)
    results = _run(
        given, weights, stride, hx, cx, *options, dropout * train, seed
    )
    reserve = given.new_empty(0, dtype=torch.uint8)
    if train:
        kept = results[0].numel() * layers * given.element_size()
        reserve = torch.zeros(kept // 8 * 8 + 24, dtype=torch.uint8)
        reserve.view(torch.int64)[[0, -1]] = seed
    if flat is None:
        flat = torch.cat([weight.reshape(-1) for weight in weights])
    return *results, reserve, flat


def _cudnn_rnn_backward(
    given, weights, stride, flat, hx, cx, output, grad_output, grad_hy, grad_cy,
    mode, hidden, projected, layers, batch_first, dropout, train,
    bidirectional, sizes, state, reserve, mask,
):  # fmt: skip
    numbers = reserve.view(torch.int64)
    seed = numbers[0].item()
    if numbers[1].item() != 0 or numbers[-1].item() != seed:
        raise RuntimeError("the reserve is not what forward left in it")
    numbers[1] = 1
    options = (mode, layers, batch_first, bidirectional, sizes)
    with _autograd():
        leaves = [
            each.detach().requires_grad_()
            for each in (given, hx, *weights, *([] if cx is None else [cx]))
        ]
        x, h, *rest = leaves
        c = None if cx is None else rest.pop()
        results = _run(x, rest, stride, h, c, *options, dropout * train, seed)
        pairs = [
            (result, grad)
            for result, grad in zip(
                results, (grad_output, grad_hy, grad_cy), strict=True
            )
            if grad is not None and result.requires_grad
        ]
        grads = torch.autograd.grad(
            [result for result, _ in pairs],
            leaves,
            [grad for _, grad in pairs],
            allow_unused=True,
        )
    grads = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, grads, strict=True)
    ]
    of_x, of_h, *rest = grads
    of_c = given.new_empty(0) if cx is None else rest.pop()
    return of_x, of_h, of_c, rest if mask[3] else []


def _autograd():
    """Kernels run below autograd; this takes its keys back in."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, name))
    return _Both(
        torch._C._ForceDispatchKeyGuard(
            torch._C._dispatch_tls_local_include_set(), excluded
        ),
        torch.enable_grad(),
    )


class _Both:
    def __init__(self, *managers):
        self._managers = managers

    def __enter__(self):
        for each in self._managers:
            each.__enter__()

    def __exit__(self, *error):
        for each in reversed(self._managers):
            each.__exit__(*error)


def _run(
    given, weights, stride, hx, cx, mode, layers, batch_first, bidirectional,
    sizes, dropout, seed,
):  # fmt: skip
    """Output, last hidden and last cell state (empty but for LSTM)."""
    run, directions = _LAYERS[mode], 2 if bidirectional else 1
    biases, each = stride >= 4, stride * directions
    swaps = batch_first and not sizes
    x = given.transpose(0, 1) if swaps else given
    draws = torch.Generator().manual_seed(seed)
    last = []
    for layer in range(layers):
        if layer and dropout:
            kept = torch.empty(x.shape).bernoulli_(1 - dropout, generator=draws)
            x = x * (kept / (1 - dropout)).to(x.dtype)
        rows = slice(layer * directions, (layer + 1) * directions)
        states = hx[rows] if cx is None else [hx[rows], cx[rows]]
        own = list(weights[layer * each : (layer + 1) * each])
        packed = [torch.tensor(sizes)] if sizes else []
        padded = [] if sizes else [False]
        x, *ends = run(
            *(x, *packed, states, own, biases, 1, 0.0, True, bidirectional),
            *padded,
        )
        last.append(ends)
    hy, *cy = (torch.cat(parts) for parts in zip(*last, strict=True))
    output = x.transpose(0, 1) if swaps else x
    return output, hy, cy[0] if cy else given.new_empty(0)
