#include "scheduler_sim/cost/lora_grid.hpp"

#include <algorithm>
#include <map>

#include "reference/base/integers.hpp"

namespace loratory::sim {
namespace {

struct Tiles {
  static constexpr int64_t shrink_rows = 32, shrink_ranks = 16;
  static constexpr int64_t expand_rows = 64, expand_columns = 128;
  static constexpr int64_t split_k = 8, split_k_small = 64, small_batch = 128;
};

}  // namespace

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
    shrinks_ += slices * double(ceil_div(max_lora_rank, Tiles::shrink_ranks));
    expands_ += slices * double(ceil_div(group.widest, Tiles::expand_columns));
  }
}

double LoraGrid::shrink_blocks(int64_t num_tokens) const {
  const int64_t splits = num_tokens < Tiles::small_batch ? Tiles::split_k_small : Tiles::split_k;
  return shrinks_ * double(splits * ceil_div(num_tokens, Tiles::shrink_rows));
}

double LoraGrid::expand_blocks(int64_t num_tokens) const {
  return expands_ * double(ceil_div(num_tokens, Tiles::expand_rows));
}

}  // namespace loratory::sim
