"""Cases for tests that call their kernel themselves. `check()` draws and judges more than this; a
case here is what one needs to step through a kernel in a debugger, or to keep a test of its own."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loratory import _loratory
from loratory.arrays import ArrayLike, NumpyArray, from_bits, read
from loratory.checking import Claims, Layer, make_layer, parameters_of, whole
from loratory.frameworks import framework_named

__all__ = ["LoraCase", "WrongElement", "Verdict", "assert_matches_reference", "draw_labels"]


@dataclass(frozen=True)
class WrongElement:
    """An element that is not what it should be. error_over_bound is infinite where the operation
    must not write."""

    slice: int
    """of h; 0 of y"""
    row: int
    column: int
    got: float
    want: float
    """what was there before, where the operation must not write"""
    error_over_bound: float
    may_be_written: bool = True


@dataclass(frozen=True)
class Verdict:
    """worst: the largest error / bound; above 1 is a wrong result, infinity something written that
    must not be."""

    worst: float
    wrong: list[WrongElement]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.wrong


class LoraCase:
    """One case by its label: everything follows from it, on every machine.

    Arrays are numpy (bf16 and fp8 are those of ml_dtypes); inputs are read-only, y (h of a shrink)
    is a copy to write to. What a kernel must not read is NaN. Letters as in loratory.operations.

    layer      a Layer: a, b, ranks, scalings for each slice, mode, sizes
    x          [T, K]; x_scale of 8-bit x
    h          [S, T, R]: input of an expand, output of a shrink; h_scale of 8-bit h
    y          [T, columns]; holds base
    slots      [T], -1: no adapter
    token_ids, experts, router_weights, enabled
               of the operations that have them; else None

    Errors: InputError, a label that names no case, or one that the claims do not cover (None: all
    are).
    """

    def __init__(self, label: str, claims: Claims | None = None) -> None:
        compiled = (claims or Claims()).compiled(frozenset())
        self._case = _loratory.TestCase(label, compiled, claims is not None)
        self.label: str = self._case.label
        self.layer: Layer = make_layer(_with_host(self._case.layer()), _numpy)
        step = {name: _numpy(value) for name, value in self._case.step().items()}
        self.operation: str = self.layer.operation
        self.x: NumpyArray = step["x"]
        self.x_scale: NumpyArray | None = step["x_scale"]
        self.h: NumpyArray | None = step["h"]
        self.h_scale: NumpyArray | None = step["h_scale"]
        self.y: NumpyArray = step["y"]
        self.slots: NumpyArray = step["slots"]
        self.token_ids: NumpyArray | None = step["token_ids"]
        self.experts: NumpyArray | None = step["experts"]
        self.router_weights: NumpyArray | None = step["router_weights"]
        self.enabled: NumpyArray | None = step["enabled"]
        if self.writes_h:
            self.h = self.h.copy() if self.h is not None else None
        else:
            self.y = self.y.copy()

    @property
    def writes_h(self) -> bool:
        """The operation is a shrink."""
        return self.operation.endswith("shrink")

    def __repr__(self) -> str:
        return f"LoraCase({self.label!r})"

    def arguments(self, framework: str = "numpy", device: str = "cpu") -> dict[str, Any]:
        """Everything that a kernel of loratory.check may ask for, by name; fresh outputs. Tensors
        of another framework than numpy are copies, on `device`."""
        made = _Converter(framework, device)
        layer = self.layer
        out: dict[str, Any] = {name: made(getattr(self, name)) for name in (
            "x", "x_scale", "h", "h_scale", "y", "slots", "token_ids", "experts",
            "router_weights", "enabled")}
        for name in ("a", "b", "a_scale", "b_scale", "ranks", "scalings"):
            out[name] = [made(array) for array in getattr(layer, name)]
        for name in ("h",) if self.writes_h else ("y",):
            if framework == "numpy":
                out[name] = out[name].copy()
        return {**out, "host_slots": self.slots, "host_ranks": layer.ranks,
                "host_scalings": layer.scalings, "host_token_ids": self.token_ids,
                "host_experts": self.experts, "host_enabled": self.enabled,
                "offset_start": layer.offset_start,
                "add_inputs": layer.add_inputs, "mode": layer.mode, "layer": layer,
                "num_tokens": len(self.slots), "stream": 0}

    def run(self, kernel: Callable[..., Any], framework: str = "numpy", device: str = "cpu") -> Any:
        """Calls a function with what its parameters name (loratory.check); returns what it wrote or
        returned."""
        arguments = self.arguments(framework, device)
        asked = parameters_of(kernel)
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(kernel).parameters.values()):
            asked = frozenset(arguments)
        result = kernel(**{name: arguments[name] for name in asked})
        return arguments["h" if self.writes_h else "y"] if result is None else result

    def judge(self, got: ArrayLike) -> Verdict:
        """Of the operation's output: within the bound derived for the case's mode and the claims
        where the operation writes, untouched elsewhere.

        Errors: InputError: another shape or dtype than the case's output.
        """
        host = got.cpu() if hasattr(got, "cpu") else got
        worst, wrong = self._case.judge(read(host, "got"))
        return Verdict(worst, [WrongElement(*entry) for entry in wrong])


def _numpy(raw: Any, host: bool = False) -> Any:
    """Of what the module shows; read-only."""
    if raw is None:
        return None
    array = from_bits(raw) if isinstance(raw, tuple) else raw
    array.flags.writeable = False
    return array


def _with_host(raw: dict[str, Any]) -> dict[str, Any]:
    for entry in raw["slices"]:
        entry["host_ranks"], entry["host_scalings"] = entry["ranks"], entry["scalings"]
    return raw


class _Converter:
    """numpy arrays to tensors of a framework."""

    def __init__(self, framework: str, device: str) -> None:
        self._framework = framework_named(framework)
        self._is_numpy = framework == "numpy"
        self._device = device

    def __call__(self, array: Any) -> Any:
        if array is None or self._is_numpy:
            return array
        return self._framework.from_numpy(array, self._device)


def draw_labels(num_cases: int, *, seed: int = 1, claims: Claims | None = None,
                max_products: int = 1 << 22) -> list[str]:
    """Labels of cases that the claims cover; the same for the same arguments."""
    return _loratory.draw_labels(
        (claims or Claims()).compiled(frozenset()), whole("num_cases", num_cases, 1, 100_000_000),
        whole("seed", seed, 0, (1 << 64) - 1), whole("max_products", max_products, 1, 1 << 40))


def _sentence(case: LoraCase, wrong: WrongElement) -> str:
    where = f"h[{wrong.slice}, {wrong.row}, " if case.writes_h else f"y[{wrong.row}, "
    token = wrong.row // max(1, case.layer.experts_per_token)
    slot = int(case.slots[token])
    if not wrong.may_be_written:
        return f"{where}{wrong.column}] (slot {slot}) is {wrong.got:.9g} and must not be written"
    return (f"{where}{wrong.column}] (slot {slot}) is {wrong.got:.9g}, not {wrong.want:.9g}: "
            f"{wrong.error_over_bound:.3g} times the bound")


def assert_matches_reference(case: LoraCase, got: ArrayLike) -> None:
    """AssertionError unless case.judge(got) finds nothing wrong: which elements, and the line that
    replays the case."""
    verdict = case.judge(got)
    if verdict.ok:
        return
    rows = sorted({(w.slice, w.row) for w in verdict.wrong})
    lines = [f"{case.label}: {len(verdict.wrong)} wrong elements in {len(rows)} rows",
             *(f"  {_sentence(case, w)}" for w in verdict.wrong[:4]),
             f"REPRO: pytest --lora-case {case.label}"]
    raise AssertionError("\n".join(lines))
