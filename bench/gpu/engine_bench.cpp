// Steps of the engine on random weights, beside the time that reading their bytes once takes:
// decode at batch 1, 32 and 128, prefill of 2,048 and 8,192 tokens; LoRA off, the same in a second
// engine ("off again": by how much two equal engines differ), enabled and not used, 1, 8 and 32
// adapters of rank 16 and 64, adapters of attention or the MLP alone at batch 1, and products in
// any order of sums ("fast"). Steps with LoRA enabled and not used must give the bits of steps
// without: exit 1 if they do not.
//
//   cmake --build --preset cuda --target engine_bench
//   build/cuda/bench/gpu/engine_bench results.json [--cold-loads] [Llama-3.1-8B] [Qwen3-8B]
//     [FOLDER/config.json] [--only=LORA,...] [--plans=FILE] [--context=TOKENS]
//
// Rows of decode have 1,024 tokens, or as many as --context says.
//
// --only=off (r16, r64, "r64 fp8", fast ...) measures steps of these engines alone. One step of
// each kind lies between cudaProfilerStart and cudaProfilerStop:
//   ncu --profile-from-start off --graph-profiling node --clock-control none
//     --metrics gpu__time_duration.sum --csv build/cuda/bench/gpu/engine_bench ... --only=off
// A profiler slows down what the products are chosen by: --plans keeps the choices of a run without
// one for the next.
//
// Behind the steps comes what an adapter costs that is not on the GPU (cold_loads.hpp); with
// --cold-loads that alone.
//
// Prefill stands beside the rate of cuBLASLt, which takes gate|up of 8,192 tokens in any order of
// sums.
//
// A time is that of the GPU: up to kMostSteps steps enqueued one behind the other, the median of
// kRepeats such runs, divided by the number of steps. Steps without adapters beside the base step
// have kRepeatsOfEquals: medians of six runs differ by up to 2 % of a prefill. The read floor is
// one kernel that reads weights, keys and values and adapters once, timed in the same way. Runs of
// a step and of the same step without LoRA ("base") take turns, because a GPU that has grown warm
// is slower, by 1 % of a prefill. Each goes first as often as second: behind a kernel that only
// reads, a prefill is 5 % faster. The base step is that of an engine without LoRA where two engines
// fit on the GPU, else the same engine's, whose steps without adapters replay the same graphs. The
// limit of a step with adapters is 1.10 times the base and the bytes of its adapters at the rate of
// the floor.
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cold_loads.hpp"
#include "gpu/engine/device/engine_kernels.hpp"
#include "gpu/engine/device/gpu_executor.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "read_node.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/model/model_presets.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::ModelConfig;

constexpr int kMostSteps = 10, kRepeats = 6;
constexpr int kRepeatsOfEquals = 20;  // of steps without adapters beside the base step
constexpr double kRunUs = 1e5;        // of steps in a row
constexpr int32_t kBatches[] = {1, 32, 128};
constexpr int32_t kPrompts[] = {2048, 8192};
constexpr int32_t kMostSlots = 32;
constexpr uint64_t kKvSeed = 7;

/// An engine to measure.
struct EngineKind {
  std::string lora = "off";
  int64_t rank = 0;                   // 0: without LoRA
  bool attention = true, mlp = true;  // modules that slots have room for
  ProductOrder order = ProductOrder::exact;
  sim::LoraDtype lora_dtype = sim::LoraDtype::of_model;
  /// Later engines are measured beside one of this kind.
  bool is_first() const { return lora == "off" && order == ProductOrder::exact; }
};

