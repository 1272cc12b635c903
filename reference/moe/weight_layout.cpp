#include "reference/moe/weight_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"

namespace loratory::reference {
namespace {

// Every index of `view`, into `out` at the same index.
void copy_axis(const ConstTensorView& view, const TensorView& out) {
  if (view.num_axes() == 0) {
    std::copy_n(view.data, size_bytes(view.dtype), out.data);
    return;
  }
  for (int64_t i = 0; i < view.size(0); ++i) copy_axis(view[i], out[i]);
}

void require_even(std::string_view place, int64_t size) {
  if (size % 2 == 0) return;
  throw InputError(place, fmt::format("has an odd number of rows, {}", size));
}

}  // namespace

Tensor copy_of(const ConstTensorView& view) {
  Tensor out(view.dtype, view.shape);
  copy_axis(view, out.view());
  return out;
}

ConstTensorView narrow(const ConstTensorView& view, size_t axis, int64_t begin, int64_t size) {
  const bool axis_exists = axis < view.num_axes();
  if (!axis_exists || begin < 0 || size < 0 || begin + size > view.size(axis)) {
    throw InputError("narrow",
                     fmt::format("[{}, {}) is not inside axis {}", begin, begin + size, axis));
  }
  ConstTensorView part = view;
  part.data += begin * view.strides[axis] * int64_t(size_bytes(view.dtype));
  part.shape[axis] = size;
  return part;
}

ConstTensorView share_experts(const ConstTensorView& one, size_t axis, int64_t num_experts) {
  if (axis >= one.num_axes() || one.size(axis) != 1) {
    throw InputError("share_experts", "the axis of experts must have size 1");
  }
  ConstTensorView all = one;
  all.shape[axis] = num_experts;
  all.strides[axis] = 0;
  return all;
}

GateUp split_gate_up(const ConstTensorView& fused, GateUpLayout layout) {
  check_shape("split_gate_up", fused, {kAnySize, kAnySize, kAnySize});
  require_even("split_gate_up", fused.size(1));
  const int64_t inner = fused.size(1) / 2;
  GateUp parts{narrow(fused, 1, 0, inner), narrow(fused, 1, inner, inner)};
  if (layout == GateUpLayout::halves) return parts;
  parts.up.data = fused.data + fused.strides[1] * int64_t(size_bytes(fused.dtype));
  parts.gate.strides[1] = parts.up.strides[1] = 2 * fused.strides[1];
  return parts;
}

Tensor join_gate_up(const GateUp& parts, GateUpLayout layout) {
  check_shape("join_gate_up: gate", parts.gate, {kAnySize, kAnySize, kAnySize});
  check_shape("join_gate_up: up", parts.up,
              {parts.gate.size(0), parts.gate.size(1), parts.gate.size(2)});
  check_same_dtype("join_gate_up: up", parts.up.dtype, "gate", parts.gate.dtype);
  const int64_t inner = parts.gate.size(1);
  Tensor fused(parts.gate.dtype, {parts.gate.size(0), 2 * inner, parts.gate.size(2)});
  const bool halves = layout == GateUpLayout::halves;
  for (int64_t e = 0; e < parts.gate.size(0); ++e) {
    for (int64_t n = 0; n < inner; ++n) {
      copy_axis(parts.gate[e][n], fused.view()[e][halves ? n : 2 * n]);
      copy_axis(parts.up[e][n], fused.view()[e][halves ? inner + n : 2 * n + 1]);
    }
  }
  return fused;
}

Tensor shard_gate_up(const ConstTensorView& fused, GateUpLayout layout, int64_t num_tp_ranks,
                     int64_t tp_rank) {
  const GateUp parts = split_gate_up(fused, layout);
  const int64_t inner = parts.gate.size(1);
  if (num_tp_ranks < 1 || inner % num_tp_ranks != 0) {
    throw InputError("shard_gate_up",
                     fmt::format("{} tp_ranks do not divide {} rows", num_tp_ranks, inner));
  }
  const int64_t size = inner / num_tp_ranks, begin = tp_rank * size;
  return join_gate_up({narrow(parts.gate, 1, begin, size), narrow(parts.up, 1, begin, size)},
                      layout);
}

BlockDiagonal to_block_diagonal(const GateUp& a, const GateUp& b) {
  const int64_t rank = a.gate.size(1);
  check_shape("to_block_diagonal: b.gate", b.gate, {a.gate.size(0), kAnySize, rank});
  check_shape("to_block_diagonal: b.up", b.up, {a.gate.size(0), b.gate.size(1), rank});
  const int64_t num_experts = b.gate.size(0), inner = b.gate.size(1);
  BlockDiagonal out{join_gate_up(a, GateUpLayout::halves),
                    Tensor(b.gate.dtype, {num_experts, 2 * inner, 2 * rank})};
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int64_t n = 0; n < inner; ++n) {
      for (int64_t j = 0; j < rank; ++j) {
        out.b.set(b.gate.get(e, n, j), e, n, j);
        out.b.set(b.up.get(e, n, j), e, inner + n, rank + j);
      }
    }
  }
  return out;
}

GateUp blocks_of(const ConstTensorView& b) {
  check_shape("blocks_of", b, {kAnySize, kAnySize, kAnySize});
  require_even("blocks_of", b.size(1));
  if (b.size(2) % 2 != 0) throw InputError("blocks_of", "has an odd number of rank columns");
  const int64_t inner = b.size(1) / 2, rank = b.size(2) / 2;
  for (int64_t e = 0; e < b.size(0); ++e) {
    for (int64_t n = 0; n < 2 * inner; ++n) {
      for (int64_t j = 0; j < rank; ++j) {
        if (b.get(e, n, n < inner ? rank + j : j) == 0) continue;
        throw InputError("blocks_of",
                         fmt::format("row {} of expert {} reaches into the other block", n, e));
      }
    }
  }
  return {narrow(narrow(b, 1, 0, inner), 2, 0, rank),
          narrow(narrow(b, 1, inner, inner), 2, rank, rank)};
}

}  // namespace loratory::reference
