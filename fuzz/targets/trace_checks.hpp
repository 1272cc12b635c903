#pragma once

#include <sstream>
#include <string_view>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/anonymise.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/writer.hpp"

namespace loratory::sim {

/// What holds for every trace that a reader gives back, whatever the bytes were.
inline void check_trace(const Trace& trace) {
  LORATORY_ASSERT(!trace.requests.empty(), "a trace has at least one request");
  int64_t previous_ns = 0;
  for (const TraceRequest& request : trace.requests) {
    LORATORY_ASSERT(request.arrival_ns >= previous_ns, "times start at 0 and never run backwards");
    LORATORY_ASSERT(request.cancel_ns >= request.arrival_ns, "cancelled after it arrives");
    LORATORY_ASSERT(request.prompt_tokens > 0, "a prompt has tokens");
    LORATORY_ASSERT(request.adapter == kBaseModel || request.adapter < trace.adapters.size(),
                    "the adapter is in the table");
    const size_t num_entries =
        trace.block_tokens != 0 ? trace.block_ids.size() : trace.token_ids.size();
    LORATORY_ASSERT(request.content_begin + request.content_count <= num_entries,
                    "content lies inside");
    previous_ns = request.arrival_ns;
  }
}

/// Lengths for requests without, and adapters where the format names models.
inline void give_what_logs_lack(ReadOptions& options) {
  options.default_prompt_tokens = 7;
  options.default_output_tokens = 5;
  options.adapter_from_model =
      options.format != TraceFormat::detect && schema_of(options.format).has_models();
  if (options.adapter_from_model) options.base_models = {"base"};
}

/// Reads `bytes` in every way that matters. InputError is the only way to refuse them.
inline void read_and_check(std::string_view bytes, const ReadOptions& options) {
  try {
    const Trace trace = read_trace_from(bytes, "input", options);
    check_trace(trace);
    std::ostringstream out;
    write_native(out, trace);
    const Trace again = read_trace_from(out.str(), "again");
    LORATORY_ASSERT(again.requests.size() == trace.requests.size(), "what is written can be read");
    Trace anonymous = trace;
    anonymise(anonymous);
    check_trace(anonymous);
  } catch (const InputError&) {
  }
}

}  // namespace loratory::sim
