#include "scheduler_sim/trace/schema.hpp"

#include <simdjson.h>

#include <algorithm>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"

namespace loratory::sim {
namespace {

constexpr ColumnSpec kNativeColumns[] = {
    {"arrival_ms", Field::arrival, true},
    {"prompt_tokens", Field::prompt_tokens, false},
    {"output_tokens", Field::output_tokens, true},
    {"id", Field::id, false},
    {"adapter", Field::adapter, false},
    {"rank", Field::rank, false},
    {"priority", Field::priority, false},
    {"session", Field::session, false},
    {"cancel_ms", Field::cancel, false},
    {"block_tokens", Field::block_tokens, false},
    {"block_ids", Field::block_ids, false},
    {"token_ids", Field::token_ids, false},
};
constexpr ColumnSpec kMooncakeColumns[] = {
    {"timestamp", Field::arrival, true},
    {"input_length", Field::prompt_tokens, true},
    {"output_length", Field::output_tokens, true},
    {"hash_ids", Field::block_ids, true},
};
constexpr ColumnSpec kQwenBailianColumns[] = {
    {"chat_id", Field::chat, true},
    {"parent_chat_id", Field::parent_chat, true},
    {"timestamp", Field::arrival, true},
    {"input_length", Field::prompt_tokens, true},
    {"output_length", Field::output_tokens, true},
    {"type", Field::ignored, false},
    {"turn", Field::ignored, false},
    {"hash_ids", Field::block_ids, true},
};
constexpr ColumnSpec kAzureColumns[] = {
    {"TIMESTAMP", Field::arrival, true},
    {"ContextTokens", Field::prompt_tokens, true},
    {"GeneratedTokens", Field::output_tokens, true},
};
constexpr ColumnSpec kBurstGptColumns[] = {
    {"Timestamp", Field::arrival, true},
    {"Session ID", Field::session, false},
    {"Elapsed time", Field::ignored, false},
    {"Model", Field::model, true},
    {"Request tokens", Field::prompt_tokens, true},
    {"Response tokens", Field::output_tokens, true},
    {"Total tokens", Field::ignored, false},
    {"Log Type", Field::ignored, false},
};
constexpr ColumnSpec kVidurColumns[] = {
    {"arrived_at", Field::arrival, true},
    {"num_prefill_tokens", Field::prompt_tokens, true},
    {"num_decode_tokens", Field::output_tokens, true},
};
constexpr ColumnSpec kSplitwiseColumns[] = {
    {"request_id", Field::ignored, false},      {"request_type", Field::ignored, false},
    {"application_id", Field::ignored, false},  {"arrival_timestamp", Field::arrival, true},
    {"batch_size", Field::batch_size, false},   {"prompt_size", Field::prompt_tokens, true},
    {"token_size", Field::output_tokens, true},
};

constexpr uint32_t kMooncakeBlockTokens = 512;
constexpr uint32_t kShortBlockTokens = 16;  // Qwen-Bailian's; vLLM's default

// Mooncake stands before vLLM: they differ only in units, and looks_like_vllm() tells them apart.
constexpr Schema kSchemas[] = {
    {TraceFormat::native, "native", Syntax::jsonl, TimeUnit::milliseconds, false, 0, "arrival_ms",
     kNativeColumns},
    {TraceFormat::qwen_bailian, "qwen-bailian", Syntax::jsonl, TimeUnit::seconds, false,
     kShortBlockTokens, "chat_id", kQwenBailianColumns},
    {TraceFormat::mooncake, "mooncake", Syntax::jsonl, TimeUnit::milliseconds, false,
     kMooncakeBlockTokens, "timestamp", kMooncakeColumns},
    {TraceFormat::vllm, "vllm", Syntax::jsonl, TimeUnit::seconds, false, kShortBlockTokens,
     "timestamp", kMooncakeColumns},
    {TraceFormat::azure, "azure", Syntax::csv, TimeUnit::timestamp, true, 0, "TIMESTAMP",
     kAzureColumns},
    {TraceFormat::burst_gpt, "burstgpt", Syntax::csv, TimeUnit::seconds, true, 0, "Request tokens",
     kBurstGptColumns},
    {TraceFormat::vidur, "vidur", Syntax::csv, TimeUnit::seconds, false, 0, "arrived_at",
     kVidurColumns},
    {TraceFormat::splitwise, "splitwise", Syntax::csv, TimeUnit::seconds, false, 0,
     "arrival_timestamp", kSplitwiseColumns},
    {TraceFormat::otel, "otel", Syntax::log, TimeUnit::timestamp, true, 0, "", {}, &kOtelLog},
    {TraceFormat::litellm,
     "litellm",
     Syntax::log,
     TimeUnit::timestamp,
     true,
     0,
     "",
     {},
     &kLitellmLog},
    {TraceFormat::vllm_log,
     "vllm-log",
     Syntax::log,
     TimeUnit::timestamp,
     true,
     0,
     "",
     {},
     &kVllmLog},
    {TraceFormat::sglang_log,
     "sglang-log",
     Syntax::log,
     TimeUnit::timestamp,
     true,
     0,
     "",
     {},
     &kSglangLog},
    {TraceFormat::vllm_bench,
     "vllm-bench",
     Syntax::log,
     TimeUnit::seconds,
     true,
     0,
     "",
     {},
     &kVllmBenchLog},
};

// vLLM's timed traces have Mooncake's keys, in seconds and with blocks of 16 tokens: the number
// of hash_ids tells, and for prompts of at most 16 tokens a fraction in the time.
bool looks_like_vllm(std::string_view line) {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  simdjson::dom::array ids;
  uint64_t prompt_tokens = 0;
  if (parser.parse(line.data(), line.size()).get(object) != simdjson::SUCCESS) return false;
  if (object["input_length"].get(prompt_tokens) != simdjson::SUCCESS) return false;
  if (object["hash_ids"].get(ids) != simdjson::SUCCESS) return false;
  const auto num_blocks = [&](uint64_t block_tokens) {
    return prompt_tokens / block_tokens + (prompt_tokens % block_tokens != 0 ? 1 : 0);
  };
  if (ids.size() != num_blocks(kShortBlockTokens)) return false;
  return ids.size() != num_blocks(kMooncakeBlockTokens) || object["timestamp"].is_double();
}

bool has_csv_column(std::string_view header, std::string_view name) {
  bool is_there = false;
  try {
    for_each_cell(header, csv_separator(header), [&](std::string_view cell, uint32_t, size_t) {
      is_there = is_there || cell == name;
    });
  } catch (const BadRow&) {  // of no format, then
  }
  return is_there;
}

bool begins_with_brace(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t");
  return first != std::string_view::npos && line[first] == '{';
}

bool has_json_key(std::string_view line, std::string_view name) {
  return line.find("\"" + std::string(name) + "\"") != std::string_view::npos;
}

}  // namespace

std::span<const Schema> schemas() { return kSchemas; }

const Schema& schema_of(TraceFormat format) {
  const auto* schema = std::ranges::find(kSchemas, format, &Schema::format);
  LORATORY_ASSERT(schema != std::end(kSchemas), "every format but kAuto has a schema");
  return *schema;
}

bool Schema::has_models() const {
  if (log != nullptr) return log->has_models;
  return std::ranges::count(columns, Field::model, &ColumnSpec::field) > 0;
}

const Schema* detect_log(std::string_view head) {
  const auto* schema = std::ranges::find_if(kSchemas, [&](const Schema& candidate) {
    return candidate.log != nullptr && candidate.log->recognises(head);
  });
  return schema == std::end(kSchemas) ? nullptr : schema;
}

bool begins_with_columns(std::string_view head) {
  std::string_view line = head.substr(0, head.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const bool is_json = begins_with_brace(line);
  const auto has = [&](const ColumnSpec& column) {
    return !column.is_required ||
           (is_json ? has_json_key(line, column.name) : has_csv_column(line, column.name));
  };
  return std::ranges::any_of(kSchemas, [&](const Schema& schema) {
    return schema.syntax == (is_json ? Syntax::jsonl : Syntax::csv) &&
           std::ranges::all_of(schema.columns, has);
  });
}

const Schema& detect_schema(std::string_view first_line, std::string_view file) {
  const bool is_json = begins_with_brace(first_line);
  for (const Schema& schema : kSchemas) {
    if (schema.syntax != (is_json ? Syntax::jsonl : Syntax::csv)) continue;
    const bool has_telltale = is_json ? has_json_key(first_line, schema.telltale)
                                      : has_csv_column(first_line, schema.telltale);
    if (!has_telltale) continue;
    const bool is_vllm = schema.format == TraceFormat::mooncake && looks_like_vllm(first_line);
    return is_vllm ? schema_of(TraceFormat::vllm) : schema;
  }
  throw InputError(std::string(file) + ":1:1", "not a known trace format",
                   "name one with --format: " + trace_format_names());
}

std::string trace_format_names() {
  std::string names;
  for (const Schema& schema : kSchemas) {
    names += (names.empty() ? "" : ", ") + std::string(schema.name);
  }
  return names;
}

TraceFormat trace_format(std::string_view name) {
  if (name == "auto") return TraceFormat::detect;
  for (const Schema& schema : kSchemas) {
    if (schema.name == name) return schema.format;
  }
  std::vector<std::string> names = {"auto"};
  for (const Schema& schema : kSchemas) names.emplace_back(schema.name);
  throw InputError("--format", "unknown trace format " + shown(name),
                   did_you_mean(name, names, "use auto or one of " + trace_format_names()));
}

}  // namespace loratory::sim
