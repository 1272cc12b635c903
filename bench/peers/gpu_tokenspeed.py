"""TokenSpeed's LoRA kernels, of its pull requests (no wheel holds them), as their LoraManager calls
them.

Decode: a segment for each token; one slice of several adapters is expanded in groups of an
adapter's tokens. Prefill: a segment for each request, in kernels of its own from 33 tokens on.
Tiles: of its tables for the H100, on any GPU. Shapes they do not have (all groups, all prefill) are
left to its autotuner, as in a server, but anew for each row, and among the tiles that are like
those of the tables. Its own build of Triton is left out: it runs in the one that is installed.
"""

import functools
import importlib
import types

import torch

from gpu_import import bare_package, stand_in
from gpu_packed import runs_of, sorted_by_slot, two_stages
from implementation import Implementation, Unsupported

_PACKAGE = "tokenspeed_kernel.ops.lora.triton"
_TABLES = "H100_80GB_HBM3"
_LONGEST_DECODE = 32  # tokens of a segment


def _is_candidate(config):
    return (config.kwargs["BLOCK_S"] >= 16 and config.num_warps == 4
            and config.num_stages in (1, 2, 4) and config.maxnreg is None)


class _Kernel:
    def __init__(self, name):
        import triton.testing

        module = importlib.import_module(f"{_PACKAGE}.{name}")
        self.name, self.run = name, getattr(module, f"{name}_fwd")
        self.tuner = getattr(module, f"_{name}_kernel")
        self.tuner.configs = [c for c in self.tuner.configs if _is_candidate(c)]
        if not torch.cuda.is_available():
            del self.tuner.configs[1:]  # the interpreter: nothing to time
        self.tuner.do_bench = functools.partial(triton.testing.do_bench, warmup=5, rep=20)
        self._table = dict(self.tuner.cache)

    def forget(self):
        """What was tuned for another row."""
        self.tuner.cache.clear()
        self.tuner.cache.update(self._table)


def _load(peers_dir):
    import triton
    import triton.language as tl

    root = peers_dir / "tokenspeed_kernel"
    for name in ("tokenspeed_kernel", "tokenspeed_kernel.ops", "tokenspeed_kernel.ops.lora",
                 _PACKAGE):
        bare_package(name, root.joinpath(*name.split(".")[1:]))
    stand_in("tokenspeed_kernel._triton", triton=triton, tl=tl)
    importlib.import_module(f"{_PACKAGE}.tuning")._gpu_label = lambda: _TABLES
    names = ("lora_shrink", "lora_shrink_prefill", "lora_expand", "lora_expand_grouped_v2",
             "lora_gate_up_expand", "lora_qkv_expand", "lora_expand_prefill")
    return {name: _Kernel(name) for name in names}


def _begins(lengths):
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def _batch_info(problem):
    """What its prepare_loras fills in."""
    def ints(values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=problem.device)

    slots = problem.slots
    segments = [(slot, 1) for slot in slots] if problem.row.is_decode else runs_of(slots)
    lengths = [length for _, length in segments]
    groups = runs_of(sorted(slots))
    sizes = [size for _, size in groups]
    return types.SimpleNamespace(
        bs=len(segments), max_len=max(lengths), seg_lens=ints(lengths),
        seg_indptr=ints(_begins(lengths)), weight_indices=ints([slot for slot, _ in segments]),
        lora_ranks=problem.ranks, scalings=problem.scalings, permutation=None,
        sort_order=ints(sorted_by_slot(slots), torch.int64),
        group_slots=ints([slot for slot, _ in groups]), group_starts=ints(_begins(sizes)[:-1]),
        group_sizes=ints(sizes), num_groups=len(groups), max_group_size=max(sizes))


def _expand_of(row, info):
    """The name of the kernel that is taken, and its arguments between info and y."""
    widths = row.widths
    if info.max_len > _LONGEST_DECODE or len(widths) == 3:
        name = "lora_expand_prefill" if info.max_len > _LONGEST_DECODE else "lora_qkv_expand"
        offsets = torch.tensor(row.offsets, dtype=torch.int32, device=info.seg_lens.device)
        return name, (offsets, max(widths))
    if len(set(widths)) == 1 and len(widths) == 2:
        return "lora_gate_up_expand", (widths[0],)
    if len(widths) == 1:
        in_groups = info.max_len == 1 and info.num_groups > 1
        return "lora_expand_grouped_v2" if in_groups else "lora_expand", ()
    raise Unsupported("no kernel for such slices")


def _prepare(kernels, problem):
    row, info = problem.row, _batch_info(problem)
    shrink = kernels["lora_shrink_prefill" if info.max_len > _LONGEST_DECODE else "lora_shrink"]
    name, arguments = _expand_of(row, info)
    expand = kernels[name]
    op = two_stages(problem,
                    lambda x, a: shrink.run(x, a, info, stack_num=len(row.widths)),
                    lambda h, b: expand.run(h, b, info, *arguments, problem.y))
    taken = {"pair": (shrink, expand), "shrink": (shrink,), "expand": (expand,)}[row.op]
    for kernel in taken:
        kernel.forget()
    op.launch(0)  # tunes, which a graph cannot capture
    problem.y.copy_(problem.y0)
    op.config = "; ".join(f"{kernel.name} {kernel.tuner.best_config}" for kernel in taken)
    return op


def implementations(peers_dir):
    kernels = _load(peers_dir)
    return [Implementation("tokenspeed", functools.partial(_prepare, kernels))]
