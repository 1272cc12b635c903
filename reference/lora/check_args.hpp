#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "reference/lora/linear.hpp"

// Checks shared by the functions of this folder; each throws InputError(place, rule).

namespace loratory::reference {

/// L of the arguments of a shrink or an expand; 0 without slices.
template <typename Args>
int64_t max_loras(const Args& args) {
  return args.slices.empty() ? 0 : int64_t(args.slices[0].ranks.size());
}

/// As many axes as `shape` has, each of the size given; kAnySize asks nothing of an axis.
inline constexpr int64_t kAnySize = -1;
void check_shape(std::string_view place, const ConstTensorView& view,
                 std::initializer_list<int64_t> shape);
void check_shape(std::string_view place, const ConstTensorView& view,
                 std::span<const int64_t> shape);

/// f32, f16 or bf16.
void check_wide_dtype(std::string_view place, Dtype dtype);
void check_same_dtype(std::string_view place, Dtype dtype, std::string_view other, Dtype expected);

/// One rank for each slot, each in [0, max_rank].
void check_ranks(std::string_view place, std::span<const int32_t> ranks, int64_t max_loras,
                 int64_t max_rank);
void check_scalings(std::string_view place, std::span<const float> scalings, int64_t max_loras);

/// Everything that shrink() checks before it writes.
void check_shrink(const ShrinkArgs& args);

/// Everything that lora_linear() checks before it writes: its shrink, its expand, biases, and that
/// A and B agree.
void check_linear(const LinearArgs& args);

/// Everything that lora_embedding() checks before it writes.
void check_embedding(const EmbeddingArgs& args);

/// y of an expand: `num_columns` of all slices from offset_start on.
void check_output(std::string_view function, const TensorView& y, int64_t num_tokens,
                  int64_t offset_start, int64_t num_columns);

/// Everything that expand() checks before it writes.
void check_expand(const ExpandArgs& args);

}  // namespace loratory::reference
