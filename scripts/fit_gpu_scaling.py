#!/usr/bin/env python3
"""How operator times go from one GPU to another: the H100's tables against the H200's.

    scripts/fit_gpu_scaling.py        # needs numpy, zstd; errors by bandwidth that is reached

Both GPUs have the same multiprocessors and clock, and 3.35 against 4.8 TB/s. OperatorTimes takes a
time apart and puts it together again (operator_times.hpp):

    time = 3 us + sqrt(computed^2 + read^2),  read = bytes / (reached x bandwidth)

so that only `read` changes between these two. `reached` (kReachedBandwidth) is what brings the
products of bf16 nearest, both ways, up to 1,025 tokens; every other operator is held out. Beside it
what was done before: times x roofline of one GPU / of the other.
"""
import pathlib
import subprocess

import numpy as np

TABLES = pathlib.Path(__file__).resolve().parent.parent / "scheduler_sim/cost/tables"
BANDWIDTH = {"h100_sxm": 3.35e12, "h200_sxm": 4.8e12}
FLOPS = 989e12
LAUNCH = 3e-6
BEYOND_L2 = 1 << 28
LEAST_SIDE, LEAST_MATRIX = 1024, 2**23  # of products: what models of some billions have
CASES = (("gemm_bf16", 1, 64), ("gemm_bf16", 65, 257), ("gemm_bf16", 258, 1025),
         ("gemm_bf16", 1, 1025), ("gemm_fp8", 1, 1025), ("decode_bf16", 16, 16384),
         ("decode_fp8", 16, 16384), ("prefill_bf16", 16, 16384), ("prefill_fp8", 16, 16384))


def read_table(name):
    text = subprocess.run(["zstd", "-qdc", str(TABLES / f"{name}.txt.zst")], check=True,
                          capture_output=True, text=True).stdout
    grids, grid, num_keys = {}, None, 0
    for line in text.splitlines():
        words = line.split()
        if words[0] == "grid":
            grid, num_keys = {}, len(words[2].split(","))
            grids[words[1]] = (np.array(words[4:], float), grid)
        elif grid is not None:
            grid[tuple(map(int, words[:num_keys]))] = 1e-9 * np.array(words[num_keys:], float)
    return grids


def work(kind, key, x):
    """FLOPs (FP8 at half), bytes, and which places count."""
    if kind.startswith("gemm"):
        n, k = key
        bytes_of = 1 if kind.endswith("fp8") else 2
        counts = min(n, k) >= LEAST_SIDE and n * k >= LEAST_MATRIX
        return 2 * x * n * k * bytes_of / 2, n * k * bytes_of + x * (2 * n + bytes_of * k), counts
    heads, kv_heads, dim, rows = key
    decode = kind.startswith("decode")
    pairs = rows * x if decode else rows * x * (x + 1) / 2
    cache = rows * x * 2 * kv_heads * dim * (1 if kind.endswith("fp8") else 2)
    queries = rows * (1 if decode else x)
    return (4 * pairs * heads * dim, cache + 4 * queries * heads * dim,
            cache >= BEYOND_L2 if decode else True)


def points(tables, kind, source, target, least, most):
    columns = []
    axis, times = tables[source][kind]
    for key, here in times.items():
        there = tables[target][kind][1].get(key)
        if there is None:
            continue
        flops, num_bytes, counts = work(kind, key, axis)
        keep = (here > 0) & (there > 0) & (axis >= least) & (axis <= most) & counts
        columns.append(np.stack([here, there, flops, num_bytes])[:, keep])
    return np.concatenate(columns, axis=1)


def by_parts(data, source, target, reached):
    here, _, _, num_bytes = data
    launch = np.minimum(here, LAUNCH)
    beyond = here - launch
    read = np.minimum(beyond, num_bytes / (reached * BANDWIDTH[source]))
    computed = np.sqrt(beyond**2 - read**2)
    return launch + np.hypot(computed, read * BANDWIDTH[source] / BANDWIDTH[target])


def by_roofline(data, source, target):
    here, _, flops, num_bytes = data
    roofline = lambda gpu: LAUNCH + np.maximum(flops / FLOPS, num_bytes / BANDWIDTH[gpu])
    return here * roofline(target) / roofline(source)


def error(tables, case, predict):
    """Mean |error| both ways, and the mean error of the H200 from the H100."""
    errors = []
    for source, target in (("h100_sxm", "h200_sxm"), ("h200_sxm", "h100_sxm")):
        data = points(tables, case[0], source, target, *case[1:])
        errors.append(np.log(predict(data, source, target) / data[1]))
    return np.abs(np.concatenate(errors)).mean(), errors[0].mean()


def main():
    tables = {name: read_table(name) for name in BANDWIDTH}
    choices = np.arange(0.80, 1.001, 0.01)
    fitted = [error(tables, ("gemm_bf16", 1, 1025), lambda *a: by_parts(*a, f))[0] for f in choices]
    best = choices[int(np.argmin(fitted))]
    print(f"bf16 products up to 1,025 tokens: least error {min(fitted):.2%}, reached = {best:.2f}")
    for case in CASES:
        old = error(tables, case, by_roofline)
        new = [error(tables, case, lambda *a: by_parts(*a, f)) for f in (0.90, 0.94, 1.0)]
        print(f"{case[0]:13} {case[1]:5} to {case[2]:5}: by roofline {old[0]:6.1%} ({old[1]:+.1%});"
              + "".join(f"  {f}: {e:5.1%} ({b:+.1%})" for f, (e, b) in zip((.9, .94, 1.), new)))


if __name__ == "__main__":
    main()
