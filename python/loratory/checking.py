"""`loratory.check(kernel)`: is somebody's LoRA kernel right? docs/check.md explains the report.

The harness draws cases that the kernel claims to take, runs it on them in memory of its own (what
nobody may read is NaN, between guards), and judges what it wrote against bounds derived for the
arithmetic that the kernel declares.
"""
from __future__ import annotations

import inspect
import json
import math
import operator
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias
from xml.sax.saxutils import escape

from loratory import _loratory
from loratory.errors import InputError
from loratory.frameworks import Framework, framework_named
from loratory.modes import DEFAULT_MODE, NumericMode

__all__ = ["check", "check_names", "Claims", "Layer", "Report", "CheckResult", "Finding"]

OPERATIONS = ("linear", "shrink", "expand", "embedding", "logits", "expert_linear", "expert_shrink",
              "expert_expand")
DTYPES = ("f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2", "i8")
LAYOUTS = ("slices", "dense", "stacked")
SCALES = ("none", "tensor", "channel", "token", "block")
H_MODES = ("fp32", "split2", "cast_to_weight", "store_as_x")
SUM_MODES = ("one_round", "two_round")
SCALE_MODES = ("accumulator", "folded_b")

REPEATABLE, BATCH_INVARIANT, CAPTURABLE = 1, 2, 4
(TAKES_OFFSET, TAKES_NO_INPUTS, TAKES_GAPS, TAKES_ABSENT_SLICES, TAKES_ROUTER_WEIGHTS,
 TAKES_ROWS_OF_X, READS_BEYOND_RANK, FLUSHES_SUBNORMALS, _, TAKES_ABSENT_EXPERTS,
 TAKES_DISABLED_SLOTS) = (1 << i for i in range(11))

PARAMETERS = ("x", "x_scale", "h", "h_scale", "y", "a", "b", "a_scale", "b_scale", "ranks",
              "scalings", "slots", "token_ids", "experts", "router_weights", "enabled", "host_slots",
              "host_ranks", "host_scalings", "host_token_ids", "host_experts", "host_enabled",
              "offset_start", "add_inputs", "mode", "layer", "num_tokens", "stream")
"""What a kernel may ask for, by the names of its parameters."""


