"""Punica's BGMV (plain CUDA, of vLLM 0.3.3), as vLLM's add_lora_slice calls it: a buffer of fp32
cleared for each slice, a shrink and an expand. libpunica_bgmv.so is built by get_gpu_peers.sh."""

import ctypes

import torch

from implementation import Implementation, Op, Unsupported
from rows import SCALING

_MOST_TOKENS = 256  # one block a token and column: for decode


class _Punica:
    def __init__(self, peers_dir):
        self._c = ctypes.CDLL(str(peers_dir / "punica" / "libpunica_bgmv.so"))

    def bgmv(self, y, x, w, indices, scale, y_offset=0):
        """y[:, y_offset : y_offset + rows of w] += scale x w^T."""
        num_out, num_in = w.shape[-2:]
        ok = self._c.punica_bgmv(
            ctypes.c_void_p(y.data_ptr()), ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(w.data_ptr()), ctypes.c_void_p(indices.data_ptr()),
            ctypes.c_int64(num_in), ctypes.c_int64(num_out), ctypes.c_int64(y_offset),
            ctypes.c_int64(y.shape[1]), ctypes.c_int64(x.shape[0]), ctypes.c_float(scale),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if not ok:
            raise Unsupported(f"no kernel for {num_in} -> {num_out}")

    def prepare(self, problem):
        row = problem.row
        if row.tokens > _MOST_TOKENS:
            raise Unsupported("a kernel for decode")
        indices = torch.tensor(problem.slots, dtype=torch.int64, device=problem.device)
        h = problem.h.float()

        def launch(copy):
            for i, begin in enumerate(row.offsets[:-1]):
                if row.op != "expand":
                    h[i].zero_()
                    self.bgmv(h[i], problem.x, problem.a_slices[i][copy], indices, 1.0)
                if row.op != "shrink":
                    self.bgmv(problem.y, h[i], problem.b_slices[i][copy], indices, SCALING, begin)

        return Op(launch, lambda: h if row.op == "shrink" else problem.y)


def implementations(peers_dir):
    return [Implementation("punica_bgmv", _Punica(peers_dir).prepare)]
