// The engine on a GPU: random workloads give every request the bits that it gets alone, and logits
// within the bound of the float64 oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "fuzz/support/engine_case.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "gpu_engine.hpp"
#include "reference/base/input_error.hpp"
#include "suite.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Model;
using reference::ModelConfig;
using reference::RandomAdapter;
using sim::Draw;
using sim::EngineOutput;
using sim::EngineRequest;
using sim::SchedulerConfig;

constexpr int64_t kMaxRank = 8;

class EngineGpu : public OnGpu {};

// Their plans serve all cases: shapes come back.
Products& products() {
  static Products all({.cublaslt = "none"});
  return all;
}

// --- models -----------------------------------------------------------------------------------

enum class Experts : uint8_t { none, some };

// f32 takes any sizes. The tensor cores take heads of 64; the others are of plain kernels. A third
// of the models may have experts.
ModelConfig model_config(uint64_t seed, Dtype dtype, Experts experts) {
  Draw draw(seed);
  ModelConfig config = reference::random_model_config(seed);
  if (experts == Experts::none) config = dense(config);
  config.shared_expert_intermediate = 0;
  config.router_has_lora = false;
  config.max_position_embeddings = 1024;
  if (dtype == Dtype::f32) {
    config.head_dim = draw.one_of({8, 16, 32});
    return config;
  }
  config = with_tensor_core_sizes(config);
  config.head_dim = draw.one_of({64, 64, 64, 8, 16});
  config.num_kv_heads = draw.between(1, 2);
  if (config.num_experts == 0) return config;
  const int64_t num_experts = draw.between(1, 9);
  const bool sparse = draw.one_in(2);
  return with_experts(dense(config), num_experts,
                      draw.between(1, std::min<int64_t>(4, num_experts)), sparse);
}

RandomAdapter adapter_of(const ModelConfig& config, Dtype dtype, bool fits_fp8, uint64_t seed) {
  reference::RandomAdapterOptions options = reference::random_adapter_options(seed);
  options.dtype = dtype;  // that of slots, so nothing is rounded
  options.fits_fp8 = fits_fp8;
  return random_adapter(config, seed, options);
}

// --- workloads ----------------------------------------------------------------------------------

// How often the interesting things happened in a run.
struct Seen : sim::DecisionSink {
  int preemptions = 0, hits = 0, evictions = 0, chunks = 0, unloads = 0, failures = 0;
  int mixed_steps = 0, cut_short = 0, discarded = 0;

  void on_decision(const sim::Decision& d) override {
    const auto* admission = d.get_if<sim::decision::Admission>();
    hits += admission != nullptr && admission->num_cached_tokens > 0;
    preemptions += d.is<sim::decision::Preemption>();
    evictions += d.is<sim::decision::Eviction>();
    chunks += d.is<sim::decision::Chunk>();
    unloads += d.is<sim::decision::Unload>();
    failures += d.is<sim::decision::LoadFailure>();
  }
};

struct Submitted {
  EngineRequest request;
  std::optional<RandomAdapter> adapter;  // that its name meant when it was submitted
  bool fails = false;                    // its loads do, some or all
};

// Each request in an engine that has nothing else to do: one row, no graph, no prefix to find.
class Alone {
 public:
  Alone(const DeviceModel& model, uint32_t max_model_len, sim::LoraDtype lora_dtype)
      : engine_(model, products(), config(max_model_len), options(model.dtype(), lora_dtype)) {}

  EngineOutput run(const Submitted& s) {
    EngineRequest request = s.request;
    request.priority = 0;
    request.prompt.shrink_to_fit();
    if (s.adapter) {
      request.adapter = "a" + std::to_string(request.id);
      engine_.register_adapter(request.adapter, uint32_t(s.adapter->adapter.rank),
                               sim::source_of(*s.adapter));
    }
    EXPECT_EQ(engine_.submit(request), sim::SubmitStatus::ok);
    engine_.run();
    return engine_.output(request.id);
  }

 private:
  static SchedulerConfig config(uint32_t max_model_len) {
    SchedulerConfig c;
    c.block_size = 16;
    c.num_blocks = 2 + max_model_len / 16;
    c.max_model_len = max_model_len;
    c.max_num_seqs = 1;
    c.max_num_batched_tokens = max_model_len;
    c.prefix_cache = false;
    c.residency.max_loras = 1;
    c.residency.max_cpu_loras = 1;
    return c;
  }
  static EngineOptions options(Dtype dtype, sim::LoraDtype lora_dtype) {
    EngineOptions o;
    o.dtype = dtype;
    o.lora_dtype = lora_dtype;
    o.max_lora_rank = kMaxRank;
    o.max_graph_rows = 0;
    o.poison_blocks = true;
    return o;
  }

