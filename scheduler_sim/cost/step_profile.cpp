#include "scheduler_sim/cost/step_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/rounding.hpp"

namespace loratory::sim {
namespace {

using nlohmann::json;
constexpr std::string_view kSchema = "loratory.step_profile/1";
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

ProfileModel::ProfileModel(StepProfile profile) : profile_(std::move(profile)) {}

int64_t ProfileModel::step_ns(const BatchShape& shape) const {
  double ns = profile_.constant_ns;
  for (size_t i = 0; i < kStepTerms.size(); ++i) {
    ns += profile_.ns_per[i] * double(kStepTerms[i].value(shape));
  }
  return round_step_ns(ns);
}

StepProfile parse_step_profile(std::string_view text, std::string_view place) {
  const json root = parse_object(text, place);
  require_known_keys(root, {"schema", "provenance", "constant_ns", "ns_per"}, place);
  if (text_at(root, "schema", place) != kSchema) {
    fail(place, "schema", fmt::format("must be \"{}\"", kSchema));
  }
  const json& provenance = object_at(root, "provenance", place);
  require_known_keys(provenance, {"model", "gpu", "engine", "source"}, place);

  StepProfile profile;
  profile.model = text_at(provenance, "model", place);
  profile.gpu = text_at(provenance, "gpu", place);
  profile.engine = text_at(provenance, "engine", place);
  profile.source = text_at(provenance, "source", place);
  if (!root.contains("constant_ns")) fail(place, "constant_ns", "is missing");
  profile.constant_ns = coefficient(root["constant_ns"], "constant_ns", place);
  read_terms(object_at(root, "ns_per", place), profile, place);
  return profile;
}

StepProfile read_step_profile(const std::string& path) {
  return parse_step_profile(
      read_text_file(path, kLargestProfile, "give a step profile (loratory.step_profile/1)"), path);
}

std::string format_step_profile(const StepProfile& profile) {
  nlohmann::ordered_json root;
  root["schema"] = kSchema;
  root["provenance"] = {{"model", profile.model},
                        {"gpu", profile.gpu},
                        {"engine", profile.engine},
                        {"source", profile.source}};
  root["constant_ns"] = profile.constant_ns;
  root["ns_per"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < kStepTerms.size(); ++i) {
    if (profile.ns_per[i] == 0) continue;
    root["ns_per"][std::string(kStepTerms[i].name)] = profile.ns_per[i];
  }
  return root.dump(2) + "\n";
}

}  // namespace loratory::sim
