#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/kernels/lora_params.hpp"
#include "gpu/kernels/lora_shape.hpp"

// How the work of a launch is divided: plain integers, the same on the host and on the device.

namespace loratory::gpu {

/// Mostly by 1: a division takes 40 instructions.
LORATORY_BOTH inline uint32_t quotient(uint32_t a, uint32_t b) { return b == 1 ? a : a / b; }

/// Where the share of one of `num` begins.
LORATORY_BOTH inline uint32_t share(uint32_t count, uint32_t one, uint32_t num) {
  const uint32_t each = quotient(count, num);
  return one * each + std::min(one, count - each * num);
}

/// The items of one unit: `whole` is a segment part and, where slices are not fused, a slice.
struct UnitItems {
  uint32_t whole, first, end;
};

/// The work of a launch in items, and those of one cluster: an equal share of all, in a row, so
/// that it meets few segments. Item i belongs to whole i / items_each: a block of ranks, or as many
/// columns as a cluster makes at once.
struct WorkList {
  uint32_t slices_each, items_each;
  uint32_t first, end;

  LORATORY_BOTH WorkList(const LinearParams& p, uint32_t num_segments, uint32_t cluster,
                         uint32_t num_clusters, LoraStage stage) {
    const uint32_t num_parts = num_segments * p.segment_parts;
    const bool fuses = fuses_slices(p, num_parts, num_clusters, stage);
    slices_each = fuses ? p.num_slices : 1;
    items_each = fuses ? p.num_items : p.max_items;
    uint32_t all = num_parts * items_each * (fuses ? 1 : p.num_slices);
    if (stage == LoraStage::expand && 2 * all <= p.num_sms) {  // halves: an SM takes long for one
      items_each *= 2;
      all *= 2;
    }
    first = share(all, cluster, num_clusters);
    end = share(all, cluster + 1, num_clusters);
  }

  /// The unit that begins with an item of this share; one_item: no larger.
  LORATORY_BOTH UnitItems unit_at(uint32_t item, bool one_item) const {
    const uint32_t whole = quotient(item, items_each);
    const uint32_t from = item - whole * items_each;
    return {whole, from, one_item ? from + 1 : std::min(items_each, from + end - item)};
  }

 private:
  /// One stage alone: always, for units of one size. Both in one: not while that leaves clusters
  /// idle.
  LORATORY_BOTH static bool fuses_slices(const LinearParams& p, uint32_t num_parts,
                                         uint32_t num_clusters, LoraStage stage) {
    if (stage == LoraStage::shrink) return true;
    if (stage == LoraStage::expand) return p.may_fuse;
    return p.may_fuse && num_parts * p.num_slices > num_clusters;
  }
};

/// Clusters that any step of this launch's shape can give an item: idle ones would keep the next
/// kernel waiting. p.num_sms and the items are set.
inline int64_t most_clusters(LoraStage stage, const LinearParams& p) {
  if (p.max_segments == 0) return INT32_MAX;  // not known
  const bool fuses = stage == LoraStage::shrink || (stage == LoraStage::expand && p.may_fuse);
  const int64_t items = int64_t{p.max_segments} * p.segment_parts *
                        (fuses ? p.num_items : int64_t{p.max_items} * p.num_slices);
  if (stage != LoraStage::expand) return items;
  return std::max(items, std::min<int64_t>(2 * items, p.num_sms));  // halves
}

}  // namespace loratory::gpu
