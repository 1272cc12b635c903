#include <fmt/format.h>

#include "reference/model/rope.hpp"

namespace loratory::reference {
namespace {

// The index of the frequency that turns `rotations` times within the original context.
double correction_dim(double rotations, const RopeConfig& config, int64_t head_dim) {
  const auto context = double(config.original_max_position_embeddings);
  return double(head_dim) * std::log(context / (rotations * 2 * M_PI)) /
         (2 * std::log(config.theta));
}

}  // namespace

YarnRange yarn_range(const RopeConfig& config, int64_t head_dim) {
  const double low = std::floor(correction_dim(config.beta_fast, config, head_dim));
  const double high = std::ceil(correction_dim(config.beta_slow, config, head_dim));
  return {std::max(low, 0.0), std::min(high, double(head_dim - 1))};
}

double rope_attention_factor(const RopeConfig& config) {
  if (config.scaling != RopeScaling::yarn) return 1;
  if (config.attention_factor != 0) return config.attention_factor;
  return config.factor <= 1 ? 1 : 0.1 * std::log(config.factor) + 1;
}

void check_positions(const RopeConfig& config, std::span<const int64_t> positions) {
  for (const int64_t position : positions) {
    if (position < 0 || position >= (int64_t{1} << 24)) {
      throw InputError("rope", fmt::format("position {} is not in [0, 2^24)", position));
    }
    if (config.scaling == RopeScaling::dynamic &&
        position >= config.original_max_position_embeddings) {
      throw InputError("rope",
                       fmt::format("position {} needs dynamic scaling beyond {}", position,
                                   config.original_max_position_embeddings),
                       "use a shorter context, or linear, llama3 or yarn scaling");
    }
  }
}

}  // namespace loratory::reference
