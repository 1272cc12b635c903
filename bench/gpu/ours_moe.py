"""The expert layers of libloratory_c.so as an implementation that can be timed."""

import ctypes

import torch

from implementation import Implementation, Op
from ours import _DTYPES, Library, _stream, _tensor, _Variant


class _ExpertSlice(ctypes.Structure):
    _fields_ = [("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("ranks", ctypes.c_void_p),
                ("scalings", ctypes.c_void_p), ("num_out", ctypes.c_int64)]


class MoeLibrary(Library):
    def __init__(self, path):
        super().__init__(path)
        for name in ("expert_layer_create", "groups_create"):
            getattr(self._c, "loratory_" + name).restype = ctypes.c_void_p

    def expert_layer(self, problem, copy, workspace):
        row = problem.row
        slices = [_ExpertSlice(a[copy].data_ptr(), b[copy].data_ptr(), problem.ranks.data_ptr(),
                               problem.scalings.data_ptr(), b.shape[3])
                  for a, b in zip(problem.a, problem.b)]
        weights = problem.weights.data_ptr() if problem.is_weighted else None
        layer = self._c.loratory_expert_layer_create(
            _DTYPES[problem.dtype], (_ExpertSlice * len(slices))(*slices), len(slices),
            ctypes.c_int64(row.adapters), ctypes.c_int64(row.model.experts),
            ctypes.c_int64(row.rank), ctypes.c_int64(row.num_in),
            row.model.k if row.part == "w13" else 1, ctypes.c_void_p(weights),
            ctypes.c_void_p(workspace.data_ptr()), ctypes.c_int64(workspace.nbytes))
        self._check(layer)
        return ctypes.c_void_p(layer)

    def expert_variant(self, layer, x, y):
        variant = _Variant()
        self._check(self._c.loratory_expert_layer_variant(
            layer, ctypes.byref(x), ctypes.byref(y), ctypes.byref(variant)) == 0)
        return variant

    def launch_experts(self, layer, variant, x, y, groups, overlaps):
        self._check(self._c.loratory_expert_layer_launch(
            layer, ctypes.byref(variant), ctypes.byref(x), ctypes.byref(y), groups, _stream(),
            int(overlaps)) == 0)

    def groups(self, problem):
        row = problem.row
        groups = self._c.loratory_groups_create(
            ctypes.c_int64(row.tokens), row.model.k, row.model.experts, row.adapters)
        self._check(groups)
        return ctypes.c_void_p(groups)

    def build(self, groups, problem):
        self._check(self._c.loratory_groups_build(
            groups, ctypes.c_void_p(problem.experts.data_ptr()),
            ctypes.c_void_p(problem.token_slots.data_ptr()), ctypes.c_int64(problem.row.tokens),
            _stream()) == 0)

    def close(self, layers, groups):
        for layer in layers:
            self._c.loratory_expert_layer_destroy(layer)
        self._c.loratory_groups_destroy(groups)

    def read_experts(self, problem):
        """launch(copy): reads as many bytes as the row must, of the weights as many as its groups
        have, from the first on."""
        row = problem.row
        share = row.num_groups / (row.adapters * row.model.experts)

        def launch(copy):
            tensors = [w[copy] for w in (*problem.a, *problem.b)]
            fixed = [problem.x, problem.y, problem.y]
            spans = [t.data_ptr() for t in (*tensors, *fixed)]
            sizes = [int(t.nbytes * share) // 16 * 16 for t in tensors] + [t.nbytes for t in fixed]
            self._check(self._c.loratory_read_node(
                (ctypes.c_void_p * len(spans))(*spans), (ctypes.c_int64 * len(spans))(*sizes),
                len(spans), _stream()) == 0)

        return launch


def prepare(library, problem, overlaps=True, with_groups=False, variant=None):
    """The row's operation; with_groups: the groups are built anew each time, as in a layer."""
    row = problem.row
    padded_rank = -(-row.rank // 4) * 4  # as workspace_bytes()
    workspace = torch.empty(len(row.widths) * row.num_rows * padded_rank, dtype=torch.float32,
                            device=problem.device)
    x, y = _tensor(problem.x), _tensor(problem.y)
    layers = [library.expert_layer(problem, copy, workspace) for copy in range(problem.copies)]
    chosen = variant or library.expert_variant(layers[0], x, y)
    groups = library.groups(problem)
    library.build(groups, problem)
    torch.cuda.synchronize()

    def launch(copy):
        if with_groups:
            library.build(groups, problem)
        library.launch_experts(layers[copy], chosen, x, y, groups, overlaps and not with_groups)

    return Op(launch=launch, output=lambda workspace=workspace: problem.y, config=str(chosen),
              close=lambda: library.close(layers, groups))


def _variants(row):
    """Shrinks in two launches that could be faster than what the rules choose."""
    shrinks = [(1, 1, 8, 2), (1, 1, 4, 2), (1, 1, 2, 2), (1, 1, 1, 2), (2, 1, 8, 1), (2, 1, 4, 1),
               (2, 1, 2, 1), (4, 1, 8, 1)]
    if row.num_rows > 64:
        shrinks += [(4, 4, 8, 4), (4, 8, 2, 4), (4, 8, 1, 4), (4, 8, 4, 3)]
    return [_Variant(rank_tiles, token_tiles, cluster, stages, 1, 2, 8)
            for rank_tiles, token_tiles, cluster, stages in shrinks]


def _best(library):
    """The fastest variant: what the rules of gpu/plan/choose_variant.cpp should choose."""

    def quick_prepare(problem):
        best, best_us = None, float("inf")
        for variant in _variants(problem.row):
            op = None
            try:
                op = prepare(library, problem, variant=variant)
                us = problem.quick_us(op.launch)
            except RuntimeError:  # a variant that this layer cannot take
                continue
            finally:
                if op is not None:
                    op.close()
            if us < best_us:
                best, best_us = variant, us
        return prepare(library, problem, variant=best)

    return quick_prepare


def implementations(library):
    def read_node(problem):
        return Op(launch=library.read_experts(problem), output=lambda: None)

    def ours(**options):
        return lambda problem: prepare(library, problem, **options)

    return [Implementation("read_node", read_node, kind="floor"),
            Implementation("loratory", ours(), kind="ours"),
            Implementation("loratory_with_groups", ours(with_groups=True), kind="ours"),
            Implementation("loratory_best_variant", _best(library), kind="yardstick")]