struct WallClock final : sim::Clock {
  int64_t now_ns() override {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  void wait_until(int64_t) override {}
};
WallClock wall_clock;
int64_t now_ns() { return wall_clock.now_ns(); }

struct TimedEvents {
  TimedEvents() {
    LORATORY_CUDA_CHECK(cudaEventCreate(&begin));
    LORATORY_CUDA_CHECK(cudaEventCreate(&end));
  }
  ~TimedEvents() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  TimedEvents(const TimedEvents&) = delete;
  TimedEvents& operator=(const TimedEvents&) = delete;
  cudaEvent_t begin = nullptr, end = nullptr;
};

// Microseconds of one of `count` steps in a row.
double run_us(CUstream_st* stream, int count, const std::function<void()>& step) {
  const TimedEvents events;
  LORATORY_CUDA_CHECK(cudaEventRecord(events.begin, stream));
  for (int i = 0; i < count; ++i) step();
  LORATORY_CUDA_CHECK(cudaEventRecord(events.end, stream));
  LORATORY_CUDA_CHECK(cudaEventSynchronize(events.end));
  float ms = 0;
  LORATORY_CUDA_CHECK(cudaEventElapsedTime(&ms, events.begin, events.end));
  return 1e3 * double{ms} / count;
}

struct Timed {
  CUstream_st* stream;
  std::function<void()> step;
};
// Of one step of each. Their runs take turns, in the other order each time.
std::vector<double> medians_us(const std::vector<Timed>& timed, int repeats) {
  std::vector<int> counts;
  for (const auto& [stream, step] : timed) {
    counts.push_back(int(std::clamp(kRunUs / run_us(stream, 1, step), 1.0, double(kMostSteps))));
  }
  std::vector<size_t> order(timed.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<std::vector<double>> times(timed.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const size_t i : order) {
      times[i].push_back(run_us(timed[i].stream, counts[i], timed[i].step));
    }
    std::ranges::reverse(order);
  }
  std::vector<double> out;
  for (std::vector<double>& of_one : times) {
    std::ranges::sort(of_one);
    const auto middle = size_t(repeats) / 2;  // of an even number
    out.push_back((of_one[middle - 1] + of_one[middle]) / 2);
  }
  return out;
}
double median_us(CUstream_st* stream, std::function<void()> step) {
  return medians_us({{stream, std::move(step)}}, kRepeats).front();
}

// --- steps ------------------------------------------------------------------------------------

struct Case {
  std::string kind;  // "decode", "prefill"
  int32_t num_rows = 1, num_tokens = 1, context = 1;
  int32_t num_adapters = 0;
};

// A step has no more adapters than rows. `context`: tokens of a row in decode.
std::vector<Case> cases(int32_t context, int32_t num_adapters) {
  std::vector<Case> out;
  for (const int32_t rows : kBatches) {
    if (num_adapters <= rows) out.push_back({"decode", rows, 1, context, num_adapters});
  }
  for (const int32_t tokens : kPrompts) {
    if (num_adapters <= 1) out.push_back({"prefill", 1, tokens, tokens, num_adapters});
  }
  return out;
}

// Rows of `context` tokens, the last `num_tokens` of them in this step; row i has slot i mod
// adapters.
class Batch {
 public:
  Batch(const Case& c, const ModelConfig& model, uint32_t block_size) {
    const auto blocks = uint32_t((c.context + int32_t(block_size) - 1) / int32_t(block_size));
    tables_.resize(size_t(c.num_rows));
    batch_.row_starts.push_back(0);
    for (int32_t row = 0; row < c.num_rows; ++row) {
      auto& table = tables_[size_t(row)];
      table.resize(blocks);
      std::iota(table.begin(), table.end(), 1 + uint32_t(row) * blocks);
      for (int32_t i = 0; i < c.num_tokens; ++i) {
        batch_.token_ids.push_back(int32_t((row * 7919 + i * 31) % model.vocab));
        batch_.positions.push_back(c.context - c.num_tokens + i);
        batch_.token_rows.push_back(row);
        batch_.token_slots.push_back(c.num_adapters == 0 ? -1 : row % c.num_adapters);
      }
      batch_.contexts.push_back(c.context);
      batch_.row_starts.push_back(int32_t(batch_.token_ids.size()));
      batch_.blocks.emplace_back(table);
      SampledRow last;
      last.token = int32_t(batch_.token_ids.size()) - 1;
      last.how = sampling_row({}, c.context);
      batch_.sampled.push_back(last);
    }
    batch_.max_row_tokens = c.num_tokens;
    batch_.num_adapters = c.num_adapters;
  }
  StepBatch copy() const { return batch_; }

