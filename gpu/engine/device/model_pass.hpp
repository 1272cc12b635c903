#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/attention/paged_attention.hpp"
#include "gpu/engine/device/device_model.hpp"
#include "gpu/engine/device/device_slots.hpp"
#include "gpu/engine/engine_memory.hpp"
#include "gpu/engine/engine_options.hpp"
#include "gpu/engine/step_batch.hpp"
#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/model/norm.hpp"
#include "gpu/model/sampler.hpp"
#include "gpu/moe/expert_groups.hpp"
#include "gpu/moe/expert_lora.hpp"
#include "gpu/product/base_product.hpp"

namespace loratory::gpu {

/// Keys and values of all layers, in the blocks of the scheduler's pool. NaN at first.
class DeviceKv {
 public:
  DeviceKv(const reference::ModelConfig& model, const sim::SchedulerConfig& config,
           reference::Dtype dtype);

  KvView layer(int64_t index) const;
  /// NaN over some blocks of all layers; the device reads `blocks`, there or in page-locked memory.
  void poison(const int32_t* blocks, int32_t num_blocks, CUstream_st* stream) const;
  int64_t bytes() const { return num_layers_ * 2 * tensor_bytes_; }

 private:
  int64_t num_layers_, tensor_bytes_;
  KvView shape_;
  DeviceBuffer memory_;
};

/// One forward pass of a model over a step's arrays: from token ids to sampled tokens. All buffers
/// are its own; the arrays lie at step_arrays() when it runs.
///
/// Rounds   every kernel reads and writes the model's dtype and computes in fp32; logits are fp32.
/// Bits     a token's logits are a function of its row's tokens before it, its adapter and the
///          weights alone, as those of every kernel here are.
class ModelPass {
 public:
  /// `model`, `products` and `slots` (null: no LoRA) outlive this object. `bounded` is
  /// bounded_by_model().
  ModelPass(const DeviceModel& model, Products& products, const DeviceSlots* slots,
            const sim::SchedulerConfig& bounded, const EngineOptions& options);
  ~ModelPass();
  ModelPass(const ModelPass&) = delete;
  ModelPass& operator=(const ModelPass&) = delete;

  /// Enqueues the pass. Never allocates, never waits, may be captured.
  /// `max_row_tokens` as in AttentionPlan::launch. Tokens have at most `max_adapters` different
  /// slots; 0: all are base tokens, whatever their slots.
  void launch(const StepArrays& arrays, int32_t max_row_tokens, int32_t max_adapters,
              CUstream_st* stream) const;

  std::byte* step_arrays() const { return workspace_.get() + layout_.step; }
  /// Of the last launch, on the device.
  const float* logits() const { return at<float>(layout_.logits); }
  const int32_t* tokens() const { return at<int32_t>(layout_.tokens); }
  const double* logprobs() const { return at<double>(layout_.logprobs); }
  /// [sampled rows, kMostLogprobs]
  const int32_t* top_tokens() const { return at<int32_t>(layout_.top_tokens); }
  const double* top_logprobs() const { return at<double>(layout_.top_logprobs); }
  const DeviceKv& kv() const { return *kv_; }
  const PassLayout& layout() const { return layout_; }
  int64_t bytes() const { return layout_.bytes; }

 private:
  struct Lora;
  struct Layer;
  struct Step;

  template <typename T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(workspace_.get() + offset);
  }
  DeviceView view(int64_t offset, int64_t num_rows, int64_t num_columns) const;
  BatchView batch(const StepArrays& arrays) const;
  RmsNormArgs norm(int64_t weight, const DeviceView& x, const DeviceView& y) const;
  void add_rope(int64_t num_positions);
  void add_layers(Products& products);
  void add_groups();
  void add_mlp(Products& products, int64_t index, Layer& layer);
  void begin(const Step& step) const;
  void embedding_lora(const Step& step) const;
  void attention(const Step& step, int64_t layer) const;
  void mlp(const Step& step, int64_t layer) const;
  void dense_mlp(const Step& step, int64_t layer) const;
  std::optional<SiluMulVariants> lora_silu_mul(const Step& step, const Layer& layer,
                                               const DeviceView& x, const DeviceView& gate_up,
                                               const DeviceView& activation) const;
  void experts(const Step& step, int64_t layer) const;
  void route_tokens(const Step& step, const Layer& layer) const;
  void finish(const Step& step) const;
  void linear(const Step& step, const BaseProduct& product, const std::optional<LoraLayer>& lora,
              const DeviceView& x, const DeviceView& y,
              ProductUse without_lora = ProductUse::alone) const;

  const DeviceModel& model_;
  const DeviceSlots* slots_;
  int32_t block_size_;
  AttentionPlan attention_;
  PassLayout layout_;
  DeviceBuffer workspace_;
  DeviceView rope_cos_, rope_sin_;
  std::vector<Layer> layers_;
  std::unique_ptr<BaseProduct> lm_head_;
  std::unique_ptr<Lora> lora_;
  std::unique_ptr<ExpertGroups> experts_;  // by expert alone
  // Comes last: until then its memory is there for the products of layers_, which are timed.
  std::optional<DeviceKv> kv_;
};

}  // namespace loratory::gpu
