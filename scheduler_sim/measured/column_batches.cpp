#include "scheduler_sim/measured/column_batches.hpp"

#include <algorithm>
#include <cmath>

#include "scheduler_sim/workload/sharegpt.hpp"

namespace loratory::sim {
namespace {

constexpr uint64_t kBatches = 256;
constexpr uint64_t kDraws = 4096;  // of lengths: their means within 2 %
constexpr double kTenancy = 2.5;   // mean outputs: the longest of the requests of an adapter
constexpr double kKvBound = 0.85;  // of the KV cache: what runs then is what fits

struct Columns {
  double tpot_s, seconds;
  double running, waiting;
  double requests_rps, prompts_tps;
  double num_adapters;
  double context;  // mean of a running request's
};

double adapters_among(const MeasuredRun& run, double running) {
  double sum = 0;
  for (const AdapterGroup& group : run.adapters) {
    const double share = group.rate_rps / run.offered_rps();
    sum += double(group.count) * (1 - std::exp(-running * share));
  }
  return std::min(sum, double(run.max_loras));
}

// The mean of a queue that begins empty and grows to what the client can have in flight.
double mean_queue(const MeasuredRun& run, double requests_rps, double seconds) {
  const double growth = std::max(0.0, run.offered_rps() - requests_rps);
  const auto limit = double(run.client.max_in_flight);
  const double full_s = limit > 0 && growth > 0 ? limit / growth : seconds;
  const double grown =
      full_s < seconds ? limit * (1 - full_s / (2 * seconds)) : growth * seconds / 2;
  return std::max(grown, run.measured.mean_ttft_ms / 1e3 * requests_rps);
}

// Of requests at a random moment: long outputs are found running in proportion to their length.
double mean_context(const ShareGptLengths& lengths) {
  const RandomStream draws(0, Purpose::output_tokens);
  double context = 0, tokens = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const auto drawn = lengths.draw(draws, i);
    const double output = drawn.output_tokens;
    context += output * (drawn.prompt_tokens + output / 2);
    tokens += output;
  }
  return context / tokens;
}

Columns columns_of(const MeasuredRun& run, const ShareGptLengths& lengths) {
  const RunMeasures& m = run.measured;
  Columns c{};
  c.context = mean_context(lengths);
  c.seconds = run.client.duration_s;
  c.tpot_s = m.mean_tpot_ms / 1e3;
  c.running = m.output_tps * c.tpot_s;
  c.requests_rps = m.completed / c.seconds;
  c.prompts_tps = m.input_tps;
  c.num_adapters = adapters_among(run, c.running);
  const bool waits_for_slots = run.num_adapters() > run.max_loras;
  c.waiting = waits_for_slots ? mean_queue(run, c.requests_rps, c.seconds) - c.running : 0;
  c.waiting = std::max(0.0, c.waiting);
  return c;
}

bool is_told(const MeasuredRun& run, const Columns& c, const EngineSpec& engine) {
  if (run.client.duration_s == 0 || run.offered_rps() == 0) return false;  // a closed loop
  if (!std::isfinite(c.running + c.requests_rps + c.prompts_tps) || c.running <= 0) return false;
  if (run.num_adapters() <= run.max_loras) return true;
  const MemoryPlan memory = memory_of(engine, {int32_t(run.max_loras), int32_t(run.max_cpu_loras)});
  const double kv_tokens = double(memory.split.kv_blocks * engine.scheduler.block_size);
  return run.max_loras <= kMostCycledSlots && c.running * c.context < kKvBound * kv_tokens;
}

// So many prompts of a Poisson draw, by inversion.
int prompts_in_step(double mean, double unit) {
  double probability = std::exp(-mean), below = probability;
  int count = 0;
  while (unit > below && count < 1000) {
    ++count;
    probability *= mean / count;
    below += probability;
  }
  return count;
}

BatchShape batch_of(const MeasuredRun& run, const Columns& c, const ShareGptLengths& lengths,
                    int64_t most_tokens, uint64_t index) {
  const RandomStream prompts(0, Purpose::prompt_tokens), counts(0, Purpose::arrivals);
  const double mean_prompt = std::max(1.0, c.prompts_tps / c.requests_rps);
  BatchShape shape;
  const auto decodes = int64_t(std::llround(c.running));
  const int num_prompts = prompts_in_step(c.requests_rps * c.tpot_s, counts.unit(index));
  double tokens = 0, pairs = 0;
  for (int i = 0; i < num_prompts; ++i) {
    const double drawn = lengths.draw(prompts, index * 64 + uint64_t(i)).prompt_tokens;
    const double prompt = drawn * mean_prompt / run.mean_prompt_tokens;
    tokens += prompt;
    pairs += prompt * prompt / 2;
  }
  const double room = std::max(0.0, double(most_tokens - decodes));
  const double kept = tokens > room ? room / tokens : 1;
  shape.num_prefill_tokens = int64_t(tokens * kept);
  shape.prefill_pairs = int64_t(pairs * kept);
  shape.prefill_context_tokens = shape.num_prefill_tokens;
  shape.num_seqs = decodes + int64_t(std::llround(num_prompts * kept));
  shape.num_sampled = shape.num_seqs;
  shape.num_tokens = std::max<int64_t>(1, decodes + shape.num_prefill_tokens);
  shape.decode_context_tokens = int64_t(c.running * c.context);
  shape.num_adapters = int64_t(std::llround(c.num_adapters));
  shape.num_lora_tokens = shape.num_adapters > 0 ? shape.num_tokens : 0;
  shape.num_waiting_seen = int64_t(c.waiting);
  return shape;
}

// Every step in which a request begins or ends reports another set, and they pile up.
void add_metrics(SimulatedRun& out, const MeasuredRun& run, const Columns& c) {
  const double changes = 1 - std::exp(-2 * c.requests_rps * c.tpot_s);
  out.mean_adapter_sets = run.num_adapters() > 0 ? c.seconds / c.tpot_s * changes / 2 : 0;
  const bool has_queue = c.waiting > double(run.num_adapters());
  const double names = c.num_adapters + (has_queue ? double(run.num_adapters()) : 0);
  out.mean_adapter_names = out.mean_adapter_sets * names;
}

}  // namespace

