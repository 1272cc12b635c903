// The naive model and its oracle: P18, P22, P23, batches, caches, threads.
// Models and adapters are drawn from a seed (fuzz/support/random_model.hpp), which the REPRO line
// names; everything here is compared bit for bit unless a bound is given.
#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>

#include "fuzz/support/random_model.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/model/dense_kv.hpp"
#include "reference/model/direct_lora.hpp"
#include "reference/model/oracle.hpp"

namespace loratory::reference {
namespace {

using Tokens = std::vector<int32_t>;

/// A model and a few adapters for it, one of them for each sequence (-1: base).
struct World {
  explicit World(uint64_t seed) : draw(seed), model(make_model(draw)) {
    for (int64_t i = draw(3); i >= 0; --i) {
      const auto options = random_adapter_options(uint64_t(draw(1 << 30)));
      adapters.push_back(random_adapter(model.config, uint64_t(draw(1 << 30)), options));
    }
  }

  static Model make_model(sim::Draw& draw) {
    const ModelConfig config = random_model_config(uint64_t(draw(1 << 30)));
    return random_model(config, uint64_t(draw(1 << 30)));
  }
  Tokens tokens(int64_t count) {
    return random_tokens(model.config, count, uint64_t(draw(1 << 30)));
  }
  const Adapter* any_adapter() {
    const int64_t i = draw(int64_t(adapters.size()) + 1) - 1;
    return i < 0 ? nullptr : &adapters[size_t(i)].adapter;
  }

  sim::Draw draw;
  Model model;
  std::vector<RandomAdapter> adapters;
};

World any_world(int max_ops = 2) {
  World world(sim::any_seeded_case(max_ops).seed);
  const ModelConfig& config = world.model.config;
  RC_CLASSIFY(config.num_experts > 0, "experts");
  RC_CLASSIFY(config.tied_embeddings, "tied");
  RC_CLASSIFY(config.qk_norm, "qk norm");
  RC_CLASSIFY(config.rope.scaling != RopeScaling::none, "scaled RoPE");
  return world;
}

bool same_bits(const Matrix<float>& left, const Matrix<float>& right) {
  return left.rows() == right.rows() && left.cols() == right.cols() &&
         std::memcmp(left.data(), right.data(), size_t(left.size()) * sizeof(float)) == 0;
}

/// Each token of a batch has an adapter of its own, or none.
class MixedLora : public LoraTerms<float> {
 public:
  MixedLora(const ModelConfig& config, std::vector<const Adapter*> adapter_of) {
    for (const Adapter* adapter : adapter_of) {
      terms_.push_back(adapter == nullptr ? nullptr
                                          : std::make_unique<DirectLora<float>>(config, *adapter));
    }
  }
  void add(const LinearRef& linear, std::span<const int64_t> tokens, const Matrix<float>& x,
           Matrix<float>& y) const override {
    for (int64_t i = 0; i < x.cols(); ++i) {
      const auto& term = terms_[size_t(tokens[size_t(i)])];
      Matrix<float> y_i = y.col(i);
      if (term != nullptr) term->add(linear, tokens.subspan(size_t(i), 1), x.col(i), y_i);
      y.col(i) = y_i;
    }
  }
  void add_embedding(std::span<const int32_t> ids, Matrix<float>& y) const override {
    for (int64_t i = 0; i < y.cols(); ++i) {
      Matrix<float> y_i = y.col(i);
      const auto& term = terms_[size_t(i)];
      if (term != nullptr) term->add_embedding(ids.subspan(size_t(i), 1), y_i);
      y.col(i) = y_i;
    }
  }

 private:
  std::vector<std::unique_ptr<DirectLora<float>>> terms_;
};

/// Sequences in a common cache, each with an adapter, fed to the model in pieces.
class Batcher {
 public:
  Batcher(World& world, int64_t num_sequences) : world_(world) {
    for (int64_t s = 0; s < num_sequences; ++s) {
      tokens_.push_back(world.tokens(world.draw.between(1, 9)));
      adapters_.push_back(world.any_adapter());
      logits_.emplace_back(world.model.config.vocab, int64_t(tokens_.back().size()));
      done_.push_back(0);
      wanted_.emplace_back();
    }
  }

  /// Random pieces of random sequences, interleaved in one batch after the other until all is done.
  void run() {
    DenseKv<float> kv(world_.model.config, int64_t(tokens_.size()), 9);
    while (num_left() > 0) {
      TokenBatch batch;
      std::vector<const Adapter*> adapter_of;
      for (int64_t i = world_.draw.between(1, 12); i > 0 && num_left() > 0; --i) {
        const int64_t s = world_.draw(int64_t(tokens_.size()));
        if (left(s) > 0) take(s, batch, adapter_of);
      }
      const MixedLora lora(world_.model.config, adapter_of);
      for (int64_t t = 0; t < int64_t(batch.ids.size()); ++t) {
        if (!world_.draw.one_in(4)) batch.logits_of.push_back(t);
      }
      keep(batch, forward<float>(world_.model, batch, kv, &lora));
      num_batches_++;
    }
  }

