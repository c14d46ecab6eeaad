"""The CPU's part of what CUDA alone has as one kernel, for an emulated GPU.

Of recurrent cells the values of ATen's RNN.cu in its order of sums, with
tensors in place of threads; what backward needs is in the workspace, one gate
after the other. Of RMSNorm its backward.
"""

import torch


def register(library):
    """Gives the ops kernels for the CPU, which has none.

    Args:
        library: A `torch.library.Library("aten", "IMPL")`; kernels live as long
            as it does.
    """
    for kernel in (
        _thnn_fused_lstm_cell,
        _thnn_fused_lstm_cell_backward_impl,
        _thnn_fused_gru_cell,
        _thnn_fused_gru_cell_backward,
        _fused_rms_norm_backward,
    ):
        library.impl(kernel.__name__, kernel, "CPU")


def _sum(*parts):
    first, *others = (part for part in parts if part is not None)
    return sum(others, first)


def _thnn_fused_lstm_cell(
    input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None
):
    gates = _sum(input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _thnn_fused_lstm_cell_backward_impl(
    grad_hy, grad_cy, cx, cy, workspace, has_bias
):
    i, f, g, o = workspace.chunk(4, 1)
    gh = torch.zeros_like(cy) if grad_hy is None else grad_hy
    gc = torch.zeros_like(cy) if grad_cy is None else grad_cy
    squashed = cy.tanh()
    gcx = gh * o * (1 - squashed * squashed) + gc
    grad_gates = torch.cat(
        [
            gcx * g * (1 - i) * i,
            gcx * cx * (1 - f) * f,
            gcx * i * (1 - g * g),
            gh * squashed * (1 - o) * o,
        ],
        1,
    )
    grad_bias = grad_gates.sum(0) if has_bias else grad_gates.new_empty(0)
    return grad_gates, gcx * f, grad_bias


def _thnn_fused_gru_cell(
    input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None
):
    ir, iz, new = _sum(input_gates, input_bias).chunk(3, 1)
    hr, hz, hn = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias):
    r, z, n, hx, hn = workspace.chunk(5, 1)
    gz = grad_hy * (hx - n) * (1 - z) * z
    gn = grad_hy * (1 - z) * (1 - n * n)
    gr = gn * hn * (1 - r) * r
    of_input = torch.cat([gr, gz, gn], 1)
    of_hidden = torch.cat([gr, gz, gn * r], 1)
    nothing = of_input.new_empty(0)
    return (
        of_input,
        of_hidden,
        grad_hy * z,
        of_input.sum(0) if has_bias else nothing,
        of_hidden.sum(0) if has_bias else nothing,
    )


def _fused_rms_norm_backward(grad, given, shape, rstd, weight, mask):
    x, dy = given.to(rstd.dtype) * rstd, grad.to(rstd.dtype)
    outer = given.dim() - len(shape)
    scaled = dy if weight is None else dy * weight.to(rstd.dtype)
    inner = list(range(outer, given.dim()))
    of_given = rstd * (scaled - x * (scaled * x).mean(inner, keepdim=True))
    of_weight = (dy * x).flatten(0, outer - 1).sum(0) if outer else dy * x
    return (
        of_given.to(given.dtype),
        of_weight.to(given.dtype) if mask[1] and weight is not None else None,
    )
