#include "scheduler_sim/cost/engine_preset.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/cost/operator_times.hpp"

namespace loratory::sim {
namespace {

// vLLM 0.8.5, config.py, LoRAConfig.__post_init__; 0.33.0, config/lora.py, MaxLoRARanks.
constexpr std::array<int64_t, 8> kRanks08{8, 16, 32, 64, 128, 256, 320, 512};
constexpr std::array<int64_t, 9> kRanks{1, 8, 16, 32, 64, 128, 256, 320, 512};

// vLLM 0.8.5 between two passes: its own EngineCore.step on the machine of an H100, in Python 3.12,
// with the thread that serialises outputs (bench/gpu/engine_host_bench.py). What the GPU waits for,
// by least absolute errors (scripts/fit_engine_host.py); a waiting request by the functions alone.
constexpr double kHost08Ns = 518e3;
constexpr double kHostRow08Ns = 6.64e3;
constexpr double kHostWaiting08Ns = 342;
// v1/worker/gpu_input_batch.py, _make_prompt_token_ids_tensor: 1.6 ms for 900 rows whose longest
// prompt has 2,000 tokens, in PyTorch 2.6 on an AMD EPYC, not on the machine of a GPU.
constexpr double kPenaltyHostRow08Ns = 2e3;
// A kernel outside of CUDA graphs: a layer of ten takes 172 us as Inductor's code launches it, and
// the Python of its attention 43.
constexpr double kLaunch08Ns = 21.5e3;

// A row of vLLM 0.27.1's engine loop, profiled with a stub for an executor
// (openfabric-systems/simllm 204): 12.7 us in the scheduler, and outputs in proportion to their
// shares of the loop (18.6 + 16.1 to 9.7 + 11.6 %). Of the rest, input tensors and the wait for the
// sampled tokens, nothing was found measured: half a millisecond a step is an assumption.
constexpr double kHostRowNs = 20.5e3;
constexpr double kHostNs = 0.5e6;
// The walk's branch for a request without a slot (v1/core/sched/scheduler.py, schedule: peek,
// compare, pop, prepend to the skipped ones), timed in CPython 3.11 on stand-ins.
constexpr double kHostWaitingNs = 200;

// Attention of decoding rows and prompts in one call: vLLM 0.8.5's FlashAttention 3 on an H100
// (bench/gpu/mixed_attention_bench.py, scripts/fit_mixed_attention.py). A block of the kernel that
// joins parts, +-0.002; no fixed part, since it is launched before attention has ended. A KV head
// of a decoding row, +-0.5, of rows of 64 to 1,024 keys; what one call saves of two, +-0.5 us.
constexpr double kCombineBlockNs = 0.626;
constexpr double kWideTileNs = 11.4;
constexpr double kSharedCallNs = 9.8e3;

double gib_of(const GpuSpec& gpu) { return double(gpu.memory_bytes) / double(kGiB); }

// What both versions of vLLM do with adapters: add_adapter reads from disk and copies to the GPU
// within the step that needs it, in every worker process (v1/worker/lora_model_runner_mixin.py,
// lora/worker_manager.py, LRUCacheWorkerLoRAManager); kernels get A and B of all slots, so that
// their N is max_lora_rank (lora/ops/triton_ops/lora_shrink_op.py); a request whose adapter has no
// slot waits until one is free (v1/core/sched/scheduler.py).
EnginePreset vllm_of(std::string name, std::string version) {
  EnginePreset e;
  e.name = std::move(name);
  e.version = std::move(version);
  e.padded_ranks = e.max_grid = true;
  e.blocking_loads = e.lru_host = e.host_copy_per_gpu = true;
  // set_lora clears and copies each matrix (lora/layers.py). Logs of 22 starts of vLLM 0.8.5 with
  // 50 to 300 adapters (FerranAgulloLopez/GPULLMAdapterOptimization, predictor_loading and
  // overhead_small, worker_manager.py's "loading time from memory"): 6.5 to 8.8 ms for the 448
  // matrices of Llama-3.1-8B, 3.0 to 3.8 ms for the 392 of Qwen2.5-7B, whatever the rank.
  e.copy_matrix_ns = 12'000;
  // model_executor/layers/utils.py, apply_penalties: 14 passes over logits of 4 bytes, counts of 8
  // and masks of 1.
  e.penalty_bytes_per_logit = 129;
  e.activates_one_by_one = true;  // lora/worker_manager.py, _apply_adapters
  e.prefetch = e.reserves_slots = false;
  e.disk_workers = 1;
  e.overheads.host_ns = kHostNs;
  e.overheads.host_row_ns = kHostRowNs;
  e.overheads.host_waiting_ns = kHostWaitingNs;
  return e;
}

bool is_hopper(const GpuSpec& gpu) {
  const std::string_view table = operator_table_of(gpu);
  return table == "h100_sxm" || table == "h200_sxm";
}

EnginePreset vllm_08(const GpuSpec& gpu) {
  EnginePreset e = vllm_of("vllm-0.8", "vLLM 0.8.5");
  e.law = MemoryLaw::vllm_08;
  e.lora_kernels = LoraKernels::vllm_08;
  e.gpu_memory_utilization = 0.9;  // config.py, CacheConfig
  // engine/arg_utils.py, _set_default_args_v1, OPENAI_API_SERVER. Its 70 GiB are nvidia-smi's.
  const bool large = gib_of(gpu) >= 70;
  e.max_num_batched_tokens = large ? 8192 : 2048;
  e.max_num_seqs = large ? 1024 : 256;
  e.one_graph = true;  // v1/worker/gpu_model_runner.py, capture_model: with adapters alone
  e.overheads.host_overlaps = false;  // v1/engine/core.py, step: schedule, execute, update in turn
  e.overheads.graph_stride = 8;       // config.py, _set_cudagraph_sizes: up to 512
  e.overheads.host_ns = kHost08Ns;
  e.overheads.host_row_ns = kHostRow08Ns;
  e.overheads.host_waiting_ns = kHostWaiting08Ns;
  e.overheads.launch_ns = kLaunch08Ns;
  e.penalty_host_row_ns = kPenaltyHostRow08Ns;
  // attention/utils/fa_utils.py, get_flash_attn_version: FlashAttention 3 on Hopper alone.
  if (is_hopper(gpu)) {
    e.overheads.combine_block_ns = kCombineBlockNs;
    e.overheads.wide_tile_ns = kWideTileNs;
    e.overheads.shared_call_ns = kSharedCallNs;
  }
  e.lora_ranks = kRanks08;
  return e;
}

EnginePreset vllm_now(const GpuSpec& gpu) {
  EnginePreset e = vllm_of("vllm", "vLLM 0.33.0");
  e.law = MemoryLaw::vllm;
  e.lora_kernels = LoraKernels::vllm;
  e.gpu_memory_utilization = 0.92;  // config/cache.py
  // engine/arg_utils.py, get_batch_defaults, OPENAI_API_SERVER.
  const double gib = gib_of(gpu);
  const bool large = gib >= 70 && !gpu.name.starts_with("A100");
  e.max_num_batched_tokens = gib >= 160 ? 16384 : large ? 8192 : 2048;
  e.max_num_seqs = gib >= 160 || large ? 1024 : 256;
  e.overheads.host_overlaps = true;  // config/scheduler.py, async_scheduling
  e.overheads.graph_stride = 16;     // config/vllm.py, _set_cudagraph_sizes: up to 512
  e.windows_hold = true;             // config/scheduler.py, disable_hybrid_kv_cache_manager
  e.lora_ranks = kRanks;
  return e;
}

// vLLM 0.9 to 0.13: today's, but for what is set here.
EnginePreset vllm_012(const GpuSpec& gpu) {
  EnginePreset e = vllm_now(gpu);
  e.name = "vllm-0.12";
  e.version = "vLLM 0.12.0";
  e.gpu_memory_utilization = 0.9;     // config/cache.py
  e.overheads.host_overlaps = false;  // config/scheduler.py: async_scheduling is on from 0.14
  const bool large = gib_of(gpu) >= 70 && !gpu.name.starts_with("A100");
  e.max_num_batched_tokens = large ? 8192 : 2048;  // engine/arg_utils.py, get_batch_defaults
  return e;
}

// srt/arg_groups/memory_hook.py, handle_gpu_memory_settings, in MiB and without post-capture
// sizing, which measures what it cannot know before.
EnginePreset sglang(const GpuSpec& gpu, int tp) {
  EnginePreset e;
  e.name = "sglang";
  e.version = "SGLang 0.5.23";
  e.law = MemoryLaw::sglang;
  e.lora_kernels = LoraKernels::sglang;  // csgmv: srt/arg_groups/fields/lora.py, lora_backend
  const double mib = double(gpu.memory_bytes) / double(kMiB);
  const bool few = tp < 4;
  double max_graph = 512, chunk = 16384;
  if (mib < 20 * 1024) {
    max_graph = 8, chunk = 2048;
  } else if (mib < 35 * 1024) {
    max_graph = few ? 48 : 160, chunk = 4096;
  } else if (mib < 60 * 1024) {
    max_graph = few ? 32 : 160, chunk = 4096;
  } else if (mib < 160 * 1024) {
    max_graph = few ? 256 : 512, chunk = 8192;
  }
  double reserved = 512 + 1.5 * chunk + tp / 8.0 * 1024 + 2 * max_graph;
  if (mib > 60 * 1024) reserved = std::max(reserved, 10.0 * 1024);
  e.gpu_memory_utilization = std::round((mib - reserved) / mib * 1000) / 1000;
  e.max_num_batched_tokens = int64_t(chunk);
  e.max_num_seqs = std::min<int64_t>(2048, e.max_num_batched_tokens);
  // Its pages have one token (srt/arg_groups/fields/schedule.py, page_size); blocks of 16, which
  // vLLM has too, waste up to 15 tokens a request.
  // srt/arg_groups/fields/lora.py: enable_lora_overlap_loading, lora_drain_wait_threshold = 0;
  // ranks are true in csgmv's kernels, and each process holds the adapters
  // (srt/lora/lora_manager.py).
  e.blocking_loads = e.host_copy_per_gpu = e.lru_host = true;
  e.one_graph = true;  // srt/model_executor/runner/decode_cuda_graph_runner.py, record_nolora_graph
  e.reserves_slots = e.prefetch = false;
  e.overheads.host_ns = kHostNs;
  e.overheads.host_row_ns = kHostRowNs;
  e.overheads.host_waiting_ns = kHostWaitingNs;
  e.overheads.host_overlaps = true;    // srt/server_args.py, disable_overlap_schedule = False
  e.overheads.graphs_prefill = false;  // decode steps alone are captured
  e.overheads.graph_tokens = int64_t(max_graph);
  e.windows_hold = true;
  e.least_window_share = 0.8;  // srt/arg_groups/fields/schedule.py, swa_full_tokens_ratio
  return e;
}

}  // namespace

std::vector<std::string> engine_preset_names() {
  return {"ideal", "vllm-0.8", "vllm-0.12", "vllm", "sglang"};
}

EnginePreset engine_preset(std::string_view name, const GpuSpec& gpu, int tp) {
  if (name == "vllm-0.8") return vllm_08(gpu);
  if (name == "vllm-0.12") return vllm_012(gpu);
  if (name == "vllm") return vllm_now(gpu);
  if (name == "sglang") return sglang(gpu, tp);
  if (name == "ideal") {
    EnginePreset e;
    e.name = name;
    return e;
  }
  throw InputError("--engine", fmt::format("unknown engine '{}'", name),
                   fmt::format("use one of {}", fmt::join(engine_preset_names(), ", ")));
}

int64_t allowed_lora_rank(const EnginePreset& engine, int64_t rank) {
  if (engine.lora_ranks.empty()) return rank;
  const auto least = std::ranges::lower_bound(engine.lora_ranks, rank);
  if (least != engine.lora_ranks.end()) return *least;
  throw InputError("--engine", fmt::format("{} has no adapters of rank {}", engine.version, rank),
                   fmt::format("its largest rank is {}", engine.lora_ranks.back()));
}

}  // namespace loratory::sim
