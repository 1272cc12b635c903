#include "reference/model/forward.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reference/base/input_error.hpp"
#include "reference/model/dense_kv.hpp"
#include "reference/model/oracle.hpp"

namespace loratory::reference {
namespace {

Matrix<float> matrix(int64_t num_rows, std::initializer_list<float> row_major) {
  Matrix<float> out(num_rows, int64_t(row_major.size()) / num_rows);
  for (int64_t i = 0; i < out.size(); ++i) {
    out(i / out.cols(), i % out.cols()) = row_major.begin()[i];
  }
  return out;
}

Vector<float> ones(int64_t size) { return Vector<float>::Ones(size); }

// Hidden 2, one head of 2, vocabulary 3, one layer. Attention and MLP give 0 until a test says
// otherwise, so that logits are those of the embedding alone.
Model small() {
  Model model;
  ModelConfig& c = model.config;
  c.num_layers = c.num_heads = c.num_kv_heads = 1;
  c.hidden = c.head_dim = 2;
  c.intermediate = 1;
  c.vocab = 3;
  c.rms_norm_eps = 0x1p-20;
  c.tied_embeddings = true;
  model.embed_tokens = matrix(3, {3, 4, 0, 2, -1, 0});
  LayerWeights& layer = model.layers.emplace_back();
  layer.input_norm = layer.post_attention_norm = model.norm = ones(2);
  layer.q.weight = layer.k.weight = layer.v.weight = layer.o.weight = Matrix<float>::Zero(2, 2);
  layer.mlp.gate.weight = layer.mlp.up.weight = Matrix<float>::Zero(1, 2);
  layer.mlp.down.weight = Matrix<float>::Zero(2, 1);
  return model;
}

// x of the last token before the norm, read through an lm_head of its own and a norm undone.
Vector<double> logits_of_last(const Model& model, std::vector<int32_t> tokens) {
  const auto all = sequence_logits<double>(model, nullptr, tokens);
  return all.col(all.cols() - 1);
}

// x = [3, 4]: mean of squares 12.5; logits are those of x / sqrt(12.5 + eps).
TEST(Forward, NormsAndReadsTheTiedEmbedding) {
  const Vector<double> y = logits_of_last(small(), {0});
  const double scale = 1 / std::sqrt(12.5 + 0x1p-20);
  EXPECT_DOUBLE_EQ(y(0), 25 * scale);
  EXPECT_DOUBLE_EQ(y(1), 8 * scale);
  EXPECT_DOUBLE_EQ(y(2), -3 * scale);
}

// Keys 0: every position has the same weight. v = normed x, o = 1: x gains the mean of the normed
// inputs so far.
TEST(Forward, AttentionMixesTheValuesSoFar) {
  Model model = small();
  model.layers[0].v.weight = model.layers[0].o.weight = matrix(2, {1, 0, 0, 1});
  model.config.rms_norm_eps = 1e-30;
  const Vector<double> y = logits_of_last(model, {0, 1});
  const double a = std::sqrt(12.5), b = std::sqrt(2.0);
  const double first = 0 + (3 / a + 0) / 2, second = 2 + (4 / a + 2 / b) / 2;
  const double scale = 1 / std::sqrt((first * first + second * second) / 2);
  EXPECT_NEAR(y(2), -first * scale, 0x1p-48);
  EXPECT_NEAR(y(1), 2 * second * scale, 0x1p-48);
}

// One head whose score of a token is its first normed number, no RoPE effect at position 0 and
// frequency 1: checked against the formula with the rotation written out.
TEST(Forward, ScoresAreRotatedAndScaled) {
  Model model = small();
  LayerWeights& layer = model.layers[0];
  layer.q.weight = layer.k.weight = matrix(2, {1, 0, 0, 1});
  layer.v.weight = layer.o.weight = matrix(2, {1, 0, 0, 1});
  model.config.rms_norm_eps = 1e-30;
  const double a = std::sqrt(12.5), b = std::sqrt(2.0);
  // k0 at position 0; q at position 1 is [0, b] turned by 1 rad; k1 is q itself.
  const double q0 = -b * std::sin(1.0), q1 = b * std::cos(1.0);
  const double s0 = (q0 * 3 / a + q1 * 4 / a) / b, s1 = (q0 * q0 + q1 * q1) / b;
  const double p0 = std::exp(s0) / (std::exp(s0) + std::exp(s1));
  const double first = p0 * 3 / a, second = 2 + p0 * 4 / a + (1 - p0) * b;
  const double scale = 1 / std::sqrt((first * first + second * second) / 2);
  const Vector<double> y = logits_of_last(model, {0, 1});
  EXPECT_NEAR(y(2), -first * scale, 0x1p-48);
  EXPECT_NEAR(y(1), 2 * second * scale, 0x1p-48);
}

// x gains down · silu(gate) · up, each with its bias.
TEST(Forward, MlpIsSwiGlu) {
  Model model = small();
  MlpWeights& mlp = model.layers[0].mlp;
  mlp.gate.bias = Vector<float>::Constant(1, 2);
  mlp.up.bias = Vector<float>::Constant(1, 3);
  mlp.down.weight = matrix(2, {1, 0});
  mlp.down.bias = Vector<float>::Constant(2, 0.5F);
  model.config.rms_norm_eps = 1e-30;
  const double first = -1 + 6 / (1 + std::exp(-2.0)) + 0.5, second = 0.5;
  const double scale = 1 / std::sqrt((first * first + second * second) / 2);
  EXPECT_NEAR(logits_of_last(model, {2})(1), 2 * second * scale, 0x1p-48);
}

// [1.34]: two experts of constant output z1 = [1, 0] and z2 = [0, 1], router weights 1/4, 3/4.
TEST(Forward, ExpertsAreWeighedOnce) {
  Model model = small();
  model.config.num_experts = model.config.experts_per_token = 2;
  model.config.expert_intermediate = 1;
  model.config.layer_has_experts = {true};
  model.config.rms_norm_eps = 1e-30;
  LayerWeights& layer = model.layers[0];
  layer.mlp = {};
  for (int e = 0; e < 2; ++e) {
    MlpWeights& expert = layer.experts.emplace_back(small().layers[0].mlp);
    expert.down.bias = e == 0 ? Vector<float>(matrix(2, {1, 0})) : Vector<float>(matrix(2, {0, 1}));
  }
  // Token 2 is normed to [-sqrt 2, 0].
  layer.router = matrix(2, {0, 0, float(-std::log(3.0) / std::sqrt(2.0)), 0});
  const double first = -1 + 0.25, second = 0.75;
  const double scale = 1 / std::sqrt((first * first + second * second) / 2);
  EXPECT_NEAR(logits_of_last(model, {2})(1), 2 * second * scale, 0x1p-22);
}

// What forward says about a batch of two tokens after `change`.
template <typename Change>
std::string refusal(Change change) {
  const Model model = small();
  TokenBatch batch{{0, 1}, {0, 1}, {0, 0}, {1}};
  change(batch);
  DenseKv<float> kv(model.config, 1, 2);
  try {
    forward<float>(model, batch, kv, nullptr);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

// [1.29]: an id outside of the vocabulary is an error, 0 and V-1 are not.
TEST(Forward, ChecksItsBatch) {
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](TokenBatch& b) { b.ids = {0, 2}; }), "accepted");
  EXPECT_THAT(refusal([](TokenBatch& b) { b.ids[1] = 3; }), HasSubstr("ids[1]: id 3 is outside"));
  EXPECT_THAT(refusal([](TokenBatch& b) { b.ids[0] = -1; }), HasSubstr("ids[0]"));
  EXPECT_THAT(refusal([](TokenBatch& b) { b.positions.pop_back(); }), HasSubstr("length"));
  EXPECT_THAT(refusal([](TokenBatch& b) { b.sequences.push_back(0); }), HasSubstr("length"));
  EXPECT_THAT(refusal([](TokenBatch& b) { b.logits_of = {2}; }), HasSubstr("logits_of"));
  EXPECT_THAT(refusal([](TokenBatch& b) { b.logits_of = {-1}; }), HasSubstr("logits_of"));
  EXPECT_THAT(refusal([](TokenBatch& b) { b.positions[0] = -1; }), HasSubstr("position"));
  const Model model = small();
  DenseKv<float> kv(model.config, 1, 1);
  EXPECT_EQ(forward<float>(model, TokenBatch{}, kv, nullptr).cols(), 0);
}

// Within the window every token sees all earlier ones; past it the first would be hidden.
TEST(Forward, ContextsWithinTheSlidingWindow) {
  Model model = small();
  const std::vector<int32_t> ids{0, 1, 0};
  const Matrix<double> without = sequence_logits<double>(model, nullptr, ids);
  model.config.sliding_window = 3;
  EXPECT_EQ(sequence_logits<double>(model, nullptr, ids), without);
  model.config.sliding_window = 2;
  EXPECT_THAT([&] { sequence_logits<double>(model, nullptr, ids); },
              testing::ThrowsMessage<InputError>(
                  testing::HasSubstr("position 2 is past the sliding window of 2 tokens")));
}

TEST(Generate, StopsAtAStopTokenWhichItKeeps) {
  const Model model = small();  // repeats the likeliest: token 0 gives 0 for ever
  const std::vector<int32_t> prompt{0};
  GenerateParams params{.max_new_tokens = 4};
  EXPECT_THAT(generate(model, nullptr, prompt, params).tokens, testing::ElementsAre(0, 0, 0, 0));
  params.stop_tokens = {1, 0};
  const Generation stopped = generate(model, nullptr, prompt, params);
  EXPECT_THAT(stopped.tokens, testing::ElementsAre(0));
  EXPECT_EQ(stopped.logits.size(), 1U);
}

TEST(Generate, RefusesAnEmptyPromptAndUnknownTokens) {
  const Model model = small();
  const GenerateParams params{.max_new_tokens = 1};
  EXPECT_THROW(generate(model, nullptr, {}, params), InputError);
  const std::vector<int32_t> unknown{3};
  EXPECT_THROW(generate(model, nullptr, unknown, params), InputError);
}

}  // namespace
}  // namespace loratory::reference
