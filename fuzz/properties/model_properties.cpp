// The naive model and its oracle: P18, P22, P23, batches, caches, threads.
// Models and adapters are drawn from a seed (fuzz/support/random_model.hpp), which the REPRO line
// names; everything here is compared bit for bit unless a bound is given.
#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "fuzz/models/naive_model.hpp"
#include "fuzz/support/random_model.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/model/dense_kv.hpp"
#include "reference/model/direct_lora.hpp"
#include "reference/model/oracle.hpp"
#include "reference/model/rope.hpp"

namespace loratory::reference {
namespace {

using Tokens = std::vector<int32_t>;

// A model and a few adapters for it, one of them for each sequence (-1: base).
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
  RC_CLASSIFY(config.shared_expert_intermediate > 0, "a shared expert");
  RC_CLASSIFY(config.router_has_lora, "LoRA on the router");
  RC_CLASSIFY(config.tied_embeddings, "tied");
  RC_CLASSIFY(config.qk_norm, "qk norm");
  RC_CLASSIFY(config.rope.scaling != RopeScaling::none, "scaled RoPE");
  return world;
}

bool same_bits(const Matrix<float>& left, const Matrix<float>& right) {
  return left.rows() == right.rows() && left.cols() == right.cols() &&
         std::memcmp(left.data(), right.data(), size_t(left.size()) * sizeof(float)) == 0;
}

// Each token of a batch has an adapter of its own, or none.
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

// Sequences in a common cache, each with an adapter, fed to the model in pieces.
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

  // Random pieces of random sequences, interleaved in one batch after the other until all is done.
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

// The worst |got - exact| / bound of all logits.
double worst_ratio(const Matrix<float>& got, const Matrix<Bounded>& bounded) {
  double worst = 0;
  for (Eigen::Index i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(double(got(i)) - bounded(i).value) / bounded(i).error);
  }
  return worst;
}

// Keeps the worst of all cases, and prints it in the end.
struct WorstOfAll {
  explicit WorstOfAll(const char* what) : name(what) {}
  ~WorstOfAll() { std::printf("worst error/bound, %s: %.4f\n", name, worst); }
  void add(double ratio) { worst = std::max(worst, ratio); }
  const char* name;
  double worst = 0;
};

// [1.16] [1.18]: the float model lies within the derived bound of the float64 model.
RC_GTEST_PROP(Model, FloatLiesWithinTheBound, ()) {
  static WorstOfAll worst("float model");
  World world = any_world();
  const Adapter* const adapter = world.any_adapter();
  const Tokens tokens = world.tokens(world.draw.between(1, 12));
  const auto real = sequence_logits<float>(world.model, adapter, tokens);
  const auto exact = sequence_logits<double>(world.model, adapter, tokens);
  const auto bounded = bounded_logits(world.model, adapter, tokens);
  bool is_known = true;
  for (Eigen::Index i = 0; i < real.size(); ++i) {
    RC_ASSERT(bounded(i).value == exact(i));
    is_known &= std::isfinite(bounded(i).error);
  }
  RC_CLASSIFY(!is_known, "experts left open");
  const double ratio = worst_ratio(real, bounded);
  RC_ASSERT(ratio <= 1);
  worst.add(ratio);
}

// A dense model in 16 bits and an adapter whose weights have the same dtype.
struct NarrowWorld {
  explicit NarrowWorld(uint64_t seed) : draw(seed) {
    dtype = draw.one_of({Dtype::bf16, Dtype::f16});
    model = in_dtype(random_model(dense(random_model_config(bits())), bits()), dtype);
    RandomAdapterOptions options = random_adapter_options(bits());
    options.dtype = dtype;
    if (draw.one_in(2)) own = random_adapter(model.config, bits(), options);
    tokens = random_tokens(model.config, draw.between(1, 12), bits());
  }
  uint64_t bits() { return uint64_t(draw(1 << 30)); }
  const Adapter* adapter() const { return own ? &own->adapter : nullptr; }
  /// Of an emulated engine.
  Matrix<float> logits() const { return sequence_logits<float>(model, adapter(), tokens, dtype); }
  Matrix<Bounded> bounded() const { return bounded_logits(model, adapter(), tokens, dtype); }

