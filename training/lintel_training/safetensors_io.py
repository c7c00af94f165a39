# SPDX-License-Identifier: Apache-2.0
"""Reads and writes .safetensors files, with the `safetensors` package where it is installed.

Debian has no such package, so a reader and writer of our own stand in: 8 bytes of header length
(little-endian), a JSON header of dtype, shape and byte range for each name, then the raw data.
"""

import json
import os
import struct

import torch

try:
    from safetensors.torch import load_file as _load_file
    from safetensors.torch import save as _save_bytes
except ImportError:
    _load_file = _save_bytes = None

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def encode(tensors, metadata=None):
    """The bytes of a file that holds `tensors` {name: tensor}; metadata: {name: text}."""
    header, blobs, offset = {"__metadata__": metadata} if metadata else {}, [], 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        # NumPy knows no bfloat16, so the bytes are taken from a view as int16.
        raw = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        blob = raw.numpy().tobytes()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    return b"".join([struct.pack("<Q", len(text)), text] + blobs)


def decode(data):
    """The inverse of encode(); ValueError for bytes that are no safetensors file."""
    if len(data) < 8:
        raise ValueError("shorter than the 8 bytes of its header length")
    (n,) = struct.unpack_from("<Q", data)
    if n > len(data) - 8:
        raise ValueError(f"header of {n} bytes in a file of {len(data)}")
    header = json.loads(data[8:8 + n])
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    body = memoryview(bytearray(data[8 + n:]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(body):
            raise ValueError(f"{name}: bytes {begin} to {end} of {len(body)}")
        dtype = _DTYPES[entry["dtype"]]
        # A tensor of no elements has no buffer to share.
        flat = (torch.frombuffer(body[begin:end], dtype=dtype) if end > begin
                else torch.empty(0, dtype=dtype))
        tensors[name] = flat.clone().reshape(entry["shape"])
    return tensors


def write_atomically(path, data):
    """Writes bytes so that `path` holds either the old content or all of the new."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # a full disk, or a signal that ends an evaluation
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def save(tensors, path, metadata=None):
    """Writes {name: tensor} to `path`, atomically."""
    if _save_bytes is None:
        data = encode(tensors, metadata)
    else:
        data = _save_bytes({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata)
    write_atomically(path, data)


def load(path):
    """Reads `path` into {name: CPU tensor}; ValueError naming the file when it is malformed."""
    if _load_file is not None:
        try:
            return _load_file(path)
        except OSError:
            raise
        except Exception as error:  # SafetensorError, which is none of Python's own
            raise ValueError(f"{path}: {error}") from error
    with open(path, "rb") as file:
        data = file.read()
    try:
        return decode(data)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path}: {error}") from error
