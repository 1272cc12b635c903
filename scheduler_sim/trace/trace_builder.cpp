#include "scheduler_sim/trace/trace_builder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
TraceBuilder::TraceBuilder(const Schema& schema, const ReadOptions& options, Trace& trace)
    : schema_(schema),
      options_(options),
      block_tokens_(options.block_tokens != 0 ? options.block_tokens : schema.block_tokens),
      trace_(trace) {
  if (options.adapter_from_model && !schema.has_models()) {
    throw InputError(
        "--adapter-from", fmt::format("requests of a {} trace name no model", schema.name),
        schema.log != nullptr ? "leave it out: the log names the adapters itself" : "leave it out");
  }
}

void TraceBuilder::give_up() {
  trace_.block_ids.resize(num_block_ids_);
  trace_.token_ids.resize(num_token_ids_);
}

void TraceBuilder::add(const Row& row) {
  if (!options_.adapter_from_model || row.has(Field::adapter)) return add_named(row);
  if (row.model.empty()) {
    bad_row(std::max(1u, row.column(Field::model)), "a request that names no model",
            "leave it out with --skip-bad-rows");
  }
  Row named = row;
  if (std::ranges::count(options_.base_models, row.model) == 0) {
    named.adapter = row.model;
    named.columns[size_t(Field::adapter)] = std::max(1u, row.column(Field::model));
  }
  add_named(named);
}

void TraceBuilder::add_named(const Row& row) {
  TraceRequest request = checked(row);
  // From here on nothing throws BadRow: the row is good.
  if (trace_.requests.empty() && schema_.is_from_first_row) {
    origin_ns_ = row.arrival_ns;
    request.arrival_ns = 0;
  }
  request.adapter = adapter_of(row);
  request.session = session_of(row);
  if (row.has(Field::block_ids)) {
    if (row.has(Field::block_tokens)) block_tokens_ = row.block_tokens;
    trace_.block_tokens = block_tokens_;
  }
  num_block_ids_ = trace_.block_ids.size();
  num_token_ids_ = trace_.token_ids.size();
  trace_.requests.push_back(request);
  add_id(row);
}

// Most traces have no ids at all, and then no memory for them.
void TraceBuilder::add_id(const Row& row) {
  if (row.id.empty() && trace_.ids.empty()) return;
  trace_.ids.resize(trace_.requests.size());
  trace_.ids.back() = row.id;
}

TraceRequest TraceBuilder::checked(const Row& row) const {
  TraceRequest request;
  const bool is_first = trace_.requests.empty();
  request.arrival_ns = is_first && schema_.is_from_first_row ? 0 : row.arrival_ns - origin_ns_;
  if (!is_first && request.arrival_ns < trace_.requests.back().arrival_ns) {
    bad_row(row.column(Field::arrival), "this row arrives before the row above it",
            "sort the rows by time");
  }
  if (request.arrival_ns > kMaxTimeNs) {
    bad_row(row.column(Field::arrival), "more than 100 years after the first row",
            "check the times");
  }
  request.cancel_ns = row.cancel_ns;
  if (row.cancel_ns < row.arrival_ns) {
    bad_row(row.column(Field::cancel), "cancelled before it arrives",
            "give cancel_ms on the clock of arrival_ms");
  }
  request.prompt_tokens = row.prompt_tokens;
  request.output_tokens = row.output_tokens;
  request.priority = row.priority;
  check_content(row, request);
  check_adapter(row);
  if (schema_.format == TraceFormat::burst_gpt && row.output_tokens == 0) {
    bad_row(row.column(Field::output_tokens), "a failed request (0 response tokens)",
            "use the file without_fails, or leave failures out with --skip-bad-rows");
  }
  return request;
}

