#!/usr/bin/env python3
"""Times torch's scaled_dot_product_attention on the rows of attention_bench that it can compute:
keys and values without blocks, contexts of one length.

  bench/gpu/attention_peers.py

Prints the fastest of torch's backends and which one it is. Needs torch and a GPU.
"""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS = 32, 8
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}
# name, rows, tokens of each, context, head_dim
ROWS = [("decode 1 x 4096", 1, 1, 4096, 128), ("decode 32 x 4096", 32, 1, 4096, 128),
        ("prefill 2048", 1, 2048, 2048, 128), ("prefill 8192", 1, 8192, 8192, 128),
        ("prefill 8192, head_dim 64", 1, 8192, 8192, 64)]


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def median_us(call, repeats=20):
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return sorted(times)[repeats // 2]


def main():
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name, rows, tokens, context, dim in ROWS:
        q = tensor(rows, HEADS, tokens, dim)
        k, v = (tensor(rows, KV_HEADS, context, dim) for _ in range(2))
        wide_k, wide_v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        found = []
        for label, backend in BACKENDS.items():
            for gqa, keys, values in ((True, k, v), (False, wide_k, wide_v)):
                def call():
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, keys, values, is_causal=tokens > 1, enable_gqa=gqa)
                try:
                    with sdpa_kernel(backend):
                        found.append((median_us(call), label + (" gqa" if gqa else "")))
                except RuntimeError:
                    pass
        if not found:
            print(f"{name}: no backend")
            continue
        us, label = min(found)
        flops = 4 * HEADS * dim * rows * tokens * context / (2 if tokens > 1 else 1)
        read = rows * KV_HEADS * context * dim * 4
        rate = f"{flops / us * 1e-6:.0f} TFLOP/s" if tokens > 1 else f"{read / us * 1e-3:.0f} GB/s"
        print(f"{name}: {us:.1f} us, {rate}, {label}; "
              + ", ".join(f"{b} {t:.1f}" for t, b in sorted(found)))


if __name__ == "__main__":
    main()
