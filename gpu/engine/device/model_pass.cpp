#include "gpu/engine/device/model_pass.hpp"

#include <initializer_list>

#include "gpu/engine/device/engine_kernels.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/model/embedding.hpp"
#include "gpu/model/embedding_lora.hpp"
#include "gpu/model/rotary.hpp"
#include "gpu/moe/expert_product.hpp"
#include "gpu/moe/router.hpp"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::ModelConfig;
using reference::ModuleId;
using reference::Projection;

namespace {

constexpr LaunchOrder kOverlaps = LaunchOrder::overlaps_previous;
// What the variants of choose_variant() take: decode, few adapters, prefill.
constexpr int32_t kSegmentSizes[] = {8, 32, 64};
// Attention of so few rows leaves SMs to an o of few tiles, which has its weights by the time x
// comes. With two rows and four it gains nothing (docs/base_products.md).
constexpr int64_t kRowsOfShortAttention = 1;

int64_t q_size(const ModelConfig& c) { return c.num_heads * c.head_dim; }
int64_t qkv_size(const ModelConfig& c) { return (c.num_heads + 2 * c.num_kv_heads) * c.head_dim; }

// A LoRA linear behind the product of the same x.
struct BehindProduct {
  ProductUse use;
  LoraTensors tensors;
};
BehindProduct behind(const BaseProduct& product, const LoraLayer& lora, int64_t max_adapters,
                     const DeviceView& x, const DeviceView& y,
                     ProductUse without_lora = ProductUse::alone) {
  LoraTensors tensors{.x = x, .h = {}, .y = y, .max_adapters = max_adapters};
  const ProductUse use = lora.gains_by_idle_sms(tensors) ? ProductUse::before_lora : without_lora;
  tensors.idle_sms = product.idle_sms(x.shape[0], use);
  return {use, tensors};
}

}  // namespace

// --- keys and values --------------------------------------------------------------------------

DeviceKv::DeviceKv(const ModelConfig& model, const sim::SchedulerConfig& config, Dtype dtype)
    : num_layers_(model.num_layers), tensor_bytes_(kv_tensor_bytes(model, config, dtype)) {
  shape_.dtype = dtype;
  shape_.num_blocks = config.num_blocks;
  shape_.kv_heads = int32_t(model.num_kv_heads);
  shape_.block_size = int32_t(config.block_size);
  shape_.head_dim = int32_t(model.head_dim);
  memory_ = make_device_buffer(size_t(bytes()));
  LORATORY_CUDA_CHECK(cudaMemset(memory_.get(), 0xFF, size_t(bytes())));
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
}

KvView DeviceKv::layer(int64_t index) const {
  KvView out = shape_;
  out.k = memory_.get() + 2 * index * tensor_bytes_;
  out.v = memory_.get() + (2 * index + 1) * tensor_bytes_;
  return out;
}

void DeviceKv::poison(const int32_t* blocks, int32_t num_blocks, CUstream_st* stream) const {
  const int64_t block_bytes = int64_t{shape_.kv_heads} * shape_.block_size * shape_.head_dim *
                              int64_t(size_bytes(shape_.dtype));
  for (int64_t i = 0; i < 2 * num_layers_; ++i) {
    poison_blocks(memory_.get() + i * tensor_bytes_, block_bytes, blocks, num_blocks, stream);
  }
}

// --- what a pass is made of -------------------------------------------------------------------

struct ModelPass::Layer {
  BaseProduct qkv, o;
  std::optional<BaseProduct> gate_up = {}, down = {};  ///< of a layer without experts
  std::optional<BaseProduct> router = {};              ///< of one with them
  std::optional<LoraLayer> qkv_lora, o_lora, gate_up_lora, down_lora;
  std::optional<ExpertLora> experts_gate_up = {}, experts_down = {};
};

// What only steps with adapters use.
struct ModelPass::Lora {
  Lora(const PassLayout& layout, int32_t max_loras)
      : tokens(layout.num_tokens, max_loras, kSegmentSizes),
        sampled(layout.num_sampled, max_loras, kSegmentSizes) {}

  DeviceSegmentBuilder tokens, sampled;
  std::optional<ExpertGroups> experts;
  std::optional<LoraLayer> embedding, lm_head;
  int64_t embedding_module = -1;
};

