"""Arrays in and out.

Whatever speaks DLPack on the CPU comes in without a copy: numpy, torch, jax, cupy's pinned memory.
numpy has no bf16 and no fp8 of its own; its arrays of ml_dtypes come in too, and what goes out in
these formats is a numpy array of ml_dtypes.
"""
from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from loratory import _loratory
from loratory.errors import InputError


@runtime_checkable
class SupportsDLPack(Protocol):
    """A tensor of torch, jax, cupy, numpy or any other library that speaks DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


ArrayLike: TypeAlias = SupportsDLPack
"""An array in host memory of f32, f16, bf16, f8_e4m3fn, f8_e5m2 or i8, with any strides."""
Arrays: TypeAlias = ArrayLike | Sequence[ArrayLike]
"""One array for each slice of a packed layer; an array alone is a layer of one slice."""
Ints: TypeAlias = Iterable[int] | SupportsDLPack
"""A list, or an array of integers in host memory."""
IntLists: TypeAlias = Ints | Sequence[Ints]
"""One list for each slice; a list of numbers alone counts for every slice."""
Floats: TypeAlias = Iterable[float] | SupportsDLPack
FloatLists: TypeAlias = Floats | Sequence[Floats]
Dtype: TypeAlias = Literal["f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2", "i8"]
NumpyArray: TypeAlias = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i8": np.dtype(np.int8),
}
_WITHOUT_DLPACK = {NUMPY_DTYPES[name]: name for name in ("bf16", "f8_e4m3fn", "f8_e5m2")}
_BITS = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
_TORCH_F8 = {"torch.float8_e4m3fn": "f8_e4m3fn", "torch.float8_e5m2": "f8_e5m2"}
_DTYPE_REMEDY = "convert it to f32, f16, bf16, f8_e4m3fn, f8_e5m2 or i8"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of "f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2" or "i8"; ml_dtypes has those
    that numpy lacks. Errors: InputError, an unknown name."""
    if name not in NUMPY_DTYPES:
        raise InputError(f'dtype: "{name}" is not a dtype; {", ".join(NUMPY_DTYPES)} are')
    return NUMPY_DTYPES[name]


def empty(dtype: str, shape: Sequence[int]) -> NumpyArray:
    """A numpy array of zeros."""
    return np.zeros(shape, numpy_dtype(dtype))


def numpy_bits(array: NumpyArray) -> tuple[NumpyArray, str]:
    """A numpy array as other libraries can take it: bits and dtype of those of ml_dtypes."""
    known = _WITHOUT_DLPACK.get(array.dtype)
    return (array, "") if known is None else (array.view(_BITS[array.dtype.itemsize]), known)


def _as_bits(array: Any, name: str) -> tuple[Any, str]:
    """The array as DLPack can carry it, and the dtype of its numbers where that no longer says
    it."""
    if isinstance(array, np.ndarray):
        if array.dtype in _WITHOUT_DLPACK:
            return numpy_bits(array)
        if array.dtype not in NUMPY_DTYPES.values():
            raise InputError(f"{name}: {array.dtype} is no dtype here; {_DTYPE_REMEDY}")
    elif type(array).__module__ == "torch" or getattr(array, "requires_grad", False):
        array = array.detach()
        known = _TORCH_F8.get(str(array.dtype))
        if known is not None:  # older releases do not hand out fp8
            return array.view(sys.modules["torch"].uint8), known
    if not isinstance(array, SupportsDLPack):
        raise InputError(f"{name}: {type(array).__name__} is not an array; give one that speaks "
                         "DLPack (numpy, torch, jax, cupy)")
    return array, ""


def _import(make: Any, array: Any, name: str) -> _loratory.Array:
    bits, dtype = _as_bits(array, name)
    try:
        return cast(_loratory.Array, make(bits, name, dtype))
    except TypeError as error:
        raise InputError(f"{name}: its library does not hand it out ({_why(bits)})") from error


def _why(array: Any) -> str:
    try:
        array.__dlpack__()
    except Exception as error:  # whatever the other library raises is the reason
        return str(error) or type(error).__name__
    return "it is read-only, or of a kind that DLPack cannot describe"


def read(array: Any, name: str) -> _loratory.Array:
    """`array` for reading, kept alive. Errors: InputError at `name`: no array, on a device, a dtype
    that is not ours."""
    return _import(_loratory.Array.read, array, name)


