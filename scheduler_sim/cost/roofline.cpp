#include "scheduler_sim/cost/roofline.hpp"

#include <algorithm>

#include "reference/base/units.hpp"
#include "scheduler_sim/cost/rounding.hpp"

namespace loratory::sim {
namespace {

constexpr double kLogitPassBytes = 8;  // per logit: bf16 from the GEMM, fp32 in the sampler

double as_double(int64_t value) { return double(value); }

}  // namespace

RooflineModel::RooflineModel(const ModelSpec& model, const GpuSpec& gpu,
                             const RooflineOptions& options)
    : options_(options), lora_(model, gpu, options), num_layers_(as_double(model.num_layers)) {
  model.require_divisible(options.tp);
  const int tp = options.tp;
  const double byte_ns = kNsPerSecond / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_fraction);
  const double flop_ns = kNsPerSecond / (gpu.flops * gpu.matmul_fraction);
  const double dtype = as_double(model.dtype_bytes);

  num_experts_ = model.num_experts == 0 ? 1 : as_double(model.num_experts);
  experts_per_token_ = model.num_experts == 0 ? 1 : as_double(model.experts_per_token);
  add_dense_costs(model, gpu);
  const double attention_flop_ns = kNsPerSecond / (gpu.flops * gpu.attention_fraction);
  add_attention_costs(model, byte_ns, attention_flop_ns);

  const double lm_head = as_double(model.lm_head_parameters(tp));
  lm_head_ns_ = lm_head * dtype * byte_ns;
  sample_flops_ns_ = 2 * lm_head * flop_ns;
  sample_bytes_ns_ = kLogitPassBytes * as_double(model.vocab) * byte_ns;

  const double link_ns = kNsPerSecond / (gpu.link_bytes_per_s * gpu.link_fraction);
  const double ring = 2.0 * (tp - 1) / tp;
  allreduce_token_ns_ = 2 * num_layers_ * as_double(model.hidden) * dtype * ring * link_ns;
}

// Matrices of the layers. Without experts the MLP is the one expert of every layer.
void RooflineModel::add_dense_costs(const ModelSpec& model, const GpuSpec& gpu) {
  const int tp = options_.tp;
  const double byte_ns = kNsPerSecond / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_fraction);
  const bool eight_bit = model.quantization.activations && gpu.fp8_flops > 0;
  const double flop_ns =
      kNsPerSecond / ((eight_bit ? gpu.fp8_flops : gpu.flops) * gpu.matmul_fraction);
  const double dtype = as_double(model.dtype_bytes);
  const bool mixture = model.num_experts > 0;
  const double expert_layers = mixture ? as_double(model.num_expert_layers()) : num_layers_;
  const double dense_layers = as_double(model.num_dense_layers);
  const double dense_mlp =
      dense_layers * 3 * as_double(model.hidden) * as_double(model.dense_intermediate / tp);

  const double attention = num_layers_ * as_double(model.attention_parameters(tp));
  const double expert = expert_layers * as_double(model.expert_parameters(tp));
  const double shared = expert_layers * as_double(model.shared_expert_parameters(tp));
  const double gates = model.shared_gate ? expert_layers * as_double(model.hidden) : 0;
  token_flops_ns_ = 2 * (attention + experts_per_token_ * expert + shared + dense_mlp) * flop_ns;

  const auto bytes = [&](ModulePart part) { return as_double(part_bytes(model, part, tp)); };
  const double dense_bytes = mixture ? bytes(ModulePart::mlp) : 0;
  weights_ns_ = (bytes(ModulePart::attention) + bytes(ModulePart::shared_expert) + dense_bytes +
                 gates * dtype) *
                byte_ns;
  expert_ns_ = bytes(mixture ? ModulePart::expert : ModulePart::mlp) / num_experts_ * byte_ns;

  // Norms read and write hidden twice; the activation reads 2 and writes 1 intermediate.
  const double per_expert_layer = 3 * experts_per_token_ * as_double(model.intermediate) / tp +
                                  3 * as_double(model.shared_intermediate) / tp;
  const double activations = num_layers_ * 4 * as_double(model.hidden) +
                             expert_layers * per_expert_layer +
                             dense_layers * 3 * as_double(model.dense_intermediate) / tp;
  token_activation_ns_ = activations * dtype * byte_ns;
}

