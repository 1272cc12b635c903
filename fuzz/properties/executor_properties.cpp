// The engine (scheduler, blocks, slots, transfers in any order) against the naive oracle, bit for
// bit.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/support/engine_case.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

using reference::Generation;
using reference::Model;
using reference::RandomAdapter;

/// How often the interesting things happened in a run.
struct Seen : DecisionSink {
  int preemptions = 0, hits = 0, evictions = 0, chunks = 0, unloads = 0, failures = 0;
  int mixed_steps = 0, embedding_or_head = 0, rslora = 0, ranks = 0, cut_short = 0;

  void on_decision(const Decision& d) override {
    preemptions += d.kind == DecisionKind::preemption;
    hits += d.kind == DecisionKind::admission && d.a > 0;
    evictions += d.kind == DecisionKind::eviction;
    chunks += d.kind == DecisionKind::chunk;
    unloads += d.kind == DecisionKind::unload;
    failures += d.kind == DecisionKind::load_failure;
  }
};

/// A model, its adapters and an engine, used at random. Everything follows from the seed.
class Workload {
 public:
  explicit Workload(uint64_t seed)
      : draw_(seed),
        model_(reference::random_model(reference::random_model_config(seed), seed)),
        config_(engine_config(draw_)),
        engine_(model_, config_, executor_config(draw_), seed, &seen) {
    const int64_t num_adapters = draw_.between(1, 5);
    for (int64_t i = 0; i < num_adapters; ++i) add_adapter(i);
  }

  void operate() {
    const int64_t what = draw_(100);
    if (what < 45) {
      for (int64_t i = draw_(4); i >= 0; --i) submit();
    } else if (what < 94) {
      for (int64_t i = draw_(12); i >= 0; --i) advance();
    } else if (what < 96) {
      if (!submitted_.empty()) engine_.cancel(uint64_t(draw_(int64_t(submitted_.size()))));
    } else if (what < 97) {
      engine_.pin(name(draw_(5)));
    } else {
      const int64_t index = draw_(int64_t(current_.size()));
      engine_.unload_adapter(name(index), draw_.one_in(4));
      if (!draw_.one_in(3)) add_adapter(index);
    }
  }
  void run() {
    while (advance()) {
    }
  }

  /// The first request whose output differs from the oracle's, in words; empty if none does.
  std::string first_difference() {
    for (const Submitted& s : submitted_) {
      const EngineOutput& got = engine_.output(s.request.id);
      const bool failed = got.reason == FinishReason::error;
      if (failed != (failed && s.fails))
        return "request " + std::to_string(s.request.id) + " fails";
      seen.cut_short += got.reason == FinishReason::abort || failed;
      const Generation expected = generate(model_, s.adapter ? &s.adapter->adapter : nullptr,
                                           s.request.prompt, s.request.params);
      if (!same_generation(got, expected)) return "request " + std::to_string(s.request.id);
    }
    return "";
  }

  const SchedulerConfig& config() const { return config_; }
  const Model& model() const { return model_; }
  const ReferenceEngine& engine() const { return engine_; }
  size_t num_requests() const { return submitted_.size(); }
  Seen seen;

 private:
  struct Submitted {
    EngineRequest request;
    std::optional<RandomAdapter> adapter;  // that its name meant when it was submitted
    bool fails = false;                    // its loads do, some or all
  };
  struct Current {
    RandomAdapter adapter;
    bool fails = false;
  };

  static SchedulerConfig engine_config(Draw& draw) {
    SchedulerConfig c = random_scheduler_config(draw);
    c.num_blocks = uint32_t(1 + (20 + c.block_size - 1) / c.block_size);  // room for one request
    c.num_blocks += uint32_t(draw.one_of({0, 1, 3, 5, 60}));
    return c;
  }
  static ReferenceExecutorConfig executor_config(Draw& draw) {
    return {.max_lora_rank = draw.one_of<int64_t>({4, 4, 7}),
            .token_multiple = draw.one_of<int64_t>({1, 1, 4})};
  }
  static std::string name(int64_t index) { return "a" + std::to_string(index); }

