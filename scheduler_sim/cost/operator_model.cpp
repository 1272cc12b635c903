#include "scheduler_sim/cost/operator_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "reference/base/integers.hpp"
#include "scheduler_sim/cost/module_shapes.hpp"
#include "scheduler_sim/cost/rounding.hpp"

namespace loratory::sim {
namespace {

constexpr double kSamplerLogitBytes =
    8;  // bf16 from the GEMM, fp32 in the sampler, as the roofline's
// q|k|v, o, gate|up, down and attention of a layer.
constexpr double kLargeKernels = 5;

// Layers x one packed GEMM, in one type.
struct LayerGemm {
  int64_t in = 0, out = 0;
  double layers = 0, plain_layers = 0;
};

// Modules of a group lie side by side: one GEMM with all their outputs.
std::map<int, LayerGemm> layer_gemms(const ModelSpec& model, int tp) {
  std::map<int, LayerGemm> gemms;
  for (const ModuleShape& shape : cut_module_shapes(model, tp)) {
    if (shape.is_vocabulary() || shape.is_expert()) continue;
    LayerGemm& gemm = gemms[shape.group];
    gemm.in = shape.in;
    gemm.out += shape.out;
    gemm.layers = double(shape.count);
    gemm.plain_layers = double(shape.plain_layers);
  }
  return gemms;
}

ExpertShape expert_shape(const ModelSpec& model) {
  ExpertShape shape{model.hidden, model.intermediate, model.experts_per_token, model.num_experts};
  if (model.quantization.bits == 8) {
    shape.type =
        model.quantization.block_rows > 1 ? ExpertShape::Type::fp8_block : ExpertShape::Type::fp8;
  }
  return shape;
}

class CurveSum {
 public:
  void add(const Curve& curve, double times) {
    if (axis_.empty()) {
      axis_.assign(curve.axis().begin(), curve.axis().end());
      values_.assign(axis_.size(), 0.0);
    }
    for (size_t i = 0; i < axis_.size(); ++i) values_[i] += times * curve(axis_[i]);
  }
  Curve sum() && { return Curve(std::move(axis_), std::move(values_)); }

 private:
  std::vector<double> axis_, values_;
};

// "aiconfigurator-core 0.12.0 ..., vLLM 0.24.0" -> "vLLM 0.24.0"
std::string_view engine_of(std::string_view source) {
  const size_t comma = source.find(", ");
  return comma == std::string_view::npos ? source : source.substr(comma + 2);
}

}  // namespace

int64_t padded_tokens(const StepOverheads& overheads, int64_t tokens) {
  if (tokens > overheads.graph_tokens || tokens < 1) return tokens;
  if (tokens <= 2) return tokens;
  if (tokens <= 4) return 4;
  const int64_t stride = tokens <= 256 ? 8 : overheads.graph_stride;
  return ceil_div(tokens, stride) * stride;
}

OperatorModel::OperatorModel(const ModelSpec& model, const GpuSpec& gpu, const OperatorTable& table,
                             const RooflineOptions& options, const StepOverheads& overheads)
    : options_(options),
      overheads_(overheads),
      roofline_(model, gpu, options),
      lora_(model, gpu, options),
      num_layers_(double(model.num_layers)) {
  const OperatorTimes times(table, gpu);
  add_dense(model, times);
  add_attention(model, times);
  if (options.tp > 1) add_allreduce(model, times);
  token_bytes_ = double(model.hidden * model.dtype_bytes);
  // Two norms or four, those of q and k, rotary embedding, cache write, activation.
  const double norms = model.post_norms ? 4 : 2;
  small_kernels_ = num_layers_ * (norms + (model.qk_norm ? 2 : 0) + 3);
  kernels_ = small_kernels_ + num_layers_ * (kLargeKernels + (options.tp > 1 ? 2 : 0));
  const double logit_byte_ns =
      double(model.vocab) * 1e9 / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_fraction);
  logit_row_ns_ = kSamplerLogitBytes * logit_byte_ns;
  penalty_row_ns_ = overheads.penalty_bytes_per_logit * logit_byte_ns;
  description_ = fmt::format("operators measured on {} ({})", table.card, engine_of(table.source));
  if (!is_measured_card(table, gpu)) description_ += fmt::format(", scaled to {}", gpu.name);
  if (similar_experts_) description_ += ", experts scaled from a similar model";
  if (!from_roofline_.empty()) {
    description_ += fmt::format("; roofline for {}", fmt::join(from_roofline_, ", "));
  }
}

