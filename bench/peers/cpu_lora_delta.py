#!/usr/bin/env python3
"""Times PyTorch on the CPU on the layer of bench/cpu/lora_delta_bench.cpp: 4096 -> 4096, 256 tokens
of 8 adapters of rank 16 in turns, added to a given result.

What is timed is what PEFT does with a batch of several adapters (tuners/lora/layer.py,
_mixed_batch_forward), without the base layer: for each adapter gather its rows, two products,
the scaling, and index_add to the result.

Needs (PyPI): torch==2.15.0. Without a GPU take it from
https://download.pytorch.org/whl/cpu.
Prints one JSON object as Google Benchmark does: names, real_time of every repetition, time_unit.
"""

import argparse
import json
import platform
import time

import torch

TOKENS, NUM_IN, NUM_OUT, RANK, ADAPTERS, SCALING = 256, 4096, 4096, 16, 8, 0.5


def make_layer(dtype):
    """The step to time: () -> None."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape, scale=1.0):
        return (torch.rand(*shape, generator=generator).sub_(0.5) * scale).to(dtype)

    x, y = random(TOKENS, NUM_IN), random(TOKENS, NUM_OUT)
    a = [random(RANK, NUM_IN, scale=1 / 64) for _ in range(ADAPTERS)]
    b = [random(NUM_OUT, RANK, scale=1 / 64) for _ in range(ADAPTERS)]
    rows = [torch.arange(slot, TOKENS, ADAPTERS) for slot in range(ADAPTERS)]

    def step():
        for slot in range(ADAPTERS):
            gathered = x.index_select(0, rows[slot])
            delta = (gathered @ a[slot].T) @ b[slot].T * SCALING
            y.index_add_(0, rows[slot], delta)

    return step


def repetition_ms(step, seconds):
    """Mean time of a step over a run of about `seconds`."""
    steps, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        step()
        steps += 1
    return 1e3 * elapsed / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--min-time", type=float, default=0.1, help="seconds of one repetition")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    benchmarks = []
    with torch.inference_mode():
        for name in ("float32", "bfloat16"):
            step = make_layer(getattr(torch, name))
            repetition_ms(step, options.min_time)  # warm up
            for index in range(options.repetitions):
                benchmarks.append({
                    "name": f"torch_lora_delta/dtype:{name}/threads:{options.threads}",
                    "run_type": "iteration",
                    "repetition_index": index,
                    "real_time": repetition_ms(step, options.min_time),
                    "time_unit": "ms",
                })
    context = {"torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps({"context": context, "benchmarks": benchmarks}, indent=1))


if __name__ == "__main__":
    main()
