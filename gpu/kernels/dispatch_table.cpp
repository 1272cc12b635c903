#include "gpu/kernels/dispatch_table.hpp"

#include <algorithm>
#include <initializer_list>
#include <tuple>

#include "gpu/kernels/lora_params.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

auto order_of(const DispatchEntry& e) {
  return std::tuple(e.stage, e.num_slices, e.num_in, e.max_rank, e.num_tokens);
}

void require(bool ok, const std::string& place, const std::string& rule) {
  if (!ok) throw InputError(place, rule);
}

void check_size(const std::string& place, int64_t size, int64_t largest) {
  require(size >= 1 && size <= largest, place,
          "is " + std::to_string(size) + ", needs 1 to " + std::to_string(largest));
}

void check_one_of(const std::string& place, int value, std::initializer_list<int> allowed) {
  std::string list;
  for (const int one : allowed) list += (list.empty() ? "" : ", ") + std::to_string(one);
  require(std::ranges::find(allowed, value) != allowed.end(), place,
          "is " + std::to_string(value) + ", needs one of " + list);
}

/// The cuts that Shape (lora_shape.hpp) allows; which of them have a kernel, a layer asks.
void check_variant(const std::string& place, const DispatchEntry& entry) {
  const LoraVariant& v = entry.variant;
  check_one_of(place + "rank_tiles", v.rank_tiles, {1, 2, 4, 8});
  check_one_of(place + "token_tiles", v.token_tiles, {1, 4, 8});
  check_one_of(place + "cluster", v.cluster, {1, 2, 4, 8});
  check_one_of(place + "stages", v.stages, {1, 2, 3, 4});
  check_one_of(place + "launches", v.launches, {1, 2});
  if (entry.stage != LoraStage::linear)
    require(v.launches == 1, place + "launches", "must be 1 but in a linear");
  else if (v.is_wide())
    require(v.launches == 2, place + "launches", "must be 2 where token_tiles is above 1");
  require(v.aligned, place + "aligned", "is false, a table is for aligned tensors");
  if (entry.stage == LoraStage::expand) {
    require(v.cluster == 1, place + "cluster", "must be 1: an expand takes no clusters");
    require(v.rank_tiles <= 4, place + "rank_tiles", "must be 1, 2 or 4 in an expand");
  } else if (v.is_wide()) {
    require(v.rank_tiles == 4 || (v.rank_tiles == 8 && v.token_tiles == 8), place + "rank_tiles",
            "must be 4 where token_tiles is above 1, or 8 where it is 8");
    require(v.cluster > 1, place + "cluster", "must be above 1 where token_tiles is");
  } else {
    require(v.rank_tiles <= 4, place + "rank_tiles", "is 8, needs a token_tiles of 8");
  }
}

void check_entry(const std::string& place, const DispatchEntry& entry) {
  check_size(place + "num_slices", entry.num_slices, kMaxSlices);
  if (entry.stage == LoraStage::expand)
    require(entry.num_in == 0, place + "num_in", "has no meaning in an expand");
  else
    check_size(place + "num_in", entry.num_in, INT32_MAX);
  check_size(place + "max_rank", entry.max_rank, 512);
  check_size(place + "num_tokens", entry.num_tokens, INT32_MAX);
  check_variant(place + "variant.", entry);
}

}  // namespace

bool DispatchEntry::covers(const LaunchShape& shape) const {
  return shape.stage == stage && shape.num_slices <= num_slices &&
         (stage == LoraStage::expand || shape.num_in <= num_in) && shape.max_rank <= max_rank &&
         shape.num_tokens <= num_tokens;
}

DispatchTable::DispatchTable(std::vector<DispatchEntry> entries) : entries_(std::move(entries)) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string place = "entries[" + std::to_string(i) + "]";
    check_entry(place + ".", entries_[i]);
    if (i == 0) continue;
    const auto before = order_of(entries_[i - 1]), here = order_of(entries_[i]);
    require(before != here, place, "repeats the entry before it");
    require(before < here, place,
            "is not in order: by stage (linear, shrink, expand), num_slices, num_in, max_rank, "
            "num_tokens");
  }
}

LoraVariant DispatchTable::choose(const LaunchShape& shape) const {
  if (!shape.aligned || !shape.has_clusters) return choose_variant(shape);
  const auto entry =
      std::ranges::find_if(entries_, [&](const DispatchEntry& one) { return one.covers(shape); });
  if (entry == entries_.end()) return choose_variant(shape);
  if (entry->variant.needs_wgmma() && !shape.has_wgmma) return choose_variant(shape);
  const bool needs_workspace = shape.stage == LoraStage::linear && entry->variant.launches == 2;
  return needs_workspace && !shape.has_workspace ? choose_variant(shape) : entry->variant;
}

}  // namespace loratory::gpu
