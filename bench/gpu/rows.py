"""The cases that are timed, and the tensors of one of them.

Letters as in gpu/api/lora_layer.hpp: K in-features, N_i columns of slice i, r rank, n tokens,
u adapters (all of rank r, one slot each).
"""

import dataclasses
import functools
import math

import torch

SCALING = 0.5  # exact in every dtype, wherever an implementation applies it
ROTATION_BYTES = 192_000_000  # > the L2 of any GPU this runs on, three times over


@dataclasses.dataclass(frozen=True)
class Row:
    kind: str  # D decode: adapters in turns; P prefill: equal runs; Pz prefill: zipf-skewed runs
    op: str  # pair, shrink, expand
    num_in: int
    widths: tuple  # N_i
    rank: int
    tokens: int
    adapters: int
    weights: str = "bf16"  # or fp8: e4m3fn with one factor for each matrix of a slot

    @property
    def name(self):
        columns = "+".join(map(str, self.widths))
        shape = {"pair": f"K{self.num_in}->{columns}",
                 "shrink": f"K{self.num_in}" + (f" x{len(self.widths)}" if self.widths[1:] else ""),
                 "expand": columns}[self.op]
        count = ("n" if self.kind == "D" else "s") + str(self.tokens)
        fp8 = " fp8" if self.weights == "fp8" else ""
        return f"{self.kind} {self.op} {shape} r{self.rank} {count} u{self.adapters}{fp8}"

    @property
    def is_decode(self):
        return self.kind == "D"

    @property
    def columns(self):
        return sum(self.widths)

    @property
    def offsets(self):
        """Of the slices in y, and its end."""
        return tuple(sum(self.widths[:i]) for i in range(len(self.widths) + 1))

    @property
    def slots(self):
        """The slot of each token."""
        if self.is_decode:
            return [t % self.adapters for t in range(self.tokens)]
        counts = [self.tokens // self.adapters] * self.adapters
        if self.kind == "Pz":
            whole = sum(1 / k for k in range(1, self.adapters + 1))
            counts = [max(1, int(self.tokens / k / whole)) for k in range(1, self.adapters + 1)]
        counts[0] += self.tokens - sum(counts)
        return [slot for slot, count in enumerate(counts) for _ in range(count)]

    @property
    def weight_bytes(self):
        a = len(self.widths) * self.rank * self.num_in if self.op != "expand" else 0
        b = self.columns * self.rank if self.op != "shrink" else 0
        return (1 if self.weights == "fp8" else 2) * self.adapters * (a + b)

    @property
    def min_bytes(self):
        """Each operand read once, the result written once (and read before, if it is added to)."""
        x, h, y = (2 * self.tokens * columns
                   for columns in (self.num_in, len(self.widths) * self.rank, self.columns))
        return self.weight_bytes + {"pair": x + 2 * y, "shrink": x + h,
                                    "expand": h + 2 * y}[self.op]


def _pair(kind, num_in, widths, rank, tokens, adapters):
    return Row(kind, "pair", num_in, tuple(widths), rank, tokens, adapters)


QKV, GATE_UP = (4096, 1024, 1024), (12288, 12288)

ANCHORS = [
    _pair("D", 4096, [4096], 64, 32, 4),
    _pair("D", 4096, [4096], 16, 32, 32),
    _pair("D", 4096, [4096], 16, 1, 1),
    _pair("D", 4096, QKV, 64, 32, 4),
    _pair("D", 4096, GATE_UP, 64, 32, 4),
    _pair("D", 12288, [4096], 64, 32, 4),
    _pair("D", 4096, [4096], 16, 128, 128),
    _pair("P", 4096, [4096], 64, 512, 4),
    _pair("P", 4096, QKV, 64, 512, 4),
    _pair("Pz", 4096, QKV, 16, 2048, 8),
    Row("D", "expand", 4096, (4096,), 64, 32, 4),
    Row("D", "expand", 4096, (4096,), 64, 128, 4),
    Row("D", "shrink", 4096, (4096,), 64, 32, 4),
    Row("D", "shrink", 4096, (4096,) * 3, 64, 32, 4),
    Row("P", "expand", 4096, QKV, 64, 512, 4),
    Row("P", "shrink", 4096, (4096,) * 3, 64, 512, 4),
]

PREFILLS = [("P", 512, 4), ("P", 2048, 4), ("P", 4096, 4), ("P", 8192, 4),
            ("Pz", 512, 8), ("Pz", 2048, 8), ("Pz", 8192, 8)]

# What the anchors leave out: ranks, counts, the layers of 8B and 70B models, long prefill.
SWEEP = (
    [_pair("D", 4096, [4096], r, n, u)
     for r in (8, 16, 32, 64, 128) for n in (1, 8, 32, 64, 128, 256)
     for u in sorted({1, min(4, n), n})]
    + [_pair("D", 4096, [4096], r, 512, u) for r in (16, 64) for u in (4, 64, 512)]
    + [_pair("D", k, widths, 16, n, u)
       for k, widths in [(4096, QKV), (4096, (14336, 14336)), (14336, [4096]),
                         (8192, [8192]), (8192, (8192, 1024, 1024)), (8192, (28672, 28672)),
                         (28672, [8192])]
       for n, u in [(1, 1), (32, 4), (32, 32)]]
    + [_pair(kind, 4096, widths, r, n, u)
       for widths in ([4096], QKV) for r in (16, 64)
       for kind, n, u in PREFILLS]
    + [_pair(kind, k, widths, r, n, u)
       for k, widths, r in [(4096, [4096], 128), (4096, QKV, 128), (4096, (14336, 14336), 64),
                            (14336, [4096], 64)]
       for kind, n, u in PREFILLS]
    + [_pair("P", k, widths, 64, 512, 1)
       for k, widths in [(4096, [4096]), (4096, QKV), (14336, [4096])]])

# In 8 bits: --rows fp8. Beside each, ours on the same numbers in bf16.
FP8 = [dataclasses.replace(_pair(*row), weights="fp8")
       for row in [("D", 4096, [4096], 64, 32, u) for u in (1, 8, 32)]
       + [("D", 4096, [4096], 64, n, n) for n in (1, 8, 128)]
       + [("D", 4096, QKV, 64, 32, 8), ("D", 4096, GATE_UP, 64, 32, 8),
          ("D", 12288, [4096], 64, 32, 8), ("D", 4096, [4096], 16, 32, 32),
          ("D", 4096, [4096], 128, 32, 8), ("P", 4096, [4096], 64, 512, 8),
          ("P", 4096, QKV, 64, 2048, 8)]]

# Steps of decode in 8 bits, by which their rules were chosen: --rows fp8_decode.
FP8_DECODE = [dataclasses.replace(_pair("D", num_in, widths, r, n, u), weights="fp8")
              for num_in, widths, r, steps in [
                  (4096, [4096], 64, [(1, 1), (4, 4), (8, 4), (8, 8), (12, 12), (16, 8), (16, 16),
                                      (24, 24), (32, 1), (32, 4), (32, 8), (32, 16), (32, 32),
                                      (48, 48), (64, 8), (64, 64), (128, 128)]),
                  (4096, QKV, 64, [(1, 1), (2, 2), (4, 4), (8, 1), (8, 4), (8, 8), (16, 16),
                                   (32, 4), (32, 8), (32, 32), (64, 64)]),
                  (4096, GATE_UP, 64, [(1, 1), (4, 4), (8, 8), (16, 16), (32, 8), (32, 32)]),
                  (12288, [4096], 64, [(1, 1), (4, 4), (8, 8), (16, 16), (32, 8), (32, 32)]),
                  (4096, [4096], 128, [(1, 1), (2, 2), (4, 4), (8, 1), (8, 8), (16, 16), (32, 8),
                                       (32, 32)]),
                  (4096, [4096], 256, [(1, 1), (2, 2), (4, 4), (8, 1), (8, 8)]),
                  (4096, QKV, 128, [(1, 1), (8, 1), (32, 32)]), (4096, GATE_UP, 128, [(1, 1)]),
                  (4096, QKV, 256, [(1, 1), (8, 1), (32, 32)]),
                  (4096, [4096], 32, [(1, 1), (8, 8), (32, 8), (32, 32)]),
                  (4096, [4096], 16, [(1, 1), (4, 4), (8, 1), (8, 8), (16, 16), (32, 8), (32, 32)]),
                  (4096, QKV, 16, [(1, 1), (8, 8), (32, 32)])]
              for n, u in steps]

# Decode with more to read than the other rows: --rows behind.
BEHIND = ([_pair("D", 4096, QKV, 256, n, u)
           for n in (1, 4, 8, 16, 32) for u in sorted({1, min(4, n), n})]
          + [_pair("D", 4096, (width, width), r, n, n)
             for width in (12288, 14336) for r in (16, 64) for n in (8, 16, 32, 64, 128)]
          + [Row("D", op, 4096, (4096,), 64, 128, 128) for op in ("shrink", "expand")]
          + [_pair("D", 4096, widths, r, n, u)
             for widths, r in [(QKV, 64), (QKV, 128), ([4096], 256), ((14336, 14336), 128),
                               ((14336, 14336), 256)]
             for n, u in [(1, 1), (8, 1), (8, 4), (8, 8), (32, 4), (32, 32)]])

SETS = {"behind": BEHIND, "fp8": FP8, "fp8_decode": FP8_DECODE}
ROWS = {row.name: row for row in ANCHORS + SWEEP + FP8 + FP8_DECODE + BEHIND}
ANCHOR_NAMES = [row.name for row in ANCHORS]


def _to_fp8(numbers):
    """(bits, factors) by the last two axes; `numbers` become those of the bits."""
    largest = numbers.abs().amax(dim=(-2, -1)).float()
    factors = torch.exp2(torch.ceil(torch.log2(largest / 448)))
    bits = (numbers.float() / factors[..., None, None]).to(torch.float8_e4m3fn)
    numbers.copy_(bits.float() * factors[..., None, None])
    return bits, factors


class Problem:
    """The tensors of a row; `copies` of the weights, different ones, for the cold rotation.

    a [copies, u, S*r, K] and b [copies, u, columns, r] with the slices of a slot together;
    a_slices and b_slices: per slice [copies, u, r, K] and [copies, u, N_i, r], without gaps.

    In a row of fp8, a8, b8 and x8 have the bits of a, b and x, and a_factors, b_factors [copies, u]
    and x_factors [n, 1] what they are multiplied by: powers of two, so that a, b and x in bf16 are
    the same numbers.
    """

    def __init__(self, row, device, copies=None, dtype=torch.bfloat16):
        self.row, self.device, self.dtype = row, torch.device(device), dtype
        self.copies = copies or max(2, ROTATION_BYTES // row.weight_bytes + 1)
        self.slots = row.slots
        torch.manual_seed(1)
        slices, u, r, n = len(row.widths), row.adapters, row.rank, row.tokens
        self.x = self._random(n, row.num_in)
        self.a = self.b = None
        if row.op != "expand":
            self.a = self._random(self.copies, u, slices * r, row.num_in, scale=row.num_in**-0.5)
        if row.op != "shrink":
            self.b = self._random(self.copies, u, row.columns, r, scale=r**-0.5)
        if row.weights == "fp8":
            self.a8, self.a_factors = _to_fp8(self.a)
            self.b8, self.b_factors = _to_fp8(self.b)
            self.x8, of_x = _to_fp8(self.x)
            self.x_factors = of_x.expand(n, 1).contiguous()
        self.y0 = self._random(n, row.columns, scale=SCALING)
        self.y = self.y0.clone()
        self.h = self._random(slices, n, r)  # what expand starts from
        self.ranks = torch.full((u,), r, dtype=torch.int32, device=self.device)
        self.scalings = torch.full((u,), SCALING, dtype=torch.float32, device=self.device)

    def _random(self, *shape, scale=1.0):
        return torch.randn(*shape, dtype=self.dtype, device=self.device).mul_(scale)

    @functools.cached_property
    def a_slices(self):
        r = self.row.rank
        if self.a is None or len(self.row.widths) == 1:
            return [self.a]
        return [self.a[:, :, i * r:(i + 1) * r].contiguous() for i in range(len(self.row.widths))]

    @functools.cached_property
    def b_slices(self):
        if self.b is None or len(self.row.widths) == 1:
            return [self.b]
        at = self.row.offsets
        return [self.b[:, :, at[i]:at[i + 1]].contiguous() for i in range(len(self.row.widths))]

    def reference(self, slots, copy=0):
        """What the operation should give, in float64: y [n, columns] or h [S, n, r]."""
        row, slots = self.row, torch.tensor(slots, device=self.device)
        out = (torch.zeros(len(row.widths), row.tokens, row.rank, dtype=torch.float64,
                           device=self.device) if row.op == "shrink" else self.y0.double())
        for slot in range(row.adapters):
            rows = (slots == slot).nonzero().flatten()
            for i, (begin, end) in enumerate(zip(row.offsets, row.offsets[1:])):
                h = self.h[i][rows].double()
                if row.op != "expand":
                    a = self.a[copy, slot, i * row.rank:(i + 1) * row.rank].double()
                    h = self.x[rows].double() @ a.T
                if row.op == "shrink":
                    out[i, rows] = h
                else:
                    out[rows, begin:end] += SCALING * (h @ self.b[copy, slot, begin:end].double().T)
        return out


# h, delta and the sum rounded to bf16, each by at most 2^-9 of what is rounded: in rms, over all
# elements, less than the three in quadrature. What is above it is no rounding.
MAX_RELATIVE_RMS = math.sqrt(3) * 2.0**-9
# w8a8: h is rounded to e4m3 too, each number by at most 2^-4 of it, independently.
W8A8_RMS = math.hypot(MAX_RELATIVE_RMS, 2.0**-4)


def errors(got, want):
    """(worst |got - want| / rms(want), rms(got - want) / rms(want))."""
    difference, rms = got.double() - want, want.square().mean().sqrt()
    return (float(difference.abs().max() / rms), float(difference.square().mean().sqrt() / rms))
