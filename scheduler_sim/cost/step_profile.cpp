#include "scheduler_sim/cost/step_profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/cost/rounding.hpp"
#include "scheduler_sim/cost/shipped_profiles.hpp"

namespace loratory::sim {
namespace {

using nlohmann::json;
constexpr std::string_view kSchema = "loratory.step_profile/2";
constexpr std::string_view kFirstSchema = "loratory.step_profile/1";
constexpr size_t kLargestProfile = size_t{1} << 20;
constexpr double kLargestCoefficient = 1e15;

[[noreturn]] void fail(std::string_view place, std::string_view key, std::string_view rule,
                       std::string_view remedy = {}) {
  throw InputError(fmt::format("{}: {}", place, key), rule, remedy);
}

const json& object_at(const json& parent, const char* key, std::string_view place) {
  if (!parent.contains(key)) fail(place, key, "is missing");
  if (!parent[key].is_object()) fail(place, key, "must be an object");
  return parent[key];
}

std::string text_at(const json& parent, const char* key, std::string_view place) {
  if (!parent.contains(key)) fail(place, key, "is missing");
  if (!parent[key].is_string()) fail(place, key, "must be a string");
  return parent[key].get<std::string>();
}

// A count of "provenance" that a file may leave out.
struct OptionalCount {
  const char* key;
  int most;
  int StepProfile::*value;
};

constexpr OptionalCount kCounts[] = {{"tp", 1024, &StepProfile::tp},
                                     {"weight_bits", 64, &StepProfile::weight_bits},
                                     {"kv_bits", 64, &StepProfile::kv_bits},
                                     {"adapter_bits", 64, &StepProfile::adapter_bits},
                                     {"max_rank", 1 << 20, &StepProfile::max_rank}};

void read_counts(const json& provenance, StepProfile& profile, std::string_view place) {
  for (const auto& [key, most, value] : kCounts) {
    if (!provenance.contains(key)) continue;
    const json& given = provenance[key];
    const auto count = given.is_number_unsigned() ? given.get<uint64_t>() : 0;
    if (count < 1 || count > uint64_t(most)) {
      fail(place, key, fmt::format("must be an integer from 1 to {}", most));
    }
    profile.*value = int(count);
  }
}

double coefficient(const json& value, std::string_view key, std::string_view place) {
  if (!value.is_number()) fail(place, key, "must be a number of nanoseconds");
  const double number = value.get<double>();
  if (!(std::fabs(number) <= kLargestCoefficient)) fail(place, key, "must be within +-1e15");
  return number;
}

void require_known_keys(const json& object, std::initializer_list<std::string_view> known,
                        std::string_view place) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(place, key, "is not a key of a step profile", "remove it");
    }
  }
}

constexpr std::array kHostTerms{step_term("num_seqs"), step_term("num_waiting_seen"),
                                step_term("num_sampled")};

constexpr bool is_host_term(size_t index) { return std::ranges::count(kHostTerms, index) > 0; }

void read_terms(const json& terms, StepProfile& profile, std::string_view place) {
  for (const auto& [key, value] : terms.items()) {
    const auto* term = std::ranges::find(kStepTerms, key, &StepTerm::name);
    if (term == kStepTerms.end()) {
      fail(place, fmt::format("ns_per.{}", key), "is not a term of a step profile",
           "the terms are the fields of BatchShape, lora_step and prefill_step");
    }
    const auto index = size_t(term - kStepTerms.begin());
    profile.ns_per[index] = coefficient(value, fmt::format("ns_per.{}", key), place);
  }
}

// A number that a file may leave out: "above.tokens", or "host_ns" of the file itself.
struct OptionalNumber {
  const char* object;
  const char* key;
  double& (*in)(StepProfile&);
};

