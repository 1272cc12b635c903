"""SGLang's dense LoRA kernels: csgmv, triton ("sgemm") and triton_v2, as their backends call them.

csgmv: chunks of 16 tokens of one adapter, its default. sgemm: in decode the tokens merged by
adapter, in prefill one segment a request. triton_v2: the plan of its table for sm90; its overlap
with the base layer's product is left out, there is none here. Segments are counted exactly, where
a captured server would launch for the largest batch.
"""

import torch

from gpu_import import bare_package, stand_in
from gpu_packed import as_packed, as_slices, runs_of, sorted_by_slot, two_stages
from implementation import Implementation, Op


def _load(peers_dir):
    root = peers_dir / "sglang"
    for name in ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.lora",
                 "sglang.kernels.ops.lora.common", "sglang.kernels.ops.lora.dense",
                 "sglang.kernels.ops.lora.moe", "sglang.kernels.jit", "sglang.srt",
                 "sglang.srt.lora", "sglang.srt.lora.dense", "sglang.srt.model_executor"):
        bare_package(name, root.joinpath(*name.split(".")[1:]))
    # Its own cache of kernels forgets what it does not expect to change in a server: the rank.
    bare_package("sglang.srt.utils", root / "srt" / "utils")
    stand_in("sglang.srt.utils", __path__=[], cached_triton_kernel=lambda _: lambda kernel: kernel,
             get_device_name=torch.cuda.get_device_name)
    stand_in("sglang.srt.utils.hf_transformers_utils", AutoConfig=object)
    stand_in("sglang.srt.model_executor.forward_batch_info", ForwardBatch=object)
    stand_in("sglang.kernels.ops.lora.moe.virtual_experts", _align_block_size_jit=None)
    stand_in("sglang.kernels.jit.utils", is_arch_support_pdl=lambda: False)  # of routes alone
    from sglang.srt.lora.utils import LoRABatchInfo
    return LoRABatchInfo


class _Segments:
    """A LoRABatchInfo over runs of (slot, length) of tokens in the order `permutation`."""

    def __init__(self, batch_info, problem, runs, permutation, max_len):
        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=problem.device)

        lengths = [length for _, length in runs]
        self.info = batch_info(
            use_cuda_graph=False, bs=len(runs), num_segments=len(runs),
            seg_indptr=ints([sum(lengths[:i]) for i in range(len(runs) + 1)]),
            weight_indices=ints([slot for slot, _ in runs]), lora_ranks=problem.ranks,
            scalings=problem.scalings, max_len=max_len, seg_lens=ints(lengths),
            permutation=None if permutation is None else ints(permutation))


def _csgmv(batch_info):
    from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward
    from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward
    chunk = 16

    def prepare(problem):
        row, order = problem.row, sorted_by_slot(problem.slots)
        runs = [(slot, min(chunk, length - at))
                for slot, length in runs_of(sorted(problem.slots))
                for at in range(0, length, chunk)]
        info = _Segments(batch_info, problem, runs, order, chunk).info
        offsets = torch.tensor(row.offsets, dtype=torch.int32)
        offsets_device = offsets.to(problem.device)
        return two_stages(
            problem,
            lambda x, a: chunked_sgmv_lora_shrink_forward(x, a, info, num_slices=len(row.widths)),
            lambda h, b: chunked_sgmv_lora_expand_forward(
                h, b, info, slice_offsets=offsets_device, max_slice_size=max(row.widths),
                base_output=problem.y, slice_offsets_cpu=offsets))

    return prepare


def _sgemm(batch_info):
    from sglang.kernels.ops.lora.dense.gate_up_lora_b import gate_up_lora_b_fwd
    from sglang.kernels.ops.lora.dense.qkv_lora_b import qkv_lora_b_fwd
    from sglang.kernels.ops.lora.dense.sgemm_lora_a import sgemm_lora_a_fwd
    from sglang.kernels.ops.lora.dense.sgemm_lora_b import sgemm_lora_b_fwd

    def prepare(problem):
        row = problem.row
        if row.is_decode:
            info = _Segments(batch_info, problem, runs_of(sorted(problem.slots)),
                             sorted_by_slot(problem.slots), row.tokens).info
        else:
            runs = runs_of(problem.slots)
            info = _Segments(batch_info, problem, runs, None, max(n for _, n in runs)).info
        offsets = torch.tensor(row.offsets, dtype=torch.int32, device=problem.device)

        def expand(h, b):
            if len(row.widths) == 1:
                sgemm_lora_b_fwd(h, b, info, problem.y)
            elif len(row.widths) == 2:
                gate_up_lora_b_fwd(h, b, info, row.widths[0], problem.y)
            else:
                qkv_lora_b_fwd(h, b, info, offsets, max(row.widths), problem.y)

        return two_stages(
            problem, lambda x, a: sgemm_lora_a_fwd(x, a, info, stack_num=len(row.widths)), expand)

    return prepare


def _v2():
    from sglang.kernels.ops.lora.common.routing import build_route
    from sglang.srt.lora.dense.plan import DenseLoraKind
    from sglang.srt.lora.dense.runner import Bridge, DenseLoraRunner
    from sglang.srt.lora.utils import Phase
    from sglang.srt.lora.workspace import LoraWorkspace

    class Runner(DenseLoraRunner):
        def _build_route(self, key):  # by the builder that is Triton alone; once a step, not timed
            return build_route(self.token_slots, max_loras=self.max_loras, block_size=key[1],
                               workspace=self.workspace, tensor_prefix=f"dense:sorted:{key[1]}",
                               capacity=0)

    def slices_of(bridge, problem):
        h = bridge.tensor
        if bridge.slot_planes:
            slots = torch.tensor(problem.slots, device=h.device)
            h = h[slots, torch.arange(len(slots), device=h.device)]
        elif bridge.planes > 1:
            h = h.sum(0)
        return as_slices(h, problem)

    def prepare(problem):
        row = problem.row
        runner = Runner(LoraWorkspace(), max_loras=row.adapters, device=problem.device)
        slots = torch.tensor(problem.slots, dtype=torch.int32, device=problem.device)
        runner.begin_batch(token_slots=slots, lora_ranks=problem.ranks, scalings=problem.scalings,
                           num_tokens=row.tokens, graph_mode=True,
                           phase=Phase.DECODE if row.is_decode else Phase.PREFILL,
                           is_prefill_graph=not row.is_decode)
        plan = runner.plan_for(DenseLoraKind.LINEAR, row.rank, row.num_in, row.columns,
                               num_tokens=row.tokens)
        given, last = Bridge(as_packed(problem.h)), [None]

        def launch(copy):
            last[0] = given if row.op == "expand" else runner.run_a(
                problem.x, problem.a[copy], stack=len(row.widths), plan=plan)
            if row.op != "shrink":
                runner.run_b(last[0], problem.b[copy], problem.y, offsets=row.offsets, plan=plan)

        return Op(launch, lambda: slices_of(last[0], problem) if row.op == "shrink" else problem.y,
                  config=f"a {plan.a_family.value} {plan.a_tiles}, b {plan.b_family.value} "
                         f"{plan.b_tiles}, block {plan.block_size}")

    return prepare


def implementations(peers_dir):
    batch_info = _load(peers_dir)
    return [Implementation("sglang_csgmv", _csgmv(batch_info)),
            Implementation("sglang_sgemm", _sgemm(batch_info)),
            Implementation("sglang_v2", _v2())]
