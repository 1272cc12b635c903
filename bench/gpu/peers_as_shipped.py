"""Kernels of vLLM, SGLang and TokenSpeed as their signatures let them be called.

check_peers.py calls each within what its engine is known to keep to. Here nothing is kept from
them: any number of slots and tokens, base tokens as slot -1, a captured graph whose host integers
were another step's, a K of any size, tables that are never forgotten. What is large, what lies
where, the harness draws.
"""
import sys
import types

import torch

import loratory



def _ints(values, device, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=device)


def _begins(lengths):
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


class _Kept:
    """Tensors that stay where they are, for a graph: filled anew for each step."""

    def __init__(self, room, device):
        self._room, self._device, self._tensors = max(1, room), device, {}

    def __call__(self, name, values, dtype=torch.int32):
        if name not in self._tensors:
            self._tensors[name] = torch.zeros(self._room, dtype=dtype, device=self._device)
        kept = self._tensors[name]
        if len(values) > 0:
            kept[:len(values)].copy_(_ints(values, self._device, dtype))
        return kept


class _Pool:
    """A layer of SGLang's and TokenSpeed's stacked weights. Base tokens are in no segment."""

    def __init__(self, layer):
        self.layer = layer
        self.device = layer.ranks[0].device
        self.keep = _Kept(layer.max_tokens + 2, self.device)
        self.ranks, self.scalings = layer.ranks[0], layer.scalings[0]
        self.a, self.b = layer.stacked_a, layer.stacked_b

    def load(self):
        """Before each step: the adapters to where the kernel finds them."""

    def segments(self, host_slots, longest):
        """(slot, length) of each segment, and the tokens in their order."""
        from gpu_packed import runs_of
        slots = host_slots.tolist()
        tokens = sorted((t for t, slot in enumerate(slots) if self.is_given(slot)),
                        key=slots.__getitem__)
        runs = [(slot, min(longest, length - at))
                for slot, length in runs_of([slots[t] for t in tokens])
                for at in range(0, length, longest)]
        return runs, tokens

    @staticmethod
    def is_given(slot):
        return slot >= 0


class _Behind(_Pool):
    """The kernel is given base tokens as slot -1, and another layer's ranks, scalings and weights
    lie in front of this one's."""

    @staticmethod
    def is_given(slot):
        return True

    @staticmethod
    def _second(tensor):
        return torch.cat([tensor, tensor])[len(tensor):]

    def load(self):
        self.ranks, self.scalings = (self._second(v[0]) for v in
                                     (self.layer.ranks, self.layer.scalings))
        self.a, self.b = self._second(self.layer.stacked_a), self._second(self.layer.stacked_b)


def _sglang_info(kernel, batch_info, runs, order, max_len):
    lengths, keep = [length for _, length in runs], kernel.keep
    return batch_info(
        use_cuda_graph=False, bs=len(runs), num_segments=len(runs),
        seg_indptr=keep("seg_indptr", _begins(lengths)),
        weight_indices=keep("weight_indices", [slot for slot, _ in runs])[:len(runs)],
        lora_ranks=kernel.ranks, scalings=kernel.scalings, max_len=max_len,
        seg_lens=keep("seg_lens", lengths), permutation=keep("permutation", order))


def sglang_kernels(batch_info):
    from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward
    from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward
    from sglang.kernels.ops.lora.dense.sgemm_lora_a import sgemm_lora_a_fwd
    from sglang.kernels.ops.lora.dense.sgemm_lora_b import sgemm_lora_b_fwd

    def csgmv(pool):
        class Csgmv(pool):
            def __init__(self, layer):
                super().__init__(layer)
                self.offsets = torch.tensor(_begins(layer.num_out), dtype=torch.int32)
                self.offsets_there = self.offsets.to(self.device)

            def prepare(self, host_slots):
                self.load()
                runs, order = self.segments(host_slots, 16)
                self.info = _sglang_info(self, batch_info, runs, order, 16)

            def run(self, x, y):
                if x.shape[0] == 0 or self.info.num_segments == 0:
                    return
                h = chunked_sgmv_lora_shrink_forward(x.contiguous(), self.a, self.info,
                                                     num_slices=len(self.layer.num_out))
                chunked_sgmv_lora_expand_forward(
                    h, self.b, self.info, slice_offsets=self.offsets_there,
                    max_slice_size=max(self.layer.num_out), base_output=y,
                    slice_offsets_cpu=self.offsets)
        return Csgmv

    def sgemm(pool):
        class Sgemm(pool):
            def prepare(self, host_slots):
                self.load()
                runs, order = self.segments(host_slots, 1 << 20)
                longest = max([1, *(length for _, length in runs)])
                self.info = _sglang_info(self, batch_info, runs, order, longest)

            def run(self, x, y):
                if x.shape[0] == 0 or self.info.num_segments == 0:
                    return
                h = sgemm_lora_a_fwd(x.contiguous(), self.a, self.info, stack_num=1)
                sgemm_lora_b_fwd(h, self.b, self.info, y)
        return Sgemm

    # Two of everything: not of the largest.
    behind = {"max_slices": 1, "max_slots": 64, "max_tokens": 8192}
    return {"sglang_csgmv_as_shipped": (csgmv(_Pool), {"max_slices": 3, "takes_gaps": True,
                                                       "capturable": True}),
            "sglang_sgemm_as_shipped": (sgemm(_Pool), {"max_slices": 1, "takes_gaps": True}),
            "sglang_sgemm_base_tokens": (sgemm(_Behind), behind)}


