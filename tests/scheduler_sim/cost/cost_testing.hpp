#pragma once

#include <string>
#include <string_view>

#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/step_time.hpp"

namespace loratory::sim {

/// A step of `rows` that decode at `context` tokens each.
inline BatchShape decode(int64_t rows, int64_t context) {
  BatchShape shape;
  shape.num_seqs = shape.num_tokens = shape.num_sampled = rows;
  shape.decode_context_tokens = rows * context;
  return shape;
}

/// Of the text of a config.json.
inline ModelSpec spec_of(std::string_view config) {
  return model_spec_of(reference::parse_model_config(config, "config.json"), "config.json");
}

/// `text` with its first `from`, which it must have, replaced.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace loratory::sim
