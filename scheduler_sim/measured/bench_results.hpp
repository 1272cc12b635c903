#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "scheduler_sim/measured/description.hpp"
#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::sim {

/// Whether a text that begins so is JSON.
bool is_json(std::string_view head);

/// Reads what load generators save: `vllm bench serve --save-result` (one document, or a line each
/// with --append-result), `vllm bench sweep` (an array), SGLang's bench_serving --output-file (a
/// line each). With --save-detailed or --output-details the very requests are replayed, else
/// requests of the mean lengths. A member with the name of a column (is_description) counts as its
/// cell; `also` says what else is known. `add` gets each result with its line.
/// Throws InputError at name:line:column.
void read_bench_results(ByteSource& text, const std::string& name,
                        std::span<const DescribedCell> also,
                        const std::function<void(MeasuredDraft, uint64_t line)>& add);

}  // namespace loratory::sim
