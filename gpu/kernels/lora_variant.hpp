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
  /// Of a linear layer: 2 are a shrink, so cut, and an expand, with h in a workspace between them.
  int launches = 1;

  int segment_size() const { return 8 * token_tiles; }
  bool is_wide() const { return token_tiles > 1; }
  bool needs_wgmma() const { return token_tiles == 8 && rank_tiles >= 4; }
  friend bool operator==(const LoraVariant&, const LoraVariant&) = default;
};

/// "r16 t8 c8 s2 x2": ranks at a time, tokens of a segment, CTAs of a cluster, stages, launches.
std::string describe(const LoraVariant& variant);

/// What a captured graph keeps of a launch, and what its GPU is.
struct LaunchShape {
  LoraStage stage = LoraStage::linear;
  int64_t num_tokens = 0;  ///< rows of x, padding among them
  int64_t num_in = 0;      ///< K; not looked at by expand
  int64_t max_rank = 0;    ///< largest R_i
  int64_t num_slices = 1;
  int64_t num_slots = 1;      ///< L: no step has more adapters
  int64_t num_blocks = 1;     ///< of 64 ranks, of all slices
  bool has_workspace = true;  ///< linear: there is room for h
  bool aligned = true;        ///< an aligned variant may be launched
  bool has_clusters = true;   ///< of the GPU: has_clusters()
  bool has_wgmma = true;      ///< of the GPU: has_wgmma()
};

/// The rules. They depend on nothing else, so a replayed graph would choose the same.
LoraVariant choose_variant(const LaunchShape& shape);

/// Of an expand of segments of 8 · token_tiles tokens, or a part of them at once: alone, or the
/// second launch of a linear.
LoraVariant expand_variant(const LaunchShape& shape, int token_tiles);

}  // namespace loratory::gpu
