#include "scheduler_sim/cost/module_shapes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/integers.hpp"

namespace loratory::sim {
namespace {

enum Group : int {
  kQkv,
  kO,
  kGateUp,
  kDown,
  kEmbed,
  kHead,
  kSharedGateUp,
  kSharedDown,
  kDenseGateUp,
  kDenseDown,
  kQb,
  kKvb
};

void add_attention(const ModelSpec& m, std::vector<ModuleShape>& shapes) {
  const int64_t h = m.hidden, q = m.q_size(), kv = m.kv_size(), n = m.num_layers;
  if (m.fused_projections) {
    shapes.push_back({"qkv_proj", h, q + 2 * kv, n, TpCut::column, kQkv});
  } else {
    shapes.push_back({"q_proj", h, q, n, TpCut::column, kQkv});
    shapes.push_back({"k_proj", h, kv, n, TpCut::column, kQkv});
    shapes.push_back({"v_proj", h, kv, n, TpCut::column, kQkv});
  }
  shapes.push_back({"o_proj", q, h, n, TpCut::row, kO});
}

void add_latent_attention(const ModelSpec& m, std::vector<ModuleShape>& shapes) {
  const reference::LatentAttention& a = m.latent;
  const int64_t h = m.hidden, q = m.q_size(), n = m.num_layers;
  if (a.q_rank > 0) {
    shapes.push_back({"q_a_proj", h, a.q_rank, n, TpCut::replicated, kQkv});
    shapes.push_back({"q_b_proj", a.q_rank, q, n, TpCut::column, kQb});
  } else {
    shapes.push_back({"q_proj", h, q, n, TpCut::column, kQb});
  }
  const int64_t kv_b = m.num_heads * (a.nope_dim + a.v_dim);
  shapes.push_back({"kv_a_proj_with_mqa", h, a.kv_rank + a.rope_dim, n, TpCut::replicated, kQkv});
  shapes.push_back({"kv_b_proj", a.kv_rank, kv_b, n, TpCut::column, kKvb});
  shapes.push_back({"o_proj", m.num_heads * a.v_dim, h, n, TpCut::row, kO});
}

void add_mlp(const ModelSpec& m, int64_t width, int64_t count, int gate_up, ModulePart part,
             std::vector<ModuleShape>& shapes) {
  if (count == 0 || width == 0) return;
  const int64_t h = m.hidden;
  if (m.fused_projections) {
    shapes.push_back({"gate_up_proj", h, 2 * width, count, TpCut::column, gate_up, part});
  } else {
    shapes.push_back({"gate_proj", h, width, count, TpCut::column, gate_up, part});
    shapes.push_back({"up_proj", h, width, count, TpCut::column, gate_up, part});
  }
  shapes.push_back({"down_proj", width, h, count, TpCut::row, gate_up + 1, part});
}

ModuleShape cut_shape(ModuleShape shape, const ModelSpec& model, int tp) {
  if (shape.name == "k_proj" || shape.name == "v_proj") {
    shape.out = model.kv_size(tp);  // replicated heads when tp exceeds them
  } else if (shape.name == "qkv_proj") {
    shape.out = model.q_size(tp) + 2 * model.kv_size(tp);
  } else if (shape.cut == TpCut::column) {
    shape.out = ceil_div<int64_t>(shape.out, tp);
  } else if (shape.cut == TpCut::row) {
    shape.in /= tp;
  }
  return shape;
}

std::string path_of(const ModuleShape& shape, int64_t layer) {
  const auto place = [&] {
    switch (shape.part) {
      case ModulePart::attention:
        return "self_attn";
      case ModulePart::expert:
        return "mlp.experts.0";
      case ModulePart::shared_expert:
        return "mlp.shared_experts";
      case ModulePart::mlp:
      case ModulePart::vocabulary:
        break;
    }
    return "mlp";
  }();
  return fmt::format("model.layers.{}.{}.{}", layer, place, shape.name);
}

// In which layers a part stands: dense MLPs of a mixture are taken to come first, as DeepSeek's do.
int64_t first_layer(const ModelSpec& model, const ModuleShape& shape) {
  const bool after = shape.is_expert() || shape.part == ModulePart::shared_expert;
  return after ? model.num_dense_layers : 0;
}

}  // namespace

std::vector<ModuleShape> module_shapes(const ModelSpec& model) {
  std::vector<ModuleShape> shapes;
  if (model.latent.kv_rank > 0) {
    add_latent_attention(model, shapes);
  } else {
    add_attention(model, shapes);
  }
  if (model.num_experts == 0) {
    add_mlp(model, model.intermediate, model.num_layers, kGateUp, ModulePart::mlp, shapes);
  } else {
    add_mlp(model, model.intermediate, model.num_expert_layers() * model.num_experts, kGateUp,
            ModulePart::expert, shapes);
  }
  const int64_t h = model.hidden;
  const ModulePart vocabulary = ModulePart::vocabulary;
  shapes.push_back({"embed_tokens", model.vocab, h, 1, TpCut::replicated, kEmbed, vocabulary});
  shapes.push_back({"lm_head", h, model.vocab, 1, TpCut::column, kHead, vocabulary});
  add_mlp(model, model.shared_intermediate, model.num_expert_layers(), kSharedGateUp,
          ModulePart::shared_expert, shapes);
  add_mlp(model, model.dense_intermediate, model.num_dense_layers, kDenseGateUp, ModulePart::mlp,
          shapes);
  for (size_t i = 0; i < model.plain_layers.size(); ++i) {
    shapes[i].plain_layers = model.plain_layers[i];
  }
  return shapes;
}

std::vector<ModuleShape> cut_module_shapes(const ModelSpec& model, int tp) {
  std::vector<ModuleShape> shapes = module_shapes(model);
  for (ModuleShape& shape : shapes) shape = cut_shape(shape, model, tp);
  return shapes;
}

int64_t num_layers_of(const ModelSpec& model, const ModuleShape& shape) {
  return shape.is_expert() ? shape.count / model.num_experts : shape.count;
}

std::vector<int64_t> count_plain_layers(const ModelSpec& model) {
  const reference::WeightQuantization& q = model.quantization;
  if (q.ignored.empty()) return {};
  std::vector<int64_t> counts;
  for (const ModuleShape& shape : module_shapes(model)) {
    const int64_t first = first_layer(model, shape);
    int64_t& count = counts.emplace_back(0);
    if (shape.is_vocabulary()) continue;
    for (int64_t i = first; i < first + num_layers_of(model, shape); ++i) {
      count += reference::is_ignored(q, path_of(shape, i)) ? 1 : 0;
    }
  }
  return counts;
}

int64_t module_bytes(const ModelSpec& model, const ModuleShape& shape) {
  const reference::WeightQuantization& q = model.quantization;
  const int64_t plain = shape.in * shape.out * model.dtype_bytes;
  const bool keeps_type =
      q.bits == 0 || shape.is_vocabulary() || (q.experts_only && !shape.is_expert());
  if (keeps_type) return shape.count * plain;
  const int64_t layers = num_layers_of(model, shape);
  const int64_t stored = reference::quantized_bytes(q, shape.out, shape.in);
  return shape.count / layers *
         (shape.plain_layers * plain + (layers - shape.plain_layers) * stored);
}

int64_t part_bytes(const ModelSpec& model, ModulePart part, int tp) {
  int64_t bytes = 0;
  for (const ModuleShape& shape : cut_module_shapes(model, tp)) {
    if (shape.part == part) bytes += module_bytes(model, shape);
  }
  return bytes;
}

}  // namespace loratory::sim
