#!/usr/bin/env python3
"""Times what vLLM 0.8.5's host does between two forward passes, with vLLM's own code.

    pip download --no-deps vllm==0.8.5 && unzip -q vllm-0.8.5-*.whl 'vllm/*.py' -d /tmp/vllm
    bench/gpu/engine_host_bench.py --vllm-dir /tmp/vllm/vllm --out out/host.json

Its EngineCore.step runs whole: Scheduler, GPUModelRunner with input batch, block table and sampler,
LoRA worker manager with Punica's tables, and the thread that serialises outputs into a ZMQ socket.
Only the model is none: one kernel that keeps the GPU busy for a known time. What a step takes
beyond that time is what the GPU waits for the host, in whatever thread the host's work is.

A row is one mean step: running requests, distinct adapters, slots, registered adapters, waiting
requests whose adapter has no slot, how many requests join (with prompts of so many tokens) as
others end, and whether requests have a repetition penalty. Each figure is the median of many
steps. Also the host's time for the launches of a layer outside of CUDA graphs, as Inductor's code
makes them. Needs torch, triton, msgspec, pyzmq and cachetools. vLLM's imports of models,
configurations and platforms are given by stand-ins; of penalties the GPU's part is left out.
"""

import argparse
import dataclasses
import datetime
import gc
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import queue
import random
import statistics
import sys
import threading
import time
import types
import weakref

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers")]

from gpu_import import bare_package, stand_in  # noqa: E402

VOCABULARY = 128256
MAX_MODEL_LEN = 131072
MAX_NUM_SEQS = 2048
BLOCK = 16
GPU_MS = 8.0


# --- vLLM without its models ---------------------------------------------------------------------

class Empty(type):
    """Of a class that has every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Anything(types.ModuleType):
    """A module whose every name is such a class."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Empty(name, (), {})
        setattr(self, name, made)
        return made


class AnythingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives an Anything for modules under these names."""

    NAMES = ("vllm.config", "vllm.multimodal", "vllm.distributed", "vllm.model_executor",
             "vllm.transformers_utils", "vllm.attention", "vllm.inputs", "vllm.compilation",
             "vllm.usage", "vllm.lora.layers", "vllm.lora.peft_helper", "vllm.lora.utils",
             "vllm.lora.lora", "vllm.v1.spec_decode", "vllm.v1.structured_output", "vllm.executor",
             "vllm.v1.executor", "vllm.sequence", "vllm.platforms", "vllm.vllm_flash_attn",
             "vllm.fa_utils", "vllm._custom_ops", "vllm.version", "vllm.prompt_adapter",
             "pydantic", "safetensors")

    def find_spec(self, name, path=None, target=None):
        if any(name == n or name.startswith(n + ".") for n in self.NAMES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


def load(vllm):
    """vLLM's own modules, without the package around them."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    sys.meta_path.insert(0, AnythingFinder())
    for name in ("vllm", "vllm.lora", "vllm.v1", "vllm.v1.worker", "vllm.v1.attention",
                 "vllm.v1.attention.backends", "vllm.v1.core", "vllm.v1.core.sched"):
        bare_package(name, vllm.joinpath(*name.split(".")[1:]))
    import vllm.platforms as platforms
    platforms.current_platform = types.SimpleNamespace(
        dispatch_key="CUDA", is_cuda=lambda: True, is_cuda_alike=lambda: True,
        is_rocm=lambda: False, is_cpu=lambda: False, is_hpu=lambda: False,
        is_pin_memory_available=torch.cuda.is_available,
        get_punica_wrapper=lambda: "vllm.lora.punica_wrapper.punica_gpu.PunicaWrapperGPU")
    import vllm.distributed.kv_transfer as transfer
    transfer.has_kv_transfer_group = lambda: False
    transfer.is_v1_kv_transfer_group = lambda: False
    import vllm.distributed.parallel_state as parallel
    parallel.get_pp_group = lambda: types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
    from vllm.adapter_commons.layers import AdapterMapping
    import vllm.lora.layers as layers

    @dataclasses.dataclass
    class LoRAMapping(AdapterMapping):  # as in lora/layers.py
        is_prefill: bool = False

    layers.LoRAMapping = LoRAMapping
    import vllm.model_executor.layers.utils as utils
    utils.apply_penalties = lambda logits, *_: logits  # the GPU's passes
    import vllm.v1.structured_output.request as structured
    structured.StructuredOutputRequest = lambda sampling_params: None
    import vllm.v1.attention.backends.flash_attn as flash
    flash.get_flash_attn_version = lambda: 3
    # One small kernel of the C extension.
    flash.get_scheduler_metadata = lambda **k: torch.zeros(
        k["batch_size"] + 1, dtype=torch.int32, device=k["cache_seqlens"].device)
    import vllm.v1.core.sched.scheduler as scheduler
    scheduler.compute_encoder_budget = lambda **_: (0, 0)


