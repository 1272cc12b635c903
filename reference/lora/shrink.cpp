#include <fmt/format.h>

#include <string>

#include "reference/layout/partition.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/linear.hpp"
#include "reference/lora/row_arithmetic.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

void check_shrink(const ShrinkArgs& args) {
  const auto num_tokens = int64_t(args.slots.size());
  check_shape("shrink: x", args.x, {num_tokens, kAnySize});
  check_wide_dtype("shrink: x", args.x.dtype);
  check_shape("shrink: h", args.h, {int64_t(args.slices.size()), num_tokens, kAnySize});
  check_wide_dtype("shrink: h", args.h.dtype);
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ShrinkSlice& slice = args.slices[i];
    const std::string place = fmt::format("shrink: slices[{}]", i);
    check_shape(place + ".a", slice.a, {max_loras(args), kAnySize, args.x.size(1)});
    check_same_dtype(place + ".a", slice.a.dtype, "x", args.x.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras(args),
                std::min(slice.a.size(1), args.h.size(2)));
  }
  check_slots(args.slots, int32_t(max_loras(args)));
}

namespace {

// Rows of one slot in one slice, few enough to share the work among threads.
struct ShrinkItem {
  ShrinkRows slice;
  std::span<const int32_t> rows;
};

std::vector<ShrinkItem> work(const ShrinkArgs& args, const Partition& tokens_of) {
  constexpr size_t kRowsPerItem = 64;  // reading A costs as much as a few rows
  std::vector<ShrinkItem> items;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    for (const auto& [slot, tokens] : tokens_of) {
      const ShrinkSlice& slice = args.slices[i];
      if (slice.ranks[slot] == 0) continue;
      const ShrinkRows rows_of{args.x, slice.a[slot], slice.ranks[slot], args.h[int64_t(i)]};
      for (size_t begin = 0; begin < tokens.size(); begin += kRowsPerItem) {
        const size_t count = std::min(kRowsPerItem, tokens.size() - begin);
        items.push_back({rows_of, std::span(tokens).subspan(begin, count)});
      }
    }
  }
  return items;
}

}  // namespace

void shrink(const ShrinkArgs& args) {
  check_shrink(args);
  const Partition tokens_of = partition(make_batch_layout(args.slots, int32_t(max_loras(args))));
  const std::vector<ShrinkItem> items = work(args, tokens_of);
  const int64_t products_per_row = args.h.size(2) * args.x.size(1);
#pragma omp parallel for schedule(dynamic) if (int64_t(args.slots.size()) * products_per_row >= \
                                               kMinParallelProducts)
  for (const ShrinkItem& item : items) shrink_rows(item.slice, item.rows);
}

}  // namespace loratory::reference