  sim::Draw draw;
  Dtype dtype = Dtype::bf16;
  Model model;
  std::optional<RandomAdapter> own;
  Tokens tokens;
};

// How many tokens have one logit above all others by more than the bound leaves open.
int64_t num_sure(const Matrix<Bounded>& logits) {
  int64_t count = 0;
  for (Eigen::Index t = 0; t < logits.cols(); ++t) {
    Eigen::Index best = 0;
    for (Eigen::Index v = 1; v < logits.rows(); ++v) {
      if (logits(v, t).value > logits(best, t).value) best = v;
    }
    bool is_sure = true;
    for (Eigen::Index v = 0; v < logits.rows(); ++v) {
      const double open = logits(v, t).error + logits(best, t).error;
      is_sure &= v == best || logits(best, t).value - logits(v, t).value > open;
    }
    count += is_sure;
  }
  return count;
}

// How many tokens have no bound.
int64_t num_open(const Matrix<Bounded>& logits) {
  int64_t count = 0;
  for (Eigen::Index t = 0; t < logits.cols(); ++t) count += std::isinf(logits(0, t).error);
  return count;
}

// [1.16] [1.18]: a model whose numbers are rounded to bf16 or f16 wherever a kernel of the engine
// on a GPU writes them lies within the derived bound of the float64 model.
RC_GTEST_PROP(Model, SixteenBitsLieWithinTheBound, ()) {
  static WorstOfAll worst_bf16("model in bf16"), worst_f16("model in f16");
  NarrowWorld world(sim::any_seeded_case(2).seed);
  const auto real = world.logits();
  const auto bounded = world.bounded();
  const double ratio = worst_ratio(real, bounded);
  RC_ASSERT(ratio <= 1);
  (world.dtype == Dtype::bf16 ? worst_bf16 : worst_f16).add(ratio);
  RC_CLASSIFY(world.dtype == Dtype::f16, "f16");
  RC_CLASSIFY(world.adapter() != nullptr, "an adapter");
  RC_CLASSIFY(num_sure(bounded) > 0, "tokens that no rounding can change");
  RC_CLASSIFY(num_open(bounded) > 0, "tokens left open by a norm");
  RC_CLASSIFY(num_open(bounded) == bounded.cols(), "all tokens left open");
  const auto narrower = bounded_logits(world.model, world.adapter(), world.tokens);
  RC_CLASSIFY(worst_ratio(real, narrower) > 1, "farther than float32 may be");
}

// The residual stream of a token nearly cancels, and comes out with the other sign. To first order
// its logit may be off by 1.9; it is off by 12.5. Norms say so.
TEST(Model, SixteenBitsLeaveOpenWhatANormMayTurnAround) {
  const NarrowWorld world(16898324653434945480U);
  const auto real = world.logits();
  const auto bounded = world.bounded();
  EXPECT_GT(std::abs(double(real(4, 5)) - bounded(4, 5).value), 12);
  EXPECT_TRUE(std::isinf(bounded(4, 5).error));
  EXPECT_TRUE(std::isfinite(bounded(4, 0).error));
  EXPECT_LE(worst_ratio(real, bounded), 1);
}

// Two of the three numbers of a token's residual stream are small, and their errors are not: 0.49
// for -0.15. The square of that error is what moves the norm. To first order the logit may be off
// by 0.0008; it is off by 0.0012.
TEST(Model, SixteenBitsCountTheSquaresOfErrorsThatANormMeets) {
  const NarrowWorld world(10741614799353290276U);
  const auto real = world.logits();
  const auto bounded = world.bounded();
  EXPECT_GT(std::abs(double(real(21, 1)) - bounded(21, 1).value), 0.0012);
  EXPECT_TRUE(std::isfinite(bounded(21, 1).error));
  EXPECT_LE(worst_ratio(real, bounded), 1);
}