 private:
  std::vector<std::vector<sim::BlockId>> tables_;
  StepBatch batch_;
};

// --- the floor --------------------------------------------------------------------------------

// Of one step: what it must read.
std::vector<bench::ReadSpan> bytes_of(const Case& c, GpuExecutor& engine,
                                      const DeviceModel& model) {
  const ModelConfig& m = model.config();
  const int64_t first = m.tied_embeddings ? 0 : model.layout().layers[0].input_norm;
  std::vector<bench::ReadSpan> out{
      {model.vector(first, 1).data, (model.bytes() - first) / 16 * 16}};
  const int64_t kv =
      int64_t{c.num_rows} * c.context * m.num_layers * 2 * m.num_kv_heads * m.head_dim * 2;
  out.push_back({engine.pass().kv().layer(0).k, std::min(kv, engine.pass().kv().bytes())});
  if (c.num_adapters > 0) {
    const DeviceSlots& slots = *engine.slots();
    out.push_back({slots.a(0).data, c.num_adapters * slots.layout().bytes()});
  }
  return out;
}

// --- the rate of a prefill -------------------------------------------------------------------

// Of a prompt from its first token on: products of all tokens, causal attention, logits of one.
double flops_of(const Case& c, const ModelConfig& m) {
  const double q = double(m.num_heads * m.head_dim), kv = double(m.num_kv_heads * m.head_dim);
  const double hidden = double(m.hidden), tokens = c.num_tokens;
  const double weights = 2 * q * hidden + 2 * kv * hidden + 3 * hidden * double(m.intermediate);
  const double attention = 2 * q * tokens * tokens;  // of scores and values, half of the square
  return double(m.num_layers) * (2 * tokens * weights + attention) + 2 * hidden * double(m.vocab);
}

// TFLOP/s of gate|up of the longest prompt.
double product_tflops(const DeviceModel& model, Products& products) {
  const ModelConfig& m = model.config();
  const int64_t tokens = kPrompts[1], rows = 2 * m.intermediate;
  const DeviceBuffer x = make_device_buffer(size_t(tokens * m.hidden * 2));
  const DeviceBuffer y = make_device_buffer(size_t(tokens * rows * 2));
  fill_random(Dtype::bf16, x.get(), tokens * m.hidden, 1, kKvSeed, nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  // The shape of the engine's, so that its plan serves.
  const BaseProduct product(products,
                            model.matrix(model.layout().layers[0].gate_up, rows, m.hidden), nullptr,
                            Dtype::bf16, tokens, /*feeds_silu_mul=*/true);
  const auto launch = [&] {
    product.launch(device_view(Dtype::bf16, x.get(), {tokens, m.hidden}),
                   device_view(Dtype::bf16, y.get(), {tokens, rows}), nullptr);
  };
  return 2e-6 * double(tokens * rows) * double(m.hidden) / median_us(nullptr, launch);
}

// --- results ----------------------------------------------------------------------------------

struct StepTimes {
  double us = 0, host_us = 0, floor_us = 0;
  double base_us = 0;  // 0: not measured
  bool has_own_base = false;
  int64_t read_bytes = 0, adapter_bytes = 0;
  // 0: there is none.
  double limit_us() const {
    if (base_us == 0 || adapter_bytes == 0) return 0;
    return 1.10 * (base_us + double(adapter_bytes) * floor_us / double(read_bytes));
  }
};

constexpr std::string_view kTableHead =
    "| model | step | size | order | LoRA | adapters | us | base us | of limit | floor us | "
    "of floor | host us | tokens/s |\n"
    "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";

class Results {
 public:
  void add(const std::string& model, const std::string& lora, ProductOrder order, const Case& c,
           const StepTimes& t) {
    const double limit = t.limit_us();
    fmt::print(
        "| {} | {} | {} | {} | {} | {} | {:.0f} | {} | {} | {:.0f} | {:.2f} | {:.0f} | {:.1f} |\n",
        model, c.kind, c.kind == "decode" ? c.num_rows : c.num_tokens, name(order), lora,
        c.num_adapters, t.us, t.base_us > 0 ? fmt::format("{:.0f}", t.base_us) : "",
        limit > 0 ? fmt::format("{:.3f}", t.us / limit) : "", t.floor_us, t.us / t.floor_us,
        t.host_us, tokens_per_s(c, t.us));
    std::fflush(stdout);
    rows_ += fmt::format(
        "{}\n  {{\"model\": \"{}\", \"step\": \"{}\", \"rows\": {}, \"tokens\": {}, \"context\": "
        "{}, \"order\": \"{}\", \"lora\": \"{}\", \"adapters\": {}, \"step_us\": {:.1f}, "
        "\"host_us\": {:.1f}, \"read_bytes\": {}, \"floor_us\": {:.1f}, \"tokens_per_s\": {:.1f}",
        rows_.empty() ? "" : ",", model, c.kind, c.num_rows, c.num_rows * c.num_tokens, c.context,
        name(order), lora, c.num_adapters, t.us, t.host_us, t.read_bytes, t.floor_us,
        tokens_per_s(c, t.us));
    if (t.base_us > 0) {
      rows_ += fmt::format(", \"base_us\": {:.1f}, \"base\": \"{}\"", t.base_us,
                           t.has_own_base ? "the same engine" : "an engine without LoRA");
    }
    if (limit > 0) rows_ += fmt::format(", \"limit_us\": {:.1f}", limit);
    rows_ += "}";
  }
  /// Of prefills without LoRA: tokens and TFLOP/s.
  void add_rates(const std::string& model, double product_tflops,
                 const std::vector<std::pair<int32_t, double>>& prefills) {
    for (const auto& [tokens, tflops] : prefills) {
      fmt::print("rate: {}, prefill of {}: {:.0f} TFLOP/s, {:.1f} % of cuBLASLt's {:.0f}\n", model,
                 tokens, tflops, 100 * tflops / product_tflops, product_tflops);
      rates_ += fmt::format(
          "{}\n  {{\"model\": \"{}\", \"tokens\": {}, \"tflops\": {:.1f}, \"cublaslt_tflops\": "
          "{:.1f}}}",
          rates_.empty() ? "" : ",", model, tokens, tflops, product_tflops);
    }
  }
  /// Whether steps with LoRA enabled and not used had the bits of those without.
  void add_bits(const std::string& model, const std::string& lora, const Case& c,
                int64_t num_logits, int64_t num_different) {
    fmt::print("bits: {}, {} of {} x {}, LoRA {}: {} logits, {} differ\n", model, c.kind,
               c.num_rows, c.num_tokens, lora, num_logits, num_different);
    bits_ += fmt::format(
        "{}\n  {{\"model\": \"{}\", \"step\": \"{}\", \"rows\": {}, \"lora\": \"{}\", \"logits\": "
        "{}, "
        "\"different\": {}}}",
        bits_.empty() ? "" : ",", model, c.kind, c.num_rows, lora, num_logits, num_different);
    all_bits_equal_ = all_bits_equal_ && num_different == 0;
  }
  bool all_bits_equal() const { return all_bits_equal_; }
  std::string json(const std::string& gpu) const {
    return fmt::format(
        "{{\"gpu\": \"{}\", \"steps\": [{}\n],\n\"rates\": [{}\n],\n\"bits\": "
        "[{}\n],\n\"cold_loads\": "
        "[{}\n]}}\n",
        gpu, rows_, rates_, bits_, cold_loads_);
  }
  void add_cold_loads(const std::string& rows) {
    cold_loads_ += (cold_loads_.empty() ? "" : ",") + rows;
  }

 private:
  static double tokens_per_s(const Case& c, double us) {
    return 1e6 * c.num_rows * c.num_tokens / us;
  }
  std::string rows_, rates_, bits_, cold_loads_;
  bool all_bits_equal_ = true;
};

void profile(GpuExecutor& engine, StepBatch step) {
  LORATORY_CUDA_CHECK(cudaProfilerStart());
  engine.enqueue(step);
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(engine.stream()));
  LORATORY_CUDA_CHECK(cudaProfilerStop());
}

int64_t bytes_in(const std::vector<bench::ReadSpan>& spans) {
  int64_t out = 0;
  for (const bench::ReadSpan& span : spans) out += span.num_bytes;
  return out;
}

// `base`: what takes the step without adapters, or null.
StepTimes time_step(const Case& c, const DeviceModel& model, GpuExecutor& engine,
                    GpuExecutor* base) {
  const Batch batch(c, model.config(), 16);
  Case without = c;
  without.num_adapters = 0;
  const Batch base_batch(without, model.config(), 16);
  profile(engine, batch.copy());
  int64_t host_ns = 0, num_steps = 0;
  const auto step = [&] {
    StepBatch copy = batch.copy();
    const int64_t begin = now_ns();
    engine.enqueue(copy);
    host_ns += now_ns() - begin;
    ++num_steps;
  };
  const auto base_step = [&] {
    StepBatch copy = base_batch.copy();
    base->enqueue(copy);
  };
  std::vector<Timed> timed{{engine.stream(), step}};
  if (base != nullptr) timed.push_back({base->stream(), base_step});
  const bool are_equals = base != nullptr && c.num_adapters == 0;
  const std::vector<double> us = medians_us(timed, are_equals ? kRepeatsOfEquals : kRepeats);
  const auto spans = bytes_of(c, engine, model);
  const double floor_us =
      median_us(engine.stream(), [&] { bench::launch_read_node(spans, engine.stream()); });
  return {
      .us = us[0],
      .host_us = double(host_ns) / 1e3 / double(num_steps),
      .floor_us = floor_us,
      .base_us = base != nullptr ? us[1] : 0,
      .has_own_base = base == &engine,
      .read_bytes = bytes_in(spans),
      .adapter_bytes = c.num_adapters > 0 ? c.num_adapters * engine.slots()->layout().bytes() : 0};
}

// --- engines ----------------------------------------------------------------------------------

sim::SchedulerConfig scheduler(int32_t num_slots, int32_t context) {
  sim::SchedulerConfig c;
  c.max_num_seqs = 128;
  c.max_num_batched_tokens = 8192;
  c.max_model_len = 8192 + 16;
  c.num_blocks = 1 + 128 * ((context + 15) / 16);
  c.residency.max_loras = num_slots;
  c.residency.max_cpu_loras = num_slots;
  return c;
}

// Keys and values as a prompt would leave them: timings with zeros flatter.
void fill_kv(const GpuExecutor& engine, Dtype dtype) {
  const DeviceKv& kv = engine.pass().kv();
  fill_random(dtype, kv.layer(0).k, kv.bytes() / int64_t(size_bytes(dtype)), 1, kKvSeed, nullptr);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
}

// Of one step, from the same keys and values every time.
std::vector<float> logits_of(GpuExecutor& engine, const DeviceModel& model, const Case& c) {
  fill_kv(engine, model.dtype());
  const Batch batch(c, model.config(), 16);  // the step's tables lie in it
  StepBatch step = batch.copy();
  std::vector<float> out(size_t(c.num_rows * model.config().vocab));
  engine.enqueue(step);
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(engine.stream()));
  LORATORY_CUDA_CHECK(cudaMemcpy(out.data(), engine.pass().logits(), out.size() * sizeof(float),
                                 cudaMemcpyDeviceToHost));
  return out;
}