  void add_adapter(int64_t index) {
    const auto seed = uint64_t(draw_(int64_t{1} << 40));
    const auto options = reference::random_adapter_options(seed);
    Current added{random_adapter(model_.config, seed, options), draw_.one_in(12)};
    seen.embedding_or_head += options.embed_tokens || options.lm_head;
    seen.rslora += options.use_rslora;
    seen.ranks += options.ragged;
    AdapterSource source = source_of(added.adapter);
    if (added.fails) {
      // The first attempt fails, and every third one after it.
      source = [source, count = std::make_shared<int>(0)] {
        if ((*count)++ % 3 == 0 || *count > 4) throw InputError("adapter", "the disk is gone");
        return source();
      };
    }
    engine_.register_adapter(name(index), uint32_t(added.adapter.adapter.rank), source, true);
    current_.insert_or_assign(name(index), added);
  }

  void submit() {
    Submitted s{random_engine_request(draw_, submitted_.size(), model_.config, 7), {}, false};
    if (!draw_.one_in(4)) s.request.adapter = name(draw_(5));
    const bool known = s.request.adapter.empty() ||
                       engine_.scheduler().residency().find(s.request.adapter) != kBaseRef;
    const SubmitStatus status = engine_.submit(s.request);
    RC_ASSERT(status == (known ? SubmitStatus::ok : SubmitStatus::unknown_adapter));
    if (!known) return;
    if (!s.request.adapter.empty()) {
      const Current& current = current_.at(s.request.adapter);
      s.adapter = current.adapter;
      s.fails = current.fails;
    }
    submitted_.push_back(s);
  }

  bool advance() {
    const bool more = engine_.advance();
    if (engine_.step() != nullptr) {
      std::map<AdapterRef, int> rows;
      for (const StepRow& row : engine_.step()->rows) ++rows[row.adapter];
      seen.mixed_steps += rows.size() > 1;
    }
    return more;
  }

  Draw draw_;
  Model model_;
  SchedulerConfig config_;
  ReferenceEngine engine_;
  std::map<std::string, Current> current_;
  std::vector<Submitted> submitted_;
};

// P63 P54 P55 P62 P40: every request gets the tokens and logits that the oracle computes for it
// alone.
RC_GTEST_PROP(Executor, TokensEqualTheOracle, ()) {
  const SeededCase c = any_seeded_case(80);
  Workload w(c.seed);
  for (int i = 0; i < c.num_ops; ++i) w.operate();
  w.run();
  RC_LOG() << w.num_requests() << " requests\n";
  const std::string difference = w.first_difference();
  RC_CLASSIFY(w.seen.preemptions > 0, "preempts");
  RC_CLASSIFY(w.seen.hits > 0, "prefix hits");
  RC_CLASSIFY(w.seen.evictions > 0, "evicts adapters");
  RC_CLASSIFY(w.seen.chunks > 0, "chunks");
  RC_CLASSIFY(w.seen.mixed_steps > 0, "mixed steps");
  RC_CLASSIFY(w.seen.unloads > 0, "unloads");
  RC_CLASSIFY(w.seen.failures > 0, "loads fail");
  RC_CLASSIFY(w.seen.cut_short > 0, "requests cut short");
  RC_CLASSIFY(w.seen.embedding_or_head > 0, "embed_tokens or lm_head");
  RC_CLASSIFY(w.seen.rslora > 0, "rsLoRA");
  RC_CLASSIFY(w.seen.ranks > 0, "ragged ranks");
  RC_CLASSIFY(w.model().config.num_experts > 0, "experts");
  RC_CLASSIFY(w.config().load_mode == LoadMode::blocking, "blocking");
  RC_CLASSIFY(w.config().residency.max_loras == 1, "one slot");
  RC_ASSERT(difference == "");
}

}  // namespace
}  // namespace loratory::sim
