"""LoRA on linear layers with 8-bit weights. docs/quantized.md.

A number of an 8-bit array (f8_e4m3fn, f8_e5m2, i8) is bits · factor, with factors in fp32:

=========================  ==============================  ==============================
one factor for             A                               B
=========================  ==============================  ==============================
tensor: a slot             [L]                             [L]
channel: a row             [L, R]                          [L, N]
block: n x k               [L, ceil(R/n), ceil(K/k)]       [L, ceil(N/n), ceil(R/k)]
=========================  ==============================  ==============================

x_scale is [] (tensor), [T, 1] (token) or [T, ceil(K/k)] (block); h_scale [S], [S, T, 1] or
[S, T, ceil(R/k)]. None: x or h is f32, f16 or bf16. Letters, covered elements and errors as in
loratory.operations; the GIL is released, and Ctrl-C waits for the end of the call.
"""
from __future__ import annotations

from typing import Literal

from loratory import _loratory
from loratory.arrays import (ArrayLike, Arrays, Dtype, FloatLists, IntLists, Ints, NumpyArray,
                             empty, float_lists, int_lists, ints, read, read_slices, write)
from loratory.errors import InputError

__all__ = ["quantize", "shrink_quantized", "expand_quantized", "linear_quantized"]

Block = tuple[int, int]
"""Rows (n) and columns (k) under one factor; (0, 0): by tensor, channel or token."""


def _given(array: ArrayLike | None, name: str) -> _loratory.Array | None:
    return None if array is None else read(array, name)


def quantize(v: ArrayLike, dtype: Dtype, *, per: Literal["tensor", "token", "block"] = "token",
             group_k: int = 0, widths: Ints | None = None) -> tuple[NumpyArray, NumpyArray]:
    """(bits, scale) of v [T, n], f32, f16 or bf16: scale = max(absmax / largest, 2^-126), bits =
    nearest(v / scale), saturating.

    dtype    f8_e4m3fn, f8_e5m2 or i8
    per      how many numbers have one factor: all, a row's, or group_k of a row
    widths   [T] how many numbers of a row count; None: all

    Returns bits [T, n] and scale [] / [T, 1] / [T, ceil(n / group_k)] in fp32.
    """
    if per not in ("tensor", "token", "block"):
        raise InputError(f'per: "{per}" is not known; tensor, token or block')
    if (per == "block") != (group_k > 0):
        raise InputError(f'group_k: {group_k} beside per="{per}"; '
                         'give 1 or more with "block", else leave it out')
    source = read(v, "v")
    rows, columns = (list(source.shape) + [0, 0])[:2]
    groups = -(-columns // group_k) if per == "block" else 1
    scale = empty("f32", [] if per == "tensor" else [rows, groups])
    bits = empty(dtype, [rows, columns])
    _loratory.quantize(source, [columns] * rows if widths is None else ints(widths, "widths"),
                       group_k, write(bits, "bits"), write(scale, "scale"))
    return bits, scale


def shrink_quantized(x: ArrayLike, x_scale: ArrayLike | None, a: Arrays, a_scale: Arrays,
                     ranks: IntLists, slots: Ints, *, block: Block = (0, 0), h_dtype: Dtype = "f32",
                     out: ArrayLike | None = None) -> NumpyArray | ArrayLike:
    """h [S, T, R] = x Aᵀ of dequantised numbers; as operations.shrink."""
    slices = read_slices(a, "a")
    source = read(x, "x")
    if out is None:
        rank = max(array.shape[1] for array in slices)
        out = empty(h_dtype, [len(slices), source.shape[0], rank])
    _loratory.shrink_quantized(source, _given(x_scale, "x_scale"), ints(slots, "slots"), slices,
                               read_slices(a_scale, "a_scale"),
                               int_lists(ranks, len(slices), "ranks"), block, write(out, "out"))
    return out


def expand_quantized(h: ArrayLike, h_scale: ArrayLike | None, b: Arrays, b_scale: Arrays,
                     ranks: IntLists, scalings: FloatLists, slots: Ints, y: ArrayLike, *,
                     block: Block = (0, 0), offset_start: int = 0, add_inputs: bool = True,
                     sum: Literal["one_round", "two_round"] = "one_round") -> ArrayLike:
    """y += scaling · h Bᵀ of dequantised numbers, in place; as operations.expand. Returns y."""
    slices = read_slices(b, "b")
    _loratory.expand_quantized(read(h, "h"), _given(h_scale, "h_scale"), ints(slots, "slots"),
                               slices, read_slices(b_scale, "b_scale"),
                               int_lists(ranks, len(slices), "ranks"),
                               float_lists(scalings, len(slices), "scalings"), block, offset_start,
                               add_inputs, sum, write(y, "y"))
    return y


def linear_quantized(x: ArrayLike, x_scale: ArrayLike | None, a: Arrays, a_scale: Arrays, b: Arrays,
                     b_scale: Arrays, ranks: IntLists, scalings: FloatLists, slots: Ints,
                     y: ArrayLike, *, a_block: Block = (0, 0), b_block: Block = (0, 0),
                     offset_start: int = 0, add_inputs: bool = True,
                     sum: Literal["one_round", "two_round"] = "one_round") -> ArrayLike:
    """shrink_quantized into fp32; if x is 8-bit, quantize to its dtype; expand_quantized, in place.

    With x by tensor a row depends on the batch: h has one factor for all tokens. Returns y.
    """
    slices = read_slices(a, "a")
    _loratory.linear_quantized(read(x, "x"), _given(x_scale, "x_scale"), slices,
                               read_slices(a_scale, "a_scale"), read_slices(b, "b"),
                               read_slices(b_scale, "b_scale"),
                               int_lists(ranks, len(slices), "ranks"),
                               float_lists(scalings, len(slices), "scalings"),
                               ints(slots, "slots"), a_block, b_block, offset_start, add_inputs,
                               sum, write(y, "y"))
    return y
