#!/usr/bin/env python3
"""Makes scheduler_sim/cost/tables/*.txt.zst: measured operator times of GPUs.

Source: the PyPI package aiconfigurator-core (NVIDIA, Apache-2.0), systems/data/*.parquet:
    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d pkg
    scripts/make_operator_tables.py pkg/aiconfigurator_core/systems/data
or a folder of <gpu>.<table>.csv.zst with the same columns. Parquet needs pyarrow; both need zstd.

The format, which operator_table.cpp reads: lines of words. "card" is the --gpu preset that was
measured, "source" the origin. A grid is a line "grid NAME KEYS AXIS x1 x2 ..." and rows "key ...
t1 t2 ...", times in nanoseconds with four digits, 0 where nobody measured.
"""
import argparse
import csv
import io
import pathlib
import subprocess
import sys

# Name of the data, --gpu preset, version of vLLM by table.
GPUS = {
    "a100_sxm": ("A100-80", "0.14.0", "0.14.0"),
    "h100_sxm": ("H100-80", "0.24.0", "0.24.0"),
    "h200_sxm": ("H200", "0.24.0", "0.24.0"),
    "l40s": ("L40S", "0.24.0", "0.22.0"),
    "b200_sxm": ("B200", "0.24.0", "0.24.0"),
    "rtx_pro_6000_server": ("RTX-PRO-6000", "0.24.0", "0.24.0"),
}
# Table, its folder and file in the package.
FILES = {
    "gemm": ("gemm", "gemm_perf"),
    "decode_attention": ("attention", "generation_attention_perf"),
    "prefill_attention": ("attention", "context_attention_perf"),
    "moe": ("moe", "moe_perf"),
    "allreduce": ("comm", "custom_allreduce_perf"),
}
LEAST_GEMM = 128  # no layer of a model of a billion parameters is narrower
LEAST_CONTEXT = 16
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block"}


def read_rows(folder, gpu, table):
    """Dicts of text, from either source."""
    condensed = folder / f"{gpu}.{table}.csv.zst"
    if condensed.exists():
        text = subprocess.run(["zstd", "-dc", str(condensed)], check=True, capture_output=True,
                              text=True).stdout
        return list(csv.DictReader(io.StringIO(text)))
    import pyarrow.parquet
    kind, file = FILES[table]
    version = GPUS[gpu][2 if kind == "comm" else 1]
    path = folder / gpu / kind / "vllm" / version / f"{file}.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    return [{key: str(value) for key, value in row.items()} for row in rows]


def nanoseconds(row):
    return int(float(f"{float(row['latency']) * 1e6:.4g}"))


class Grids:
    """Curves by grid, key and place on the axis; the least time where there are several."""

    def __init__(self):
        self.grids = {}

    def add(self, name, keys, values, axis, x, ns):
        curves = self.grids.setdefault((name, keys, axis), {})
        curve = curves.setdefault(values, {})
        curve[x] = min(ns, curve.get(x, ns))

    def text(self):
        lines = []
        for (name, keys, axis), curves in self.grids.items():
            xs = sorted({x for curve in curves.values() for x in curve})
            lines.append(" ".join(map(str, ["grid", name, keys, axis, *xs])))
            for values in sorted(curves):
                lines.append(" ".join(map(str, [*values, *(curves[values].get(x, 0) for x in xs)])))
        return "\n".join(lines) + "\n"


def numbers(row, *keys):
    return tuple(int(row[key]) for key in keys)


def add_gemms(rows, grids):
    for row in rows:
        n, k, m = numbers(row, "n", "k", "m")
        if min(n, k) >= LEAST_GEMM and row["gemm_dtype"] in ("bfloat16", "fp8"):
            grids.add(f"gemm_{DTYPES[row['gemm_dtype']]}", "n,k", (n, k), "tokens", m,
                      nanoseconds(row))


def add_attention(kind, rows, grids):
    heads = ("num_heads", "num_key_value_heads", "head_dim", "batch_size")
    for row in rows:
        if int(row.get("window_size", 0)) != 0 or row["attn_dtype"] != "bfloat16":
            continue
        tokens, before = numbers(row, "isl", "step")
        if kind == "decode":
            tokens += before
        elif before != 0:
            continue
        if kind == "prefill" or tokens >= LEAST_CONTEXT:
            grids.add(f"{kind}_{DTYPES[row['kv_cache_dtype']]}", "heads,kv_heads,head_dim,rows",
                      numbers(row, *heads), "tokens", tokens, nanoseconds(row))


def add_experts(rows, grids):
    shape = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")
    for row in rows:
        # Real routers are between balanced and this law; every GPU was measured with it.
        if int(row["moe_ep_size"]) == 1 and row["distribution"] == "power_law_1.01":
            if row["moe_dtype"] in DTYPES:
                grids.add(f"moe_{DTYPES[row['moe_dtype']]}", "hidden,intermediate,k,experts,tp",
                          numbers(row, *shape), "tokens", int(row["num_tokens"]), nanoseconds(row))


def add_allreduce(rows, grids):
    for row in rows:
        mode = row["backend"].removeprefix("vllm_")
        grids.add(f"allreduce_{mode}", "gpus", numbers(row, "num_gpus"), "bytes",
                  int(row["message_size"]), nanoseconds(row))


def table_of(folder, gpu):
    card, version, comm = GPUS[gpu]
    grids = Grids()
    add_gemms(read_rows(folder, gpu, "gemm"), grids)
    add_attention("decode", read_rows(folder, gpu, "decode_attention"), grids)
    add_attention("prefill", read_rows(folder, gpu, "prefill_attention"), grids)
    add_experts(read_rows(folder, gpu, "moe"), grids)
    add_allreduce(read_rows(folder, gpu, "allreduce"), grids)
    source = f"aiconfigurator-core 0.12.0 systems/data/{gpu}, vLLM {version}"
    if comm != version:
        source += f", all-reduce {comm}"
    return f"loratory.operators/1 {gpu}\ncard {card}\nsource {source}\n" + grids.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent.parent / "scheduler_sim/cost/tables")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for gpu in GPUS:
        text = table_of(args.folder, gpu).encode()
        path = args.out / f"{gpu}.txt.zst"
        # The reader unpacks in one go: the frame says its size.
        subprocess.run(["zstd", "-q", "-19", f"--stream-size={len(text)}", "-f", "-o", str(path)],
                       input=text, check=True)
        print(f"{path}: {path.stat().st_size} bytes, {len(text)} unpacked", file=sys.stderr)


if __name__ == "__main__":
    main()