// What engines allocate beside the weights, which they share.
int64_t own_bytes(const EngineMemory& memory) {
  int64_t out = 0;
  for (size_t i = 1; i < memory.lines.size(); ++i) out += memory.lines[i].planned_bytes;
  return out;
}
struct GpuMemory {
  GpuMemory() { LORATORY_CUDA_CHECK(cudaMemGetInfo(&free, &total)); }
  size_t free = 0, total = 0;
};
bool fits_now(int64_t bytes) { return bytes <= int64_t(GpuMemory().free); }

// The engines of a model, one after the other, beside that without LoRA where both fit.
class ModelBench {
 public:
  ModelBench(std::string name, const DeviceModel& model, int32_t context, Results& results)
      : name_(std::move(name)), model_(model), context_(context), results_(results) {}

  void run(const EngineKind& kind, Products& products) {
    const int64_t begin = now_ns();
    const EngineMemory memory = planned(kind);
    if (!fits_now(own_bytes(memory))) base_.reset();
    GpuExecutor engine(model_, products, config_, options(kind), wall_clock);
    fmt::print("\n{}\n", memory_table(memory, engine.allocated()));
    fill_kv(engine, model_.dtype());
    for (int32_t i = 0; kind.rank > 0 && i < kMostSlots; ++i) {
      engine.slots()->fill_random_slot(i, kind.rank, uint64_t(i));
    }
    measure_all(kind, engine);
    fmt::print("{} {}: {:.1f} s\n", name_, kind.lora, double(now_ns() - begin) / 1e9);
  }
  /// From now on engines are measured beside one without LoRA, if there is memory for two.
  void keep_base(Products& products) {
    if (!fits_now(2 * own_bytes(planned({})))) return;
    base_ = std::make_unique<GpuExecutor>(model_, products, config_, options({}), wall_clock);
    fill_kv(*base_, model_.dtype());
  }
  /// Behind the engine without LoRA.
  void rate_prefills(Products& fast) {
    results_.add_rates(name_, product_tflops(model_, fast), prefills_);
  }

