#include "scheduler_sim/cost/vllm_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reference/base/integers.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/cost/cuda_allocator.hpp"
#include "scheduler_sim/cost/module_shapes.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kVocabularyStep = 64;       // model_executor/layers/vocab_parallel_embedding.py
constexpr int64_t kExtraVocabulary = 256;     // lora_extra_vocab_size, until 0.10
constexpr int64_t kLoraVocabularyStep = 256;  // lora_vocab_padding_size
constexpr int64_t kVllmRuntimeBytes = kMiB * 1587;  // 1.55 GiB
// fp32 logits, their softmax, and the exponentials that the draw divides it by.
constexpr int64_t kSamplerBytes = 4 + 4 + 4;

int64_t limited_product(int64_t a, int64_t b) {
  constexpr __int128 kMost = int64_t{1} << 60;
  return int64_t(std::min(__int128(a) * b, kMost));
}

int64_t padded(int64_t rows, int64_t step) { return ceil_div(rows, step) * step; }

bool has_extra_vocabulary(const ModelSpec& model, const MemoryOptions& options) {
  return options.law == MemoryLaw::vllm_08 && model.adapts_embeddings;
}

// Modules of a layer by the tensor that vLLM packs them into; several experts are one tensor.
using LayerGroups = std::map<int, std::vector<ModuleShape>>;

LayerGroups groups_of_layer(const ModelSpec& model, int tp, int64_t layer) {
  LayerGroups groups;
  for (const ModuleShape& shape : cut_module_shapes(model, tp)) {
    if (shape.is_vocabulary() || layer >= num_layers_of(model, shape)) continue;
    groups[shape.group].push_back(shape);
  }
  return groups;
}

void allocate_weights(const ModelSpec& model, const MemoryOptions& options, int64_t max_loras,
                      CudaAllocator& memory) {
  const int64_t row = model.hidden * model.dtype_bytes;
  const bool extra = has_extra_vocabulary(model, options) && max_loras > 0;
  const int64_t step = extra ? kLoraVocabularyStep : kVocabularyStep;
  // The table has room for every slot's extra tokens, the head for those of one.
  const int64_t more = extra ? limited_product(kExtraVocabulary, max_loras) : 0;
  const int64_t table = padded(model.vocab + more, step), head = model.vocab + (extra ? 256 : 0);
  memory.allocate(limited_product(ceil_div<int64_t>(table, options.tp), row));
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const auto& [group, shapes] : groups_of_layer(model, options.tp, layer)) {
      int64_t bytes = 0;
      for (const ModuleShape& s : shapes) bytes += module_bytes(model, s) / num_layers_of(model, s);
      memory.allocate(bytes);
    }
    for (int i = 0; i < (model.post_norms ? 4 : 2); ++i) memory.allocate(row);
    if (model.qkv_bias) memory.allocate((model.q_size() + 2 * model.kv_size()) * 2 / options.tp);
  }
  if (!model.tied_embeddings) {
    memory.allocate(ceil_div<int64_t>(padded(head, step), options.tp) * row);
  }
  memory.allocate(model.vision_parameters * model.dtype_bytes);
}

// A of every slice first, then B, as the layers' create_lora_weights do.
void allocate_slots(const ModelSpec& model, const MemoryOptions& options, int64_t max_loras,
                    CudaAllocator& memory) {
  if (max_loras == 0) return;
  const int64_t rank_bytes = limited_product(limited_product(max_loras, options.max_lora_rank),
                                             lora_dtype_bytes(model, options.lora_dtype));
  const auto allocate = [&](int64_t numbers) {
    memory.allocate(limited_product(numbers, rank_bytes));
  };
  const bool extra = has_extra_vocabulary(model, options);
  const int64_t extra_bytes =
      limited_product(max_loras, kExtraVocabulary * model.hidden * model.dtype_bytes);
  if (model.adapts_embeddings) {
    if (extra) memory.allocate(extra_bytes);
    allocate(model.vocab + (extra ? kExtraVocabulary : 0));
    allocate(model.hidden);
  }
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const auto& [group, shapes] : groups_of_layer(model, options.tp, layer)) {
      const bool experts = shapes.front().is_expert();
      if (experts && options.law == MemoryLaw::vllm_08) continue;  // FusedMoE had no adapters
      const int64_t each = experts ? model.num_experts : 1;
      for (const ModuleShape& s : shapes) allocate(each * s.in);
      for (const ModuleShape& s : shapes) allocate(each * s.out);
    }
  }
  if (model.adapts_embeddings) {
    allocate(model.hidden);
    allocate(extra ? padded(model.vocab + kExtraVocabulary, kLoraVocabularyStep) : model.vocab);
    if (extra) memory.allocate(extra_bytes);
  }
}

}  // namespace

int64_t vllm_static_bytes(const ModelSpec& model, const MemoryOptions& options, int64_t max_loras) {
  CudaAllocator memory;
  allocate_weights(model, options, max_loras, memory);
  allocate_slots(model, options, max_loras, memory);
  return memory.reserved_bytes();
}

int64_t vllm_reserve_bytes(const ModelSpec& model, const MemoryOptions& options) {
  const int64_t mlp = std::max(model.intermediate * std::max<int64_t>(model.experts_per_token, 1) +
                                   model.shared_intermediate,
                               model.dense_intermediate);
  // The residual stream and its norm, gate|up and their product.
  const int64_t width = (4 * model.hidden + 3 * mlp / options.tp) * model.dtype_bytes;
  const int64_t forward = limited_product(options.max_num_batched_tokens, width);
  const int64_t rows = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  const int64_t sampler = limited_product(rows, kSamplerBytes * model.vocab);
  return kVllmRuntimeBytes + std::max(forward, sampler);
}

std::string vllm_slot_problem(const ModelSpec& model, const MemoryOptions& options,
                              int64_t max_loras) {
  constexpr int64_t kLeastFailed = 4096;
  if (!has_extra_vocabulary(model, options)) return {};
  if (limited_product(max_loras, options.max_lora_rank) < kLeastFailed) return {};
  return fmt::format(
      "does not start: vLLM 0.8 ran out of memory in every measured start of Llama with {} slots x "
      "ranks or more, and this has {} x {}",
      kLeastFailed, max_loras, options.max_lora_rank);
}

}  // namespace loratory::sim