  GpuEngine engine_;
};

// A model, its adapters and an engine, used at random. Everything follows from the seed but the
// order in which transfers and steps end.
class Workload {
 public:
  /// Slots of fp8 are for dense models. Where adapters fit them, nothing is rounded.
  struct Slots {
    sim::LoraDtype dtype = sim::LoraDtype::of_model;
    bool adapters_fit = false;
  };
  Workload(uint64_t seed, Dtype dtype, Experts experts) : Workload(seed, dtype, experts, {}) {}
  Workload(uint64_t seed, Dtype dtype, Experts experts, const Slots& slots)
      : draw_(seed),
        slots_(slots),
        model_(reference::in_dtype(random_model(model_config(seed, dtype, experts), seed), dtype)),
        device_model_(DeviceModel::from(model_, dtype)),
        num_stem_(draw_.one_of<int64_t>({0, 0, 0, 250, 300, 560})),
        config_(engine_config(draw_, num_stem_, model_.config)),
        ahead_(draw_.one_in(2) ? sim::StepsAhead::one : sim::StepsAhead::none),
        engine_(device_model_, products(), config_, options(draw_, dtype, slots.dtype), &seen,
                ahead_) {
    Draw stem(seed + 1);
    for (int64_t i = 0; i < num_stem_; ++i) stem_.push_back(int32_t(stem(model_.config.vocab)));
    const int64_t num_adapters = draw_.between(1, 5);
    for (int64_t i = 0; i < num_adapters; ++i) add_adapter(i);
  }