def write(array: Any, name: str) -> _loratory.Array:
    """`array` for writing, kept alive. Errors: as read(), and one that is read-only."""
    return _import(_loratory.Array.write, array, name)


def read_slices(arrays: Any, name: str) -> list[_loratory.Array]:
    """One array for each slice."""
    if isinstance(arrays, SupportsDLPack):
        arrays = [arrays]
    return [read(array, f"{name}[{i}]") for i, array in enumerate(arrays)]


def from_bits(bits: tuple[str, NumpyArray]) -> NumpyArray:
    """The numbers of what the module shows as (dtype, bits)."""
    dtype, array = bits
    return array.view(numpy_dtype(dtype))


class _UnequalLengths(InputError):
    """A list of lists that is no array."""


def _as_numpy(values: Any, name: str) -> NumpyArray:
    if isinstance(values, np.ndarray):
        return values
    try:
        if isinstance(values, SupportsDLPack):
            return np.from_dlpack(cast(Any, values))
        listed = values if isinstance(values, Sequence) else list(values)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(f"{name}: {type(values).__name__} is no list of numbers "
                         "and no array in host memory") from error
    try:
        return np.asarray(listed)
    except ValueError as error:
        raise _UnequalLengths(f"{name}: its lists have unequal lengths") from error


def _numbers(values: Any, name: str, dtype: type) -> NumpyArray:
    array = _as_numpy(values, name)
    if array.size == 0:
        return np.zeros(array.shape, dtype)
    if issubclass(dtype, np.integer):
        if not np.issubdtype(array.dtype, np.integer):
            raise InputError(f"{name}: {array.dtype} is no type of integers")
        info = np.iinfo(dtype)
        if array.min() < info.min or array.max() > info.max:
            raise InputError(f"{name}: a number is outside [{info.min}, {info.max}]")
    if array.dtype.kind in "OSU":
        raise InputError(f"{name}: {array.dtype} is no type of numbers")
    return array.astype(dtype)


def ints(values: Any, name: str, dtype: type = np.int32) -> list[int]:
    """A flat list. Errors: InputError at `name`: not integers, too large, not of one axis."""
    array = _numbers(values, name, dtype)
    if array.ndim != 1:
        raise InputError(f"{name}: {array.ndim} axes where one is expected")
    return cast(list[int], array.tolist())


def floats(values: Any, name: str) -> list[float]:
    """A flat list of numbers that are rounded to fp32."""
    return cast(list[float], _numbers(values, name, np.float32).reshape(-1).tolist())


def _per_slice(values: Any, num_slices: int, axes: int, dtype: type,
               name: str) -> list[NumpyArray]:
    """An array of `axes` axes for each slice, from one for all or one for each."""
    try:
        whole = _numbers(values, name, dtype)
        if whole.ndim == axes:
            return [whole] * num_slices
        if whole.ndim < axes:
            raise InputError(f"{name}: {whole.ndim} axes where {axes} or {axes + 1} are expected")
    except _UnequalLengths:
        pass  # of slices: each is an array nevertheless
    arrays = [_numbers(value, f"{name}[{i}]", dtype) for i, value in enumerate(values)]
    for i, array in enumerate(arrays):
        if array.ndim != axes:
            raise InputError(f"{name}[{i}]: {array.ndim} axes where {axes} are expected")
    return arrays


def int_lists(values: Any, num_slices: int, name: str, axes: int = 1,
              shape: tuple[int, ...] | None = None) -> list[list[int]]:
    """A flat list of int32 for each slice, from arrays of `axes` axes and this shape."""
    return _flat_lists(_per_slice(values, num_slices, axes, np.int32, name), name, shape)


def float_lists(values: Any, num_slices: int, name: str, axes: int = 1,
                shape: tuple[int, ...] | None = None) -> list[list[float]]:
    """A flat list of fp32 for each slice, from arrays of `axes` axes and this shape."""
    return _flat_lists(_per_slice(values, num_slices, axes, np.float32, name), name, shape)


def _flat_lists(arrays: list[NumpyArray], name: str,
                shape: tuple[int, ...] | None) -> list[list[Any]]:
    for array in arrays:
        if shape is not None and array.shape != shape:
            raise InputError(f"{name}: has the shape {list(array.shape)}, and the weights have "
                             f"{list(shape)} slots and experts")
    return [array.reshape(-1).tolist() for array in arrays]