// [1.34] [1.53] The model written down a second time, in float64 too: 2^-20 of the bound is 2^9
// times the unit of float64 for each unit of float32.
RC_GTEST_PROP(Model, IsTheModelWrittenDownTwice, ()) {
  static WorstOfAll worst("second model, of 2^-20 of the bound");
  World world = any_world();
  const Tokens tokens = world.tokens(world.draw.between(1, 10));
  const ModelConfig& config = world.model.config;
  const auto frequencies = rope_frequencies<double>(config.rope, config.head_dim);
  const auto naive =
      naive_logits(world.model, std::span(frequencies.data(), size_t(frequencies.size())),
                   rope_attention_factor(config.rope), tokens);
  const auto bounded = bounded_logits(world.model, nullptr, tokens);
  for (size_t i = 0; i < naive.size(); ++i) {
    const Bounded& ours = bounded(Eigen::Index(i), bounded.cols() - 1);
    const double ratio = std::abs(naive[i] - ours.value) / (0x1p-20 * ours.error);
    RC_ASSERT(ratio <= 1);
    worst.add(ratio);
  }
}

// [1.1] [1.10] [1.28] [1.30] [1.32] [1.34] P18, P22: W + scaling·B·A, rounded once to float, gives
// the logits of the adapter beside W. With experts the router may see other hidden states.
RC_GTEST_PROP(Model, MergedWeightsGiveTheLogitsOfTheAdapter, ()) {
  static WorstOfAll worst("merged weights");
  World world = any_world();
  const Adapter& adapter = world.adapters[0].adapter;
  const Tokens tokens = world.tokens(world.draw.between(1, 10));
  const auto bounded = bounded_logits(world.model, &adapter, tokens);
  const auto merged = sequence_logits<float>(merge(world.model, adapter), nullptr, tokens);
  const double ratio = worst_ratio(merged, bounded);
  RC_ASSERT(ratio <= 1);
  worst.add(ratio);
  const auto base = sequence_logits<float>(world.model, nullptr, tokens);
  RC_CLASSIFY(worst_ratio(base, bounded) > 1, "the adapter is far from base");
}

// [1.32] P22: a tied model is an untied one whose lm_head is a copy of its embeddings, with every
// adapter: one on lm_head changes logits alone, one on embed_tokens the input alone.
RC_GTEST_PROP(Model, TiedEmbeddingsAreTwoMatrices, ()) {
  World world = any_world();
  world.model.lm_head.resize(0, 0);
  world.model.config.tied_embeddings = true;
  Model untied = world.model;
  untied.lm_head = untied.embed_tokens;
  untied.config.tied_embeddings = false;
  RandomAdapterOptions options = random_adapter_options(uint64_t(world.draw(1 << 30)));
  options.embed_tokens = world.draw.one_in(2);
  options.lm_head = !options.embed_tokens || world.draw.one_in(2);
  const RandomAdapter adapter = random_adapter(world.model.config, 5, options);
  const Tokens tokens = world.tokens(world.draw.between(1, 6));
  RC_CLASSIFY(options.embed_tokens, "adapter on embed_tokens");
  RC_CLASSIFY(options.lm_head, "adapter on lm_head");
  RC_ASSERT(same_bits(sequence_logits<float>(world.model, &adapter.adapter, tokens),
                      sequence_logits<float>(untied, &adapter.adapter, tokens)));
}

SamplingParams any_sampling(sim::Draw& draw) {
  SamplingParams params;
  params.temperature = draw.one_of({0.0, 0.5, 1.0, 2.0});
  params.top_k = draw.one_of<int64_t>({0, 1, 3, 100});
  params.top_p = draw.one_of({1.0, 0.9, 0.3});
  params.seed = uint64_t(draw(1 << 30));
  return params;
}

bool same_generation(const Generation& left, const Generation& right) {
  if (left.tokens != right.tokens) return false;
  for (size_t i = 0; i < left.logits.size(); ++i) {
    if (!same_bits(left.logits[i], right.logits[i])) return false;
  }
  return true;
}

// [1.31] P23: asking for the probabilities of the prompt changes no token; they are those of the
// logits that LoRA on lm_head has changed, row by row.
RC_GTEST_PROP(Model, PromptLogprobsChangeNothing, ()) {
  World world = any_world();
  const Adapter* const adapter = world.any_adapter();
  const Tokens prompt = world.tokens(world.draw.between(1, 6));
  GenerateParams params{.sampling = any_sampling(world.draw), .max_new_tokens = 4};
  const Generation without = generate(world.model, adapter, prompt, params);
  params.prompt_logprobs = true;
  const Generation with = generate(world.model, adapter, prompt, params);
  RC_ASSERT(same_generation(with, without));
  RC_ASSERT(without.prompt_logprobs.empty());
  RC_ASSERT(with.prompt_logprobs.size() == prompt.size() - 1);
  const auto logits = sequence_logits<float>(world.model, adapter, prompt);
  for (size_t t = 1; t < prompt.size(); ++t) {
    const Vector<float> before = logits.col(int64_t(t) - 1);
    RC_ASSERT(with.prompt_logprobs[t - 1] == log_probability(before, prompt[t]));
  }
}

