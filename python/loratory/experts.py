"""LoRA on the linear layers of experts. docs/moe.md.

A mixture-of-experts layer works on rows: row t·k + i is token t at its i-th expert. Letters: k
experts of a token, E experts held here; others as in loratory.operations. Errors: InputError naming
the argument, nothing is written then. The GIL is released; Ctrl-C waits for the end of the call.
"""
from __future__ import annotations

from dataclasses import dataclass

from loratory import _loratory
from loratory.arrays import (ArrayLike, Arrays, Dtype, FloatLists, Floats, IntLists, Ints,
                             NumpyArray, empty, float_lists, floats, int_lists, ints, read,
                             read_slices, write)
from loratory.errors import InputError
from loratory.modes import DEFAULT_MODE, NumericMode

__all__ = ["ExpertRows", "expert_shrink", "expert_expand", "expert_linear"]


@dataclass
class ExpertRows:
    """Which expert and which adapter each row has.

    experts            [T·k], those of one token distinct
    slots              [T], -1 for tokens without adapter
    num_slots          L
    experts_per_token  k
    expert_map         [all experts] -> 0..E-1, or -1: lies elsewhere; empty: all are here
    enabled            [L] False: the slot has no delta; None: all have
    """

    experts: Ints
    slots: Ints
    num_slots: int
    experts_per_token: int = 1
    expert_map: Ints = ()
    enabled: list[bool] | None = None

    def compiled(self) -> _loratory.ExpertRows:
        """As the compiled module takes it. Errors: InputError, an `enabled` of another length."""
        if self.enabled is not None and len(self.enabled) != self.num_slots:
            raise InputError(f"enabled: has {len(self.enabled)} entries, and num_slots is "
                             f"{self.num_slots}")
        enabled = [1] * self.num_slots if self.enabled is None else [int(e) for e in self.enabled]
        return _loratory.ExpertRows(self.experts_per_token, ints(self.experts, "experts"),
                                    ints(self.expert_map, "expert_map"),
                                    ints(self.slots, "slots"), [*enabled, 0])


def _shape(slices: list[_loratory.Array]) -> tuple[int, ...] | None:
    """[L, E] of weights; None: of those that are refused anyhow."""
    return tuple(slices[0].shape[:2]) if slices and len(slices[0].shape) == 4 else None


def expert_shrink(x: ArrayLike, rows: ExpertRows, a: Arrays, ranks: IntLists, *,
                  h_dtype: Dtype = "f32",
                  out: ArrayLike | None = None) -> NumpyArray | ArrayLike:
    """h[i, row, j] = sum_c A_i[slot, expert, j, c] · x[row, c].

    x      [T, K], or [T·k, K] where rows differ already (the second layer)
    a      [L, E, R, K] for each slice
    ranks  [L, E] for each slice, or one for all
    out    [S, T·k, R]; None: zeros of h_dtype

    Returns h.
    """
    slices = read_slices(a, "a")
    if out is None:
        num_rows = len(ints(rows.experts, "experts"))
        rank = max(array.shape[2] for array in slices)
        out = empty(h_dtype, [len(slices), num_rows, rank])
    _loratory.expert_shrink(read(x, "x"), rows.compiled(), slices,
                            int_lists(ranks, len(slices), "ranks", 2, _shape(slices)),
                            write(out, "out"))
    return out


def expert_expand(h: ArrayLike, rows: ExpertRows, b: Arrays, ranks: IntLists,
                  scalings: FloatLists, y: ArrayLike, *, router_weights: Floats = (),
                  offset_start: int = 0, mode: NumericMode = DEFAULT_MODE) -> ArrayLike:
    """y[row] += router_weight · scaling · sum_j h[i, row, j] · B_i[slot, expert, n, j], in place.

    b                [L, E, N_i, R] for each slice
    ranks, scalings  [L, E] for each slice, or one for all
    router_weights   [T·k]; empty: delta is not weighted
    y                [T·k, >= offset_start + sum of N_i]; holds base, and the result afterwards
    """
    slices = read_slices(b, "b")
    _loratory.expert_expand(read(h, "h"), rows.compiled(), slices,
                            int_lists(ranks, len(slices), "ranks", 2, _shape(slices)),
                            float_lists(scalings, len(slices), "scalings", 2, _shape(slices)),
                            floats(router_weights, "router_weights"), offset_start, mode.names(),
                            write(y, "y"))
    return y


def expert_linear(x: ArrayLike, rows: ExpertRows, a: Arrays, b: Arrays, ranks: IntLists,
                  scalings: FloatLists, y: ArrayLike, *, router_weights: Floats = (),
                  mode: NumericMode = DEFAULT_MODE) -> ArrayLike:
    """expert_expand(expert_shrink(x)), in place. Shapes as there. Returns y."""
    slices = read_slices(a, "a")
    _loratory.expert_linear(read(x, "x"), rows.compiled(), slices, read_slices(b, "b"),
                            int_lists(ranks, len(slices), "ranks", 2, _shape(slices)),
                            float_lists(scalings, len(slices), "scalings", 2, _shape(slices)),
                            floats(router_weights, "router_weights"), mode.names(), write(y, "y"))
    return y
