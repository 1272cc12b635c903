#!/usr/bin/env python3
"""What each operation of gpu/ was verified on and how fast it is: writes docs/operations.md.

    scripts/operation_matrix.py           write the page
    scripts/operation_matrix.py --check   fail if the page is stale or a suite is in no row

Reads bench/results: gpu-tests-*.json of bench/gpu/record_gpu_tests.py, lora-gpu-*.json and
moe-gpu-*.json of bench/gpu/lora_bench.py and moe_bench.py. Of each test and of each timed row, the
newest record counts. What has no record says so. Standard library only.
"""

import dataclasses
import fnmatch
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "operations.md"
TESTS = ROOT / "tests" / "gpu" / "device"
TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
NONE = "not recorded"
OURS = {"bf16": "loratory", "fp8": "loratory_fp8"}


@dataclasses.dataclass(frozen=True)
class Operation:
    name: str
    dtypes: str
    mode: str
    tests: tuple  # globs of Suite.Name
    op: str = ""  # of the timed rows: pair, shrink, expand, experts; "": none are timed with peers
    weights: str = "bf16"


OPERATIONS = [
    Operation("linear", "bf16, f16; y also f32", "tensor cores",
              ("LoraNumbers.*", "LoraBits*", "LoraGraph.*", "LoraOffsets.P25OffsetsAre64Bit",
               "ShrinkExpandOnGpu.ShrinkThenExpand*", "LayerOverlap.*"), "pair"),
    Operation("shrink", "bf16, f16", "tensor cores", ("ShrinkExpandOnGpu.Shrink[!T]*",), "shrink"),
    Operation("expand", "bf16, f16; y also f32", "tensor cores", ("ShrinkExpandOnGpu.Expand*",),
              "expand"),
    Operation("linear, shrink, expand", "f32, mixed, folded B", "generic", ("GenericOnGpu.*",)),
    Operation("linear, shrink, expand", "e4m3fn, e5m2, i8", "w8a16, w8a8; both paths",
              ("QuantizedOnGpu.*",), "pair", "fp8"),
    Operation("slices as SGLang stacks them", "bf16, f16", "tensor cores", ("PeerLayouts*",)),
    Operation("LoRA on experts", "bf16, f16, f32", "by slot and expert", ("ExpertLoraOnGpu.*",),
              "experts"),
    Operation("LoRA on gate and up, SwiGLU", "bf16, f16", "tensor cores", ("SiluMulLora*",)),
    Operation("LoRA on embed_tokens", "f32, bf16, f16, e4m3fn", "gather, expand",
              ("EmbeddingLora.*", "LoraOffsets.P25Columns*")),
    Operation("LoRA on lm_head", "bf16, f16; y f32", "rows of the sampler", ("LogitsLora.*",)),
    Operation("bias of an adapter", "f32, bf16, f16", "before the delta", ("LoraBias.*",)),
    Operation("segments of a step", "-", "on the GPU", ("SegmentBuilder*", "DeviceSegments*")),
    Operation("experts of the base model, router", "f32, bf16, f16", "by expert",
              ("ExpertsOnGpu.*",)),
    Operation("products of the base model", "f32, bf16, f16", "exact and fast",
              ("BaseProductOnGpu.*",)),
    Operation("paged attention", "f32, bf16, f16", "decode, prefill, plain", ("PagedAttention.*",)),
    Operation("norms, RoPE, SwiGLU, embedding", "f32, bf16, f16", "-", ("ModelKernels.*",)),
    Operation("sampling", "f32", "-", ("SamplerOnGpu.*",)),
    Operation("the engine", "f32, bf16, f16", "slots of the model's dtype",
              ("EngineGpu.EveryRequestHasTheBitsItHasAlone", "EngineGpu.*LogitsLieWithin*",
               "EnginePrefill.*")),
    Operation("the engine", "f32, bf16, f16", "slots of fp8", ("EngineGpu.*Fp8*",)),
    Operation("the engine", "bf16", "faults", ("*EngineFault*",)),
    Operation("LoRA behind the plugin's header", "all of them", "drawn by `loratory check`",
              ("CudaPluginOnGpu.*",)),
]


def is_of(operation, test):
    """A suite with parameters is recorded as Prefix/Suite.Name/N."""
    plain = re.sub(r"^\w+/|/\w+$", "", test)
    return any(fnmatch.fnmatchcase(plain, pattern) for pattern in operation.tests)


def source_tests():
    """Suite.Name of every test on the device."""
    return [f"{suite}.{name}" for path in sorted(TESTS.glob("*_test.cpp"))
            for suite, name in TEST.findall(path.read_text(encoding="utf-8"))]


def tests_recorded():
    """{test: its newest record, with what GPU and commit}."""
    found = {}
    files = [json.loads(path.read_text()) for path in RESULTS.glob("gpu-tests-*.json")]
    for record in sorted(files, key=lambda record: record["date"]):
        for test in record.get("fixed_set", {"tests": []})["tests"]:
            found[test["test"]] = test
    return found


