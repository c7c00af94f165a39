# SPDX-License-Identifier: Apache-2.0
"""The ways to write values: what callers have at hand -> lintel.v1.Values."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Iterable, Union

import numpy as np

from lintel.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    import numpy.typing as npt

# Text for models with modality "bytes" (str is sent as UTF-8), token ids for every model, and for
# image models a uint8 array of two or more dimensions, in raster order. A uint8 array of one
# dimension is token ids, like any other array of integers.
Values = Union[str, bytes, bytearray, memoryview, Iterable[int], "npt.NDArray[Any]"]


def to_wire(values: Values) -> pb.Values:
    """Raises TypeError or ValueError for what can be no values of any model."""
    if isinstance(values, str):
        return pb.Values(text=values.encode())
    if isinstance(values, (bytes, bytearray, memoryview)):
        return pb.Values(text=bytes(values))
    if isinstance(values, np.ndarray):
        return _array_to_wire(values)
    tokens = list(values)
    for token in tokens:
        if isinstance(token, (bool, np.bool_)) or not hasattr(token, "__index__"):
            raise TypeError(f"token ids are integers, not {type(token).__name__}: {token!r}")
    return _tokens([operator.index(token) for token in tokens])


def _array_to_wire(array: npt.NDArray[Any]) -> pb.Values:
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"an array of values is of integers, not {array.dtype}")
    if array.ndim >= 2:
        if array.dtype != np.uint8:
            raise TypeError(f"an image is an array of uint8, not {array.dtype}")
        return pb.Values(pixels=array.tobytes())
    return _tokens(array.reshape(-1).tolist())


def _tokens(ids: list[int]) -> pb.Values:
    for extreme in (min(ids), max(ids)) if ids else ():
        if not -(2**31) <= extreme < 2**31:
            raise ValueError(f"{extreme} is no token id: it does not fit 32 bits")
    wire = pb.Values()
    wire.tokens.SetInParent()  # also when there are none
    wire.tokens.ids.extend(ids)
    return wire
