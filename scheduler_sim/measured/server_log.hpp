#pragma once

#include <string_view>
#include <vector>

#include "scheduler_sim/measured/description.hpp"
#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::sim {

/// Whether a text that begins so is what a vLLM server printed.
bool is_server_log(std::string_view head);

/// What vLLM's own lines say of a server: version, flags and what they default to, tokens of the KV
/// cache (0 = it did not start). The GPU is in none of them. `name` stands for the file. Throws
/// InputError if no line says anything.
std::vector<DescribedCell> read_server_log(ByteSource& text, std::string_view name);

}  // namespace loratory::sim
