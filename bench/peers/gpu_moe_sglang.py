"""SGLang's fused_moe_lora (kernels/ops/lora/moe/fused_moe_lora_kernel.py), as the hooks of
srt/lora/lora_moe_runners.py call it without --lora-use-virtual-experts, which is the default.

What moe_lora_align_block_size makes (a CUDA op) is made here once and not timed.
"""

import torch

from gpu_import import bare_package, stand_in
from gpu_moe_vllm import aligned
from implementation import Implementation, Op
from rows import SCALING

BLOCK = 64


def _load(peers_dir):
    root = peers_dir / "sglang"
    for name in ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.lora",
                 "sglang.kernels.ops.lora.moe", "sglang.srt", "sglang.srt.utils"):
        bare_package(name, root.joinpath(*name.split(".")[1:]))
    stand_in("sglang.srt.distributed", tensor_model_parallel_all_gather=None,
             tensor_model_parallel_all_reduce=None)

    def no_custom_op(**_):
        raise AttributeError("the function itself will do")

    stand_in("sglang.srt.utils.common", is_blackwell_supported=lambda: False,
             is_sm90_supported=lambda: torch.cuda.get_device_capability()[0] == 9,
             direct_register_custom_op=no_custom_op)
    import sglang.kernels.ops.lora.moe.fused_moe_lora_kernel as fused
    return fused


def _config(rank):
    power = 1 << (rank - 1).bit_length()
    both = dict(block_size_m=BLOCK, group_size_m=8, num_warps=4, num_stages=2, split_k=1)
    shrink = both | dict(block_size_n=min(64, power), block_size_k=64)
    expand = both | dict(block_size_n=64, block_size_k=max(16, min(64, power)))
    return ({f"shrink_{key}": value for key, value in shrink.items()} |
            {f"expand_{key}": value for key, value in expand.items()})


def _prepare(fused, problem):
    row, k = problem.row, problem.row.model.k
    fused._LORA_PTR_DICT.clear()
    ids, experts, counts = aligned(problem, BLOCK)
    lora_ids = torch.arange(row.adapters, dtype=torch.int32, device=problem.device)
    enabled = torch.ones(row.adapters, dtype=torch.int32, device=problem.device)
    b = [w * SCALING for w in problem.b]  # folded in when an adapter is loaded
    y = problem.y.view(row.tokens, k, row.columns)

    def launch(copy):
        fused._fused_moe_lora(
            y, problem.x, [a[copy] for a in problem.a], [w[copy] for w in b], problem.weights, ids,
            experts, counts, row.rank, k, lora_ids, enabled, **_config(row.rank),
            mul_routed_weight=problem.is_weighted)

    return Op(launch, lambda: problem.y, config=f"blocks of {BLOCK}")


def implementations(peers_dir):
    fused = _load(peers_dir)
    return [Implementation("sglang", lambda problem: _prepare(fused, problem))]
