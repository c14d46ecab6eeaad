"""A GPU that is emulated: how scripts run on it, and what kernels compute.

`outcomes()` runs a script with tests/cpp/support/emulated_cuda.cpp loaded
before PyTorch. There kernels do not run; after `install()` the CPU's kernels
run in their place, on the emulated GPU's memory, and what they read and wrote
is put on record, so that the emulated driver reports memory that is used too
early.
"""

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import warnings

import emulated_cudnn
import fused_cells
import torch
from gpu.places import emulated_environment

NEEDS = "needs a CUDA build of torch, CUDA's headers and a C++ compiler"
_ROOT = pathlib.Path(__file__).parents[1]
_SOURCES = [
    *(
        _ROOT / "tests/cpp/support" / f"{name}.cpp"
        for name in (
            "emulated_cuda",
            "emulated_cuda_kernels",
            "emulated_libraries",
            "emulated_driver",
            "emulated_calls",
            "emulated_memory",
            "stream_clocks",
        )
    ),
    *(
        _ROOT / "backend/runtime" / f"{name}.cpp"
        for name in (
            "address_space",
            "cpu/range_set",
            "cuda/cuda_driver",
            "options",
            "simulated/gpu_profiles",
        )
    ),
]
_LIBRARY = ctypes.CDLL(None)
_CUDA = torch.cuda  # torch_chameleon.as_cuda puts another one in its place
# Not computed: what allocates, and what looks at the device itself.
_LEFT = ("empty", "_local_scalar_dense", "_pin_memory", "is_pinned", "resize_")
_LEFT += ("set_", "record_stream", "as_strided", "view", "_reshape_alias")
_LEFT += ("_fused_sdp_choice", "unfold", "_efficient", "_flash", "miopen")
_LEFT += ("_scaled_dot_product_flash", "_scaled_dot_product_efficient")
_LEFT += ("_scaled_dot_product_fused", "_use_cudnn", "_use_miopen")
_LEFT += ("_cudnn_rnn_flatten_weight",)
# What asks for a handle of cuBLAS, and with it for its workspace.
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot"}
_OFFSET = 4  # what a kernel that draws takes at least of a generator's numbers


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def can_be_built():
    """Whether outcomes() can run here; NEEDS says what it takes."""
    return (
        torch.version.cuda is not None
        and cuda_headers() is not None
        and shutil.which("c++") is not None
    )


