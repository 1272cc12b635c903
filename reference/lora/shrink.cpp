#include <string>

#include "reference/layout/partition.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/linear.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {
namespace {

int64_t max_loras(const ShrinkArgs& args) {
  return args.slices.empty() ? 0 : int64_t(args.slices[0].ranks.size());
}

void check(const ShrinkArgs& args) {
  const auto num_tokens = int64_t(args.slots.size());
  check_shape("shrink: x", args.x, {num_tokens, kAnySize});
  check_wide_dtype("shrink: x", args.x.dtype);
  check_shape("shrink: h", args.h, {int64_t(args.slices.size()), num_tokens, kAnySize});
  check_wide_dtype("shrink: h", args.h.dtype);
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ShrinkSlice& slice = args.slices[i];
    const std::string place = "shrink: slices[" + std::to_string(i) + "]";
    check_shape(place + ".a", slice.a, {max_loras(args), kAnySize, args.x.size(1)});
    check_same_dtype(place + ".a", slice.a.dtype, "x", args.x.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras(args),
                std::min(slice.a.size(1), args.h.size(2)));
  }
  check_slots(args.slots, int32_t(max_loras(args)));
}

void shrink_segment(const ConstTensorView& x, const Matrix<float>& a,
                    const std::vector<int32_t>& tokens, const TensorView& h) {
  const auto num_tokens = int64_t(tokens.size());
#pragma omp parallel for if (num_tokens * a.size() >= kMinParallelProducts)
  for (int64_t i = 0; i < num_tokens; ++i) {
    const Vector<float> h_t = multiply_in_order(a, read_vector<float>(x[tokens[i]], a.cols()));
    for (Eigen::Index j = 0; j < h_t.size(); ++j) h.set(h_t(j), tokens[i], j);
  }
}

}  // namespace

void shrink(const ShrinkArgs& args) {
  check(args);
  const Partition tokens_of = partition(make_batch_layout(args.slots, int32_t(max_loras(args))));
  for (size_t i = 0; i < args.slices.size(); ++i) {
    for (const auto& [slot, tokens] : tokens_of) {
      const ShrinkSlice& slice = args.slices[i];
      if (slice.ranks[slot] == 0) continue;
      const auto a = read_matrix<float>(slice.a[slot], slice.ranks[slot], args.x.size(1));
      shrink_segment(args.x, a, tokens, args.h[int64_t(i)]);
    }
  }
}

}  // namespace loratory::reference