@dataclass(frozen=True)
class Claims:
    """What a kernel takes, and what it promises. The harness draws nothing else; a limit of 0 is
    none.

    operations         of "linear", "shrink", "expand", "embedding", "logits", "expert_linear",
                       "expert_shrink", "expert_expand"
    weight_dtypes      of A and B; with f32, f16, bf16 those of x too
    x_dtypes           beside 8-bit weights: of x, and of h in an expand
    y_dtypes           empty: as the weights (as x beside 8-bit ones)
    h_dtypes           of h in shrink and expand; empty: f32
    layouts            "slices": any strides; "dense": vLLM's stacks; "stacked": SGLang's pool
    weight_scales, activation_scales
                       of "tensor", "channel", "token", "block"; needed with 8-bit dtypes
    modes              the rounding points; every mode is judged as itself
    unit               of one product or sum: 2^-24, or TENSOR_CORE_UNIT; 0: 2^-24
    operand_rounding   of an operand rounded before the product, summed over both: 2^-10 for TF32
    repeatable, batch_invariant, capturable
                       promises: a broken one is a finding, one not made is reported only
    takes_gaps         rows of tensors that lie apart
    takes_absent_slices  a slot of rank 0 in one slice and not in another
    takes_absent_experts  experts of -1, which lie elsewhere
    takes_offset, takes_no_inputs, takes_router_weights, takes_disabled_slots
                       cases with offset_start > 0, with add_inputs False, with router weights, with
                       slots of experts that are not `enabled`; None: if the kernel has a parameter
                       of that name
    reads_beyond_rank  all R ranks are multiplied: zeros and not NaN lie beyond the rank
    """

    operations: Sequence[str] = ("linear",)
    weight_dtypes: Sequence[str] = ("f32", "f16", "bf16")
    x_dtypes: Sequence[str] = ()
    y_dtypes: Sequence[str] = ()
    h_dtypes: Sequence[str] = ()
    layouts: Sequence[str] = ("slices",)
    weight_scales: Sequence[str] = ()
    activation_scales: Sequence[str] = ()
    modes: Sequence[NumericMode] = (DEFAULT_MODE,)
    max_rank: int = 0
    max_slots: int = 0
    max_slices: int = 0
    max_tokens: int = 0
    max_experts_per_token: int = 0
    rank_multiple: int = 0
    num_in_multiple: int = 0
    num_out_multiple: int = 0
    alignment: int = 0
    unit: float = 0.0
    operand_rounding: float = 0.0
    repeatable: bool = False
    batch_invariant: bool = False
    capturable: bool = False
    takes_gaps: bool = True
    takes_absent_slices: bool = True
    takes_rows_of_x: bool = True
    takes_offset: bool | None = None
    takes_no_inputs: bool | None = None
    takes_router_weights: bool | None = None
    takes_absent_experts: bool = False
    takes_disabled_slots: bool | None = None
    reads_beyond_rank: bool = False
    flushes_subnormals: bool = False

    def compiled(self, asked: frozenset[str]) -> dict[str, Any]:
        """As the compiled module takes it; `asked` are the parameters of the kernel. Errors:
        InputError naming the field."""
        limits = ("max_rank", "max_slots", "max_slices", "max_tokens", "max_experts_per_token",
                  "rank_multiple", "num_in_multiple", "num_out_multiple", "alignment")

        def if_asked(said: bool | None, parameter: str) -> bool:
            return parameter in asked if said is None else said

        abilities = ((TAKES_OFFSET, if_asked(self.takes_offset, "offset_start")),
                     (TAKES_NO_INPUTS, if_asked(self.takes_no_inputs, "add_inputs")),
                     (TAKES_ROUTER_WEIGHTS, if_asked(self.takes_router_weights, "router_weights")),
                     (TAKES_DISABLED_SLOTS, if_asked(self.takes_disabled_slots, "enabled")),
                     (TAKES_ABSENT_EXPERTS, self.takes_absent_experts),
                     (TAKES_GAPS, self.takes_gaps),
                     (TAKES_ABSENT_SLICES, self.takes_absent_slices),
                     (TAKES_ROWS_OF_X, self.takes_rows_of_x),
                     (READS_BEYOND_RANK, self.reads_beyond_rank),
                     (FLUSHES_SUBNORMALS, self.flushes_subnormals))
        promises = ((REPEATABLE, self.repeatable), (BATCH_INVARIANT, self.batch_invariant),
                    (CAPTURABLE, self.capturable))
        return {
            "operations": _bits("operations", self.operations, OPERATIONS),
            **{name: _bits(name, getattr(self, name), DTYPES)
               for name in ("weight_dtypes", "x_dtypes", "y_dtypes", "h_dtypes")},
            "layouts": _bits("layouts", self.layouts, LAYOUTS),
            **{name: _bits(name, getattr(self, name), SCALES)
               for name in ("weight_scales", "activation_scales")},
            "modes": [_mode(mode) for mode in _all_of("modes", self.modes, NumericMode)],
            **{name: whole(f"claims.{name}", getattr(self, name), -1 << 63, (1 << 63) - 1)
               for name in limits},
            **{name: _real(f"claims.{name}", getattr(self, name))
               for name in ("unit", "operand_rounding")},
            "promises": sum(bit for bit, is_set in promises if is_set),
            "abilities": sum(bit for bit, is_set in abilities if is_set),
        }


def whole(name: str, value: Any, least: int, most: int) -> int:
    """An int of [least, most]. Errors: InputError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise InputError(f"{name}: {value!r} is no whole number from {least} to {most}")
    return number


def _real(name: str, value: Any) -> float:
    """A finite float. Errors: InputError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name}: {value!r} is no number")
    return number


def _all_of(name: str, values: Any, kind: type) -> list[Any]:
    """One of `kind`, or several. Errors: InputError, anything else."""
    if isinstance(values, kind):
        return [values]
    listed = list(values) if isinstance(values, Iterable) else [values]
    for value in listed:
        if not isinstance(value, kind):
            raise InputError(f"{name}: {value!r} is no {kind.__name__}")
    return listed


def _mode(mode: NumericMode) -> list[int]:
    parts = ((H_MODES, mode.h), (SUM_MODES, mode.sum), (SCALE_MODES, mode.scale))
    for known, chosen in parts:
        if chosen not in known:
            raise InputError(f"modes: {chosen!r} is not known; one of {', '.join(known)}")
    return [known.index(chosen) for known, chosen in parts]


