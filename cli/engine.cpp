#include "cli/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/units.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/transfer.hpp"

namespace loratory::cli {
namespace {

constexpr uint32_t kDefaultBlockSize = 16;

uint32_t max_rank_of(std::span<const sim::Trace> traces) {
  uint32_t rank = 1;
  for (const sim::Trace& trace : traces) {
    for (const sim::TraceAdapter& adapter : trace.adapters) rank = std::max(rank, adapter.rank);
  }
  return rank;
}

// A trace with prefix blocks is replayed in its own blocks unless the user wants smaller ones.
uint32_t block_size_for(const SystemOptions& options, const sim::Trace& trace) {
  if (options.block_size == 0) {
    return trace.block_tokens > 0 ? trace.block_tokens : kDefaultBlockSize;
  }
  const auto size = uint32_t(options.block_size);
  if (trace.block_tokens % size != 0) {
    throw InputError(
        "--block-size",
        fmt::format("{} does not divide the trace's blocks of {} tokens", size, trace.block_tokens),
        fmt::format("use {} or a divisor of it", trace.block_tokens));
  }
  return size;
}

sim::EvictionPolicy eviction_policy(const std::string& name) {
  if (name == "fifo") return sim::EvictionPolicy::fifo;
  return name == "lfu" ? sim::EvictionPolicy::lfu : sim::EvictionPolicy::lru;
}

sim::CpuEviction cpu_eviction(const std::string& name) {
  if (name == "gpu-last") return sim::CpuEviction::gpu_last;
  return name == "lru" ? sim::CpuEviction::lru : sim::CpuEviction::idle_first;
}

// The adapter of whose name a list without quotes makes several, `piece` one of them.
const sim::TraceAdapter* cut_adapter(const sim::Trace& trace, std::string_view piece) {
  for (const sim::TraceAdapter& adapter : trace.adapters) {
    const std::vector<std::string_view> pieces = split(adapter.name, ',');
    if (pieces.size() > 1 && std::ranges::count(pieces, piece) > 0) return &adapter;
  }
  return nullptr;
}

std::string pin_remedy(const sim::Trace& trace, std::string_view name, bool is_first) {
  if (const sim::TraceAdapter* const adapter = cut_adapter(trace, name)) {
    return fmt::format("quote a name with a comma: --pin '\"{}\"'", adapter->name);
  }
  return is_first ? "name one of its adapters" : "name one that all seeds have, or give --seeds 1";
}

void check_pins(const std::vector<std::string>& names, std::span<const sim::Trace> traces) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::count(names.begin(), names.begin() + int64_t(i), names[i]) > 0) {
      throw InputError("--pin", fmt::format("'{}' is named twice", names[i]), "name it once");
    }
    for (const sim::Trace& trace : traces) {
      if (std::ranges::count(trace.adapters, names[i], &sim::TraceAdapter::name) > 0) continue;
      const bool is_first = &trace == traces.data();
      throw InputError("--pin",
                       fmt::format("{}the workload has no adapter '{}'",
                                   is_first ? "" : "with another seed ", names[i]),
                       pin_remedy(trace, names[i], is_first));
    }
  }
}

int64_t milliseconds(int64_t ms) {
  return ms > sim::kNever / 1'000'000 ? sim::kNever : ms * 1'000'000;
}

sim::SchedulerConfig scheduler_config(const SystemOptions& o, const sim::Trace& trace) {
  sim::SchedulerConfig config;
  config.residency.gpu_eviction = eviction_policy(o.gpu_eviction);
  config.residency.cpu_eviction = cpu_eviction(o.cpu_eviction);
  config.residency.prefetch = !o.no_prefetch;
  config.block_size = block_size_for(o, trace);
  config.max_num_batched_tokens = uint32_t(o.max_num_batched_tokens);
  config.max_num_seqs = uint32_t(o.max_num_seqs);
  config.long_prefill_threshold = uint32_t(o.long_prefill_threshold);
  config.chunked_prefill = !o.no_chunked_prefill;
  config.load_mode = o.load_mode == "blocking" ? sim::LoadMode::blocking : sim::LoadMode::overlap;
  config.activation = o.activation == "one-by-one" ? sim::ActivationOrder::one_by_one
                                                   : sim::ActivationOrder::needed;
  config.prefix_cache = o.prefix_cache != "off";
  config.use_priorities = o.policy == "priority";
  if (o.pack) config.admission_order = sim::AdmissionOrder::packed;
  config.t_starve_ns = milliseconds(o.t_starve_ms);
  config.n_starve = o.n_starve;
  config.drain_factor = o.drain_factor;
  const int64_t longest = o.max_model_len > 0 ? o.max_model_len : sim::longest_request(trace);
  config.max_model_len = uint32_t(std::clamp<int64_t>(longest, 1, UINT32_MAX));
  return config;
}

