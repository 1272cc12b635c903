#include "scheduler_sim/trace/anonymise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace loratory::sim {
namespace {

// Numbers keys from `first` on, in order of first use.
template <typename Key>
class Numbers {
 public:
  explicit Numbers(uint64_t first) : next_(first) {}
  uint64_t of(const Key& key) {
    const auto [place, is_new] = numbers_.try_emplace(key, next_);
    next_ += is_new ? 1 : 0;
    return place->second;
  }

 private:
  uint64_t next_;
  std::map<Key, uint64_t> numbers_;
};

// Adapters stand in order of first use already, as every reader leaves them; of a trace made
// otherwise the order says no more than a number does.
void rename(Trace& trace) {
  for (size_t i = 0; i < trace.adapters.size(); ++i) {
    trace.adapters[i].name = fmt::format("adapter-{}", i + 1);
  }
  Numbers<std::string> ids(1);
  for (std::string& id : trace.ids) {
    if (!id.empty()) id = fmt::format("request-{}", ids.of(id));
  }
  Numbers<uint32_t> sessions(1);
  for (TraceRequest& request : trace.requests) {
    if (request.session != 0) request.session = uint32_t(sessions.of(request.session));
  }
}

void shift_times(Trace& trace) {
  if (trace.requests.empty()) return;
  const int64_t first_ns = trace.requests.front().arrival_ns;
  for (TraceRequest& request : trace.requests) {
    request.arrival_ns -= first_ns;
    if (request.cancel_ns != kNever) request.cancel_ns -= first_ns;
  }
}

// A block is known by the one before it and its tokens.
void replace_tokens(Trace& trace) {
  using Block = std::pair<uint64_t, std::vector<int32_t>>;
  Numbers<Block> blocks(0);
  std::vector<uint64_t> ids;
  for (TraceRequest& request : trace.requests) {
    const auto tokens = trace.tokens_of(request);
    request.content_begin = ids.size();
    request.content_count = 0;
    uint64_t previous = UINT64_MAX;
    for (size_t at = 0; at < tokens.size(); at += kAnonymousBlockTokens) {
      const auto part =
          tokens.subspan(at, std::min<size_t>(kAnonymousBlockTokens, tokens.size() - at));
      previous = blocks.of({previous, {part.begin(), part.end()}});
      ids.push_back(previous);
      ++request.content_count;
    }
  }
  trace.block_tokens = kAnonymousBlockTokens;
  trace.block_ids = std::move(ids);
  trace.token_ids.clear();
}

void renumber_blocks(Trace& trace) {
  std::unordered_map<uint64_t, uint64_t> numbers;
  for (uint64_t& id : trace.block_ids) id = numbers.try_emplace(id, numbers.size()).first->second;
}

}  // namespace

void anonymise(Trace& trace) {
  rename(trace);
  shift_times(trace);
  if (!trace.token_ids.empty()) replace_tokens(trace);
  renumber_blocks(trace);
}

}  // namespace loratory::sim