class Timings:
    """Seconds within functions, by name."""

    def __init__(self):
        self.seconds = {}

    def wrap(self, owner, name):
        inner = getattr(owner, name)

        def timed(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - begin

        setattr(owner, name, timed)

    def reset(self):
        self.seconds = {}


class Model:
    """In place of the model: keeps the GPU busy, and gives hidden states and logits."""

    def __init__(self, device, cycles):
        self.cycles = cycles
        self.hidden = torch.zeros(8192, 64, dtype=torch.bfloat16, device=device)
        self.head = torch.randn(128, 64, dtype=torch.bfloat16, device=device)

    def __call__(self, input_ids, **_):
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return self.hidden[:input_ids.shape[0]]

    def compute_logits(self, hidden, _):
        return hidden @ self.head.T


def make_scheduler(row, blocks):
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
    ns = types.SimpleNamespace
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=8, head_size=128, dtype=torch.bfloat16,
                             use_mla=False)
    config = ns(
        model_config=None, speculative_config=None, kv_transfer_config=None,
        scheduler_config=ns(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=2048,
                            max_model_len=MAX_MODEL_LEN, long_prefill_token_threshold=0),
        cache_config=ns(num_gpu_blocks=blocks, block_size=BLOCK, enable_prefix_caching=False,
                        prefix_caching_hash_algo="builtin"),
        lora_config=ns(max_loras=row["slots"]) if row["slots"] else None)
    kv = KVCacheConfig(num_blocks=blocks, tensors={},
                       kv_cache_groups=[ns(layer_names=["0"], kv_cache_spec=spec)])
    return Scheduler(config, kv, ns(grammar_bitmask=lambda *_: None), log_stats=True)


def make_lora_manager(row, device):
    """Adapters 1.. are registered; the first `slots` of them in slots, in an order of their own."""
    from vllm.lora.models import LoRALRUCache, LRUCacheLoRAModelManager
    from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    slots, registered = row["slots"], max(row["slots"], row["registered"])
    inner = object.__new__(LRUCacheLoRAModelManager)
    inner.lora_config = types.SimpleNamespace(max_loras=slots, max_cpu_loras=registered,
                                              lora_extra_vocab_size=256)
    inner.modules, inner.long_lora_context, inner._last_mapping = {}, None, None
    inner.vocab_size = VOCABULARY
    inner.punica_wrapper = PunicaWrapperGPU(2048, max_batches=MAX_NUM_SEQS, device=device,
                                            max_loras=slots)
    inner._registered_adapters = LoRALRUCache(registered, lambda _: True)
    inner._active_adapters = LoRALRUCache(slots, lambda _: True)
    for adapter in range(1, registered + 1):
        inner._registered_adapters[adapter] = types.SimpleNamespace(id=adapter)
    inner.lora_index_to_id = random.Random(1).sample(range(1, slots + 1), slots)
    for adapter in inner.lora_index_to_id:
        inner._active_adapters[adapter] = None
    outer = object.__new__(LRUCacheWorkerLoRAManager)
    outer._adapter_manager = inner
    return outer


