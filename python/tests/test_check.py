"""loratory.check and the pytest plugin: right kernels pass, planted bugs are found and named."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import loratory as lt
from loratory.checking import DTYPES, H_MODES, SCALE_MODES, SUM_MODES

pytest_plugins = ["pytester"]

WIDE = ("f32", "f16", "bf16")
MODES = [lt.NumericMode(h, s, c) for h in H_MODES for s in SUM_MODES for c in SCALE_MODES]
QUICK: dict[str, Any] = {"cases": 15, "max_products": 1 << 16}


def reference(layer: lt.Layer, x: Any, x_scale: Any, h: Any, h_scale: Any, y: Any, slots: Any,
              token_ids: Any, experts: Any, router_weights: Any, a: Any, b: Any, a_scale: Any,
              b_scale: Any, ranks: Any, scalings: Any, offset_start: int, add_inputs: bool,
              mode: lt.NumericMode) -> None:
    """The operations of the package, as a kernel."""
    out = {"offset_start": offset_start, "add_inputs": add_inputs}
    if a_scale[0] is not None or b_scale[0] is not None:
        if layer.operation == "shrink":
            lt.shrink_quantized(x, x_scale, a, a_scale, ranks, slots, block=layer.a_block, out=h)
        elif layer.operation == "expand":
            lt.expand_quantized(h, h_scale, b, b_scale, ranks, scalings, slots, y,
                                block=layer.b_block, sum=mode.sum, **out)
        else:
            lt.linear_quantized(x, x_scale, a, a_scale, b, b_scale, ranks, scalings, slots, y,
                                a_block=layer.a_block, b_block=layer.b_block, sum=mode.sum, **out)
        return
    if layer.operation == "shrink":
        lt.shrink(x, a, ranks, slots, out=h)
    elif layer.operation == "expand":
        lt.expand(h, b, ranks, scalings, slots, y, mode=mode, **out)
    elif layer.operation == "embedding":
        lt.embedding(token_ids, a[0], b[0], ranks[0], scalings[0], slots, y, mode=mode)
    else:
        lt.linear(x, a, b, ranks, scalings, slots, y, mode=mode, **out)


def mine(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any, y: Any) -> None:
    """A kernel as its author would write it in numpy."""
    for t, slot in enumerate(slots):
        column = 0
        for a_i, b_i, r, s in zip(a, b, ranks, scalings):
            n = b_i.shape[1]
            rank = int(r[slot]) if slot >= 0 else 0
            if rank > 0:
                h = a_i[slot, :rank].astype(np.float32) @ x[t].astype(np.float32)
                d = s[slot] * (b_i[slot, :, :rank].astype(np.float32) @ h)
                out = y[t, column:column + n]
                out[:] = (out.astype(np.float32) + d).astype(y.dtype)
            column += n


def experts_of_mine(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any, experts: Any,
                    enabled: Any, layer: lt.Layer, y: Any) -> None:
    """linear on experts. Expert -1 is not here; `enabled` is None where all slots are on."""
    for row, expert in enumerate(experts):
        slot = slots[row // layer.experts_per_token]
        if slot < 0 or expert < 0 or (enabled is not None and not enabled[slot]):
            continue
        column, pair = 0, slot * layer.num_experts + expert
        for a_i, b_i, r, s in zip(a, b, ranks, scalings):
            n, rank = b_i.shape[2], int(r[pair])
            if rank > 0:
                x_row = x[row // layer.rows_per_x].astype(np.float32)
                d = s[pair] * (b_i[slot, expert, :, :rank] @ (a_i[slot, expert, :rank] @ x_row))
                y[row, column:column + n] += d
            column += n


def test_experts_that_are_away_and_slots_that_are_off() -> None:
    claims: dict[str, Any] = {"operations": ["expert_linear"], "weight_dtypes": ["f32"], **QUICK}
    report = lt.check(experts_of_mine, takes_absent_experts=True, **claims)
    assert report.ok, report.text
    seen: dict[str, bool] = {}

    def deaf(experts: Any, enabled: Any, **others: Any) -> None:
        seen["off"] = seen.get("off", False) or enabled is not None and not all(enabled)
        seen["away"] = seen.get("away", False) or bool((experts < 0).any())
        experts_of_mine(experts=experts, enabled=None, **{
            name: others[name] for name in ("x", "a", "b", "ranks", "scalings", "slots", "layer",
                                            "y")})

    report = lt.check(deaf, takes_absent_experts=True, **claims)
    assert seen == {"off": True, "away": True}
    assert not report.ok
    case = lt.LoraCase("expert_linear.K8.N4.r4x4.n9.zipf.f32.E3.k2.off.seed7")
    assert case.enabled is not None and len(case.enabled) == 4
    assert lt.LoraCase("expert_linear.K8.N4.r4.n3.zipf.f32.E3.k2.seed7").enabled is None


def test_the_reference_is_right() -> None:
    report = lt.check(reference, operations=["linear", "shrink", "expand", "embedding", "logits"],
                      weight_dtypes=WIDE, h_dtypes=WIDE, y_dtypes=WIDE, modes=MODES,
                      repeatable=True, batch_invariant=True, **QUICK)
    assert report.ok and bool(report), report.text
    assert report.num_cases == 15 and report.subject == "reference"
    numbers = report.find("numbers")
    assert numbers is not None and numbers.state == "passed"
    assert 0 < numbers.worst <= 1 and numbers.num_comparisons > 1000


def test_the_reference_with_8_bit_weights_is_right() -> None:
    report = lt.check(reference, operations=["linear", "shrink", "expand"],
                      weight_dtypes=DTYPES[3:], x_dtypes=DTYPES, y_dtypes=WIDE,
                      weight_scales=["tensor", "channel", "block"],
                      activation_scales=["tensor", "token", "block"],
                      modes=[lt.NumericMode(sum="one_round"), lt.NumericMode(sum="two_round")],
                      **QUICK)
    assert report.ok, report.text


def test_a_kernel_in_numpy_is_right() -> None:
    report = lt.check(mine, **QUICK)
    assert report.ok, report.text
    assert {"numbers", "guards", "nan_containment"} <= {result.name for result in report.checks}
    assert report.json.startswith("{") and "<testsuite" in report.junit


class Prepared:
    """The same as a class: metadata before the run, the layer kept."""

    def __init__(self, layer: lt.Layer) -> None:
        self.layer = layer
        self.slots: list[int] = []

    def prepare(self, host_slots: Any) -> None:
        self.slots = host_slots.tolist()

    def run(self, x: Any, y: Any) -> Any:
        result = y.copy()  # and the result returned, as of a library without writing in place
        layer = self.layer
        mine(x, layer.a, layer.b, layer.ranks, layer.scalings, self.slots, result)
        return result


def test_a_kernel_that_is_a_class() -> None:
    report = lt.check(Prepared, **QUICK)
    assert report.ok, report.text


def drops_the_tail_of_k(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any,
                        y: Any) -> None:
    k = x.shape[1] // 32 * 32
    mine(x[:, :k], [a_i[..., :k] for a_i in a], b, ranks, scalings, slots, y)


def forgets_the_scaling(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any,
                        y: Any) -> None:
    mine(x, a, b, ranks, [np.ones_like(s) for s in scalings], slots, y)


def reads_beyond_the_rank(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any,
                          y: Any) -> None:
    mine(x, a, b, [np.where(r > 0, a_i.shape[1], 0) for r, a_i in zip(ranks, a)], scalings, slots,
         y)


def writes_base_rows(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any,
                     y: Any) -> None:
    mine(x, a, b, ranks, scalings, slots, y)
    y[slots < 0] = 0


def changes_its_input(x: Any, a: Any, b: Any, ranks: Any, scalings: Any, slots: Any,
                      y: Any) -> None:
    mine(x, a, b, ranks, scalings, slots, y)
    x[:1] += x[:1]


def keeps_the_first_slots(layer: lt.Layer, x: Any, a: Any, b: Any, ranks: Any, scalings: Any,
                          slots: Any, y: Any) -> None:
    kept = SEEN.setdefault(id(layer), (layer, np.array(slots)))[1]
    mine(x, a, b, ranks, scalings, np.resize(kept, slots.shape) if len(kept) else slots, y)


SEEN: dict[int, Any] = {}


@pytest.mark.parametrize("kernel", [drops_the_tail_of_k, forgets_the_scaling,
                                    reads_beyond_the_rank, writes_base_rows, changes_its_input,
                                    keeps_the_first_slots])
def test_a_planted_bug_is_found(kernel: Any) -> None:
    report = lt.check(kernel, cases=60, max_products=1 << 16, stop_at_first=True)
    assert not report.ok and not report
    finding = report.findings[0]
    assert finding.what and finding.label and finding.repro and finding.check in report.text
    assert finding.repro.endswith(f"{kernel.__name__}, ..., labels=['{finding.smallest}'])")
    assert finding.repro in report.text
    with pytest.raises(AssertionError, match=finding.check):
        report.assert_ok()
    again = lt.check(kernel, labels=[finding.smallest])
    assert not again.ok and again.num_cases == 1
    right = lt.check(mine, labels=[finding.smallest], max_products=1 << 16)
    assert right.ok, right.text


def test_a_kernel_that_raises_is_a_finding() -> None:
    def raises(x: Any, y: Any) -> None:
        raise RuntimeError("no such\nluck")

    report = lt.check(raises, **QUICK)
    assert not report.ok

    def fails_inside(x: Any, y: Any) -> None:
        json.loads("nonsense")

    inside = lt.check(fails_inside, **QUICK).findings
    assert any("JSONDecodeError" in f.what and "(test_check.py:" in f.what for f in inside)
    assert any("RuntimeError: no such luck (test_check.py:" in f.what for f in report.findings)


def test_ctrl_c_in_a_kernel_ends_the_check() -> None:
    calls = []

    def interrupted(x: Any, y: Any) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lt.check(interrupted, **QUICK)
    assert len(calls) == 1


@pytest.mark.parametrize("arguments, line", [
    ({"weight_dtypes": ["f64"]}, 'weight_dtypes: "f64" is not known'),
    ({"max_rnak": 3}, "max_rnak: "),
    ({"labels": ["linear.K4.N4.r1.n1.uniform.bf61.seed7"]}, "bf61"),
    ({"checks": ["numbres"]}, "numbres"),
    ({"device": "tpu"}, "device"),
    ({"framework": "tensorflow"}, "framework"),
    ({"cases": 0}, "cases: 0 is no whole number from 1 "),
    ({"cases": -3}, "cases: -3 is no"),
    ({"cases": 2.5}, "cases: 2.5 is no"),
    ({"cases": True}, "cases: True is no"),
    ({"seed": -1}, "seed: -1 is no"),
    ({"seed": 1 << 64}, "seed: 18446744073709551616 is no"),
    ({"max_products": 0}, "max_products: 0 is no"),
    ({"max_bytes": "1G"}, "max_bytes: '1G' is no"),
    ({"budget_s": "10s"}, "budget_s: '10s' is no number"),
    ({"budget_s": float("nan")}, "budget_s: nan is no number"),
    ({"labels": [3]}, "labels: 3 is no str"),
    ({"labels": 3}, "labels: 3 is no str"),
    ({"checks": [None]}, "checks: None is no str"),
    ({"claims": {"max_rank": 3}}, "claims: {'max_rank': 3} is no loratory.Claims"),
    ({"max_rank": "8"}, "claims.max_rank: '8' is no whole number"),
    ({"max_rank": 1 << 70}, "claims.max_rank: "),
    ({"unit": "small"}, "claims.unit: 'small' is no number"),
    ({"modes": ["fp32"]}, "modes: 'fp32' is no NumericMode"),
    ({"modes": lt.NumericMode(h="fp16")}, "modes: 'fp16' is not known"),  # type: ignore
    ({"weight_dtypes": 3}, "weight_dtypes: 3 is no str"),
    ({"weight_dtypes": ["bf16", "f8_e4m3fn"]}, "claims.weight_scales: is empty"),
    ({"labels": "linear.K4.N4.r1.n1.f32.stacked"}, "'stacked': the kernel does not claim"),
])
def test_bad_arguments(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(lt.InputError, match=re.escape(line)):
        lt.check(mine, **arguments)


def test_one_label_may_come_alone() -> None:
    report = lt.check(mine, labels="linear.K4.N4.r1.n1.f32.seed7", checks="numbers")
    assert report.ok and report.num_cases == 1


@pytest.mark.parametrize("change, came", [
    (lambda y: y.astype(np.float64), "float64 [3, 4]"),
    (lambda y: y[:1], "float32 [1, 4]"),
    (lambda y: np.float32(0), "float32 []"),
    (lambda y: y.tolist(), "list"),
])
def test_what_a_kernel_returns_is_not_cast(change: Any, came: str) -> None:
    def returns(y: Any) -> Any:
        return change(np.zeros_like(y))

    report = lt.check(returns, labels=["linear.K4.N4.r1.n3.f32.seed7"], shrink_findings=False)
    assert [f.check for f in report.findings] == ["accepted"]
    assert f"the kernel returned {came}, and y is float32 [3, 4]" in report.findings[0].what


def test_the_line_that_runs_a_case_again_is_python_everywhere() -> None:
    def wrong(y: Any) -> None:
        y += 1

    report = lt.check(wrong, name='a "b" <&>', labels=["linear.K4.N4.r1.s0.f32.seed7"],
                      shrink_findings=False)
    repro = report.findings[0].repro
    assert repro == 'loratory.check(a "b" <&>, ..., labels=[\'linear.K4.N4.r1.s0.f32.seed7\'])'
    assert json.loads(report.json)["findings"][0]["repro"] == repro
    failures = ElementTree.fromstring(report.junit).iter("failure")
    assert any(f"REPRO: {repro}" in (failure.text or "") for failure in failures)
    assert " --case " not in report.text + report.json + report.junit


def test_an_unknown_parameter_is_named() -> None:
    def asks(x: Any, loras: Any) -> None: ...

    with pytest.raises(lt.InputError, match="loras"):
        lt.check(asks)


# --- cases in tests of one's own -------------------------------------------------------------


@pytest.mark.parametrize("label", lt.draw_labels(12, seed=3, max_products=1 << 16))
def test_a_case_judges_what_a_kernel_wrote(label: str) -> None:
    case = lt.LoraCase(label)
    assert case.label == label
    y = case.run(mine)
    lt.assert_matches_reference(case, y)
    wrong = case.y.copy()
    covered = [(t, s) for t, s in enumerate(case.slots) if s >= 0 and case.layer.ranks[0][s] > 0]
    if covered and "tiny" not in label and "cancel" not in label:  # less than a rounding
        with pytest.raises(AssertionError, match=re.escape(f"REPRO: pytest --lora-case {label}")):
            lt.assert_matches_reference(case, wrong)  # nothing was added
    base = [t for t, s in enumerate(case.slots) if s < 0]
    if base and y.shape[1]:
        y[base[0], -1] = 1.25
        verdict = case.judge(y)
        (only,) = verdict.wrong
        assert (only.row, only.column, only.got) == (base[0], y.shape[1] - 1, 1.25)
        assert only.error_over_bound == verdict.worst == np.inf and not only.may_be_written
        with pytest.raises(AssertionError, match="is 1.25 and must not be written"):
            lt.assert_matches_reference(case, y)


def test_inputs_of_a_case_are_read_only() -> None:
    case = lt.LoraCase("expert_linear.K8.N4.r4x4.n9.zipf.f32.E3.k2.off.router.seed7")
    layer = case.layer
    for array in (case.x, case.slots, case.experts, case.router_weights, case.enabled, layer.a[0],
                  layer.ranks[0], layer.scalings[0]):
        assert array is not None and not array.flags.writeable
    assert case.y.flags.writeable
    assert not lt.LoraCase("embedding.K8.N4.r4.n3.f32").token_ids.flags.writeable  # type: ignore


def test_a_case_that_is_not_claimed_is_refused() -> None:
    label = "linear.K4.N4.r1.n1.f32.stacked.seed7"
    assert lt.LoraCase(label).layer.layout == "stacked"
    with pytest.raises(lt.InputError, match="case: 'stacked': the kernel does not claim"):
        lt.LoraCase(label, lt.Claims())


def test_a_shrink_may_write_zeros_beyond_the_rank() -> None:
    label = "shrink.K5.N4.r1,3.s0,1,b.f32.seed7"

    def all_ranks(x: Any, a: Any, slots: Any, h: Any) -> None:
        for t, slot in enumerate(slots):
            if slot >= 0:
                h[0, t] = a[0][slot] @ x[t]

    case = lt.LoraCase(label, lt.Claims(operations=["shrink"], reads_beyond_rank=True))
    lt.assert_matches_reference(case, case.run(all_ranks))
    h = case.run(all_ranks)
    h[0, 0, 2] = 0.5
    (only,) = case.judge(h).wrong
    assert (only.row, only.column, only.got) == (0, 2, 0.5)
    h = case.run(all_ranks)
    h[0, 2] = 0  # of a base token
    assert {wrong.row for wrong in case.judge(h).wrong} == {2}
    strict = lt.LoraCase(label)
    h = strict.run(all_ranks)
    assert {(wrong.row, wrong.column) for wrong in strict.judge(h).wrong} == {(0, 1), (0, 2)}


def test_cases_of_two_seeds_differ() -> None:
    seen = [label for seed in range(1, 6) for label in lt.draw_labels(20, seed=seed)]
    assert len(set(seen)) >= 0.95 * len(seen)


@pytest.mark.parametrize("claim, line", [
    ({"rank_multiple": 1 << 40}, "claims.rank_multiple: is not within"),
    ({"num_in_multiple": 1 << 62}, "claims.num_in_multiple: is not within"),
    ({"max_slots": -1}, "claims.max_slots: is negative"),
    ({"max_rank": 7, "rank_multiple": 8}, "claims.max_rank: is below"),
    ({"unit": 0.5}, "claims.unit: "),
])
def test_claims_that_cannot_be_are_named(claim: dict[str, Any], line: str) -> None:
    for use in (lambda: lt.draw_labels(3, claims=lt.Claims(**claim)),
                lambda: lt.check(mine, **QUICK, **claim),
                lambda: lt.LoraCase("linear.K4.N4.r1.n1.f32.seed7", lt.Claims(**claim))):
        with pytest.raises(lt.InputError, match=re.escape(line)):
            use()


def test_draws_repeat() -> None:
    assert lt.draw_labels(5, seed=3) == lt.draw_labels(5, seed=3) != lt.draw_labels(5, seed=4)
    claims = lt.Claims(weight_dtypes=["bf16"], max_rank=16)
    for label in lt.draw_labels(20, claims=claims):
        assert ".bf16." in label and lt.LoraCase(label).layer.max_rank <= 16


TEST_FILE = """
import numpy as np
import pytest
from loratory import assert_matches_reference

