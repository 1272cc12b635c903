#!/usr/bin/env python3
"""Times attention of decoding rows and prompts in one call, as vLLM 0.8.5 calls it, and products.

    bench/gpu/mixed_attention_bench.py --library libattention.so --out out/mixed.json

The library has FlashAttention 3 behind three C functions: attention_splits(call), the parts into
which it cuts a row's cache; attention_schedule(call, stream), once a step; attention_forward(call,
stream), once a layer. `Call` below is their argument: bf16, head_dim 128, pages of 16 tokens. It is
not in this repository. Without one, products alone are timed.

A case is decoding rows of one context, prompts that begin in the step, and perhaps one row with a
longer context, which is what makes the library cut. Each is a CUDA graph of many calls over
different caches, of more bytes than any L2 has: the median replay. Needs torch.

Products: all 128 of Llama-3.1-8B, one after the other over different weights of random numbers, for
a second before the first measured pass; and each of the four alone with pauses between, as operator
tables have them. A kernel that spins goes before, so that the host's launches are not in the time.
"""

import argparse
import ctypes
import datetime
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import timing  # noqa: E402

HEAD_DIM = 128
PAGE = 16
COLD_BYTES = 400_000_000
MOST_BYTES = 30_000_000_000
MODELS = {"Llama-3.1-8B": (32, 8), "Qwen2.5-7B": (28, 4)}
LAYERS, SHAPES = 32, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))


class Call(ctypes.Structure):
    POINTERS = ("q", "k", "v", "out", "lse", "metadata", "out_partial", "lse_partial", "starts",
                "contexts", "page_table")
    NUMBERS = ("rows", "tokens", "max_tokens", "max_context", "heads", "kv_heads", "page_size",
               "num_pages", "max_pages", "splits")
    _fields_ = ([(name, ctypes.c_void_p) for name in POINTERS] +
                [(name, ctypes.c_int64) for name in NUMBERS])


