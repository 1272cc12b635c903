"""vLLM's lora_shrink and lora_expand (lora/ops/triton_ops), as add_lora_linear calls them.

The buffer between them is fp32 and cleared in the shrink, which is timed with it. max_loras is the
number of adapters of the row, the least that a server could have been started with.
"""

import logging
import sys

import torch

from gpu_import import bare_package, stand_in
from implementation import Implementation, Op
from rows import SCALING


def _no_custom_op(**_):
    raise AttributeError("the function itself will do")


class _Platform:
    is_cuda = staticmethod(torch.cuda.is_available)

    @staticmethod
    def has_device_capability(least):
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor >= least

    @staticmethod
    def is_device_capability(wanted):
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor == wanted


def _load(peers_dir):
    import triton
    import triton.language as tl

    root = peers_dir / "vllm"
    for name in ("vllm", "vllm.lora", "vllm.lora.ops", "vllm.lora.ops.triton_ops", "vllm.utils"):
        bare_package(name, root.joinpath(*name.split(".")[1:]))
    logger = logging.getLogger("vllm")
    logger.warning_once = logger.info_once = lambda *_: None
    envs = stand_in("vllm.envs", VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=None,
                    VLLM_LORA_DISABLE_PDL=False, VLLM_LORA_ENABLE_DUAL_STREAM=False)
    stand_in("vllm.logger", init_logger=lambda _: logger)
    stand_in("vllm.platforms", current_platform=_Platform)
    stand_in("vllm.triton_utils", triton=triton, tl=tl)
    stand_in("vllm.utils.math_utils", next_power_of_2=triton.next_power_of_2)
    stand_in("vllm.utils.torch_utils", direct_register_custom_op=_no_custom_op,
             async_tensor_h2d=lambda data, dtype, device: torch.tensor(
                 data, dtype=dtype, device=device))
    import vllm.lora.ops.triton_ops.lora_expand_op as expand
    import vllm.lora.ops.triton_ops.lora_kernel_metadata as metadata
    import vllm.lora.ops.triton_ops.lora_shrink_op as shrink
    return envs, shrink, expand, metadata.LoRAKernelMeta


class _Vllm:
    def __init__(self, peers_dir):
        self._envs, self._shrink, self._expand, self._meta = _load(peers_dir)
        self._default_config = self._shrink.get_lora_op_configs
        self._utils = sys.modules["vllm.lora.ops.triton_ops.utils"]

    def _set(self, pdl, shrink, expand):
        """Configurations in place of the default ones: what VLLM_TUNED_CONFIG_FOLDER gives."""
        self._envs.VLLM_LORA_ENABLE_DUAL_STREAM = pdl
        self._shrink.get_lora_op_configs = (lambda *_, **__: shrink) if shrink else \
            self._default_config
        self._expand.get_lora_op_configs = (lambda *_, **__: expand) if expand else \
            self._default_config

    def prepare(self, problem, pdl=False, shrink=None, expand=None):
        # These are kept by address alone, and addresses come again.
        self._utils._LORA_A_PTR_DICT.clear()
        self._utils._LORA_B_PTR_DICT.clear()
        row = problem.row
        meta = self._meta.make(row.adapters, row.tokens, problem.device)
        meta.prepare_tensors(torch.tensor(problem.slots, dtype=torch.int32, device=problem.device))
        args = meta.meta_args(row.tokens, specialize_active_lora=False)
        # It folds the scaling into B when it loads an adapter; a power of two may stand anywhere.
        h = problem.h.float() * (SCALING if row.op == "expand" else 1.0)
        scaling = SCALING if row.op == "pair" else 1.0

        def launch_shrink(copy):
            weights = [a[copy] for a in problem.a_slices]
            self._shrink._lora_shrink(problem.x, weights, h, *args, scaling)

        def launch_expand(copy):
            weights = [b[copy] for b in problem.b_slices]
            self._expand._lora_expand(h, weights, problem.y, *args, offset_start=0,
                                      add_inputs=True)

        def launch(copy):
            self._set(pdl, shrink, expand)
            if row.op != "expand":
                launch_shrink(copy)
            if row.op != "shrink":
                launch_expand(copy)

        return Op(launch, lambda: h if row.op == "shrink" else problem.y,
                  config=f"pdl {pdl}, shrink {shrink}, expand {expand}" if shrink or expand else "")


def _shrink_config(block_m, block_n, block_k, split_k, warps, stages):
    return {"block_m": block_m, "block_n": block_n, "block_k": block_k, "split_k": split_k,
            "num_warps": warps, "num_ctas": 1, "group_size_m": 8, "num_stages": stages,
            "max_nreg": None}


def _expand_config(block_m, block_n, block_k, warps, stages):
    return {"block_m": block_m, "block_n": block_n, "block_k": block_k, "num_warps": warps,
            "num_ctas": 1, "num_stages": stages, "max_nreg": None}


def _candidates(row):
    """Few, of the shapes that its tuning guide searches."""
    rank, small = max(16, row.rank), row.tokens <= 256
    block_m = [16] if small else [32, 64]
    shrinks = [_shrink_config(m, min(rank, n), k, split, 4, stages) for m in block_m
               for n, k, split, stages in [(16, 256, 16, 2), (32, 128, 16, 3), (64, 128, 16, 3),
                                           (64, 128, 32, 2), (32, 256, 8, 3)]]
    expands = [_expand_config(m, n, min(rank, 64), warps, 2) for m in block_m
               for n, warps in [(64, 4), (128, 4), (128, 8), (256, 8)]]
    return (shrinks if row.op != "expand" else [None], expands if row.op != "shrink" else [None])


def _tuned(vllm):
    def prepare(problem):
        """One stage after the other, each with the other at its best so far; then the order of
        launches. problem.quick_us times a candidate; one that fails to compile is left out."""
        best, best_us = {}, float("inf")

        def attempt(**changes):
            nonlocal best, best_us
            try:
                op = vllm.prepare(problem, **{**best, **changes})
                us = problem.quick_us(op.launch)
            except Exception:  # a configuration that does not fit in shared memory
                return
            if us < best_us:
                best, best_us = {**best, **changes}, us

        shrinks, expands = _candidates(problem.row)
        attempt(pdl=False)
        for shrink in shrinks:
            attempt(shrink=shrink)
        for expand in expands:
            attempt(expand=expand)
        attempt(pdl=True)
        return vllm.prepare(problem, **best)

    return prepare


def implementations(peers_dir):
    vllm = _Vllm(peers_dir)
    return [Implementation("vllm", vllm.prepare),
            Implementation("vllm_tuned", _tuned(vllm), kind="yardstick")]
