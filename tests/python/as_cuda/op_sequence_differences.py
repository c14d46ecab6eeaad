"""All that may differ between native CUDA's ops and chameleon's, and why."""

# Ops that do not count, on either side.
IGNORED = {
    "_copy_from.default": "copies between devices are handed over by it",
    "_has_compatible_shallow_copy_type.default": "asked by `x.data = y`",
    "_local_scalar_dense.default": "reading a value",
    "_to_copy.default": "what was made on the CPU moves to the device",
    "_use_cudnn_ctc_loss.Tensor": "asked twice natively while a mode is on",
    "_use_miopen_ctc_loss.Tensor": "asks ROCm, which always says no",
    "_use_miopen_ctc_loss.default": "asks ROCm, which always says no",
    "copy_.default": "copies between devices go another way",
    "detach.default": "a view; follows whether a gradient is stolen or copied",
    "lift_fresh.default": "a constant of Python's",
    "new_empty_strided.default": (
        "a gradient is copied where a kernel in Python still refers to it, as "
        "the emulated GPU's do"
    ),
    "view.default": "a view",
}

# The same in a row: no bytes are in it.
IGNORED_IN_A_ROW = {
    ("empty.memory_format", "set_.source_Storage"): (
        "native looks whether recurrent weights lie as cuDNN wants them"
    ),
}

# Samples, by the beginning of their names.
_FLASH = (
    "SDPA's composite knows flash attention of other devices as "
    "_scaled_dot_product_fused_attention_overrideable; rows are padded inside"
)
DIFFERENT = {
    "attention of 60, ": _FLASH,
}
