// What every generated workload must hold, whatever the laws: order, limits, block ids that fit the
// lengths, sessions that stay with their adapter, and the same bytes from the same options.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "scheduler_sim/workload/generate.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

struct Case {
  uint64_t seed;
  uint32_t num_requests;
  uint32_t num_adapters;

  std::string repro() const {
    return fmt::format("REPRO: Case{{{}, {}, {}}}", seed, num_requests, num_adapters);
  }
};

Case arbitrary_case() {
  return {*rc::gen::arbitrary<uint32_t>(), *rc::gen::inRange(0u, 300u), *rc::gen::inRange(0u, 40u)};
}

// Every choice but the sizes follows from the seed.
GenerateOptions make_options(const Case& c) {
  const RandomStream choice(c.seed, uint64_t{1});
  GenerateOptions options;
  options.seed = c.seed;
  options.num_adapters = c.num_adapters;
  options.source = c.num_adapters != 0 && choice.below(2, 0) ? ArrivalSource::per_adapter
                                                             : ArrivalSource::shared;
  options.arrivals = {0.1 + 50 * choice.unit(1), 0.2 + 5 * choice.unit(2) * choice.unit(2)};
  options.limit.num_requests = c.num_requests;
  if (choice.below(2, 3)) options.limit.duration_ns = 10'000'000'000;
  const PopularityKind kinds[] = {PopularityKind::uniform, PopularityKind::zipf,
                                  PopularityKind::power};
  options.popularity.kind = kinds[choice.below(3, 4)];
  options.popularity.exponent = 0.1 + 3 * choice.unit(5);
  if (choice.below(2, 6)) options.ranks = {8, 16, 64};
  options.rate_scale = 0.5 + choice.unit(7);
  options.prompt_tokens = LengthLaw::lognormal(300, 50 + 200 * choice.unit(8), 4000);
  options.output_tokens = LengthLaw::lognormal(100, 60, 500);
  if (choice.below(3, 9) != 0) {
    options.sessions = {.block_tokens = uint32_t(choice.below(40, 10)),
                        .mean_turns = 1 + 4 * choice.unit(11),
                        .mean_gap_s = 0.01 + 5 * choice.unit(12),
                        .num_system_prompts = uint32_t(choice.below(4, 13)),
                        .system_tokens = LengthLaw::lognormal(200, 100, 3000),
                        .max_prompt_tokens = 4096};
  }
  return options;
}

void classify(const GenerateOptions& options, const Trace& trace) {
  RC_CLASSIFY(trace.requests.empty(), "no requests");
  RC_CLASSIFY(trace.requests.size() < options.limit.num_requests, "ended by duration");
  RC_CLASSIFY(options.source == ArrivalSource::per_adapter, "a stream per adapter");
  RC_CLASSIFY(trace.adapters.empty(), "base model");
  RC_CLASSIFY(trace.block_tokens != 0, "block ids");
  RC_CLASSIFY(options.sessions.mean_turns > 1, "sessions");
}

// Empty when all is well.
std::string fault_of(const Trace& trace, const GenerateOptions& options) {
  int64_t last_ns = 0;
  AdapterIndex seen = 0;
  uint64_t content = 0;
  for (const TraceRequest& r : trace.requests) {
    if (r.arrival_ns < last_ns || r.arrival_ns >= options.limit.duration_ns) return "bad time";
    last_ns = r.arrival_ns;
    if (r.prompt_tokens < 1 || r.prompt_tokens > 4096) return "bad prompt";
    if (r.output_tokens < 1 || r.output_tokens > 500) return "bad output";
    if ((r.adapter == kBaseModel) != (options.num_adapters == 0)) return "base model or not";
    if (r.adapter != kBaseModel && r.adapter > seen) return "not in order of appearance";
    if (r.adapter != kBaseModel) seen = std::max(seen, r.adapter + 1);
    const uint32_t block = trace.block_tokens;
    if (r.content_count != (block == 0 ? 0 : (r.prompt_tokens + block - 1) / block)) {
      return "block ids do not fit the prompt";
    }
    if (block != 0 && r.content_begin != content) return "content is not contiguous";
    content += r.content_count;
  }
  if (content != trace.block_ids.size()) return "content of nobody";
  return seen == trace.adapters.size() ? "" : "adapters that nobody asks for";
}

