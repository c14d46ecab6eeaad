"""Memory inside kernels: what the table says, and what the cpu counts."""

import torch
from torch_chameleon import _testing

_START = """
import torch, torch_chameleon, warnings
from torch_chameleon import config, swap_stats
config.physical_device = "{}"
warnings.simplefilter("ignore")
"""

# What each case needs at its peak, twice: the second time all is known.
_CODE = """
d, A = "chameleon", torch.ops.aten
x, y = torch.rand(512, 512, device=d), torch.rand(512, 512, device=d)
v, w = torch.rand(512, device=d), torch.rand(1 << 16, device=d)
i = torch.randint(0, 512, (512,), device=d)
rows = torch.rand(512, 512, device=d)
lists = [torch.rand(64, 512, device=d) for _ in range(4)]
for case in CASES:
    for _ in "12":
        result = None
        torch_chameleon._C.empty_cache(0)
        torch_chameleon.reset_swap_stats()
        before = swap_stats()["resident_bytes"]
        result = eval(case)
        print(swap_stats()["peak_resident_bytes"] - before)
"""

# Rows of the table that are the same code on the CPU, and ops without a row.
_SAME = {
    "aten::mse_loss": "A.mse_loss(x, y), A.mse_loss(x, y, 0)",
    "aten::smooth_l1_loss": "A.smooth_l1_loss(x, y)",
    "aten::huber_loss": "A.huber_loss(x, y)",
    "aten::binary_cross_entropy_with_logits": "A."
    "binary_cross_entropy_with_logits(x, y)",
    "aten::logsumexp": "A.logsumexp(x, [1])",
}
_WITHOUT = [
    "x @ y",
    "A.addmm(v, x, y)",
    "A._softmax(x, 1, False)",
    "A._log_softmax(x, 1, False)",
    "A.gelu(x)",
    "A.native_layer_norm(x, [512], v, v, 1e-5)",
    "A.topk(x, 8)",
    "A.cumsum(x, 1)",
    "A.embedding(x, i)",
    "A.cat([x, y])",
    "A._foreach_sqrt(lists)",
    "A.where(x > y, x, y)",
    "A.gather(x, 1, i[None])",
    "A.var(x, [1])",
    "A.threshold_backward(x, y, 0.0)",
    "A.slice_backward(y[:, :9], [512, 512], 1, 0, 9, 1)",
]

# All other rows, with what the CPU has in their place.
_CUDA_ONLY = {
    "aten::_scaled_dot_product_flash_attention_backward": None,  # no kernel
    "aten::_scaled_dot_product_efficient_attention_backward": None,  # none
    # A loop over the indices; CUDA sorts them.
    "aten::embedding_dense_backward": "A.embedding_dense_backward("
    "rows, i, 512, -1, False)",
    # Pairs are sorted in place; CUDA's radix sort has second buffers.
    "aten::sort": "A.sort(w)",
    "aten::argsort": "A.argsort(w)",
    # A hash table of the C++ library, outside of the arena; CUDA sorts.
    "aten::_unique": "A._unique(w)",
    "aten::_unique2": "A._unique2(w)",
    # One pass; CUDA's is that of a sorted list.
    "aten::unique_consecutive": "A.unique_consecutive(w)",
    # Element by element; CUDA sorts the indices.
    "aten::index_put": "A.index_put(x, [i], rows, True)",
    "aten::index_put_": "A.index_put_(x, [i], rows, True)",
    "aten::_index_put_impl_": "A._index_put_impl_(x, [i], rows, True)",
}


def test_the_table_is_what_the_cpu_counts_where_it_can_be(fresh):
    different = [case for case in _CUDA_ONLY.values() if case]
    cases = [*_SAME.values(), *_WITHOUT, *different]
    code = f"CASES = {cases}" + _CODE
    counted, modelled = (
        [int(line) for line in fresh(_START.format(device) + code).split()]
        for device in ("cpu", "simulated")
    )
    both = zip(counted, modelled, strict=True)
    twice = [case for case in cases for _ in "12"]
    for case, (real, model) in zip(twice, both, strict=True):
        # Some allocate a scalar or two more.
        assert (abs(real - model) > 1024) == (case in different), (
            case,
            real,
            model,
        )


def test_every_row_is_compared_or_cannot_be():
    table = set(_testing.workspace_ops())
    assert table == _SAME.keys() | _CUDA_ONLY.keys()
    for op, case in _CUDA_ONLY.items():
        if case is None:
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
            assert not has_kernel(op, "CPU")
