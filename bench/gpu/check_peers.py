#!/usr/bin/env python3
"""Judges the Triton kernels that vLLM and SGLang ship, through loratory.check.

    bench/peers/get_gpu_peers.sh PEERS            # on a machine with a network
    pip install .                                 # needs no nvcc: the driver is enough
    bench/gpu/check_peers.py PEERS --cases 200 --out OUT

One report for each kernel, as text on stdout and as JSON and JUnit in OUT. With TRITON_INTERPRET=1
and --device cpu the kernels run in Triton's interpreter: slow, but without a GPU. Exit 1: something
was found.
"""
import argparse
import pathlib
import sys

import torch

import loratory

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "peers")]


MANY = 1 << 31  # elements: 32-bit offsets end there
# Of slots and of tokens in a step an engine has fewer.
ENGINE = {"max_slots": 64, "max_tokens": 8192}


def _zeros_like(weights):
    """With as much before them as the harness has before the large."""
    before = MANY if weights.numel() > MANY else 0
    room = torch.zeros(before + weights.numel(), dtype=weights.dtype, device=weights.device)
    return room[before:].view(weights.shape)


class _VllmBase:
    """Metadata once for each step, as LoRAKernelMeta; B holds its scaling, as vLLM loads it."""

    def __init__(self, layer):
        self.layer = layer
        self.device = layer.ranks[0].device
        self.meta = self.make_meta(layer.num_slots, max(1, layer.max_tokens))
        self.forget_addresses()
        self.b = None
        if layer.b[0] is not None:
            self.b = [_zeros_like(b) for b in layer.b]
            for slot in range(layer.num_slots):
                if any(ranks[slot] > 0 for ranks in layer.host_ranks):
                    self.weights_changed(slot)
        if layer.a[0] is not None:
            size = len(layer.a) * max(1, layer.max_tokens) * layer.max_rank
            self.h = torch.empty(size, dtype=torch.float32, device=self.device)

    def __del__(self):
        """The harness needs the room that torch would keep."""
        is_large = any(b.numel() > MANY for b in getattr(self, "b", None) or ())
        self.b = None
        if is_large and self.device.type == "cuda":
            torch.cuda.empty_cache()

    def make_meta(self, num_slots, max_tokens):
        return self.meta_class.make(num_slots, max_tokens, self.device)

    def meta_args(self, num_tokens):
        return self.meta.meta_args(num_tokens, specialize_active_lora=False)

    def weights_changed(self, slot):
        if self.layer.b[0] is not None:
            for mine, theirs, scalings in zip(self.b, self.layer.b, self.layer.scalings):
                mine[slot].copy_((theirs[slot].float() * scalings[slot]).to(mine.dtype))

    def prepare(self, slots, num_tokens):
        self.meta.prepare_tensors(slots)
        self.arguments = self.meta_args(num_tokens)
        # Found here as after its profile run: no graph can capture the copy of a pointer.
        if self.layer.a[0] is not None:
            self.utils._get_lora_a_ptr(self.layer.a, self.device)
        if self.layer.b[0] is not None:
            self.utils._get_lora_b_ptr(self.b, self.layer.offset_start, self.device)

    def own_h(self, num_tokens):
        """Of the whole step: its shrink clears the rows of all tokens, with an adapter or not."""
        shape = len(self.layer.a), num_tokens, self.layer.max_rank
        return self.h[:shape[0] * shape[1] * shape[2]].view(shape)

    @classmethod
    def forget_addresses(cls):
        """It keeps pointers by the address of a tensor, and addresses come again."""
        cls.utils._LORA_A_PTR_DICT.clear()
        cls.utils._LORA_B_PTR_DICT.clear()


VLLM_CLAIMS = {"weight_dtypes": ["f16", "bf16"], "layouts": ["dense"], "h_dtypes": ["f32"],
               "modes": [loratory.VLLM_MODE], "unit": loratory.TENSOR_CORE_UNIT,
               "reads_beyond_rank": True, "takes_gaps": False, "takes_absent_slices": False,
               "max_rank": 256, "rank_multiple": 8, "num_in_multiple": 8, "num_out_multiple": 8,
               **ENGINE}


def vllm_kernels(peers):
    import gpu_vllm
    _, shrink, expand, meta = gpu_vllm._load(peers)
    pointers = sys.modules["vllm.lora.ops.triton_ops.utils"]

    class VllmShrink(_VllmBase):
        meta_class, utils = meta, pointers

        def run(self, x, a, h, slots):
            own = self.own_h(len(x))
            shrink._lora_shrink(x, a, own, *self.arguments, 1.0)
            h.copy_(torch.where(slots[None, :, None] >= 0, own, h))

    class VllmExpand(_VllmBase):
        meta_class, utils = meta, pointers

        def run(self, h, y, offset_start, add_inputs):
            expand._lora_expand(h, self.b, y, *self.arguments, offset_start=offset_start,
                                add_inputs=add_inputs)

    class VllmLinear(_VllmBase):
        meta_class, utils = meta, pointers

        def run(self, x, a, y, offset_start, add_inputs):
            h = self.own_h(len(x))
            shrink._lora_shrink(x, a, h, *self.arguments, 1.0)
            expand._lora_expand(h, self.b, y, *self.arguments, offset_start=offset_start,
                                add_inputs=add_inputs)

    return {
        "vllm_shrink": (VllmShrink, {**VLLM_CLAIMS, "operations": ["shrink"]}),
        "vllm_expand": (VllmExpand, {**VLLM_CLAIMS, "operations": ["expand"]}),
        "vllm_linear": (VllmLinear, {**VLLM_CLAIMS, "operations": ["linear"]}),
    }


