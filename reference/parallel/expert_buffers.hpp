#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/parallel/local_buffers.hpp"
#include "reference/parallel/moe.hpp"

namespace loratory::reference {

/// A layer of experts as one process would hold it, and the form of its adapters [3.21].
struct ExpertLayer {
  int64_t num_experts = 0, hidden = 0, intermediate = 0;
  bool gated = true;       ///< gate and up; else up alone
  bool fused_w13 = false;  ///< gate and up are one pair (moe_3d); else one each (moe_2d)
  GateUpLayout fused_rows = GateUpLayout::halves;  ///< of that pair's B
};

/// One adapter on such a layer: of each expert the pairs of the slices of w13, then that of w2.
/// None: the adapter leaves this matrix alone.
using ExpertPairs = std::vector<LoraPairs>;  ///< [E]

/// The weights of adapters on the experts of one tp_rank: what parallel_moe() lets it read.
/// As LocalBuffers, with A [L, E', R_p, K_p] and B [L, E', N_p, R] for its E' experts; the shapes
/// are those of the wrapper table.
///
/// Errors   InputError: as parallel_moe() for sizes that P does not divide.
class LocalExpertBuffers {
 public:
  LocalExpertBuffers(const ExpertLayer& layer, const MoeParallel& how, int64_t max_lora_rank,
                     int64_t tp_rank, int64_t max_loras, Dtype dtype);

  /// Cuts this tp_rank's part out of the adapter and overwrites all of the slot with it.
  /// Errors   InputError: as slice_pairs(), naming the expert; pairs that are not one list of
  ///          S + 1 for each expert. The slot keeps what it had.
  void write_slot(int32_t slot, const ExpertPairs& adapter);
  /// Ranks 0; the weights stay and are never read.
  void clear_slot(int32_t slot);

  int64_t num_experts() const { return num_experts_; }  ///< E', those that are here
  bool is_fused() const { return layer_.fused_w13; }
  GateUpLayout fused_rows() const { return layer_.fused_rows; }

  /// Slices of w13, then w2. What shrink reads: A, and the ranks that A has here.
  /// Lifetime: views of this object.
  std::vector<ExpertLoraSlice> shrink_slices() const { return slices(true); }
  /// What expand reads: B, the adapters' ranks and scalings (and A, not looked at).
  std::vector<ExpertLoraSlice> expand_slices() const { return slices(false); }

 private:
  std::vector<ExpertLoraSlice> slices(bool of_shrink) const;

  ExpertLayer layer_;
  int64_t tp_rank_, num_experts_, first_expert_;
  std::vector<LayerShards> shards_;    // slices of w13, then w2; one slice each
  std::vector<LocalBuffers> buffers_;  // likewise; expert e of slot s is slot s·E' + e of these
};

/// LoRA of a layer of experts as the tp_ranks hold it.
struct LocalMoeLora {
  TokenAdapters adapters;
  std::span<const LocalExpertBuffers> buffers;  ///< [P]
  NumericMode mode{};
};

/// As the other parallel_moe(), each tp_rank with no adapter weights but its own.
/// Errors   InputError: also buffers that are not one for each tp_rank, or made for another cut.
std::vector<Tensor> parallel_moe(const MoeArgs& args, const LocalMoeLora& lora,
                                 const MoeParallel& how);

}  // namespace loratory::reference
