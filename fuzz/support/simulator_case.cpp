#include "fuzz/support/simulator_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "fuzz/support/scheduler_cases.hpp"

namespace loratory::sim {

LinearTime::LinearTime(Draw& draw, int64_t quantum_ns) : quantum_ns_(quantum_ns) {
  for (int64_t& w : weights_) w = draw.one_in(2) ? 0 : draw(200);
}

int64_t LinearTime::step_ns(const BatchShape& s) const {
  const int64_t parts[] = {1,
                           s.num_seqs,
                           s.num_tokens,
                           s.decode_context_tokens,
                           s.prefill_pairs,
                           s.num_adapters,
                           s.lora_rank_tokens};
  int64_t sum = 1;
  for (size_t i = 0; i < std::size(parts); ++i) sum += weights_[i] * parts[i];
  return (sum + quantum_ns_ - 1) / quantum_ns_ * quantum_ns_;
}

namespace {

int64_t random_time(Draw& draw, const World& world) {
  return draw(20'000) / world.quantum_ns * world.quantum_ns;
}

void add_request(Draw& draw, World& world) {
  Trace& t = world.trace;
  TraceRequest r;
  r.arrival_ns = random_time(draw, world);
  if (draw.one_in(6)) r.cancel_ns = r.arrival_ns + random_time(draw, world);
  r.prompt_tokens = uint32_t(draw.between(1, 12));
  // Longer than the others now and then, so that there are stretches to jump over.
  r.output_tokens = uint32_t(draw.one_in(3) ? draw(60) : draw(8));
  r.priority = int32_t(draw.between(-1, 1));
  if (!draw.one_in(4)) r.adapter = AdapterIndex(draw(int64_t(t.adapters.size())));
  r.content_begin = t.block_ids.size();
  const auto num_blocks = (r.prompt_tokens + t.block_tokens - 1) / t.block_tokens;
  for (uint32_t i = 0; i < num_blocks; ++i) t.block_ids.push_back(uint64_t(draw(2)));
  r.content_count = num_blocks;
  t.requests.push_back(r);
}

}  // namespace

World random_world(Draw& draw, int num_requests) {
  World w;
  w.quantum_ns = draw.one_of<int64_t>({1, 1, 100, 1000});
  SchedulerConfig& s = w.config.scheduler;
  s = random_scheduler_config(draw);
  s.max_model_len = 72;
  s.num_blocks = 1 + (72 + s.block_size) / s.block_size + uint32_t(draw.one_of({0, 5, 20, 200}));
  if (!s.chunked_prefill) s.max_num_batched_tokens = 72 + s.max_num_seqs;
  if (s.t_starve_ns != kNever) s.t_starve_ns *= 20;
  w.config.keep_log = true;
  w.config.loads.num_workers = s.residency.num_load_workers;
  w.config.loads.share_disk = draw.one_in(2);
  w.config.loads.disk_latency_ns = draw(3) * 1000;
  w.config.loads.h2d_latency_ns = draw(3) * 500;
  w.config.loads.disk_bytes_per_s = w.config.loads.h2d_bytes_per_s = 1'000'000'000;  // 1 byte/ns
  for (int i = 0; i < 6; ++i) {
    w.trace.adapters.push_back({fmt::format("a{}", i), 8});
    w.config.adapter_bytes.push_back(draw.one_of<int64_t>({0, 1000, 1000, 3000}));
    w.config.adapter_ranks.push_back(uint32_t(draw.one_of({8, 16})));
  }
  w.trace.block_tokens = s.block_size * uint32_t(draw.between(1, 2));
  for (int i = 0; i < num_requests; ++i) add_request(draw, w);
  std::ranges::stable_sort(w.trace.requests, {}, &TraceRequest::arrival_ns);
  for (int64_t i = draw(6); i > 0; --i) {
    using Kind = ScheduledOp::Kind;
    const Kind kind = draw.one_of({Kind::pin, Kind::pin, Kind::unpin, Kind::unload});
    w.ops.push_back({random_time(draw, w), kind, uint64_t(draw(6))});
  }
  return w;
}

}  // namespace loratory::sim
