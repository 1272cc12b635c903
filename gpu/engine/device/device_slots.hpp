#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/api/lora_layer.hpp"
#include "gpu/engine/paced_copy.hpp"
#include "gpu/engine/slot_layout.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "reference/model/packed_linear.hpp"

namespace loratory::gpu {

/// The slots on the GPU: max_loras images one after the other, and of every module the ranks and
/// scalings of all slots, where the kernels read them. An empty slot has rank 0 everywhere and NaN
/// in every matrix.
class DeviceSlots {
 public:
  DeviceSlots(SlotLayout layout, int32_t max_loras);

  /// Bytes of `image` into a slot, in stream order: one transfer. The last ones bring a small
  /// kernel for the tables behind them.
  void copy(const std::byte* image, PacedCopy::Part part, int32_t slot, CUstream_st* stream);
  /// Random weights of a rank in every module, scaling 1/16: for benches.
  void fill_random_slot(int32_t slot, int64_t rank, uint64_t seed);

  /// What LoRA adds to a packed layer; `op` linear with a workspace, or expand for embed_tokens.
  /// None if slots have no room for any of its modules.
  std::optional<LoraLayerDesc> describe(std::span<const reference::ModuleId> slices,
                                        LoraOp op) const;
  /// The same for projections of all experts of a layer; rows are of the size of `experts`.
  std::optional<LoraLayerDesc> describe_experts(int64_t layer,
                                                std::span<const reference::Projection> slices,
                                                int32_t rows_per_x) const;
  /// A of embed_tokens and its ranks.
  DeviceView a(int64_t module) const;
  const int32_t* ranks(int64_t module) const { return ranks_ + table_begin(module); }
  /// Of that A by slot; null unless slots are fp8.
  const float* a_factors(int64_t module) const;

  const SlotLayout& layout() const { return layout_; }
  int32_t max_loras() const { return max_loras_; }
  int64_t bytes() const { return int64_t{max_loras_} * layout_.bytes(); }

 private:
  DeviceView b(int64_t module) const;
  int64_t table_begin(int64_t module) const {
    return layout_.table_place(module, max_loras_).begin;
  }
  DeviceView matrix(int64_t offset, int64_t num_rows, int64_t num_columns) const;
  /// [max_loras]; nothing unless slots are fp8.
  DeviceView factors(float* table, int64_t module) const;
  void write_tables(int32_t slot, CUstream_st* stream);
  std::byte* image(int32_t slot) const { return images_.get() + slot * layout_.bytes(); }

  SlotLayout layout_;
  int32_t max_loras_;
  DeviceBuffer images_;
  DeviceBuffer tables_;  // int32 ranks [modules, max_loras], float scalings and factors the same
  int32_t* ranks_;
  float* scalings_;
  float *a_factors_, *b_factors_;
  DeviceBuffer places_;  // int32 [modules] where each module's part of a table begins, its strides
};

}  // namespace loratory::gpu
