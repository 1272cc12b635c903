"""How far from the exact result a right implementation can be. docs/error_bounds.md derives it."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loratory import _loratory
from loratory.arrays import (ArrayLike, Arrays, FloatLists, Floats, IntLists, Ints, float_lists,
                             floats, int_lists, ints, read, read_slices)
from loratory.modes import DEFAULT_MODE, NumericMode

__all__ = ["Bounds", "linear_bounds", "embedding_bounds", "unit_roundoff", "FP32_UNIT",
           "TENSOR_CORE_UNIT"]

FP32_UNIT = 2.0**-24
"""Unit of a product or sum in fp32."""
TENSOR_CORE_UNIT = 2.0**-22
"""Unit of a tensor core's accumulator, which may truncate."""


def unit_roundoff(dtype: str) -> float:
    """|round(v) - v| <= unit_roundoff · |v| in the normal range; of i8 0: it has none."""
    return _loratory.unit_roundoff(dtype)


@dataclass(frozen=True)
class Bounds:
    """What an operation should give, element by element.

    expected  [T, N] float64; NaN where the operation must not write
    bound     [T, N] float64: |got - expected| of a right implementation, whatever its order of
              summation; NaN likewise
    covered   [T, N]: where the operation writes
    """

    expected: npt.NDArray[np.float64]
    bound: npt.NDArray[np.float64]
    covered: npt.NDArray[np.bool_]

    def errors_over(self, got: ArrayLike) -> npt.NDArray[np.float64]:
        """[T, N] |got - expected| / bound, 0 where nothing is covered. Above 1 is a wrong result.
        An infinity counts as right where the exact result rounds to it. NaN never does, and
        nothing does where the exact result is NaN."""
        return _loratory.error_over(read(got, "got"), self.expected, self.bound,
                                    self.covered.view(np.uint8))

    def worst(self, got: ArrayLike) -> float:
        """The largest of errors_over(got); 0 if nothing is covered."""
        return float(self.errors_over(got).max(initial=0.0))


def linear_bounds(x: ArrayLike, a: Arrays, b: Arrays, ranks: IntLists, scalings: FloatLists,
                  slots: Ints, y: ArrayLike, *, offset_start: int = 0, add_inputs: bool = True,
                  mode: NumericMode = DEFAULT_MODE, unit: float = FP32_UNIT,
                  operand_rounding: float = 0.0, flushes_subnormals: bool = False) -> Bounds:
    """Of linear() with the same arguments; y is the base before the call, and is not written.

    unit                of one product or sum: TENSOR_CORE_UNIT for tensor cores
    operand_rounding    relative error of an operand rounded before the product, summed over the
                        operands: 2^-11 for each fp32 operand rounded to TF32
    flushes_subnormals  results of products and sums, not inputs

    Valid if no intermediate overflows. Takes Ctrl-C several times a second.
    Errors: as linear().
    """
    slices = read_slices(a, "a")
    expected, bound, covered = _loratory.linear_bounds(
        read(x, "x"), slices, read_slices(b, "b"), int_lists(ranks, len(slices), "ranks"),
        float_lists(scalings, len(slices), "scalings"), ints(slots, "slots"), offset_start,
        add_inputs, mode.names(), unit, operand_rounding, flushes_subnormals, read(y, "y"))
    return Bounds(expected, bound, covered.view(np.bool_))


def embedding_bounds(token_ids: Ints, a: ArrayLike, b: ArrayLike, ranks: Ints, scalings: Floats,
                     slots: Ints, y: ArrayLike, *, mode: NumericMode = DEFAULT_MODE,
                     unit: float = FP32_UNIT, operand_rounding: float = 0.0,
                     flushes_subnormals: bool = False) -> Bounds:
    """Of embedding() with the same arguments; y is the base before the call. Errors: as there."""
    expected, bound, covered = _loratory.embedding_bounds(
        ints(token_ids, "token_ids", np.int64), ints(slots, "slots"), read(a, "a"), read(b, "b"),
        ints(ranks, "ranks"), floats(scalings, "scalings"), mode.names(), unit, operand_rounding,
        flushes_subnormals, read(y, "y"))
    return Bounds(expected, bound, covered.view(np.bool_))
