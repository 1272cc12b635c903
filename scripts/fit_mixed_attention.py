#!/usr/bin/env python3
"""What attention of a mixed step costs beyond its parts, from bench/gpu/mixed_attention_bench.py.

    scripts/fit_mixed_attention.py    # needs numpy; reads bench/results/mixed-attention-*.json

Prints kCombineBlockNs of engine_preset.cpp, by least squares over cases that differ in one row's
context alone, so that one is cut and the other is not:

    time of the cut one - time of the other = fixed + blocks x ns,
    blocks = rows x ceil(longest prompt x heads / 8)

and, of cases that are not cut, how much longer a layer takes with prompts in the same call than
decoding alone. Then products in sequence against the same with pauses. Nothing here has seen a
server.
"""
import json
import pathlib

import numpy as np

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench/results"
HEADS = {"Llama-3.1-8B": 32, "Qwen2.5-7B": 28}


def blocks(row):
    return (row["rows"] + row["prompts"]) * -(-row["prompt"] * HEADS[row["model"]] // 8)


def print_combine(mixed):
    case = lambda row: (row["model"], row["rows"], row["prompts"], row["prompt"])
    whole = {case(row): row["us"] for row in mixed if row["splits"] == 1}
    pairs = [(blocks(row), 1e3 * (row["us"] - whole[case(row)])) for row in mixed
             if row["splits"] > 1 and case(row) in whole]
    if len(pairs) < 2:
        print("  no pairs of a cut case and one that is not")
        return
    x, y = np.array(pairs, dtype=float).T
    slope, fixed = np.polyfit(x, y, 1)
    errors = np.abs(fixed + slope * x - y)
    print(f"  combine: {slope:.3f} ns a block, {fixed / 1e3:.1f} us fixed; {len(pairs)} pairs, "
          f"{x.min():.0f} to {x.max():.0f} blocks, error median {np.median(errors) / 1e3:.1f} us")


def print_mixing(decode, mixed):
    alone = {(r["model"], r["rows"], r["context"]): r["us"] for r in decode}
    print("  not cut: us of a layer with prompts / decoding alone")
    for row in mixed:
        before = alone.get((row["model"], row["rows"], row["context"]))
        if row["longest_context"] <= max(row["context"], row["prompt"]) and before:
            print(f"    {row['model']:13} {row['rows']:4} rows of {row['context']}, "
                  f"{row['prompts']} x {row['prompt']}: {row['us']:7.1f} / {before:7.1f} "
                  f"= {row['us'] / before:.2f}")


def main():
    for path in sorted(RESULTS.glob("mixed-attention-*.json")):
        data = json.loads(path.read_text())
        print(f"{path.name}: {data['about']['gpu']}")
        decode = [r for r in data["attention"] if r["kind"] == "decode"]
        mixed = [r for r in data["attention"] if r["kind"] == "mixed"]
        print_combine(mixed)
        print_mixing(decode, mixed)
        for row in data["products"]:
            ratio = row["sequence_us"] / row["with_pauses_us"]
            print(f"  products, {row['tokens']:4} tokens: {row['sequence_us'] / 1e3:6.2f} ms in "
                  f"sequence, {ratio:.3f} of those with pauses")


if __name__ == "__main__":
    main()
