#pragma once

#include <cstdint>
#include <string>

#include "gpu/kernels/lora_stage.hpp"

namespace loratory::gpu {

/// How the kernel is cut for one launch. Any variant gives the same bits; they differ in speed.
struct LoraVariant {
  int rank_tiles;   ///< ranks at a time, in 16
  int token_tiles;  ///< tokens of a segment, in 8
  int cluster;      ///< CTAs that share a segment; 1: no cluster, which any GPU can launch
  int stages;       ///< of the ring that loads go through
  bool aligned;     ///< every access of x, A, B and y is a whole one of 8 or 16 bytes
  int launches = 1;  ///< of a linear layer: 2 are a shrink, so cut, and an expand, h in a workspace

  int segment_size() const { return 8 * token_tiles; }
  bool is_wide() const { return token_tiles > 1; }
  friend bool operator==(const LoraVariant&, const LoraVariant&) = default;
};

/// "r16 t8 c8 s2": ranks at a time, tokens of a segment, CTAs of a cluster, stages.
std::string describe(const LoraVariant& variant);

/// What a captured graph keeps of a launch, and what its GPU is.
struct LaunchShape {
  LoraStage stage = LoraStage::linear;
  int64_t num_tokens = 0;  ///< rows of x, padding among them
  int64_t num_in = 0;      ///< K; not looked at by expand
  int64_t max_rank = 0;    ///< largest R_i
  int64_t num_slices = 1;
  int64_t num_blocks = 1;  ///< of 64 ranks, of all slices
  bool has_workspace = true;  ///< linear: there is room for h
  bool aligned = true;        ///< an aligned variant may be launched
  bool has_clusters = true;   ///< of the GPU: has_clusters()
};

/// The rules, for a layer without a DispatchTable (dispatch_table.hpp). Depends on nothing else, so
/// a replayed graph would choose the same.
LoraVariant choose_variant(const LaunchShape& shape);

/// Of an expand.
LoraVariant expand_variant(int64_t max_rank, int token_tiles, bool aligned);

}  // namespace loratory::gpu
