#include "gpu/engine/engine_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/model/kv_view.hpp"
#include "gpu/model/sampler.hpp"
#include "gpu/moe/router.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"

namespace loratory::gpu {

using reference::Dtype;

bool has_experts(const reference::ModelConfig& model, int64_t layer) {
  return model.num_experts > 0 && model.layer_has_experts[size_t(layer)];
}

void require_gpu_model(const reference::ModelConfig& model, Dtype dtype) {
  require_computed(model);
  const auto refuse = [&](const std::string& rule, std::string_view remedy) {
    throw InputError(model.name.empty() ? "model" : model.name, rule, remedy);
  };
  if (model.shared_expert_intermediate > 0) {
    refuse("has shared experts, which the engine on a GPU does not compute",
           "use Mixtral, Qwen3-MoE or a dense model");
  }
  if (model.num_experts > kMostExperts || model.experts_per_token > kMostChosen) {
    refuse(
        fmt::format("sends tokens to {} of {} experts", model.experts_per_token, model.num_experts),
        fmt::format("the router takes {} of {} at most", kMostChosen, kMostExperts));
  }
  const bool is_odd = model.hidden % 8 != 0 || model.expert_intermediate % 8 != 0;
  if (model.num_experts > 0 && dtype != Dtype::f32 && is_odd) {
    refuse(fmt::format("has experts of {} x {}", model.expert_intermediate, model.hidden),
           "multiples of 8 have kernels");
  }
  if (dtype != Dtype::bf16 && dtype != Dtype::f16 && dtype != Dtype::f32) {
    refuse(fmt::format("{} is no type of activations", name(dtype)), "use bf16, f16 or f32");
  }
  if (model.vocab > kMostVocab) {
    refuse(fmt::format("has {} tokens", model.vocab),
           fmt::format("the sampler takes {} at most", kMostVocab));
  }
  if (model.head_dim % 2 != 0 || model.head_dim < 2 || model.head_dim > kMostHeadDim) {
    refuse(fmt::format("head_dim {} has no kernel", model.head_dim),
           fmt::format("even sizes of up to {} have one", kMostHeadDim));
  }
}

SlotLayout slot_layout(const reference::ModelConfig& model, const EngineOptions& options) {
  const bool is_fp8 = options.lora_dtype == sim::LoraDtype::fp8;
  return {base_model_shapes(model), options.modules, options.max_lora_rank,
          is_fp8 ? Dtype::f8_e4m3fn : options.dtype};
}

sim::SchedulerConfig bounded_by_model(sim::SchedulerConfig config,
                                      const reference::ModelConfig& model) {
  const auto lower = [&](int64_t most) {
    config.max_model_len = uint32_t(std::clamp<int64_t>(most, 1, config.max_model_len));
  };
  if (model.max_position_embeddings > 0) lower(model.max_position_embeddings);
  if (model.sliding_window > 0) lower(model.sliding_window);
  if (model.rope.scaling == reference::RopeScaling::dynamic) {
    lower(model.rope.original_max_position_embeddings);
  }
  lower((int64_t{config.num_blocks} - 1) * config.block_size);
  return config;
}

int32_t max_blocks_per_row(const sim::SchedulerConfig& bounded) {
  return int32_t(ceil_div<int64_t>(bounded.max_model_len, bounded.block_size));
}

}  // namespace loratory::gpu
