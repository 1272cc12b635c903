#pragma once

#include <cstdint>
#include <string>

#include "gpu/engine/weight_layout.hpp"
#include "gpu/model/rotary.hpp"
#include "gpu/runtime/device_buffer.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/model/model.hpp"

namespace loratory::gpu {

/// A model's weights on the GPU, in one dtype and one allocation; nothing changes them.
class DeviceModel {
 public:
  /// Each number rounded once to `dtype`.
  /// Errors   InputError as require_gpu_model(); std::runtime_error from CUDA.
  static DeviceModel from(const reference::Model& model, reference::Dtype dtype);

  /// A Hugging Face folder. Tensors that are stored in `dtype` go to the GPU as they are.
  /// Errors   those of reference::load_model().
  static DeviceModel load(const std::string& directory, reference::Dtype dtype);

  /// Random weights of size 1/sqrt(K), norms of 1, biases of 0: for benches. Made on the GPU, a
  /// function of config, dtype and seed.
  static DeviceModel random(const reference::ModelConfig& config, reference::Dtype dtype,
                            uint64_t seed);

  const reference::ModelConfig& config() const { return config_; }
  reference::Dtype dtype() const { return dtype_; }
  const WeightLayout& layout() const { return layout_; }
  int64_t bytes() const { return layout_.bytes; }

  DeviceView matrix(int64_t offset, int64_t num_rows, int64_t num_columns) const {
    return device_view(dtype_, weights_.get() + offset, {num_rows, num_columns});
  }
  /// [experts, rows, columns]
  DeviceView experts(int64_t offset, int64_t num_rows, int64_t num_columns) const {
    return device_view(dtype_, weights_.get() + offset,
                       {config_.num_experts, num_rows, num_columns});
  }
  DeviceView vector(int64_t offset, int64_t size) const {
    return device_view(dtype_, weights_.get() + offset, {size});
  }
  /// Null if there is none.
  const void* optional(int64_t offset) const {
    return offset < 0 ? nullptr : weights_.get() + offset;
  }

 private:
  DeviceModel(const reference::ModelConfig& config, reference::Dtype dtype);
  void fill_part(const WeightPart& part, uint64_t seed);

  reference::ModelConfig config_;
  reference::Dtype dtype_;
  WeightLayout layout_;
  DeviceBuffer weights_;
};

}  // namespace loratory::gpu
