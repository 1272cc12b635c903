#include "scheduler_sim/cost/lora_shapes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"

namespace loratory::sim {
namespace {

struct Module {
  std::string_view name, short_name;
  bool linear;  // part of "all-linear"
};

constexpr std::array<Module, 15> kModules{{
    {"q_proj", "q", true},
    {"k_proj", "k", true},
    {"v_proj", "v", true},
    {"qkv_proj", "qkv_proj", true},
    {"q_a_proj", "q_a_proj", true},
    {"q_b_proj", "q_b_proj", true},
    {"kv_a_proj_with_mqa", "kv_a_proj_with_mqa", true},
    {"kv_b_proj", "kv_b_proj", true},
    {"o_proj", "o", true},
    {"gate_proj", "gate", true},
    {"up_proj", "up", true},
    {"gate_up_proj", "gate_up_proj", true},
    {"down_proj", "down", true},
    {"embed_tokens", "embed", false},
    {"lm_head", "lm_head", false},
}};

bool item_selects(std::string_view item, const Module& module) {
  return item == module.name || item == module.short_name ||
         (item == "all-linear" && module.linear);
}

}  // namespace

LoraTargets::LoraTargets(std::string_view list) {
  const std::vector<std::string_view> items = split(list, ',');
  for (std::string_view item : items) {
    const bool known = std::ranges::any_of(
        kModules, [item](const Module& module) { return item_selects(item, module); });
    if (known) continue;
    std::vector<std::string> names;
    for (const Module& module : kModules) names.emplace_back(module.name);
    const std::string all =
        fmt::format("use all-linear or a comma list of {}", fmt::join(names, ", "));
    names.emplace_back("all-linear");
    throw InputError("--target-modules", fmt::format("unknown module {}", shown(item)),
                     did_you_mean(item, names, all));
  }
  for (const Module& module : kModules) {
    const bool selected = std::ranges::any_of(
        items, [&module](std::string_view item) { return item_selects(item, module); });
    if (selected) names_.push_back(module.name);
    const bool named = std::ranges::any_of(items, [&module](std::string_view item) {
      return item != "all-linear" && item_selects(item, module);
    });
    if (named) given_.push_back(module.name);
  }
}

bool LoraTargets::contains(std::string_view module) const {
  return std::ranges::find(names_, module) != names_.end();
}

std::string LoraTargets::to_string() const { return fmt::format("{}", fmt::join(names_, ",")); }

void LoraTargets::require_modules_of(const ModelSpec& model) const {
  const std::vector<ModuleShape> shapes = module_shapes(model);
  for (const std::string_view name : given_) {
    if (std::ranges::find(shapes, name, &ModuleShape::name) != shapes.end()) continue;
    std::vector<std::string_view> modules;
    for (const ModuleShape& shape : shapes) {
      if (std::ranges::find(modules, shape.name) == modules.end()) modules.push_back(shape.name);
    }
    throw InputError("--target-modules", fmt::format("{} has no module '{}'", model.name, name),
                     fmt::format("it has {}", fmt::join(modules, ", ")));
  }
}

std::vector<ModuleShape> lora_shapes(const ModelSpec& model, const LoraTargets& targets, int tp) {
  std::vector<ModuleShape> shapes;
  for (const ModuleShape& shape : cut_module_shapes(model, tp)) {
    if (targets.contains(shape.name)) shapes.push_back(shape);
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