def kernel(x, a, b, ranks, scalings, slots, y):
    for t, s in enumerate(slots):
        o = 0
        for a_i, b_i, r, c in zip(a, b, ranks, scalings):
            n = b_i.shape[1]
            if s >= 0 and r[s] > 0:
                h = a_i[s, :r[s]].astype(np.float32) @ x[t].astype(np.float32)
                d = SCALE * c[s] * (b_i[s, :, :r[s]].astype(np.float32) @ h)
                y[t, o:o + n] = (y[t, o:o + n].astype(np.float32) + d).astype(y.dtype)
            o += n

@pytest.mark.lora_claims(weight_dtypes=["f32", "bf16"], max_rank=16, max_tokens=8)
def test_kernel(lora_case):
    assert_matches_reference(lora_case, lora_case.run(kernel))
"""


def test_the_fixture_goes_through_cases(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST_FILE.replace("SCALE *", ""))
    pytester.runpytest("--lora-cases=7").assert_outcomes(passed=7)
    listed = [pytester.runpytest("--lora-cases=3", f"--lora-seed={seed}", "--collect-only", "-q")
              for seed in (1, 1, 2)]
    labels = [[line for line in run.outlines if "test_kernel[" in line] for run in listed]
    assert len(labels[0]) == 3 and labels[0] == labels[1] != labels[2]


def test_a_wrong_kernel_fails_with_the_line_that_replays_it(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(TEST_FILE.replace("SCALE", "1.5"))
    run = pytester.runpytest("--lora-cases=12")
    failed = run.parseoutcomes()["failed"]
    assert 6 <= failed <= 12
    repro = next(line for line in run.outlines
                 if line.startswith("E  ") and "REPRO: pytest --lora-case " in line)
    repro = repro.split()[-1]
    pytester.runpytest("--lora-case", repro).assert_outcomes(failed=1)
    path.write_text(TEST_FILE.replace("SCALE *", ""))
    pytester.runpytest("--lora-case", repro).assert_outcomes(passed=1)
    unknown = pytester.runpytest("--lora-case", "linear.K1.bogus")
    assert unknown.ret != 0 and "bogus" in unknown.stdout.str()
    outside = pytester.runpytest("--lora-case", "linear.K1.N1.r32.n1.f32")
    assert outside.ret != 0 and "'r': the kernel does not claim 32" in outside.stdout.str()


def test_the_plugin_is_there_without_asking(pytester: pytest.Pytester) -> None:
    pytester.runpytest("--help").stdout.fnmatch_lines(["*--lora-cases=N*", "*--lora-seed=S*"])
    assert pathlib.Path(lt.__file__).parent.joinpath("pytest_plugin.py").exists()


@pytest.mark.parametrize("claim, sign", [("takes_gaps", ".gaps"), ("takes_no_inputs", ".noadd"),
                                         ("takes_offset", ".o")])
def test_what_is_claimed_is_drawn_and_nothing_else(claim: str, sign: str) -> None:
    def num_with(value: bool) -> int:
        labels = lt.draw_labels(80, claims=lt.Claims(**{claim: value}), max_products=1 << 12)
        return sum(bool(re.search(re.escape(sign) + r"(\d|\.|$)", label)) for label in labels)

    assert num_with(False) == 0 and num_with(True) > 0
