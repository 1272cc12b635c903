"""libloratory_c.so (bench/gpu/loratory_c.h, check/loratory_plugin.h) as an implementation that can
be timed."""

import ctypes

import torch

from implementation import Implementation, Op, Unsupported
from rows import MAX_RELATIVE_RMS, W8A8_RMS

_OPS = ["pair", "shrink", "expand"]  # enum LoratoryOperation
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 3,
           torch.float8_e5m2: 4, torch.int8: 5}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4),
                ("strides", ctypes.c_int64 * 4), ("num_axes", ctypes.c_int32),
                ("dtype", ctypes.c_int32)]


class _Slice(ctypes.Structure):
    _fields_ = [("a", _Tensor), ("b", _Tensor), ("a_scale", _Tensor), ("b_scale", _Tensor),
                ("ranks", ctypes.c_void_p), ("scalings", ctypes.c_void_p),
                ("host_ranks", ctypes.c_void_p), ("host_scalings", ctypes.c_void_p),
                ("num_out", ctypes.c_int64)]


class _Variant(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32)
                for name in ("rank_tiles", "token_tiles", "cluster", "stages", "aligned",
                             "launches", "warps")]

    def __str__(self):
        """As gpu::describe()."""
        shown = {"aligned": "true" if self.aligned else "false"}
        return " ".join(f"{name}={shown.get(name, getattr(self, name))}"
                        for name, _ in self._fields_)


def _tensor(tensor):
    axes = tensor.dim()
    return _Tensor(tensor.data_ptr(), (ctypes.c_int64 * 4)(*tensor.shape),
                   (ctypes.c_int64 * 4)(*tensor.stride()), axes, _DTYPES[tensor.dtype])


def _stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Library:
    def __init__(self, path):
        self._c = ctypes.CDLL(path)
        self._c.loratory_error.restype = ctypes.c_char_p
        for name in ("layer_create", "segments_create"):
            getattr(self._c, "loratory_" + name).restype = ctypes.c_void_p

    def _check(self, ok):
        if not ok:
            raise RuntimeError(self._c.loratory_error().decode())

    def layer(self, problem, copy, in_fp8=False):
        """The row's operation over one copy of the weights, as one pointer."""
        row, slices = problem.row, []
        a, b = (problem.a8, problem.b8) if in_fp8 else (problem.a, problem.b)
        for i, (begin, end) in enumerate(zip(row.offsets, row.offsets[1:])):
            one = _Slice(ranks=problem.ranks.data_ptr(), scalings=problem.scalings.data_ptr())
            if row.op != "expand":
                one.a = _tensor(a[copy, :, i * row.rank:(i + 1) * row.rank])
            if row.op != "shrink":
                one.b = _tensor(b[copy, :, begin:end])
            if in_fp8:
                one.a_scale = _tensor(problem.a_factors[copy])
                one.b_scale = _tensor(problem.b_factors[copy])
            slices.append(one)
        layer = self._c.loratory_layer_create(
            _OPS.index(row.op), (_Slice * len(slices))(*slices), len(slices),
            *self._workspace(problem))
        self._check(layer)
        return ctypes.c_void_p(layer)

    def _workspace(self, problem):
        """Of a linear layer: pointer and bytes; all layers of the row share it."""
        row = problem.row
        if row.op != "pair":
            return None, ctypes.c_int64(0)
        if getattr(problem, "workspace", None) is None:
            padded_rank = -(-row.rank // 4) * 4  # as workspace_bytes()
            count = (len(row.offsets) - 1) * len(problem.slots) * padded_rank
            if row.weights == "fp8":
                count = 2 * count + 1024  # more than quantized_workspace_bytes()
            problem.workspace = torch.empty(count, dtype=torch.float32, device=problem.x.device)
        return (ctypes.c_void_p(problem.workspace.data_ptr()),
                ctypes.c_int64(problem.workspace.nbytes))

    def variant(self, layer, source, target):
        variant = _Variant()
        self._check(self._c.loratory_layer_variant(
            layer, ctypes.byref(source), ctypes.byref(target), ctypes.byref(variant)) == 0)
        return variant

    def segments(self, slots, num_slots, variant):
        segments = self._c.loratory_segments_create(
            (ctypes.c_int32 * len(slots))(*slots), len(slots), num_slots, ctypes.byref(variant))
        self._check(segments)
        return ctypes.c_void_p(segments)

    def launch(self, layer, variant, source, target, segments, overlaps, scale=None):
        self._check(self._c.loratory_layer_launch(
            layer, ctypes.byref(variant), ctypes.byref(source),
            None if scale is None else ctypes.byref(scale), ctypes.byref(target), segments,
            _stream(), int(overlaps)) == 0)

    def destroy(self, layers, segments):
        for layer in layers:
            self._c.loratory_layer_destroy(layer)
        self._c.loratory_segments_destroy(segments)

    def read_node(self, problem):
        """launch(copy): reads what the row's operation reads and writes."""
        fixed = {"pair": [problem.x, problem.y, problem.y], "shrink": [problem.x, problem.h],
                 "expand": [problem.h, problem.y, problem.y]}[problem.row.op]

        def launch(copy):
            tensors = [w[copy] for w in _weights(problem) if w is not None] + fixed
            self._check(self._c.loratory_read_node(
                *_spans(tensors), len(tensors), _stream()) == 0)

        return launch

    def read_pair(self, problem):
        """The same in two launches as ours: A before x, then B before h and y."""
        if problem.row.op != "pair":
            raise Unsupported("one launch")

        def launch(copy):
            a, b = (w[copy] for w in _weights(problem))
            for tensors in ([a, problem.x], [b, problem.h, problem.y, problem.y]):
                self._check(self._c.loratory_read_stage(
                    *_spans(tensors), 1, len(tensors), _stream()) == 0)

        return launch


def _weights(problem):
    in_8_bits = problem.row.weights == "fp8"
    return (problem.a8, problem.b8) if in_8_bits else (problem.a, problem.b)


def _spans(tensors):
    return ((ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors)),
            (ctypes.c_int64 * len(tensors))(*(t.nbytes for t in tensors)))


