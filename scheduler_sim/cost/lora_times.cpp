#include "scheduler_sim/cost/lora_times.hpp"

#include <algorithm>
#include <atomic>
#include <map>

namespace loratory::sim {
namespace {

// The cards that lora_kernels.cpp was measured on. Both have 132 multiprocessors at 1.98 GHz.
constexpr double kMeasuredSmGhz = 132 * 1.98;
constexpr double kMeasuredFlops = 989e12;
constexpr double kMeasuredBandwidth = 4.8e12;  // the H200's: of ours and SGLang's

// vLLM 0.8.5 before a step with adapters, in Python, while the GPU waits: its own code on the
// machine of an H100 (bench/gpu/engine_host_bench.py, scripts/fit_engine_host.py).
//   v1/worker/gpu_input_batch.py, make_lora_inputs, and the comparison with the last mapping
constexpr double kLoraStepNs = 380e3;
//   lora/worker_manager.py, add_adapter: for each adapter of the step, a copy of the table of all
//   that are registered (utils.py, LRUCache.cache, as a dict and again as a set)
constexpr double kApplyNs = 10e3;
constexpr double kApplyRegisteredNs = 269;
//   When the mapping is not the last one (adapter_commons/utils.py, set_adapter_mapping):
//   lora/punica_wrapper/utils.py, convert_mapping, for each token and each row list.index over the
//   slots with numpy's numbers; lora_kernel_metadata.py, prepare_tensors, twice
constexpr double kMappingNs = 666e3;
constexpr double kMappingTokenNs = 758;
constexpr double kMappingSlotNs = 30;  // one comparison

uint64_t next_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// What gpu_ns depends on. Decode steps in a row differ in their contexts alone, so the last answer
// is the next one, too.
struct Question {
  uint64_t id = 0;
  int64_t grid_tokens = 0;
  int64_t seqs = 0, tokens = 0, prefill_tokens = 0, sampled = 0;
  int64_t lora_tokens = 0, adapters = 0, sum_rank = 0;
  bool operator==(const Question&) const = default;
};

}  // namespace

LoraTimes::LoraTimes(const ModelSpec& model, const GpuSpec& gpu, const RooflineOptions& options)
    : id_(next_id()),
      options_(options),
      weight_bytes_(double(lora_dtype_bytes(model, options.lora_dtype))) {
  scale_.blocks = gpu.sm_ghz > 0 ? kMeasuredSmGhz / gpu.sm_ghz : kMeasuredFlops / gpu.flops;
  scale_.bytes = kMeasuredBandwidth / gpu.bandwidth_bytes_per_s;
  scale_.byte_ns = 1e9 / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_fraction);
  std::map<int, Layers> groups;
  for (const ModuleShape& shape : lora_shapes(model, options.targets, options.tp)) {
    Layers& group = groups[shape.group];
    group.layer.in = shape.name == "embed_tokens" ? 0 : shape.in;
    group.layer.widths.push_back(shape.out);
    group.launches = double(shape.count);
    group.sampled_rows = shape.name == "lm_head";
    if (!shape.is_expert()) continue;
    group.experts = double(model.num_experts);
    group.experts_per_token = double(model.experts_per_token);
    group.launches /= group.experts;
  }
  for (auto& [id, group] : groups) {
    group.geometry = LoraGeometry(group.layer);
    layers_.push_back(std::move(group));
  }
  const bool own_grid =
      options.lora_kernels == LoraKernels::vllm_08 || options.lora_kernels == LoraKernels::vllm;
  if (!own_grid) {
    grid_ = LoraGrid(model, options.targets, options.tp,
                     std::max<int64_t>(options.lora_padded_rank, 1), options.lora_grid_max_loras);
  }
}

LoraBatch LoraTimes::batch_of(const BatchShape& shape, int64_t grid_tokens) const {
  LoraBatch batch;
  const auto adapters = double(shape.num_adapters);
  batch.grid_tokens = std::max(grid_tokens, shape.num_tokens);
  batch.grid_slots =
      options_.lora_grid_max_loras > 0 ? options_.lora_grid_max_loras + 1 : shape.num_adapters;
  const int64_t decode_rows = shape.num_tokens - shape.num_prefill_tokens;
  const auto prefill_rows = double(std::max<int64_t>(shape.num_seqs - decode_rows, 0));
  const auto tokens = double(shape.num_lora_tokens);
  batch.prefill_tokens = std::min(tokens, double(shape.num_prefill_tokens));
  batch.decode_tokens = tokens - batch.prefill_tokens;
  batch.prefill_adapters = batch.prefill_tokens > 0 ? std::min(adapters, prefill_rows) : 0;
  batch.decode_adapters = adapters - batch.prefill_adapters;
  const int64_t padded = options_.lora_padded_rank;
  if (shape.num_adapters > 0) batch.rank = double(shape.sum_rank) / adapters;
  if (padded > 0) batch.rank = double(padded);
  batch.weight_bytes_each = weight_bytes_;
  return batch;
}

