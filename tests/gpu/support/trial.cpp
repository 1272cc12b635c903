#include "tests/gpu/support/trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace loratory::gpu {

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

int64_t environment_or(const char* name, int64_t otherwise) {
  const std::string text = environment(name);
  return text.empty() ? otherwise : std::stoll(text);
}

int64_t Trial::pick(uint64_t index, int64_t below) const {
  return int64_t(reference::random_bits(seed_, 5000, index) % uint64_t(below));
}

int64_t Trial::size(int64_t full, int64_t reduced) {
  return environment("LORATORY_GPU_WORK").empty() ? full : reduced;
}

void Trial::classify(bool is, const std::string& kind) const {
  if (is) ++record_.classes[kind];
}

void Trial::count(int64_t num_results, double error_over_bound) const {
  record_.num_results += num_results;
  record_.worst_error_over_bound = std::max(record_.worst_error_over_bound, error_over_bound);
}

reference::LayerCase Trial::layer(const reference::LayerLimits& limits) const {
  reference::LayerLimits cut = limits;
  const int64_t work = environment_or("LORATORY_GPU_WORK", limits.num_products);
  cut.num_products = std::min(cut.num_products, work);
  if (work < limits.num_products) cut.weight_bytes = std::min(cut.weight_bytes, work / 4);
  const reference::LayerCase c = layer_case(seed_, cut);
  classify(c.num_tokens == 0, "no tokens");
  classify(c.num_tokens == 1, "one token");
  classify(c.num_tokens > 256, "more than 256 tokens");
  classify(c.num_out.size() > 1, "packed");
  classify(c.max_loras > 100, "more than 100 slots");
  classify(c.max_rank > 64, "ranks above 64");
  classify(c.aligned, "aligned");
  classify(c.padded, "rows with gaps");
  classify(!c.add_inputs, "without add_inputs");
  classify(c.out == reference::Dtype::f32, "y of f32");
  classify(c.weight == reference::Dtype::f16, "f16");
  classify(c.mode.h == reference::IntermediateMode::store_as_x, "h stored as x");
  classify(c.mode.scale == reference::ScaleMode::folded_b, "scaling folded into B");
  classify(c.mode.sum == reference::SumMode::two_round, "two roundings");
  classify(true, fmt::format("mapping {}", name(c.mapping)));
  return c;
}

}  // namespace loratory::gpu
