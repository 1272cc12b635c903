"""What a LoRA kernel must compute, on the CPU: slow, obvious, and the same bits every time.

Letters: T tokens, K in-features, L slots, S slices of a packed layer, R rows of a slot's buffer for
one slice (the largest rank), N columns of a slice.

Common to all functions here:

* Arrays come in by DLPack, on the CPU, with any strides (loratory.arrays). dtypes f32, f16, bf16;
  x and A have one, A and B have one, y may have another.
* Row t and the columns of slice i are *covered* where slots[t] >= 0 and ranks[i][slots[t]] > 0.
  Nothing else is read or written: not rows of base tokens (slot -1), not what lies beyond the rank.
* Errors: InputError naming the argument: an axis of wrong size, a dtype, a slot outside [-1, L), a
  rank outside [0, R], a scaling that is not finite. Nothing is written then.
* The GIL is released. Ctrl-C is taken several times a second by shrink, expand, linear and logits;
  rows that were computed until then are written.
* docs/semantics.md has the statements behind each.
"""
from __future__ import annotations

import numpy as np

from loratory import _loratory
from loratory.arrays import (ArrayLike, Arrays, Dtype, FloatLists, Floats, IntLists, Ints,
                             NumpyArray, empty, float_lists, floats, int_lists, ints, read,
                             read_slices, write)
from loratory.errors import InputError
from loratory.modes import DEFAULT_MODE, NumericMode

__all__ = ["shrink", "expand", "linear", "logits", "embedding", "lora_scaling"]


def lora_scaling(alpha: float, rank: int, use_rslora: bool = False) -> float:
    """alpha / rank, or alpha / sqrt(rank) for rsLoRA; in double, rounded once to fp32.

    Errors: InputError: alpha not finite, rank < 1, a quotient that overflows fp32.
    """
    return _loratory.lora_scaling(alpha, rank, use_rslora)


def shrink(x: ArrayLike, a: Arrays, ranks: IntLists, slots: Ints, *, h_dtype: Dtype = "f32",
           out: ArrayLike | None = None) -> NumpyArray | ArrayLike:
    """h[i, t, j] = sum_c A_i[slot, j, c] · x[t, c] for j < rank.

    x      [T, K]
    a      [L, R, K] for each slice
    ranks  [L] for each slice, or one list for all
    slots  [T]
    out    [S, T, R] to write to; what is not covered keeps what it holds. None: zeros of h_dtype.

    Rounding: products and sums in fp32, c ascending; once to h's dtype. Returns h.
    """
    slices = read_slices(a, "a")
    if out is None:
        if not slices or len(slices[0].shape) != 3:
            raise InputError("a: needs the shape [slots, rank, in-features]")
        num_tokens = read(x, "x").shape[0]
        rank = max(array.shape[1] for array in slices if len(array.shape) == 3)
        out = empty(h_dtype, [len(slices), num_tokens, rank])
    _loratory.shrink(read(x, "x"), ints(slots, "slots"), slices,
                     int_lists(ranks, len(slices), "ranks"), write(out, "out"))
    return out


def expand(h: ArrayLike, b: Arrays, ranks: IntLists, scalings: FloatLists, slots: Ints,
           y: ArrayLike, *, offset_start: int = 0, add_inputs: bool = True,
           mode: NumericMode = DEFAULT_MODE) -> ArrayLike:
    """y[t, o_i + n] = base + scaling · sum_{j < rank} h[i, t, j] · B_i[slot, n, j], in place.

    h         [S, T, R]
    b         [L, N_i, R] for each slice
    ranks     [L] for each slice, or one list for all
    scalings  the same, of floats
    slots     [T]
    y         [T, >= offset_start + sum of N_i]; holds base, and the result afterwards

    add_inputs=False: y = delta, the old y is not read. o_i = offset_start + N_0 + ... + N_{i-1}.
    Returns y.
    """
    slices = read_slices(b, "b")
    _loratory.expand(read(h, "h"), ints(slots, "slots"), slices,
                     int_lists(ranks, len(slices), "ranks"),
                     float_lists(scalings, len(slices), "scalings"), offset_start, add_inputs,
                     mode.names(), write(y, "y"))
    return y


def linear(x: ArrayLike, a: Arrays, b: Arrays, ranks: IntLists, scalings: FloatLists, slots: Ints,
           y: ArrayLike, *, bias: Arrays | None = None, offset_start: int = 0,
           add_inputs: bool = True, mode: NumericMode = DEFAULT_MODE) -> ArrayLike:
    """LoRA on a linear layer: y += scaling · (x Aᵀ) Bᵀ, in place; shrink, then expand.

    x         [T, K]
    a         [L, R, K] for each slice
    b         [L, N_i, R] for each slice
    ranks     [L] for each slice, or one list for all; 0: the adapter has no such slice
    scalings  the same, of floats
    slots     [T], -1 for tokens without adapter
    y         [T, >= offset_start + sum of N_i]; holds base, and the result afterwards
    bias      [L, N_i] for each slice in y's dtype; vLLM's former lora_bias

    Returns y.
    """
    slices = read_slices(a, "a")
    _loratory.linear(read(x, "x"), slices, read_slices(b, "b"),
                     int_lists(ranks, len(slices), "ranks"),
                     float_lists(scalings, len(slices), "scalings"), ints(slots, "slots"),
                     [] if bias is None else read_slices(bias, "bias"), offset_start, add_inputs,
                     mode.names(), write(y, "y"))
    return y


def logits(hidden: ArrayLike, a: ArrayLike, b: ArrayLike, ranks: Ints, scalings: Floats,
           row_slots: Ints, y: ArrayLike, *, mode: NumericMode = DEFAULT_MODE) -> ArrayLike:
    """LoRA of lm_head, in place: linear() where a row is a row of logits and not a token.

    hidden     [rows, K]
    a, b       [L, R, K], [L, V, R]
    row_slots  [rows] (sampler_mapping)
    y          [rows, V] before soft-cap and logit scale
    """
    return linear(hidden, a, b, ranks, scalings, row_slots, y, mode=mode)


def embedding(token_ids: Ints, a: ArrayLike, b: ArrayLike, ranks: Ints, scalings: Floats,
              slots: Ints, y: ArrayLike, *, mode: NumericMode = DEFAULT_MODE) -> ArrayLike:
    """y[t] += scaling · A[slot, :, id] Bᵀ, in place; h is a column of A, exact.

    token_ids  [T], each in [0, V), base tokens included
    a, b       [L, R, V], [L, H, R]
    y          [T, H]; holds W_e[id], and the result afterwards

    Returns y.
    """
    _loratory.embedding(ints(token_ids, "token_ids", np.int64), ints(slots, "slots"), read(a, "a"),
                        read(b, "b"), ints(ranks, "ranks"), floats(scalings, "scalings"),
                        mode.names(), write(y, "y"))
    return y
