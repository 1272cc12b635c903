"""Kernels of vLLM, SGLang and TokenSpeed as their signatures let them be called.

check_peers.py calls each within what its engine is known to keep to. Here nothing is kept from
them: adapters in a pool of more than 2^31 elements, base tokens as slot -1, a captured graph whose
host integers were another step's, a K of any size, tables that are never forgotten.
"""
import types

import torch

import loratory

FAR = 1 << 31  # elements


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
    """A layer of SGLang's and TokenSpeed's stacked weights."""

    def __init__(self, layer):
        self.layer = layer
        self.device = layer.ranks[0].device
        self.keep = _Kept(layer.max_tokens + 2, self.device)
        self.ranks, self.scalings = layer.ranks[0], layer.scalings[0]
        self.a, self.b = layer.stacked_a, layer.stacked_b

    def id_of(self, slot):
        return slot

    def load(self):
        """Before each step: the adapters to where the kernel finds them."""

    def segments(self, host_slots, longest):
        from gpu_packed import runs_of
        slots = sorted(int(slot) for slot in host_slots)
        runs = [(self.id_of(slot), min(longest, length - at)) for slot, length in runs_of(slots)
                for at in range(0, length, longest)]
        return runs, sorted(range(len(host_slots)), key=lambda t: host_slots[t])


class _NoBase(_Pool):
    """The base model is a slot of rank 0 behind the others."""

    def id_of(self, slot):
        return slot if slot >= 0 else self.layer.num_slots

    def load(self):
        def with_base(tensor):
            return torch.cat([tensor, torch.zeros_like(tensor[:1])])

        self.ranks, self.scalings = (with_base(v[0]) for v in
                                     (self.layer.ranks, self.layer.scalings))
        self.a, self.b = with_base(self.layer.stacked_a), with_base(self.layer.stacked_b)


class _Behind(_Pool):
    """Another layer's ranks, scalings and weights lie in front of this one's."""

    @staticmethod
    def _second(tensor):
        return torch.cat([tensor, tensor])[len(tensor):]

    def load(self):
        self.ranks, self.scalings = (self._second(v[0]) for v in
                                     (self.layer.ranks, self.layer.scalings))
        self.a, self.b = self._second(self.layer.stacked_a), self._second(self.layer.stacked_b)


_buffers = {}


def _far_buffer(name, weights, first):
    """A pool like `weights`, with `first` slots in front."""
    if name not in _buffers:
        _buffers[name] = torch.zeros(FAR + FAR // 8, dtype=torch.int16, device=weights.device)
    shape = (first + len(weights), *weights.shape[1:])
    size = shape[0] * weights[0].numel()
    return _buffers[name][:size].view(weights.dtype).view(shape)


class _Far(_Pool):
    """The adapters lie in the last slots of a pool whose end is more than 2^31 elements away."""

    def __init__(self, layer):
        super().__init__(layer)
        widest = max(t[0].numel() for t in (layer.stacked_a, layer.stacked_b))
        self.first = FAR // widest + 1

    def id_of(self, slot):
        return self.first - 1 if slot < 0 else self.first + slot  # in front: rank 0

    def load(self):
        gap = torch.zeros(self.first, dtype=torch.int32, device=self.device)
        self.ranks = torch.cat([gap, self.layer.ranks[0]])
        self.scalings = torch.cat([gap.float(), self.layer.scalings[0]])
        self.a = self._moved("a", self.layer.stacked_a)
        self.b = self._moved("b", self.layer.stacked_b)

    def _moved(self, name, weights):
        pool = _far_buffer(name, weights, self.first)
        pool[self.first:].copy_(weights)
        return pool


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
                base = [int(slot) >= 0 for slot in host_slots]
                slots = [int(s) for s, there in zip(host_slots, base) if there]
                runs, order = self.segments(slots, 16)
                tokens = [t for t, there in enumerate(base) if there]
                self.info = _sglang_info(self, batch_info, runs, [tokens[t] for t in order], 16)

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
                if x.shape[0] == 0:
                    return
                h = sgemm_lora_a_fwd(x.contiguous(), self.a, self.info, stack_num=1)
                sgemm_lora_b_fwd(h, self.b, self.info, y)
        return Sgemm

    return {"sglang_csgmv_captured": (csgmv(_Pool), {"max_slices": 3, "capturable": True}),
            "sglang_csgmv_far": (csgmv(_Far), {"max_slices": 1}),
            "sglang_csgmv_gaps": (csgmv(_Pool), {"max_slices": 1, "takes_gaps": True}),
            "sglang_sgemm_as_shipped": (sgemm(_Behind), {"max_slices": 1}),
            "sglang_sgemm_far": (sgemm(_Far), {"max_slices": 1}),
            "sglang_sgemm_gaps": (sgemm(_NoBase), {"max_slices": 1, "takes_gaps": True})}


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
                keep, slots = self.keep, [self.id_of(int(slot)) for slot in host_slots]
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
            "tokenspeed_captured": (pair(_Pool), {**whole_blocks, "capturable": True}),
            "tokenspeed_far": (pair(_Far), whole_blocks)}


def vllm_kernels(tamed):
    """Of the classes of check_peers.py: tables by address that live as long as the process, and
    a shrink that is taken to be repeatable."""
    shrink, shrink_claims = tamed["vllm_shrink"]
    linear, linear_claims = tamed["vllm_linear"]

    def unforgetting(kernel):
        return type(kernel.__name__, (kernel,), {"forget_addresses": classmethod(lambda _: None)})

    far = _far_vllm(shrink)
    return {"vllm_shrink_repeatable": (shrink, {**shrink_claims, "repeatable": True}),
            "vllm_shrink_as_shipped": (unforgetting(shrink), shrink_claims),
            "vllm_linear_as_shipped": (unforgetting(linear),
                                       {**linear_claims, "takes_no_inputs": False}),
            "vllm_shrink_far": (far, {**shrink_claims, "max_slices": 1})}


def _far_vllm(shrink):
    class Far(shrink):
        """A in the last slots of a pool whose end is more than 2^31 elements away. The metadata
        counts slots from the first that holds an adapter; the kernel is given ids in the pool."""
        def prepare(self, slots, num_tokens):
            a = self.layer.a[0]
            self.first = FAR // a[0].numel() + 1
            self.pool = _far_buffer("a", a, self.first)
            self.pool[self.first:].copy_(a)
            self.meta.prepare_tensors(slots)
            ids = self.meta.active_lora_ids
            ids.copy_(torch.where(ids >= 0, ids + self.first, ids))
            self.arguments = self.meta.meta_args(num_tokens, specialize_active_lora=False)
            self.forget_addresses()  # the pool's shape changes, its address does not

        def run(self, x, h, slots):
            super().run(x, [self.pool], h, slots)
    return Far


CLAIMS = {"operations": ["linear"], "weight_dtypes": ["f16", "bf16"], "layouts": ["stacked"],
          "modes": [loratory.SGLANG_MODE], "unit": loratory.TENSOR_CORE_UNIT, "takes_gaps": False,
          "takes_absent_slices": False, "max_rank": 256, "max_slices": 1, "rank_multiple": 8,
          "num_in_multiple": 8, "num_out_multiple": 8}


def kernels(peers, tamed):
    """name -> (class, claims). `tamed`: those of check_peers.py."""
    import gpu_sglang
    found = {**sglang_kernels(gpu_sglang._load(peers)), **tokenspeed_kernels(peers)}
    return {**vllm_kernels(tamed),
            **{name: (kernel, {**CLAIMS, **claims}) for name, (kernel, claims) in found.items()}}