  void operate() {
    const int64_t what = draw_(100);
    if (what < 45) {
      for (int64_t i = draw_(4); i >= 0; --i) submit();
    } else if (what < 93) {
      for (int64_t i = draw_(12); i >= 0; --i) advance();
    } else if (what < 95) {
      if (!submitted_.empty()) engine_.cancel(uint64_t(draw_(int64_t(submitted_.size()))));
    } else if (what < 97) {
      const std::string pinned = name(draw_(5));
      if (draw_.one_in(2))
        engine_.pin(pinned);
      else
        engine_.unpin(pinned);
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

  // Every request against itself alone; counts logits.
  int64_t compare_with_alone() {
    Alone alone(device_model_, config_.max_model_len, slots_.dtype);
    int64_t num_logits = 0;
    for (const Submitted& s : submitted_) {
      const EngineOutput& got = engine_.output(s.request.id);
      const bool failed = got.reason == sim::FinishReason::error;
      EXPECT_TRUE(!failed || s.fails) << "request " << s.request.id << " fails";
      seen.cut_short += got.reason == sim::FinishReason::abort || failed;
      const EngineOutput expected = alone.run(s);
      EXPECT_TRUE(same_generation(got, {expected.tokens, expected.logits, {}}))
          << "request " << s.request.id;
      for (const auto& logits : got.logits) num_logits += logits.size();
    }
    return num_logits;
  }

  // The largest error over bound of the logits of some requests.
  double compare_with_oracle(int num_requests) const {
    double worst = 0;
    for (const Submitted& s : submitted_) {
      const EngineOutput& got = engine_.output(s.request.id);
      if (got.tokens.empty() || s.request.prompt.size() > 40 || num_requests-- <= 0) continue;
      std::vector<int32_t> tokens = s.request.prompt;
      tokens.insert(tokens.end(), got.tokens.begin(), got.tokens.end() - 1);
      const auto bounded = reference::bounded_logits(
          model_, s.adapter ? &s.adapter->adapter : nullptr, tokens, device_model_.dtype());
      for (size_t i = 0; i < got.logits.size(); ++i) {
        const auto column = Eigen::Index(s.request.prompt.size() + i) - 1;
        worst = std::max(worst, worst_of(got, i, bounded, column, s.request));
      }
    }
    return worst;
  }

  // Nothing is left of what came and went.
  void expect_nothing_leaks() {
    for (int64_t i = 0; i < 5; ++i) engine_.unpin(name(i));
    for (int64_t i = 0; i < 5; ++i) engine_.unload_adapter(name(i), true);
    run();
    const sim::Scheduler& scheduler = engine_.scheduler();
    EXPECT_EQ(scheduler.blocks().num_referenced(), 0u);
    EXPECT_EQ(scheduler.residency().num_on_gpu(), 0);
    EXPECT_FALSE(scheduler.residency().transfer_in_flight());
    EXPECT_TRUE(scheduler.waiting().empty());
    EXPECT_EQ(engine_.executor().num_requests(), 0u);
  }

  const SchedulerConfig& config() const { return config_; }
  const Model& model() const { return model_; }
  const GpuEngine& engine() const { return engine_; }
  size_t num_requests() const { return submitted_.size(); }
  bool is_long() const { return num_stem_ > 0; }
  Seen seen;

 private:
  static SchedulerConfig engine_config(Draw& draw, int64_t num_stem, const ModelConfig& model) {
    SchedulerConfig c = sim::random_scheduler_config(draw);
    c.block_size = uint32_t(draw.one_of({1, 2, 4, 16}));
    c.max_model_len += uint32_t(num_stem);
    c.num_blocks = uint32_t(1 + (c.max_model_len + c.block_size - 1) / c.block_size);
    c.num_blocks += uint32_t(draw.one_of({0, 1, 3, 5, 60}));
    if (num_stem > 0) c.max_num_batched_tokens += uint32_t(draw.one_of({30, 100, 600}));
    if (!c.chunked_prefill) c.max_num_batched_tokens += c.max_model_len;
    return bounded_by_model(c, model);
  }
  static EngineOptions options(Draw& draw, Dtype dtype, sim::LoraDtype lora_dtype) {
    EngineOptions o;
    o.dtype = dtype;
    o.lora_dtype = lora_dtype;
    o.max_lora_rank = draw.one_of<int64_t>({4, 5, kMaxRank});
    o.max_graph_rows = int32_t(draw.one_of({0, 1, int(Trial::size(8, 2))}));
    o.poison_blocks = true;
    if (draw.one_in(2)) o.copy_part_bytes = 1 << 14;
    return o;
  }
  static std::string name(int64_t index) { return "a" + std::to_string(index); }

  void add_adapter(int64_t index) {
    const auto seed = uint64_t(draw_(int64_t{1} << 40));
    Submitted added{{},
                    adapter_of(model_.config, device_model_.dtype(), slots_.adapters_fit, seed),
                    draw_.one_in(12)};
    sim::AdapterSource source = sim::source_of(*added.adapter);
    if (added.fails) {
      // The first attempt fails, and every third one after it.
      source = [source, count = std::make_shared<std::atomic<int>>(0)] {
        const int before = (*count)++;
        if (before % 3 == 0 || before > 3) throw InputError("adapter", "the disk is gone");
        return source();
      };
    }
    engine_.register_adapter(name(index), uint32_t(added.adapter->adapter.rank), source, true);
    current_.insert_or_assign(name(index), added);
  }

  void submit() {
    Submitted s{random_engine_request(draw_, submitted_.size(), model_.config, 7), {}, false};
    s.request.prompt.insert(s.request.prompt.begin(), stem_.begin(), stem_.end());
    s.request.params.prompt_logprobs = false;
    if (!draw_.one_in(4)) s.request.adapter = name(draw_(5));
    if (engine_.submit(s.request) != sim::SubmitStatus::ok) return;
    if (!s.request.adapter.empty()) {
      const Submitted& current = current_.at(s.request.adapter);
      s.adapter = current.adapter;
      s.fails = current.fails;
    }
    submitted_.push_back(s);
  }

  bool advance() {
    const bool more = engine_.advance();
    if (engine_.step() != nullptr) {
      seen.discarded += int(engine_.step()->num_discarded);
      std::map<sim::AdapterRef, int> rows;
      for (const sim::StepRow& row : engine_.step()->rows) ++rows[row.adapter];
      seen.mixed_steps += rows.size() > 1;
    }
    return more;
  }

  // Of token i; a greedy token is the oracle's wherever its margin exceeds what errors can move.
  double worst_of(const EngineOutput& got, size_t i,
                  const reference::Matrix<reference::Bounded>& bounded, Eigen::Index column,
                  const EngineRequest& request) const {
    double worst = 0;
    Eigen::Index best = 0;
    for (Eigen::Index v = 0; v < bounded.rows(); ++v) {
      const reference::Bounded& b = bounded(v, column);
      worst = std::max(worst, std::abs(double(got.logits[i](v)) - b.value) / b.error);
      if (b.value > bounded(best, column).value) best = v;
    }
    if (request.params.sampling.temperature != 0) return worst;
    const auto token = Eigen::Index(got.tokens[i]);
    const double margin = bounded(best, column).value - bounded(token, column).value;
    EXPECT_LE(margin, bounded(best, column).error + bounded(token, column).error)
        << "request " << request.id << " token " << i;
    return worst;
  }

  Draw draw_;
  Slots slots_;
  Model model_;
  DeviceModel device_model_;
  int64_t num_stem_;
  std::vector<int32_t> stem_;
  SchedulerConfig config_;
  sim::StepsAhead ahead_;
  GpuEngine engine_;
  std::map<std::string, Submitted> current_;
  std::vector<Submitted> submitted_;
};

void classify(const Trial& trial, const Workload& w) {
  trial.classify(w.engine().executor().times().num_ahead > 0, "a step ahead");
  trial.classify(w.seen.discarded > 0, "discards rows");
  trial.classify(w.model().config.num_experts > 0, "experts");
  trial.classify(w.seen.preemptions > 0, "preempts");
  trial.classify(w.seen.hits > 0, "prefix hits");
  trial.classify(w.seen.evictions > 0, "evicts adapters");
  trial.classify(w.seen.chunks > 0, "chunks");
  trial.classify(w.seen.mixed_steps > 0, "mixed steps");
  trial.classify(w.seen.unloads > 0, "unloads");
  trial.classify(w.seen.failures > 0, "loads fail");
  trial.classify(w.seen.cut_short > 0, "requests cut short");
  trial.classify(w.is_long(), "contexts of several pieces");
  trial.classify(w.engine().executor().times().num_replayed > 0, "replays graphs");
  trial.classify(w.config().load_mode == sim::LoadMode::blocking, "blocking");
  trial.classify(w.config().residency.max_loras == 1, "one slot");
}

void run(Trial& trial, Workload& w) {
  const int64_t num_ops = Trial::size(1 + trial.pick(1, 60), 1 + trial.pick(1, 6));
  for (int64_t i = 0; i < num_ops; ++i) w.operate();
  w.run();
}

// [2.10] [2.13] [2.16] [5.24]
TEST_F(EngineGpu, EveryRequestHasTheBitsItHasAlone) {
  for_all_seeds(1000, [](Trial& trial) {
    const Dtype dtype = trial.pick(0, 3) == 0   ? Dtype::f32
                        : trial.pick(0, 3) == 1 ? Dtype::bf16
                                                : Dtype::f16;
    Workload w(trial.seed(), dtype, Experts::some);
    run(trial, w);
    trial.count(w.compare_with_alone());
    classify(trial, w);
    w.expect_nothing_leaks();
  });
}

// [1.50a]: the same with slots of fp8, on tensor cores and on the generic path.
TEST_F(EngineGpu, EveryRequestHasTheBitsItHasAloneInFp8) {
  for_all_seeds(300, [](Trial& trial) {
    constexpr Dtype kDtypes[] = {Dtype::bf16, Dtype::bf16, Dtype::f16, Dtype::f32};
    Workload w(trial.seed(), kDtypes[size_t(trial.pick(0, 4))], Experts::none,
               {.dtype = sim::LoraDtype::fp8});
    run(trial, w);
    trial.count(w.compare_with_alone());
    classify(trial, w);
    w.expect_nothing_leaks();
  });
}

// [1.18]
void expect_within_the_bound(Trial& trial, Dtype dtype, const Workload::Slots& slots = {}) {
  // Of 16-bit experts the oracle does not know where they round.
  const bool is_plain = dtype == Dtype::f32 && slots.dtype == sim::LoraDtype::of_model;
  Workload w(trial.seed(), dtype, is_plain ? Experts::some : Experts::none, slots);
  run(trial, w);
  // In 16 bits the bound takes minutes: it walks back from every number that a norm divides.
  const double worst = w.compare_with_oracle(/*num_requests=*/dtype == Dtype::f32 ? 3 : 1);
  EXPECT_LE(worst, 1);
  trial.count(int64_t(w.num_requests()), worst);
  classify(trial, w);
}

TEST_F(EngineGpu, F32LogitsLieWithinTheBound) {
  for_all_seeds(30, [](Trial& trial) { expect_within_the_bound(trial, Dtype::f32); });
}
TEST_F(EngineGpu, Bf16LogitsLieWithinTheBound) {
  for_all_seeds(30, [](Trial& trial) { expect_within_the_bound(trial, Dtype::bf16); });
}
// [1.50a]: adapters that fp8 holds exactly, so that the oracle has the same numbers.
TEST_F(EngineGpu, Bf16LogitsOfFp8AdaptersLieWithinTheBound) {
  for_all_seeds(30, [](Trial& trial) {
    expect_within_the_bound(trial, Dtype::bf16,
                            {.dtype = sim::LoraDtype::fp8, .adapters_fit = true});
  });
}
TEST_F(EngineGpu, F16LogitsLieWithinTheBound) {
  for_all_seeds(30, [](Trial& trial) { expect_within_the_bound(trial, Dtype::f16); });
}

}  // namespace
}  // namespace loratory::gpu
