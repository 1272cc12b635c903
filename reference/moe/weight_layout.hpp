#pragma once

#include <cstdint>

#include "reference/numerics/tensor.hpp"

// The ways in which checkpoints and engines lay out the weights of experts, and back. E experts
// here, X any number of columns.
//
// Errors   InputError: a shape that the layout does not have.
// Views    last as long as what they show; copies keep the bits.

namespace loratory::reference {

/// A row-major copy of what a view shows.
Tensor copy_of(const ConstTensorView& view);

/// Indices [begin, begin + size) of one axis.
ConstTensorView narrow(const ConstTensorView& view, size_t axis, int64_t begin, int64_t size);

/// One expert's weights for all: axis `axis` of size 1 becomes num_experts with stride 0.
/// Source   statements [1.38]; TokenSpeed's "shared outer" adapters.
ConstTensorView share_experts(const ConstTensorView& one, size_t axis, int64_t num_experts);

/// How gate and up share the rows of one tensor [E, 2I, X].
enum class GateUpLayout : uint8_t {
  halves,       ///< gate, then up
  interleaved,  ///< rows 0::2 gate, 1::2 up: gpt-oss
};

struct GateUp {
  ConstTensorView gate, up;  ///< [E, I, X]
};

GateUp split_gate_up(const ConstTensorView& fused, GateUpLayout layout);
Tensor join_gate_up(const GateUp& parts, GateUpLayout layout);

/// The rows of tp_rank p of P in the same layout: split, rows [p·I/P, (p+1)·I/P) of each, joined.
/// Source   statements [1.39], [3.16], [3.18].
Tensor shard_gate_up(const ConstTensorView& fused, GateUpLayout layout, int64_t num_tp_ranks,
                     int64_t tp_rank);

/// TokenSpeed's layout of gate and up as one slice of rank 2r: A [E, 2r, H] holds A of gate above
/// A of up; B [E, 2I, 2r] is block diagonal. For tests of layouts; the two slices are what counts.
struct BlockDiagonal {
  Tensor a, b;
};

/// a [E, r, H], b [E, I, r] of gate and of up. Source statements [1.40].
BlockDiagonal to_block_diagonal(const GateUp& a, const GateUp& b);

/// B's blocks [E, I, r]. Errors: also a number that is not 0 outside of the blocks.
GateUp blocks_of(const ConstTensorView& block_diagonal_b);

}  // namespace loratory::reference
