#include "scheduler_sim/cost/lora_grid.hpp"

#include <algorithm>
#include <map>

#include "reference/base/integers.hpp"

namespace loratory::sim {

LoraGrid::LoraGrid(const ModelSpec& model, const LoraTargets& targets, int tp,
                   int64_t max_lora_rank, int64_t max_loras) {
  if (max_loras == 0) return;
  struct Group {
    int64_t slices = 0, widest = 0, launches = 0;
  };
  std::map<int, Group> groups;  // modules that share a launch
  for (const ModuleShape& shape : lora_shapes(model, targets, tp)) {
    Group& group = groups[shape.group];
    ++group.slices;
    group.widest = std::max(group.widest, shape.out);
    group.launches = shape.count;
  }
  const auto slots = double(max_loras + 1);
  for (const auto& [id, group] : groups) {
    const double slices = slots * double(group.slices) * double(group.launches);
    shrinks_ += slices * double(ceil_div(max_lora_rank, LoraTiles::kShrinkRanks));
    expands_ += slices * double(ceil_div(group.widest, LoraTiles::kExpandColumns));
  }
}

double LoraGrid::shrink_blocks(int64_t num_tokens) const {
  const int64_t row_tiles = ceil_div(num_tokens, LoraTiles::kShrinkRows);
  return shrinks_ * double(LoraTiles::splits(num_tokens) * row_tiles);
}

double LoraGrid::expand_blocks(int64_t num_tokens) const {
  return expands_ * double(ceil_div(num_tokens, LoraTiles::kExpandRows));
}

}  // namespace loratory::sim