// Latent attention decodes in the compressed space, where every head reads the same
// numbers: with many heads that is bound by FLOP/s, not bytes.
void RooflineModel::add_attention_costs(const ModelSpec& model, double byte_ns, double flop_ns) {
  const int tp = options_.tp;
  const reference::LatentAttention& latent = model.latent;
  const double heads = as_double(model.num_heads / tp);
  const double v_size =
      latent.kv_rank > 0 ? heads * as_double(latent.v_dim) : as_double(model.q_size(tp));
  const double compressed = 2 * heads * as_double(2 * latent.kv_rank + latent.rope_dim) * flop_ns;
  const auto add = [&](double layers, double window) {
    AttentionCost cost;
    cost.window = window;
    cost.pair_ns = layers * 2 * (as_double(model.q_size(tp)) + v_size) * flop_ns;
    cost.context_ns = layers * as_double(model.kv_layer_bytes(tp)) * byte_ns;
    cost.decode_ns =
        latent.kv_rank > 0 ? std::max(cost.context_ns, layers * compressed) : cost.context_ns;
    attention_.push_back(cost);
  };
  double full_layers = num_layers_;
  for (const KvWindow& window : model.windows) {
    add(as_double(window.num_layers), as_double(window.tokens));
    full_layers -= as_double(window.num_layers);
  }
  if (full_layers > 0) add(full_layers, 0);
}

double RooflineModel::dense_ns(const BatchShape& shape) const {
  const double tokens = as_double(shape.num_tokens);
  const double experts = std::min(tokens * experts_per_token_, num_experts_);
  const double memory = weights_ns_ + experts * expert_ns_;
  return std::max(tokens * token_flops_ns_, memory) + tokens * token_activation_ns_;
}

// A row in a layer with a window of w reads at most w entries for each query. The sums over rows do
// not tell one row from another, so the limits count for all rows together: exact when rows are
// alike, and never too little.
double RooflineModel::attention_ns(const BatchShape& shape) const {
  const double prefill_tokens = as_double(shape.num_prefill_tokens);
  const double decode_rows = as_double(shape.num_tokens) - prefill_tokens;
  const double prefill_rows = std::max(as_double(shape.num_seqs) - decode_rows, 0.0);
  double ns = 0;
  for (const AttentionCost& cost : attention_) {
    double pairs = as_double(shape.prefill_pairs);
    double prefill_context = as_double(shape.prefill_context_tokens);
    double decode_context = as_double(shape.decode_context_tokens);
    if (cost.window > 0) {
      pairs = std::min(pairs, prefill_tokens * cost.window);
      prefill_context = std::min(prefill_context, prefill_rows * cost.window + prefill_tokens);
      decode_context = std::min(decode_context, decode_rows * cost.window);
    }
    const double prefill = std::max(pairs * cost.pair_ns, prefill_context * cost.context_ns);
    ns += prefill + decode_context * cost.decode_ns;
  }
  return ns;
}

double RooflineModel::logits_ns(const BatchShape& shape) const {
  if (shape.num_sampled == 0) return 0;
  const double rows = as_double(shape.num_sampled);
  return std::max(rows * sample_flops_ns_, lm_head_ns_) + rows * sample_bytes_ns_;
}

double RooflineModel::allreduce_ns(const BatchShape& shape) const {
  if (options_.tp == 1) return 0;
  return 2 * num_layers_ * options_.allreduce_latency_ns +
         as_double(shape.num_tokens) * allreduce_token_ns_;
}

StepParts RooflineModel::parts(const BatchShape& shape) const {
  StepParts parts;
  parts.dense = dense_ns(shape);
  parts.attention = attention_ns(shape);
  parts.logits = logits_ns(shape);
  parts.lora = lora_(shape);
  parts.allreduce = allreduce_ns(shape);
  parts.overhead = options_.step_overhead_ns + num_layers_ * options_.layer_overhead_ns +
                   as_double(shape.num_seqs) * options_.seq_overhead_ns;
  return parts;
}

int64_t RooflineModel::step_ns(const BatchShape& shape) const {
  return round_step_ns(parts(shape).total());
}

}  // namespace loratory::sim