 private:
  EngineMemory planned(const EngineKind& kind) const {
    return plan_engine_memory(model_.config(), config_, options(kind), 0,
                              int64_t(GpuMemory().total), 1);
  }
  EngineOptions options(const EngineKind& kind) const {
    EngineOptions out;
    out.dtype = model_.dtype();
    out.lora = kind.rank > 0;
    out.lora_dtype = kind.lora_dtype;
    out.modules = {.attention = kind.attention,
                   .mlp = kind.mlp,
                   .experts = kind.mlp,
                   .embed_tokens = false,
                   .lm_head = false};
    out.max_lora_rank = std::max<int64_t>(1, kind.rank);
    out.max_graph_rows = 128;
    return out;
  }

  void measure_all(const EngineKind& kind, GpuExecutor& engine) {
    const auto all = [&](const std::string& lora, int32_t num_adapters) {
      for (const Case& c : cases(context_, num_adapters)) {
        const double us = measure(kind, lora, c, engine);
        if (c.kind == "prefill" && kind.is_first()) {
          prefills_.emplace_back(c.num_tokens, 1e-6 * flops_of(c, model_.config()) / us);
        }
      }
    };
    if (kind.rank == 0) {
      all(kind.lora, 0);
      if (kind.is_first()) keep_bits(engine);
    } else if (kind.attention && kind.mlp) {
      all(kind.lora + " unused", 0);
      compare_bits(kind, engine);
      for (const int32_t num_adapters : {1, 8, 32}) all(kind.lora, num_adapters);
    } else {  // a row of TokenSpeed's table
      measure(kind, kind.lora, cases(context_, 1).front(), engine);
    }
  }
  double measure(const EngineKind& kind, const std::string& lora, const Case& c,
                 GpuExecutor& engine) {
    GpuExecutor* const base = base_ == nullptr && c.num_adapters > 0 ? &engine : base_.get();
    const StepTimes times = time_step(c, model_, engine, base);
    results_.add(name_, lora, kind.order, c, times);
    return times.us;
  }