// Fills in what the content says about the request: where it is and how long the prompt is.
void TraceBuilder::check_content(const Row& row, TraceRequest& request) const {
  const bool has_blocks = row.has(Field::block_ids), has_tokens = row.has(Field::token_ids);
  if (has_tokens) {
    const auto count = uint32_t(trace_.token_ids.size() - num_token_ids_);
    if (has_blocks || trace_.block_tokens != 0) {
      bad_row(row.column(Field::token_ids), "token_ids in a trace of block_ids",
              "use one of them throughout");
    }
    if (row.has(Field::prompt_tokens) && row.prompt_tokens != count) {
      bad_row(row.column(Field::token_ids),
              fmt::format("{} token_ids for {} prompt_tokens", count, row.prompt_tokens),
              "leave prompt_tokens out, or make them agree");
    }
    request.prompt_tokens = count;
    request.content_begin = num_token_ids_;
    request.content_count = count;
  } else if (!row.has(Field::prompt_tokens)) {
    bad_row(1, "prompt_tokens and token_ids are both missing", "give one of them");
  }
  if (request.prompt_tokens == 0) {
    bad_row(row.column(has_tokens ? Field::token_ids : Field::prompt_tokens),
            "a prompt of 0 tokens", "a request has at least 1 prompt token");
  }
  if (has_blocks) {
    check_block_ids(row, request.prompt_tokens);
    request.content_begin = num_block_ids_;
    request.content_count = uint32_t(trace_.block_ids.size() - num_block_ids_);
  } else if (row.has(Field::block_tokens)) {
    bad_row(row.column(Field::block_tokens), "block_tokens without block_ids", "leave it out");
  }
}

void TraceBuilder::check_block_ids(const Row& row, uint32_t prompt_tokens) const {
  const uint32_t column = row.column(Field::block_ids);
  if (!trace_.token_ids.empty()) {
    bad_row(column, "block_ids in a trace of token_ids", "use one of them throughout");
  }
  uint32_t block_tokens = block_tokens_;
  if (row.has(Field::block_tokens)) {
    if (block_tokens != 0 && row.block_tokens != block_tokens) {
      bad_row(row.column(Field::block_tokens),
              fmt::format("block_tokens {} after {}", row.block_tokens, block_tokens),
              "use one block size throughout");
    }
    block_tokens = row.block_tokens;
  }
  if (block_tokens == 0) {
    bad_row(column, "block_ids without block_tokens", "say how many tokens one block has");
  }
  const size_t count = trace_.block_ids.size() - num_block_ids_;
  const uint32_t needed = ceil_div(prompt_tokens, block_tokens);
  if (count != needed) {
    bad_row(column,
            fmt::format("{} block ids for {} tokens in blocks of {}, which need {}", count,
                        prompt_tokens, block_tokens, needed),
            "one id for every started block; --format or --block-tokens sets another size");
  }
}

void TraceBuilder::check_adapter(const Row& row) const {
  if (!row.has(Field::rank)) return;
  if (!row.has(Field::adapter)) {
    bad_row(row.column(Field::rank), "a rank without an adapter", "name the adapter");
  }
  const auto known = adapters_.find(std::string(row.adapter));
  if (known == adapters_.end()) return;
  const uint32_t rank = trace_.adapters[known->second].rank;
  if (rank != 0 && rank != row.rank) {
    bad_row(row.column(Field::rank),
            fmt::format("adapter '{}' had rank {} before", row.adapter, rank),
            "an adapter has one rank");
  }
}

AdapterIndex TraceBuilder::adapter_of(const Row& row) {
  if (!row.has(Field::adapter)) return kBaseModel;
  const auto next = AdapterIndex(trace_.adapters.size());
  const auto [entry, is_new] = adapters_.try_emplace(std::string(row.adapter), next);
  if (is_new) trace_.adapters.push_back({entry->first, 0});
  if (row.has(Field::rank)) trace_.adapters[entry->second].rank = row.rank;
  return entry->second;
}

// Sessions are numbered from 1 in order of appearance; a chat belongs to the session of its parent.
uint32_t TraceBuilder::session_of(const Row& row) {
  if (row.has(Field::chat)) {
    const int64_t root = row.parent_chat >= 0 ? row.parent_chat : row.chat;
    const auto [entry, is_new] = chat_sessions_.try_emplace(root, num_sessions_ + 1);
    if (is_new) ++num_sessions_;
    const uint32_t session = entry->second;
    chat_sessions_[row.chat] = session;
    return session;
  }
  if (row.session_name.empty()) return row.session;
  const auto [entry, is_new] =
      named_sessions_.try_emplace(std::string(row.session_name), num_sessions_ + 1);
  if (is_new) ++num_sessions_;
  return entry->second;
}

}  // namespace loratory::sim