def sglang_kernels(peers):
    import gpu_sglang
    from gpu_packed import runs_of, sorted_by_slot
    batch_info = gpu_sglang._load(peers)
    from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward
    from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward
    chunk = 16

    class SglangChunked:
        """csgmv on its pool of stacked weights. The base model is a slot of rank 0 behind the
        others, as SGLang has one."""

        def __init__(self, layer):
            self.layer = layer
            self.device = layer.ranks[0].device
            widths = [0]
            for width in layer.num_out:
                widths.append(widths[-1] + width)
            self.offsets = torch.tensor(widths, dtype=torch.int32)
            self.offsets_device = self.offsets.to(self.device)
            self.a = self._with_base(layer.stacked_a)
            self.b = self._with_base(layer.stacked_b)

        def _with_base(self, stacked):
            return torch.cat([stacked, torch.zeros_like(stacked[:1])]).contiguous()

        def weights_changed(self, slot):
            self.a[slot].copy_(self.layer.stacked_a[slot])
            self.b[slot].copy_(self.layer.stacked_b[slot])

        def prepare(self, host_slots):
            base = self.layer.num_slots
            slots = [int(s) if s >= 0 else base for s in host_slots]
            runs = [(slot, min(chunk, length - at)) for slot, length in runs_of(sorted(slots))
                    for at in range(0, length, chunk)]
            lengths = [length for _, length in runs]

            def ints(values):
                return torch.tensor(values, dtype=torch.int32, device=self.device)

            self.info = batch_info(
                use_cuda_graph=False, bs=len(runs), num_segments=len(runs),
                seg_indptr=ints([sum(lengths[:i]) for i in range(len(runs) + 1)]),
                weight_indices=ints([slot for slot, _ in runs]),
                lora_ranks=ints([*self.layer.host_ranks[0].tolist(), 0]),
                scalings=torch.tensor([*self.layer.host_scalings[0].tolist(), 1.0],
                                      dtype=torch.float32, device=self.device),
                max_len=chunk, seg_lens=ints(lengths), permutation=ints(sorted_by_slot(slots)))

        def run(self, x, y):
            if x.shape[0] == 0:
                return
            h = chunked_sgmv_lora_shrink_forward(x, self.a, self.info,
                                                 num_slices=len(self.layer.num_out))
            chunked_sgmv_lora_expand_forward(
                h, self.b, self.info, slice_offsets=self.offsets_device,
                max_slice_size=max(self.layer.num_out), base_output=y,
                slice_offsets_cpu=self.offsets)

    claims = {"operations": ["linear"], "weight_dtypes": ["f16", "bf16"], "layouts": ["stacked"],
              "modes": [loratory.SGLANG_MODE], "unit": loratory.TENSOR_CORE_UNIT,
              "takes_gaps": False, "takes_absent_slices": False, "max_rank": 256, "max_slices": 3,
              "rank_multiple": 8, "num_in_multiple": 8, "num_out_multiple": 8, **ENGINE}
    return {"sglang_csgmv": (SglangChunked, claims)}


def as_shipped_kernels(peers):
    import peers_as_shipped
    return peers_as_shipped.kernels(peers, vllm_kernels(peers), _VllmBase, VLLM_CLAIMS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--budget-s", type=float, default=0)
    parser.add_argument("--max-products", type=int, default=1 << 22)
    parser.add_argument("--max-bytes", type=int, help="of one tensor; on a GPU 20 GiB, else 0")
    parser.add_argument("--check", action="append", default=[], help="only this one, by its name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-graphs", action="store_true", help="claim nothing capturable")
    parser.add_argument("--as-shipped", action="store_true",
                        help="the kernels of peers_as_shipped.py: something should be found")
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    sys.path.append(str(given.peers / "site"))
    if given.device == "cpu":  # they ask before they launch
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.get_device_name = lambda *_: "NVIDIA H100"
    found = 0
    loaders = (as_shipped_kernels,) if given.as_shipped else (vllm_kernels, sglang_kernels)
    for load in loaders:
        try:
            kernels = load(given.peers)
        except Exception as error:  # one engine that is not there does not stop the other
            print(f"{load.__name__}: cannot be loaded: {type(error).__name__}: {error}", flush=True)
            found = 1
            continue
        for name, (kernel, claims) in kernels.items():
            if given.only and name not in given.only:
                continue
            if given.device == "cpu":  # the interpreter's bf16 is not that of a GPU
                claims = {**claims, "weight_dtypes": ["f16"]}
            can_capture = given.device == "cuda" and not given.no_graphs
            is_captured = claims.get("capturable", name.startswith("vllm"))
            claims = {**claims, "capturable": can_capture and is_captured}
            report = loratory.check(kernel, name=name, framework="torch", device=given.device,
                                    cases=given.cases, budget_s=given.budget_s, seed=given.seed,
                                    labels=given.case, checks=given.check,
                                    max_products=given.max_products, max_bytes=given.max_bytes,
                                    **claims)
            print(report, flush=True)
            found |= not report.ok
            if given.out:
                given.out.mkdir(parents=True, exist_ok=True)
                (given.out / f"{name}.json").write_text(report.json)
                (given.out / f"{name}.xml").write_text(report.junit)
    return found


if __name__ == "__main__":
    sys.exit(main())
