#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/base_model_shapes.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

/// One module of a slot: where its A [rank_max, K] and B [N, rank_max] lie in the slot's image,
/// both row-major without gaps.
struct SlotModule {
  reference::ModuleId id;
  int64_t num_in = 0;    ///< K
  int64_t num_out = 0;   ///< N
  int64_t a_offset = 0;  ///< bytes from the start of the image
  int64_t b_offset = 0;
};

/// The image of one slot: every module that an adapter may change at an offset that never moves,
/// then int32 ranks and float scalings of all modules, and in fp8 the factors of A and of B. So an
/// adapter that was written once into host memory goes to any slot by one copy, and a slot's views
/// are the same for every adapter.
///
/// The order is that of ModuleId: embed_tokens and lm_head first, then layer after layer, expert
/// after expert, so that the same projection of the next expert lies expert_bytes() further. Shapes
/// as in reference::SlotWeights, which is what the image is tested against.
class SlotLayout {
 public:
  /// `weights` is f32, bf16, f16, or f8_e4m3fn, whose max_rank is rounded up to a multiple of 16:
  /// rows of B are then vectors. Errors  InputError: experts in f8_e4m3fn, which have no kernels.
  SlotLayout(const reference::BaseModelShapes& shapes, const reference::EnabledModules& enabled,
             int64_t max_rank, reference::Dtype weights);

  std::span<const SlotModule> modules() const { return modules_; }
  /// The index of a module, -1 if it has no room.
  int64_t find(const reference::ModuleId& id) const;
  reference::Dtype dtype() const { return dtype_; }
  int64_t max_rank() const { return max_rank_; }
  /// Of a layer that has experts; 0: none has.
  int64_t num_experts() const { return num_experts_; }
  /// Bytes from A of an expert's module to A of the next expert's, and so of B.
  int64_t expert_bytes(const reference::ModuleId& first) const;
  /// Where ranks and scalings of a module lie in tables for all slots: begin + slot · stride. Those
  /// of a projection of all experts are [slots, experts].
  struct TablePlace {
    int32_t begin = 0, stride = 1;
  };
  TablePlace table_place(int64_t module, int32_t max_loras) const;
  int64_t ranks_offset() const { return ranks_offset_; }        ///< int32 [modules]
  int64_t scalings_offset() const { return scalings_offset_; }  ///< float [modules]
  /// float [modules] of A, then of B; there in f8_e4m3fn alone.
  int64_t factors_offset() const { return factors_offset_; }
  bool has_factors() const { return is_quantized(dtype_); }
  /// Of an image: a multiple of 256.
  int64_t bytes() const { return bytes_; }

  /// Why an adapter has no room in a slot, in one line; empty if it has.
  std::string problem(const reference::Adapter& adapter) const;

 private:
  std::vector<SlotModule> modules_;
  reference::Dtype dtype_;
  int64_t max_rank_;
  int64_t num_experts_ = 0;
  int64_t ranks_offset_ = 0, scalings_offset_ = 0, factors_offset_ = 0, bytes_ = 0;
};

/// Writes all of an image [5.9]: the adapter's weights rounded once to the layout's dtype, or in
/// fp8 as [1.50a] says; rank 0 for what it does not change, NaN beyond a rank and in absent
/// modules. Errors   asserted: an adapter with a problem(), an image of another size. Cost O(bytes
/// of the image), by four threads; rows that are stored in the layout's dtype are copied.
void write_slot_image(const SlotLayout& layout, const reference::Adapter& adapter,
                      std::span<std::byte> image);

}  // namespace loratory::gpu
