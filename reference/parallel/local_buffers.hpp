#pragma once

#include <cstdint>
#include <vector>

#include "reference/lora/linear.hpp"
#include "reference/parallel/layer_shards.hpp"
#include "reference/parallel/lora_pair.hpp"

// The weights of adapters on one tp_rank: cut out of the unsharded ones, then copied into slots.
// Both steps copy; what they read stays as it is, so an adapter can be cut and activated again
// and again.

namespace loratory::reference {

/// One adapter on one slice, as one tp_rank holds it: the size of its place in a slot.
struct LocalPair {
  Tensor a;                 ///< [rows of A here, K here]; rows from shrink_rank on are zeros
  Tensor b;                 ///< [rows of B here, R]; columns from expand_rank on are zeros
  int32_t shrink_rank = 0;  ///< r_p = clamp(r - p·Rs, 0, Rs) if A is sharded by rows, else r
  int32_t expand_rank = 0;  ///< r; 0: the adapter has no such slice
  float scaling = 0;
};

using LocalPairs = std::vector<LocalPair>;  ///< [S]

/// Shapes of the buffers of one slice on one tp_rank: A [L, R_p, K_p], B [L, N_p, R].
struct BufferShape {
  Extents a, b;
  friend bool operator==(const BufferShape&, const BufferShape&) = default;
};

std::vector<BufferShape> buffer_shapes(const LayerShards& layer, int64_t tp_rank,
                                       int64_t max_loras);

/// The rows of `ranges`, in this order; rows from source.size(0) on are zeros. One or two axes.
Tensor take_rows(const ConstTensorView& source, const std::vector<Range>& ranges);

/// tp_rank's part of an adapter, rounded once to `dtype` (the engine's; exact if it has it).
/// Errors   InputError naming the slice: a pair for each slice is not there, A or B does not fit
///          the layer or the other, r > R or r < 1, a scaling that is not finite.
/// Cost     O(elements of the part).
LocalPairs slice_pairs(const LayerShards& layer, int64_t tp_rank, const LoraPairs& pairs,
                       Dtype dtype);

/// All slots of one slice of one layer on one tp_rank.
struct LocalSlice {
  Tensor a, b;                                      ///< shapes as BufferShape
  std::vector<int32_t> shrink_ranks, expand_ranks;  ///< [L]
  std::vector<float> scalings;                      ///< [L]
};

struct LocalBuffers {
  std::vector<LocalSlice> slices;  ///< [S]

  LocalBuffers(const LayerShards& layer, int64_t tp_rank, int64_t max_loras, Dtype dtype);

  int64_t max_loras() const { return slices[0].a.shape()[0]; }
  /// Overwrites all of the slot. Programmer errors: another layer's pairs, a slot out of range.
  void write_slot(int32_t slot, const LocalPairs& pairs);
  /// Ranks 0; the weights stay and are never read.
  void clear_slot(int32_t slot);

  std::vector<ShrinkSlice> shrink_slices() const;
  std::vector<ExpandSlice> expand_slices() const;
};

}  // namespace loratory::reference
