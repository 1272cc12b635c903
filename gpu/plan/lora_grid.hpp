#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/launch_order.hpp"
#include "gpu/plan/lora_variant.hpp"
#include "gpu/plan/room_of_sm.hpp"
#include "gpu/plan/work_list.hpp"
#include "reference/base/integers.hpp"

namespace loratory::gpu {

/// A kernel of the tensor core path, and how it is launched.
struct KernelLaunch {
  LoraOp op;
  LoraVariant variant;
  LaunchOrder order = LaunchOrder::after_previous;
  bool has_8_bits = false;
  bool has_clusters = true;  ///< the GPU
};

/// The CTAs of a launch.
struct LoraGrid {
  int num_clusters = 0;        ///< that share the work (KernelParams::num_clusters)
  int ctas_of_cluster = 1;     ///< of those that are launched together
  bool balances_load = false;  ///< of clusters: cudaClusterSchedulingPolicyLoadBalancing
};

/// No more clusters than the GPU holds at once, or than there are work items. Expands of a small
/// rank by four warps take equal shares: where some CTAs have two items, all have. Those that are
/// launched together are rounded up to whole clusters; the last ones may have no work.
/// Needs max_segments, the item counts and num_sms of `p`.
inline LoraGrid lora_grid(const KernelLaunch& launch, const KernelParams& p,
                          int64_t clusters_at_once) {
  const KernelOfWork work{launch.op, launch.variant.warps};
  const int64_t items = most_clusters(work, p);
  int64_t clusters = std::min(clusters_at_once, items);
  if (launch.op == LoraOp::expand && launch.variant.warps == 4 && launch.variant.rank_tiles == 1) {
    clusters = ceil_div(items, ceil_div(items, clusters));
  }
  if (launch.has_clusters && spreads_ctas(launch.op, launch.variant, p, launch.has_8_bits)) {
    return {.num_clusters = int(ceil_div<int64_t>(clusters, kSpreadCtas)) * kSpreadCtas,
            .ctas_of_cluster = kSpreadCtas};
  }
  return {.num_clusters = int(clusters),
          .ctas_of_cluster = launch.variant.launched_cluster(),
          .balances_load = launch.op == LoraOp::shrink &&
                           balances_load(launch.variant, p, launch.order, launch.has_8_bits)};
}

}  // namespace loratory::gpu