def outcomes(script, folder, options):
    """Runs a script on the emulated GPU; returns its last line, from JSON.

    Args:
        script: Its path.
        folder: Where the library to load before PyTorch is built and kept.
        options: For CHAMELEON_EMULATED, besides the memory.
    """
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(folder, options),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def environment(folder, options, mebibytes=512):
    """Of a process that runs on the emulated GPU; arguments as outcomes()'."""
    library = built(pathlib.Path(folder))
    paths = [str(_ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **emulated_environment(library, options, mebibytes),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def built(folder):
    """Builds the library to load before PyTorch, unless it is there."""
    headers = cuda_headers()
    digest = hashlib.sha256(headers.encode())
    for source in _SOURCES:
        for path in (source, source.with_suffix(".h")):
            digest.update(path.read_bytes() if path.exists() else b"")
    library = folder / f"{digest.hexdigest()[:16]}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        build = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared"]
        build += ["-fvisibility=hidden", f"-I{_ROOT}", "-isystem"]
        build += [headers, "-Wl,-soname,libcuda.so.1", "-o", made]
        subprocess.run([*build, *_SOURCES, "-ldl", "-lpthread"], check=True)
        made.rename(library)
    return library


def cuda_headers():
    """Where the build looks for them (ci/cmake/cuda.cmake), or None."""
    wheels = importlib.util.find_spec("nvidia")
    folders = []
    if wheels and wheels.submodule_search_locations:
        folders = [f"{at}/cu13" for at in wheels.submodule_search_locations]
    for folder in ("/usr/local/cuda", *folders):
        if pathlib.Path(folder, "include/cudaTypedefs.h").exists():
            return f"{folder}/include"
    return None


def is_present():
    """Whether the GPU is an emulated one."""
    return hasattr(_LIBRARY, "emulated_kernels")


def counted(name):
    """How often a function of the driver was called."""
    _LIBRARY.emulated_calls.restype = ctypes.c_uint64
    return _LIBRARY.emulated_calls(name.encode())


def was_used():
    """Whether anybody has called anything of CUDA yet."""
    _LIBRARY.emulated_was_used.restype = ctypes.c_bool
    return _LIBRARY.emulated_was_used()


def live():
    """What was made and not given back, by name; all work has to be over."""
    _LIBRARY.emulated_live.restype = ctypes.c_char_p
    rows = _LIBRARY.emulated_live().decode().split(", ")
    counts = (row.split(" ", 1) for row in rows)
    return {what: int(count) for count, what in counts}


def kernels():
    """How many kernels were launched."""
    _LIBRARY.emulated_kernels.restype = ctypes.c_uint64
    return _LIBRARY.emulated_kernels()


def capture(on):
    """From now on streams say that they are being captured, or not."""
    _LIBRARY.emulated_capture(ctypes.c_bool(on))


def fail(error):
    """From now on each call reports this error of CUDA's: the GPU is lost.

    With 0 none does, which no true GPU does.
    """
    _LIBRARY.emulated_fail(ctypes.c_int(error))


def install(native=False):
    """Registers the CPU's kernels in place of CUDA's.

    Args:
        native: Plain CUDA tensors are used. Else copies between them are left:
            what of them is no memcpy is not computed.
    """
    libraries = {
        space: torch.library.Library(space, "IMPL")
        for space in ("aten", "chameleon")
    }
    fused_cells.register(libraries["aten"])
    emulated_cudnn.register(libraries["aten"])
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    names = set(registered("CUDA"))
    # Composites: what would be left of them is a copy, or cuDNN's.
    names |= {"aten::clone", "aten::convolution_backward"}
    names |= {"aten::copy_"} if native else set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(names):
            space, _, short = name.partition("::")
            if space not in libraries or short.startswith(_LEFT):
                continue
            base, _, overload = short.partition(".")
            try:
                packet = getattr(getattr(torch.ops, space), base)
                op = getattr(packet, overload or "default")
            except AttributeError:
                continue
            kernel = functools.partial(compute, op)
            libraries[space].impl(short, kernel, "CUDA", allow_override=True)
    globals()["_registrations"] = libraries  # live as long as they do


def compute(op, *args, **kwargs):
    """Runs the CPU's kernel of an op on the emulated GPU's memory."""
    with _CUDA.device(_device_of((*args, *kwargs.values()))):
        return _compute_there(op, *args, **kwargs)


def _device_of(values):
    """The device that a kernel's wrapper would make current; None: it stays."""
    for value in values:
        if isinstance(value, (list, tuple)):
            found = _device_of(value)
            if found is not None:
                return found
        if isinstance(value, torch.Tensor):
            value = value.device
        if isinstance(value, torch.device) and value.type == "cuda":
            return value
    return None


def _compute_there(op, *args, **kwargs):
    stream = ctypes.c_void_p(_CUDA.current_stream().cuda_stream)
    _LIBRARY.emulated_begin_kernel(stream)
    shown, reads, writes = {}, [], []

    def show(value, written):
        if isinstance(value, torch.Tensor):
            if value.device.type != "cuda":
                return value
            (writes if written else reads).append(_range_of(value))
            if id(value) not in shown:
                shown[id(value)] = (value, _on_cpu(value))
            return shown[id(value)][1]
        if isinstance(value, (list, tuple)):
            return type(value)(show(each, written) for each in value)
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return value

    def is_written(argument):
        return (
            argument.alias_info is not None and argument.alias_info.is_write
        ) or (op._schema.name, argument.name) in emulated_cudnn.UNANNOUNCED

    schema = op._schema.arguments
    by_name = {argument.name: argument for argument in schema}
    shown_args = [
        show(value, is_written(argument))
        for value, argument in zip(args, schema, strict=False)
    ]
    shown_kwargs = {
        name: show(value, is_written(by_name[name]))
        for name, value in kwargs.items()
    }
    after = None
    if torch.Tag.nondeterministic_seeded in op.tags:
        shown_args, shown_kwargs, after = _drawing(op, shown_args, shown_kwargs)
    if op._schema.name.removeprefix("aten::") in _PRODUCTS:
        torch.cuda.current_blas_handle()
    result = op(*shown_args, **shown_kwargs)
    if after is not None:
        after()
    for original, alias in shown.values():
        if original.size() != alias.size():  # out= of another size
            original.resize_(alias.size())
            _on_cpu(original).copy_(alias)

    def give(value):
        if isinstance(value, torch.Tensor):
            for original, alias in shown.values():
                if value is alias:
                    return original
            # Not torch.empty_strided, to which as_cuda gives another device.
            made = torch.ops.aten.empty_strided.default(
                value.size(),
                value.stride(),
                dtype=value.dtype,
                device=torch.device("cuda"),
            )
            if value.numel():
                # Its memory may be in use until the stream gets here.
                _LIBRARY.emulated_begin_kernel(stream)
                ctypes.memmove(
                    made.untyped_storage().data_ptr(),
                    value.untyped_storage().data_ptr()
                    + value.storage_offset() * value.element_size(),
                    _range_of(made).bytes,
                )
            writes.append(_range_of(made))
            return made
        if isinstance(value, (list, tuple)):
            return type(value)(give(each) for each in value)
        return value

    given = give(result)
    ranges = [each for each in (*reads, *writes) if each.bytes]
    count = sum(1 for each in reads if each.bytes)
    _LIBRARY.emulated_end_kernel(
        stream,
        (_Range * len(ranges))(*ranges),
        ctypes.c_size_t(count),
        ctypes.c_size_t(len(ranges) - count),
    )
    return given


def _drawing(op, args, kwargs):
    """The numbers that a kernel draws: those of the GPU's generator.

    Returns:
        The arguments with a generator of the CPU in its place, and a function
        that is called afterwards.
    """
    names = [argument.name for argument in op._schema.arguments]
    at = names.index("generator") if "generator" in names else None
    given = kwargs.get("generator")
    if at is not None and at < len(args):
        given = args[at]
    if given is None:
        device = torch.cuda.current_device()
        given = torch.cuda.default_generators[device]
    if given.device.type != "cuda":
        return args, kwargs, lambda: None
    offset = given.get_offset()
    given.set_offset(offset + _OFFSET)
    seed = hash((given.initial_seed(), offset))
    if at is None:
        default = torch.default_generator
        state = default.get_state()
        default.manual_seed(seed)
        return args, kwargs, lambda: default.set_state(state)
    drawn = torch.Generator().manual_seed(seed)
    if at < len(args):
        return [*args[:at], drawn, *args[at + 1 :]], kwargs, lambda: None
    return args, kwargs | {"generator": drawn}, lambda: None


def _range_of(tensor):
    if tensor.numel() == 0:
        return _Range(None, 0)
    last = sum(
        (size - 1) * stride
        for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return _Range(tensor.data_ptr(), (last + 1) * tensor.element_size())


def _on_cpu(tensor):
    storage = tensor.untyped_storage()
    alias = torch.empty(0, dtype=tensor.dtype, device="cpu")
    if storage.nbytes() == 0:
        return alias.resize_(tensor.size())
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    alias.set_(
        torch.frombuffer(memory, dtype=torch.uint8).untyped_storage(),
        tensor.storage_offset(),
        tensor.size(),
        tensor.stride(),
    )
    return alias
