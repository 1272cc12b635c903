// quantization_config of a config.json, as the tools that write it do, -> WeightQuantization.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/base/json_fields.hpp"
#include "reference/model/model_config_parts.hpp"

namespace loratory::reference {
namespace {

using nlohmann::json;

constexpr int64_t kLargestBlock = 1 << 20;
constexpr std::string_view kRemedy =
    "give the config.json of the unquantised checkpoint, with --dtype fp8 if the engine is to "
    "quantise it";

// A regular expression of the simple kind that these lists have, as a glob; empty if it is not.
std::string glob_of(std::string_view regex) {
  std::string glob;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    const char next = i + 1 < regex.size() ? regex[i + 1] : '\0';
    if (c == '^' || c == '$') continue;
    if (c == '\\' && next == '.') {
      glob += '.', ++i;
    } else if (c == '.' && (next == '*' || next == '+')) {
      glob += '*', ++i;
    } else if (std::string_view("()[]{}|?+\\*").find(c) != std::string_view::npos) {
      return {};
    } else {
      glob += c;
    }
  }
  return glob;
}

void read_ignored(const JsonFields& fields, const char* key, WeightQuantization& q) {
  const json* const list = fields.find(key);
  if (list == nullptr) return;
  if (!list->is_array()) fields.fail(key, "must be a list of modules");
  for (const json& item : *list) {
    if (!item.is_string()) fields.fail(key, "must be a list of modules");
    const auto text = item.get<std::string>();
    const std::string glob = text.starts_with("re:") ? glob_of(text.substr(3)) : text;
    if (glob.empty()) {
      q.not_understood.push_back(text);
    } else {
      q.ignored.push_back(glob);
    }
  }
}

JsonFields object_of(const JsonFields& fields, const char* key) {
  const json* const value = fields.find(key);
  if (value == nullptr) fields.fail(key, "is missing");
  if (!value->is_object()) fields.fail(key, "must be an object");
  return JsonFields(*value, fields.file(), fmt::format("{}.", key));
}

void read_block(const JsonFields& fields, const char* key, WeightQuantization& q) {
  const json* const block = fields.find(key);
  if (block == nullptr) return;
  if (!block->is_array() || block->size() != 2) fields.fail(key, "must be two sizes");
  q.block_rows = fields.integer(key, (*block)[0], 1, kLargestBlock);
  q.block_columns = fields.integer(key, (*block)[1], 1, kLargestBlock);
}

// -1 is how these files write "one group".
void read_group(const JsonFields& fields, int64_t fallback, WeightQuantization& q) {
  const json* const size = fields.find("group_size");
  const int64_t group =
      size == nullptr ? fallback : fields.integer("group_size", *size, -1, kLargestBlock);
  q.block_rows = 1;
  q.block_columns = std::max<int64_t>(group, 0);
}

// DeepSeek's and Qwen's blocks, or one factor for each matrix.
void read_fp8(const JsonFields& fields, WeightQuantization& q) {
  q.bits = 8;
  q.is_float = q.activations = true;
  read_block(fields, "weight_block_size", q);
  read_ignored(fields, "modules_to_not_convert", q);
  read_ignored(fields, "ignored_layers", q);
}

void read_fbgemm(const JsonFields& fields, WeightQuantization& q) {
  q.bits = 8;
  q.is_float = q.activations = true;
  q.block_rows = 1;  // a factor for each output
  read_ignored(fields, "modules_to_not_convert", q);
}

void read_awq(const JsonFields& fields, WeightQuantization& q) {
  q.bits = fields.size_or(fields.has("w_bit") ? "w_bit" : "bits", 4, 8);
  q.factor_bytes = 2;
  q.zero_points = fields.flag_or("zero_point", true);
  read_group(fields, 128, q);
  read_ignored(fields, "modules_to_not_convert", q);
}

// It stores zero points and an input order even where they say nothing.
void read_gptq(const JsonFields& fields, WeightQuantization& q) {
  q.bits = fields.size("bits", 8);
  q.factor_bytes = 2;
  q.zero_points = q.input_order = true;
  read_group(fields, 128, q);
}

void read_mxfp4(const JsonFields& fields, WeightQuantization& q) {
  q.bits = 4;
  q.is_float = true;
  q.block_rows = 1;
  q.block_columns = 32;
  q.factor_bytes = 1;
  q.experts_only = true;  // gpt-oss, the one family that has it
  read_ignored(fields, "modules_to_not_convert", q);
}

void read_modelopt(const JsonFields& fields, WeightQuantization& q) {
  const std::string algorithm = fields.text_or("quant_algo", "");
  q.is_float = q.activations = true;
  if (algorithm == "FP8") {
    q.bits = 8;
  } else if (algorithm == "NVFP4") {
    q.bits = 4;
    q.block_rows = 1;
    q.block_columns = fields.size_or("group_size", 16, kLargestBlock);
    q.factor_bytes = 1;
  } else {
    fields.fail("quant_algo", fmt::format("'{}' is not supported", algorithm.substr(0, 64)),
                fmt::format("supported are FP8 and NVFP4: {}", kRemedy));
  }
  read_ignored(fields, "exclude_modules", q);
  read_ignored(fields, "ignore", q);
  const bool named =
      fields.has("kv_cache_quant_algo") && fields.text_or("kv_cache_quant_algo", "") == "FP8";
  q.has_kv_scheme = named || fields.has("kv_cache_scheme");
}

// One group of a compressed-tensors file.
WeightQuantization read_group_of(const JsonFields& group) {
  WeightQuantization q;
  const JsonFields weights = object_of(group, "weights");
  q.bits = weights.size("num_bits", 8);
  q.is_float = weights.text_or("type", "int") == "float";
  q.activations = group.has("input_activations");
  const std::string strategy = weights.text_or("strategy", "tensor");
  if (strategy == "channel") q.block_rows = 1;
  if (strategy == "group" || strategy == "tensor_group") read_group(weights, 128, q);
  if (strategy == "block") read_block(weights, "block_structure", q);
  q.factor_bytes = q.bits == 4 && q.is_float ? 1 : 2;
  q.zero_points = !weights.flag_or("symmetric", true);
  return q;
}

// Of several groups the largest weights count for all.
void read_compressed_tensors(const JsonFields& fields, WeightQuantization& q) {
  const JsonFields groups = object_of(fields, "config_groups");
  const std::string method = q.method;
  const json& object = *fields.find("config_groups");
  for (const auto& [name, value] : object.items()) {
    const WeightQuantization group = read_group_of(object_of(groups, name.c_str()));
    if (group.bits > q.bits) q = group;
  }
  if (q.bits == 0) fields.fail("config_groups", "has no group with weights");
  q.method = method;
  read_ignored(fields, "ignore", q);
  q.has_kv_scheme = fields.has("kv_cache_scheme");
}

struct Method {
  std::string_view name;
  void (*read)(const JsonFields&, WeightQuantization&);
};

constexpr std::array<Method, 9> kMethods{{
    // quant_method, reader
    {"fp8", read_fp8},
    {"fbgemm_fp8", read_fbgemm},
    {"awq", read_awq},
    {"gptq", read_gptq},
    {"mxfp4", read_mxfp4},
    {"modelopt", read_modelopt},
    {"modelopt_fp4", read_modelopt},
    {"compressed-tensors", read_compressed_tensors},
    {"compressed_tensors", read_compressed_tensors},
}};

WeightQuantization read_method(const JsonFields& fields) {
  const std::string fallback = fields.has("quant_algo") ? "modelopt" : "";
  WeightQuantization q;
  q.method = fields.text_or("quant_method", fallback);
  const auto* const method = std::ranges::find(kMethods, q.method, &Method::name);
  if (method == kMethods.end()) {
    fields.fail("quant_method", fmt::format("'{}' is not supported", q.method.substr(0, 64)),
                fmt::format("supported are fp8, fbgemm_fp8, awq, gptq, mxfp4, modelopt and "
                            "compressed-tensors: {}",
                            kRemedy));
  }
  method->read(fields, q);
  return q;
}

}  // namespace

WeightQuantization read_quantization(const JsonFields& fields) {
  for (const char* key : {"quantization_config", "compression_config", "quantization"}) {
    if (fields.has(key)) return read_method(object_of(fields, key));
  }
  return {};
}

}  // namespace loratory::reference
