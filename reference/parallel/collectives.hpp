#pragma once

#include <cstdint>
#include <vector>

#include "reference/numerics/tensor.hpp"

// What P processes of a tensor-parallel group tell each other, as functions of all their tensors
// at once: parts[p] is what tp_rank p gives, result[p] what it gets. No threads, no messages.
//
// Common to all functions here:
// Shapes   all parts alike (all_gather: alike but for the axis), row-major without gaps, one dtype.
// Errors   InputError: no parts, shapes or dtypes that differ, an axis that does not exist or that
//          P does not divide (the message names both numbers).
// Repeats  bitwise. The order is that of the tp_ranks and no other. P = 1: the part, bit for bit.
// Cost     O(P · elements).

namespace loratory::reference {

/// Where a sum over tp_ranks is rounded to the dtype of the parts.
enum class ReduceRounding : uint8_t {
  at_end,    ///< sum in fp32, one rounding
  each_sum,  ///< after every addition, as NCCL does with 16-bit buffers
};

/// parts[0] + parts[1] + ... + parts[P-1], elementwise in fp32, p ascending from parts[0] (not
/// from 0, which would turn -0.0 into +0.0). The same sum for every tp_rank.
std::vector<Tensor> all_reduce(const std::vector<Tensor>& parts,
                               ReduceRounding rounding = ReduceRounding::at_end);

/// The parts side by side along `axis`, for every tp_rank. Copies bits.
std::vector<Tensor> all_gather(const std::vector<Tensor>& parts, int64_t axis);

/// tp_rank p gets part p of the sum cut along `axis`: split(all_reduce(parts)[0], P, axis).
std::vector<Tensor> reduce_scatter(const std::vector<Tensor>& parts, int64_t axis,
                                   ReduceRounding rounding = ReduceRounding::at_end);

/// `whole` cut into P equal parts along `axis`. Copies bits.
std::vector<Tensor> split(const Tensor& whole, int64_t num_tp_ranks, int64_t axis);

}  // namespace loratory::reference