constexpr OptionalNumber kOptional[] = {
    {"", "host_ns", [](StepProfile& p) -> double& { return p.host_ns; }},
    {"above", "tokens", [](StepProfile& p) -> double& { return p.above_tokens; }},
    {"above", "ns_per_token", [](StepProfile& p) -> double& { return p.above_ns_per_token; }},
    {"lora_block_ns", "shrink", [](StepProfile& p) -> double& { return p.shrink_block_ns; }},
    {"lora_block_ns", "expand", [](StepProfile& p) -> double& { return p.expand_block_ns; }},
    {"launch", "above_tokens", [](StepProfile& p) -> double& { return p.launch_above_tokens; }},
    {"launch", "least_ns", [](StepProfile& p) -> double& { return p.launch_least_ns; }},
    {"load", "copy_ns", [](StepProfile& p) -> double& { return p.copy_ns; }},
    {"server", "frontend_ms", [](StepProfile& p) -> double& { return p.server.frontend_ms; }},
    {"server", "mean_tokens_to_stop",
     [](StepProfile& p) -> double& { return p.server.mean_tokens_to_stop; }},
    {"server", "metrics_ms", [](StepProfile& p) -> double& { return p.server.metrics_ms; }},
    {"server", "metrics_us_per_adapter_set",
     [](StepProfile& p) -> double& { return p.server.metrics_us_per_adapter_set; }},
    {"server", "metrics_us_per_name",
     [](StepProfile& p) -> double& { return p.server.metrics_us_per_name; }},
    {"expected_error", "num_runs",
     [](StepProfile& p) -> double& { return p.expected_error.num_runs; }},
    {"expected_error", "throughput",
     [](StepProfile& p) -> double& { return p.expected_error.throughput; }},
    {"expected_error", "itl", [](StepProfile& p) -> double& { return p.expected_error.itl; }},
    {"expected_error", "ttft", [](StepProfile& p) -> double& { return p.expected_error.ttft; }},
    {"expected_error", "short_ttft_ms",
     [](StepProfile& p) -> double& { return p.expected_error.short_ttft_ms; }},
};

bool is_optional(std::string_view object, std::string_view key) {
  return std::ranges::any_of(kOptional, [&](const OptionalNumber& number) {
    return object == number.object && key == number.key;
  });
}

// The optional objects and numbers among the keys of the file, or of one of its objects.
void read_optional(const json& keys, StepProfile& profile, std::string_view place,
                   std::string_view object) {
  for (const auto& [key, value] : keys.items()) {
    const std::string name = object.empty() ? key : fmt::format("{}.{}", object, key);
    if (name == "expected_error.how") {
      profile.expected_error.how = text_at(keys, "how", place);
      continue;
    }
    if (!is_optional(object, key)) {
      fail(place, name, "is not a key of a step profile", "remove it");
    }
    for (const OptionalNumber& number : kOptional) {
      if (object == number.object && key == number.key) {
        number.in(profile) = coefficient(value, name, place);
      }
    }
  }
}

// What to do about a file that cannot be read: perhaps it was to be a name.
std::string profile_remedy(const std::string& path) {
  const std::vector<std::string> names = shipped_profile_names();
  const std::string all = fmt::format("give a step profile (loratory.step_profile/2) or one of {}",
                                      fmt::join(names, ", "));
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? all : did_you_mean(path, names, all);
}

json parse_object(std::string_view text, std::string_view place) {
  try {
    json root = json::parse(text);
    if (!root.is_object()) throw InputError(place, "must be a JSON object");
    return root;
  } catch (const json::parse_error& error) {
    throw InputError(place, fmt::format("is not JSON (byte {})", error.byte));
  } catch (const json::out_of_range&) {
    throw InputError(place, "has a number outside the range of a double");
  }
}

}  // namespace

ProfileModel::ProfileModel(StepProfile profile, LoraGrid grid)
    : profile_(std::move(profile)), grid_(grid) {}

int64_t ProfileModel::padded_tokens(int64_t num_tokens) const {
  if (double(num_tokens) > profile_.launch_above_tokens) return num_tokens;
  return num_tokens > 4 ? ceil_div(num_tokens, int64_t{8}) * 8 : num_tokens == 3 ? 4 : num_tokens;
}

double ProfileModel::gpu_ns(const BatchShape& shape) const {
  double ns = profile_.constant_ns;
  for (size_t i = 0; i < kStepTerms.size(); ++i) {
    if (!is_host_term(i)) ns += profile_.ns_per[i] * double(kStepTerms[i].value(shape));
  }
  const int64_t tokens = padded_tokens(shape.num_tokens);
  ns += profile_.above_ns_per_token * std::max(0.0, double(tokens) - profile_.above_tokens);
  return ns + profile_.shrink_block_ns * grid_.shrink_blocks(tokens) +
         profile_.expand_block_ns * grid_.expand_blocks(tokens);
}

