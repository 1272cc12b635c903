#include "scheduler_sim/cost/lora_shapes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/text.hpp"

namespace loratory::sim {
namespace {

struct Module {
  std::string_view name, short_name;
  bool linear;  // part of "all-linear"
};

constexpr std::array<Module, 9> kModules{{{"q_proj", "q", true},
                                          {"k_proj", "k", true},
                                          {"v_proj", "v", true},
                                          {"o_proj", "o", true},
                                          {"gate_proj", "gate", true},
                                          {"up_proj", "up", true},
                                          {"down_proj", "down", true},
                                          {"embed_tokens", "embed", false},
                                          {"lm_head", "lm_head", false}}};

bool item_selects(std::string_view item, const Module& module) {
  return item == module.name || item == module.short_name ||
         (item == "all-linear" && module.linear);
}

ModuleShape cut_shape(ModuleShape shape, const ModelSpec& model, int tp) {
  if (shape.name == "k_proj" || shape.name == "v_proj") {
    shape.out = model.kv_size(tp);  // replicated heads when tp exceeds them
  } else if (shape.cut == TpCut::column) {
    shape.out = ceil_div<int64_t>(shape.out, tp);
  } else if (shape.cut == TpCut::row) {
    shape.in /= tp;
  }
  return shape;
}

}  // namespace

std::vector<ModuleShape> module_shapes(const ModelSpec& model) {
  const int64_t h = model.hidden, i = model.intermediate, shared = model.shared_intermediate;
  const int64_t layers = model.num_layers;
  const bool moe = model.num_experts > 0;
  const int64_t mlps = layers * std::max<int64_t>(model.num_experts, 1);
  std::vector<ModuleShape> shapes{{"q_proj", h, model.q_size(), layers, TpCut::column, 0},
                                  {"k_proj", h, model.kv_size(), layers, TpCut::column, 0},
                                  {"v_proj", h, model.kv_size(), layers, TpCut::column, 0},
                                  {"o_proj", model.q_size(), h, layers, TpCut::row, 1},
                                  {"gate_proj", h, i, mlps, TpCut::column, 2, moe},
                                  {"up_proj", h, i, mlps, TpCut::column, 2, moe},
                                  {"down_proj", i, h, mlps, TpCut::row, 3, moe},
                                  {"embed_tokens", model.vocab, h, 1, TpCut::replicated, 4},
                                  {"lm_head", h, model.vocab, 1, TpCut::column, 5}};
  if (shared > 0) {
    shapes.push_back({"gate_proj", h, shared, layers, TpCut::column, 6});
    shapes.push_back({"up_proj", h, shared, layers, TpCut::column, 6});
    shapes.push_back({"down_proj", shared, h, layers, TpCut::row, 7});
  }
  return shapes;
}

LoraTargets::LoraTargets(std::string_view list) {
  const std::vector<std::string_view> items = split(list, ',');
  for (std::string_view item : items) {
    const bool known = std::ranges::any_of(
        kModules, [item](const Module& module) { return item_selects(item, module); });
    if (known) continue;
    throw InputError("--target-modules", fmt::format("unknown module '{}'", item),
                     "use all-linear or a comma list of q_proj, k_proj, v_proj, o_proj, "
                     "gate_proj, up_proj, down_proj, embed_tokens, lm_head");
  }
  for (const Module& module : kModules) {
    const bool selected = std::ranges::any_of(
        items, [&module](std::string_view item) { return item_selects(item, module); });
    if (selected) names_.push_back(module.name);
  }
}

bool LoraTargets::contains(std::string_view module) const {
  return std::ranges::find(names_, module) != names_.end();
}

std::string LoraTargets::to_string() const { return fmt::format("{}", fmt::join(names_, ",")); }

std::vector<ModuleShape> lora_shapes(const ModelSpec& model, const LoraTargets& targets, int tp) {
  std::vector<ModuleShape> shapes;
  for (const ModuleShape& shape : module_shapes(model)) {
    if (targets.contains(shape.name)) shapes.push_back(cut_shape(shape, model, tp));
  }
  return shapes;
}

int64_t lora_parameters_per_rank(const ModelSpec& model, const LoraTargets& targets, int tp) {
  int64_t parameters = 0;
  for (const ModuleShape& shape : lora_shapes(model, targets, tp)) {
    parameters += shape.count * (shape.in + shape.out);
  }
  return parameters;
}

int64_t lora_dtype_bytes(const ModelSpec& model, LoraDtype dtype) {
  return dtype == LoraDtype::fp8 ? 1 : model.dtype_bytes;
}

int64_t adapter_bytes(const ModelSpec& model, const LoraTargets& targets, int64_t rank,
                      LoraDtype dtype) {
  return rank * lora_parameters_per_rank(model, targets) * lora_dtype_bytes(model, dtype);
}

}  // namespace loratory::sim
