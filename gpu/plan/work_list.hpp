#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/kernel_shape.hpp"

// The tile scheduler: how the work of a launch is divided among its clusters. Plain integer
// arithmetic, the same on the host and on the device.

namespace loratory::gpu {

/// Where share `index` of `num` equal shares begins.
LORATORY_HOST_DEVICE inline uint32_t share(uint32_t count, uint32_t index, const Divisor& num) {
  const uint32_t each = quotient(count, num);
  return index * each + std::min(index, count - each * uint32_t(num));
}

/// Consecutive work items of one problem: a segment part with all slices or with one of them.
struct ItemRange {
  uint32_t problem, first, end;
};

/// A kernel, as far as it decides how work is divided.
struct KernelOfWork {
  LoraOp op;
  int warps = 8;  ///< of a CTA

  /// Where SMs would be idle, an item's columns are cut in half: that is one of four warps.
  LORATORY_HOST_DEVICE constexpr bool may_halve_items() const {
    return !shrinks(op) && op != LoraOp::gated_expand_shrink && warps == 8;
  }
};

/// All work items of a launch in order, and the share of one cluster. A work item is a segment part
/// and a block of its ranks (shrink), or as many of its columns as a cluster computes at once. Each
/// share is equal and contiguous, so that a cluster meets few segments. Item i belongs to problem
/// i / items_per_problem().
class WorkList {
 public:
  uint32_t first, end;  ///< of this cluster's share

  LORATORY_HOST_DEVICE WorkList(const KernelParams& params, uint32_t num_segments, uint32_t cluster,
                                const KernelOfWork& kernel)
      : p(params) {
    const uint32_t num_parts =
        shrinks(kernel.op) ? num_segments : num_segments * uint32_t(p.parts_per_segment);
    fuses_slices_ = fuses_slices(p, num_parts, kernel.op);
    uint32_t all = num_parts * uint32_t(items()) * (fuses_slices_ ? 1 : uint32_t(p.num_slices));
    halves_ = kernel.may_halve_items() && 2 * all <= p.num_sms ? 1 : 0;  // for twice as many SMs
    all <<= halves_;
    first = share(all, cluster, p.num_clusters);
    end = share(all, cluster + 1, p.num_clusters);
  }

  /// A problem is a segment part with all slices, or with one of them.
  LORATORY_HOST_DEVICE bool fuses_slices() const { return fuses_slices_; }
  LORATORY_HOST_DEVICE uint32_t items_per_problem() const { return uint32_t(items()) << halves_; }
  /// Where item `index` of a problem begins in `count` column tiles.
  LORATORY_HOST_DEVICE uint32_t share_of_item(uint32_t count, uint32_t index) const {
    const uint32_t each = quotient(count >> halves_, items());
    return index * each + std::min(index, count - each * items_per_problem());
  }

  /// The items from `item` to the end of its problem or of the share; `one_item`: that one alone.
  LORATORY_HOST_DEVICE ItemRange item_range_at(uint32_t item, bool one_item) const {
    const uint32_t problem = quotient(item >> halves_, items());
    const uint32_t from = item - problem * items_per_problem();
    return {problem, from, one_item ? from + 1 : std::min(items_per_problem(), from + end - item)};
  }

 private:
  const KernelParams& p;
  bool fuses_slices_;
  uint32_t halves_;

  /// Of a problem, before they are halved. Looked up anew: a divisor takes three registers.
  LORATORY_HOST_DEVICE const Divisor& items() const {
    return fuses_slices_ ? p.num_items : p.max_items;
  }

  /// A shrink always processes all slices together, which makes items of one size; so does an
  /// expand if h of all of them fits. A linear does only once that leaves no cluster idle.
  LORATORY_HOST_DEVICE static bool fuses_slices(const KernelParams& p, uint32_t num_parts,
                                                LoraOp op) {
    if (op == LoraOp::shrink) return true;
    if (!shrinks(op)) return p.all_slices_fit;
    return p.all_slices_fit && num_parts * uint32_t(p.num_slices) > uint32_t(p.num_clusters);
  }
};

/// The most work items, before they are halved, that a step of this launch's shape can have. Needs
/// the item counts.
inline int64_t most_items(LoraOp op, const KernelParams& p) {
  if (p.max_segments == 0) return INT32_MAX;  // unknown
  const bool fuses = op == LoraOp::shrink || (!shrinks(op) && p.all_slices_fit);
  // Rows that no segment covers are cut like those of one more adapter.
  const int64_t num_segments = int64_t{p.max_segments} + (is_gated(op) ? 1 : 0);
  const int64_t of_part =
      fuses ? int64_t{p.num_items} : int64_t{p.max_items} * int64_t{p.num_slices};
  return num_segments * p.parts_per_segment * of_part;
}

/// The most clusters that such a step can give a work item. More would be idle and keep the next
/// kernel waiting. Needs p.num_sms too.
inline int64_t most_clusters(const KernelOfWork& kernel, const KernelParams& p) {
  const int64_t items = most_items(kernel.op, p);
  if (!kernel.may_halve_items()) return items;
  return std::max(items, std::min<int64_t>(2 * items, p.num_sms));
}

}  // namespace loratory::gpu
