#include "scheduler_sim/workload/sessions.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reference/base/check.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

struct Session {
  uint32_t id = 0;
  uint32_t context_tokens = 0;  // prompt and output of its last turn
  uint32_t prompt_tokens = 0;   // of its last turn
  uint64_t content_begin = 0;   // of its last turn, in Trace::block_ids
  uint64_t num_turns = 0;
};

struct SystemPrompt {
  uint32_t tokens = 0;
  uint64_t first_block_id = 0;
};

class SessionWriter {
 public:
  SessionWriter(Trace& trace, const SessionOptions& options, uint64_t seed)
      : trace_(trace),
        options_(options),
        turns_(seed, Purpose::turns),
        gaps_(seed, Purpose::think_times) {
    const RandomStream lengths(seed, Purpose::system_prompts);
    for (uint32_t i = 0; i < options.num_system_prompts; ++i) {
      const uint32_t tokens = options.system_tokens.quantile(lengths.unit(i));
      system_prompts_.push_back({tokens, next_block_id_});
      next_block_id_ += full_blocks(tokens);
    }
  }

  void write(size_t request_index) {
    TraceRequest& request = trace_.requests[request_index];
    std::optional<Session> open = take_ready_session(request);
    Session session = open ? *open : Session{.id = ++num_sessions_};
    const uint32_t message_tokens = request.prompt_tokens;
    if (open) {
      request.prompt_tokens = session.context_tokens + message_tokens;
      append_blocks(request, trace_block_run(session));
    } else {
      const SystemPrompt* system = system_prompt_of(request.adapter);
      request.prompt_tokens =
          std::min((system ? system->tokens : 0) + message_tokens, options_.max_prompt_tokens);
      append_system_blocks(request, system);
    }
    request.session = session.id;
    keep_session(request_index, std::move(session));
  }

 private:
  struct Ready {
    int64_t ready_ns;
    Session session;
    bool operator>(const Ready& other) const {
      return std::pair(ready_ns, session.id) > std::pair(other.ready_ns, other.session.id);
    }
  };
  using ReadyQueue = std::priority_queue<Ready, std::vector<Ready>, std::greater<>>;
  struct BlockRun {
    uint64_t begin = 0, count = 0;
  };

  uint64_t full_blocks(uint32_t tokens) const {
    return options_.block_tokens == 0 ? 0 : tokens / options_.block_tokens;
  }

  const SystemPrompt* system_prompt_of(AdapterIndex adapter) const {
    if (system_prompts_.empty()) return nullptr;
    return &system_prompts_[adapter % system_prompts_.size()];
  }

  // The session that this arrival goes on with. One that has no room for the message ends here.
  std::optional<Session> take_ready_session(const TraceRequest& request) {
    ReadyQueue& queue = ready_[request.adapter];
    while (!queue.empty() && queue.top().ready_ns <= request.arrival_ns) {
      const Session session = queue.top().session;
      queue.pop();
      const uint64_t prompt = uint64_t{session.context_tokens} + request.prompt_tokens;
      if (prompt <= options_.max_prompt_tokens) return session;
    }
    return std::nullopt;
  }

  BlockRun trace_block_run(const Session& session) const {
    return {session.content_begin, full_blocks(session.prompt_tokens)};
  }

  void append_system_blocks(TraceRequest& request, const SystemPrompt* system) {
    request.content_begin = trace_.block_ids.size();
    const uint64_t count =
        system ? std::min(full_blocks(system->tokens), full_blocks(request.prompt_tokens)) : 0;
    for (uint64_t i = 0; i < count; ++i) trace_.block_ids.push_back(system->first_block_id + i);
    append_new_blocks(request);
  }

  void append_blocks(TraceRequest& request, BlockRun run) {
    request.content_begin = trace_.block_ids.size();
    for (uint64_t i = 0; i < run.count; ++i) {
      trace_.block_ids.push_back(trace_.block_ids[run.begin + i]);
    }
    append_new_blocks(request);
  }

  // Fills up to ceil(prompt / block_tokens) ids; the last block may be partial.
  void append_new_blocks(TraceRequest& request) {
    if (options_.block_tokens == 0) return;
    const uint64_t count =
        (uint64_t{request.prompt_tokens} + options_.block_tokens - 1) / options_.block_tokens;
    while (trace_.block_ids.size() - request.content_begin < count) {
      trace_.block_ids.push_back(next_block_id_++);
    }
    request.content_count = uint32_t(count);
  }

  void keep_session(size_t request_index, Session session) {
    const TraceRequest& request = trace_.requests[request_index];
    if (turns_.unit(request_index) >= 1 - 1 / options_.mean_turns) return;  // the last turn
    const double half_gap_s = options_.mean_gap_s / 2;
    const double gap_s = half_gap_s + half_gap_s * gaps_.exponential(request_index);
    session.prompt_tokens = request.prompt_tokens;
    session.context_tokens = request.prompt_tokens + request.output_tokens;
    session.content_begin = request.content_begin;
    ready_[request.adapter].push({request.arrival_ns + int64_t(gap_s * 1e9), session});
  }

  Trace& trace_;
  const SessionOptions& options_;
  RandomStream turns_;
  RandomStream gaps_;
  std::vector<SystemPrompt> system_prompts_;
  std::unordered_map<AdapterIndex, ReadyQueue> ready_;  // looked up, never walked
  uint64_t next_block_id_ = 0;
  uint32_t num_sessions_ = 0;
};

}  // namespace

void add_sessions(Trace& trace, const SessionOptions& options, uint64_t seed) {
  LORATORY_ASSERT(!trace.has_content(), "the trace has content of its own");
  LORATORY_ASSERT(options.mean_turns >= 1 && options.mean_gap_s > 0, "see SessionOptions");
  trace.block_tokens = options.block_tokens;
  SessionWriter writer(trace, options, seed);
  for (size_t i = 0; i < trace.requests.size(); ++i) writer.write(i);
}

}  // namespace loratory::sim
