#!/usr/bin/env python3
"""Fits the host's terms of vLLM 0.8.5 to its own code, timed without a model.

    scripts/fit_engine_host.py            # needs numpy and scipy; prints the constants and errors

Reads bench/results/engine-host-*.json (bench/gpu/engine_host_bench.py) and prints the constants of
engine_preset.cpp (kHost08Ns and the next), lora_times.cpp and lora_kernels.cpp. A step that the GPU
waits for is a sum of terms, none below 0, with the least sum of |error| / measured: the machine has
neighbours, and some rows took twice as long as others of their kind. Nothing here has seen a
server.
"""

import json
import pathlib

import numpy as np
from scipy.optimize import linprog

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench/results"
TERMS = ("step", "row", "waiting request", "step with adapters", "adapter",
         "adapter x registered", "changed rows", "its token", "its comparison")
KERNELS_OF_A_LAYER, PAIRS_OF_A_LAYER = 10, 4  # as in operator_model.cpp: 5 small and 5 large


def terms(row):
    lora, changed = row["slots"] > 0, row["joins"] > 0
    rows = row["rows"] + row["joins"]
    tokens = rows + row["joins"] * max(0, row["prompt"] - 1)
    mapped = lora and changed
    return [1, rows, row["waiting"], lora, row["adapters"],
            row["adapters"] * max(row["slots"], row["registered"]), changed, mapped * tokens,
            mapped * (tokens + rows) * row["slots"] / 2]


def least_absolute(x, y):
    """Weights >= 0 with the least sum of |x b - y| / y."""
    rows, columns = x.shape
    cost = np.concatenate([np.zeros(columns), 1 / y, 1 / y])
    sides = np.hstack([x, np.eye(rows), -np.eye(rows)])
    return linprog(cost, A_eq=sides, b_eq=y, bounds=(0, None)).x[:columns]


def main():
    for path in sorted(RESULTS.glob("engine-host-*.json")):
        data = json.loads(path.read_text())
        rows = [row for row in data["rows"] if not row.get("penalties")]
        x = np.array([terms(row) for row in rows], dtype=float)
        y = np.array([row["median_ms"] for row in rows])
        weights = least_absolute(x, y)
        errors = np.abs(x @ weights / y - 1)
        print(f"{path.name}: {len(y)} rows, error median {np.median(errors):.0%}, "
              f"worst {errors.max():.0%}")
        for name, weight in zip(TERMS, weights):
            print(f"  {name:22} {1e3 * weight:9.3f} us")
        bare, waiting = (next(f for f in data["functions"] if not f["joins"] and f["waiting"] == n)
                         for n in (0, 3000))
        walk = sum(waiting[f] - bare[f] for f in ("schedule", "update_from_output"))
        print(f"  waiting request alone  {1e3 * walk / waiting['waiting']:9.3f} us")
        for f in data["functions"]:
            if f.get("penalties"):
                rows_us = 1e3 * f["_make_prompt_token_ids_tensor"] / f["rows"]
                print(f"  penalties, {f['rows']:3} rows    {rows_us:9.3f} us a row that changed")
        plain, lora = data["launches"]
        kernel = (plain["piece_us"] + plain["attention_us"]) / KERNELS_OF_A_LAYER
        pair = (lora["piece_us"] - plain["piece_us"]) / PAIRS_OF_A_LAYER
        print(f"  launch of a kernel     {kernel:9.3f} us\n  launch of a LoRA pair  {pair:9.3f} us")


if __name__ == "__main__":
    main()
