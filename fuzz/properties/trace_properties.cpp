// Properties of reading and writing traces. A case is a few sizes and a seed; everything else comes
// from the seed. Prefix reuse is compared with a model that keeps a plain list.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdio>
#include <list>
#include <sstream>
#include <string>
#include <vector>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/reuse.hpp"
#include "scheduler_sim/trace/writer.hpp"

namespace loratory::sim {
namespace {

enum class Content : uint8_t { none, blocks, tokens };

struct TraceCase {
  int num_requests = 1;
  int num_adapters = 0;
  int block_tokens = 1;
  Content content = Content::none;
  uint64_t seed = 0;
};

std::ostream& operator<<(std::ostream& out, const TraceCase& c) {
  return out << "requests " << c.num_requests << " adapters " << c.num_adapters << " block_tokens "
             << c.block_tokens << " content " << int(c.content) << " seed " << c.seed;
}

// splitmix64: small, and the same everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t any() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0..bound-1
  uint64_t below(uint64_t bound) { return any() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

std::string adapter_name(Dice& dice, size_t index) {
  static const char* const kOdd[] = {"\"", "\\", "\n", "\xc3\xa9", "\x01", " ", "/"};
  std::string name = "adapter";
  if (dice.one_in(2)) name += kOdd[dice.below(std::size(kOdd))];
  return name + std::to_string(index);
}

void add_content(const TraceCase& c, Dice& dice, Trace& trace, TraceRequest& request) {
  if (dice.one_in(4)) return;  // unknown content, in a trace that has some
  if (c.content == Content::blocks) {
    trace.block_tokens = uint32_t(c.block_tokens);
    request.content_begin = trace.block_ids.size();
    request.content_count = (request.prompt_tokens + trace.block_tokens - 1) / trace.block_tokens;
    const uint64_t hot = dice.below(3);
    for (uint32_t i = 0; i < request.content_count; ++i) {
      trace.block_ids.push_back(dice.one_in(8) ? dice.any() : 100 * hot + i);
    }
  } else if (c.content == Content::tokens) {
    request.content_begin = trace.token_ids.size();
    request.content_count = request.prompt_tokens;
    for (uint32_t i = 0; i < request.content_count; ++i) {
      trace.token_ids.push_back(int32_t(dice.below(1u << 31)));
    }
  }
}

void add_adapter(const TraceCase& c, Dice& dice, Trace& trace, TraceRequest& request) {
  if (c.num_adapters == 0 || dice.one_in(3)) return;
  const size_t index =
      std::min<size_t>(dice.below(uint64_t(c.num_adapters)), trace.adapters.size());
  if (index == trace.adapters.size()) {
    const uint32_t rank = dice.one_in(3) ? 0 : 1u << dice.below(8);
    trace.adapters.push_back({adapter_name(dice, index), rank});
  }
  request.adapter = AdapterIndex(index);
}

Trace make_trace(const TraceCase& c) {
  Dice dice(c.seed);
  Trace trace;
  int64_t now = 0;
  for (int i = 0; i < c.num_requests; ++i) {
    TraceRequest request;
    if (!dice.one_in(3)) now += int64_t(dice.below(dice.one_in(2) ? 3'000'000 : 1u << 30));
    request.arrival_ns = now;
    request.prompt_tokens = 1 + uint32_t(dice.below(40));
    request.output_tokens = uint32_t(dice.below(dice.one_in(9) ? 1u << 31 : 100));
    if (dice.one_in(4)) request.priority = int32_t(dice.any());
    if (dice.one_in(4)) request.session = uint32_t(dice.any());
    if (dice.one_in(4)) request.cancel_ns = now + int64_t(dice.below(1u << 30));
    add_adapter(c, dice, trace, request);
    add_content(c, dice, trace, request);
    trace.requests.push_back(request);
  }
  return trace;
}

std::string written(const Trace& trace) {
  std::ostringstream out;
  write_native(out, trace);
  return out.str();
}

void expect_same(const Trace& a, const Trace& b) {
  RC_ASSERT(a.requests.size() == b.requests.size());
  for (size_t i = 0; i < a.requests.size(); ++i) {
    const TraceRequest &x = a.requests[i], &y = b.requests[i];
    RC_ASSERT(x.arrival_ns == y.arrival_ns);
    RC_ASSERT(x.cancel_ns == y.cancel_ns);
    RC_ASSERT(x.prompt_tokens == y.prompt_tokens);
    RC_ASSERT(x.output_tokens == y.output_tokens);
    RC_ASSERT(x.adapter == y.adapter);
    RC_ASSERT(x.priority == y.priority);
    RC_ASSERT(x.session == y.session);
    RC_ASSERT(x.content_count == y.content_count);
    RC_ASSERT(x.content_count == 0 || x.content_begin == y.content_begin);
  }
  RC_ASSERT(a.adapters.size() == b.adapters.size());
  for (size_t i = 0; i < a.adapters.size(); ++i) {
    RC_ASSERT(a.adapters[i].name == b.adapters[i].name);
    RC_ASSERT(a.adapters[i].rank == b.adapters[i].rank);
  }
  RC_ASSERT(a.block_tokens == b.block_tokens);
  RC_ASSERT(a.block_ids == b.block_ids);
  RC_ASSERT(a.token_ids == b.token_ids);
}

TraceCase trace_case() {
  TraceCase c;
  c.num_requests = *rc::gen::inRange(1, 40);
  c.num_adapters = *rc::gen::inRange(0, 6);
  c.block_tokens = *rc::gen::inRange(1, 20);
  c.content = static_cast<Content>(*rc::gen::inRange(0, 3));
  c.seed = *rc::gen::arbitrary<uint64_t>();
  RC_CLASSIFY(c.content == Content::blocks, "block ids");
  RC_CLASSIFY(c.content == Content::tokens, "token ids");
  RC_CLASSIFY(c.num_adapters > 0, "adapters");
  RC_LOG() << "REPRO: " << c << "\n";
  return c;
}

// Property: reading what was written gives the same trace, and writing that the same bytes.
RC_GTEST_PROP(TraceFiles, ReadingIsTheInverseOfWriting, ()) {
  const Trace trace = make_trace(trace_case());
  const std::string bytes = written(trace);
  const Trace again = read_trace_from(bytes, "t");
  expect_same(trace, again);
  RC_ASSERT(written(again) == bytes);
}

// Property: with one byte changed or the end cut off, reading is an InputError or a trace; under
// skip_bad_rows every row is either kept or counted.
RC_GTEST_PROP(TraceFiles, DamageIsAnErrorOrAnotherTrace, ()) {
  const TraceCase c = trace_case();
  std::string bytes = written(make_trace(c));
  const auto at = *rc::gen::inRange<size_t>(0, bytes.size());
  const bool is_cut = *rc::gen::arbitrary<bool>();
  if (is_cut) {
    bytes.resize(at);
  } else {
    bytes[at] = char(*rc::gen::inRange(0, 256));
  }
  RC_CLASSIFY(is_cut, "cut off");
  RC_LOG() << "REPRO: " << c << " at " << at << " cut " << is_cut << "\n";
  const auto num_lines = std::count(bytes.begin(), bytes.end(), '\n') +
                         (!bytes.empty() && bytes.back() != '\n' ? 1 : 0);
  ReadOptions options;
  options.format = TraceFormat::native;
  options.skip_bad_rows = true;
  try {
    const Trace trace = read_trace_from(bytes, "t", options);
    RC_ASSERT(trace.requests.size() + trace.num_rows_skipped == uint64_t(num_lines));
    RC_ASSERT(written(trace).size() > 0u);
  } catch (const InputError&) {
    RC_TAG("error");
  }
}

// The oracle as its definition reads, over a list. Blocks of two adapters are two blocks.
uint64_t model_hits(const Trace& trace, uint64_t capacity) {
  std::list<std::pair<AdapterIndex, uint64_t>> cache;  // most recent first
  uint64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    std::vector<std::pair<AdapterIndex, uint64_t>> blocks;
    for (const uint64_t id : trace.blocks_of(request)) blocks.emplace_back(request.adapter, id);
    size_t prefix = 0;
    while (prefix < blocks.size() && std::ranges::count(cache, blocks[prefix]) > 0) ++prefix;
    hits += prefix;
    for (size_t i = blocks.size(); i-- > 0;) {
      cache.remove(blocks[i]);
      cache.push_front(blocks[i]);
      if (cache.size() > capacity) cache.pop_back();
    }
  }
  return hits;
}

// Property: the linked ring gives the hits of the list, for every capacity; and more room never
// hurts (LRU is a stack algorithm).
RC_GTEST_PROP(PrefixReuse, EqualsTheListModel, ()) {
  TraceCase c = trace_case();
  c.content = Content::blocks;
  const Trace trace = make_trace(c);
  const std::vector<uint64_t> capacities = {0, 1, 2, 3, 5, 8, 13, 21, 34, kUnboundedBlocks};
  const std::vector<PrefixReuse> curve = prefix_reuse(trace, capacities);
  for (size_t i = 0; i < curve.size(); ++i) {
    RC_ASSERT(curve[i].hit_blocks == model_hits(trace, capacities[i]));
    if (i > 0)
      RC_ASSERT(curve[i].hit_blocks >= curve[i - 1].hit_blocks);  // no || inside: it is overloaded
    RC_ASSERT(curve[i].hit_tokens <= curve[i].num_tokens);
  }
}

}  // namespace
}  // namespace loratory::sim