def rows_timed():
    """{(file kind, row name): its newest record that has a peer too, with what GPU and commit}."""
    found, files = {}, []
    for kind in ("lora", "moe"):
        for path in RESULTS.glob(f"{kind}-gpu-*.json"):
            files.append((json.loads(path.read_text()), kind))
    for data, kind in sorted(files, key=lambda item: item[0]["about"]["date"]):
        for name, row in data["rows"].items():
            if not math.isnan(ratio(row)):
                found[kind, name] = row | {"where": place(data["about"])}
    return found


def median_us(result):
    return result["cold"]["median_us"] if "cold" in result else math.nan


def ratio(row):
    """Fastest peer that is shipped by ours, weights from HBM; NaN if one of them has no time."""
    ours = median_us(row["implementations"].get(OURS[row.get("weights", "bf16")], {}))
    peers = [median_us(result) for result in row["implementations"].values()
             if result.get("kind") == "shipped"]
    return min((us for us in peers if us == us), default=math.nan) / ours


def place(record):
    """GPU and commit of a record; those of a benchmark name the driver and the clock too."""
    gpu = record["gpu"].partition(",")[0].removeprefix("NVIDIA ")
    return f"{gpu}, {record['commit']}"


def speed(operation, timed):
    """Cells of an operation: peer by ours, where."""
    if not operation.op:
        return ["-", "-"]
    kind, op = ("moe", "pair") if operation.op == "experts" else ("lora", operation.op)
    rows = [row for (of, _), row in timed.items()
            if of == kind and row["op"] == op and row.get("weights", "bf16") == operation.weights]
    if not rows:
        return [NONE, ""]
    ratios = [ratio(row) for row in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return [f"{mean:.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rows)",
            "; ".join(sorted({row["where"] for row in rows}))]


def verified(records):
    """Cells of an operation: cases, results, worst error, tests, where."""
    worst = max(record["worst_error_over_bound"] for record in records)
    results = sum(record["results"] for record in records)
    where = {place(record) for record in records}
    failed = [record["test"] for record in records if not record["passed"]]
    return [f"{sum(record['cases'] for record in records):,}", f"{results:,}",
            f"{worst:.2f}" if worst > 0 else "to the bit" if results else "-",
            "; ".join(sorted(where)) + ("; FAILED: " + ", ".join(failed) if failed else "")]


def line(cells):
    return "| " + " | ".join(cells) + " |"


def matrix(recorded, timed):
    yield line(["operation", "dtypes", "path or mode", "cases", "results compared",
                "worst error / bound", "verified on, commit", "peer / ours", "timed on, commit"])
    yield line(["---"] * 3 + ["---:"] * 3 + ["---"] * 3)
    for operation in OPERATIONS:
        records = [record for test, record in recorded.items() if is_of(operation, test)]
        cells = verified(records) if records else [NONE, "", "", ""]
        yield line([operation.name, operation.dtypes, operation.mode, *cells,
                    *speed(operation, timed)])


def kinds_of_cases(recorded):
    """What the cases of an operation were, most frequent first."""
    for operation in OPERATIONS:
        kinds = {}
        for test, record in recorded.items():
            if is_of(operation, test):
                for kind, count in record["classes"].items():
                    kinds[kind] = kinds.get(kind, 0) + count
        if kinds:
            listed = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
            yield line([operation.name, operation.mode,
                        ", ".join(f"{kind} {count:,}" for kind, count in listed)])


def missing(recorded):
    """Suites of which no test has a record."""
    plain = {re.sub(r"^\w+/|/\w+$", "", test).partition(".")[0] for test in recorded}
    return sorted({test.partition(".")[0] for test in source_tests()} - plain)


INTRODUCTION = """\
# What was verified, and how fast it is

Generated by `scripts/operation_matrix.py` from `bench/results/`; do not edit. A test (`--check`)
fails if it is stale.

- *Verified*: the fixed set of `bench/gpu/record_gpu_tests.py`, against the reference and its bounds
  ([error_bounds.md](error_bounds.md)).
- *Peer / ours*: the time of the fastest shipped peer in `bench/gpu/lora_bench.py` or `moe_bench.py`
  over ours, weights from HBM; geometric mean, least and most. Only runs that time a peer count, so
  this may be an older commit than the verified one.
  [kernel_measurements.md](kernel_measurements.md) has the rows.
- *Not recorded*: not in a recorded session on a GPU, whatever else was tested.
"""


def page():
    recorded, timed = tests_recorded(), rows_timed()
    return "\n".join([
        INTRODUCTION, *matrix(recorded, timed), "", "## What the cases were", "",
        line(["operation", "path or mode", "kind of case, and how many"]), line(["---"] * 3),
        *kinds_of_cases(recorded), "", "## Suites without a record", "",
        ", ".join(missing(recorded)) or "None.", ""])


def homeless():
    """Tests on the device that belong to no row."""
    return [test for test in source_tests()
            if not any(is_of(operation, test) for operation in OPERATIONS)]


def main():
    wrong = [f"{test}: is in no row of OPERATIONS" for test in homeless()]
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            wrong.append("docs/operations.md is stale: run scripts/operation_matrix.py")
    else:
        PAGE.write_text(text, encoding="utf-8")
    print("\n".join(wrong) or f"{len(OPERATIONS)} operations, {len(source_tests())} tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
