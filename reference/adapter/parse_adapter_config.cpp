// adapter_config.json -> AdapterConfig, and back.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/adapter/adapter_config.hpp"
#include "reference/adapter/adapter_error.hpp"
#include "reference/base/json_fields.hpp"

namespace loratory::reference {
namespace {

using nlohmann::json;
using Code = AdapterErrorCode;

constexpr size_t kLargestConfig = size_t{4} << 20;
constexpr int kDeepest = 32;
constexpr int64_t kLargestRank = 1 << 20;
constexpr int kMostRegexes = 1024;

// Fields that change nothing here [4.6], and those read below. Settings of a feature (corda_config,
// megatron_core, qalora_group_size) are idle without the field that switches it on: see kRejected.
constexpr std::array<std::string_view, 28> kKnownFields{"alpha_pattern",
                                                        "auto_mapping",
                                                        "base_model_name_or_path",
                                                        "bias",
                                                        "corda_config",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "fan_in_fan_out",
                                                        "inference_mode",
                                                        "init_lora_weights",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "loftq_config",
                                                        "lora_alpha",
                                                        "lora_dropout",
                                                        "lora_ga_config",
                                                        "megatron_core",
                                                        "modules_to_save",
                                                        "peft_type",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "r",
                                                        "rank_pattern",
                                                        "revision",
                                                        "target_modules",
                                                        "target_parameters",
                                                        "task_type",
                                                        "use_rslora"};

// Fields that must be empty or false [1.52], and what they are called in E_UNSUPPORTED.
constexpr std::array<std::array<std::string_view, 2>, 14> kRejected{{
    {"use_dora", "dora"},
    {"modules_to_save", "modules_to_save"},
    {"fan_in_fan_out", "fan_in_fan_out"},
    {"layer_replication", "layer_replication"},
    {"megatron_config", "megatron_config"},
    {"trainable_token_indices", "trainable_token_indices"},
    {"lora_bias", "bias"},
    {"alora_invocation_tokens", "alora"},
    {"use_qalora", "qalora"},
    {"use_bdlora", "bdlora"},
    {"velora_config", "velora"},
    {"kasa_config", "kasa"},
    {"arrow_config", "arrow"},
    {"ensure_weight_tying", "ensure_weight_tying"},
}};

[[noreturn]] void config_error(std::string_view field, std::string_view rule,
                               std::string_view remedy = {}) {
  throw AdapterError(Code::config, field, "adapter_config.json", rule, remedy);
}

[[noreturn]] void unsupported(std::string_view feature, std::string_view rule) {
  throw AdapterError(Code::unsupported, feature, "adapter_config.json", rule, kMergeRemedy);
}

// Python's truth of a JSON value.
bool is_truthy(const json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

// A parsed configuration, with what the DOM forgets: the order in which the patterns stand.
struct ParsedJson {
  json root;
  std::map<std::string, std::vector<std::string>> order;  // of rank_pattern and alpha_pattern
};

ParsedJson parse_json(std::string_view text) {
  ParsedJson parsed;
  std::string field;
  std::set<std::pair<std::string, std::string>> seen;  // (field, key)
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepest) config_error("", "is nested too deeply");
    if (event != json::parse_event_t::key || depth > 2) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (depth == 1) field = key;
    const std::string& parent = depth == 1 ? std::string() : field;
    if (!seen.emplace(parent, key).second && (depth == 1 || field.ends_with("_pattern"))) {
      config_error(field, fmt::format("has the key '{}' twice", printable_key(key)));
    }
    if (depth == 2) parsed.order[field].push_back(key);
    return true;
  };
  try {
    parsed.root = json::parse(text, watch);
  } catch (const json::parse_error& error) {
    config_error("", fmt::format("is not JSON (byte {})", error.byte));
  } catch (const json::out_of_range&) {
    config_error("", "has a number outside the range of a double");
  }
  if (!parsed.root.is_object()) config_error("", "must be a JSON object");
  return parsed;
}

// E_CONFIG in place of a plain InputError; and lists, patterns.
class Fields : public JsonFields {
 public:
  explicit Fields(const ParsedJson& parsed)
      : JsonFields(parsed.root, "adapter_config.json"), parsed_(parsed) {}

