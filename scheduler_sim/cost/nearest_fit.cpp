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

Remedy remedy_of(Remedy::Kind kind, int64_t value = 0, std::string gpu = {}) {
  return {.kind = kind, .value = value, .gpu = std::move(gpu), .kv_tokens = 0};
}

void add_if_fits(const Situation& s, Remedy remedy, std::vector<Remedy>& remedies) {
  const auto known = std::ranges::find(remedies, remedy.kind, &Remedy::kind);
  if (known != remedies.end()) return;
  const std::optional<int64_t> tokens = kv_tokens_of(s);
  if (!tokens) return;
  remedy.kv_tokens = *tokens;
  remedies.push_back(std::move(remedy));
}

void try_ranks(const Situation& s, int64_t least, std::span<const int64_t> ranks,
               std::vector<Remedy>& remedies) {
  std::vector<int64_t> tried(ranks.begin(), ranks.end());
  for (int64_t rank = 1; ranks.empty() && rank < s.options.max_lora_rank; rank *= 2) {
    tried.push_back(rank);
  }
  for (auto rank = tried.rbegin(); rank != tried.rend(); ++rank) {
    if (*rank >= s.options.max_lora_rank || *rank < least) continue;
    Situation changed = s;
    changed.options.max_lora_rank = *rank;
    add_if_fits(changed, remedy_of(Remedy::Kind::smaller_rank, *rank), remedies);
  }
}

void try_slots(const Situation& s, std::vector<Remedy>& remedies) {
  for (int64_t slots = s.max_loras / 2; slots >= 1; slots /= 2) {
    Situation changed = s;
    changed.max_loras = slots;
    add_if_fits(changed, remedy_of(Remedy::Kind::fewer_slots, slots), remedies);
  }
}

void try_dtypes(const Situation& s, std::vector<Remedy>& remedies) {
  Situation changed = s;
  changed.model.fp8_kv = true;
  if (!s.model.fp8_kv) add_if_fits(changed, remedy_of(Remedy::Kind::fp8_kv), remedies);
  changed = s;
  if (s.model.quantization.bits > 0) return;
  apply_dtypes(changed.model, "fp8", s.model.fp8_kv ? "fp8" : "auto");
  add_if_fits(changed, remedy_of(Remedy::Kind::fp8_weights), remedies);
}

void try_gpus(const Situation& s, std::vector<Remedy>& remedies) {
  for (int tp = s.options.tp + 1; tp <= kMostGpus; ++tp) {
    Situation changed = s;
    changed.options.tp = tp;
    add_if_fits(changed, remedy_of(Remedy::Kind::more_gpus, tp), remedies);
  }
  std::vector<GpuSpec> others;
  for (const std::string& name : gpu_preset_names()) others.push_back(parse_gpu_spec(name));
  std::ranges::stable_sort(others, {}, &GpuSpec::memory_bytes);
  for (const GpuSpec& other : others) {
    if (other.memory_bytes <= s.gpu.memory_bytes) continue;
    Situation changed = s;
    changed.gpu = other;
    add_if_fits(changed, remedy_of(Remedy::Kind::other_gpu, 0, other.name), remedies);
  }
}

}  // namespace

std::vector<Remedy> nearest_fits(const ModelSpec& model, const GpuSpec& gpu,
                                 const MemoryOptions& options, int64_t max_loras,
                                 int64_t max_cpu_loras, int64_t least_rank,
                                 std::span<const int64_t> ranks) {
  const Situation now{model, gpu, options, max_loras, max_cpu_loras};
  std::vector<Remedy> remedies;
  if (kv_tokens_of(now)) return remedies;
  try_ranks(now, least_rank, ranks, remedies);
  try_slots(now, remedies);
  try_dtypes(now, remedies);
  try_gpus(now, remedies);
  return remedies;
}

std::string describe_remedy(const Remedy& remedy) {
  const auto flag = [&]() -> std::string {
    switch (remedy.kind) {
      case Remedy::Kind::smaller_rank:
        return fmt::format("--max-lora-rank {}", remedy.value);
      case Remedy::Kind::fewer_slots:
        return fmt::format("--max-loras {}", remedy.value);
      case Remedy::Kind::fp8_kv:
        return "--kv-cache-dtype fp8";
      case Remedy::Kind::fp8_weights:
        return "--dtype fp8";
      case Remedy::Kind::more_gpus:
        return fmt::format("--tp {}", remedy.value);
      case Remedy::Kind::other_gpu:
        return fmt::format("--gpu {}", remedy.gpu);
    }
    return {};
  }();
  return fmt::format("{} has room for {} KV tokens", flag, format_count(remedy.kv_tokens));
}

}  // namespace loratory::sim
