#!/usr/bin/env python3
"""Fits the constants of scheduler_sim/cost/lora_kernels.cpp to the measured LoRA kernels.

    scripts/fit_lora_kernels.py            # needs numpy and scipy; prints the constants and errors

Reads bench/results/lora-slots-*.json (vLLM 0.8.5's kernels on an H100, over slots) and
lora-gpu-h200-*.json (vLLM's and SGLang's on an H200, ours of 72c5a2d, and of 6906327 in fp8):
medians with cold weights. The formulas are those of lora_kernels.hpp. Nothing here has seen a
server.
"""

import json
import pathlib
import re

import numpy as np
from scipy.optimize import least_squares

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench/results"
NAME = re.compile(r"(D|Pz?) pair K(\d+)->([\d+]+) r(\d+) [ns](\d+) u(\d+)( fp8)?$")


def ceil_div(a, b):
    return -(-a // b)


def soft_max(a, b):
    return (a**4 + b**4) ** 0.25


class Pair:
    def __init__(self, num_in, widths, rank, counts, slots, us, wide_tile=128, slice_tile=128,
                 weight_bytes=2):
        self.num_in, self.widths, self.rank = num_in, widths, rank
        self.counts, self.tokens, self.us = counts, sum(counts), us
        self.slices, self.slots = len(widths), slots
        tile = slice_tile if self.slices > 1 else wide_tile
        tiles = lambda rows: sum(ceil_div(count, rows) for count in counts)
        self.small = self.tokens < 128
        splits, block_k = (64, 256) if self.small else (8, 32)
        per_tile = splits * self.slices * ceil_div(rank, 16)
        self.iterations = ceil_div(num_in, splits * block_k)
        self.shrink_active = per_tile * tiles(32)
        self.shrink_idle = per_tile * slots * ceil_div(self.tokens, 32) - self.shrink_active
        self.expand_active = sum(ceil_div(width, tile) for width in widths) * tiles(64)
        columns, grid_rows = self.slices * ceil_div(max(widths), tile), ceil_div(self.tokens, 64)
        self.expand_idle = columns * grid_rows * (slots - len(counts))
        self.beyond_tokens = columns * (grid_rows * len(counts) - tiles(64))
        self.beyond_columns = columns * tiles(64) - self.expand_active
        self.rows = self.tokens / tiles(64)
        columns = self.slices * num_in + sum(widths)
        self.weight_mb = 1e-6 * weight_bytes * len(counts) * max(16, rank) * columns
        self.x_mb = 2e-6 * self.tokens * num_in
        self.y_mb = 4e-6 * self.tokens * sum(widths)
        self.gflop = 2e-9 * self.tokens * max(16, rank) * columns
        self.tiles = 1e-3 * tiles(16) * sum(ceil_div(width, 64) for width in widths)


def counts_of(kind, tokens, adapters):
    """As Row.slots of bench/gpu/rows.py."""
    counts = [tokens // adapters] * adapters
    if kind == "Pz":
        whole = sum(1 / k for k in range(1, adapters + 1))
        counts = [max(1, int(tokens / k / whole)) for k in range(1, adapters + 1)]
    counts[0] += tokens - sum(counts)
    return counts


def slots_rows():
    """(shrink, expand) of each row; the grid has one more than the slots, for no adapter."""
    for path in sorted(RESULTS.glob("lora-slots-*.json")):
        for row in json.loads(path.read_text())["rows"]:
            shape = (row["K"], row["columns"], row["rank"],
                     counts_of("D", row["tokens"], row["adapters"]), row["slots"] + 1)
            yield Pair(*shape, row["shrink"]["cold"]), Pair(*shape, row["expand"]["cold"])


def pairs_of(implementation, files="*", weight_bytes=2, **tiles):
    for path in sorted(RESULTS.glob(f"lora-gpu-h200-{files}.json")):
        for name, row in json.loads(path.read_text())["rows"].items():
            found, match = row["implementations"].get(implementation, {}), NAME.match(name)
            if match and bool(match[7]) == (weight_bytes == 1) and "cold" in found:
                kind, num_in, widths, rank, tokens, adapters, _ = match.groups()
                yield Pair(int(num_in), list(map(int, widths.split("+"))), int(rank),
                           counts_of(kind, int(tokens), int(adapters)), int(adapters),
                           found["cold"]["median_us"], weight_bytes=weight_bytes, **tiles)


def shrink_us(p, x):
    fixed, latency, iteration, block, block_iteration, idle = p
    work = 1e-3 * (x.shrink_active * (block + block_iteration * x.iterations)
                   + x.shrink_idle * idle)
    return fixed + soft_max(latency + iteration * x.iterations, work)


def expand_us(p, x, ranks=16):
    fixed, latency, rank, block, block_rank, block_row, idle, *beyond = p
    beyond_tokens, beyond_columns = beyond or (idle, idle)
    tiles = ceil_div(x.rank, ranks)
    work = 1e-3 * (x.expand_active * (block + block_rank * tiles + block_row * x.rows)
                   + x.expand_idle * idle + x.beyond_tokens * beyond_tokens
                   + x.beyond_columns * beyond_columns)
    return fixed + soft_max(latency + rank * tiles, work)


def pair_us(p, x):
    fixed, latency_rank, latency_k, latency_slice, weights, of_x, of_y, flops, tiles = p
    work = (x.weight_mb * weights + x.x_mb * of_x + x.y_mb * of_y + x.gflop * flops
            + x.tiles * tiles)
    latency = latency_rank * max(16, x.rank) / 64 + latency_k * x.num_in / 4096 \
        + latency_slice * (x.slices - 1)
    return fixed + soft_max(latency, work)


def pair_of_8_bits_us(p, x, of_16_bits):
    """pair_us in decode: what y takes is that of 16 bits, for few rows have many tokens."""
    fixed, latency_rank, latency_slice, weights, of_x, flops, tiles = p
    return pair_us([fixed, latency_rank, 0, latency_slice, weights, of_x, of_16_bits[6], flops,
                    tiles], x)


def few_us(p, x):
    """pair_us for a handful of rows."""
    fixed, latency_k, weights, tokens, flops = p
    return pair_us([fixed, 0, latency_k, 0, weights, tokens, tokens, flops, 0], x)


def one_launch_us(p, x):
    fixed, by_k, by_columns, token = p
    return fixed + by_k * x.num_in / 4096 + by_columns * sum(x.widths) / 4096 + token * x.tokens


def in_one_launch(x, most_columns=90_000):
    return x.tokens <= 8 and x.rank <= 16 and len(x.counts) * sum(x.widths) <= most_columns


def fit(name, rows, model, start):
    rows = list(rows)
    us = np.array([x.us for x in rows])
    error = lambda p: np.log([model(np.exp(p), x) for x in rows]) - np.log(us)
    found = least_squares(error, np.log(start), loss="soft_l1", f_scale=0.05).x
    constants = [float(f"{v:.3g}") if v > 1e-3 else 0.0 for v in np.exp(found)]
    off = np.array([model(constants, x) for x in rows]) / us - 1
    print(f"{name:34} {len(rows):4} rows, median {np.median(abs(off)):.1%}, worst "
          f"{abs(off).max():.0%}, mean {off.mean():+.1%}  {{{', '.join(map(str, constants))}}}")
    return constants


def main():
    slots = list(slots_rows())
    shrink = {}
    for several in (False, True):
        for small in (True, False):
            shrink[several, small] = fit(
                f"shrink, several {several}, small {small}",
                [s for s, _ in slots if (s.slices > 1) == several and s.small == small],
                shrink_us, [1.5, 3, .5, 3, 1, .7])
        fit(f"vLLM 0.8 expand, several {several}",
            [e for _, e in slots if (e.slices > 1) == several], expand_us,
            [1, 2, .3, 5, 1, .1, .7] + 2 * several * [1])  # of one slice none idles for longer
        fit(f"vLLM expand, several {several}",
            [x for x in pairs_of("vllm", slice_tile=64) if (x.slices > 1) == several],
            lambda p, x: shrink_us(shrink[x.slices > 1, x.small], x) + expand_us(p, x, 32),
            [1, 2, .3, 5, 1, .1, .7])
    ours = list(pairs_of("loratory", "*-72c5a2d"))
    one_launch = fit("loratory, one launch", filter(in_one_launch, ours), one_launch_us,
                     [2, .3, .1, .1])
    start = [2, .3, .3, .3, .25, .1, .1, 1, .01]
    several = [x for x in ours if not in_one_launch(x)]
    constants = {}
    for name, rows in (("SGLang v2", list(pairs_of("sglang_v2"))), ("loratory", several)):
        for regime in ("decode", "prefill"):
            constants[regime] = fit(
                f"{name}, {regime}",
                [x for x in rows if (x.tokens <= 256) == (regime == "decode")], pair_us, start)
    fit("SGLang csgmv", pairs_of("sglang_csgmv"), few_us, [10, 1, .25, .1, 10])
    of_8_bits = list(pairs_of("loratory_fp8", "*-6906327-fp8*", weight_bytes=1))
    fit("loratory, 8 bits, decode",
        [x for x in of_8_bits if x.tokens <= 256 and not in_one_launch(x, 40_000)],
        lambda p, x: pair_of_8_bits_us(p, x, constants["decode"]), [3, .4, .3, .3, .6, 6, .04])
    fit("loratory, 8 bits, one launch over 16", [x for x in of_8_bits if in_one_launch(x, 40_000)],
        lambda p, x: p[0] * one_launch_us(one_launch, x), [1])
    fit("loratory, 8 bits, prefill over 16", [x for x in of_8_bits if x.tokens > 256],
        lambda p, x: p[0] * pair_us(constants["prefill"], x), [1])


if __name__ == "__main__":
    main()