// Layers with a window hold min(window, length) of a request. Priced at the mean length, requests
// of all lengths together hold no more than that, because the minimum is concave (Jensen). Prompts
// alone count: an output is held for half its life on average, and longer requests live longer.
sim::KvPricing window_pricing(const sim::EnginePreset& engine, const sim::Trace& trace) {
  double prompt = 0;
  for (const sim::TraceRequest& r : trace.requests) prompt += r.prompt_tokens;
  const double mean = trace.requests.empty() ? 0 : prompt / double(trace.requests.size());
  return {.context_tokens = std::max<int64_t>(1, int64_t(mean)),
          .least_share = engine.least_window_share};
}

// Which a simulated transfer has no room for.
void refuse_huge_adapters(const System& system, uint32_t max_rank) {
  const auto bytes = double(max_rank) *
                     double(sim::lora_parameters_per_rank(system.model, system.memory.targets)) *
                     double(sim::lora_dtype_bytes(system.model, system.memory.lora_dtype));
  if (bytes <= double(sim::kMostTransferBytes)) return;
  throw InputError("the adapters",
                   fmt::format("one of rank {} has {}, and a transfer {} at most", max_rank,
                               format_bytes(bytes), format_bytes(double(sim::kMostTransferBytes))),
                   "give smaller ranks, or fewer --target-modules");
}

}  // namespace

void check_room_for_pins(const sim::EngineSpec& engine, int32_t max_loras) {
  if (engine.pins.empty() || std::ssize(engine.pins) < max_loras) return;
  throw InputError(
      "--pin",
      fmt::format("{} {} {}", count_text(std::ssize(engine.pins), "pinned adapter"),
                  engine.pins.size() == 1 ? "fills" : "fill", count_text(max_loras, "slot")),
      "one slot must stay free for the others: raise --max-loras");
}

sim::EngineSpec make_engine(const SystemOptions& given, std::span<const sim::Trace> traces) {
  const SystemOptions options = with_engine_defaults(given);
  const uint32_t max_rank = max_rank_of(traces);
  const sim::Trace& trace = traces.front();
  const System system = resolve_system(options, max_rank);
  refuse_huge_adapters(system, max_rank);
  sim::EngineSpec engine;
  engine.name = system.engine.version.empty() ? system.engine.name : system.engine.version;
  engine.model = system.model;
  engine.gpu = system.gpu;
  engine.memory = system.memory;
  engine.loads = system.loads;
  engine.default_rank = max_rank;
  engine.lora_ranks = system.engine.lora_ranks;
  engine.scheduler = scheduler_config(options, trace);
  check_pins(options.pins, traces);
  engine.pins = options.pins;
  engine.memory.block_size = engine.scheduler.block_size;
  if (system.engine.windows_hold) engine.memory.kv_pricing = window_pricing(system.engine, trace);
  if (!engine.scheduler.chunked_prefill &&
      engine.scheduler.max_num_batched_tokens < engine.scheduler.max_model_len) {
    throw InputError(
        "--no-chunked-prefill",
        fmt::format("the longest request has {} tokens, but a step only {}",
                    engine.scheduler.max_model_len, engine.scheduler.max_num_batched_tokens),
        "raise --max-num-batched-tokens");
  }
  make_step_model(options, system, {1, 1});  // a bad profile is an error before the first replay
  engine.make_step_time = [options, system](sim::EnginePoint point) {
    return make_step_model(options, system, point);
  };
  return engine;
}

}  // namespace loratory::cli
