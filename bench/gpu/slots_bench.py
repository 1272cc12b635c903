#!/usr/bin/env python3
"""Times vLLM 0.8.5's LoRA kernels where its server runs them: with a grid over all slots.

    bench/peers/get_gpu_peers.sh /tmp/gpu-peers
    bench/gpu/slots_bench.py --peers-dir /tmp/gpu-peers --out out/slots.json

A row is K, the columns of its slices, rank, tokens, distinct adapters (the tokens in turns) and
slots. Each is timed as lora_bench.py times: a CUDA graph of chained operations, warm (the same
weights each time) and cold (other slots' weights each time). shrink is with the fill that clears
its buffer. Also the host's part of a step: what the wrapper of these kernels computes before them.
"""

import argparse
import collections
import datetime
import json
import logging
import pathlib
import statistics
import subprocess
import sys
import time
import types

import torch
import triton

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "peers")]

import timing  # noqa: E402
from gpu_import import bare_package, stand_in  # noqa: E402

ROTATION_BYTES = 200_000_000  # > L2, four times over
MAX_STACK_BYTES = 12_000_000_000
MAX_COPIES = 512


def _no_custom_op(**_):
    raise AttributeError("the function itself will do")


def load(peers_dir):
    """The kernels, the tables of a batch that they read, and how the tokens' slots are found."""
    root = peers_dir / "vllm_0_8"
    for name in ("vllm", "vllm.lora", "vllm.lora.ops", "vllm.lora.ops.triton_ops",
                 "vllm.lora.punica_wrapper"):
        bare_package(name, root.joinpath(*name.split(".")[1:]))
    stand_in("vllm.utils", direct_register_custom_op=_no_custom_op)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    import vllm.lora.ops.triton_ops.lora_expand as expand
    import vllm.lora.ops.triton_ops.lora_kernel_metadata as metadata
    import vllm.lora.ops.triton_ops.lora_shrink as shrink
    import vllm.lora.ops.triton_ops.utils as utils
    import vllm.lora.punica_wrapper.utils as wrapper
    return shrink._lora_shrink, expand._lora_expand, metadata.LoRAKernelMeta, utils, wrapper


LAYERS = {"q|k|v 8B": (4096, (4096, 1024, 1024)), "o 8B": (4096, (4096,)),
          "gate|up 8B": (4096, (14336, 14336)), "down 8B": (14336, (4096,)),
          "q|k|v 7B": (3584, (3584, 512, 512)), "o 7B": (3584, (3584,)),
          "gate|up 7B": (3584, (18944, 18944)), "down 7B": (18944, (3584,)),
          "k = v": (2048, (512, 512)), "narrow": (2048, (2048,)), "lm_head": (4096, (128512,))}


def rows():
    """layer, rank, tokens, adapters, slots."""
    main = ("q|k|v 8B", "o 8B", "gate|up 8B", "down 8B")
    for layer in main:  # what an adapter costs, what a slot costs
        for tokens in (8, 32, 64, 128, 256, 512):
            for adapters in (1, 4, 32, 128):
                if adapters <= tokens:
                    for slots in sorted({adapters, 32, 384}):
                        if slots >= adapters:
                            yield layer, 16, tokens, adapters, slots
    for layer in main:  # ranks
        for rank in (8, 32, 64):
            for tokens, adapters in ((32, 1), (32, 32), (256, 4), (256, 128)):
                yield layer, rank, tokens, adapters, adapters
                yield layer, rank, tokens, adapters, 128
    for layer in LAYERS:  # layers that nothing is derived from
        if layer not in main:
            for tokens, adapters, slots in ((32, 4, 4), (32, 32, 32), (32, 4, 128),
                                            (256, 4, 128), (256, 128, 128)):
                if layer != "lm_head" or slots <= 128:
                    yield layer, 16, tokens, adapters, slots
    for layer in main:  # prefill
        for tokens in (2048, 8192):
            for adapters, slots in ((4, 4), (4, 128), (32, 32)):
                yield layer, 16, tokens, adapters, slots


