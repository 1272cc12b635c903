#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/cost/lora_kernels.hpp"
#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/cost/step_overheads.hpp"

namespace loratory::sim {

/// What an engine of a version does unless it is told otherwise. Every value's source is at its row
/// in engine_preset.cpp. "ideal" is loratory's own scheduler with memory by the plain law.
struct EnginePreset {
  std::string name;     ///< as --engine takes it: "vllm-0.8"
  std::string version;  ///< "vLLM 0.8.5"; empty for ideal
  MemoryLaw law = MemoryLaw::plain;
  double gpu_memory_utilization = 0.9;
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;

  LoraKernels lora_kernels = LoraKernels::loratory;
  bool padded_ranks = false;  ///< kernels compute max_lora_rank for every adapter
  bool max_grid = false;      ///< kernels launch blocks for idle slots too
  bool one_graph = false;     ///< steps without adapters launch the LoRA kernels too
  StepOverheads overheads;    ///< what a step takes beside its operators
  /// StepOverheads::penalty_bytes_per_logit where requests have penalties.
  double penalty_bytes_per_logit = 0;
  double penalty_host_row_ns = 0;  ///< the same of StepOverheads::penalty_host_row_ns

  bool blocking_loads = false;  ///< steps wait for adapters
  /// Adapters of a step are activated one by one, least recent out (ActivationOrder::one_by_one).
  bool activates_one_by_one = false;
  int64_t copy_matrix_ns =
      0;                  ///< host time to put one A or B into its slot; 0 = LoadCosts' default
  bool prefetch = true;   ///< adapters load when a request arrives
  bool lru_host = false;  ///< the least recently used adapter leaves host memory
  bool reserves_slots = true;  ///< a request that waits long gets the next free slot
  int disk_workers = 2;
  bool host_copy_per_gpu = false;  ///< each GPU's process keeps its own adapters in host memory

  bool windows_hold = false;            ///< layers with a window keep no more than it
  double least_window_share = 0;        ///< but at least this share of what a full layer keeps
  std::span<const int64_t> lora_ranks;  ///< allowed max_lora_rank, ascending; empty = any
};

/// Names in the order in which `--help` shows them.
std::vector<std::string> engine_preset_names();

/// The engine on a GPU, which its defaults depend on. Throws InputError for an unknown name.
EnginePreset engine_preset(std::string_view name, const GpuSpec& gpu, int tp);

/// The least rank that the engine allows for adapters of `rank`. Throws InputError if all are
/// below.
int64_t allowed_lora_rank(const EnginePreset& engine, int64_t rank);

}  // namespace loratory::sim
