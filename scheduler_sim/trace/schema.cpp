#include "scheduler_sim/trace/schema.hpp"

#include <simdjson.h>

#include <algorithm>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"

namespace loratory::sim {
namespace {

constexpr ColumnSpec kNativeColumns[] = {
    {"arrival_ms", Field::kArrival, true},
    {"prompt_tokens", Field::kPromptTokens, false},
    {"output_tokens", Field::kOutputTokens, true},
    {"adapter", Field::kAdapter, false},
    {"rank", Field::kRank, false},
    {"priority", Field::kPriority, false},
    {"session", Field::kSession, false},
    {"cancel_ms", Field::kCancel, false},
    {"block_tokens", Field::kBlockTokens, false},
    {"block_ids", Field::kBlockIds, false},
    {"token_ids", Field::kTokenIds, false},
};
constexpr ColumnSpec kMooncakeColumns[] = {
    {"timestamp", Field::kArrival, true},
    {"input_length", Field::kPromptTokens, true},
    {"output_length", Field::kOutputTokens, true},
    {"hash_ids", Field::kBlockIds, true},
};
constexpr ColumnSpec kQwenBailianColumns[] = {
    {"chat_id", Field::kChat, true},
    {"parent_chat_id", Field::kParentChat, true},
    {"timestamp", Field::kArrival, true},
    {"input_length", Field::kPromptTokens, true},
    {"output_length", Field::kOutputTokens, true},
    {"type", Field::kIgnored, false},
    {"turn", Field::kIgnored, false},
    {"hash_ids", Field::kBlockIds, true},
};
constexpr ColumnSpec kAzureColumns[] = {
    {"TIMESTAMP", Field::kArrival, true},
    {"ContextTokens", Field::kPromptTokens, true},
    {"GeneratedTokens", Field::kOutputTokens, true},
};
constexpr ColumnSpec kBurstGptColumns[] = {
    {"Timestamp", Field::kArrival, true},           {"Session ID", Field::kSession, false},
    {"Elapsed time", Field::kIgnored, false},       {"Model", Field::kIgnored, true},
    {"Request tokens", Field::kPromptTokens, true}, {"Response tokens", Field::kOutputTokens, true},
    {"Total tokens", Field::kIgnored, false},       {"Log Type", Field::kIgnored, false},
};
constexpr ColumnSpec kVidurColumns[] = {
    {"arrived_at", Field::kArrival, true},
    {"num_prefill_tokens", Field::kPromptTokens, true},
    {"num_decode_tokens", Field::kOutputTokens, true},
};
constexpr ColumnSpec kSplitwiseColumns[] = {
    {"request_id", Field::kIgnored, false},     {"request_type", Field::kIgnored, false},
    {"application_id", Field::kIgnored, false}, {"arrival_timestamp", Field::kArrival, true},
    {"batch_size", Field::kBatchSize, false},   {"prompt_size", Field::kPromptTokens, true},
    {"token_size", Field::kOutputTokens, true},
};

constexpr uint32_t kMooncakeBlockTokens = 512;
constexpr uint32_t kShortBlockTokens = 16;  // Qwen-Bailian's; vLLM's default

// Mooncake stands before vLLM: they differ only in units, and looks_like_vllm() tells them apart.
constexpr Schema kSchemas[] = {
    {TraceFormat::kNative, "native", Syntax::kJsonl, TimeUnit::kMilliseconds, false, 0,
     "arrival_ms", kNativeColumns},
    {TraceFormat::kQwenBailian, "qwen-bailian", Syntax::kJsonl, TimeUnit::kSeconds, false,
     kShortBlockTokens, "chat_id", kQwenBailianColumns},
    {TraceFormat::kMooncake, "mooncake", Syntax::kJsonl, TimeUnit::kMilliseconds, false,
     kMooncakeBlockTokens, "timestamp", kMooncakeColumns},
    {TraceFormat::kVllm, "vllm", Syntax::kJsonl, TimeUnit::kSeconds, false, kShortBlockTokens,
     "timestamp", kMooncakeColumns},
    {TraceFormat::kAzure, "azure", Syntax::kCsv, TimeUnit::kTimestamp, true, 0, "TIMESTAMP",
     kAzureColumns},
    {TraceFormat::kBurstGpt, "burstgpt", Syntax::kCsv, TimeUnit::kSeconds, true, 0,
     "Request tokens", kBurstGptColumns},
    {TraceFormat::kVidur, "vidur", Syntax::kCsv, TimeUnit::kSeconds, false, 0, "arrived_at",
     kVidurColumns},
    {TraceFormat::kSplitwise, "splitwise", Syntax::kCsv, TimeUnit::kSeconds, false, 0,
     "arrival_timestamp", kSplitwiseColumns},
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
  for_each_cell(header, [&](std::string_view cell, uint32_t, size_t) {
    is_there = is_there || cell == name;
  });
  return is_there;
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

const Schema& detect_schema(std::string_view first_line, std::string_view file) {
  const size_t first = first_line.find_first_not_of(" \t");
  const bool is_json = first != std::string_view::npos && first_line[first] == '{';
  for (const Schema& schema : kSchemas) {
    if (is_json != (schema.syntax == Syntax::kJsonl)) continue;
    const bool has_telltale = is_json ? has_json_key(first_line, schema.telltale)
                                      : has_csv_column(first_line, schema.telltale);
    if (!has_telltale) continue;
    const bool is_vllm = schema.format == TraceFormat::kMooncake && looks_like_vllm(first_line);
    return is_vllm ? schema_of(TraceFormat::kVllm) : schema;
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
  if (name == "auto") return TraceFormat::kAuto;
  for (const Schema& schema : kSchemas) {
    if (schema.name == name) return schema.format;
  }
  throw InputError("--format", "unknown trace format '" + std::string(name) + "'",
                   "use auto or one of " + trace_format_names());
}

}  // namespace loratory::sim
