#include "scheduler_sim/cost/nearest_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

constexpr int kMostGpus = 64;

struct Situation {
  ModelSpec model;
  GpuSpec gpu;
  MemoryOptions options;
  int64_t max_loras, max_cpu_loras;
};

// KV tokens, or nothing if it does not fit or cannot be shared among so many GPUs.
std::optional<int64_t> kv_tokens_of(const Situation& s) {
  try {
    const MemoryPlan plan = plan_memory(s.model, s.gpu, s.options, s.max_loras, s.max_cpu_loras);
    if (plan.fits()) return plan.split.kv_blocks * s.options.block_size;
  } catch (const InputError&) {
    return std::nullopt;  // the heads do not divide
  }
  return std::nullopt;
}

MemoryRemedy remedy_of(MemoryRemedy::Kind kind, int64_t value = 0, std::string gpu = {}) {
  return {.kind = kind, .value = value, .gpu = std::move(gpu), .kv_tokens = 0};
}

void add_if_fits(const Situation& s, MemoryRemedy remedy, std::vector<MemoryRemedy>& remedies) {
  const auto known = std::ranges::find(remedies, remedy.kind, &MemoryRemedy::kind);
  if (known != remedies.end()) return;
  const std::optional<int64_t> tokens = kv_tokens_of(s);
  if (!tokens) return;
  remedy.kv_tokens = *tokens;
  remedies.push_back(std::move(remedy));
}

void try_ranks(const Situation& s, int64_t least, std::span<const int64_t> ranks,
               std::vector<MemoryRemedy>& remedies) {
  std::vector<int64_t> tried(ranks.begin(), ranks.end());
  for (int64_t rank = 1; ranks.empty() && rank < s.options.max_lora_rank; rank *= 2) {
    tried.push_back(rank);
  }
  for (auto rank = tried.rbegin(); rank != tried.rend(); ++rank) {
    if (*rank >= s.options.max_lora_rank || *rank < least) continue;
    Situation changed = s;
    changed.options.max_lora_rank = *rank;
    add_if_fits(changed, remedy_of(MemoryRemedy::Kind::smaller_rank, *rank), remedies);
  }
}

void try_slots(const Situation& s, std::vector<MemoryRemedy>& remedies) {
  for (int64_t slots = s.max_loras / 2; slots >= 1; slots /= 2) {
    Situation changed = s;
    changed.max_loras = slots;
    add_if_fits(changed, remedy_of(MemoryRemedy::Kind::fewer_slots, slots), remedies);
  }
}

void try_dtypes(const Situation& s, std::vector<MemoryRemedy>& remedies) {
  Situation changed = s;
  changed.model.fp8_kv = true;
  if (!s.model.fp8_kv) add_if_fits(changed, remedy_of(MemoryRemedy::Kind::fp8_kv), remedies);
  changed = s;
  if (s.model.quantization.bits > 0) return;
  apply_dtypes(changed.model, "fp8", s.model.fp8_kv ? "fp8" : "auto");
  add_if_fits(changed, remedy_of(MemoryRemedy::Kind::fp8_weights), remedies);
}

void try_gpus(const Situation& s, std::vector<MemoryRemedy>& remedies) {
  for (int tp = s.options.tp + 1; tp <= kMostGpus; ++tp) {
    Situation changed = s;
    changed.options.tp = tp;
    add_if_fits(changed, remedy_of(MemoryRemedy::Kind::more_gpus, tp), remedies);
  }
  std::vector<GpuSpec> others;
  for (const std::string& name : gpu_preset_names()) others.push_back(parse_gpu_spec(name));
  std::ranges::stable_sort(others, {}, &GpuSpec::memory_bytes);
  for (const GpuSpec& other : others) {
    if (other.memory_bytes <= s.gpu.memory_bytes) continue;
    Situation changed = s;
    changed.gpu = other;
    add_if_fits(changed, remedy_of(MemoryRemedy::Kind::other_gpu, 0, other.name), remedies);
  }
}

}  // namespace

std::vector<MemoryRemedy> nearest_fits(const ModelSpec& model, const GpuSpec& gpu,
                                       const MemoryOptions& options, int64_t max_loras,
                                       int64_t max_cpu_loras, int64_t least_rank,
                                       std::span<const int64_t> ranks) {
  const Situation now{model, gpu, options, max_loras, max_cpu_loras};
  std::vector<MemoryRemedy> remedies;
  if (kv_tokens_of(now)) return remedies;
  try_ranks(now, least_rank, ranks, remedies);
  try_slots(now, remedies);
  try_dtypes(now, remedies);
  try_gpus(now, remedies);
  return remedies;
}

std::string flags_of(const MemoryRemedy& remedy) {
  using Kind = MemoryRemedy::Kind;
  switch (remedy.kind) {
    case Kind::smaller_rank:
      return fmt::format("--max-lora-rank {}", remedy.value);
    case Kind::fewer_slots:
      return fmt::format("--max-loras {}", remedy.value);
    case Kind::fp8_kv:
      return "--kv-cache-dtype fp8";
    case Kind::fp8_weights:
      return "--dtype fp8";
    case Kind::more_gpus:
      return fmt::format("--tp {}", remedy.value);
    case Kind::other_gpu:
      return fmt::format("--gpu {}", remedy.gpu);
  }
  return {};
}

std::string describe_remedy(const MemoryRemedy& remedy) {
  return fmt::format("{} has room for {} KV tokens", flags_of(remedy),
                     format_count(remedy.kv_tokens));
}

}  // namespace loratory::sim