// One launch of the pass.
struct ModelPass::Step {
  const StepArrays& arrays;
  BatchView batch;
  int32_t max_row_tokens;
  const Lora* lora;  // null: base tokens only
  int32_t max_adapters;
  CUstream_st* stream;

  int64_t num_tokens() const { return arrays.shape.num_tokens; }
  int64_t num_sampled() const { return arrays.shape.num_sampled; }
};

ModelPass::~ModelPass() = default;

ModelPass::ModelPass(const DeviceModel& model, Products& products, const DeviceSlots* slots,
                     const sim::SchedulerConfig& bounded, const EngineOptions& options)
    : model_(model),
      slots_(slots),
      block_size_(int32_t(bounded.block_size)),
      attention_(plan_attention(model.config(), bounded, model.dtype())),
      layout_(lay_out_pass(model.config(), bounded, options)),
      workspace_(make_device_buffer(size_t(layout_.bytes))) {
  // NaN where nothing was written, and no counts of an earlier life.
  LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, size_t(layout_.bytes)));
  LORATORY_CUDA_CHECK(
      cudaMemset(at<void>(layout_.attention), 0, size_t(attention_.workspace_bytes())));
  if (slots != nullptr) {
    lora_ = std::make_unique<Lora>(layout_, slots->max_loras());
    LORATORY_CUDA_CHECK(
        cudaMemset(at<void>(layout_.split_sums), 0, size_t(layout_.split_sums_bytes)));
  }
  add_groups();
  add_rope(bounded.max_model_len);
  add_layers(products);
  kv_.emplace(model.config(), bounded, model.dtype());
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
}

void ModelPass::add_rope(int64_t num_positions) {
  const RopeTables tables =
      make_rope_tables(model_.config().rope, model_.config().head_dim, num_positions);
  const auto add = [&](int64_t offset, const std::vector<float>& from) {
    LORATORY_CUDA_CHECK(cudaMemcpy(at<void>(offset), from.data(), from.size() * sizeof(float),
                                   cudaMemcpyHostToDevice));
    return device_view(Dtype::f32, at<void>(offset), {num_positions, model_.config().head_dim / 2});
  };
  rope_cos_ = add(layout_.rope_cos, tables.cos);
  rope_sin_ = add(layout_.rope_sin, tables.sin);
}

void ModelPass::add_groups() {
  const ModelConfig& c = model_.config();
  if (c.num_experts == 0) return;
  ExpertGroupsShape shape{.max_tokens = layout_.num_tokens,
                          .experts_per_token = int32_t(c.experts_per_token),
                          .num_experts = int32_t(c.num_experts)};
  experts_ = std::make_unique<ExpertGroups>(shape);
  if (lora_ == nullptr) return;
  shape.num_slots = slots_->max_loras();
  lora_->experts.emplace(shape);
}

void ModelPass::add_mlp(Products& products, int64_t index, Layer& layer) {
  const ModelConfig& c = model_.config();
  const LayerOffsets& w = model_.layout().layers[size_t(index)];
  if (!has_experts(c, index)) {
    const DeviceView gate_up = model_.matrix(w.gate_up, 2 * c.intermediate, c.hidden);
    layer.gate_up.emplace(products, gate_up, model_.optional(w.gate_up_bias), model_.dtype(),
                          layout_.num_tokens, /*feeds_silu_mul=*/true);
    layer.down.emplace(products, model_.matrix(w.down, c.hidden, c.intermediate),
                       model_.optional(w.down_bias), model_.dtype(), layout_.num_tokens);
    return;
  }
  layer.router.emplace(products, model_.matrix(w.router, c.num_experts, c.hidden), nullptr,
                       Dtype::f32, layout_.num_tokens);
  if (slots_ == nullptr) return;
  const auto lora = [&](std::initializer_list<Projection> slices,
                        int64_t rows_per_x) -> std::optional<ExpertLora> {
    std::optional<LoraLayerDesc> desc =
        slots_->describe_experts(index, {slices.begin(), slices.size()}, int32_t(rows_per_x));
    if (!desc) return std::nullopt;
    desc->workspace = at<void>(layout_.lora_h);
    desc->workspace_bytes = size_t(layout_.lora_h_bytes);
    return ExpertLora(*std::move(desc));
  };
  layer.experts_gate_up = lora({Projection::gate, Projection::up}, c.experts_per_token);
  layer.experts_down = lora({Projection::down}, 1);
}