def claims_with(claims: Claims | None, claimed: Mapping[str, Any]) -> Claims:
    """`claims` with some fields named one by one. Errors: InputError, a field that Claims lacks."""
    if claims is not None and not isinstance(claims, Claims):
        raise InputError(f"claims: {claims!r} is no loratory.Claims")
    unknown = sorted(claimed.keys() - {f.name for f in fields(Claims)})
    if unknown:
        raise InputError(f"{unknown[0]}: neither an argument nor a field of loratory.Claims")
    return replace(claims or Claims(), **claimed)


def _bits(name: str, chosen: Iterable[str], known: tuple[str, ...]) -> int:
    names = _all_of(name, chosen, str)
    unknown = [item for item in names if item not in known]
    if unknown:
        raise InputError(f'{name}: "{unknown[0]}" is not known; one of {", ".join(known)}')
    return sum(1 << known.index(item) for item in set(names))


@dataclass(frozen=True)
class Layer:
    """One operation on one packed layer, as a kernel sees it before its first run. Letters as in
    loratory.operations. Tensors are of the framework; the numbers in them may change between runs,
    the addresses do not.

    a, b            a tensor for each slice: [L, R, K] and [L, N_i, R]; of experts [L, E, ...]
    ranks, scalings a vector [L] for each slice; of experts [L·E]
    host_*          the same numbers in host memory, numpy
    """

    operation: str
    layout: str
    mode: NumericMode
    add_inputs: bool
    num_slots: int
    max_rank: int
    num_in: int
    num_columns: int
    offset_start: int
    max_tokens: int
    num_out: list[int]
    a: list[Any]
    b: list[Any]
    a_scale: list[Any]
    b_scale: list[Any]
    ranks: list[Any]
    scalings: list[Any]
    host_ranks: list[Any]
    host_scalings: list[Any]
    stacked_a: Any
    stacked_b: Any
    a_block: tuple[int, int]
    b_block: tuple[int, int]
    num_experts: int
    experts_per_token: int
    rows_per_x: int


@dataclass(frozen=True)
class CheckResult:
    """One check by name, over all cases. observed: true or false, and no promise depends on it."""

    name: str
    state: Literal["passed", "failed", "observed", "skipped"]
    num_cases: int
    num_comparisons: int
    worst: float
    """error / bound, where there is a bound"""
    note: str


@dataclass(frozen=True)
class Finding:
    """Something is wrong."""

    check: str
    label: str
    """the case that showed it"""
    smallest: str
    """the smallest case found that shows it still"""
    what: str
    pattern: str
    """which elements differ, in words; empty where there is no pattern"""
    repro: str
    reference: str


@dataclass(frozen=True)
class Report:
    """What was judged, and what came out. str() is the text that the program prints."""

    subject: str
    seed: int
    num_cases: int
    seconds: float
    ok: bool
    checks: list[CheckResult]
    findings: list[Finding]
    text: str = field(repr=False)
    json: str = field(repr=False)
    junit: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return self.ok

    def find(self, check: str) -> CheckResult | None:
        """The check by this name."""
        return next((result for result in self.checks if result.name == check), None)

    def assert_ok(self) -> None:
        """AssertionError with the text unless nothing was found."""
        if not self.ok:
            raise AssertionError(self.text)


Kernel: TypeAlias = Callable[..., Any]


