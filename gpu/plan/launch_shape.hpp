#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "gpu/plan/lora_op.hpp"

namespace loratory::gpu {

/// What a captured graph keeps of a launch, and what its GPU offers.
struct LaunchShape {
  LoraOp op = LoraOp::linear;
  int64_t num_tokens = 0;  ///< rows of x, padding included
  int64_t num_in = 0;      ///< K; ignored by expand
  int64_t max_rank = 0;    ///< largest R_i
  int64_t num_slices = 1;
  int64_t num_slots = 1;     ///< L: no step has more adapters; of experts: L·E
  bool has_experts = false;  ///< each token goes to some experts, wherever they are
  bool has_router_weights = false;
  int64_t num_rank_blocks = 1;  ///< of 64 ranks, of all slices together
  int64_t num_columns = 0;      ///< of y, of all slices together; ignored by shrink
  int64_t idle_sms = 0;         ///< beside the product of x that runs before
  bool has_workspace = true;    ///< linear: there is room for h
  int64_t num_split_units = 0;  ///< rows times rank tiles whose sums of splits have memory
  bool aligned = true;          ///< an aligned variant may be launched
  bool has_clusters = true;     ///< of the GPU: has_clusters()
  bool has_wgmma = true;        ///< of the GPU: has_wgmma()
};

/// "op=lora_shrink num_tokens=32 num_in=4096 ...": every field as name=value.
std::string describe(const LaunchShape& shape);
std::ostream& operator<<(std::ostream& out, const LaunchShape& shape);

/// No step has more segments of `size` tokens: each adapter's last one holds a single token.
int64_t most_segments(const LaunchShape& shape, int64_t size);
/// Of 8 tokens, by max_segments(), which may be more.
int64_t segments_of_8(const LaunchShape& shape);
/// Segments of 64 tokens. The last one of each adapter is assumed to be half full.
int64_t segments_of_64(const LaunchShape& shape);
/// Fewer than two, in segments of 8.
bool may_have_few_tokens_each(const LaunchShape& shape);
/// A graph does not know whether a step has one adapter or as many as there are slots. Where many
/// adapters would leave few tokens for each, segments of 64 tokens would be mostly empty.
/// Routers spread tokens over all experts, so that rows of experts do have many groups.
bool may_have_many_adapters(const LaunchShape& shape);
/// Two slices of many columns, as gate and up.
bool is_wide_pair(const LaunchShape& shape);
/// Of decode: a warp must not wait for each of several K tiles of x, so it has two stages.
bool has_long_rows(const LaunchShape& shape);

namespace h200 {
/// Columns of x: above, a warp of a narrow shrink has more K tiles in a row than stages of one.
inline constexpr int64_t kLongRows = 8192;

inline constexpr int64_t kColumnsOfWidePair = 16384;  ///< and more; 6,144 are not

// Crossover points in tokens.
inline constexpr int64_t kDecodeTokens = 256;        ///< above: segments of 8 tokens cost too much
inline constexpr int64_t kShortPrefillTokens = 512;  ///< above: wgmma pays for an h of any width
}  // namespace h200

}  // namespace loratory::gpu