void ModelPass::add_layers(Products& products) {
  const ModelConfig& c = model_.config();
  const auto lora = [&](std::initializer_list<ModuleId> slices,
                        LoraOp op) -> std::optional<LoraLayer> {
    if (slots_ == nullptr) return std::nullopt;
    std::optional<LoraLayerDesc> desc = slots_->describe({slices.begin(), slices.size()}, op);
    if (!desc) return std::nullopt;
    desc->workspace = at<void>(layout_.lora_h);
    desc->workspace_bytes = size_t(layout_.lora_h_bytes);
    desc->split_sums = at<void>(layout_.split_sums);
    desc->split_sums_bytes = size_t(layout_.split_sums_bytes);
    return LoraLayer(*std::move(desc));
  };
  const auto product = [&](int64_t weight, int64_t bias, int64_t rows, int64_t columns) {
    return BaseProduct(products, model_.matrix(weight, rows, columns), model_.optional(bias),
                       model_.dtype(), layout_.num_tokens);
  };
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const LayerOffsets& w = model_.layout().layers[size_t(i)];
    const auto id = [i](Projection p) { return ModuleId{i, -1, p}; };
    layers_.push_back(
        {.qkv = product(w.qkv, w.qkv_bias, qkv_size(c), c.hidden),
         .o = product(w.o, w.o_bias, c.hidden, q_size(c)),
         .qkv_lora =
             lora({id(Projection::q), id(Projection::k), id(Projection::v)}, LoraOp::linear),
         .o_lora = lora({id(Projection::o)}, LoraOp::linear),
         .gate_up_lora = lora({id(Projection::gate), id(Projection::up)}, LoraOp::linear),
         .down_lora = lora({id(Projection::down)}, LoraOp::linear)});
    add_mlp(products, i, layers_.back());
  }
  lm_head_ = std::make_unique<BaseProduct>(
      products, model_.matrix(model_.layout().lm_head, c.vocab, c.hidden), nullptr, Dtype::f32,
      layout_.num_sampled);
  if (lora_ == nullptr) return;
  const ModuleId embedding{-1, -1, Projection::embed_tokens};
  lora_->embedding_module = slots_->layout().find(embedding);
  lora_->embedding = lora({embedding}, LoraOp::expand);
  lora_->lm_head = lora({{-1, -1, Projection::lm_head}}, LoraOp::linear);
}

// --- the pass ---------------------------------------------------------------------------------

DeviceView ModelPass::view(int64_t offset, int64_t num_rows, int64_t num_columns) const {
  return device_view(model_.dtype(), workspace_.get() + offset, {num_rows, num_columns});
}

BatchView ModelPass::batch(const StepArrays& arrays) const {
  const auto array = [&](int64_t offset) { return at<const int32_t>(layout_.step + offset); };
  BatchView out;
  out.num_tokens = arrays.shape.num_tokens;
  out.num_rows = arrays.shape.num_rows;
  out.token_ids = array(arrays.token_ids);
  out.last_sampled = tokens();
  out.positions = array(arrays.positions);
  out.token_rows = array(arrays.token_rows);
  out.row_starts = array(arrays.row_starts);
  out.contexts = array(arrays.contexts);
  out.block_tables = array(arrays.block_tables);
  out.max_blocks = arrays.max_blocks;
  out.block_size = block_size_;
  return out;
}

RmsNormArgs ModelPass::norm(int64_t weight, const DeviceView& x, const DeviceView& y) const {
  return {.x = x,
          .weight = model_.vector(weight, model_.config().hidden),
          .y = y,
          .eps = model_.config().rms_norm_eps};
}

void ModelPass::launch(const StepArrays& arrays, int32_t max_row_tokens, int32_t max_adapters,
                       CUstream_st* stream) const {
  const Step step{.arrays = arrays,
                  .batch = batch(arrays),
                  .max_row_tokens = max_row_tokens,
                  .lora = max_adapters > 0 ? lora_.get() : nullptr,
                  .max_adapters = max_adapters,
                  .stream = stream};
  begin(step);
  for (int64_t i = 0; i < int64_t(layers_.size()); ++i) {
    attention(step, i);
    mlp(step, i);
  }
  finish(step);
}