def tokenspeed_kernels(peers):
    import gpu_tokenspeed
    kernels = gpu_tokenspeed._load(peers)
    for kernel in kernels.values():  # tiles do not matter here, and tuning takes minutes
        del kernel.tuner.configs[1:]
        kernel.tuner.cache.clear()

    def pair(pool):
        class Pair(pool):
            """Decode: a segment for each token; tokens of several adapters in groups."""

            def prepare(self, host_slots):
                from gpu_packed import runs_of, sorted_by_slot
                self.load()
                keep, slots = self.keep, host_slots.tolist()
                groups = runs_of(sorted(slots))
                sizes = [size for _, size in groups]
                self.info = types.SimpleNamespace(
                    bs=len(slots), max_len=1, seg_lens=keep("seg_lens", [1] * len(slots)),
                    seg_indptr=keep("seg_indptr", list(range(len(slots) + 1))),
                    weight_indices=keep("weight_indices", slots), permutation=None,
                    lora_ranks=self.ranks, scalings=self.scalings,
                    sort_order=keep("sort_order", sorted_by_slot(slots), torch.int64),
                    group_slots=keep("group_slots", [slot for slot, _ in groups]),
                    group_starts=keep("group_starts", _begins(sizes)[:-1]),
                    group_sizes=keep("group_sizes", sizes), num_groups=len(groups),
                    max_group_size=max([1, *sizes]))

            def run(self, x, y):
                if x.shape[0] == 0:
                    return
                in_groups = self.info.num_groups > 1
                expand = kernels["lora_expand_grouped_v2" if in_groups else "lora_expand"]
                h = kernels["lora_shrink"].run(x, self.a, self.info, stack_num=1)
                expand.run(h, self.b, self.info, y)
        return Pair

    whole_blocks = {"num_in_multiple": 256}
    return {"tokenspeed_as_shipped": (pair(_Pool), {"num_in_multiple": 1}),
            "tokenspeed_captured": (pair(_Pool), {**whole_blocks, "capturable": True})}


def vllm_kernels(tamed):
    """Of the classes of check_peers.py: any number of slots and tokens, a shrink that is taken to
    be repeatable, and tables by address that live as long as the process."""
    def unforgetting(kernel):
        return type(kernel.__name__, (kernel,), {"forget_addresses": classmethod(lambda _: None)})

    def shipped(name, **claims):
        kernel, of_engine = tamed[name]
        return kernel, {**of_engine, "max_slots": 0, "max_tokens": 0, **claims}

    shrink, linear = shipped("vllm_shrink"), shipped("vllm_linear", takes_no_inputs=False)
    return {"vllm_shrink_as_shipped": shipped("vllm_shrink", repeatable=True),
            "vllm_expand_as_shipped": shipped("vllm_expand"),
            "vllm_shrink_unforgetting": (unforgetting(shrink[0]), shrink[1]),
            "vllm_linear_unforgetting": (unforgetting(linear[0]), linear[1])}


def vllm_0_8_kernels(peers, vllm_base, claims):
    """vLLM 0.8.5, of the years in which the row of a token was counted in 32 bits."""
    of_the_newer = {name: module for name, module in sys.modules.items()
                    if name == "vllm" or name.startswith("vllm.")}
    for name in of_the_newer:
        del sys.modules[name]
    import slots_bench
    shrink, expand, meta_class, pointers, _ = slots_bench.load(peers)
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        del sys.modules[name]
    sys.modules.update(of_the_newer)

    class Base(vllm_base):
        meta = None
        utils = pointers

        def make_meta(self, num_slots, max_tokens):
            return meta_class.make(num_slots, max_tokens, self.device)

        def meta_args(self, num_tokens):
            return self.meta.meta_args(num_tokens)

    class Shrink(Base):
        def run(self, x, a, h, slots):
            own = self.own_h(len(x)).zero_()  # as its caller does
            shrink(x, a, own, *self.arguments, 1.0)
            h.copy_(torch.where(slots[None, :, None] >= 0, own, h))

    class Expand(Base):
        def run(self, h, y, offset_start, add_inputs):
            expand(h, self.b, y, *self.arguments, offset_start=offset_start,
                   add_inputs=add_inputs)

    claims = {**claims, "max_slots": 0, "max_tokens": 0}
    return {"vllm_0_8_shrink": (Shrink, {**claims, "operations": ["shrink"]}),
            "vllm_0_8_expand": (Expand, {**claims, "operations": ["expand"]})}


CLAIMS = {"operations": ["linear"], "weight_dtypes": ["f16", "bf16"], "layouts": ["stacked"],
          "modes": [loratory.SGLANG_MODE], "unit": loratory.TENSOR_CORE_UNIT, "takes_gaps": False,
          "takes_absent_slices": False, "max_rank": 256, "max_slices": 1, "rank_multiple": 8,
          "num_in_multiple": 8, "num_out_multiple": 8}


def kernels(peers, tamed, vllm_base, vllm_claims):
    """name -> (class, claims). `tamed` and the others are of check_peers.py."""
    import gpu_sglang
    found = {**tokenspeed_kernels(peers), **sglang_kernels(gpu_sglang._load(peers))}
    return {**vllm_kernels(tamed), **vllm_0_8_kernels(peers, vllm_base, vllm_claims),
            **{name: (kernel, {**CLAIMS, **claims}) for name, (kernel, claims) in found.items()}}
