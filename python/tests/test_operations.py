"""The operations against the formulas written down once more, in numpy and float64."""
from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import loratory as lt

DTYPES = ["f32", "f16", "bf16"]


class Foreign:
    """An array of another library: it speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnDevice(Foreign):
    """An array on a CUDA device, as far as one can tell without one."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("it lies on a GPU")


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(lt.numpy_dtype(dtype))


class Layer:
    """Two slices, three slots; slot 2 is empty, slot 1 has no second slice."""

    def __init__(self, dtype: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = numbers(rng, dtype, 6, 40)
        self.a = [numbers(rng, dtype, 3, 8, 40) for _ in range(2)]
        self.b = [numbers(rng, dtype, 3, n, 8) for n in (24, 12)]
        self.ranks = [[8, 3, 0], [5, 0, 0]]
        self.scalings = [[0.5, 2.0, 1.0], [1.5, 1.0, 1.0]]
        self.slots = [0, 1, -1, 2, 0, 1]
        self.y = numbers(rng, dtype, 6, 36)

    def arguments(self) -> tuple[Any, ...]:
        return self.x, self.a, self.b, self.ranks, self.scalings, self.slots

    def expected(self) -> np.ndarray:
        y = self.y.astype(np.float64)
        offset = 0
        for a, b, ranks, scalings in zip(self.a, self.b, self.ranks, self.scalings):
            for t, slot in enumerate(self.slots):
                if slot >= 0:
                    r = ranks[slot]
                    h = a[slot, :r].astype(np.float64) @ self.x[t].astype(np.float64)
                    d = b[slot, :, :r].astype(np.float64) @ h
                    y[t, offset:offset + b.shape[1]] += scalings[slot] * d
            offset += b.shape[1]
        return y


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_is_its_formula_within_the_bound(dtype: str) -> None:
    layer = Layer(dtype)
    bounds = lt.linear_bounds(*layer.arguments(), layer.y)
    expected = layer.expected()
    y = layer.y.copy()
    assert lt.linear(*layer.arguments(), y) is y
    assert np.allclose(bounds.expected[bounds.covered], expected[bounds.covered], rtol=1e-12)
    assert 0 < bounds.worst(y) <= 1
    assert bits(y[~bounds.covered]) == bits(layer.y[~bounds.covered])
    assert bounds.covered.any(axis=1).tolist() == [True, True, False, False, True, True]


def test_a_wrong_number_is_far_beyond_the_bound() -> None:
    layer = Layer("f32")
    bounds = lt.linear_bounds(*layer.arguments(), layer.y)
    y = lt.linear(*layer.arguments(), layer.y.copy())
    y[4, 7] *= 1 + 2.0**-12
    errors = bounds.errors_over(y)
    assert errors[4, 7] > 1
    assert np.argwhere(errors > 1).tolist() == [[4, 7]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [lt.DEFAULT_MODE, lt.VLLM_MODE, lt.SGLANG_MODE])
def test_expand_of_shrink_is_linear(dtype: str, mode: lt.NumericMode) -> None:
    layer = Layer(dtype)
    h_dtype = dtype if mode.h == "store_as_x" else "f32"
    h = lt.shrink(layer.x, layer.a, layer.ranks, layer.slots, h_dtype=h_dtype)
    parts, whole = layer.y.copy(), layer.y.copy()
    lt.expand(h, layer.b, layer.ranks, layer.scalings, layer.slots, parts, mode=mode)
    lt.linear(*layer.arguments(), whole, mode=mode)
    assert bits(parts) == bits(whole)


def test_modes_differ() -> None:
    layer = Layer("bf16")
    seen = {bits(lt.linear(*layer.arguments(), layer.y.copy(), mode=mode))
            for mode in (lt.DEFAULT_MODE, lt.VLLM_MODE, lt.SGLANG_MODE)}
    assert len(seen) == 3


def test_arrays_of_other_libraries_and_strides() -> None:
    layer = Layer("f32")
    y = lt.linear(*layer.arguments(), layer.y.copy())
    wide = np.zeros((6, 80), np.float32)
    wide[:, ::2] = layer.x
    foreign = layer.y.copy()
    lt.linear(Foreign(wide[:, ::2]), [Foreign(a) for a in layer.a],
              [np.asfortranarray(b) for b in layer.b], np.array(layer.ranks, np.int64),
              layer.scalings, Foreign(np.array(layer.slots, np.int32)), Foreign(foreign))
    assert bits(foreign) == bits(y)


def test_embedding_and_logits() -> None:
    rng = np.random.default_rng(3)
    a, b = numbers(rng, "f32", 2, 4, 50), numbers(rng, "f32", 2, 16, 4)
    ids, slots = [7, 49, 0], [1, -1, 0]
    arguments = (ids, a, b, [4, 2], [1.0, 0.5], slots)
    y = numbers(rng, "f32", 3, 16)
    bounds = lt.embedding_bounds(*arguments, y)
    want = y + np.array([0.5 * b[1, :, :2] @ a[1, :2, 7], np.zeros(16), b[0] @ a[0, :, 0]])
    got = lt.embedding(*arguments, y.copy())
    assert np.allclose(got, want, atol=1e-5) and bounds.worst(got) <= 1
    hidden = numbers(rng, "f32", 3, 50)
    assert bits(lt.logits(hidden, a, b, [4, 2], [1.0, 0.5], slots, y.copy())) == bits(
        lt.linear(hidden, a, b, [4, 2], [1.0, 0.5], slots, y.copy()))


def test_quantised_weights_are_bits_times_factor() -> None:
    rng = np.random.default_rng(4)
    wide = [rng.standard_normal((2, 8, 32)), rng.standard_normal((2, 16, 8))]
    (a, a_scale), (b, b_scale) = [
        tuple(np.stack(parts) for parts in zip(*(lt.quantize(slot.astype(np.float32), "f8_e4m3fn")
                                                 for slot in w))) for w in wide]
    a_scale, b_scale = a_scale[..., 0], b_scale[..., 0]  # by channel
    x, y = numbers(rng, "f32", 3, 32), np.zeros((3, 16), np.float32)
    lt.linear_quantized(x, None, a, a_scale, b, b_scale, [8, 8], [1.0, 2.0], [0, 1, -1], y)
    real_a, real_b = (w.astype(np.float32) * s[..., None] for w, s in ((a, a_scale), (b, b_scale)))
    want = lt.linear(x, real_a, real_b, [8, 8], [1.0, 2.0], [0, 1, -1], np.zeros_like(y))
    assert np.allclose(y, want, rtol=1e-4, atol=1e-5) and y[:2].any() and not y[2].any()
    x8, x_scale = lt.quantize(x, "f8_e4m3fn")
    assert x_scale.shape == (3, 1)
    assert np.abs(x8.astype(np.float32) * x_scale - x).max() <= np.abs(x).max() / 16
    h = lt.shrink_quantized(x8, x_scale, a, a_scale, [8, 8], [0, 1, -1])
    y8 = np.zeros_like(y)
    lt.expand_quantized(h, None, b, b_scale, [8, 8], [1.0, 2.0], [0, 1, -1], y8)
    assert np.abs(y8 - want).max() <= np.abs(want).max() / 8


def test_experts_are_a_linear_layer_for_each_row() -> None:
    rng = np.random.default_rng(5)
    a, b = numbers(rng, "f32", 2, 3, 4, 20), numbers(rng, "f32", 2, 3, 10, 4)
    ranks, scalings = [[4, 2, 0], [1, 4, 4]], [[1.0, 2.0, 1.0], [0.5, 1.0, 1.0]]
    experts, slots, weights = [0, 1, 2, 0, 1, 2], [0, 1, -1], [0.5, 0.25, 1.0, 0.5, 1.0, 1.0]
    rows = lt.ExpertRows(experts=experts, slots=slots, num_slots=2, experts_per_token=2)
    x = numbers(rng, "f32", 3, 20)
    y = lt.expert_linear(x, rows, a, b, ranks, scalings, np.zeros((6, 10), np.float32),
                         router_weights=weights)
    for row, expert in enumerate(experts):
        slot = slots[row // 2]
        if slot < 0:
            assert not y[row].any()
            continue
        r = ranks[slot][expert]
        delta = b[slot, expert, :, :r] @ (a[slot, expert, :r] @ x[row // 2])
        assert np.allclose(y[row], weights[row] * scalings[slot][expert] * delta, atol=1e-5)
    h = lt.expert_shrink(x, rows, a, ranks)
    parts = lt.expert_expand(h, rows, b, ranks, scalings, np.zeros((6, 10), np.float32),
                             router_weights=weights)
    assert bits(parts) == bits(y)
    off = lt.ExpertRows(experts=experts, slots=slots, num_slots=2, experts_per_token=2,
                        enabled=[True, False])
    y_off = lt.expert_linear(x, off, a, b, ranks, scalings, np.zeros((6, 10), np.float32))
    assert y_off[:2].any() and not y_off[2:].any()


@pytest.mark.parametrize("change, line", [
    ({"slots": [0, 1, -1, 3, 0, 1]}, "slot 3 with max_loras 3"),
    ({"slots": [0, 1]}, "y: has shape [6, 36]; expected [2, any]"),
    ({"slots": [0.5] * 6}, "slots: float64 is no type of integers"),
    ({"slots": [2**40] * 6}, "slots: a number is outside"),
    ({"ranks": [[9, 3, 0], [5, 0, 0]]}, "rank 9 is outside [0, 8]"),
    ({"ranks": [[8, 3, 0]]}, "slices: "),
    ({"scalings": [[float("nan")] * 3] * 2}, "scaling"),
    ({"x": np.zeros((6, 40))}, "x: float64 is no dtype here; convert it to f32"),
    ({"x": np.zeros((6, 41), np.float32)}, "41"),
    ({"x": [1.0, 2.0]}, "x: list is not an array"),
    ({"x": OnDevice(np.zeros((6, 40), np.float32))}, "x: its library does not hand it out (it "),
])
def test_errors_name_the_argument_and_write_nothing(change: dict[str, Any], line: str) -> None:
    layer = Layer("f32")
    names = ("x", "a", "b", "ranks", "scalings", "slots")
    arguments = {**dict(zip(names, layer.arguments())), **change}
    y = layer.y.copy()
    with pytest.raises(lt.InputError) as error:
        lt.linear(**arguments, y=y)
    assert line in str(error.value) and "\n" not in str(error.value)
    assert bits(y) == bits(layer.y)


@pytest.mark.parametrize("change, line", [
    ({"ranks": [[200_000, 1, 0], [5, 0, 0]]}, "ranks[0]: rank 200000 is outside [0, 8]"),
    ({"y": np.zeros((6, 3), np.float32)}, "y: has 3 columns, the slices end at 36"),
    ({"offset_start": -4}, "offset_start: is negative"),
    ({"offset_start": 2**63 - 1}, "y: has 36 columns"),
    ({"x": np.zeros((6, 100), np.float32)}, "a: has shape"),
    ({"x": np.zeros((6, 40), np.float16)}, "a: has dtype f32, x has f16"),
    ({"y": np.zeros((6, 36), np.int8)}, "y: has dtype i8"),
    ({"slots": [0, 1, -1, 1 << 30, 0, 1]}, "slot 1073741824 with max_loras 3"),
    ({"scalings": [[1.0], [1.0]]}, "scalings: has 1 scalings for 3 slots"),
    ({"scalings": [[float("nan")] * 3] * 2}, "scalings[0]: is not finite"),
    ({"unit": -1.0}, "unit: "), ({"unit": float("nan")}, "unit: "),
    ({"operand_rounding": float("inf")}, "operand_rounding: "),
])
def test_bounds_refuse_what_the_operation_refuses(change: dict[str, Any], line: str) -> None:
    layer = Layer("f32")
    names = ("x", "a", "b", "ranks", "scalings", "slots")
    arguments = {**dict(zip(names, layer.arguments())), "y": layer.y, **change}
    with pytest.raises(lt.InputError) as error:
        lt.linear_bounds(**arguments)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("change, line", [
    ({"token_ids": [7, 50, 0]}, "token_ids[1]: id 50"),
    ({"ranks": [200_000, 1]}, "ranks[0]: rank 200000"),
    ({"scalings": [1.0]}, "scalings: has 1 scalings for 2 slots"),
    ({"slots": [0, 1, 1 << 30]}, "slot 1073741824"),
    ({"y": np.zeros((3, 15), np.float32)}, "y: has 15 columns"),
    ({"b": np.zeros((2, 16, 4), np.float16)}, "b: has dtype f16, a has f32"),
])
def test_bounds_of_embeddings_do_too(change: dict[str, Any], line: str) -> None:
    arguments = {"token_ids": [7, 49, 0], "a": np.ones((2, 4, 50), np.float32),
                 "b": np.ones((2, 16, 4), np.float32), "ranks": [4, 2], "scalings": [1.0, 0.5],
                 "slots": [1, -1, 0], "y": np.zeros((3, 16), np.float32), **change}
    with pytest.raises(lt.InputError) as error:
        lt.embedding_bounds(**arguments)
    assert line in str(error.value)


def test_a_result_that_is_no_number_is_covered_and_never_right() -> None:
    layer = Layer("f32")
    layer.x[0, 0] = np.nan
    bounds = lt.linear_bounds(*layer.arguments(), layer.y)
    assert bounds.covered[0].all() and np.isnan(bounds.expected[0]).all()
    assert not bounds.covered[2].any()
    assert bounds.worst(lt.linear(*layer.arguments(), layer.y.copy())) == np.inf
    assert bounds.worst(np.zeros_like(layer.y)) == np.inf


@pytest.mark.parametrize("change, line", [
    ({"ranks": 2}, "ranks: int is no list of numbers and no array in host memory"),
    ({"ranks": np.array(2)}, "ranks: 0 axes where 1 or 2 are expected"),
    ({"ranks": [[[8, 3, 0]], [[5, 0, 0]]]}, "ranks[0]: 2 axes where 1 are expected"),
    ({"ranks": [[8, 3, 0], [5, 0]]}, 
     "lora_linear: slices[1].a: has shape [3, 8, 40]; expected [2, any, any]"),
    ({"slots": None}, "slots: NoneType is no list of numbers and no array in host memory"),
    ({"slots": [[0], [1, 2]]}, "slots: its lists have unequal lengths"),
    ({"scalings": [["a"] * 3] * 2}, "scalings: <U1 is no type of numbers"),
    ({"scalings": [None, None]}, "scalings: object is no type of numbers"),
])
def test_what_is_no_list_of_numbers_is_named(change: dict[str, Any], line: str) -> None:
    layer = Layer("f32")
    names = ("x", "a", "b", "ranks", "scalings", "slots")
    with pytest.raises(lt.InputError) as error:
        lt.linear(**{**dict(zip(names, layer.arguments())), **change}, y=layer.y)
    assert str(error.value) == line


def test_arguments_of_experts_are_named() -> None:
    rows = lt.ExpertRows(experts=[0, 1], slots=[0, 0], num_slots=1)
    a, b = np.ones((1, 2, 4, 5), np.float32), np.ones((1, 2, 6, 4), np.float32)
    x, y = np.ones((2, 5), np.float32), np.zeros((2, 6), np.float32)
    for ranks, line in (([[4, 2], [1]], "ranks[0]: 1 axes where 2 are expected"),
                        ([4, 2], "ranks: 1 axes where 2 or 3 are expected"),
                        ([[[4], [2, 1]]], "ranks[0]: its lists have unequal lengths")):
        with pytest.raises(lt.InputError) as error:
            lt.expert_linear(x, rows, a, b, ranks, [[1.0, 1.0]], y)
        assert str(error.value) == line
    h = lt.expert_shrink(x, rows, a, [[4, 2]])
    with pytest.raises(lt.InputError, match="y: has 6 columns, the slices end at"):
        lt.expert_expand(h, rows, b, [[4, 2]], [[1.0, 1.0]], y, offset_start=2**63 - 1)
    assert not y.any()


def test_experts_refuse_what_has_another_shape() -> None:
    a, b = np.ones((3, 2, 4, 5), np.float32), np.ones((3, 2, 6, 4), np.float32)
    x, y = np.ones((1, 5), np.float32), np.zeros((1, 6), np.float32)
    rows = lt.ExpertRows(experts=[0], slots=[0], num_slots=3)
    ranks, scalings = np.full((3, 2), 4, np.int32), np.ones((3, 2), np.float32)
    line = "has the shape [2, 3], and the weights have [3, 2] slots and experts"
    for changed in ({"ranks": ranks.T}, {"scalings": scalings.T}):
        given = {"ranks": ranks, "scalings": scalings, **changed}
        with pytest.raises(lt.InputError) as error:
            lt.expert_linear(x, rows, a, b, given["ranks"], given["scalings"], y)
        assert str(error.value) == f"{next(iter(changed))}: {line}"
    with pytest.raises(lt.InputError, match="ranks: has the shape"):
        lt.expert_shrink(x, rows, a, ranks.T)
    for enabled in ([True], [True] * 4):
        short = lt.ExpertRows(experts=[0], slots=[0], num_slots=3, enabled=enabled)
        with pytest.raises(lt.InputError, match="^enabled: has . entries, and num_slots is 3"):
            lt.expert_linear(x, short, a, b, ranks, scalings, y)


@pytest.mark.parametrize("arguments, line", [
    ({"per": "row"}, 'per: "row" is not known; tensor, token or block'),
    ({"per": "block"}, 'group_k: 0 beside per="block"'),
    ({"per": "block", "group_k": -4}, 'group_k: -4 beside per="block"'),
    ({"group_k": 4}, 'group_k: 4 beside per="token"'),
])
def test_quantize_refuses_what_it_would_ignore(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(lt.InputError) as error:
        lt.quantize(np.ones((2, 8), np.float32), "i8", **arguments)
    assert str(error.value).startswith(line)


def test_bounds_of_no_tokens_have_the_columns() -> None:
    layer = Layer("f32")
    arguments = {"x": layer.x[:0], "a": layer.a, "b": layer.b, "ranks": layer.ranks,
                 "scalings": layer.scalings, "slots": [], "y": layer.y[:0]}
    bounds = lt.linear_bounds(**arguments)
    assert bounds.expected.shape == bounds.bound.shape == bounds.covered.shape == (0, 36)
    assert bounds.worst(layer.y[:0]) == 0


def test_a_read_only_output_is_refused() -> None:
    layer = Layer("f32")
    layer.y.flags.writeable = False
    with pytest.raises(lt.InputError, match="^y: "):
        lt.linear(*layer.arguments(), layer.y)


def test_others_run_meanwhile_and_ctrl_c_is_taken(sigint: None) -> None:
    tokens, size, rank = 1024, 16384, 256  # many seconds, in parts
    x, a = np.ones((tokens, size), np.float32), np.ones((1, rank, size), np.float32)
    h = np.zeros((1, tokens, rank), np.float32)
    begins = threading.Event()

    def interrupt() -> None:
        begins.wait()
        while not h[0, 0].any():  # numpy gives the GIL away too, before anything is computed
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # the other thread runs only if the GIL is given away
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            begins.set()
            lt.shrink(x, a, [rank], [0] * tokens, out=h)
    finally:
        sys.setswitchinterval(switch)
        thread.join()
    assert h[0, 0].all() and not h[0, -1].any()  # it had begun, and did not go on to the end


def test_scaling() -> None:
    assert lt.lora_scaling(16, 8) == 2
    assert lt.lora_scaling(16, 16, use_rslora=True) == 4
    with pytest.raises(lt.InputError):
        lt.lora_scaling(1, 0)


def test_unit_roundoff() -> None:
    assert [lt.unit_roundoff(d) for d in ("f32", "f16", "bf16")] == [2.0**-24, 2.0**-11, 2.0**-8]
    with pytest.raises(lt.InputError, match="f64"):
        lt.unit_roundoff("f64")