void ModelPass::linear(const Step& step, const BaseProduct& product,
                       const std::optional<LoraLayer>& lora, const DeviceView& x,
                       const DeviceView& y, ProductUse without_lora) const {
  if (step.lora == nullptr || !lora) {
    return product.launch(x, y, step.stream, kOverlaps, without_lora);
  }
  const auto [use, tensors] = behind(product, *lora, step.max_adapters, x, y, without_lora);
  product.launch(x, y, step.stream, kOverlaps, use);
  const int32_t size = lora->variant_for(tensors).segment_size();
  const bool of_head = &product == lm_head_.get();
  const DeviceSegmentBuilder& segments = of_head ? step.lora->sampled : step.lora->tokens;
  lora->launch(tensors, segments.view(size), step.stream, product.order_behind(x.shape[0], use));
}

void ModelPass::begin(const Step& step) const {
  const ModelConfig& c = model_.config();
  const auto slots_at = [&](int64_t offset) { return at<const int32_t>(layout_.step + offset); };
  if (step.lora != nullptr) {
    step.lora->tokens.build(slots_at(step.arrays.token_slots), step.num_tokens(), step.stream);
    if (step.num_sampled() > 0) {
      step.lora->sampled.build(slots_at(step.arrays.sampled_slots), step.num_sampled(),
                               step.stream);
    }
  }
  attention_.build_work(step.batch, at<void>(layout_.attention), step.stream);
  const DeviceView x = view(layout_.x, step.num_tokens(), c.hidden);
  // Overlaps nothing: segments and the work of attention are there from here on, and kernels that
  // overlap read them before they wait.
  embed(step.batch,
        {.table = model_.matrix(model_.layout().embed_tokens, c.vocab, c.hidden),
         .x = x,
         .ids = at<int32_t>(layout_.ids)},
        step.stream, LaunchOrder::after_previous);
  if (step.lora != nullptr && step.lora->embedding) embedding_lora(step);
  rms_norm(norm(model_.layout().layers[0].input_norm, x,
                view(layout_.normed, step.num_tokens(), c.hidden)),
           step.stream, LaunchOrder::after_previous);
}

void ModelPass::embedding_lora(const Step& step) const {
  const int64_t module = step.lora->embedding_module;
  const DeviceView h = device_view(Dtype::f32, at<void>(layout_.lora_h),
                                   {1, step.num_tokens(), slots_->layout().max_rank()});
  shrink_embedding({.a = slots_->a(module),
                    .factors = slots_->a_factors(module),
                    .ranks = slots_->ranks(module),
                    .slots = at<const int32_t>(layout_.step + step.arrays.token_slots),
                    .ids = at<const int32_t>(layout_.ids),
                    .h = h},
                   step.stream);
  const LoraTensors tensors{.x = {},
                            .h = h,
                            .y = view(layout_.x, step.num_tokens(), model_.config().hidden),
                            .max_adapters = step.max_adapters};
  const LoraLayer& layer = *step.lora->embedding;
  layer.launch(tensors, step.lora->tokens.view(layer.variant_for(tensors).segment_size()),
               step.stream, LaunchOrder::after_previous);
}

void ModelPass::attention(const Step& step, int64_t index) const {
  const ModelConfig& c = model_.config();
  const Layer& layer = layers_[size_t(index)];
  const LayerOffsets& w = model_.layout().layers[size_t(index)];
  const int64_t tokens = step.num_tokens();
  const DeviceView normed = view(layout_.normed, tokens, c.hidden);
  const DeviceView qkv = view(layout_.qkv, tokens, qkv_size(c));
  const DeviceView attended = view(layout_.attended, tokens, q_size(c));
  const DeviceView delta = view(layout_.delta, tokens, c.hidden);
  linear(step, layer.qkv, layer.qkv_lora, normed, qkv);
  const KvView kv = kv_->layer(index);
  rotary(step.batch,
         {.qkv = qkv,
          .num_heads = int32_t(c.num_heads),
          .cos = rope_cos_,
          .sin = rope_sin_,
          .q_norm = model_.optional(w.q_norm),
          .k_norm = model_.optional(w.k_norm),
          .eps = c.rms_norm_eps,
          .kv = kv},
         step.stream, kOverlaps);
  DeviceView q = qkv;
  q.shape[1] = q_size(c);
  attention_.launch({.q = q, .out = attended, .kv = kv}, step.batch, step.max_row_tokens,
                    at<void>(layout_.attention), step.stream, kOverlaps);
  linear(step, layer.o, layer.o_lora, attended, delta,
         tokens <= kRowsOfShortAttention ? ProductUse::before_lora : ProductUse::alone);
  add_rms_norm(norm(w.post_attention_norm, view(layout_.x, tokens, c.hidden), normed), delta,
               step.stream, kOverlaps);
}