  std::vector<Case> bit_cases() const {
    return {{"decode", 1, 1, context_, 0},
            {"decode", 32, 1, context_, 0},
            {"prefill", 1, kPrompts[0], kPrompts[0], 0}};
  }
  void keep_bits(GpuExecutor& engine) {
    for (const Case& c : bit_cases()) bits_.push_back(logits_of(engine, model_, c));
  }
  void compare_bits(const EngineKind& kind, GpuExecutor& engine) {
    for (size_t i = 0; i < bits_.size(); ++i) {
      const Case c = bit_cases()[i];
      const std::vector<float> got = logits_of(engine, model_, c);
      int64_t num_different = 0;
      for (size_t j = 0; j < got.size(); ++j) {
        num_different += std::bit_cast<uint32_t>(got[j]) != std::bit_cast<uint32_t>(bits_[i][j]);
      }
      results_.add_bits(name_, kind.lora + " unused", c, int64_t(got.size()), num_different);
    }
  }

  const std::string name_;
  const DeviceModel& model_;
  const int32_t context_;
  Results& results_;
  std::vector<std::pair<int32_t, double>> prefills_;  // tokens, TFLOP/s
  const sim::SchedulerConfig config_ =
      bounded_by_model(scheduler(kMostSlots, context_), model_.config());
  // Without LoRA. Null from the first engine on that did not fit beside it.
  std::unique_ptr<GpuExecutor> base_;
  std::vector<std::vector<float>> bits_;  // of bit_cases(), without LoRA
};

ModelConfig config_of(const std::string& name) {
  if (name.ends_with(".json")) return reference::read_model_config(name, "a config.json");
  const auto presets = reference::model_presets();
  const auto it = std::ranges::find(presets, name, &reference::ModelPreset::name);
  if (it == presets.end()) throw InputError(name, "is no preset of a model");
  return reference::parse_model_config(it->config, name);
}

// What the command line asks for.
struct Selection {
  std::vector<std::string> models;
  std::vector<std::string> only;  // of EngineKind::lora, and "fast"; empty: all
  std::string plans;              // file of the products' plans; empty: none
  int32_t context = 1024;         // tokens of a row in decode
  bool steps = true, cold_loads = true;

  bool measures(const std::string& lora) const {
    return only.empty() || std::ranges::find(only, lora) != only.end();
  }
};

