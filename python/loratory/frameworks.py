"""Tensors of the library that a kernel is written for, as views of the harness's memory."""
from __future__ import annotations

import contextlib
import importlib
from typing import Any, Protocol

import numpy as np

from loratory.arrays import numpy_bits, numpy_dtype
from loratory.errors import InputError

__all__ = ["Framework", "framework_named"]


class Framework(Protocol):
    """One library."""

    def tensor(self, array: Any, dtype: str) -> Any:
        """A view of `array`, which speaks DLPack and has the bits of numbers of `dtype`; empty:
        numbers as they are."""

    def from_numpy(self, array: Any, device: str) -> Any:
        """A copy of a numpy array, on "cpu" or "cuda"."""

    def store(self, source: Any, array: Any, dtype: str) -> None:
        """The numbers of the tensor `source`, of the shape and dtype of tensor(array, dtype), to
        where that lies."""

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Work inside goes to this CUstream; 0: the default one."""


class _Numpy:
    def tensor(self, array: Any, dtype: str) -> Any:
        shown = np.from_dlpack(array)
        return shown.view(numpy_dtype(dtype)) if dtype else shown

    def from_numpy(self, array: Any, device: str) -> Any:
        return array.copy()

    def store(self, source: Any, array: Any, dtype: str) -> None:
        self.tensor(array, dtype)[...] = source

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class _Torch:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
                        "f8_e4m3fn": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2,
                        "i8": torch.int8}

    def tensor(self, array: Any, dtype: str) -> Any:
        shown = self._torch.from_dlpack(array)
        return shown.view(self._dtypes[dtype]) if dtype else shown

    def from_numpy(self, array: Any, device: str) -> Any:
        bits, dtype = numpy_bits(array)
        copy = self._torch.from_numpy(np.array(bits))  # keeps no strides of its own
        return (copy.view(self._dtypes[dtype]) if dtype else copy).to(device)

    def store(self, source: Any, array: Any, dtype: str) -> None:
        self.tensor(array, dtype).copy_(source)

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        if stream == 0:
            return contextlib.nullcontext()
        external = self._torch.cuda.ExternalStream(stream)
        return self._torch.cuda.stream(external)  # type: ignore[no-any-return]


class _Cupy:
    """bf16 and fp8 are bits, uint16 and uint8: cupy has no such numbers."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def tensor(self, array: Any, dtype: str) -> Any:
        return self._cupy.from_dlpack(array)

    def from_numpy(self, array: Any, device: str) -> Any:
        return self._cupy.asarray(numpy_bits(array)[0])

    def store(self, source: Any, array: Any, dtype: str) -> None:
        self.tensor(array, dtype)[...] = source

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        if stream == 0:
            return contextlib.nullcontext()
        return self._cupy.cuda.ExternalStream(stream)  # type: ignore[no-any-return]


class _Jax:
    """jax cannot write in place: a kernel returns y. Tensors are copies, on the CPU."""

    def __init__(self, jax: Any) -> None:
        self._jnp = importlib.import_module("jax.numpy")

    def tensor(self, array: Any, dtype: str) -> Any:
        shown = np.from_dlpack(array).copy()
        return self._jnp.asarray(shown.view(numpy_dtype(dtype)) if dtype else shown)

    def from_numpy(self, array: Any, device: str) -> Any:
        return self._jnp.asarray(array)

    def store(self, source: Any, array: Any, dtype: str) -> None:
        _Numpy().store(np.asarray(source), array, dtype)

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


def framework_named(name: str) -> Framework:
    """Errors: InputError, a name that is not known, a library that cannot be imported."""
    if name == "numpy":
        return _Numpy()
    made = {"torch": _Torch, "cupy": _Cupy, "jax": _Jax}.get(name)
    if made is None:
        raise InputError(f'framework: "{name}" is not known; numpy, torch, cupy or jax')
    try:
        return made(importlib.import_module(name))
    except ImportError as error:
        raise InputError(f"framework: {name} cannot be imported ({error})") from error
