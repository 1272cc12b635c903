#include "scheduler_sim/workload/sharegpt.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

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
constexpr std::array<Quantile, 21> kModelQuantiles{
    {{0, 2},     {.01, 8},   {.02, 14},  {.05, 31},  {.1, 61},  {.15, 100}, {.2, 144},
     {.25, 184}, {.3, 225},  {.35, 262}, {.4, 295},  {.5, 363}, {.6, 441},  {.65, 483},
     {.7, 532},  {.75, 580}, {.8, 639},  {.85, 716}, {.9, 802}, {.95, 899}, {1, 1016}}};

constexpr double kBeginsWithPerson = 0.472;
constexpr double kLeastTokens = 4, kMostPrompt = 1024, kMostOutput = 1024, kMostTokens = 2048;
constexpr uint64_t kSampleSize = 20'000;  // to find the scales
constexpr uint64_t kMostAttempts = 64;
constexpr int kRounds = 6, kMostRounds = 40;  // towards the scales
constexpr double kLargestError = 0.05;

double tokens_at(const std::array<Quantile, 21>& law, double share) {
  const auto above = std::ranges::upper_bound(law, share, {}, &Quantile::share);
  const Quantile& b = above == law.end() ? law.back() : *above;
  const Quantile& a = *std::prev(above == law.end() ? law.end() - 1 : above);
  return a.tokens + (b.tokens - a.tokens) * (share - a.share) / (b.share - a.share);
}

// To the nearest; what is too long stays so.
uint32_t rounded(double tokens) { return uint32_t(std::min(tokens, 2 * kMostTokens) + 0.5); }

bool is_taken(double prompt, double output) {
  return prompt >= kLeastTokens && output >= kLeastTokens && prompt <= kMostPrompt &&
         output <= kMostOutput && prompt + output <= kMostTokens;
}

}  // namespace

// The limits hold for what is scaled, so the scales are a fixed point.
ShareGptLengths::ShareGptLengths(double mean_prompt_tokens, double mean_output_tokens)
    : means_{mean_prompt_tokens, mean_output_tokens} {
  for (int round = 0; round < kRounds; ++round) scale_by(lacking());
  // Where that is not enough, more rounds help, or nothing does.
  ShareGptLengths further = *this;
  Turns lacks = further.lacking();
  for (int round = kRounds; error_of(lacks) > kLargestError; ++round) {
    further.scale_by(lacks);
    const Turns next = further.lacking();
    if (round == kMostRounds || !(error_of(next) < error_of(lacks))) return;
    lacks = next;
  }
  *this = further;
  have_means_ = true;
}

// What the scales of a sample's turns have to be multiplied by.
ShareGptLengths::Turns ShareGptLengths::lacking() const {
  const RandomStream stream(0, Purpose::prompt_tokens);
  static const std::vector<Turns> kSample = [&] {
    std::vector<Turns> sample;
    for (uint64_t i = 0; i < kSampleSize; ++i) sample.push_back(draw_turns(stream, i, 0));
    return sample;
  }();
  double prompts = 0, outputs = 0;
  for (uint64_t i = 0; i < kSampleSize; ++i) {
    const RequestLength length = scaled(kSample[i], stream, i);
    prompts += length.prompt_tokens;
    outputs += length.output_tokens;
  }
  return {means_.prompt * double(kSampleSize) / prompts,
          means_.output * double(kSampleSize) / outputs};
}

void ShareGptLengths::scale_by(Turns factors) {
  prompt_scale_ *= factors.prompt;
  output_scale_ *= factors.output;
}

double ShareGptLengths::error_of(Turns factors) {
  return std::max(std::abs(factors.prompt - 1), std::abs(factors.output - 1));
}

RequestLength ShareGptLengths::draw(const RandomStream& stream, uint64_t index) const {
  return scaled(draw_turns(stream, index, 0), stream, index);
}

RequestLength ShareGptLengths::scaled(Turns first, const RandomStream& stream,
                                      uint64_t index) const {
  Turns turns = first;
  for (uint64_t attempt = 1; attempt <= kMostAttempts; ++attempt) {
    const RequestLength length{rounded(turns.prompt * prompt_scale_),
                               rounded(turns.output * output_scale_)};
    if (is_taken(length.prompt_tokens, length.output_tokens)) return length;
    turns = draw_turns(stream, index, attempt);
  }
  return {uint32_t(kLeastTokens), uint32_t(kLeastTokens)};
}

ShareGptLengths::Turns ShareGptLengths::draw_turns(const RandomStream& stream, uint64_t index,
                                                   uint64_t attempt) {
  const bool begins_with_person = stream.unit(index, 3 * attempt) < kBeginsWithPerson;
  const double person = tokens_at(kPerson, stream.unit(index, 3 * attempt + 1));
  const double model = tokens_at(kModelQuantiles, stream.unit(index, 3 * attempt + 2));
  return begins_with_person ? Turns{person, model} : Turns{model, person};
}

}  // namespace loratory::sim