void run_model(const std::string& name, const Selection& selection, Results& results) {
  const ModelConfig config = config_of(name);
  const DeviceModel model = DeviceModel::random(config, Dtype::bf16, 1);
  ModelBench bench(name, model, selection.context, results);
  Products exact({.launches = LaunchOrder::overlaps_previous, .cache_file = selection.plans});
  std::vector<EngineKind> kinds{
      {}, {.lora = "off again"}, {.lora = "r16", .rank = 16}, {.lora = "r64", .rank = 64}};
  if (config.num_experts == 0) {
    kinds.push_back({.lora = "r64 fp8", .rank = 64, .lora_dtype = sim::LoraDtype::fp8});
  }
  kinds.push_back({.lora = "r64 attention", .rank = 64, .mlp = false});
  kinds.push_back({.lora = "r64 mlp", .rank = 64, .attention = false});
  for (const std::string& lora : selection.only) {
    if (lora == "fast" || std::ranges::find(kinds, lora, &EngineKind::lora) != kinds.end())
      continue;
    throw InputError("--only", fmt::format("{} is no engine of {}", lora, name));
  }
  const bool is_off_alone = selection.only == std::vector<std::string>{"off"};
  for (const EngineKind& kind : kinds) {
    if (selection.measures(kind.lora)) bench.run(kind, exact);
    if (kind.is_first() && !is_off_alone) bench.keep_base(exact);
  }
  exact.save();
  for (const std::string& note : exact.notes()) fmt::print("{}\n", note);
  const bool rates_prefills = selection.measures("off") && config.num_experts == 0;
  if (!rates_prefills && !selection.measures("fast")) return;
  Products fast({.order = ProductOrder::fast, .launches = LaunchOrder::overlaps_previous});
  if (rates_prefills) bench.rate_prefills(fast);
  if (selection.measures("fast")) bench.run({.order = ProductOrder::fast}, fast);
}

void run_cold_loads(const std::string& name, Results& results) {
  const DeviceModel model = DeviceModel::random(config_of(name), Dtype::bf16, 1);
  Products products({.launches = LaunchOrder::overlaps_previous});
  const auto folder = std::filesystem::temp_directory_path() / "engine_bench_adapters";
  for (const int64_t rank : {16, 64}) {
    const int64_t begin = now_ns();
    results.add_cold_loads(measure_cold_loads(name, model, products, rank, folder.string()));
    fmt::print("{} rank {}, cold loads: {:.1f} s\n", name, rank, double(now_ns() - begin) / 1e9);
  }
}

int32_t context_from(std::string_view text) {
  const auto context = to_number<int32_t>(text);
  if (context && *context >= 1 && *context <= kPrompts[1]) return *context;
  throw InputError("--context", fmt::format("\"{}\" is not 1 to {} tokens", text, kPrompts[1]));
}

Selection selection(const std::vector<std::string>& arguments) {
  constexpr std::string_view kOnly = "--only=", kPlans = "--plans=", kContext = "--context=";
  Selection out;
  for (const std::string& argument : arguments) {
    if (argument == "--cold-loads") {
      out.steps = false;
    } else if (argument.starts_with(kOnly)) {
      for (const std::string_view lora :
           split(std::string_view(argument).substr(kOnly.size()), ',')) {
        out.only.emplace_back(lora);
      }
      out.cold_loads = false;
    } else if (argument.starts_with(kPlans)) {
      out.plans = argument.substr(kPlans.size());
    } else if (argument.starts_with(kContext)) {
      out.context = context_from(std::string_view(argument).substr(kContext.size()));
    } else {
      out.models.push_back(argument);
    }
  }
  if (out.models.empty()) out.models = {"Llama-3.1-8B", "Qwen3-8B"};
  return out;
}

bool run(const std::string& file, const Selection& selection) {
  cudaDeviceProp properties{};
  LORATORY_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  fmt::print("{}\n\n{}", properties.name, kTableHead);
  Results results;
  const auto save = [&] { std::ofstream(file) << results.json(properties.name); };
  for (const std::string& name : selection.models) {
    if (selection.steps) run_model(name, selection, results);
    save();  // a machine may be taken away
    if (selection.cold_loads) run_cold_loads(name, results);
    save();
  }
  return results.all_bits_equal();
}

}  // namespace
}  // namespace loratory::gpu

int main(int argc, char** argv) {
  try {
    const char* const file = argc > 1 ? argv[1] : "engine_bench.json";
    const std::vector<std::string> arguments(argv + std::min(2, argc), argv + argc);
    return loratory::gpu::run(file, loratory::gpu::selection(arguments)) ? 0 : 1;
  } catch (const loratory::InputError& error) {
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return 1;
  }
}
