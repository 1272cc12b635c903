#include "scheduler_sim/trace/logs/log_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace loratory::sim {

void LogRows::note(std::string sentence) {
  if (std::ranges::count(notes_, sentence) == 0) notes_.push_back(std::move(sentence));
}

uint32_t LogRows::length(std::optional<uint32_t> known, uint32_t fallback, const char* what,
                         uint64_t& num_assumed) const {
  if (known) return *known;
  if (fallback == 0) {
    bad_row(1, fmt::format("the {} length of a request is missing", what),
            std::string(schema_.log->for_more_tokens));
  }
  ++num_assumed;
  return fallback;
}

void LogRows::add_row(const LoggedRequest& request, TraceBuilder& builder) {
  Row row;
  const auto is_there = [&](Field field) { row.columns[size_t(field)] = 1; };
  is_there(Field::arrival);
  row.arrival_ns = request.arrival_ns;
  is_there(Field::prompt_tokens);
  row.prompt_tokens =
      length(request.prompt_tokens, options_.default_prompt_tokens, "prompt", num_prompts_assumed_);
  is_there(Field::output_tokens);
  row.output_tokens =
      length(request.output_tokens, options_.default_output_tokens, "output", num_outputs_assumed_);
  row.id = request.id;
  row.session_name = request.session;
  row.model = request.model;
  if (!request.lora.empty()) {
    is_there(Field::adapter);
    row.adapter = request.lora;
  }
  builder.add(row);
}

void LogRows::build(TraceBuilder& builder, Trace& trace) {
  std::ranges::stable_sort(requests_, {}, &LoggedRequest::arrival_ns);
  for (const LoggedRequest& request : requests_) {
    try {
      add_row(request, builder);
    } catch (const BadRow& bad) {
      refuse_(request.line, bad);
    }
  }
  const auto say = [&](const char* what, uint32_t tokens, uint64_t count) {
    if (count == 0) return;
    note(fmt::format("{} of {} {} lengths are --default-{} {}", count, requests_.size(), what, what,
                     tokens));
  };
  say("prompt", options_.default_prompt_tokens, num_prompts_assumed_);
  say("output", options_.default_output_tokens, num_outputs_assumed_);
  trace.notes = std::move(notes_);
}

}  // namespace loratory::sim