// Which experts the tokens go to, and the groups of their rows.
void ModelPass::route_tokens(const Step& step, const Layer& layer) const {
  const ModelConfig& c = model_.config();
  const int64_t tokens = step.num_tokens();
  const DeviceView logits =
      device_view(Dtype::f32, at<void>(layout_.router_logits), {tokens, c.num_experts});
  layer.router->launch(view(layout_.normed, tokens, c.hidden), logits, step.stream, kOverlaps);
  route({.logits = logits,
         .kind = c.norm_topk_prob ? RouterKind::softmax_normalised : RouterKind::softmax,
         .k = int32_t(c.experts_per_token),
         .experts = at<int32_t>(layout_.experts),
         .weights = at<float>(layout_.router_weights),
         .token_rows = step.batch.token_rows},
        step.stream, kOverlaps);
  ExpertRowsView rows{.num_tokens = tokens, .experts = at<const int32_t>(layout_.experts)};
  experts_->build(rows, step.stream);
  if (step.lora == nullptr || !layer.experts_gate_up) return;
  rows.slots = at<const int32_t>(layout_.step + step.arrays.token_slots);
  step.lora->experts->build(rows, step.stream);
}

// Row t·k + i is token t at its i-th expert. Rows of padding are in no group: whatever lies there
// stays there, and combine_experts() leaves it out.
void ModelPass::experts(const Step& step, int64_t index) const {
  const ModelConfig& c = model_.config();
  const Layer& layer = layers_[size_t(index)];
  const LayerOffsets& w = model_.layout().layers[size_t(index)];
  const int64_t tokens = step.num_tokens(), k = c.experts_per_token, rows = tokens * k;
  const DeviceView normed = view(layout_.normed, tokens, c.hidden);
  const DeviceView gate_up = view(layout_.gate_up, rows, 2 * c.expert_intermediate);
  const DeviceView activation = view(layout_.activation, rows, c.expert_intermediate);
  const DeviceView z = view(layout_.expert_out, rows, c.hidden);
  const auto add_lora = [&](const std::optional<ExpertLora>& lora, const DeviceView& x,
                            const DeviceView& y) {
    if (step.lora == nullptr || !lora) return;
    lora->launch({.x = x, .h = {}, .y = y}, step.lora->experts->views(), step.stream, kOverlaps);
  };
  route_tokens(step, layer);
  // The first that reads groups: after everything before it.
  expert_product({.x = normed,
                  .weights = model_.experts(w.experts_gate_up, 2 * c.expert_intermediate, c.hidden),
                  .y = gate_up,
                  .rows_per_x = int32_t(k)},
                 experts_->views(), step.stream, LaunchOrder::after_previous);
  add_lora(layer.experts_gate_up, normed, gate_up);
  silu_mul(gate_up, activation, step.stream, kOverlaps);
  expert_product({.x = activation,
                  .weights = model_.experts(w.experts_down, c.hidden, c.expert_intermediate),
                  .y = z},
                 experts_->views(), step.stream, kOverlaps);
  add_lora(layer.experts_down, activation, z);
  combine_experts({.z = z,
                   .y = view(layout_.delta, tokens, c.hidden),
                   .router_weights = at<const float>(layout_.router_weights),
                   .experts = at<const int32_t>(layout_.experts)},
                  step.stream, kOverlaps);
}

