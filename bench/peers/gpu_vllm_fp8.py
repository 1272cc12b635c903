"""vLLM's _lora_shrink_fp8 and _lora_expand_fp8 (lora/ops/triton_ops), w8a8 with one factor for each
matrix and one for x and for h, which is the least that they read.

Their wide activations go with wide weights alone, so w8a8 is their only way to weights in fp8. They
leave it to the caller to quantise h. That is done here once, from the exact h, and not timed: their
times are shorter than those of a layer. The scaling is in h.
"""

import torch

import gpu_vllm
from implementation import Implementation, Op, Unsupported
from rows import SCALING, W8A8_RMS


def _load(peers_dir):
    gpu_vllm._load(peers_dir)
    import vllm.lora.ops.triton_ops.lora_expand_fp8_op as expand
    import vllm.lora.ops.triton_ops.lora_kernel_metadata as metadata
    import vllm.lora.ops.triton_ops.lora_shrink_fp8_op as shrink
    import vllm.lora.ops.triton_ops.utils as utils
    return shrink, expand, metadata.LoRAKernelMeta, utils


def _slices(bits, sizes):
    """[copies, u, rows, columns] by slices, each without gaps."""
    return [part.contiguous() for part in bits.split(sizes, dim=2)]


def quantised_h(problem, slices):
    """(bits [copies][S, n, r], factors [copies][1]) of SCALING · x A^T, one factor for a copy."""
    row, slots = problem.row, torch.tensor(problem.slots, device=problem.device)
    bits, factors = [], []
    for copy in range(problem.copies):
        h = torch.zeros(slices, row.tokens, row.rank, device=problem.device)
        for slot in range(row.adapters):
            mine = (slots == slot).nonzero().flatten()
            a = problem.a[copy, slot].float().view(slices, row.rank, row.num_in)
            h[:, mine] = SCALING * torch.matmul(problem.x[mine].float(), a.transpose(1, 2))
        factor = (h.abs().max() / 448).reshape(1)
        bits.append((h / factor).to(torch.float8_e4m3fn))
        factors.append(factor)
    return bits, factors


class _VllmFp8:
    def __init__(self, peers_dir):
        self._shrink, self._expand, self._meta, self._utils = _load(peers_dir)

    def prepare(self, problem):
        row = problem.row
        if row.op != "pair":
            raise Unsupported("pairs alone")
        # These are kept by address alone, and addresses come again.
        for kept in (self._utils._LORA_A_PTR_DICT, self._utils._LORA_B_PTR_DICT,
                     self._shrink._SHRINK_LORA_SCALE_PTR_DICT,
                     self._expand._EXPAND_LORA_SCALE_PTR_DICT):
            kept.clear()
        meta = self._meta.make(row.adapters, row.tokens, problem.device)
        meta.prepare_tensors(torch.tensor(problem.slots, dtype=torch.int32, device=problem.device))
        args = meta.meta_args(row.tokens, specialize_active_lora=False)
        slices = len(row.widths)
        a = _slices(problem.a8, [row.rank] * slices)
        b = _slices(problem.b8, list(row.widths))
        bits, factors = quantised_h(problem, slices)
        h = torch.empty(slices, row.tokens, row.rank, device=problem.device)
        of_x = problem.x_factors[0].clone()
        # Slices are told apart by the addresses of their scales.
        of_a = [problem.a_factors.clone() for _ in range(slices)]
        of_b = [problem.b_factors.clone() for _ in range(slices)]

        def launch(copy):
            self._shrink._lora_shrink_fp8(
                problem.x8, [w[copy] for w in a], h, *args, SCALING, [f[copy] for f in of_a],
                a_scale=of_x, use_fp8_w8a8=True)
            self._expand._lora_expand_fp8(
                bits[copy], [w[copy] for w in b], problem.y, *args, [f[copy] for f in of_b],
                a_scale=factors[copy], offset_start=0, add_inputs=True, use_fp8_w8a8=True)

        return Op(launch, lambda: problem.y, rms_limit=W8A8_RMS)


def implementations(peers_dir):
    return [Implementation("vllm_fp8", _VllmFp8(peers_dir).prepare, weights=("fp8",))]