def parameters_of(kernel: Kernel, has_self: bool = False) -> frozenset[str]:
    """The names that a kernel asks for. Errors: InputError for one that nobody has."""
    parameters = list(inspect.signature(kernel).parameters.values())[int(has_self):]
    names = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    unknown = sorted(names - set(PARAMETERS) - {
        p.name for p in parameters if p.default is not p.empty})
    if unknown:
        raise InputError(f"kernel: its parameter {unknown[0]} is none that a kernel is given; "
                         f"known are {', '.join(PARAMETERS)}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(PARAMETERS)
    return frozenset(names & set(PARAMETERS))


def _why(error: Exception, file: str | None) -> str:
    """One line: the error, and where in the kernel's file."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({pathlib.Path(last.filename).name}:{last.lineno})"


def run_of(kernel: Kernel) -> Kernel:
    """The function that computes: the kernel, or the method run of a class."""
    run = getattr(kernel, "run", None) if inspect.isclass(kernel) else kernel
    if run is None:
        raise InputError("kernel: a class needs a method run()")
    return run  # type: ignore[no-any-return]


class _Bridge:
    """What the compiled harness calls. Each method returns None, or why it failed."""

    def __init__(self, kernel: Kernel, framework: Framework) -> None:
        self._kernel = kernel
        self._framework = framework
        self._is_class = inspect.isclass(kernel)
        code = getattr(run_of(kernel), "__code__", None)
        self._file = getattr(code, "co_filename", None)
        self.asked = parameters_of(run_of(kernel), has_self=self._is_class)

    def create(self, raw: dict[str, Any]) -> Any:
        try:
            layer = make_layer(raw, self._tensor)
            instance = self._kernel(layer) if self._is_class else None
            return layer, instance
        except Exception as error:
            return _why(error, self._file)

    def prepare(self, state: Any, step: dict[str, Any], stream: int) -> str | None:
        return self._call(state, "prepare", step, stream)

    def run(self, state: Any, tensors: dict[str, Any], stream: int) -> str | None:
        return self._call(state, "run", tensors, stream)

    def weights_changed(self, state: Any, slot: int) -> str | None:
        layer, instance = state
        method = getattr(instance, "weights_changed", None)
        try:
            if method is not None:
                method(slot)
        except Exception as error:
            return _why(error, self._file)
        return None

    def _call(self, state: Any, name: str, given: dict[str, Any], stream: int) -> str | None:
        layer, instance = state
        is_function = instance is None and name == "run"
        method = self._kernel if is_function else getattr(instance, name, None)
        if method is None:
            return None
        try:
            asked = self.asked if name == "run" else parameters_of(method)
            arguments = self._arguments(layer, given, stream, asked)
            with self._framework.on_stream(stream):
                result = method(**arguments)
                if name == "run":
                    self._store(layer, arguments, given, result)
        except Exception as error:
            return _why(error, self._file)
        return None

    def _arguments(self, layer: Layer, given: dict[str, Any], stream: int,
                   asked: frozenset[str]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name in asked:
            if name in given:
                host = name.startswith("host_")
                arguments[name] = self._tensor(given[name], host)
            elif name == "layer":
                arguments[name] = layer
            elif name == "stream":
                arguments[name] = stream
            else:
                arguments[name] = getattr(layer, name, None)
        return arguments

    def _tensor(self, raw: Any, host: bool = False) -> Any:
        if raw is None or isinstance(raw, int):
            return raw
        dtype, array = raw if isinstance(raw, tuple) else ("", raw)
        framework = framework_named("numpy") if host else self._framework
        return framework.tensor(array, dtype)

    def _store(self, layer: Layer, arguments: Mapping[str, Any], given: dict[str, Any],
               result: Any) -> None:
        """What a kernel returns instead of writing it: jax has no arrays to write to."""
        name = "h" if layer.operation.endswith("shrink") else "y"
        if result is None or result is arguments.get(name):
            return
        dtype, array = given[name]
        target = self._framework.tensor(array, dtype)
        wanted = target.dtype, tuple(target.shape)
        came = getattr(result, "dtype", None), tuple(getattr(result, "shape", ()))
        if came != wanted:
            raise InputError(f"the kernel returned {_tensor_text(result, *came)}, and {name} is "
                             f"{_tensor_text(target, *wanted)}")
        self._framework.store(result, array, dtype)


def _tensor_text(tensor: Any, dtype: Any, shape: tuple[int, ...]) -> str:
    """What it is."""
    return type(tensor).__name__ if dtype is None else f"{dtype} {list(shape)}"


def make_layer(raw: dict[str, Any], tensor: Callable[[Any, bool], Any]) -> Layer:
    """A Layer from what the compiled module says; tensor(raw, host) makes one of the framework."""
    slices = raw.pop("slices")
    lists = {name: [tensor(s[name], name.startswith("host_")) for s in slices]
             for name in ("a", "b", "a_scale", "b_scale", "ranks", "scalings", "host_ranks",
                          "host_scalings")}
    h, total, scale = raw.pop("mode")
    names: Any = H_MODES[h], SUM_MODES[total], SCALE_MODES[scale]
    operation, layout = OPERATIONS[raw.pop("operation")], LAYOUTS[raw.pop("layout")]
    num_out = raw.pop("num_out", None) or [s["num_out"] for s in slices]
    stacked = {name: tensor(raw.pop(name), False) for name in ("stacked_a", "stacked_b")}
    return Layer(operation=operation, layout=layout, mode=NumericMode(*names), num_out=num_out,
                 **lists, **stacked, **raw)


def check_names() -> list[str]:
    """The names of the checks, in the order of the report."""
    return _loratory.check_names()


def _report(compiled: _loratory.Report, command: str) -> Report:
    def in_python(text: str, written: str = command) -> str:
        """The harness writes a line for a shell: its command, which is `written` in this text, and
        --case LABEL."""
        pattern = re.escape(written) + r" --case ([\w.,+/-]+)"
        return re.sub(pattern, lambda m: f"{written[:-1]}, labels=['{m[1]}'])", text)

    in_json = json.dumps(command, ensure_ascii=False)[1:-1]
    in_xml = escape(command, {'"': "&quot;"})
    results = [CheckResult(**{f.name: getattr(c, f.name) for f in fields(CheckResult)})
               for c in compiled.checks]
    findings = [Finding(**{f.name: in_python(getattr(c, f.name)) for f in fields(Finding)})
                for c in compiled.findings]
    return Report(compiled.subject, compiled.seed, compiled.num_cases, compiled.seconds,
                  compiled.ok, results, findings, in_python(compiled.text()),
                  in_python(compiled.json(), in_json), in_python(compiled.junit(), in_xml))


def check(kernel: Kernel, claims: Claims | None = None, *, name: str | None = None,
          framework: Literal["numpy", "torch", "cupy", "jax"] | None = None, device: str = "cpu",
          cases: int = 200, seed: int = 1, budget_s: float = 0.0,
          labels: Sequence[str] = (), checks: Sequence[str] = (), max_products: int = 1 << 22,
          max_bytes: int | None = None,
          shrink_findings: bool = True, stop_at_first: bool = False, **claimed: Any) -> Report:
    """Judges a LoRA kernel that Python can call.

    kernel     a function that writes y (h of a shrink) in place, or returns it. It is given what
               its parameters name, of PARAMETERS:

                   def my_linear(x, a, b, ranks, scalings, slots, y): ...

               x [T, K]; a and b lists with a tensor for each slice, [L, R, K] and [L, N_i, R];
               ranks and scalings lists of vectors [L]; slots int32 [T], -1: no adapter; y
               [T, columns], holds base. `offset_start`, `add_inputs`, `router_weights`: cases with
               them are drawn only if the kernel asks for them. Or a class: made once for each layer
               with a Layer, its method run() is the kernel, prepare() (optional) is called before
               each step outside of any graph, weights_changed(slot) (optional) after an adapter
               came into a slot.
    claims     what it takes and promises; fields can be given by name instead:
               check(f, weight_dtypes=["bf16"], unit=loratory.TENSOR_CORE_UNIT, repeatable=True)
    framework  whose tensors the kernel is given; None: torch if it is imported, else numpy. numpy
               has those of ml_dtypes. Tensors are views, valid during the call alone, those of
               the layer until its end.
    device     "cpu", or "cuda" for a kernel that wants tensors on the GPU
    cases      how many are drawn from `seed`; none begins after budget_s (0: no limit)
    labels     these cases alone, as a finding names them; the claims must cover them
    checks     of check_names(); empty: all
    max_products  multiplications of the largest case
    max_bytes  of the largest tensor of large_offsets. None: room for more than 2^31 elements and as
               much before them on "cuda"; 0, so none are tried, on "cpu", where an expression over
               a whole tensor would fill the memory of the machine

    Errors: InputError for an argument. A kernel that raises is a finding. Takes Ctrl-C between
    cases and inside the kernel.
    """
    chosen = claims_with(claims, claimed)
    if device not in ("cpu", "cuda"):
        raise InputError(f'device: "{device}" is not known; "cpu" or "cuda"')
    if max_bytes is None:
        max_bytes = 20 << 30 if device == "cuda" else 0
    bridge = _Bridge(kernel, framework_named(framework or _default_framework()))
    title = name or getattr(kernel, "__qualname__", type(kernel).__name__)
    command = f"loratory.check({title}, ...)"
    options = {
        "operations": [], "checks": _all_of("checks", checks, str),
        "labels": _all_of("labels", labels, str), "seed": whole("seed", seed, 0, (1 << 64) - 1),
        "num_cases": whole("cases", cases, 1, 100_000_000), "budget_s": _real("budget_s", budget_s),
        "max_products": whole("max_products", max_products, 1, 1 << 40),
        "max_bytes": whole("max_bytes", max_bytes, 0, 1 << 50),
        "shrinks": shrink_findings, "stops_at_first": stop_at_first,
        "command": command,
    }
    return _report(_loratory.run_checks(bridge, title, device == "cuda",
                                        chosen.compiled(bridge.asked), options), command)


def _default_framework() -> str:
    return "torch" if "torch" in sys.modules else "numpy"