def make_runner(row, device, model):
    """GPUModelRunner with the fields that its constructor gives it for a text model."""
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_input_batch import InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    ns, pin = types.SimpleNamespace, device != "cpu"
    r = object.__new__(GPUModelRunner)
    r.device, r.pin_memory, r.model = torch.device(device), pin, model
    r.block_size, r.max_model_len = BLOCK, MAX_MODEL_LEN
    r.max_num_blocks_per_req = MAX_MODEL_LEN // BLOCK
    r.max_num_tokens, r.max_num_reqs = 2048, MAX_NUM_SEQS
    r.attention_chunk_size = r.window_size = r.speculative_config = None
    r.num_query_heads, r.num_kv_heads, r.num_sms, r.use_alibi = 32, 8, 132, False
    r.cascade_attn_enabled, r.use_spec_decode = True, False
    r.uses_mrope = r.is_multimodal_model = r.use_aux_hidden_state_outputs = False
    r.requests, r.encoder_cache, r.sampler = {}, {}, Sampler()
    r.model_config = ns(get_num_attention_heads=lambda _: 32, get_num_kv_heads=lambda _: 8,
                        get_head_size=lambda: 128)
    r.parallel_config = ns(data_parallel_size=1, tensor_parallel_size=1)
    r.attn_metadata_builder = FlashAttentionMetadataBuilder(weakref.proxy(r))
    r.input_batch = InputBatch(MAX_NUM_SEQS, MAX_MODEL_LEN, r.max_num_blocks_per_req, r.device, pin,
                               VOCABULARY)
    sizes = [1, 2, 4] + list(range(8, 513, 8))
    padded = [0] + [min(s for s in sizes if s >= n) for n in range(1, 513)]
    r.use_cuda_graph, r.cudagraph_batch_sizes = True, sizes
    r.vllm_config = ns(
        parallel_config=r.parallel_config, pad_for_cudagraph=lambda n: padded[n],
        compilation_config=ns(static_forward_context={},
                              pass_config=ns(enable_sequence_parallelism=False)))
    r.lora_config = None
    if row["slots"]:
        r.lora_config = ns(max_loras=row["slots"])
        r.lora_manager = make_lora_manager(row, device)
    make = lambda n, kind: torch.zeros(n, dtype=kind, device="cpu", pin_memory=pin)
    r.input_ids = torch.zeros(2048, dtype=torch.int32, device=device)
    r.positions = torch.zeros(2048, dtype=torch.int64, device=device)
    r.arange_np = np.arange(MAX_MODEL_LEN, dtype=np.int64)
    for name, n, kind in (("input_ids", 2048, torch.int32), ("positions", 2048, torch.int64),
                          ("slot_mapping", 2048, torch.int32),
                          ("query_start_loc", MAX_NUM_SEQS + 1, torch.int32),
                          ("seq_lens", MAX_NUM_SEQS, torch.int32)):
        tensor = make(n, kind)
        setattr(r, name + "_cpu", tensor)
        setattr(r, name + "_np", tensor.numpy())
    return r


