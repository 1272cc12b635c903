#include <fmt/format.h>

#include <string>

#include "reference/layout/partition.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/lora/linear.hpp"
#include "reference/lora/row_arithmetic.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

void check_expand(const ExpandArgs& args) {
  const auto num_tokens = int64_t(args.slots.size());
  check_shape("expand: h", args.h, {int64_t(args.slices.size()), num_tokens, kAnySize});
  check_wide_dtype("expand: h", args.h.dtype);
  int64_t num_columns = 0;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpandSlice& slice = args.slices[i];
    const std::string place = fmt::format("expand: slices[{}]", i);
    check_shape(place + ".b", slice.b, {max_loras(args), kAnySize, kAnySize});
    check_wide_dtype(place + ".b", slice.b.dtype);
    check_ranks(place + ".ranks", slice.ranks, max_loras(args),
                std::min(slice.b.size(2), args.h.size(2)));
    check_scalings(place + ".scalings", slice.scalings, max_loras(args));
    num_columns += slice.b.size(1);
  }
  check_output("expand", args.y, num_tokens, args.offset_start, num_columns);
  check_slots(args.slots, int32_t(max_loras(args)));
}

namespace {

// Columns of one slice for the rows of one slot, few enough to share the work among threads.
struct ExpandItem {
  ExpandRows columns;
  std::span<const int32_t> rows;
};

void append_items(const ExpandRows& slice, std::span<const int32_t> rows,
                  std::vector<ExpandItem>& items) {
  constexpr int64_t kColumnsPerItem = 256;  // their part of B stays in the L1 cache
  for (int64_t first = 0; first < slice.b.size(0); first += kColumnsPerItem) {
    ExpandItem item{slice, rows};
    item.columns.b = slice.b.part(0, first, std::min(first + kColumnsPerItem, slice.b.size(0)));
    item.columns.offset += first;
    items.push_back(std::move(item));
  }
}

std::vector<ExpandItem> work(const ExpandArgs& args, const Partition& tokens_of) {
  std::vector<ExpandItem> items;
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const ExpandSlice& slice = args.slices[i];
    for (const auto& [slot, tokens] : tokens_of) {
      if (slice.ranks[slot] == 0) continue;
      append_items({.h = args.h[int64_t(i)],
                    .b = slice.b[slot],
                    .rank = slice.ranks[slot],
                    .scaling = slice.scalings[slot],
                    .offset = offset,
                    .add_inputs = args.add_inputs,
                    .mode = args.mode,
                    .y = args.y},
                   tokens, items);
    }
    offset += slice.b.size(1);
  }
  return items;
}

}  // namespace

void expand(const ExpandArgs& args) {
  check_expand(args);
  const Partition tokens_of = partition(make_batch_layout(args.slots, int32_t(max_loras(args))));
  const std::vector<ExpandItem> items = work(args, tokens_of);
  const int64_t products_per_row = args.h.size(2) * args.y.size(1);
#pragma omp parallel for schedule(dynamic) if (int64_t(args.slots.size()) * products_per_row >= \
                                               kMinParallelProducts)
  for (const ExpandItem& item : items) expand_rows(item.columns, item.rows);
}

}  // namespace loratory::reference