// None, and nothing launched: the LoRA of this layer cannot end with SwiGLU.
std::optional<SiluMulVariants> ModelPass::lora_silu_mul(const Step& step, const Layer& layer,
                                                        const DeviceView& x,
                                                        const DeviceView& gate_up,
                                                        const DeviceView& activation) const {
  const auto [use, tensors] =
      behind(*layer.gate_up, *layer.gate_up_lora, step.max_adapters, x, gate_up);
  const LoraLayer* const next = layer.down_lora ? &*layer.down_lora : nullptr;
  auto variants = layer.gate_up_lora->silu_mul_variants_for(tensors, activation, next);
  if (!variants) return variants;
  layer.gate_up->launch(x, gate_up, step.stream, kOverlaps, use);
  layer.gate_up_lora->launch_silu_mul(
      *variants, tensors, activation, step.lora->tokens.view(variants->shrink.segment_size()),
      step.stream, layer.gate_up->order_behind(x.shape[0], use), next);
  return variants;
}

void ModelPass::dense_mlp(const Step& step, int64_t index) const {
  const ModelConfig& c = model_.config();
  const Layer& layer = layers_[size_t(index)];
  const int64_t tokens = step.num_tokens();
  const DeviceView normed = view(layout_.normed, tokens, c.hidden);
  const DeviceView gate_up = view(layout_.gate_up, tokens, 2 * c.intermediate);
  const DeviceView activation = view(layout_.activation, tokens, c.intermediate);
  const DeviceView delta = view(layout_.delta, tokens, c.hidden);
  const bool has_lora = step.lora != nullptr && layer.gate_up_lora;
  const std::optional<SiluMulVariants> lora =
      has_lora ? lora_silu_mul(step, layer, normed, gate_up, activation) : std::nullopt;
  const bool is_done =
      has_lora ? lora.has_value()
               : layer.gate_up->launch_silu_mul(normed, activation, step.stream, kOverlaps);
  if (!is_done) {
    linear(step, *layer.gate_up, layer.gate_up_lora, normed, gate_up);
    silu_mul(gate_up, activation, step.stream, kOverlaps);
  }
  if (!lora || !lora->shrinks_next) {
    linear(step, *layer.down, layer.down_lora, activation, delta);
    return;
  }
  layer.down->launch(activation, delta, step.stream, kOverlaps);
  layer.down_lora->launch_behind_splits(
      {.x = activation, .h = {}, .y = delta, .max_adapters = step.max_adapters}, gate_up,
      step.lora->tokens.view(lora->shrink.segment_size()), step.stream, kOverlaps);
}

void ModelPass::mlp(const Step& step, int64_t index) const {
  const ModelConfig& c = model_.config();
  const int64_t tokens = step.num_tokens();
  const DeviceView normed = view(layout_.normed, tokens, c.hidden);
  const DeviceView delta = view(layout_.delta, tokens, c.hidden);
  if (has_experts(c, index))
    experts(step, index);
  else
    dense_mlp(step, index);
  if (index + 1 == c.num_layers) return;
  const int64_t next = model_.layout().layers[size_t(index) + 1].input_norm;
  add_rms_norm(norm(next, view(layout_.x, tokens, c.hidden), normed), delta, step.stream,
               kOverlaps);
}

void ModelPass::finish(const Step& step) const {
  const ModelConfig& c = model_.config();
  const int64_t sampled = step.num_sampled();
  if (sampled == 0) return;
  const DeviceView x = view(layout_.x, step.num_tokens(), c.hidden);
  const DeviceView delta = view(layout_.delta, step.num_tokens(), c.hidden);
  const DeviceView normed = view(layout_.sampled, sampled, c.hidden);
  RmsNormArgs last = norm(model_.layout().norm, x, normed);
  last.rows = at<const int32_t>(layout_.step + step.arrays.sampled_tokens);
  add_rms_norm(last, delta, step.stream, kOverlaps);
  const DeviceView logits = device_view(Dtype::f32, at<void>(layout_.logits), {sampled, c.vocab});
  static const std::optional<LoraLayer> kNone;
  linear(step, *lm_head_, step.lora != nullptr ? step.lora->lm_head : kNone, normed, logits);
  sample({.logits = logits,
          .rows = at<const SamplingRow>(layout_.step + step.arrays.sampling),
          .tokens = at<int32_t>(layout_.tokens),
          .logprobs = at<double>(layout_.logprobs),
          .top_tokens = at<int32_t>(layout_.top_tokens),
          .top_logprobs = at<double>(layout_.top_logprobs),
          .max_top = kMostLogprobs},
         step.stream, kOverlaps);
}

}  // namespace loratory::gpu