SimulatedRun column_batches(const MeasuredRun& run, const EngineSpec& engine,
                            const ServerTerms& server) {
  SimulatedRun out;
  const ShareGptLengths lengths(run.mean_prompt_tokens, run.mean_output_tokens);
  const Columns c = columns_of(run, lengths);
  if (!is_told(run, c, engine)) return out;
  const auto model = engine.make_step_time({int32_t(run.max_loras), int32_t(run.max_cpu_loras)});
  double sum_ns = 0;
  for (uint64_t i = 0; i < kBatches; ++i) {
    const BatchShape shape = batch_of(run, c, lengths, engine.scheduler.max_num_batched_tokens, i);
    out.steps.push_back({shape, model->step_ns(shape)});
    sum_ns += double(out.steps.back().step_ns);
  }
  const bool cycles = run.num_adapters() > run.max_loras;
  const double copies = cycles ? double(run.max_loras) / (kTenancy * run.mean_output_tokens) : 0;
  out.copy_gap_ns = copies * double(engine.loads.h2d_latency_ns);
  out.mean_gap_ns = sum_ns / double(kBatches) + out.copy_gap_ns;
  add_metrics(out, run, c);
  out.measures.mean_tpot_ms = out.mean_gap_ns / 1e6;
  // A request waits for the rest of a step, and for its own.
  out.measures.mean_ttft_ms = 1.5 * out.measures.mean_tpot_ms + server.frontend_ms;
  const double poll_s =
      (server.metrics_ms + (server.metrics_us_per_adapter_set * out.mean_adapter_sets +
                            server.metrics_us_per_name * out.mean_adapter_names) /
                               1e3) /
      1e3;
  const double interval_s = run.client.poll_interval_s;
  const double longer = interval_s > 0 ? poll_s / interval_s : 0;
  out.measures.mean_itl_ms = out.measures.mean_tpot_ms * (1 + longer);
  return out;
}

}  // namespace loratory::sim
