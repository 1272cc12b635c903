#!/usr/bin/env python3
"""What attention of a mixed step costs beside its parts, from bench/gpu/mixed_attention_bench.py.

    scripts/fit_mixed_attention.py  # needs numpy, zstd; reads bench/results/mixed-attention-*.json

Prints three constants of engine_preset.cpp, each by least squares of relative errors:

kCombineBlockNs, of cases that differ in one row's context alone, so that one is cut and the other
is not. The longer row's keys count as the decoding cases say:

    time of the cut one - time of the other - keys = blocks x ns,
    blocks = rows x ceil(longest prompt x heads / 8)

kWideTileNs and kSharedCallNs, of cases that are not cut, beside decoding alone in the same file and
prompts alone as the operator table of the card has them:

    time of both in one call - decoding - prompts = tiles x ns - saved,
    tiles = rows x KV heads if the longest prompt has more than 64 tokens, else 0

Then the FLOP/s of products in sequence. Nothing here has seen a server.
"""
import json
import pathlib

import numpy as np

import fit_gpu_scaling

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench/results"
HEADS = {"Llama-3.1-8B": (32, 8), "Qwen2.5-7B": (28, 4)}
LAYERS, SHAPES = 32, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))


def fit(columns, values, wholes):
    """Coefficients, their standard errors, and the errors of the wholes they are parts of."""
    a = np.stack(columns, axis=1).astype(float) / wholes[:, None]
    found, *_ = np.linalg.lstsq(a, values / wholes, rcond=None)
    errors = a @ found - values / wholes
    variance = errors @ errors / (len(values) - len(found)) * np.linalg.inv(a.T @ a)
    return found, np.sqrt(np.diag(variance)), np.abs(errors)


def case(row):
    return row["model"], row["rows"], row["prompts"], row["prompt"], row["context"]


def print_combine(decode, mixed):
    def key_ns(model, rows):
        """Of one more key in decoding rows, whose batches go from 340 to 1,024 keys."""
        times = [decode[model, min(rows, 256), context] for context in (340, 1024)]
        return 1e3 * (times[1] - times[0]) / (min(rows, 256) * 684)

    whole = {case(row): row["us"] for row in mixed if row["splits"] == 1
             and row["longest_context"] <= max(row["context"], row["prompt"])}
    cut = [row for row in mixed if row["splits"] > 1 and case(row) in whole]
    blocks = [(row["rows"] + row["prompts"]) * -(-row["prompt"] * HEADS[row["model"]][0] // 8)
              for row in cut]
    beyond = np.array([1e3 * (row["us"] - whole[case(row)]) -
                       (row["longest_context"] - row["context"]) * key_ns(row["model"], row["rows"])
                       for row in cut])
    (ns,), (sigma,), errors = fit([blocks], beyond, beyond)
    print(f"  combine: {ns:.3f} +- {sigma:.3f} ns a block; {len(cut)} pairs, {min(blocks)} to "
          f"{max(blocks)} blocks; error mean {errors.mean():.1%}, worst {errors.max():.1%}")
    found, sigmas, _ = fit([blocks, np.ones(len(cut))], beyond, beyond)
    print(f"    with a fixed part: {found[0]:.3f} ns, {found[1] / 1e3:.1f} +- {sigmas[1] / 1e3:.1f} us")


def prompts_us(grid, model, prompts, tokens):
    """The table's time, linear in rows and in tokens (tokens + 1000), as PrefillTimes has it."""
    axis, times = grid
    heads, kv_heads = HEADS[model]
    scaled = lambda t: t * (t + 1000)

    def of(h, rows):
        return np.interp(scaled(tokens), scaled(axis), times[h, kv_heads, 128, rows])

    low = max(r for r in (1, 2, 4) if r <= prompts)
    rows = lambda h: of(h, low) + (prompts - low) / low * (of(h, 2 * low) - of(h, low))
    if (heads, kv_heads, 128, 1) in times:
        return 1e6 * rows(heads)
    return 1e6 * (rows(24) + rows(32)) / 2  # 28


def print_shared_call(decode, mixed, grid):
    rows = [row for row in mixed if row["splits"] == 1
            and row["longest_context"] <= max(row["context"], row["prompt"])
            and (row["model"], row["rows"], row["context"]) in decode]
    print("  not cut: us of a layer with prompts; beyond decoding alone and prompts alone")
    us = np.array([row["us"] for row in rows])
    apart = np.array([decode[row["model"], row["rows"], row["context"]] +
                      prompts_us(grid, row["model"], row["prompts"], row["prompt"]) for row in rows])
    tiles = np.array([row["rows"] * HEADS[row["model"]][1] * (row["prompt"] > 64)
                      for row in rows])
    (ns, saved), sigmas, errors = fit([tiles, -np.ones(len(rows))], us - apart, us)
    for row, beyond, error in zip(rows, us - apart, errors):
        print(f"    {row['model']:13} {row['rows']:4} rows of {row['context']:4}, "
              f"{row['prompts']} x {row['prompt']}: {row['us']:7.1f} {beyond:+7.1f}, "
              f"error {error:.1%}")
    print(f"  wide tiles: {1e3 * ns:.2f} +- {1e3 * sigmas[0]:.2f} ns, saved "
          f"{saved:.1f} +- {sigmas[1]:.1f} us; error of the whole: mean {errors.mean():.1%}, "
          f"worst {errors.max():.1%}")
    print(f"  the table's shortest call of a prompt: {prompts_us(grid, rows[0]['model'], 1, 1):.1f} us")


def print_products(products):
    total = 2 * LAYERS * sum(n * k for n, k in SHAPES)
    print("  products of Llama-3.1-8B in sequence")
    for row in products:
        alone = f", each alone {row['alone_us'] / 1e3:.2f} ms" if "alone_us" in row else ""
        print(f"    {row['tokens']:4} tokens: {row['sequence_us'] / 1e3:6.2f} ms, "
              f"{row['tokens'] * total / row['sequence_us'] * 1e-6:.0f} TFLOP/s{alone}")


def main():
    tables = fit_gpu_scaling.read_table("h100_sxm")
    for path in sorted(RESULTS.glob("mixed-attention-h100-*.json")):
        data = json.loads(path.read_text())
        print(f"{path.name}: {data['about']['gpu']}")
        decode = {(r["model"], r["rows"], r["context"]): r["us"] for r in data["attention"]
                  if r["kind"] == "decode"}
        mixed = [r for r in data["attention"] if r["kind"] != "decode"]
        print_combine(decode, mixed)
        print_shared_call(decode, mixed, tables["prefill_bf16"])
        print_products(data["products"])


if __name__ == "__main__":
    main()