class Engine:
    """EngineCoreProc's loop over one scheduler and one runner, with its output thread."""

    def __init__(self, row, device, cycles, blocks=400_000):
        from vllm.v1.engine.core import EngineCore, EngineCoreProc
        import zmq
        self.row, self.rng, self.next_id = row, random.Random(7), 0
        self.scheduler = make_scheduler(row, blocks)
        self.runner = make_runner(row, device, Model(device, cycles))
        self.model_executor = types.SimpleNamespace(execute_model=self.runner.execute_model)
        self._step = types.MethodType(EngineCore.step, self)
        self._add = types.MethodType(EngineCore.add_request, self)
        self.output_queue, self.input_queue = queue.Queue(), queue.Queue()
        path = f"ipc:///tmp/engine_host_bench_{time.time_ns()}"
        self.sink = zmq.Context.instance().socket(zmq.PULL)
        self.sink.bind(path)
        self.thread = threading.Thread(target=EngineCoreProc.process_output_socket,
                                       args=(self, path, 0), daemon=True)
        self.thread.start()

    def drain(self):
        import zmq
        while self.sink.poll(0):
            self.sink.recv_multipart(zmq.NOBLOCK)

    def close(self):
        from vllm.v1.engine.core import EngineCoreProc
        self.output_queue.put(EngineCoreProc.ENGINE_CORE_DEAD)
        self.thread.join()
        self.sink.close(0)

    ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"

    def request(self, adapter, prompt, outputs):
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest
        self.next_id += 1
        penalty = {"repetition_penalty": 1.05} if self.row["penalties"] else {}
        params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, **penalty)
        lora = LoRARequest(f"adapter-{adapter}", adapter, "/nowhere") if adapter else None
        return EngineCoreRequest(
            request_id=f"cmpl-{self.next_id:030d}-0", mm_inputs=None, mm_hashes=None,
            mm_placeholders=None, prompt_token_ids=list(range(100, 100 + prompt)),
            sampling_params=params, eos_token_id=2, arrival_time=0.0, lora_request=lora)

    def add(self, *args):
        self._add(self.request(*args))

    def adapter_of(self, i):
        """The step's adapters lie anywhere among those with a slot."""
        return 1 + i % self.row["adapters"] if self.row["adapters"] else 0

    def step(self):
        while not self.input_queue.empty():  # _process_input_queue
            self.add(*self.input_queue.get_nowait())
        self.output_queue.put_nowait(self._step())  # _process_engine_step

    def fill(self, lasting):
        """Running rows, spread over the adapters, and requests that have to wait."""
        model = self.runner.model
        cycles, model.cycles = model.cycles, 0
        for i in range(self.row["rows"]):
            self.add(self.adapter_of(i), 200 + i % 100, lasting)
        for _ in range(12 + self.row["rows"] // 4):
            self.step()
        model.cycles = cycles
        for i in range(self.row["waiting"]):
            self.add(self.row["slots"] + 1 + i % 64, 220, 64)
        self.drain()


def calibrate_sleep(milliseconds):
    """Cycles of torch.cuda._sleep for so long."""
    cycles = 1_000_000
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        cycles = int(cycles * milliseconds / begin.elapsed_time(end))
    return cycles


def measure_row(row, device, cycles, gpu_ms, steps):
    """ms of a step beyond the GPU's."""
    engine = Engine(row, device, cycles)
    joins = row["joins"]
    engine.fill(1_000_000)
    ms = []
    for i in range(steps + 6):
        if joins:  # as many end in this step as join in the next
            for request in engine.scheduler.running[:joins]:
                request.max_tokens = request.num_output_tokens + 1
            for k in range(joins):
                engine.input_queue.put((engine.adapter_of(i * joins + k), row["prompt"], 1_000_000))
        begin = time.perf_counter()
        engine.step()
        ms.append(1e3 * (time.perf_counter() - begin))
        if i % 8 == 0:
            engine.drain()
    engine.close()
    return {"median_ms": statistics.median(ms[6:]) - gpu_ms,
            "mean_ms": statistics.fmean(ms[6:]) - gpu_ms}


def functions_of(row, device, steps=20):
    """ms of each function in a step, the GPU idle and no other thread."""
    timings = Timings()
    engine = Engine(row, device, 0)
    engine.fill(1_000_000)
    s, r = engine.scheduler, engine.runner
    timings.wrap(s, "schedule")
    timings.wrap(s, "update_from_output")
    timings.wrap(r, "_update_states")
    timings.wrap(r, "_prepare_inputs")
    timings.wrap(engine.model_executor, "execute_model")
    if row["slots"]:
        timings.wrap(r, "set_active_loras")
        timings.wrap(r.lora_manager, "_apply_adapters")
        timings.wrap(r.lora_manager._adapter_manager, "set_adapter_mapping")
    if row["penalties"]:
        import vllm.v1.sample.ops.penalties as penalties
        timings.wrap(r.input_batch, "_make_prompt_token_ids_tensor")
        timings.wrap(penalties, "_convert_to_tensors")
    from vllm.v1.serial_utils import MsgpackEncoder
    encoder = MsgpackEncoder()
    timings.reset()
    for i in range(steps):
        for request in s.running[:row["joins"]]:
            request.max_tokens = request.num_output_tokens + 1
        for k in range(row["joins"]):
            engine.add(engine.adapter_of(i + k), row["prompt"], 1_000_000)
        outputs = engine._step()
        begin = time.perf_counter()
        encoder.encode_into(outputs, bytearray())
        timings.seconds["encode"] = timings.seconds.get("encode", 0) + time.perf_counter() - begin
    engine.close()
    return {name: round(1e3 * s / steps, 4) for name, s in timings.seconds.items()}


def rows():
    base = dict(rows=64, adapters=0, slots=0, registered=0, waiting=0, joins=0, prompt=0,
                penalties=False)
    row = lambda **k: base | k
    for n in (1, 8, 32, 64, 128, 256, 512, 900):  # without adapters
        yield row(rows=n)
    for n in (1, 8, 32, 64, 128, 256, 512, 900):  # one, in one slot
        yield row(rows=n, adapters=1, slots=1, registered=1)
    for n, adapters, slots, registered in (
            (64, 16, 16, 16), (64, 16, 16, 128), (64, 16, 16, 384), (64, 16, 128, 128),
            (64, 64, 64, 64), (64, 64, 64, 384), (256, 16, 16, 384), (256, 128, 128, 128),
            (256, 128, 128, 384), (256, 64, 384, 384), (512, 32, 32, 128), (512, 128, 128, 384),
            (900, 128, 128, 128)):
        yield row(rows=n, adapters=adapters, slots=slots, registered=registered)
    for waiting in (300, 1000, 3000, 10000):
        yield row(rows=64, adapters=16, slots=16, registered=128, waiting=waiting)
    for n, adapters, slots, joins, prompt in (  # rows change
            (8, 8, 8, 1, 16), (64, 1, 1, 1, 16), (64, 16, 16, 1, 16), (64, 16, 128, 1, 16),
            (64, 64, 64, 1, 16), (64, 16, 16, 1, 200), (64, 16, 16, 1, 400), (64, 16, 16, 1, 1200),
            (64, 64, 128, 1, 400), (64, 64, 128, 1, 1200), (64, 64, 384, 1, 200),
            (64, 64, 384, 1, 1200), (256, 1, 1, 1, 16), (256, 16, 16, 1, 200),
            (256, 128, 128, 1, 200), (256, 64, 384, 1, 200), (256, 16, 16, 4, 200),
            (256, 128, 128, 4, 200), (512, 32, 32, 1, 200), (512, 32, 32, 4, 200),
            (512, 128, 128, 4, 200), (900, 64, 64, 4, 200), (900, 128, 128, 2, 200),
            (256, 16, 16, 16, 16), (64, 16, 16, 4, 16)):
        yield row(rows=n, adapters=adapters, slots=slots, registered=slots, joins=joins,
                  prompt=prompt)
    for n, joins, prompt in ((64, 1, 200), (256, 1, 200), (256, 4, 200), (256, 16, 16)):
        yield row(rows=n, joins=joins, prompt=prompt)  # without adapters
    for n, joins in ((64, 0), (256, 0), (900, 0), (64, 1), (256, 1), (256, 4), (900, 4)):
        for penalties in (False, True):
            yield row(rows=n, joins=joins, prompt=200, penalties=penalties)


# --- launches outside of CUDA graphs -------------------------------------------------------------

def launch_rows():
    """A piece between two attentions of Llama-3.1-8B with adapters, compiled by Inductor as vLLM
    compiles it and run without a CUDA graph, and the attention's Python: the host's time alone."""
    import vllm.lora.ops.triton_ops  # noqa: F401: registers the kernels
    from torch._inductor.compile_fx import compile_fx
    from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU
    from vllm.lora.layers import LoRAMapping
    hidden, inter, kv, rank, slots, tokens = 4096, 14336, 1024, 16, 4, 600
    make = lambda *s: torch.randn(*s, dtype=torch.bfloat16, device="cuda") * 0.02
    wrapper = PunicaWrapperGPU(2048, max_batches=2048, device="cuda", max_loras=slots)
    ids = tuple(1 + i % slots for i in range(tokens))
    wrapper.update_metadata(LoRAMapping(ids, ids[:64], is_prefill=True),
                            list(range(1, slots + 1)), slots + 1, VOCABULARY, 256)
    shapes = {"o": (hidden, (hidden,)), "gu": (hidden, (inter, inter)), "d": (inter, (hidden,)),
              "qkv": (hidden, (hidden, kv, kv))}
    w = {n: make(sum(out), k) for n, (k, out) in shapes.items()}
    a = {n: tuple(make(slots, 1, rank, k) for _ in out) for n, (k, out) in shapes.items()}
    b = {n: tuple(make(slots, 1, o, rank) for o in out) for n, (k, out) in shapes.items()}
    gains = make(hidden)
    rope = torch.randn(131072, 128, dtype=torch.bfloat16, device="cuda")

    def linear(name, x, with_lora):
        y = torch.nn.functional.linear(x, w[name])
        if with_lora:
            wrapper.add_lora_linear(y, x, a[name], b[name], None, 1.0, shapes[name][1])
        return y

    def norm(x, residual):
        x = x.to(torch.float32) + residual.to(torch.float32)
        residual = x.to(torch.bfloat16)
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)
        return x.to(torch.bfloat16) * gains, residual

    def rotate(x, cos, sin, heads):
        x = x.view(-1, heads, 128)
        x1, x2 = x[..., :64], x[..., 64:]
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def piece(attended, residual, positions, with_lora):
        h, residual = norm(linear("o", attended, with_lora), residual)
        gu = linear("gu", h, with_lora)
        act = torch.nn.functional.silu(gu[:, :inter]) * gu[:, inter:]
        h, residual = norm(linear("d", act, with_lora), residual)
        q, k, v = linear("qkv", h, with_lora).split([hidden, kv, kv], dim=-1)
        cos, sin = (c.unsqueeze(1) for c in rope[positions].chunk(2, dim=-1))
        return (rotate(q, cos, sin, 32), rotate(k, cos, sin, 8), v.view(-1, 8, 128),
                torch.empty(q.shape, dtype=q.dtype, device=q.device).view(-1, 32, 128), residual)

    cache = make(2, 64, 16, 8, 128)
    scale = torch.ones(1, device="cuda")
    starts = torch.zeros(tokens + 1, dtype=torch.int32, device="cuda")

    def attention(q, k, v, out):  # flash_attn.py, forward; two small kernels for its two large ones
        key_cache, value_cache = cache.unbind(0)
        key_cache[0, 0, 0, 0:1].copy_(k[0, 0, 0:1])
        shape = (starts.shape[0] - 1, k.shape[1])
        scale.expand(shape), scale.expand(shape), scale.expand(shape)
        q[:tokens], out[:tokens].view(-1)[:1].zero_()

    for with_lora in (False, True):
        kept = {}

        def backend(graph, inputs):
            kept["run"] = compile_fx(graph, inputs)

            def call(*args):
                kept["args"] = args
                return kept["run"](*args)
            return call

        torch._dynamo.reset()
        compiled = torch.compile(piece, backend=backend, fullgraph=True, dynamic=False)
        x = make(tokens, hidden)
        residual, positions = make(tokens, hidden), torch.arange(tokens, device="cuda")
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(residual, 0)
        torch._dynamo.mark_dynamic(positions, 0)
        with torch.inference_mode():
            for _ in range(3):
                out = compiled(x, residual, positions, with_lora)
            torch.cuda.synchronize()
            times = {"piece_us": [], "attention_us": []}
            for _ in range(60):
                begin = time.perf_counter()
                out = kept["run"](*kept["args"])
                middle = time.perf_counter()
                attention(*out[:4])
                end = time.perf_counter()
                torch.cuda.synchronize()
                times["piece_us"].append(1e6 * (middle - begin))
                times["attention_us"].append(1e6 * (end - middle))
        yield {"adapters": with_lora, "tokens": tokens} | {
            n: round(statistics.median(t), 1) for n, t in times.items()}


