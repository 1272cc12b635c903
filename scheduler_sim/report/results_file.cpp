#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "reference/base/escape.hpp"
#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/json_fields.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/report/compare.hpp"
#include "scheduler_sim/report/json_object.hpp"
#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::sim {
namespace {

using nlohmann::json;

constexpr size_t kLargestResults = size_t{256} << 20;
constexpr int64_t kMostOfAnything = int64_t{1} << 31;
constexpr const char* kRewrite = "write it anew with --json of this version";
constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

double value_at(const json& config, const std::string& key, const JsonFields& fields) {
  const json* const value = fields.find(key.c_str());
  if (value == nullptr) {
    if (!config.contains(key)) fields.fail(key, "is missing", kRewrite);
    return kNoValue;
  }
  if (!value->is_number()) fields.fail(key, "must be a number or null");
  return value->get<double>();
}

double band_at(const JsonFields& fields, const char* key) {
  const json* const value = fields.find(key);
  return value != nullptr && value->is_number() ? value->get<double>() : kNoValue;
}

ResultsFile::Config config_from(const json& object, const std::string& path, size_t i) {
  const std::string place = fmt::format("configs[{}]", i);
  if (!object.is_object()) throw InputError(path, fmt::format("{} is not an object", place));
  const JsonFields fields(object, path, place + ".");
  ResultsFile::Config config;
  config.max_loras = fields.size("max_loras", kMostOfAnything);
  config.max_cpu_loras = fields.size("max_cpu_loras", kMostOfAnything);
  config.num_replicas = fields.size_or("num_replicas", 1, kMostOfAnything);
  config.feasible = fields.flag_or("feasible", true);
  config.verdict = printable(fields.text_or("verdict", ""));
  config.event_log_hash = fields.text_or("event_log_hash", "");
  for (const Measure& measure : measures()) {
    config.values.push_back(value_at(object, measure.key, fields));
  }
  config.goodput_min = band_at(fields, "goodput_min");
  config.goodput_max = band_at(fields, "goodput_max");
  config.ttft_min_ms = band_at(fields, "ttft_min_ms");
  config.ttft_max_ms = band_at(fields, "ttft_max_ms");
  return config;
}

void add_text(ResultsFile& file, const std::string& name, const json& object, const char* key) {
  const auto value = object.find(key);
  if (value == object.end() || value->is_null()) return;
  const std::string text = value->is_string() ? value->get<std::string>() : value->dump();
  file.settings.push_back({printable(name), printable(text)});
}

// One that is an object without a name or a value says nothing.
void add_settings(ResultsFile& file, const json& root) {
  add_text(file, "version", root, "version");
  if (const auto slo = root.find("slo"); slo != root.end() && slo->is_object()) {
    for (const char* key : {"ttft_ms", "tpot_ms"}) {
      const auto limit = slo->find(key);
      file.has_slo |= limit != slo->end() && limit->is_number();
    }
  }
  if (const auto inputs = root.find("inputs"); inputs != root.end() && inputs->is_array()) {
    for (const json& input : *inputs) {
      if (!input.is_object()) continue;
      const auto format = input.find("format");
      const bool is_named = format != input.end() && format->is_string();
      const std::string what = is_named ? format->get<std::string>() : "input";
      add_text(file, fmt::format("checksum of the {} file", what), input, "checksum");
    }
  }
  const auto settings = root.find("settings");
  if (settings == root.end() || !settings->is_array()) {
    throw InputError(file.path, "settings: is not a list", kRewrite);
  }
  for (const json& setting : *settings) {
    if (!setting.is_object()) continue;
    const auto name = setting.find("name");
    if (name == setting.end() || !name->is_string()) continue;
    add_text(file, name->get<std::string>(), setting, "value");
  }
}

// As --json writes it: plain, gzip or zstd.
std::string unpacked_text(const std::string& path) {
  constexpr const char* kRemedy = "name a results.json";
  const std::string bytes = read_file(path, kLargestResults, kRemedy);
  const std::unique_ptr<ByteSource> raw = open_bytes(bytes);
  return read_to_end(*decompressed(*raw, path), path, kLargestResults, kRemedy);
}

}  // namespace

ResultsFile read_results(const std::string& path) {
  const std::string text = unpacked_text(path);
  const json root = parse_json_object(text, path, kLargestResults);
  const JsonFields fields(root, path);
  const std::string schema = fields.text_or("schema", "");
  if (schema != report::kResultsSchema) {
    throw InputError(path,
                     schema.empty() ? "has no schema: it is not a results.json"
                                    : fmt::format("has the schema {}, not {}", shown(schema),
                                                  report::kResultsSchema),
                     "write it with --json of this version of replay or size");
  }
  ResultsFile file;
  file.path = path;
  add_settings(file, root);
  const json* const configs = fields.find("configs");
  if (configs == nullptr || !configs->is_array() || configs->empty()) {
    throw InputError(path, "configs: is not a list with something in it", kRewrite);
  }
  for (size_t i = 0; i < configs->size(); ++i) {
    file.configs.push_back(config_from((*configs)[i], path, i));
  }
  if (const json* const index = fields.find("recommended")) {
    file.recommended = fields.integer("recommended", *index, 0, int64_t(configs->size()) - 1);
  }
  return file;
}

}  // namespace loratory::sim
