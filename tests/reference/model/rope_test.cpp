#include "reference/model/rope.hpp"

#include <gtest/gtest.h>

#include <array>

#include "reference/model/traced_kernels.hpp"
#include "reference/numerics/bounded.hpp"

namespace loratory::reference {
namespace {

RopeConfig llama3() {
  RopeConfig config;
  config.scaling = RopeScaling::llama3;
  config.factor = 8;
  config.original_max_position_embeddings = 64;
  return config;
}

RopeConfig yarn() {
  RopeConfig config;
  config.scaling = RopeScaling::yarn;
  config.factor = 4;
  config.original_max_position_embeddings = 1024;
  return config;
}

RopeConfig linear() {
  RopeConfig config;
  config.theta = 500000;
  config.scaling = RopeScaling::linear;
  config.factor = 3;
  return config;
}

// What transformers 5.23 with torch 2 gives for head_dim 16, which may differ from ours by twice
// the bound of any float32 implementation.
void expect_frequencies(const RopeConfig& config, const std::array<double, 8>& theirs) {
  Tape tape;
  const Tape::Scope scope(tape);
  const auto traced = rope_frequencies<Traced>(config, 16);
  const auto real = rope_frequencies<float>(config, 16);
  ASSERT_EQ(real.size(), 8);
  for (int i = 0; i < 8; ++i) {
    const double bound = tape.errors(std::array{traced(i).node})[0];
    EXPECT_LE(std::abs(real(i) - theirs[size_t(i)]), 2 * bound) << i;
    EXPECT_LE(std::abs(traced(i).value - theirs[size_t(i)]), bound) << i;
    EXPECT_LE(bound, 0x1p-18 * theirs[size_t(i)]) << i;
  }
}

TEST(Rope, Llama3FrequenciesAreThoseOfTransformers) {
  expect_frequencies(llama3(), {0x1.0p+0, 0x1.f47fe8p-3, 0x1.ab5e6p-7, 0x1.030dc6p-8,
                                0x1.47ae14p-10, 0x1.9e7c7p-12, 0x1.0624dep-13, 0x1.4b96cp-15});
}

TEST(Rope, YarnFrequenciesAreThoseOfTransformers) {
  expect_frequencies(yarn(), {0x1.0p+0, 0x1.43d136p-2, 0x1.4ccccep-4, 0x1.43d138p-6, 0x1.1eb852p-8,
                              0x1.9e7c7p-11, 0x1.0624dep-12, 0x1.4b96cp-14});
  EXPECT_DOUBLE_EQ(rope_attention_factor(yarn()), 1.138629436111989);
  RopeConfig config = yarn();
  config.attention_factor = 1.5;
  EXPECT_EQ(rope_attention_factor(config), 1.5);
  EXPECT_EQ(rope_attention_factor(llama3()), 1);
}

TEST(Rope, LinearFrequenciesAreThoseOfTransformers) {
  expect_frequencies(linear(), {0x1.555556p-2, 0x1.08c4eap-4, 0x1.9ac216p-7, 0x1.3e9f14p-9,
                                0x1.ee4daep-12, 0x1.7f6d4p-14, 0x1.296bbp-16, 0x1.cd69bep-19});
}

// By hand: theta = 16, D = 4: frequencies 1 and 1/4.
TEST(Rope, TurnsPairsThatLieHalfAHeadApart) {
  RopeConfig config;
  config.theta = 16;
  const std::array<int64_t, 2> positions{0, 2};
  const auto by = rotations<double>(config, 4, positions);
  EXPECT_EQ(by.cos(0, 0), 1);
  EXPECT_EQ(by.sin(1, 0), 0);
  EXPECT_EQ(by.cos(0, 1), std::cos(2.0));
  EXPECT_EQ(by.sin(1, 1), std::sin(0.5));
  std::array<double, 4> head{1, 10, 100, 1000};
  rotate(std::span<double>(head), by, 1);
  EXPECT_DOUBLE_EQ(head[0], std::cos(2.0) - 100 * std::sin(2.0));
  EXPECT_DOUBLE_EQ(head[1], 10 * std::cos(0.5) - 1000 * std::sin(0.5));
  EXPECT_DOUBLE_EQ(head[2], 100 * std::cos(2.0) + std::sin(2.0));
  EXPECT_DOUBLE_EQ(head[3], 1000 * std::cos(0.5) + 10 * std::sin(0.5));
}

TEST(Rope, YarnMultipliesCosAndSinByItsFactor) {
  const std::array<int64_t, 1> positions{3};
  RopeConfig config = yarn();
  config.attention_factor = 2;
  const auto doubled = rotations<double>(config, 4, positions);
  config.attention_factor = 1;
  const auto plain = rotations<double>(config, 4, positions);
  EXPECT_EQ(doubled.cos(1, 0), 2 * plain.cos(1, 0));
  EXPECT_EQ(doubled.sin(0, 0), 2 * plain.sin(0, 0));
}

TEST(Rope, RefusesPositionsItCannotTurn) {
  RopeConfig config;
  const std::array<int64_t, 1> negative{-1}, huge{1 << 24}, last{(1 << 24) - 1}, at{64};
  EXPECT_THROW(check_positions(config, negative), InputError);
  EXPECT_THROW(check_positions(config, huge), InputError);
  EXPECT_NO_THROW(check_positions(config, last));
  config.scaling = RopeScaling::dynamic;
  config.original_max_position_embeddings = 65;
  EXPECT_NO_THROW(check_positions(config, at));
  config.original_max_position_embeddings = 64;
  EXPECT_THROW(check_positions(config, at), InputError);
}

}  // namespace
}  // namespace loratory::reference
