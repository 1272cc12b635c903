#include "scheduler_sim/trace/writer.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "reference/base/escape.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

using Buffer = fmt::memory_buffer;

template <typename... Args>
void append(Buffer& row, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(row), format, std::forward<Args>(args)...);
}

// Milliseconds to the nanosecond, without trailing zeros: 1500000 is 1.5.
void append_ms(Buffer& row, int64_t time_ns) {
  append(row, "{}", time_ns / kNsPerMs);
  int64_t fraction = time_ns % kNsPerMs;
  if (fraction == 0) return;
  int digits = 6;
  for (; fraction % 10 == 0; fraction /= 10) --digits;
  append(row, ".{:0{}}", fraction, digits);
}

template <typename Ids>
void append_ids(Buffer& row, std::string_view key, const Ids& ids) {
  append(row, ",\"{}\":[{}]", key, fmt::join(ids, ","));
}

void append_request(Buffer& row, const Trace& trace, size_t index) {
  const TraceRequest& request = trace.requests[index];
  append(row, "{{\"arrival_ms\":");
  append_ms(row, request.arrival_ns);
  append(row, ",\"prompt_tokens\":{},\"output_tokens\":{}", request.prompt_tokens,
         request.output_tokens);
  if (const auto id = trace.id_of(index); !id.empty()) append(row, ",\"id\":{}", json_string(id));
  if (request.adapter != kBaseModel) {
    const TraceAdapter& adapter = trace.adapters[request.adapter];
    append(row, ",\"adapter\":{}", json_string(adapter.name));
    if (adapter.rank != 0) append(row, ",\"rank\":{}", adapter.rank);
  }
  if (request.priority != 0) append(row, ",\"priority\":{}", request.priority);
  if (request.session != 0) append(row, ",\"session\":{}", request.session);
  if (request.cancel_ns != kNever) {
    append(row, ",\"cancel_ms\":");
    append_ms(row, request.cancel_ns);
  }
  if (request.content_count != 0 && trace.block_tokens != 0) {
    append(row, ",\"block_tokens\":{}", trace.block_tokens);
    append_ids(row, "block_ids", trace.blocks_of(request));
  } else if (request.content_count != 0) {
    append_ids(row, "token_ids", trace.tokens_of(request));
  }
  append(row, "}}\n");
}

}  // namespace

void write_native(std::ostream& out, const Trace& trace,
                  const std::function<void(uint64_t)>& on_rows) {
  constexpr size_t kRowsPerCall = 4096;
  Buffer row;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    row.clear();
    append_request(row, trace, i);
    out.write(row.data(), static_cast<std::streamsize>(row.size()));
    if (on_rows && (i + 1) % kRowsPerCall == 0) on_rows(i + 1);
  }
}

}  // namespace loratory::sim
