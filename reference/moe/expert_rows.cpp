#include "reference/moe/expert_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

std::string element(const std::string& place, size_t index) {
  return fmt::format("{}[{}]", place, index);
}

void check_in_range(const std::string& place, size_t index, int64_t value, int64_t low,
                    int64_t end) {
  if (value >= low && value < end) return;
  throw InputError(element(place, index), fmt::format("{} is outside [{}, {})", value, low, end));
}

}  // namespace

int32_t ExpertRows::local_expert(int64_t row) const {
  const int32_t expert = experts[size_t(row)];
  return expert_map.empty() ? expert : expert_map[size_t(expert)];
}

void check_rows(const ExpertRows& rows, int64_t num_experts) {
  const auto k = size_t(rows.experts_per_token);
  if (rows.experts_per_token < 1 || rows.experts.size() % k != 0) {
    throw InputError("moe: experts",
                     fmt::format("{} for {} a token", rows.experts.size(), rows.experts_per_token));
  }
  for (size_t e = 0; e < rows.expert_map.size(); ++e) {
    check_in_range("moe: expert_map", e, rows.expert_map[e], -1, num_experts);
  }
  const auto num_known = rows.expert_map.empty() ? num_experts : int64_t(rows.expert_map.size());
  for (size_t row = 0; row < rows.experts.size(); ++row) {
    check_in_range("moe: experts", row, rows.experts[row], 0, num_known);
    const auto first = rows.experts.begin() + ptrdiff_t(row / k * k);
    const auto here = rows.experts.begin() + ptrdiff_t(row);
    if (std::find(first, here, *here) != here) {
      throw InputError(element("moe: experts", row),
                       fmt::format("expert {} twice for one token", *here));
    }
  }
}

void check_adapters(const TokenAdapters& adapters, const ExpertRows& rows) {
  if (adapters.adapter_enabled.empty()) {
    throw InputError("moe: adapter_enabled", "is empty", "one for each slot, one for slot -1");
  }
  if (int64_t(adapters.slots.size()) != rows.num_tokens()) {
    throw InputError("moe: slots",
                     fmt::format("{} for {} tokens", adapters.slots.size(), rows.num_tokens()));
  }
  check_slots(adapters.slots, adapters.max_loras());
}

std::vector<ExpertTile> single_row_tiles(const ExpertRows& rows, const TokenAdapters& adapters) {
  std::vector<ExpertTile> tiles;
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const int32_t slot = adapters.slots[size_t(rows.token(row))];
    if (slot == kBaseSlot || !adapters.is_enabled(slot)) continue;
    const int32_t expert = rows.local_expert(row);
    if (expert >= 0) tiles.push_back({slot, expert, {row}});
  }
  return tiles;
}

namespace {

// Rows of `slot` at `expert` (its number in the whole model).
std::vector<int32_t> rows_of(const ExpertRows& rows, const TokenAdapters& adapters, int32_t slot,
                             int32_t expert) {
  std::vector<int32_t> out;
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const bool here = adapters.slots[size_t(rows.token(row))] == slot;
    if (here && rows.experts[size_t(row)] == expert) out.push_back(int32_t(row));
  }
  return out;
}

void align_slot(const ExpertRows& rows, const TokenAdapters& adapters, int32_t slot,
                int32_t num_known, AlignedRows& out) {
  int32_t* const ids = out.sorted_token_ids.data() + slot * out.max_padded;
  int32_t* const experts = out.expert_ids.data() + slot * out.max_blocks();
  int64_t used = 0;
  for (int32_t e = 0; e < num_known; ++e) {
    const std::vector<int32_t> members = rows_of(rows, adapters, slot, e);
    std::copy(members.begin(), members.end(), ids + used);
    const auto num_members = int64_t(members.size());
    for (int64_t i = 0; i < num_members; i += out.block_size, used += out.block_size) {
      experts[used / out.block_size] = rows.expert_map.empty() ? e : rows.expert_map[size_t(e)];
    }
  }
  out.num_tokens_post_padded[size_t(slot)] = int32_t(used);
}

}  // namespace

AlignedRows align_rows(const ExpertRows& rows, const TokenAdapters& adapters, int64_t num_experts,
                       int64_t block_size) {
  if (block_size < 1) throw InputError("moe: block_size", "is below 1");
  check_rows(rows, num_experts);
  check_adapters(adapters, rows);
  const auto num_known = rows.expert_map.empty() ? num_experts : int64_t(rows.expert_map.size());
  const int64_t num_used_experts = std::min(rows.num_rows(), num_known);
  AlignedRows out;
  out.block_size = block_size;
  out.max_loras = adapters.max_loras();
  out.num_rows = rows.num_rows();
  out.max_padded = rows.num_rows() + num_used_experts * (block_size - 1);
  out.max_padded = (out.max_padded + block_size - 1) / block_size * block_size;
  out.sorted_token_ids.assign(size_t(out.max_loras * out.max_padded), int32_t(out.num_rows));
  out.expert_ids.assign(size_t(out.max_loras * out.max_blocks()), -1);
  out.num_tokens_post_padded.assign(size_t(out.max_loras), 0);
  for (int32_t slot = 0; slot < adapters.max_loras(); ++slot) {
    if (adapters.is_enabled(slot)) align_slot(rows, adapters, slot, int32_t(num_known), out);
  }
  return out;
}

std::vector<ExpertTile> block_tiles(const AlignedRows& aligned) {
  std::vector<ExpertTile> tiles;
  for (int32_t slot = 0; slot < aligned.max_loras; ++slot) {
    const int64_t num_blocks = aligned.num_tokens_post_padded[size_t(slot)] / aligned.block_size;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int32_t expert = aligned.expert_ids[size_t(slot * aligned.max_blocks() + block)];
      if (expert < 0) continue;
      ExpertTile tile{slot, expert, {}};
      const int64_t begin = slot * aligned.max_padded + block * aligned.block_size;
      for (int64_t i = begin; i < begin + aligned.block_size; ++i) {
        const int32_t row = aligned.sorted_token_ids[size_t(i)];
        if (row < aligned.num_rows) tile.rows.push_back(row);
      }
      if (!tile.rows.empty()) tiles.push_back(tile);
    }
  }
  return tiles;
}

}  // namespace loratory::reference
