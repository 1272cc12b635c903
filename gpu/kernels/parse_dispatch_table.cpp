// The file of a DispatchTable. Apart from it, so that a layer without a file needs no JSON library.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>

#include "gpu/kernels/dispatch_table.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/json_fields.hpp"

namespace loratory::gpu {
namespace {

using nlohmann::json;
using reference::JsonFields;

constexpr size_t kMostBytes = size_t{64} << 20;  // most of it times, which are not looked at

void require_known_keys(const json& object, std::initializer_list<std::string_view> known,
                        const JsonFields& fields) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    // Quoted as in JSON: a line break in it must not break the message.
    fields.fail(json(key).dump(), "is not a key here", "remove it");
  }
}

const json& required(const JsonFields& fields, const char* key, json::value_t type,
                     const char* rule) {
  const json* const value = fields.find(key);
  if (value == nullptr) fields.fail(key, "is missing");
  if (value->type() != type) fields.fail(key, rule);
  return *value;
}

LoraStage stage_of(const JsonFields& fields) {
  const auto text = required(fields, "stage", json::value_t::string, "must be a string");
  if (text == "linear") return LoraStage::linear;
  if (text == "shrink") return LoraStage::shrink;
  if (text == "expand") return LoraStage::expand;
  fields.fail("stage", "must be \"linear\", \"shrink\" or \"expand\"");
}

/// Bounds that fit the fields; DispatchTable knows the real ones.
LoraVariant variant_of(const json& object, const std::string& file, const std::string& prefix) {
  const JsonFields fields(object, file, prefix);
  require_known_keys(object, {"rank_tiles", "token_tiles", "cluster", "stages", "launches"},
                     fields);
  const auto number = [&](const char* key) { return int(fields.size(key, INT32_MAX)); };
  return {number("rank_tiles"), number("token_tiles"), number("cluster"), number("stages"), true,
          number("launches")};
}

DispatchEntry entry_of(const json& object, const std::string& file, const std::string& place) {
  if (!object.is_object()) throw InputError(file + ": " + place, "must be an object");
  const JsonFields fields(object, file, place + ".");
  require_known_keys(object, {"stage", "num_slices", "num_in", "max_rank", "num_tokens", "variant"},
                     fields);
  DispatchEntry out{.stage = stage_of(fields)};
  const bool has_num_in = out.stage != LoraStage::expand || fields.has("num_in");
  out.num_slices = fields.size("num_slices", INT32_MAX);
  out.num_in = has_num_in ? fields.size("num_in", INT32_MAX) : 0;
  out.max_rank = fields.size("max_rank", INT32_MAX);
  out.num_tokens = fields.size("num_tokens", INT32_MAX);
  out.variant = variant_of(required(fields, "variant", json::value_t::object, "must be an object"),
                           file, place + ".variant.");
  return out;
}

}  // namespace

DispatchTable parse_dispatch_table(std::string_view text, const std::string& place) {
  const json root = reference::parse_json_object(text, place, kMostBytes);
  const JsonFields fields(root, place);
  require_known_keys(root, {"gpu", "driver", "commit", "date", "command", "entries", "times"},
                     fields);
  for (const char* key : {"gpu", "driver", "commit", "date", "command"}) {
    required(fields, key, json::value_t::string, "must be a string");
  }
  const json& list = required(fields, "entries", json::value_t::array, "must be an array");
  std::vector<DispatchEntry> entries;
  for (size_t i = 0; i < list.size(); ++i) {
    entries.push_back(entry_of(list[i], place, "entries[" + std::to_string(i) + "]"));
  }
  try {
    return DispatchTable(std::move(entries));
  } catch (const InputError& error) {
    throw InputError(place, error.what());
  }
}

DispatchTable read_dispatch_table(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) {
    throw InputError(path, "cannot be read", "give a table of bench/gpu/lora_tune.py");
  }
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return parse_dispatch_table(text, path);
}

}  // namespace loratory::gpu
