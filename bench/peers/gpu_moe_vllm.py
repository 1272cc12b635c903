"""vLLM's fused_moe_lora (lora/ops/triton_ops/fused_moe_lora_op.py), as add_lora_w13 and add_lora_w2
call it, with its default configurations.

What moe_lora_align_block_size makes (a CUDA op) is made here once and not timed. Few pairs take
its naive assignment, as SPARSITY_FACTOR says, and then its kernel for small batches. max_loras is
the number of adapters of the row.
"""

import torch

import gpu_vllm
from gpu_import import stand_in
from implementation import Implementation, Op
from rows import SCALING

BLOCK = 64  # of its default configurations
SPARSITY_FACTOR = 8


class _Gpu:
    """vllm.platforms.current_platform."""

    is_cuda = is_cuda_alike = staticmethod(lambda: True)
    is_xpu = is_rocm = staticmethod(lambda: False)
    has_device_capability = gpu_vllm._Platform.has_device_capability
    is_device_capability = gpu_vllm._Platform.is_device_capability

    @staticmethod
    def num_compute_units(index=0):
        return torch.cuda.get_device_properties(index or 0).multi_processor_count


def _load(peers_dir):
    import triton

    gpu_vllm._load(peers_dir)
    stand_in("vllm.platforms", current_platform=_Gpu)
    stand_in("vllm.distributed", tensor_model_parallel_all_gather=None,
             tensor_model_parallel_all_reduce=None)

    def allocate(device):
        triton.set_allocator(lambda size, align, stream: torch.empty(
            size, device=device, dtype=torch.int8))

    import sys
    units = sys.modules["vllm.triton_utils"]
    units.__path__ = []
    stand_in("vllm.triton_utils.allocation", set_triton_allocator=allocate)
    stand_in("vllm.utils.mem_utils", get_max_shared_memory_bytes=lambda gpu=0: (
        torch.cuda.get_device_properties(gpu or 0).shared_memory_per_block_optin))
    import vllm.lora.ops.triton_ops.fused_moe_lora_op as fused
    return fused


def aligned(problem, block):
    """moe_lora_align_block_size: (sorted_token_ids [u, .], expert_ids [u, .], num_padded [u])."""
    row = problem.row
    pairs, num_experts = row.num_rows, row.model.experts
    padded = pairs + num_experts * (block - 1)
    if pairs < num_experts:
        padded = pairs * block
    padded = -(-padded // block) * block
    slots = problem.token_slots.cpu().long().repeat_interleave(row.model.k)
    group = slots * num_experts + problem.experts.cpu().long().flatten()
    counts = torch.bincount(group, minlength=row.adapters * num_experts)
    blocks = -(-counts // block).view(row.adapters, num_experts)
    first = ((blocks.cumsum(1) - blocks) * block).flatten()  # where each group begins in its slot
    order = group.argsort(stable=True)
    rank = torch.arange(pairs) - (counts.cumsum(0) - counts)[group[order]]
    ids = torch.full((row.adapters, padded), pairs, dtype=torch.int32)
    ids[slots[order], first[group[order]] + rank] = order.int()
    experts = torch.full((row.adapters, padded // block), -1, dtype=torch.int32)
    for slot in range(row.adapters):
        used = torch.arange(num_experts).repeat_interleave(blocks[slot])
        experts[slot, :len(used)] = used.int()
    return tuple(t.to(problem.device) for t in (ids, experts, (blocks.sum(1) * block).int()))


def _config(rank):
    power = 1 << (rank - 1).bit_length()
    shrink = dict(block_size_m=BLOCK, block_size_n=min(64, power), block_size_k=32, group_size_m=8,
                  num_warps=4, num_stages=3, split_k=1)
    expand = shrink | dict(block_size_n=64, block_size_k=max(16, min(32, power)))
    return ({f"shrink_{key}": value for key, value in shrink.items()} |
            {f"expand_{key}": value for key, value in expand.items()})


def _prepare(fused, problem):
    row, k = problem.row, problem.row.model.k
    fused._LORA_PTR_DICT.clear()  # kept by address alone, and addresses come again
    is_naive = row.num_rows * SPARSITY_FACTOR <= row.model.experts * row.adapters
    if is_naive:
        ids, experts, counts = None, problem.experts.flatten(), None
    else:
        ids, experts, counts = aligned(problem, BLOCK)
    lora_ids = torch.cat([torch.arange(row.adapters, dtype=torch.int32),
                          torch.tensor([-1], dtype=torch.int32)]).to(problem.device)
    enabled = torch.ones(row.adapters + 1, dtype=torch.int32, device=problem.device)
    active = torch.tensor([row.adapters], dtype=torch.int32)  # on the CPU
    # It folds the scaling into B when it loads an adapter.
    b = [w * SCALING for w in problem.b]
    y = problem.y.view(row.tokens, k, row.columns)

    def launch(copy):
        fused._fused_moe_lora(
            y, problem.x, [a[copy] for a in problem.a], [w[copy] for w in b], problem.weights, ids,
            experts, counts, problem.token_slots, row.rank, k, lora_ids, active, enabled,
            **_config(row.rank), mul_routed_weight=problem.is_weighted)

    config = "naive blocks" if is_naive else f"blocks of {BLOCK}"
    return Op(launch, lambda: problem.y, config=config)


def implementations(peers_dir):
    fused = _load(peers_dir)
    return [Implementation("vllm", lambda problem: _prepare(fused, problem))]