void OperatorModel::add_dense(const ModelSpec& model, const OperatorTimes& times) {
  lm_head_ = times.gemm(ceil_div<int64_t>(model.vocab, options_.tp), model.hidden, false);
  if (!lm_head_) from_roofline_.emplace_back("logits");
  const std::string problem = dense_problem(model, times);
  if (!problem.empty()) from_roofline_.push_back(problem);
}

// Sums the curves of the layers, or says what has none.
std::string OperatorModel::dense_problem(const ModelSpec& model, const OperatorTimes& times) {
  const reference::WeightQuantization& q = model.quantization;
  const bool fp8 = q.bits == 8 && q.is_float && q.activations;
  if (!fp8 && (q.bits > 0 || model.dtype_bytes != 2)) {
    return q.bits > 0 ? "quantised weights" : "products of this type";
  }
  CurveSum sum;
  const auto add = [&](int64_t n, int64_t k, bool in_fp8, double layers) {
    if (layers == 0) return true;
    const std::optional<Curve> curve = times.gemm(n, k, in_fp8);
    if (curve) sum.add(*curve, layers);
    return curve.has_value();
  };
  for (const auto& [group, gemm] : layer_gemms(model, options_.tp)) {
    const double plain = fp8 && !q.experts_only ? gemm.plain_layers : gemm.layers;
    if (!add(gemm.out, gemm.in, false, plain)) return "products";
    if (!add(gemm.out, gemm.in, true, gemm.layers - plain)) return "FP8 products";
  }
  if (model.num_experts > 0) {
    const auto layers = double(model.num_expert_layers());
    const ExpertShape shape = expert_shape(model);
    const std::optional<Curve> experts = times.experts(shape, options_.tp);
    if (!experts || !add(model.num_experts, model.hidden, false, layers)) return "experts";
    sum.add(*experts, layers);
    similar_experts_ = !times.has_experts(shape, options_.tp);
  }
  dense_ = std::move(sum).sum();
  return "";
}

void OperatorModel::add_attention(const ModelSpec& model, const OperatorTimes& times) {
  double full_layers = num_layers_;
  for (const KvWindow& window : model.windows) {
    attention_.push_back({double(window.num_layers), double(window.tokens)});
    full_layers -= double(window.num_layers);
  }
  if (full_layers > 0) attention_.push_back({full_layers, 0});
  if (model.latent.kv_rank > 0) {
    from_roofline_.emplace_back("latent attention");
    return;
  }
  const AttentionShape shape{model.num_heads / options_.tp,
                             model.kv_size(options_.tp) / model.head_dim, model.head_dim,
                             model.fp8_kv};
  heads_ = shape.heads, kv_heads_ = shape.kv_heads;
  decode_ = times.decode_attention(shape);
  const bool has_narrow_tiles = model.head_dim == 128 && !model.fp8_kv;
  wide_decode_ = has_narrow_tiles && overheads_.wide_tile_ns > 0
                     ? times.decode_attention(shape, overheads_.wide_tile_ns)
                     : decode_;
  prefill_ = times.prefill_attention(shape);
  if (!decode_ || !prefill_) from_roofline_.emplace_back("attention over an FP8 cache");
}

void OperatorModel::add_allreduce(const ModelSpec&, const OperatorTimes& times) {
  // Out of a graph too: the times outside have the launch in them, 15 us, which the GPU sees only
  // where it waits for the host (overhead_ns).
  allreduce_ = times.allreduce(options_.tp);
  if (!allreduce_) from_roofline_.emplace_back("all-reduce");
}

// The rows count as if they were alike. Where a row has context before it, or rows differ, the
// pairs are more than those of equal prompts: then its time is that of prompts as long as all it
// reads, in proportion to the pairs.
double OperatorModel::prefill_ns(const BatchShape& shape, double rows, double window) const {
  const double tokens = double(shape.num_prefill_tokens) / rows;
  double pairs = double(shape.prefill_pairs);
  double length = std::max(tokens, double(shape.prefill_context_tokens) / rows);
  if (window > 0) {
    pairs = std::min(pairs, double(shape.num_prefill_tokens) * window);
    length = std::min(length, std::max(window, tokens));
  }
  const double alone = (*prefill_)(rows, tokens);
  const double whole_pairs = rows * length * (length + 1) / 2;
  return std::max(alone, (*prefill_)(rows, length) * pairs / whole_pairs);
}