// [1.19] P63: one new token at a time on top of cached keys and values gives the tokens and
// logits of recomputing everything.
RC_GTEST_PROP(Model, DecodingWithACacheIsGeneration, ()) {
  World world = any_world();
  const Adapter* const adapter = world.any_adapter();
  const Tokens prompt = world.tokens(world.draw.between(1, 6));
  const GenerateParams params{.sampling = any_sampling(world.draw), .max_new_tokens = 5};
  const Generation expected = generate(world.model, adapter, prompt, params);
  const MixedLora lora(world.model.config, std::vector(prompt.size(), adapter));
  DenseKv<float> kv(world.model.config, 1, 20);
  Tokens fresh = prompt;
  int64_t position = 0;
  for (size_t i = 0; i < expected.tokens.size(); ++i) {
    TokenBatch batch;
    batch.ids = fresh;
    batch.sequences.assign(fresh.size(), 0);
    for (size_t t = 0; t < fresh.size(); ++t) batch.positions.push_back(position++);
    batch.logits_of = {int64_t(fresh.size()) - 1};
    const Vector<float> logits = forward<float>(world.model, batch, kv, &lora).col(0);
    RC_ASSERT(same_bits(logits, expected.logits[i]));
    fresh = {sample(logits, params.sampling, position)};
    RC_ASSERT(fresh[0] == expected.tokens[i]);
  }
}

// A sampled token is one that top_k and top_p allow, and the same whenever it is asked for.
RC_GTEST_PROP(Sampling, StaysInsideTheAllowedTokens, ()) {
  sim::Draw draw(sim::any_seeded_case(2).seed);
  Vector<float> logits(draw.between(1, 12));
  for (Eigen::Index i = 0; i < logits.size(); ++i) logits(i) = float(draw.between(-4, 4)) / 2;
  const SamplingParams params = any_sampling(draw);
  const int64_t position = draw(1000);
  const int32_t token = sample(logits, params, position);
  int64_t num_better = 0;
  double better = 0, all = 0;
  for (int32_t id = 0; id < int32_t(logits.size()); ++id) {
    const double p = params.temperature == 0
                         ? 1
                         : std::exp((double(logits(id)) - logits.maxCoeff()) / params.temperature);
    all += p;
    const bool is_before = logits(id) == logits(token) ? id < token : logits(id) > logits(token);
    if (is_before) num_better++, better += p;
  }
  const bool is_greedy = params.temperature == 0 || params.top_k == 1;
  RC_CLASSIFY(is_greedy, "greedy");
  RC_ASSERT((!is_greedy || num_better == 0));
  RC_ASSERT((params.top_k == 0 || num_better < params.top_k));
  RC_ASSERT((is_greedy || better < params.top_p * all + 1e-12));
  sample(logits, any_sampling(draw), position + 1);
  RC_ASSERT(sample(logits, params, position) == token);
}

// [1.19]: no number of threads shows in the bits. Large enough that threads are used.
TEST(Model, ThreadsLeaveNoTrace) {
  const int num_threads = omp_get_max_threads();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const ModelConfig dense = tiny_model_config();
    const ModelConfig config = seed % 2 == 0 ? dense : with_experts(dense, 4, 2);
    const Model model = random_model(config, seed);
    const RandomAdapter adapter = random_adapter(config, seed);
    const Tokens tokens = random_tokens(config, 40, seed);
    omp_set_num_threads(1);
    const auto one = sequence_logits<float>(model, &adapter.adapter, tokens);
    for (const int count : {2, 3, 7}) {
      omp_set_num_threads(count);
      EXPECT_TRUE(same_bits(one, sequence_logits<float>(model, &adapter.adapter, tokens)))
          << "REPRO: seed " << seed << ", " << count << " threads";
    }
  }
  omp_set_num_threads(num_threads);
}

}  // namespace
}  // namespace loratory::reference