LoraBatch LoraTimes::of_layers(const Layers& layers, LoraBatch batch,
                               const BatchShape& shape) const {
  if (layers.sampled_rows) {
    const auto rows = double(shape.num_sampled);
    batch.grid_tokens = shape.num_sampled;
    batch.prefill_tokens = std::min(batch.prefill_tokens, batch.prefill_adapters);
    batch.decode_tokens = std::min(batch.decode_tokens, std::max(0.0, rows - batch.prefill_tokens));
  }
  if (layers.experts > 0) {  // an adapter of one expert is a matrix of its own
    const double copies = layers.experts_per_token;
    batch.grid_tokens = int64_t(double(batch.grid_tokens) * copies);
    batch.grid_slots = int64_t(double(batch.grid_slots) * layers.experts);
    batch.decode_tokens *= copies;
    batch.prefill_tokens *= copies;
    batch.decode_adapters = std::min(batch.decode_adapters * layers.experts, batch.decode_tokens);
    batch.prefill_adapters =
        std::min(batch.prefill_adapters * layers.experts, batch.prefill_tokens);
  }
  return batch;
}

double LoraTimes::gpu_ns(const BatchShape& shape, int64_t grid_tokens, bool graph) const {
  const bool always = graph && options_.lora_graphs == LoraGraphs::with_lora_only;
  if (shape.num_adapters == 0 && !always) return 0;
  const Question question{id_,
                          grid_tokens,
                          shape.num_seqs,
                          shape.num_tokens,
                          shape.num_prefill_tokens,
                          shape.num_sampled,
                          shape.num_lora_tokens,
                          shape.num_adapters,
                          shape.sum_rank};
  thread_local Question asked;
  thread_local double answer_ns = 0;
  if (asked != question) {
    answer_ns = layers_ns(shape, grid_tokens);
    asked = question;
  }
  return answer_ns;
}

double LoraTimes::layers_ns(const BatchShape& shape, int64_t grid_tokens) const {
  const LoraBatch batch = batch_of(shape, grid_tokens);
  double ns = grid_.shrink_blocks(batch.grid_tokens) * idle_shrink_block_ns(true, true) +
              grid_.expand_blocks(batch.grid_tokens) * idle_expand_block_ns(true);
  ns *= scale_.blocks;
  for (const Layers& layers : layers_) {
    if (layers.sampled_rows && shape.num_sampled == 0) continue;
    const bool alike = !layers.sampled_rows && layers.experts == 0;
    const double pair_ns = alike
                               ? lora_pair_ns(options_.lora_kernels, layers.geometry, batch, scale_)
                               : lora_pair_ns(options_.lora_kernels, layers.geometry,
                                              of_layers(layers, batch, shape), scale_);
    ns += layers.launches * pair_ns;
  }
  return ns;
}

double LoraTimes::launch_ns(const BatchShape& shape, double kernel_launch_ns) const {
  if (shape.num_adapters == 0) return 0;
  double pairs = 0;
  for (const Layers& layers : layers_) pairs += layers.launches;
  return pairs * lora_pair_launch_ns(options_.lora_kernels, kernel_launch_ns);
}

double LoraTimes::host_ns(const BatchShape& shape) const {
  if (options_.lora_kernels != LoraKernels::vllm_08 || shape.num_adapters == 0) return 0;
  const auto slots = double(std::max(options_.lora_grid_max_loras, shape.num_adapters));
  const double registered = options_.lora_registered > 0 ? double(options_.lora_registered) : slots;
  double ns =
      kLoraStepNs + double(shape.num_adapters) * (kApplyNs + kApplyRegisteredNs * registered);
  if (shape.rows_changed) {
    const double looked_up = double(shape.num_lora_tokens + shape.num_seqs) * slots / 2;
    ns += kMappingNs + double(shape.num_tokens) * kMappingTokenNs + looked_up * kMappingSlotNs;
  }
  return ns;
}

}  // namespace loratory::sim