def replay_rows():
    """A CUDA graph's replay by the host: as many nodes as a piece has."""
    for nodes in (12, 25):
        graph, x = torch.cuda.CUDAGraph(), torch.zeros(64, device="cuda")
        x.add_(1)
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                x.add_(1)
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            graph.replay()
            times.append(1e6 * (time.perf_counter() - begin))
            if len(times) % 20 == 0:
                torch.cuda.synchronize()
        yield {"nodes": nodes, "replay_us": round(statistics.median(times), 2)}


# --- the table -----------------------------------------------------------------------------------

def about(device):
    said = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "vllm": "0.8.5", "torch": torch.__version__, "python": sys.version.split()[0],
            "numpy": np.__version__}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            said["cpu"] = line.split(":", 1)[1].strip()
    if device == "cuda":
        said["gpu"] = torch.cuda.get_device_name(0)
        said["gpu_ms"] = GPU_MS
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-dir", type=pathlib.Path, required=True, help="vLLM 0.8.5's package")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/host.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no row after so long")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begin, device = time.time(), options.device
    load(options.vllm_dir.resolve())
    gc.freeze()
    cycles, gpu_ms = (calibrate_sleep(GPU_MS), GPU_MS) if device == "cuda" else (0, 0.0)
    data = {"about": about(device), "rows": [], "functions": [], "launches": [], "replays": []}

    def keep(table, row):
        data[table].append(row)
        print(f"{time.time() - begin:6.1f} s {row}", flush=True)
        options.out.write_text(json.dumps(data) + "\n")

    for row in rows():
        if time.time() - begin < options.budget_s:
            times = measure_row(row, device, cycles, gpu_ms, options.steps)
            keep("rows", row | {n: round(t, 4) for n, t in times.items()})
    base = dict(rows=64, adapters=16, slots=16, registered=16, waiting=0, joins=0, prompt=0,
                penalties=False)
    penalised = {"adapters": 0, "slots": 0, "joins": 1, "prompt": 200, "penalties": True}
    for change in ({}, {"rows": 256, "adapters": 64, "slots": 64, "registered": 128},
                   {"joins": 1, "prompt": 200}, {"waiting": 3000},
                   penalised, penalised | {"rows": 256}, penalised | {"rows": 900}):
        keep("functions", base | change | functions_of(base | change, device))
    if device == "cuda":
        for row in replay_rows():
            keep("replays", row)
        for row in launch_rows():
            keep("launches", row)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