def _tensors(problem):
    """What is read and what is written; h in fp32, as the tensor cores' path has it."""
    if problem.row.op == "shrink":
        return problem.x, torch.zeros_like(problem.h, dtype=torch.float32)
    return problem.h.float() if problem.row.op == "expand" else problem.x, problem.y


def prepare(library, problem, overlaps=True, in_fp8=False, x_in_fp8=False):
    """The row's operation; on the weights in fp8, and on x too."""
    source, target = _tensors(problem)
    if x_in_fp8:
        source = problem.x8
    x, y = _tensor(source), _tensor(target)
    scale = _tensor(problem.x_factors) if x_in_fp8 else None
    layers = [library.layer(problem, copy, in_fp8) for copy in range(problem.copies)]
    variant = library.variant(layers[0], x, y)
    segments = library.segments(problem.slots, problem.row.adapters, variant)
    return Op(
        launch=lambda copy: library.launch(layers[copy], variant, x, y, segments, overlaps, scale),
        output=lambda: target, config=str(variant),
        rms_limit=W8A8_RMS if x_in_fp8 else MAX_RELATIVE_RMS,
        close=lambda source=source: library.destroy(layers, segments))  # source lives


def implementations(library, name="loratory"):
    """The floors; ours, with and without programmatic dependent launch; in fp8, where h is
    quantised between the stages if x is."""

    def make(**options):
        return lambda problem: prepare(library, problem, **options)

    def floor(read):
        return lambda problem: Op(launch=read(problem), output=lambda: None)

    both = ("bf16", "fp8")
    return [Implementation("read_node", floor(library.read_node), kind="floor", weights=both),
            Implementation("read_pair", floor(library.read_pair), kind="floor", weights=both),
            Implementation(name, make(), kind="ours", weights=both),
            Implementation(name + "_serial", make(overlaps=False), kind="ours"),
            Implementation(name + "_fp8", make(in_fp8=True), kind="ours", weights=("fp8",)),
            Implementation(name + "_w8a8", make(in_fp8=True, x_in_fp8=True), kind="ours",
                           weights=("fp8",))]