class Case:
    """Tensors of a step, and one Call for each copy of the caches."""

    def __init__(self, library, model, queries, contexts):
        self.library, self.model, self.queries, self.contexts = library, model, queries, contexts
        heads, kv_heads = MODELS[model]
        generator = torch.Generator(device="cuda").manual_seed(1)
        make = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device="cuda",
                                          generator=generator)
        ints = lambda x: torch.tensor(x, dtype=torch.int32, device="cuda")
        tokens, rows = sum(queries), len(queries)
        pages = [-(-c // PAGE) for c in contexts]
        order = torch.randperm(sum(pages)).tolist()
        table = torch.zeros(rows, max(pages), dtype=torch.int32)
        for row, count in enumerate(pages):
            table[row, :count] = torch.tensor(order[:count])
            del order[:count]
        starts = [0]
        for query in queries:
            starts.append(starts[-1] + query)
        self.cache_bytes = 2 * sum(contexts) * kv_heads * HEAD_DIM * 2
        copies = max(2, -(-COLD_BYTES // self.cache_bytes))
        self.copies = min(copies, 32, max(1, MOST_BYTES // self.cache_bytes))
        self.q, self.out = make(tokens, heads, HEAD_DIM), make(tokens, heads, HEAD_DIM)
        self.lse = torch.empty(heads, tokens, device="cuda")
        self.caches = [tuple(make(sum(pages), PAGE, kv_heads, HEAD_DIM) for _ in "kv")
                       for _ in range(self.copies)]
        self.metadata = torch.zeros(1 + rows, dtype=torch.int32, device="cuda")
        self.starts, self.page_table, self.kv = ints(starts), table.cuda(), ints(contexts)
        numbers = dict(rows=rows, tokens=tokens, max_tokens=max(queries), heads=heads,
                       kv_heads=kv_heads, max_context=max(contexts), page_size=PAGE,
                       num_pages=sum(pages), max_pages=max(pages), splits=1)
        self.splits = library.attention_splits(ctypes.byref(Call(**numbers)))
        self.out_partial = torch.empty(self.splits, heads, tokens, HEAD_DIM, device="cuda")
        self.lse_partial = torch.empty(self.splits, heads, tokens, device="cuda")
        pointers = dict(q=self.q, out=self.out, lse=self.lse, metadata=self.metadata,
                        out_partial=self.out_partial, lse_partial=self.lse_partial,
                        starts=self.starts, contexts=self.kv, page_table=self.page_table)
        pointers = {name: tensor.data_ptr() for name, tensor in pointers.items()}
        self.calls = [Call(**numbers | pointers | {"splits": self.splits, "k": k.data_ptr(),
                                                   "v": v.data_ptr()}) for k, v in self.caches]

    def schedule(self):
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream().cuda_stream
        if self.library.attention_schedule(ctypes.byref(self.calls[0]), ctypes.c_void_p(stream)):
            raise RuntimeError("attention_schedule failed")
        torch.cuda.synchronize()

    def launch(self, copy):
        stream = torch.cuda.current_stream().cuda_stream
        if self.library.attention_forward(ctypes.byref(self.calls[copy]), ctypes.c_void_p(stream)):
            raise RuntimeError("attention_forward failed")

    def error(self):
        """Largest difference from attention in fp32, row by row."""
        self.schedule()
        self.launch(0)
        torch.cuda.synchronize()
        k_cache, v_cache = self.caches[0]
        worst, begin = 0.0, 0
        groups = self.q.shape[1] // k_cache.shape[2]
        for row, (query, context) in enumerate(zip(self.queries, self.contexts)):
            pages = self.page_table[row, :-(-context // PAGE)].long()
            k, v = (x[pages].reshape(-1, *x.shape[2:])[:context].float()
                    .repeat_interleave(groups, dim=1) for x in (k_cache, v_cache))
            q = self.q[begin:begin + query].float()
            scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
            places = torch.arange(context, device="cuda")
            last = context - query + torch.arange(query, device="cuda")
            hidden = places[None, :] > last[:, None]
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            wanted = torch.einsum("hqk,khd->qhd", weights, v)
            worst = max(worst, (self.out[begin:begin + query].float() - wanted).abs().max().item())
            begin += query
        return worst


def cases():
    """Name, queries and contexts of the rows: what decoding rows cost alone and beside prompts."""
    for rows in (32, 64, 128, 256, 512, 900):
        for context in (64, 128, 340, 1024):
            if rows * context <= 530_000:
                yield "decode", [1] * rows, [context] * rows
    for rows in (64, 128, 256, 512, 900):
        for prompts, prompt in ((1, 200), (2, 200), (5, 200), (1, 400), (1, 450)):
            for longest in (340, 2000):  # above 512 the cache may be cut
                yield ("mixed", [1] * rows + [prompt] * prompts,
                       [longest] + [340] * (rows - 1) + [prompt] * prompts)
    for rows in (128, 512, 900):
        for context in (64, 128, 340, 1024):  # never cut beside a prompt of 500
            if rows * context <= 530_000:
                yield "contexts", [1] * rows + [500], [context] * rows + [500]
        for prompt in (32, 64, 65, 128):  # from 65 on tiles have 128 queries
            yield "short", [1] * rows + [prompt], [340] * rows + [prompt]


def measure_attention(library, timer, keep, budget_s):
    begin = time.time()
    check = Case(library, "Llama-3.1-8B", [1] * 8 + [200, 37], [2000, 16] + [300] * 6 + [200, 90])
    error = check.error()
    print(f"check: {check.splits} splits, largest error {error:.4f}", flush=True)
    if not error < 0.03:
        raise RuntimeError("the library's attention is wrong")
    for model in MODELS:
        for kind, queries, contexts in cases():
            if time.time() - begin > budget_s:
                return
            case = Case(library, model, queries, contexts)
            case.schedule()
            timer.eagerly(case.launch, case.copies)
            timed = timer.us(case.launch, case.copies, ops=max(16, case.copies), replays=9)
            rows = sum(query == 1 for query in queries)
            keep("attention", {
                "model": model, "kind": kind, "rows": rows, "context": contexts[rows - 1],
                "longest_context": max(contexts), "prompts": len(queries) - rows,
                "prompt": max(queries) if len(queries) > rows else 0, "splits": case.splits,
                "us": round(timed["median_us"], 2),
                "tb_per_s": round(case.cache_bytes / timed["median_us"] * 1e-6, 3)})
            del case


def measure_products(timer, keep):
    weights = [[torch.randn(n, k, dtype=torch.bfloat16, device="cuda") * 0.02 for n, k in SHAPES]
               for _ in range(LAYERS)]
    for tokens in (256, 512, 640, 768, 1024, 1536, 2048, 4096):
        inputs = {k: torch.randn(tokens, k, dtype=torch.bfloat16, device="cuda")
                  for k in {k for _, k in SHAPES}}
        outputs = {n: torch.empty(tokens, n, dtype=torch.bfloat16, device="cuda")
                   for n in {n for n, _ in SHAPES}}

        def layer(i):
            for w in weights[i]:
                torch.mm(inputs[w.shape[1]], w.t(), out=outputs[w.shape[0]])

        timer.eagerly(layer, 2)
        passes = max(5, int(1e6 / timer.us(layer, LAYERS, LAYERS, 3)["median_us"] / LAYERS))
        sequence = timer.us(layer, LAYERS, LAYERS, passes)
        alone = 0.0
        for i in range(len(SHAPES)):
            times = []
            for repeat in range(12):
                time.sleep(0.02)
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                w = weights[repeat][i]
                torch.cuda._sleep(2_000_000)
                events[0].record()
                torch.mm(inputs[w.shape[1]], w.t(), out=outputs[w.shape[0]])
                events[1].record()
                events[1].synchronize()
                times.append(1e3 * events[0].elapsed_time(events[1]))
            alone += LAYERS * statistics.median(times)
        keep("products", {"tokens": tokens, "sequence_us": round(LAYERS * sequence["median_us"], 1),
                          "alone_us": round(alone, 1)})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="attention's; without it, products")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/mixed.json"))
    parser.add_argument("--budget-s", type=float, default=200, help="for attention")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    data = {"about": {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                      "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__},
            "attention": [], "products": []}

    def keep(table, row):
        data[table].append(row)
        print(f"{time.time() - begin:6.1f} s {row}", flush=True)
        options.out.write_text(json.dumps(data) + "\n")

    timer = timing.Timer()
    timing.spin(1)
    if options.library:
        library = ctypes.CDLL(str(options.library.resolve()))
        measure_attention(library, timer, keep, options.budget_s)
    with torch.inference_mode():
        measure_products(timer, keep)


if __name__ == "__main__":
    main()