double OperatorModel::attention_ns(const BatchShape& shape) const {
  if (!decode_ || !prefill_) return roofline_.attention_ns(shape);
  const double decode_rows = double(shape.num_tokens - shape.num_prefill_tokens);
  const double prefill_rows = std::max(double(shape.num_seqs) - decode_rows, 1.0);
  const bool wide = overheads_.wide_tile_ns > 0 && shape.longest_prefill > 0 &&
                    has_wide_tiles(shared_call(shape));
  const Surface& decode = wide ? *wide_decode_ : *decode_;
  double ns = 0;
  for (const AttentionLayers& layers : attention_) {
    double decoding = 0, prompts = 0;
    if (decode_rows > 0) {
      double context = double(shape.decode_context_tokens) / decode_rows;
      if (layers.window > 0) context = std::min(context, layers.window);
      decoding = decode(decode_rows, context);
    }
    if (shape.num_prefill_tokens > 0) prompts = prefill_ns(shape, prefill_rows, layers.window);
    const double saved = std::min({overheads_.shared_call_ns, decoding, prompts});
    ns += layers.count * (decoding + prompts - saved);
  }
  return ns + combine_ns(shape);
}

// The tables' attention is of decoding rows and of prompts apart.
AttentionCall OperatorModel::shared_call(const BatchShape& shape) const {
  return {.heads = heads_,
          .kv_heads = kv_heads_,
          .rows = shape.num_seqs,
          .longest_query = shape.longest_prefill,
          .longest_context = std::max(shape.longest_decode_context, shape.longest_prefill)};
}

// Joins what rows that were cut have computed.
double OperatorModel::combine_ns(const BatchShape& shape) const {
  if (overheads_.combine_block_ns == 0 || shape.longest_prefill == 0) return 0;
  return num_layers_ * double(combine_blocks(shared_call(shape))) * overheads_.combine_block_ns;
}

double OperatorModel::allreduce_ns(const BatchShape& shape, int64_t tokens) const {
  if (options_.tp == 1) return 0;
  if (!allreduce_) return roofline_.allreduce_ns(shape);
  return 2 * num_layers_ * (*allreduce_)(double(tokens) * token_bytes_);
}

// The kernels that no table has, and what the GPU waits for the host.
double OperatorModel::overhead_ns(const BatchShape& shape, double gpu_ns, bool graph) const {
  const double kernels = small_kernels_ * overheads_.small_kernel_ns +
                         (shape.num_sampled > 0 ? overheads_.sampler_ns : 0);
  const double busy = gpu_ns + kernels;
  const double launched = graph ? busy
                                : std::max(busy, kernels_ * overheads_.launch_ns +
                                                     lora_.launch_ns(shape, overheads_.launch_ns));
  const double host =
      overheads_.host_ns + lora_.host_ns(shape) + double(shape.num_seqs) * overheads_.host_row_ns +
      double(shape.num_waiting_seen) * overheads_.host_waiting_ns +
      (shape.rows_changed ? double(shape.num_seqs) : 0) * overheads_.penalty_host_row_ns;
  const double total = overheads_.host_overlaps ? std::max(launched, host) : launched + host;
  return total - gpu_ns;
}

StepParts OperatorModel::parts(const BatchShape& shape) const {
  const bool graph = shape.num_tokens <= overheads_.graph_tokens &&
                     (overheads_.graphs_prefill || shape.num_prefill_tokens == 0);
  const int64_t tokens = graph ? padded_tokens(overheads_, shape.num_tokens) : shape.num_tokens;
  StepParts parts;
  parts.dense =
      dense_ ? (*dense_)(double(tokens)) + double(tokens) * roofline_.activation_ns_per_token()
             : roofline_.dense_ns(shape);
  parts.attention = attention_ns(shape);
  if (shape.num_sampled > 0) {
    const double rows = double(shape.num_sampled);
    parts.logits = lm_head_ ? (*lm_head_)(rows) + rows * logit_row_ns_ : roofline_.logits_ns(shape);
    parts.logits += rows * penalty_row_ns_;
  }
  parts.lora = lora_.gpu_ns(shape, tokens, graph);
  parts.allreduce = allreduce_ns(shape, tokens);
  parts.overhead = overhead_ns(shape, parts.total(), graph);
  return parts;
}

int64_t OperatorModel::step_ns(const BatchShape& shape) const {
  return round_step_ns(parts(shape).total());
}

}  // namespace loratory::sim
