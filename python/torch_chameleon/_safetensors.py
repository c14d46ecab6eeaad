"""Writes safetensors files without a copy of the model in host memory."""

import itertools
import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import torch

from torch_chameleon._patches.storage_bytes import refuse_without_bytes
from torch_chameleon._replace_file import replace_file

# By torch's dtype, in the order in which tensors lie in a file.
_DTYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "float4_e2m1fn_x2": "F4",
    "bool": "BOOL",
}
_ORDER = {name: place for place, name in enumerate(_DTYPES)}
_METADATA = "__metadata__"
_CHUNK_BYTES = 16 << 20  # is what host memory it takes
_MOST_HEADER_BYTES = 100_000_000  # readers of the format take no more


def save_safetensors(
    tensors: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Saves tensors as `safetensors.torch.save_file` does, byte for byte.

    That one makes CPU tensors of all of them before it writes the first. Here
    16 MiB at a time go from where the bytes are, in device or host memory, into
    the file; nothing is brought into device memory for it. What was at `path`
    is replaced when all is on the disk: a save that is killed leaves the old
    file as it was.

    Args:
        tensors: By name, on any device; dense, contiguous, and none of them
            sharing memory with another (as safetensors has it).
        path: The file.
        metadata: Texts for the file's header.

    Raises:
        ValueError: A tensor is not contiguous, or of a dtype that the format
            does not have; or names and metadata take more than 100 MB.
        TypeError: Metadata that is no text.
        RuntimeError: Tensors share memory, or the device is simulated.

    Examples:
        >>> import torch, torch_chameleon
        >>> x = torch.ones(3, device="chameleon")
        >>> torch_chameleon.save_safetensors({"x": x}, "/tmp/x.safetensors")
    """
    _check_names(tensors)
    for name, tensor in tensors.items():
        _check(name, tensor)
        if tensor.device.type == "chameleon":
            refuse_without_bytes("save_safetensors")
    _check_sharing(tensors)
    _check_metadata(metadata)
    rows = sorted(tensors.items(), key=lambda row: (_place(row[1]), row[0]))
    header = _header(rows, metadata)
    with (
        replace_file(path) as temporary,
        open(temporary, "wb", buffering=0) as file,
    ):
        _write(file, header)
        largest = max((tensor.nbytes for _, tensor in rows), default=0)
        staging = torch.empty(
            min(largest, _CHUNK_BYTES), dtype=torch.uint8, device="cpu"
        )
        for _, tensor in rows:
            for chunk in _chunks(tensor, staging):
                _write(file, chunk.numpy().data)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _place(tensor: torch.Tensor) -> int:
    return _ORDER[_dtype(tensor)]


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(
            f"save_safetensors: {name!r} has layout {tensor.layout}; the "
            "format has dense tensors only, make it one with to_dense()"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"save_safetensors: {name!r} is not contiguous; pack it with "
            "contiguous(), or save the tensor that it is a view of"
        )
    if _dtype(tensor) not in _DTYPES:
        raise ValueError(
            f"save_safetensors: {name!r} has dtype {tensor.dtype}; the format "
            f"has {', '.join(_DTYPES)}"
        )


def _check_sharing(tensors: Mapping[str, torch.Tensor]) -> None:
    areas = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.nbytes, name)
        for name, tensor in tensors.items()
        if tensor.nbytes > 0
    )
    for before, after in itertools.pairwise(areas):
        if before[0] == after[0] and before[1] + before[2] > after[1]:
            raise RuntimeError(
                f"save_safetensors: {before[3]!r} and {after[3]!r} share "
                "memory, which the format cannot say; save one of them"
            )


def _check_names(tensors: Mapping[str, torch.Tensor]) -> None:
    for name in tensors:
        if not isinstance(name, str):
            raise TypeError(
                f"save_safetensors: {name!r} is no name; the format has "
                "tensors by texts: write str(name)"
            )
        if name == _METADATA:
            raise ValueError(
                f"save_safetensors: no tensor can be named {name!r}, which is "
                "where the format has its metadata; give it another name"
            )
        _check_text(name, f"the name {name!r}")


def _check_metadata(metadata: Mapping[str, str] | None) -> None:
    if not isinstance(metadata, Mapping | None):
        raise TypeError(
            f"save_safetensors: metadata is {metadata!r}; it must be texts by "
            'texts, such as {"format": "pt"}'
        )
    for name, value in (metadata or {}).items():
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(
                    f"save_safetensors: metadata[{name!r}] is {value!r}; the "
                    "format has texts only, by texts: write str(value)"
                )
            _check_text(text, f"metadata[{name!r}]")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"save_safetensors: {what} has half of a character (a lone "
            "surrogate), which no file can have"
        ) from None


def _header(
    rows: list[tuple[str, torch.Tensor]], metadata: Mapping[str, str] | None
) -> bytes:
    fields: dict[str, object] = {}
    if metadata is not None:
        fields[_METADATA] = dict(sorted(metadata.items()))
    begin = 0
    for name, tensor in rows:
        shape = list(tensor.shape)
        if tensor.dtype == torch.float4_e2m1fn_x2:
            shape[-1] *= 2  # an element of torch's holds two
        end = begin + tensor.nbytes
        fields[name] = {
            "dtype": _DTYPES[_dtype(tensor)],
            "shape": shape,
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    data = text.encode()
    data += b" " * (-len(data) % 8)
    if len(data) > _MOST_HEADER_BYTES:
        raise ValueError(
            f"save_safetensors: names and metadata take {len(data)} bytes; no "
            f"reader of the format takes more than {_MOST_HEADER_BYTES}"
        )
    return struct.pack("<Q", len(data)) + data


def _chunks(
    tensor: torch.Tensor, staging: torch.Tensor
) -> Iterator[torch.Tensor]:
    """The bytes of a contiguous tensor, a staging buffer at a time."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.nbytes == 0:
        return
    flat = tensor.reshape(-1).view(torch.uint8)
    for piece in flat.split(staging.numel()):
        yield staging[: piece.numel()].copy_(piece)


def _write(file: BinaryIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while len(rest) > 0:
        rest = rest[file.write(rest) :]
