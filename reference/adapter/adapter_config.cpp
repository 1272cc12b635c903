// What a configuration says about one module. Parsing: parse_adapter_config.cpp.
#include "reference/adapter/adapter_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

constexpr int64_t kSteps = 1 << 20;
constexpr int64_t kStepsOfModule = 1 << 15;
constexpr int64_t kMostSteps = 1 << 26;

template <typename Pattern>
const Pattern* first_match(const std::vector<Pattern>& patterns, std::string_view path,
                           StepBudget& budget) {
  for (const Pattern& item : patterns) {
    if (item.pattern.matches(path, budget)) return &item;
  }
  return nullptr;
}

bool selects(const ModuleSelection& selection, std::string_view path, bool is_linear,
             StepBudget& budget) {
  if (const auto* pattern = std::get_if<PathPattern>(&selection)) {
    return pattern->matches(path, budget);
  }
  if (std::holds_alternative<AllLinear>(selection)) return is_linear;
  return std::ranges::any_of(std::get<std::vector<std::string>>(selection),
                             [&](const std::string& name) { return names_path(name, path); });
}

bool is_index(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Python's re.match(r".*\.<list>\.(\d+)\.", path), any list if it is empty: the last such number.
std::optional<int64_t> layer_of(std::string_view path, std::string_view list) {
  std::vector<std::string_view> parts;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    parts.push_back(path.substr(0, dot));
    path.remove_prefix(dot + 1);
  }
  for (size_t i = parts.size(); i-- > 2;) {
    if (!is_index(parts[i]) || (!list.empty() && parts[i - 1] != list)) continue;
    int64_t index = -1;  // stays when the number is too large for any layer
    std::from_chars(parts[i].data(), parts[i].data() + parts[i].size(), index);
    return index;
  }
  return std::nullopt;
}

// The first name of a list that the path has decides, as in PEFT.
std::optional<int64_t> layer_of(std::string_view path, const std::vector<std::string>& lists) {
  if (lists.empty()) return layer_of(path, std::string_view());
  for (const std::string& list : lists) {
    if (const auto layer = layer_of(path, list)) return layer;
  }
  return std::nullopt;
}

}  // namespace

StepBudget step_budget(size_t num_modules) {
  const auto for_modules = int64_t(std::min<size_t>(num_modules, kMostSteps));
  return {std::min(kSteps + for_modules * kStepsOfModule, kMostSteps)};
}

RankAndAlpha AdapterConfig::rank_and_alpha_of(std::string_view path, StepBudget& budget) const {
  RankAndAlpha module{rank, "r", alpha};
  if (const RankPattern* match = first_match(rank_pattern, path, budget)) {
    module.rank = match->rank;
    module.rank_field = "rank_pattern";
  }
  if (const AlphaPattern* match = first_match(alpha_pattern, path, budget)) {
    module.alpha = match->alpha;
  }
  return module;
}

float AdapterConfig::scaling_of(std::string_view path, const RankAndAlpha& module) const {
  const auto r = double(module.rank);
  const double scaling = module.alpha / (use_rslora ? std::sqrt(r) : r);
  const auto rounded = float(scaling);
  if (!std::isfinite(rounded)) {
    throw AdapterError(AdapterErrorCode::config, "lora_alpha", path,
                       fmt::format("alpha / r = {} is not finite in fp32", scaling), "");
  }
  return rounded;
}

bool AdapterConfig::targets(std::string_view path, bool is_linear, StepBudget& budget) const {
  if (exclude_modules && selects(*exclude_modules, path, is_linear, budget)) return false;
  if (!selects(target_modules, path, is_linear, budget)) return false;
  if (layers_to_transform.empty()) return true;
  // PEFT looks at the layer of what it found by the end of a path alone.
  const auto& names = std::get<std::vector<std::string>>(target_modules);
  if (std::ranges::count(names, path) > 0) return true;
  const auto layer = layer_of(path, layers_pattern);
  return layer && std::ranges::count(layers_to_transform, *layer) > 0;
}

}  // namespace loratory::reference
