#pragma once

#include <cstdint>

#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/launch_order.hpp"
#include "gpu/plan/lora_variant.hpp"
#include "gpu/plan/work_list.hpp"

namespace loratory::gpu {

/// Whether no two CTAs of a wide shrink may share an SM, although they fit. CTAs of the previous
/// kernel end one by one, and clusters start where there is room first: two on one SM, beside an SM
/// that is idle. Clusters that take more of the SMs would start too late, and so would shrinks of
/// up to 32 ranks. Measured on an H200: docs/kernel_measurements.md, CTAs kept apart.
/// Needs the item counts and num_sms of `p`.
inline bool keeps_ctas_apart(const LoraVariant& variant, const KernelParams& p) {
  constexpr int32_t kLongRows = 8192;  // columns of x; none between 4,096 and 14,336 was timed
  if (variant.sums_strips() || variant.cluster == 1 || p.max_rank * int32_t(p.num_slices) <= 32) {
    return false;
  }
  const int64_t ctas = most_items(LoraOp::shrink, p) * variant.cluster;
  return double(ctas) <= (p.num_in > kLongRows ? 0.75 : 0.6) * p.num_sms;
}

/// Whether no four CTAs of four warps of an expand of 8-bit B may share an SM, although they fit.
/// Few of them would crowd on some SMs, beside others that are idle. Measured on an H200:
/// docs/kernel_measurements.md, 8 bits.
inline bool keeps_fourth_cta_away(LoraOp op, const LoraVariant& variant, int64_t ctas,
                                  int64_t num_sms) {
  return op == LoraOp::expand && variant.warps == 4 && 4 * ctas <= num_sms;
}

/// CTAs of an expand that are launched as one cluster where spreads_ctas().
inline constexpr int kSpreadCtas = 8;

/// Whether CTAs of a narrow expand, which share nothing, are launched as clusters all the same.
/// Those of a cluster go to SMs of their own. Single ones meet on an SM, up to three, beside SMs
/// that are idle. With more rows, segments, columns or ranks, and where every row has an adapter of
/// its own, clusters start too late; ranks from 17 to 32 and 8-bit weights gain nothing.
/// Measured on an H200: docs/kernel_measurements.md, CTAs of an expand.
/// Needs max_segments, num_rows, the item counts and num_sms of `p`.
inline bool spreads_ctas(LoraOp op, const LoraVariant& variant, const KernelParams& p,
                         bool has_8_bits) {
  constexpr int32_t kMostRows = 16, kMostSegments = 6;  // four adapters
  const bool is_narrow = op == LoraOp::expand && variant.token_tiles == 1 && variant.warps == 8;
  if (!is_narrow || has_8_bits || p.num_experts > 1 || p.num_rows > kMostRows) return false;
  const bool are_few =
      p.max_segments == 1 || (p.max_segments <= kMostSegments && p.max_segments < p.num_rows);
  const bool gains = p.max_rank <= 16 || (p.max_rank > 32 && p.max_rank <= 64);
  return are_few && gains && 4 * most_items(op, p) <= 3 * int64_t{p.num_sms};
}

/// Of 8-bit A, up to 32 rows: about one to two CTAs for each SM gain where each row has an adapter
/// of its own, or those of three slices; of large ranks up to three. Two slices lose, and so does
/// rank 16 of few adapters.
inline bool balances_8_bits(const LoraVariant& variant, const KernelParams& p, double ctas_of_sm) {
  const bool has_one_row_each = p.num_rows == p.max_segments;
  const int slices = int(p.num_slices);
  const bool may_gain = p.num_rows <= 32 && slices != 2 && (has_one_row_each || slices > 2) &&
                        (p.max_rank > 16 || variant.cluster < 8);
  return may_gain && ctas_of_sm >= (has_one_row_each ? 0.9 : 1.5) &&
         ctas_of_sm <= (p.max_rank > 64 ? 3 : 2.2);
}

/// Whether the CTAs of a narrow shrink's clusters may share SMs (load balancing), rather than go to
/// SMs of their own. Behind a product of the same x, or where there are many of them, a cluster
/// then starts sooner. Elsewhere they would crowd on a few SMs while others are idle. Experts were
/// not measured. Measured on an H200: docs/kernel_measurements.md, clusters of a shrink.
/// Needs max_segments, num_rows, the item counts and num_sms of `p`.
inline bool balances_load(const LoraVariant& variant, const KernelParams& p, LaunchOrder order,
                          bool has_8_bits) {
  constexpr double kManyCtasOfSm = 1.9;
  if (variant.token_tiles > 1 || variant.launched_cluster() == 1 || p.num_experts > 1) return false;
  if (order == LaunchOrder::x_is_ready) return true;
  if (p.max_segments == 0) return false;  // unknown
  const double ctas_of_sm =
      double(most_items(LoraOp::shrink, p) * variant.cluster) / double(p.num_sms);
  return has_8_bits ? balances_8_bits(variant, p, ctas_of_sm) : ctas_of_sm >= kManyCtasOfSm;
}

/// Whether CTAs of a shrink in one stage leave the room to widen 8-bit A ahead. Of 64 ranks at a
/// time one CTA an SM does; up to 24 rows of one rank block gain by it only where CTAs share SMs.
inline bool has_room_to_widen(const LoraVariant& variant, const KernelParams& p, int64_t ctas) {
  constexpr int32_t kMostRows = 24;
  if (variant.rank_tiles == 2) return 8 * ctas <= 3 * int64_t{p.num_sms};
  const double ctas_of_sm = double(ctas) / double(p.num_sms);
  return ctas_of_sm <= 1 &&
         (p.max_rank > 64 || p.num_rows > kMostRows || balances_8_bits(variant, p, ctas_of_sm));
}

/// Whether a kernel that may run beside the previous one widens 8-bit weights meanwhile. That takes
/// shared memory, which must leave room for the CTAs of both neighbours: it pays where an SM has
/// one or two of this kernel's, or few of a shrink in one stage. A shrink behind a product of x has
/// no wait to fill: up to 16 rows it gains by asking for x first. Measured on an H200:
/// docs/kernel_measurements.md, 8 bits.
/// Needs max_segments, num_rows, the item counts and num_sms of `p`.
inline bool widens_ahead(LoraOp op, const LoraVariant& variant, const KernelParams& p,
                         LaunchOrder order) {
  constexpr int32_t kFewRows = 16;
  if (order == LaunchOrder::x_is_ready && p.num_rows <= kFewRows) return false;
  const int64_t ctas = most_clusters({op, variant.warps}, p) * variant.cluster;
  const bool has_one_stage = op == LoraOp::shrink && variant.stages == 1;
  return has_one_stage ? has_room_to_widen(variant, p, ctas) : 2 * ctas <= 3 * int64_t{p.num_sms};
}

/// Whether an expand that widens ahead does so with all stages of B, not the first alone. Its CTAs
/// are then large, and the shrinks before and after need room, those of several adapters more of
/// it. Measured on an H200: docs/kernel_measurements.md, 8 bits. `cta_bytes`: of shared memory,
/// with all stages; `all_bytes`: of all SMs.
inline bool widens_all_stages(const KernelParams& p, int64_t ctas, int cta_bytes,
                              int64_t all_bytes) {
  return double(ctas) * cta_bytes <= (p.max_segments == 1 ? 0.36 : 0.25) * double(all_bytes);
}

}  // namespace loratory::gpu