  // A string counts as a list of one if `or_one`.
  std::vector<std::string> texts(const char* name, bool or_one = false) const {
    const json* value = find(name);
    if (value == nullptr) return {};
    if (or_one && value->is_string()) return {value->get<std::string>()};
    const bool good = value->is_array() && std::ranges::all_of(*value, [](const json& item) {
                        return item.is_string();
                      });
    if (!good) fail(name, "must be a list of strings");
    return value->get<std::vector<std::string>>();
  }

  std::vector<int64_t> layers(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return {};
    std::vector<int64_t> layers;
    const json list = value->is_array() ? *value : json::array({*value});
    for (const json& item : list) layers.push_back(integer(name, item, 0, INT32_MAX));
    return layers;
  }

  double number(std::string_view field, const json& value) const {
    if (!value.is_number()) fail(field, "must be a number");
    return value.get<double>();
  }

  // (pattern, value) in the order of the file.
  template <typename Read>
  void for_patterns(const char* name, const Read& read) const {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_object()) fail(name, "must be a map from patterns to numbers");
    const auto it = parsed_.order.find(name);
    if (it == parsed_.order.end()) return;
    int num_regexes = 0;
    for (const std::string& text : it->second) {
      if (!is_plain_pattern(text) && ++num_regexes > kMostRegexes) {
        fail(name, fmt::format("more than {} regular expressions", kMostRegexes));
      }
      read(PathPattern(text, name, PathPattern::Fit::end), (*value)[text]);
    }
  }

 private:
  void throw_error(std::string_view field, std::string_view rule,
                   std::string_view remedy) const override {
    config_error(field, rule, remedy);
  }

  const ParsedJson& parsed_;
};

void reject_init(const Fields& fields, const ConfigOptions& options) {
  const json* init = fields.find("init_lora_weights");
  if (init == nullptr || init->is_boolean()) return;
  if (!init->is_string()) config_error("init_lora_weights", "must be a boolean or a string");
  const auto& kind = init->get_ref<const std::string&>();
  for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
    if (kind == harmless) return;
  }
  for (const char* residual : {"pissa", "corda", "olora", "lora_ga", "loftq"}) {
    if (kind.starts_with(residual) && options.assume_residual_base) return;
  }
  unsupported("init", fmt::format("init_lora_weights '{}' may replace the base weights",
                                  printable_key(kind)));
}

void reject_unsupported(const Fields& fields, const ConfigOptions& options) {
  const std::string type = fields.text_or("peft_type", "LORA");
  if (type != "LORA") unsupported("peft_type", fmt::format("'{}'", printable_key(type)));
  const std::string bias = fields.text_or("bias", "none");
  // PEFT saves the biases that it trains, so a file without any has none [4.9].
  if (bias != "none" && bias != "all" && bias != "lora_only") {
    unsupported("bias", fmt::format("bias '{}'", printable_key(bias)));
  }
  for (const auto& [field, feature] : kRejected) {
    const json* value = fields.find(std::string(field).c_str());
    if (value != nullptr && is_truthy(*value))
      unsupported(feature, fmt::format("'{}' is set", field));
  }
  reject_init(fields, options);
}

void require_fields(const Fields& fields, bool has_parameters) {
  std::string missing;
  for (const char* name : {"r", "lora_alpha", "target_modules"}) {
    if (fields.find(name) != nullptr) continue;
    if (std::string_view(name) == "target_modules" && has_parameters) continue;
    missing.append(missing.empty() ? "" : ", ").append(name);
  }
  if (!missing.empty())
    config_error(missing, "is missing", "PEFT writes r, lora_alpha, target_modules");
}

ModuleSelection selection(const Fields& fields, const char* name) {
  const json* value = fields.find(name);
  if (value == nullptr || !value->is_string()) return fields.texts(name);
  const auto& text = value->get_ref<const std::string&>();
  if (text == "all-linear") return AllLinear{};
  return PathPattern(text, name, PathPattern::Fit::whole_path);
}

