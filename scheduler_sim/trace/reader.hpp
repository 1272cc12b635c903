#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Formats of request traces; traces/SCHEMA.md has the columns of each.
enum class TraceFormat : uint8_t {
  detect,        ///< told from the first line
  native,        ///< our own JSON lines, milliseconds
  mooncake,      ///< JSON lines, milliseconds, hash_ids of 512 tokens
  qwen_bailian,  ///< JSON lines, seconds, hash_ids of 16 tokens, chats
  vllm,        ///< JSON lines of `vllm bench serve --dataset-name timed_trace`, seconds, 16 tokens
  azure,       ///< CSV of timestamps, 2023 and 2024
  burst_gpt,   ///< CSV, seconds
  vidur,       ///< CSV, seconds
  splitwise,   ///< CSV, seconds
  otel,        ///< OpenTelemetry spans of generative AI, OTLP's JSON
  litellm,     ///< LiteLLM's spend logs, CSV or JSON
  vllm_log,    ///< request log of a vLLM server
  sglang_log,  ///< request log of an SGLang server, text or JSON
  vllm_bench,  ///< result of `vllm bench serve --save-detailed`
};

/// Names that trace_format() knows, for help texts: "native, mooncake, ...".
std::string trace_format_names();

/// Throws InputError (place "--format") when there is no such format; "auto" is one.
TraceFormat trace_format(std::string_view name);

struct ReadOptions {
  TraceFormat format = TraceFormat::detect;
  /// Leave bad rows out and count them in Trace::num_rows_skipped.
  bool skip_bad_rows = false;
  /// Tokens of one entry of hash_ids where the rows do not say; 0 = the format's own number.
  uint32_t block_tokens = 0;
  /// The model name of a row is its adapter, unless it is one of base_models.
  bool adapter_from_model = false;
  std::vector<std::string> base_models;
  /// Lengths of the requests of a log that does not tell them; 0 = such a request is a bad row.
  uint32_t default_prompt_tokens = 0;
  uint32_t default_output_tokens = 0;
  /// Called after each chunk of the file (64 KiB or more) with how much of it was read, both as it
  /// lies on the disk, compressed or not. bytes = 0: the size is unknown, as of a pipe.
  std::function<void(uint64_t bytes_read, uint64_t bytes, uint64_t num_rows)> on_progress;
};

/// Reads a whole request trace: plain, gzip or zstd by content; "-" is stdin.
///
/// Rows keep file order; times never run backwards. The entries of a log (otel to vllm_bench) come
/// in any order and are put in order of arrival. The first bad row throws InputError at
/// `file:line:column`, unless skip_bad_rows. Damaged compressed data, an unknown format and a
/// trace without any good row always throw. The last row counts only if it is surely whole: a
/// JSON object, or a CSV row that a newline ends.
/// The same bytes give the same trace on any machine. One pass; memory: the trace itself, 48 bytes
/// a request plus 8 a block id (4 a token id), and a buffer of the longest line (16 MiB at most).
Trace read_trace(const std::string& path, const ReadOptions& options = {});

/// The same from bytes in memory; `name` stands for the file in messages and Trace::source.
Trace read_trace_from(std::string_view bytes, std::string_view name,
                      const ReadOptions& options = {});

}  // namespace loratory::sim
