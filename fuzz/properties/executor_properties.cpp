// The engine (scheduler, blocks, slots, transfers in any order) against the naive oracle, bit for
// bit.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/support/engine_case.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "fuzz/support/tier_counts.hpp"
#include "reference/base/input_error.hpp"
#include "reference/model/slot_lora.hpp"

namespace loratory::sim {
namespace {

using reference::Generation;
using reference::Model;
using reference::RandomAdapter;

// How often the interesting things happened in a run.
struct Seen : DecisionSink {
  int preemptions = 0, hits = 0, evictions = 0, chunks = 0, unloads = 0, failures = 0;
  int mixed_steps = 0, overlaps = 0;  // copies while a step runs
  int embedding_or_head = 0, rslora = 0, ranks = 0, cut_short = 0;
  int steps_ahead = 0, discarded = 0;

  void on_decision(const Decision& d) override {
    const auto* admission = d.get_if<decision::Admission>();
    hits += admission != nullptr && admission->num_cached_tokens > 0;
    preemptions += d.is<decision::Preemption>();
    evictions += d.is<decision::Eviction>();
    chunks += d.is<decision::Chunk>();
    unloads += d.is<decision::Unload>();
    failures += d.is<decision::LoadFailure>();
  }
};

// A model, its adapters and an engine, used at random. Everything follows from the seed.
class Workload {
 public:
  explicit Workload(uint64_t seed)
      : draw_(seed),
        model_(reference::random_model(reference::random_model_config(seed), seed)),
        config_(engine_config(draw_)),
        ahead_(draw_.one_in(2) ? StepsAhead::one : StepsAhead::none),
        engine_(model_, config_, executor_config(draw_), seed, &seen, ahead_) {
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

  // The first request whose output differs from the oracle's, in words; empty if none does.
  std::string first_difference() {
    for (const Submitted& s : submitted_) {
      const EngineOutput& got = engine_.output(s.request.id);
      const bool failed = got.reason == FinishReason::error;
      if (failed != (failed && s.fails))
        return "request " + std::to_string(s.request.id) + " fails";
      const bool is_cut_short = got.reason == FinishReason::abort || failed;
      seen.cut_short += is_cut_short;
      const bool stops = !got.tokens.empty() &&
                         std::ranges::count(s.request.params.stop_tokens, got.tokens.back()) > 0;
      if (!is_cut_short && (got.reason == FinishReason::stop) != stops) {
        return "request " + std::to_string(s.request.id) + " ends otherwise";
      }
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
  static ModelRunnerConfig executor_config(Draw& draw) {
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

  // A step in flight has its blocks to itself where it writes, and its adapters in their slots,
  // whatever became of its requests.
  void check_step(const StepPlan& plan) {
    const Scheduler& s = engine_.scheduler();
    for (const StepRow& row : plan.rows) {
      const Request& r = s.request(row.request);
      const uint32_t size = s.config().block_size;
      for (uint32_t i = 0; i < row.num_tokens; ++i) {
        const uint32_t block = (row.num_computed + i) / size;
        RC_ASSERT(block < r.blocks.size());
        RC_ASSERT(s.blocks().ref_count(r.blocks[block]) == 1U);
      }
      if (row.slot == kNoSlot) continue;
      RC_ASSERT(s.residency().owner(row.slot) == row.adapter);
      RC_ASSERT(s.residency().slot_generation(row.slot) == row.generation);
    }
    seen.discarded += int(plan.num_discarded);
  }

  bool advance() {
    const bool more = engine_.advance();
    for (size_t i = 0; engine_.step(i) != nullptr; ++i) check_step(*engine_.step(i));
    seen.steps_ahead += engine_.step(1) != nullptr;
    if (engine_.step() != nullptr) {
      std::map<AdapterRef, int> rows;
      for (const StepRow& row : engine_.step()->rows) ++rows[row.adapter];
      seen.mixed_steps += rows.size() > 1;
      const bool runs = engine_.scheduler().step_can_start();
      seen.overlaps +=
          runs && num_in_state(engine_.scheduler().residency(), AdapterState::copying) > 0;
    }
    return more;
  }

  Draw draw_;
  Model model_;
  SchedulerConfig config_;
  StepsAhead ahead_;
  ReferenceEngine engine_;
  std::map<std::string, Current> current_;
  std::vector<Submitted> submitted_;
};

// [2.10] [2.13] [2.16] [5.24] [7.17] P63 P32 P39 P40 P42 P54 P55 P62 P66: every request gets the
// tokens and logits that the oracle computes for it alone, with a step planned ahead or without.
RC_GTEST_PROP(Executor, TokensEqualTheOracle, ()) {
  const SeededCase c = any_seeded_case(80);
  Workload w(c.seed);
  for (int i = 0; i < c.num_ops; ++i) w.operate();
  w.run();
  RC_LOG() << w.num_requests() << " requests\n";
  const std::string difference = w.first_difference();
  RC_CLASSIFY(w.seen.steps_ahead > 0, "a step ahead");
  RC_CLASSIFY(w.seen.steps_ahead > 0 && w.seen.preemptions > 0, "a step ahead, preempts");
  RC_CLASSIFY(w.seen.steps_ahead > 0 && w.config().load_mode == LoadMode::blocking,
              "a step ahead, blocking");
  RC_CLASSIFY(w.seen.discarded > 0, "discards rows");
  RC_CLASSIFY(w.seen.preemptions > 0, "preempts");
  RC_CLASSIFY(w.seen.hits > 0, "prefix hits");
  RC_CLASSIFY(w.seen.evictions > 0, "evicts adapters");
  RC_CLASSIFY(w.seen.chunks > 0, "chunks");
  RC_CLASSIFY(w.seen.mixed_steps > 0, "mixed steps");
  RC_CLASSIFY(w.seen.overlaps > 0, "copies during steps");
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
  RC_ASSERT(w.engine().scheduler().blocks().num_referenced() == 0U);
}

// --- slots ----------------------------------------------------------------------------------

// Every byte of the slots, A and B of all slices.
std::vector<reference::LoraSlice> all_slices(const reference::SlotWeights& slots,
                                             const reference::ModelConfig& model) {
  using reference::PackedLinear;
  std::vector<reference::LoraSlice> out{slots.embedding()};
  const bool has_dense = base_model_shapes(model).intermediate > 0;
  const auto add = [&](const reference::LinearRef& linear) {
    for (const reference::LoraSlice& slice : slots.slices(linear)) out.push_back(slice);
  };
  add({-1, -1, PackedLinear::lm_head});
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    add({layer, -1, PackedLinear::qkv});
    add({layer, -1, PackedLinear::o});
    for (int64_t e = has_dense ? -1 : 0; e < model.num_experts; ++e) {
      add({layer, e, PackedLinear::gate_up});
      add({layer, e, PackedLinear::down});
    }
  }
  return out;
}

bool same_bytes(const reference::ConstTensorView& a, const reference::ConstTensorView& b,
                int32_t slot) {
  const size_t num_bytes = size_t(a.size(1) * a.size(2)) * sizeof(float);
  return a.shape == b.shape && std::memcmp(a[slot].data, b[slot].data, num_bytes) == 0;
}

bool same_slot(const reference::SlotWeights& a, const reference::SlotWeights& b,
               const reference::ModelConfig& model, int32_t slot) {
  const auto slices_a = all_slices(a, model), slices_b = all_slices(b, model);
  for (size_t i = 0; i < slices_a.size(); ++i) {
    const reference::LoraSlice &x = slices_a[i], &y = slices_b[i];
    if (!same_bytes(x.a, y.a, slot) || !same_bytes(x.b, y.b, slot)) return false;
    if (x.ranks[size_t(slot)] != y.ranks[size_t(slot)]) return false;
    if (x.scalings[size_t(slot)] != y.scalings[size_t(slot)]) return false;
  }
  return a.content(slot) == b.content(slot);
}

// Logits of `tokens`, run as one sequence in `slot` beside base tokens.
reference::Matrix<float> logits_in_slot(const Model& model, const reference::SlotWeights& slots,
                                        int32_t slot, const std::vector<int32_t>& tokens) {
  const auto num_tokens = int64_t(tokens.size());
  std::vector<BlockId> table;
  reference::TokenBatch batch;
  for (int64_t i = 0; i < num_tokens; ++i) {
    table.push_back(BlockId(num_tokens - i));  // one token each, in any order
    batch.logits_of.push_back(i);
  }
  PagedKv kv({.num_blocks = uint32_t(num_tokens) + 1,
              .block_size = 1,
              .num_layers = model.config.num_layers,
              .row_size = model.config.num_kv_heads * model.config.head_dim});
  kv.begin_step({{table, 0, uint32_t(num_tokens)}});
  batch.ids = tokens;
  for (int64_t i = 0; i < num_tokens; ++i) batch.positions.push_back(i);
  batch.sequences.assign(tokens.size(), 0);
  const reference::SlotLora lora(slots, std::vector<int32_t>(tokens.size(), slot));
  return reference::forward<float>(model, batch, kv, &lora);
}

bool same_bits(const reference::Matrix<float>& a, const reference::Matrix<float>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         std::memcmp(a.data(), b.data(), size_t(a.size()) * sizeof(float)) == 0;
}

// [5.9] P31 P9 P13: slots are filled in every order, some fills break off, some adapters change
// everything and some little. A slot is then, byte for byte, what it would be in a fresh engine,
// and an adapter computes there what it computes straight from its file.
RC_GTEST_PROP(Executor, AReusedSlotIsAFreshSlot, ()) {
  const SeededCase c = any_seeded_case(20);
  Draw draw(c.seed);
  const Model model = reference::random_model(reference::random_model_config(c.seed), c.seed);
  const auto shapes = base_model_shapes(model.config);
  const auto max_loras = int32_t(draw.between(1, 4));
  const int64_t max_rank = draw.one_of<int64_t>({4, 5, 8});
  std::vector<RandomAdapter> adapters;
  for (int64_t i = 0; i < 4; ++i) {
    reference::RandomAdapterOptions options = reference::random_adapter_options(c.seed + i);
    if (i == 0) options = {.rank = 4, .embed_tokens = true, .lm_head = true};  // the rich one
    adapters.push_back(random_adapter(model.config, c.seed + i, options));
  }
  reference::SlotWeights slots(shapes, max_loras, max_rank);
  std::vector<const reference::Adapter*> owner(size_t(max_loras), nullptr);
  bool reused = false;
  for (int i = 0; i < c.num_ops; ++i) {
    const auto slot = int32_t(draw(max_loras));
    reused = reused || owner[size_t(slot)] != nullptr;
    if (draw.one_in(6)) {
      slots.begin_fill(slot);
      owner[size_t(slot)] = nullptr;
      continue;
    }
    const size_t index = draw.one_in(3) ? 0 : size_t(draw(4));
    owner[size_t(slot)] = &adapters[index].adapter;
    slots.fill(slot, adapters[index].adapter, {index + 1, uint64_t(i) + 1});
  }
  const std::vector<int32_t> tokens = reference::random_tokens(model.config, 5, c.seed);
  for (int32_t slot = 0; slot < max_loras; ++slot) {
    reference::SlotWeights fresh(shapes, max_loras, max_rank);
    const reference::Adapter* adapter = owner[size_t(slot)];
    if (adapter != nullptr) fresh.fill(slot, *adapter, slots.content(slot));
    RC_ASSERT(same_slot(slots, fresh, model.config, slot));
    if (adapter == nullptr) continue;
    RC_ASSERT(same_bits(logits_in_slot(model, slots, slot, tokens),
                        reference::sequence_logits<float>(model, adapter, tokens)));
  }
  RC_CLASSIFY(reused, "a slot is used again");
}

// --- launches -------------------------------------------------------------------------------

enum class Damage : uint8_t { none, other_adapter, same_adapter_again, half_filled };

// [2.10] [2.12] P32: between plan and launch something happens to a slot. The step is refused if
// and only if it reads that slot.
RC_GTEST_PROP(Executor, ASlotFilledUnderAStepIsCaught, ()) {
  const SeededCase c = any_seeded_case(12);
  Draw draw(c.seed);
  const Model model = reference::random_model(reference::random_model_config(c.seed), c.seed);
  SchedulerConfig config;
  config.residency.max_loras = int32_t(draw.between(2, 4));
  config.block_size = 2;
  config.num_blocks = 100;
  config.load_mode = draw.one_of({LoadMode::overlap, LoadMode::blocking});
  StepByHand engine(model, config, 4);
  for (int i = 0; i < 5; ++i) {
    engine.add_adapter(random_adapter(model.config, c.seed + uint64_t(i)));
  }
  for (int i = 0; i < c.num_ops; ++i) {
    EngineRequest r = random_engine_request(draw, uint64_t(i), model.config, 7);
    if (!draw.one_in(4)) r.adapter = std::to_string(draw.between(1, 5));
    engine.submit(r);
    if (draw.one_in(2)) engine.step();
  }
  const StepPlan& plan = engine.plan();
  RC_PRE(!plan.empty());
  RC_ASSERT(engine.runner.problem(plan, engine.scheduler) == "");
  const auto damage = Damage(draw(4));
  const auto slot = int32_t(draw(config.residency.max_loras));
  const reference::SlotContent before = engine.runner.slot(slot);
  if (damage == Damage::none || before.uid == kBaseUid) return;
  engine.runner.begin_copy(slot);
  if (damage != Damage::half_filled) {
    const bool same = damage == Damage::same_adapter_again;
    const Uid uid = same ? before.uid : before.uid % 5 + 1;
    if (!engine.runner.is_on_cpu(uid)) engine.runner.load(uid);
    engine.runner.end_copy(uid, slot, before.generation + 1);
  }
  bool reads = false;
  for (const StepRow& row : plan.rows) reads = reads || row.slot == slot;
  RC_CLASSIFY(reads, "the step reads the slot");
  RC_CLASSIFY(damage == Damage::same_adapter_again, "only the generation tells");
  RC_ASSERT((engine.runner.problem(plan, engine.scheduler) != "") == reads);
}

}  // namespace
}  // namespace loratory::sim
