#include "scheduler_sim/workload/sharegpt.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace loratory::sim {
namespace {

struct Quantile {
  double share, tokens;
};

// Turns of people.
constexpr std::array<Quantile, 21> kPerson{
    {{0, 3},   {.02, 4},   {.05, 6},  {.1, 7},     {.15, 9},   {.2, 11},    {.25, 13},
     {.3, 15}, {.4, 19},   {.5, 26},  {.6, 37},    {.65, 44},  {.7, 54},    {.75, 70},
     {.8, 94}, {.85, 144}, {.9, 275}, {.925, 410}, {.95, 694}, {.98, 1246}, {1, 2327}}};
// Turns of models.
constexpr std::array<Quantile, 21> kModel{
    {{0, 2},     {.01, 8},   {.02, 14},  {.05, 31},  {.1, 61},  {.15, 100}, {.2, 144},
     {.25, 184}, {.3, 225},  {.35, 262}, {.4, 295},  {.5, 363}, {.6, 441},  {.65, 483},
     {.7, 532},  {.75, 580}, {.8, 639},  {.85, 716}, {.9, 802}, {.95, 899}, {1, 1016}}};

constexpr double kBeginsWithPerson = 0.472;
constexpr double kLeastTokens = 4, kMostPrompt = 1024, kMostOutput = 1024, kMostTokens = 2048;
constexpr uint64_t kSampleSize = 20'000;  // to find the scales

double tokens_at(const std::array<Quantile, 21>& law, double share) {
  const auto above = std::ranges::upper_bound(law, share, {}, &Quantile::share);
  const Quantile& b = above == law.end() ? law.back() : *above;
  const Quantile& a = *std::prev(above == law.end() ? law.end() - 1 : above);
  return a.tokens + (b.tokens - a.tokens) * (share - a.share) / (b.share - a.share);
}

bool is_taken(double prompt, double output) {
  return prompt >= kLeastTokens && output >= kLeastTokens && prompt <= kMostPrompt &&
         output <= kMostOutput && prompt + output <= kMostTokens;
}

}  // namespace

ShareGptLengths::ShareGptLengths(double mean_prompt_tokens, double mean_output_tokens) {
  // The limits hold for what is scaled, so the scales are a fixed point.
  const RandomStream stream(0, Purpose::prompt_tokens);
  for (int round = 0; round < 6; ++round) {
    double prompts = 0, outputs = 0;
    for (uint64_t i = 0; i < kSampleSize; ++i) {
      const RequestLength length = draw(stream, i);
      prompts += length.prompt_tokens;
      outputs += length.output_tokens;
    }
    prompt_scale_ *= mean_prompt_tokens * double(kSampleSize) / prompts;
    output_scale_ *= mean_output_tokens * double(kSampleSize) / outputs;
  }
}

RequestLength ShareGptLengths::draw(const RandomStream& stream, uint64_t index) const {
  for (uint64_t attempt = 0; attempt < 64; ++attempt) {
    const RequestLength length = draw_scaled(stream, index, attempt);
    if (is_taken(length.prompt_tokens, length.output_tokens)) return length;
  }
  return {uint32_t(kLeastTokens), uint32_t(kLeastTokens)};
}

RequestLength ShareGptLengths::draw_scaled(const RandomStream& stream, uint64_t index,
                                           uint64_t attempt) const {
  const bool begins_with_person = stream.unit(index, 3 * attempt) < kBeginsWithPerson;
  const double person = tokens_at(kPerson, stream.unit(index, 3 * attempt + 1));
  const double model = tokens_at(kModel, stream.unit(index, 3 * attempt + 2));
  const double prompt = begins_with_person ? person : model;
  const double output = begins_with_person ? model : person;
  return {uint32_t(prompt * prompt_scale_ + 0.5), uint32_t(output * output_scale_ + 0.5)};
}

}  // namespace loratory::sim