  void check_against_recomputation() const {
    for (size_t s = 0; s < tokens_.size(); ++s) {
      const Matrix<float> alone = sequence_logits<float>(world_.model, adapters_[s], tokens_[s]);
      for (const int64_t position : wanted_[s]) {
        RC_ASSERT(same_bits(logits_[s].col(position), alone.col(position)));
      }
    }
  }
  int64_t num_batches() const { return num_batches_; }

 private:
  int64_t left(int64_t s) const { return int64_t(tokens_[size_t(s)].size()) - done_[size_t(s)]; }
  int64_t num_left() const {
    int64_t sum = 0;
    for (int64_t s = 0; s < int64_t(tokens_.size()); ++s) sum += left(s);
    return sum;
  }
  void take(int64_t s, TokenBatch& batch, std::vector<const Adapter*>& adapter_of) {
    const int64_t position = done_[size_t(s)]++;
    batch.ids.push_back(tokens_[size_t(s)][size_t(position)]);
    batch.positions.push_back(position);
    batch.sequences.push_back(s);
    adapter_of.push_back(adapters_[size_t(s)]);
  }
  void keep(const TokenBatch& batch, const Matrix<float>& logits) {
    for (int64_t i = 0; i < logits.cols(); ++i) {
      const auto t = size_t(batch.logits_of[size_t(i)]);
      logits_[size_t(batch.sequences[t])].col(batch.positions[t]) = logits.col(i);
      wanted_[size_t(batch.sequences[t])].push_back(batch.positions[t]);
    }
  }

  World& world_;
  std::vector<Tokens> tokens_;
  std::vector<const Adapter*> adapters_;
  std::vector<Matrix<float>> logits_;
  std::vector<std::vector<int64_t>> wanted_;
  std::vector<int64_t> done_;
  int64_t num_batches_ = 0;
};

// [1.19] [1.21] [1.31]: prompts in chunks, sequences with different adapters mixed in one batch, a
// cache between batches: each row of logits has the bits of its sequence computed alone.
RC_GTEST_PROP(Model, BatchesAndCachesLeaveNoTrace, ()) {
  World world = any_world();
  Batcher batcher(world, world.draw.between(1, 4));
  batcher.run();
  RC_CLASSIFY(batcher.num_batches() > 1, "several batches");
  batcher.check_against_recomputation();
}

// [1.2]: an adapter for nothing but other tokens is no adapter; -0.0 stays.
RC_GTEST_PROP(Model, BaseTokensHaveTheBitsOfAModelWithoutLora, ()) {
  World world = any_world();
  const Tokens tokens = world.tokens(world.draw.between(1, 8));
  const MixedLora nothing(world.model.config, std::vector<const Adapter*>(tokens.size(), nullptr));
  TokenBatch batch;
  batch.ids = tokens;
  for (size_t t = 0; t < tokens.size(); ++t) {
    batch.positions.push_back(int64_t(t));
    batch.logits_of.push_back(int64_t(t));
  }
  batch.sequences.assign(tokens.size(), 0);
  DenseKv<float> kv(world.model.config, 1, int64_t(tokens.size()));
  const Matrix<float> logits = forward<float>(world.model, batch, kv, &nothing);
  RC_ASSERT(same_bits(logits, sequence_logits<float>(world.model, nullptr, tokens)));
}

// forward<float> lies within the bound, forward<double> has its values.
RC_GTEST_PROP(Model, FloatLiesWithinTheBound, ()) {
  World world = any_world();
  const Adapter* const adapter = world.any_adapter();
  const Tokens tokens = world.tokens(world.draw.between(1, 12));
  const auto real = sequence_logits<float>(world.model, adapter, tokens);
  const auto exact = sequence_logits<double>(world.model, adapter, tokens);
  const auto bounded = bounded_logits(world.model, adapter, tokens);
  bool is_known = true;
  for (Eigen::Index i = 0; i < real.size(); ++i) {
    RC_ASSERT(bounded(i).value == exact(i));
    RC_ASSERT(std::abs(double(real(i)) - exact(i)) <= bounded(i).error);
    is_known &= std::isfinite(bounded(i).error);
    const double r = std::abs(double(real(i)) - exact(i)) / bounded(i).error;
    if (getenv("DUMP")) printf("R %g %g\n", r, bounded(i).error);
  }
  RC_CLASSIFY(!is_known, "experts left open");
}

}  // namespace
}  // namespace loratory::reference
