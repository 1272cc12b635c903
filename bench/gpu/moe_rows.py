"""The rows of moe_bench.py: LoRA on the experts of three models."""

import dataclasses
import functools

import torch

from rows import ROTATION_BYTES, SCALING


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    experts: int
    k: int
    hidden: int
    inner: int


# config.json of the checkpoints: num_local_experts or num_experts, num_experts_per_tok,
# hidden_size, intermediate_size or moe_intermediate_size.
MODELS = [Model("mixtral-8x7b", 8, 2, 4096, 14336),
          Model("qwen3-30b-a3b", 128, 8, 2048, 768),
          Model("gpt-oss-20b", 32, 4, 2880, 2880)]


@dataclasses.dataclass(frozen=True)
class Row:
    model: Model
    part: str  # w13: gate and up, x by token; w2: down, x by row, weighed by the router
    tokens: int
    adapters: int
    rank: int = 16

    @property
    def name(self):
        return (f"{self.model.name} {self.part} r{self.rank} n{self.tokens} u{self.adapters}")

    @property
    def kind(self):
        return "D" if self.tokens <= 128 else "P"

    @property
    def op(self):
        return "pair"

    @property
    def is_decode(self):
        return self.kind == "D"

    @property
    def num_rows(self):
        return self.tokens * self.model.k

    @property
    def num_in(self):
        return self.model.hidden if self.part == "w13" else self.model.inner

    @property
    def widths(self):
        return (self.model.inner,) * 2 if self.part == "w13" else (self.model.hidden,)

    @property
    def columns(self):
        return sum(self.widths)

    @property
    def weight_bytes(self):
        """Of all slots and experts."""
        per_expert = self.rank * (len(self.widths) * self.num_in + self.columns)
        return 2 * self.adapters * self.model.experts * per_expert

    @functools.cached_property
    def routing(self):
        """(experts [n][k], weights [n][k], slots [n]), the same in every run: each token's experts
        are drawn without order among all, its slot is its index modulo the adapters."""
        generator = torch.Generator().manual_seed(self.tokens * 1000 + self.model.experts)
        scores = torch.rand(self.tokens, self.model.experts, generator=generator)
        weights, experts = scores.topk(self.model.k)
        weights = torch.softmax(weights, 1)
        return experts.tolist(), weights.tolist(), [t % self.adapters for t in range(self.tokens)]

    @functools.cached_property
    def num_groups(self):
        experts, _, slots = self.routing
        return len({(slots[t], e) for t, chosen in enumerate(experts) for e in chosen})

    @property
    def min_bytes(self):
        """Weights of the groups, x, and y twice."""
        per_expert = 2 * self.rank * (len(self.widths) * self.num_in + self.columns)
        x_rows = self.tokens if self.part == "w13" else self.num_rows
        return (self.num_groups * per_expert + 2 * x_rows * self.num_in +
                4 * self.num_rows * self.columns)


# (tokens, adapters), so ordered that a run cut short has a row of every model and of most sizes.
SIZES = [(32, 8), (1, 1), (512, 8), (128, 32), (4096, 8), (32, 32), (32, 1), (128, 8), (512, 32),
         (128, 1), (512, 1), (4096, 32), (4096, 1)]


def _rows():
    for tokens, adapters in SIZES:
        for part in ("w13", "w2"):
            for model in MODELS:
                yield Row(model, part, tokens, adapters)


ROWS = {row.name: row for row in _rows()}


class Problem:
    """The tensors of a row. a[i] [copies, u, E, r, K] and b[i] [copies, u, E, N_i, r] of slice i;
    y [n·k, columns]."""

    def __init__(self, row, device, copies=None, dtype=torch.bfloat16):
        self.row, self.device, self.dtype = row, torch.device(device), dtype
        self.copies = copies or max(2, min(64, ROTATION_BYTES // row.weight_bytes + 1))
        torch.manual_seed(1)
        model, u, r = row.model, row.adapters, row.rank
        self.x = self._random(row.tokens if row.part == "w13" else row.num_rows, row.num_in)
        self.a = [self._random(self.copies, u, model.experts, r, row.num_in,
                               scale=row.num_in**-0.5) for _ in row.widths]
        self.b = [self._random(self.copies, u, model.experts, n, r, scale=r**-0.5)
                  for n in row.widths]
        self.y0 = self._random(row.num_rows, row.columns, scale=SCALING)
        self.y = self.y0.clone()
        experts, weights, self.slots = row.routing
        self.experts = torch.tensor(experts, dtype=torch.int32, device=self.device)
        self.weights = torch.tensor(weights, dtype=torch.float32, device=self.device)
        self.token_slots = torch.tensor(self.slots, dtype=torch.int32, device=self.device)
        self.ranks = torch.full((u, model.experts), r, dtype=torch.int32, device=self.device)
        self.scalings = torch.full((u, model.experts), SCALING, dtype=torch.float32,
                                   device=self.device)

    def _random(self, *shape, scale=1.0):
        return torch.randn(*shape, dtype=self.dtype, device=self.device).mul_(scale)

    @property
    def is_weighted(self):
        return self.row.part == "w2"

    @functools.cached_property
    def wanted(self):
        """y in float64 after the first copy of the weights, and after the first two."""
        one = self.reference(0, self.y0.double())
        return one, self.reference(1, one.clone())

    def reference(self, copy, out):
        """`out`, a float64 y, and delta by a copy of the weights: by group of slot and expert."""
        row, k = self.row, self.row.model.k
        pair = (self.token_slots[:, None] * row.model.experts + self.experts).flatten()
        order = pair.argsort(stable=True)
        values, counts = torch.unique_consecutive(pair[order], return_counts=True)
        begin = 0
        for value, count in zip(values.tolist(), counts.tolist()):
            rows = order[begin:begin + count]
            begin += count
            slot, expert = divmod(value, row.model.experts)
            x = self.x[rows // k if row.part == "w13" else rows].double()
            weight = SCALING
            if self.is_weighted:
                weight = SCALING * self.weights.flatten()[rows].double()[:, None]
            column = 0
            for a, b in zip(self.a, self.b):
                h = x @ a[copy, slot, expert].double().T
                out[rows, column:column + b.shape[3]] += (
                    weight * (h @ b[copy, slot, expert].double().T))
                column += b.shape[3]
        return out
