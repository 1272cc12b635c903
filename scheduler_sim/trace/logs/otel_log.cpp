// OpenTelemetry spans of generative AI, as OTLP's JSON: the files of the Collector's file exporter
// (opentelemetry-collector-contrib, exporter/fileexporter: one ExportTraceServiceRequest a line) or
// a document of the same form. opentelemetry-proto 1.x, trace.proto in proto3 JSON: 64-bit numbers
// are strings or numbers. Attributes: semantic-conventions 1.28 and later,
// docs/gen-ai/gen-ai-spans.md (gen_ai.usage.input_tokens, output_tokens); before that, and still in
// vLLM's own spans (vllm/tracing, SpanAttributes), gen_ai.usage.prompt_tokens and
// completion_tokens.
#include <array>
#include <limits>

#include "scheduler_sim/trace/logs/json_entries.hpp"

namespace loratory::sim {
namespace {

using simdjson::dom::array;

array list_member(const JsonObject& object, std::initializer_list<std::string_view> names,
                  bool& found) {
  array values;
  found = false;
  for (const std::string_view name : names) {
    if (const auto value = member(object, name); value && value->get(values) == simdjson::SUCCESS) {
      found = true;
      break;
    }
  }
  return values;
}

// Calls f(object) for each object of the list `object` has under one of these names.
template <typename F>
void for_each_entry(const JsonObject& object, std::initializer_list<std::string_view> names, F f) {
  bool found = false;
  const array values = list_member(object, names, found);
  if (!found) return;
  for (const JsonElement value : values) {
    JsonObject entry;
    if (value.get(entry) == simdjson::SUCCESS) f(entry);
  }
}

// The value of an attribute, whatever its type.
std::optional<JsonElement> attribute(const JsonObject& span,
                                     std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    std::optional<JsonElement> found;
    for_each_entry(span, {"attributes"}, [&](const JsonObject& entry) {
      JsonObject value;
      const auto wrapped = member(entry, "value");
      if (text_or_empty(member(entry, "key")) != name || !wrapped) return;
      if (wrapped->get(value) != simdjson::SUCCESS) return;
      for (const auto type : {"intValue", "stringValue", "doubleValue"}) {
        if (const auto inner = member(value, type)) found = inner;
      }
    });
    if (found) return found;
  }
  return std::nullopt;
}

// Embeddings, tools and agents have spans too.
bool is_generation(const JsonObject& span) {
  const std::string operation = text_or_empty(attribute(span, {"gen_ai.operation.name"}));
  if (!operation.empty()) {
    return operation == "chat" || operation == "text_completion" || operation == "generate_content";
  }
  return attribute(span, {"gen_ai.request.model", "gen_ai.response.model",
                          "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"})
      .has_value();
}

LoggedRequest request_of(const JsonObject& span) {
  LoggedRequest request;
  const auto start = whole_number(member(span, "startTimeUnixNano"), "startTimeUnixNano",
                                  std::numeric_limits<int64_t>::max());
  if (!start) bad_row(1, "startTimeUnixNano is missing", "export whole spans");
  request.arrival_ns = *start;
  request.prompt_tokens =
      token_count(attribute(span, {"gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"}),
                  "gen_ai.usage.input_tokens");
  request.output_tokens =
      token_count(attribute(span, {"gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"}),
                  "gen_ai.usage.output_tokens");
  request.model = text_or_empty(attribute(span, {"gen_ai.request.model", "gen_ai.response.model"}));
  request.session = text_or_empty(attribute(span, {"gen_ai.conversation.id"}));
  request.id = text_or_empty(attribute(span, {"gen_ai.request.id", "gen_ai.response.id"}));
  if (request.id.empty()) request.id = text_or_empty(member(span, "spanId"));
  return request;
}

void read_span(const JsonObject& span, uint64_t line, LogSink& sink) {
  if (!is_generation(span)) return;
  try {
    LoggedRequest request = request_of(span);
    request.line = line;
    sink.add(std::move(request));
  } catch (BadRow& bad) {
    bad.rule = "span " + text_or_empty(member(span, "spanId")) + ": " + bad.rule;
    sink.refuse(line, bad);
  }
}

void read_spans(ByteSource& text, LogSink& sink) {
  for_each_json_object(text, sink, [&](const JsonObject& batch, uint64_t line) {
    for_each_entry(batch, {"resourceSpans"}, [&](const JsonObject& resource) {
      // The second name is that of versions before 0.15 of the protocol.
      for_each_entry(resource, {"scopeSpans", "instrumentationLibrarySpans"},
                     [&](const JsonObject& scope) {
                       for_each_entry(scope, {"spans"},
                                      [&](const JsonObject& span) { read_span(span, line, sink); });
                     });
    });
  });
}

bool is_spans(std::string_view head) {
  return head.find("\"resourceSpans\"") != std::string_view::npos;
}

}  // namespace

const LogFormat kOtelLog = {is_spans, read_spans, true,
                            "record gen_ai.usage.* on the spans, or give --default-prompt and "
                            "--default-output"};

}  // namespace loratory::sim
