#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler_sim/cost/step_time.hpp"

namespace loratory::sim {

/// One term of a fitted step time: a name in the file and its value for a batch.
struct StepTerm {
  std::string_view name;
  int64_t (*value)(const BatchShape&);
};

/// Every term, in the order of StepProfile::ns_per: the sums of BatchShape and two that are 0 or 1,
/// `lora_step` (an adapter is present: launch overhead) and `prefill_step`.
inline constexpr std::array<StepTerm, 14> kStepTerms{{
    {"num_seqs", [](const BatchShape& s) { return s.num_seqs; }},
    {"num_tokens", [](const BatchShape& s) { return s.num_tokens; }},
    {"num_prefill_tokens", [](const BatchShape& s) { return s.num_prefill_tokens; }},
    {"num_sampled", [](const BatchShape& s) { return s.num_sampled; }},
    {"decode_context_tokens", [](const BatchShape& s) { return s.decode_context_tokens; }},
    {"prefill_context_tokens", [](const BatchShape& s) { return s.prefill_context_tokens; }},
    {"prefill_pairs", [](const BatchShape& s) { return s.prefill_pairs; }},
    {"num_lora_tokens", [](const BatchShape& s) { return s.num_lora_tokens; }},
    {"lora_rank_tokens", [](const BatchShape& s) { return s.lora_rank_tokens; }},
    {"num_adapters", [](const BatchShape& s) { return s.num_adapters; }},
    {"sum_rank", [](const BatchShape& s) { return s.sum_rank; }},
    {"max_rank", [](const BatchShape& s) { return s.max_rank; }},
    {"lora_step", [](const BatchShape& s) { return int64_t{s.num_adapters > 0}; }},
    {"prefill_step", [](const BatchShape& s) { return int64_t{s.num_prefill_tokens > 0}; }},
}};

/// A step time fitted to a measured server, and where it comes from. The file (all of "model",
/// "gpu", "engine", "source" and "constant_ns" are needed, terms of "ns_per" left out are 0):
///   {"schema": "loratory.step_profile/1",
///    "provenance": {"model": "Llama-3.1-8B", "gpu": "H200", "engine": "vLLM 0.8.5", "source": ""},
///    "constant_ns": 1500000,
///    "ns_per": {"num_seqs": 12000, "decode_context_tokens": 30.5, "lora_step": 900000}}
struct StepProfile {
  std::string model, gpu, engine, source;
  double constant_ns = 0;
  std::array<double, kStepTerms.size()> ns_per{};

  friend bool operator==(const StepProfile&, const StepProfile&) = default;
};

/// step = max(1, constant + sum over terms of ns_per * value). O(1).
class ProfileModel final : public StepTimeModel {
 public:
  explicit ProfileModel(StepProfile profile);
  int64_t step_ns(const BatchShape& shape) const override;
  const StepProfile& profile() const { return profile_; }

 private:
  StepProfile profile_;
};

/// Reads a profile file. Throws InputError naming the file and the key: unknown, missing or
/// mistyped keys, another schema, non-finite numbers.
StepProfile read_step_profile(const std::string& path);
StepProfile parse_step_profile(std::string_view text, std::string_view place);

/// The text of a profile file; parse_step_profile gives the same profile back, bit for bit.
std::string format_step_profile(const StepProfile& profile);

}  // namespace loratory::sim
