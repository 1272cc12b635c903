// What a configuration says about one module. Parsing: parse_adapter_config.cpp.
#include "reference/adapter/adapter_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

template <typename Pattern>
const Pattern* first_match(const std::vector<Pattern>& patterns, std::string_view path) {
  for (const Pattern& item : patterns) {
    if (item.pattern.matches_end(path)) return &item;
  }
  return nullptr;
}

bool selects(const ModuleSelection& selection, std::string_view path, bool is_linear) {
  if (const auto* pattern = std::get_if<PathPattern>(&selection)) return pattern->matches(path);
  if (std::holds_alternative<AllLinear>(selection)) return is_linear;
  return std::ranges::any_of(std::get<std::vector<std::string>>(selection),
                             [&](const std::string& name) { return names_path(name, path); });
}

struct LayerOfPath {
  std::string_view list;  // "layers" of "model.layers.3.mlp.up_proj"
  int64_t index;
};

/// The first component that is a number, behind the name of its list.
std::optional<LayerOfPath> layer_of(std::string_view path) {
  std::string_view list;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    if (error == std::errc() && end == part.data() + part.size() && !list.empty()) {
      return LayerOfPath{list, index};
    }
    list = part;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return std::nullopt;
}

}  // namespace

int64_t AdapterConfig::rank_of(std::string_view path) const {
  const RankPattern* match = first_match(rank_pattern, path);
  return match != nullptr ? match->rank : rank;
}

std::string_view AdapterConfig::rank_field_of(std::string_view path) const {
  return first_match(rank_pattern, path) != nullptr ? "rank_pattern" : "r";
}

double AdapterConfig::alpha_of(std::string_view path) const {
  const AlphaPattern* match = first_match(alpha_pattern, path);
  return match != nullptr ? match->alpha : alpha;
}

float AdapterConfig::scaling_of(std::string_view path) const {
  const auto r = static_cast<double>(rank_of(path));
  const double scaling = alpha_of(path) / (use_rslora ? std::sqrt(r) : r);
  const auto rounded = static_cast<float>(scaling);
  if (!std::isfinite(rounded)) {
    throw AdapterError(AdapterErrorCode::kConfig, "lora_alpha", path,
                       fmt::format("alpha / r = {} is not finite in fp32", scaling), "");
  }
  return rounded;
}

bool AdapterConfig::targets(std::string_view path, bool is_linear) const {
  if (exclude_modules && selects(*exclude_modules, path, is_linear)) return false;
  if (!selects(target_modules, path, is_linear)) return false;
  if (layers_to_transform.empty()) return true;
  const auto layer = layer_of(path);
  return layer && std::ranges::count(layers_to_transform, layer->index) > 0 &&
         (layers_pattern.empty() ||
          std::ranges::count(layers_pattern, std::string(layer->list)) > 0);
}

}  // namespace loratory::reference
