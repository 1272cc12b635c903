"""The rounding points of a LoRA delta."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NumericMode:
    """Where an engine rounds: docs/semantics.md [1.17].

    h      what h = x Aᵀ is kept in between shrink and expand. "fp32": the accumulator; "split2":
           hi + lo in the weights' dtype; "cast_to_weight": rounded to the weights' dtype before it
           meets B; "store_as_x": a buffer of x's dtype.
    sum    "one_round": y = round(base + d); "two_round": d is a tensor of its own, rounded first.
    scale  "accumulator": d = scaling · sum, in fp32; "folded_b": B' = round(scaling · B), once.
    """

    h: Literal["fp32", "split2", "cast_to_weight", "store_as_x"] = "fp32"
    sum: Literal["one_round", "two_round"] = "one_round"
    scale: Literal["accumulator", "folded_b"] = "accumulator"

    def names(self) -> tuple[str, str, str]:
        """As the compiled module takes it."""
        return self.h, self.sum, self.scale


DEFAULT_MODE = NumericMode()
VLLM_MODE = NumericMode("cast_to_weight", "two_round", "folded_b")
SGLANG_MODE = NumericMode("store_as_x", "two_round", "accumulator")
TOKENSPEED_MODE = SGLANG_MODE