void read_selections(const Fields& fields, AdapterConfig& config) {
  config.target_parameters = fields.texts("target_parameters");
  config.target_modules = selection(fields, "target_modules");
  const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules);
  if (names != nullptr && names->empty() && config.target_parameters.empty()) {
    config_error("target_modules", "is empty, and there are no target_parameters");
  }
  if (fields.find("exclude_modules") != nullptr) {
    config.exclude_modules = selection(fields, "exclude_modules");
  }
  config.layers_to_transform = fields.layers("layers_to_transform");
  config.layers_pattern = fields.texts("layers_pattern", /*or_one=*/true);
  std::erase(config.layers_pattern, "");
  for (const std::string& name : config.layers_pattern) {
    const bool is_name = is_plain_pattern(name) && name.find('.') == std::string::npos;
    if (!is_name) config_error("layers_pattern", "must be names of lists of layers");
  }
  if (!config.layers_to_transform.empty() && names == nullptr) {
    config_error("layers_to_transform", "needs target_modules to be a list");
  }
}

void warn_of_unknown(const json& root, AdapterConfig& config) {
  for (const auto& item : root.items()) {
    const bool known =
        std::ranges::binary_search(kKnownFields, std::string_view(item.key())) ||
        std::ranges::any_of(kRejected, [&](const auto& row) { return row[0] == item.key(); });
    if (!known && !item.value().is_null()) {
      config.warnings.push_back(
          fmt::format("adapter_config.json: unknown field '{}'", printable_key(item.key())));
    }
  }
}

json selection_json(const ModuleSelection& selection) {
  if (const auto* pattern = std::get_if<PathPattern>(&selection)) return pattern->text();
  if (std::holds_alternative<AllLinear>(selection)) return "all-linear";
  return std::get<std::vector<std::string>>(selection);
}

template <typename List>
json list_or_null(const List& list) {
  return list.empty() ? json() : json(list);
}

}  // namespace

AdapterConfig parse_adapter_config(std::string_view text, const ConfigOptions& options) {
  if (text.size() > kLargestConfig) config_error("", "is larger than 4 MiB");
  const ParsedJson parsed = parse_json(text);
  const Fields fields(parsed);
  reject_unsupported(fields, options);
  require_fields(fields, !fields.texts("target_parameters").empty());

  AdapterConfig config;
  config.rank = fields.integer("r", *fields.find("r"), 1, kLargestRank);
  config.alpha = fields.number("lora_alpha", *fields.find("lora_alpha"));
  config.use_rslora = fields.flag_or("use_rslora", false);
  fields.for_patterns("rank_pattern", [&](PathPattern pattern, const json& value) {
    const int64_t rank = fields.integer("rank_pattern", value, 1, kLargestRank);
    config.rank_pattern.push_back({std::move(pattern), rank});
  });
  fields.for_patterns("alpha_pattern", [&](PathPattern pattern, const json& value) {
    config.alpha_pattern.push_back({std::move(pattern), fields.number("alpha_pattern", value)});
  });
  read_selections(fields, config);
  config.base_model_name = fields.text_or("base_model_name_or_path", "");
  warn_of_unknown(parsed.root, config);
  return config;
}

std::string adapter_config_text(const AdapterConfig& config) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object();
  for (const auto& [pattern, rank] : config.rank_pattern) ranks[pattern.text()] = rank;
  nlohmann::ordered_json alphas = nlohmann::ordered_json::object();
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas[pattern.text()] = alpha;
  nlohmann::ordered_json root;
  root["alpha_pattern"] = alphas;
  root["base_model_name_or_path"] = list_or_null(config.base_model_name);
  root["bias"] = "none";
  root["exclude_modules"] =
      config.exclude_modules ? selection_json(*config.exclude_modules) : json();
  root["layers_pattern"] = list_or_null(config.layers_pattern);
  root["layers_to_transform"] = list_or_null(config.layers_to_transform);
  root["lora_alpha"] = config.alpha;
  root["peft_type"] = "LORA";
  root["r"] = config.rank;
  root["rank_pattern"] = ranks;
  root["target_modules"] = selection_json(config.target_modules);
  root["target_parameters"] = list_or_null(config.target_parameters);
  root["use_rslora"] = config.use_rslora;
  return root.dump(2) + "\n";
}

}  // namespace loratory::reference