class Case:
    def __init__(self, kernels, layer, rank, tokens, adapters, slots):
        self.shrink, self.expand, meta_type, self.utils, _ = kernels
        self.num_in, self.widths = LAYERS[layer]
        self.rank, self.tokens, self.adapters, self.slots = rank, tokens, adapters, slots
        slot_bytes = 2 * rank * (self.num_in * len(self.widths) + sum(self.widths))
        sets = max(1, slots // adapters)  # disjoint sets of active slots in one stack
        wanted = ROTATION_BYTES // (slot_bytes * adapters) + 1
        most = max(1, MAX_STACK_BYTES // (slot_bytes * slots))
        self.stacks = max(1, min(-(-wanted // sets), most))
        self.sets = min(sets, wanted)
        self.copies = self.stacks * self.sets
        random = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * 0.02
        self.x, self.y = random(tokens, self.num_in), random(tokens, sum(self.widths))
        self.a = [[random(slots, 1, rank, self.num_in) for _ in self.widths]
                  for _ in range(self.stacks)]
        self.b = [[random(slots, 1, width, rank) for width in self.widths]
                  for _ in range(self.stacks)]
        self.h = torch.zeros(len(self.widths), tokens, rank, dtype=torch.float32, device="cuda")
        self.metas = []
        for active in range(self.sets):
            meta = meta_type.make(slots, tokens, "cuda")
            meta.prepare_tensors(torch.tensor(
                [active * adapters + t % adapters for t in range(tokens)], dtype=torch.int32,
                device="cuda"))
            self.metas.append(meta.meta_args(tokens))
        self.utils._LORA_A_PTR_DICT.clear()  # kept by address alone, and addresses come again
        self.utils._LORA_B_PTR_DICT.clear()

    def launch_shrink(self, copy):
        self.h.zero_()
        self.shrink(self.x, self.a[copy % self.stacks], self.h, *self.metas[copy // self.stacks],
                    1.0)

    def launch_expand(self, copy):
        self.expand(self.h, self.b[copy % self.stacks], self.y, *self.metas[copy // self.stacks],
                    offset_start=0, add_inputs=True)

    def check(self):
        """Against float64."""
        self.y.zero_()
        self.launch_shrink(0)
        self.launch_expand(0)
        slot = torch.arange(self.tokens, device="cuda") % self.adapters
        at = 0
        for i, width in enumerate(self.widths):
            for t in sorted({0, self.tokens - 1}):
                a, b = self.a[0][i][slot[t], 0].double(), self.b[0][i][slot[t], 0].double()
                want = b @ (a @ self.x[t].double())
                got = self.y[t, at:at + width].double()
                error = float((got - want).square().mean().sqrt() / want.square().mean().sqrt())
                assert error < 0.01, f"wrong: rms {error:.2e} of the result"
            at += width

    def measure(self, timer):
        self.check()
        times, copies = {}, min(self.copies, MAX_COPIES)
        for name, launch in (("shrink", self.launch_shrink), ("expand", self.launch_expand)):
            timer.eagerly(launch, copies)  # also the kernels' tables of pointers: not in a graph
            few = 24 if self.tokens > 512 else 48
            times[name] = {"warm": timer.us(launch, 1, few, 24)}
            times[name]["cold"] = timer.us(launch, copies, few, 24)
        return times


def host_us(function, seconds=0.1):
    function()
    torch.cuda.synchronize()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    return round(statistics.median(times), 2)


def mapping_rows(kernels):
    """Of a step: convert_mapping and the prepare_tensors of its tokens, with a wait for the GPU."""
    _, _, meta_type, _, wrapper = kernels
    for tokens in (1, 32, 128, 512, 2048):
        for adapters in (1, 32, 128):
            for slots in (32, 128, 384):
                if adapters > min(tokens, slots):
                    continue
                # The slots in use lie anywhere among those that are full.
                ids = [1 + i * slots // adapters + slots // (2 * adapters)
                       for i in range(adapters)]
                mapping = types.SimpleNamespace(
                    index_mapping=tuple(ids[t % adapters] for t in range(tokens)),
                    prompt_mapping=tuple(ids[t % adapters] for t in range(min(tokens, 128))))
                index_to_id = list(range(1, slots + 1))
                meta = meta_type.make(slots, tokens, "cuda")
                convert = lambda: wrapper.convert_mapping(
                    mapping, index_to_id, slots + 1, 128256, 256, torch.device("cuda"))
                indices = convert()[0]
                yield {"tokens": tokens, "adapters": adapters, "slots": slots,
                       "convert_mapping_us": host_us(convert),
                       "prepare_tensors_us": host_us(lambda: meta.prepare_tensors(indices))}


def apply_rows():
    """What LRUCacheWorkerLoRAManager._apply_adapters does for each adapter of a step that has its
    slot already: a copy of the names of all that are registered (list_adapters, through a
    read-only view, then a set), two look-ups, two moves to the end of an order."""
    for adapters in (1, 32, 128):
        for registered in (32, 128, 384):
            if adapters > registered:
                continue
            cache = {i: None for i in range(registered)}
            view, order = types.MappingProxyType(cache), collections.OrderedDict(cache)

            def apply():
                for adapter in range(adapters):
                    if adapter not in set(dict(view)):
                        raise KeyError(adapter)
                    if cache.get(adapter) is None:
                        order.move_to_end(adapter)
                    if adapter in cache:
                        order.move_to_end(adapter)

            yield {"adapters": adapters, "registered": registered, "apply_us": host_us(apply)}


def launch_rows(kernels):
    """A pair outside of a CUDA graph: the host's time until its three kernels are launched."""
    for layer in ("o 8B", "q|k|v 8B"):
        case, timer = Case(kernels, layer, 16, 8, 1, 4), time.perf_counter

        def launches(count=100):
            for _ in range(count):
                case.launch_shrink(0)
                case.launch_expand(0)

        launches()
        torch.cuda.synchronize()
        times = []
        for _ in range(20):
            begin = timer()
            launches()
            times.append(1e4 * (timer() - begin))
            torch.cuda.synchronize()
        yield {"layer": layer, "pair_us": round(statistics.median(times), 2)}


def about():
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm",
                           "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    properties = torch.cuda.get_device_properties(0)
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "kernels": "vllm 0.8.5", "torch": torch.__version__, "triton": triton.__version__,
            "python": sys.version.split()[0], "gpu": said,
            "multiprocessors": properties.multi_processor_count}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-dir", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/slots.json"))
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no row after so long")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begin, kernels, timer = time.time(), load(options.peers_dir.resolve()), timing.Timer()
    data = {"about": about(), "rows": [], "host": {
        "mapping": list(mapping_rows(kernels)), "apply": list(apply_rows()),
        "launch": list(launch_rows(kernels))}}
    options.out.write_text(json.dumps(data) + "\n")
    timing.spin(0.5)
    seen = set()
    for layer, *numbers in rows():
        if time.time() - begin > options.budget_s or (layer, *numbers) in seen:
            continue
        seen.add((layer, *numbers))
        case = Case(kernels, layer, *numbers)
        row = {"layer": layer, "K": case.num_in, "columns": list(case.widths)}
        row |= dict(zip(("rank", "tokens", "adapters", "slots"), numbers))
        row["copies"] = case.copies
        for stage, times in case.measure(timer).items():
            row[stage] = {where: round(t["median_us"], 3) for where, t in times.items()}
        data["rows"].append(row)
        print(f"{time.time() - begin:6.1f} s {row}", flush=True)
        options.out.write_text(json.dumps(data) + "\n")
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
