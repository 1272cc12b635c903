"""libloratory_c.so (bench/gpu/loratory_c.h) as an implementation that can be timed."""

import ctypes

import torch

from implementation import Implementation, Op, Unsupported

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 3),
                ("strides", ctypes.c_int64 * 3), ("num_axes", ctypes.c_int32),
                ("dtype", ctypes.c_int32)]


class _Slice(ctypes.Structure):
    _fields_ = [("a", _Tensor), ("b", _Tensor), ("ranks", ctypes.c_void_p),
                ("scalings", ctypes.c_void_p)]


class _Variant(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32)
                for name in ("rank_tiles", "token_tiles", "cluster", "aligned")]

    def __str__(self):
        return ", ".join(f"{name} {getattr(self, name)}" for name, _ in self._fields_)


def _tensor(tensor):
    axes = tensor.dim()
    return _Tensor(tensor.data_ptr(), (ctypes.c_int64 * 3)(*tensor.shape),
                   (ctypes.c_int64 * 3)(*tensor.stride()), axes, _DTYPES[tensor.dtype])


def _stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Library:
    def __init__(self, path):
        self._c = ctypes.CDLL(path)
        self._c.loratory_error.restype = ctypes.c_char_p
        for name in ("loratory_linear_create", "loratory_segments_create"):
            getattr(self._c, name).restype = ctypes.c_void_p

    def _check(self, ok):
        if not ok:
            raise RuntimeError(self._c.loratory_error().decode())

    def layer(self, problem, copy):
        """The packed layer over one copy of the weights, as one pointer."""
        row, slices = problem.row, []
        for i, (begin, end) in enumerate(zip(row.offsets, row.offsets[1:])):
            slices.append(_Slice(
                _tensor(problem.a[copy, :, i * row.rank:(i + 1) * row.rank]),
                _tensor(problem.b[copy, :, begin:end]),
                problem.ranks.data_ptr(), problem.scalings.data_ptr()))
        layer = self._c.loratory_linear_create((_Slice * len(slices))(*slices), len(slices))
        self._check(layer)
        return ctypes.c_void_p(layer)

    def variant(self, layer, x, y):
        variant = _Variant()
        self._check(self._c.loratory_linear_variant(
            layer, ctypes.byref(x), ctypes.byref(y), ctypes.byref(variant)) == 0)
        return variant

    def segments(self, slots, num_slots, variant):
        segments = self._c.loratory_segments_create(
            (ctypes.c_int32 * len(slots))(*slots), len(slots), num_slots, ctypes.byref(variant))
        self._check(segments)
        return ctypes.c_void_p(segments)

    def launch(self, layer, variant, x, y, segments, overlaps):
        self._check(self._c.loratory_linear_launch(
            layer, ctypes.byref(variant), ctypes.byref(x), ctypes.byref(y), segments, _stream(),
            int(overlaps)) == 0)

    def destroy(self, layers, segments):
        for layer in layers:
            self._c.loratory_linear_destroy(layer)
        self._c.loratory_segments_destroy(segments)

    def read_node(self, problem):
        """launch(copy): reads what the row's operation reads and writes."""
        row = problem.row
        fixed = {"pair": [problem.x, problem.y, problem.y], "shrink": [problem.x, problem.h],
                 "expand": [problem.h, problem.y, problem.y]}[row.op]

        def launch(copy):
            tensors = [w[copy] for w in (problem.a, problem.b) if w is not None] + fixed
            spans = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
            sizes = (ctypes.c_int64 * len(tensors))(*(t.nbytes for t in tensors))
            self._check(self._c.loratory_read_node(spans, sizes, len(tensors), _stream()) == 0)

        return launch


def implementations(library):
    """The floor; ours with and without programmatic dependent launch."""

    def make(overlaps):
        def prepare(problem):
            if problem.row.op != "pair":
                raise Unsupported(f"lora_{problem.row.op} is not in the library")
            x, y = _tensor(problem.x), _tensor(problem.y)
            layers = [library.layer(problem, copy) for copy in range(problem.copies)]
            variant = library.variant(layers[0], x, y)
            segments = library.segments(problem.slots, problem.row.adapters, variant)
            return Op(
                launch=lambda copy: library.launch(layers[copy], variant, x, y, segments, overlaps),
                output=lambda: problem.y, config=str(variant),
                close=lambda: library.destroy(layers, segments))
        return prepare

    def read_node(problem):
        return Op(launch=library.read_node(problem), output=lambda: None)

    return [Implementation("read_node", read_node, kind="floor"),
            Implementation("loratory", make(True), kind="ours"),
            Implementation("loratory_serial", make(False), kind="ours")]
