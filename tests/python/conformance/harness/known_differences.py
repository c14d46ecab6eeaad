"""Every difference from native that may be, each with its reason.

A row excuses one kind of difference in the cases that it matches. It is
strict: a case that it matches and that does not differ so fails the run, so
that a row goes when its reason does. A row is `sometimes` where native itself
varies, or where the difference depends on the samples that a run takes.
"""

import dataclasses
import fnmatch


@dataclasses.dataclass(frozen=True)
class Known:
    """One row; all but reason and issue are shell patterns, `|` between them.

    Args:
        suite: The suite.
        name: The entry: an op, a module, an optimizer.
        check: What was done with it.
        what: The difference, as compare.difference() words it.
        reason: Why native and we differ.
        dtypes: The dtypes.
        issue: Upstream, where there is one.
        sometimes: The difference need not show.
    """

    suite: str
    name: str
    check: str
    what: str
    reason: str
    dtypes: str = "*"
    issue: str = ""
    sometimes: bool = False

    def matches(self, suite, name, check, dtype):
        """Whether it is about this case."""
        return (
            _fits(suite, self.suite)
            and _fits(name, self.name)
            and _fits(check, self.check)
            and _fits(dtype, self.dtypes)
        )

    def excuses(self, difference):
        """Whether it is about this difference."""
        return _fits(difference, self.what)


def _fits(text, patterns):
    return any(fnmatch.fnmatchcase(text, p) for p in patterns.split("|"))


GROUP_NORM = (
    "the derivative of group norm makes channels-last operands contiguous for "
    "every device but the CPU, and sums in another order then"
)

KNOWN = (
    Known(
        "ops",
        "quantile|nanquantile|split_with_sizes_copy|kron|inner|tensordot|"
        "norm_nuc|linalg_vecdot|linalg_cond|linalg_matrix_power|"
        "linalg_multi_dot|linalg_norm|linalg_norm_subgradients_at_zero|"
        "linalg_matrix_norm|linalg_matrix_rank|linalg_matrix_rank_hermitian|"
        "linalg_pinv|linalg_tensorinv|linalg_tensorsolve|special_ndtr|"
        "matmul",
        "out",
        "leaf *: version: *",
        "resize_output() goes through the dispatcher, which counts a version, "
        "for every device but the CPU",
    ),
    Known(
        "sparse",
        "*",
        "mixed *",
        "only chameleon raised RuntimeError: Expected all tensors to be on the "
        "same device, but found at least two devices, chameleon:0 and cpu!*|"
        "raised * and RuntimeError: Expected all tensors to be on the same "
        "device, but found at least two devices, chameleon:0 and cpu!*|"
        "messages: * and RuntimeError: Expected all tensors to be on the same "
        "device, but found at least two devices, chameleon:0 and cpu!*",
        "a mix of devices, which CUDA does not take either",
        sometimes=True,
    ),
    Known(
        "sparse|ops|transforms",
        "*",
        "*",
        "messages: NotImplementedError: Could not run 'aten::* and "
        "NotImplementedError: aten::*: PyTorch has no kernel for *sparse *",
        "neither device has that op; the sentence names chameleon's own target",
        sometimes=True,
    ),
    Known(
        "sparse",
        "mul",
        "mixed *",
        "*RuntimeError: unsupported tensor layout: Sparse???",
        "a mix of devices and layouts; the shape function of a structured op "
        "looks at layouts first, before any device is asked",
        sometimes=True,
    ),
    Known(
        "modules",
        "nn_Transformer*",
        "double_backward",
        "messages: *derivative for aten::_scaled_dot_product_*",
        "neither device has that derivative; the messages name the attention "
        "kernel, and this one's has a name of its own",
    ),
    Known(
        "optimizers",
        "NAdam",
        "resumed",
        "leaf *: version: *",
        "loading a state moves mu_product to the parameter's device, which is "
        "a copy for every device but the CPU",
        dtypes="float32|complex64|complex128",
    ),
    Known(
        "modules",
        "nn_GroupNorm",
        "channels_last",
        "leaf *: version: 0 and 1|leaf *: bits: *",
        GROUP_NORM,
    ),
    Known(
        "memory_format",
        "group_norm",
        "train",
        "leaf *: bits: *",
        GROUP_NORM,
    ),
    Known(
        "func",
        "dropout_under_vmap",
        "run",
        "leaf *: version: 0 and 1",
        "vmap decomposes dropout itself, and takes native_dropout for every "
        "device but the CPU",
    ),
    Known(
        "ops|transforms",
        "linalg_lstsq*",
        "*",
        "leaf *: bits: *",
        "LAPACK's least squares vary with the operands' addresses: native has "
        "five results in 3,000 calls",
        sometimes=True,
    ),
    Known(
        "ops",
        "nn_functional_max_pool1d",
        "refused",
        "*max_pool1d_impl*",
        "max_pool1d has a kernel of its own for CPU tensors without gradients; "
        "all other devices go through max_pool2d, which takes integers",
    ),
    Known(
        "ops",
        "nn_functional_max_pool1d",
        "forward",
        "leaf 0: version: 1 and 0",
        "max_pool1d has a kernel of its own for CPU tensors without gradients, "
        "which counts a version of its result",
    ),
    Known(
        "*",
        "*",
        "*",
        "warnings: only native set(), only chameleon {('UserWarning', "
        "'mkldnn_matmul failed, switching to *out of memory. *",
        "oneDNN's caller warns of an allocation that failed, before the op "
        "runs again with more room",
        sometimes=True,
    ),
    Known(
        "refs",
        "*",
        "*",
        "leaf *: version: *",
        "prims run below autograd alone, where native kernels count versions "
        "of tensors of their own",
        sometimes=True,
    ),
    Known(
        "refs",
        "_refs_native_layer_norm",
        "*",
        "leaf 1: dtype: * and torch.float32",
        "the reference asks whether the device is called cpu",
        dtypes="bfloat16|float16",
    ),
    Known(
        "refs",
        "_refs_arange",
        "*",
        "leaf 0: bits: *",
        "the reference asks whether the device is called cpu, and multiplies "
        "in float64 then",
        dtypes="float32",
    ),
    Known(
        "ops",
        "histc",
        "refused",
        "only native raised NotImplementedError: * not implemented for *",
        "CUDA's histc takes integers, and Mixture-of-Experts models pass them",
        dtypes="int*|uint8|uint16",
    ),
    Known(
        "ops",
        "quantile|nanquantile",
        "refused",
        'raised RuntimeError: * and NotImplementedError: "ge_cpu" not *',
        "both refuse; for every device but the CPU the probabilities are "
        "checked before the dtype",
        dtypes="float8*",
    ),
)

# What these return is not initialised: everything but the bits is compared.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)


def known(suite, name, check, dtype):
    """The rows about a case."""
    return [row for row in KNOWN if row.matches(suite, name, check, dtype)]
