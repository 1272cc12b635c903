#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler_sim/cost/expected_error.hpp"
#include "scheduler_sim/cost/lora_grid.hpp"
#include "scheduler_sim/cost/server_terms.hpp"
#include "scheduler_sim/cost/step_time.hpp"

namespace loratory::sim {

/// One term of a fitted step time: a name in the file and its value for a batch.
struct StepTerm {
  std::string_view name;
  int64_t (*value)(const BatchShape&);
};

/// Every term, in the order of StepProfile::ns_per: the sums of BatchShape and two that are 0 or 1,
/// `lora_step` (an adapter is present: launch overhead) and `prefill_step`.
inline constexpr std::array<StepTerm, 15> kStepTerms{{
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
    {"num_waiting_seen", [](const BatchShape& s) { return s.num_waiting_seen; }},
}};
/// The index of a term in kStepTerms.
constexpr size_t step_term(std::string_view name) {
  size_t index = 0;
  while (kStepTerms[index].name != name) ++index;
  return index;
}

/// A step time fitted to a measured server, and where it comes from. The file (all of "model",
/// "gpu", "engine", "source" and "constant_ns" are needed, terms of "ns_per" left out are 0):
///   {"schema": "loratory.step_profile/2",
///    "provenance": {"model": "Llama-3.1-8B", "gpu": "H200", "engine": "vLLM 0.8.5", "source": ""},
///    "constant_ns": 9100000,
///    "ns_per": {"num_seqs": 56000, "decode_context_tokens": 70, "num_adapters": 370000},
///    ... and, each only if the server has it:
///    "tp": 2,                                                in "provenance": GPUs of the server
///    "weight_bits": 16, "kv_bits": 16, "adapter_bits": 16,   there too: of one number
///    "max_rank": 16,                                         there too: largest of its adapters
///    "host_ns": 4300000,                                     beside the GPU's work, in every step
///    "above": {"tokens": 350, "ns_per_token": 16000},        where products get bound by FLOP/s
///    "lora_block_ns": {"shrink": 1.0, "expand": 0.8},        LoraGrid's blocks
///    "launch": {"above_tokens": 512, "least_ns": 32000000},  without a CUDA graph
///    "load": {"copy_ns": 6000000},                           an adapter into its slot
///    "server": {"frontend_ms": 6, ...},                      ServerTerms
///    "expected_error": {"throughput": 0.025, ...}}
/// "loratory.step_profile/1" has the first four keys alone.
struct StepProfile {
  std::string model, gpu, engine, source;
  int tp = 1;                                                        ///< GPUs that share the model
  int weight_bits = 0, kv_bits = 0, adapter_bits = 0, max_rank = 0;  ///< 0 = it does not say
  double constant_ns = 0;
  std::array<double, kStepTerms.size()> ns_per{};
  double host_ns = 0;
  double above_tokens = 0, above_ns_per_token = 0;
  double shrink_block_ns = 0, expand_block_ns = 0;
  double launch_above_tokens = 0;  ///< graphs are captured up to here; 0 = no such limit
  double launch_least_ns = 0;
  double copy_ns = -1;  ///< -1 = as the engine's preset has it
  ServerTerms server;
  ExpectedError expected_error;

  double& term(std::string_view name) { return ns_per[step_term(name)]; }
  double term(std::string_view name) const { return ns_per[step_term(name)]; }

  friend bool operator==(const StepProfile&, const StepProfile&) = default;
};

/// step = max(1, host + max(GPU, launch of a step without a graph)), where
///   host = host_ns + its terms: num_seqs, num_waiting_seen, num_sampled
///   GPU  = constant_ns + the other terms + what tokens above the knee cost + idle LoRA blocks
/// Up to launch_above_tokens, tokens are padded to captured sizes: 1, 2, 4 and multiples of 8.
/// O(1).
class ProfileModel final : public StepTimeModel {
 public:
  explicit ProfileModel(StepProfile profile, LoraGrid grid = {});
  int64_t step_ns(const BatchShape& shape) const override;
  bool asks_waiting_seen() const override { return profile_.term("num_waiting_seen") != 0; }
  const StepProfile& profile() const { return profile_; }

 private:
  int64_t padded_tokens(int64_t num_tokens) const;
  double gpu_ns(const BatchShape& shape) const;

  StepProfile profile_;
  LoraGrid grid_;
};

/// Sets the bits of `profile` to those of a server of this model.
void describe_types(StepProfile& profile, const ModelSpec& model, LoraDtype adapters);

/// One of shipped_profile_names(), or else a profile file. Throws InputError naming the file and
/// the key: unknown, missing or mistyped keys, another schema, non-finite numbers.
StepProfile read_step_profile(const std::string& name_or_path);
StepProfile parse_step_profile(std::string_view text, std::string_view place);

/// The text of a profile file; parse_step_profile gives the same profile back, bit for bit.
std::string format_step_profile(const StepProfile& profile);

}  // namespace loratory::sim