int64_t ProfileModel::step_ns(const BatchShape& shape) const {
  double ns = gpu_ns(shape);
  const bool has_graph = double(shape.num_tokens) <= profile_.launch_above_tokens;
  if (profile_.launch_least_ns > 0 && !has_graph) ns = std::max(ns, profile_.launch_least_ns);
  ns += profile_.host_ns;
  for (const size_t i : kHostTerms) ns += profile_.ns_per[i] * double(kStepTerms[i].value(shape));
  return round_step_ns(ns);
}

void describe_types(StepProfile& profile, const ModelSpec& model, LoraDtype adapters) {
  const auto bits = [](int64_t bytes) { return int(8 * bytes); };
  const int of_model = bits(model.dtype_bytes);
  profile.weight_bits = model.quantization.bits > 0 ? int(model.quantization.bits) : of_model;
  profile.kv_bits = model.fp8_kv ? 8 : of_model;
  profile.adapter_bits = bits(lora_dtype_bytes(model, adapters));
}

StepProfile parse_step_profile(std::string_view text, std::string_view place) {
  json root = parse_object(text, place);
  const std::string schema = text_at(root, "schema", place);
  if (schema != kSchema && schema != kFirstSchema) {
    fail(place, "schema", fmt::format("must be \"{}\"", kSchema));
  }
  const json provenance = object_at(root, "provenance", place);
  require_known_keys(provenance,
                     {"model", "gpu", "engine", "source", "tp", "weight_bits", "kv_bits",
                      "adapter_bits", "max_rank"},
                     place);

  StepProfile profile;
  profile.model = text_at(provenance, "model", place);
  profile.gpu = text_at(provenance, "gpu", place);
  profile.engine = text_at(provenance, "engine", place);
  profile.source = text_at(provenance, "source", place);
  read_counts(provenance, profile, place);
  if (!root.contains("constant_ns")) fail(place, "constant_ns", "is missing");
  profile.constant_ns = coefficient(root["constant_ns"], "constant_ns", place);
  read_terms(object_at(root, "ns_per", place), profile, place);
  for (const char* known : {"schema", "provenance", "constant_ns", "ns_per"}) root.erase(known);
  if (schema == kFirstSchema) require_known_keys(root, {}, place);
  for (const char* object :
       {"above", "lora_block_ns", "launch", "load", "server", "expected_error"}) {
    if (!root.contains(object)) continue;
    read_optional(object_at(root, object, place), profile, place, object);
    root.erase(object);
  }
  read_optional(root, profile, place, "");
  return profile;
}

StepProfile read_step_profile(const std::string& name_or_path) {
  const std::string_view shipped = shipped_profile(name_or_path);
  if (!shipped.empty()) return parse_step_profile(shipped, name_or_path);
  const std::string text =
      read_text_file(name_or_path, kLargestProfile, profile_remedy(name_or_path));
  return parse_step_profile(text, name_or_path);
}

std::string format_step_profile(const StepProfile& profile) {
  nlohmann::ordered_json root;
  root["schema"] = kSchema;
  root["provenance"] = {{"model", profile.model},
                        {"gpu", profile.gpu},
                        {"engine", profile.engine},
                        {"source", profile.source}};
  for (const auto& [key, most, value] : kCounts) {
    if (profile.*value != StepProfile().*value) root["provenance"][key] = profile.*value;
  }
  root["constant_ns"] = profile.constant_ns;
  root["ns_per"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < kStepTerms.size(); ++i) {
    if (profile.ns_per[i] == 0) continue;
    root["ns_per"][std::string(kStepTerms[i].name)] = profile.ns_per[i];
  }
  StepProfile defaults, copy = profile;
  for (const OptionalNumber& number : kOptional) {
    if (number.in(copy) == number.in(defaults)) continue;
    const bool is_own = *number.object == '\0';
    (is_own ? root : root[number.object])[number.key] = number.in(copy);
  }
  if (!profile.expected_error.how.empty()) {
    root["expected_error"]["how"] = profile.expected_error.how;
  }
  return root.dump(2) + "\n";
}

}  // namespace loratory::sim
