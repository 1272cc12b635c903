#pragma once

#include <vector>

#include "reference/base/check.hpp"
#include "reference/model/forward.hpp"

namespace loratory::reference {

/// The obvious KvCache: one number for each layer, sequence, position, kv head and dimension,
/// all in memory from the start. Sequences are 0..num_sequences-1.
template <typename Real>
class DenseKv : public KvCache<Real> {
 public:
  DenseKv(const ModelConfig& config, int64_t num_sequences, int64_t num_positions)
      : num_sequences_(num_sequences),
        num_positions_(num_positions),
        width_(config.num_kv_heads * config.head_dim),
        keys_(size_t(config.num_layers * num_sequences * num_positions * width_), Real(0)),
        values_(keys_) {}

  std::span<Real> key(int64_t layer, int64_t sequence, int64_t position) override {
    return {keys_.data() + offset(layer, sequence, position), size_t(width_)};
  }
  std::span<Real> value(int64_t layer, int64_t sequence, int64_t position) override {
    return {values_.data() + offset(layer, sequence, position), size_t(width_)};
  }

 private:
  int64_t offset(int64_t layer, int64_t sequence, int64_t position) const {
    LORATORY_ASSERT(sequence >= 0 && sequence < num_sequences_, "the cache has the sequence");
    LORATORY_ASSERT(position >= 0 && position < num_positions_, "the cache has the position");
    return ((layer * num_sequences_ + sequence) * num_positions_ + position) * width_;
  }

  int64_t num_sequences_, num_positions_, width_;
  std::vector<Real> keys_, values_;
};

}  // namespace loratory::reference
