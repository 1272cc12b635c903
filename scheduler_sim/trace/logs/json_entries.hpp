#pragma once

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler_sim/trace/logs/log_sink.hpp"

// For .cpp files: it brings in the JSON library.

namespace loratory::sim {

using JsonObject = simdjson::dom::object;
using JsonElement = simdjson::dom::element;

/// The largest line or document.
inline constexpr size_t kMaxJsonBytes = size_t{256} << 20;

/// Calls `visit(object, line)` for each JSON object of `text`: JSON lines, one document over many
/// lines, or the elements of arrays. BadRows, those of `visit` too, go to `sink` with the line of
/// the outermost object or array; an element of an array is named by its index. Memory: the longest
/// line, or the document, of kMaxJsonBytes at most, and a few times that for its tree.
void for_each_json_object(ByteSource& text, LogSink& sink,
                          const std::function<void(const JsonObject&, uint64_t)>& visit);

/// The same for one line.
void visit_json_line(simdjson::dom::parser& parser, std::string_view line, uint64_t number,
                     LogSink& sink, const std::function<void(const JsonObject&, uint64_t)>& visit);

/// The member `key`; nothing when it is absent or null.
std::optional<JsonElement> member(const JsonObject& object, std::string_view key);

/// A string, or nothing.
std::string text_or_empty(const std::optional<JsonElement>& value);

/// A whole number in [0, high], written as a number or as a string of digits (as OTLP's JSON writes
/// 64 bits). Throws BadRow naming `key` when it is neither; nothing for nothing.
std::optional<int64_t> whole_number(const std::optional<JsonElement>& value, std::string_view key,
                                    int64_t high);

/// whole_number of a length in tokens.
std::optional<uint32_t> token_count(const std::optional<JsonElement>& value, std::string_view key);

}  // namespace loratory::sim