// Content of a block = its id. A block id must always stand at the same depth, and what is before
// it must always be the same: otherwise two different prompts would share a prefix key.
bool ids_are_prefix_consistent(const Trace& trace) {
  std::map<uint64_t, std::pair<uint64_t, size_t>> before;  // id -> (previous id, depth)
  for (const TraceRequest& r : trace.requests) {
    const auto ids = trace.blocks_of(r);
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::pair here{i == 0 ? UINT64_MAX : ids[i - 1], i};
      if (before.try_emplace(ids[i], here).first->second != here) return false;
    }
  }
  return true;
}

bool sessions_keep_their_adapter(const Trace& trace) {
  std::map<uint32_t, AdapterIndex> adapter_of;
  for (const TraceRequest& r : trace.requests) {
    if (r.session == 0) continue;
    if (adapter_of.try_emplace(r.session, r.adapter).first->second != r.adapter) return false;
  }
  return true;
}

RC_GTEST_PROP(Workload, EveryTraceIsWellFormed, ()) {
  const Case c = arbitrary_case();
  const GenerateOptions options = make_options(c);
  const Trace trace = generate(options);
  classify(options, trace);
  const std::string fault = fault_of(trace, options);
  if (!fault.empty()) RC_FAIL(c.repro() + ": " + fault);
  if (!ids_are_prefix_consistent(trace)) RC_FAIL(c.repro() + ": a block id in two places");
  if (!sessions_keep_their_adapter(trace)) RC_FAIL(c.repro() + ": a session changed its adapter");
}

RC_GTEST_PROP(Workload, SameOptionsSameBytes, ()) {
  const Case c = arbitrary_case();
  const GenerateOptions options = make_options(c);
  if (generate(options).checksum != generate(options).checksum) RC_FAIL(c.repro());
}

// A shorter trace is the beginning of a longer one, so a quick look at a workload is honest.
RC_GTEST_PROP(Workload, FewerRequestsAreAPrefixOfMore, ()) {
  const Case c = arbitrary_case();
  GenerateOptions options = make_options(c);
  const Trace whole = generate(options);
  options.limit.num_requests /= 2;
  const Trace half = generate(options);
  RC_ASSERT(half.requests.size() <= whole.requests.size());
  for (size_t i = 0; i < half.requests.size(); ++i) {
    const TraceRequest &a = half.requests[i], &b = whole.requests[i];
    const bool same = a.arrival_ns == b.arrival_ns && a.adapter == b.adapter &&
                      a.session == b.session && a.prompt_tokens == b.prompt_tokens &&
                      std::ranges::equal(half.blocks_of(a), whole.blocks_of(b));
    if (!same) RC_FAIL(fmt::format("{}: request {} differs", c.repro(), i));
  }
}

RC_GTEST_PROP(Workload, QuantilesRiseWithTheirProbability, ()) {
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  const RandomStream draws(seed, uint64_t{1});
  std::vector<LengthLaw::Bin> bins;
  uint32_t tokens = 0;
  for (uint64_t i = 0; i < 1 + draws.below(20, 0); ++i) {
    tokens += 1 + uint32_t(draws.below(100, 2 * i + 1));
    bins.push_back({tokens, i == 0 || draws.below(3, 2 * i + 2) ? draws.unit(i, 1) : 0});
  }
  const LengthLaw law = draws.below(2, 99) ? LengthLaw::histogram(bins)
                                           : LengthLaw::lognormal(300 + draws.unit(98), 120, 2000);
  double u = 0, v = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    u = draws.unit(100 + i);
    v = draws.unit(200 + i);
    RC_ASSERT(law.quantile(std::min(u, v)) <= law.quantile(std::max(u, v)));
  }
}

// scale_rate by x and back returns every time to within the rounding of both ways.
RC_GTEST_PROP(Workload, RateScalingComesBack, ()) {
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  const RandomStream draws(seed, uint64_t{1});
  Trace trace;
  int64_t time_ns = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    time_ns += int64_t(draws.below(10'000'000'000, i));
    trace.requests.push_back({.arrival_ns = time_ns});
  }
  const double factor = 0.1 + 10 * draws.unit(999);
  Trace scaled = trace;
  scale_rate(scaled, factor);
  const auto earlier = [](const auto& a, const auto& b) { return a.arrival_ns < b.arrival_ns; };
  RC_ASSERT(std::is_sorted(scaled.requests.begin(), scaled.requests.end(), earlier));
  scale_rate(scaled, 1 / factor);
  for (size_t i = 0; i < 100; ++i) {
    const auto error =
        std::abs(double(scaled.requests[i].arrival_ns - trace.requests[i].arrival_ns));
    RC_ASSERT(error <= 1 + factor);
  }
}

}  // namespace
}  // namespace loratory::sim
