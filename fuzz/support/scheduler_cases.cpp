#include "fuzz/support/scheduler_cases.hpp"

namespace loratory::sim {

SchedulerConfig random_scheduler_config(Draw& draw) {
  constexpr int64_t kOff = kNever;
  SchedulerConfig c;
  c.residency.max_loras = int32_t(draw.between(1, 4));
  c.residency.max_cpu_loras = c.residency.max_loras + int32_t(draw(4));
  c.residency.num_load_workers = int32_t(draw.between(1, 2));
  c.residency.gpu_eviction =
      draw.one_of({EvictionPolicy::lru, EvictionPolicy::fifo, EvictionPolicy::lfu});
  c.residency.cpu_eviction = draw.one_of(
      {CpuEviction::idle_first, CpuEviction::idle_first, CpuEviction::gpu_last, CpuEviction::lru});
  c.residency.prefetch = !draw.one_in(4);
  c.block_size = uint32_t(draw.between(1, 4));
  c.num_blocks = uint32_t(1 + (20 + c.block_size) / c.block_size + draw.one_of({0, 0, 1, 5, 60}));
  c.max_model_len = 20;
  c.max_num_seqs = uint32_t(draw.one_of({1, 2, 3, 8}));
  c.max_num_batched_tokens = c.max_num_seqs + uint32_t(draw.one_of({0, 1, 5, 30}));
  if (draw.one_in(5)) {
    c.chunked_prefill = false;
    c.max_num_batched_tokens += c.max_model_len;
  } else if (draw.one_in(3)) {
    c.long_prefill_threshold = uint32_t(draw.between(1, 5));
  }
  c.load_mode = draw.one_of({LoadMode::overlap, LoadMode::blocking});
  c.pack = draw.one_of({PackMode::off, PackMode::prefill_only, PackMode::on});
  c.admission_order = draw.one_in(3) ? AdmissionOrder::packed : AdmissionOrder::arrival;
  c.prefix_cache = !draw.one_in(5);
  c.use_priorities = !draw.one_in(4);
  c.n_starve = draw.one_of<int64_t>({0, 1, 2, 5, 64, kOff});
  c.t_starve_ns = draw.one_of<int64_t>({0, 1, 30, 1000, kOff, kOff});
  c.drain_factor = draw.one_of({0.0, 0.5, 1.0, 1.2, 2.0});
  return c;
}

RandomRequest random_request(Draw& draw, const SchedulerConfig& config, uint64_t id) {
  RandomRequest r;
  r.spec.id = id;
  r.spec.priority = int32_t(draw.between(-1, 1));
  r.spec.num_prompt_tokens = uint32_t(draw.between(1, 12));
  r.spec.max_new_tokens = uint32_t(draw.between(0, 8));
  const int64_t content = draw(3);
  if (content == 1) {
    for (uint32_t i = 0; i < r.spec.num_prompt_tokens; ++i) r.tokens.push_back(int32_t(draw(2)));
  } else if (content == 2) {
    const uint32_t num_full = r.spec.num_prompt_tokens / config.block_size;
    const int64_t num_known = num_full == 0 ? 0 : draw(num_full + 1);
    for (int64_t i = 0; i < num_known; ++i) r.block_contents.push_back(uint64_t(draw(3)));
  }
  if (draw.one_in(4)) r.stops = {1};
  r.spec.disable_prefix_cache = draw.one_in(10);
  r.spec.prompt_logprobs = draw.one_in(10);
  return r;
}

}  // namespace loratory::sim
