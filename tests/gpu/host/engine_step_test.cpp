// A plan as arrays for the GPU: run by the reference's forward pass, they give the logits of
// ModelRunner, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "fuzz/support/engine_case.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "gpu/engine/step_batch.hpp"
#include "reference/model/slot_lora.hpp"
#include "scheduler_sim/executors/paged_kv.hpp"

namespace loratory::gpu {
namespace {

using reference::Matrix;
using reference::Model;
using sim::BlockId;
using sim::Draw;
using sim::StepPlan;

constexpr int64_t kStepMaxRank = 4;

SamplingRow greedy(uint64_t, int64_t position) {
  SamplingRow row;
  row.position = position;
  return row;
}

// What lies in the buffer that goes to the GPU.
class Arrays {
 public:
  Arrays(const StepBatch& batch, int32_t max_blocks)
      : at_(lay_out_step(batch.shape(), max_blocks)), bytes_(size_t(at_.bytes), std::byte{0x5A}) {
    write_step(batch, at_, bytes_);
  }

  int32_t number(int64_t offset, int64_t index) const { return get<int32_t>(offset, index); }
  template <typename T>
  T get(int64_t offset, int64_t index) const {
    T out;
    std::memcpy(&out, bytes_.data() + offset + index * int64_t(sizeof out), sizeof out);
    return out;
  }
  const StepArrays& at() const { return at_; }

 private:
  StepArrays at_;
  std::vector<std::byte> bytes_;
};

// The pass that the arrays describe, on keys and values of its own. `last_sampled` is what the step
// before has sampled.
Matrix<float> run(const Model& model, const Arrays& arrays, sim::PagedKv& kv,
                  const reference::SlotWeights& slots, const std::vector<int32_t>& last_sampled) {
  const StepArrays& at = arrays.at();
  std::vector<std::vector<BlockId>> tables;
  std::vector<sim::KvSequence> sequences;
  reference::TokenBatch batch;
  std::vector<int32_t> token_slots;
  for (int32_t row = 0; row < at.shape.num_rows; ++row) {
    auto& table = tables.emplace_back();
    for (int32_t i = 0; i < at.max_blocks; ++i) {
      const auto id = BlockId(arrays.number(at.block_tables, row * at.max_blocks + i));
      if (id != sim::kNullBlock) table.push_back(id);
    }
    const int32_t first = arrays.number(at.row_starts, row);
    const auto num_tokens = uint32_t(arrays.number(at.row_starts, row + 1) - first);
    const auto context = uint32_t(arrays.number(at.contexts, row));
    sequences.push_back({{}, context - num_tokens, num_tokens});
  }
  for (size_t i = 0; i < tables.size(); ++i) sequences[i].blocks = tables[i];
  static constexpr BlockId kPadding[] = {sim::kNullBlock};
  for (int32_t t = 0; t < at.shape.num_tokens; ++t) {
    const int32_t row = arrays.number(at.token_rows, t);
    const int32_t id = arrays.number(at.token_ids, t);
    batch.ids.push_back(id >= 0 ? id : last_sampled.at(size_t(-1 - id)));
    batch.positions.push_back(arrays.number(at.positions, t));
    batch.sequences.push_back(row >= 0 ? row : int64_t(sequences.size()));
    if (row < 0) sequences.push_back({kPadding, 0, 1});
    token_slots.push_back(arrays.number(at.token_slots, t));
  }
  for (int32_t i = 0; i < at.shape.num_sampled; ++i) {
    const int32_t token = arrays.number(at.sampled_tokens, i);
    batch.logits_of.push_back(token);
    EXPECT_EQ(arrays.number(at.sampled_slots, i), token_slots[size_t(token)]);
  }
  kv.begin_step(sequences);
  const reference::SlotLora lora(slots, token_slots);
  return reference::forward<float>(model, batch, kv, &lora);
}

bool same_bits(const Matrix<float>& a, const Matrix<float>& b, int64_t column_a, int64_t column_b) {
  return std::memcmp(a.col(column_a).data(), b.col(column_b).data(),
                     size_t(a.rows()) * sizeof(float)) == 0;
}

// Runs a random workload by hand; every step once by the runner, once from the arrays.
class Workload {
 public:
  explicit Workload(uint64_t seed)
      : draw_(seed),
        model_(reference::random_model(reference::random_model_config(seed), seed)),
        config_(scheduler_config(draw_)),
        engine_(model_, config_, kStepMaxRank),
        slots_(base_model_shapes(model_.config), config_.residency.max_loras, kStepMaxRank),
        kv_({.num_blocks = config_.num_blocks,
             .block_size = config_.block_size,
             .num_layers = model_.config.num_layers,
             .row_size = model_.config.num_kv_heads * model_.config.head_dim}) {
    for (uint64_t i = 0; i < 3; ++i) {
      adapters_.push_back(
          random_adapter(model_.config, seed + i, reference::random_adapter_options(seed + i)));
      engine_.add_adapter(adapters_.back());
    }
  }

  void submit(uint64_t id) {
    sim::EngineRequest r = random_engine_request(draw_, id, model_.config, 7);
    r.params.sampling = {};
    if (!draw_.one_in(3)) r.adapter = std::to_string(draw_.between(1, 3));
    engine_.submit(r);
  }

  // A step, or two of which the second is planned and prepared before the first has run [7.17].
  bool step() {
    const StepPlan& plan = engine_.plan();
    if (plan.empty()) return false;
    const Prepared first = prepare(plan);
    if (!draw_.one_in(2) || !engine_.scheduler.can_plan_ahead()) {
      finish(first);
      return true;
    }
    const StepPlan& ahead = engine_.plan();
    if (ahead.empty()) {
      finish(first);
      return true;
    }
    const Prepared second = prepare(ahead);
    for (const int32_t id : second.batch.token_ids) num_unknown += id < 0;
    finish(first);
    finish(second);
    return true;
  }

  int num_padded = 0, num_lora = 0, num_several = 0, num_chunks = 0, num_unknown = 0;

 private:
  static sim::SchedulerConfig scheduler_config(Draw& draw) {
    sim::SchedulerConfig c = sim::random_scheduler_config(draw);
    c.num_blocks = 80;
    return c;
  }

  void follow_slots() {
    for (int32_t slot = 0; slot < slots_.max_loras(); ++slot) {
      const reference::SlotContent& content = engine_.runner.slot(slot);
      if (content.uid == 0 || content == slots_.content(slot)) continue;
      slots_.fill(slot, adapters_[content.uid - 1].adapter, content);
    }
  }

  struct Prepared {
    sim::ModelRunner::Step step;
    StepBatch batch;
    Arrays arrays;
  };

  Prepared prepare(const StepPlan& plan) {
    StepBatch batch = make_step_batch(plan, engine_.scheduler, greedy, before_);
    before_.next_step();
    for (size_t i = 0; i < batch.sampled.size(); ++i) {
      before_.add(batch.sampled[i].request, int32_t(i));
    }
    std::set<int32_t> slots(batch.token_slots.begin(), batch.token_slots.end());
    slots.erase(sim::kNoSlot);
    EXPECT_EQ(batch.num_adapters, std::ssize(slots));
    num_lora += batch.has_lora();
    num_several += batch.num_adapters > 1;
    num_chunks += !batch.is_one_token_a_row();
    if (draw_.one_in(2)) {
      StepShape shape = batch.shape();
      shape.num_tokens += int32_t(draw_.between(1, 5));
      shape.num_rows += int32_t(draw_(4));
      shape.num_sampled += int32_t(draw_(4));
      pad(batch, shape);
      ++num_padded;
    }
    Arrays arrays(batch, 40);
    return {engine_.runner.prepare(plan, engine_.scheduler), std::move(batch), std::move(arrays)};
  }

  void finish(const Prepared& prepared) {
    const StepBatch& batch = prepared.batch;
    const std::vector<int32_t> sampled = engine_.runner.run(prepared.step);
    follow_slots();
    const Matrix<float> logits = run(model_, prepared.arrays, kv_, slots_, last_sampled_);
    const Matrix<float>& expected = engine_.runner.logits();
    ASSERT_EQ(expected.cols(), batch.num_columns);
    for (size_t i = 0; i < batch.sampled.size(); ++i) {
      const int64_t column = batch.sampled[i].column;
      if (column < 0) continue;
      ASSERT_TRUE(same_bits(logits, expected, int64_t(i), column)) << "row " << i;
    }
    last_sampled_.clear();
    for (const SampledRow& row : batch.sampled) {
      last_sampled_.push_back(row.column < 0 ? 0 : sampled[size_t(row.column)]);
    }
    engine_.commit(sampled);
  }

  Draw draw_;
  Model model_;
  sim::SchedulerConfig config_;
  sim::StepByHand engine_;
  std::vector<reference::RandomAdapter> adapters_;
  reference::SlotWeights slots_;
  sim::PagedKv kv_;
  sim::SampledBefore before_;
  std::vector<int32_t> last_sampled_;
};

// [2.10] [2.13] [2.16]
TEST(StepBatch, ArraysGiveTheLogitsOfTheRunner) {
  int num_padded = 0, num_lora = 0, num_several = 0, num_chunks = 0, num_unknown = 0;
  for (uint64_t seed = 1; seed <= 30 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Workload w(seed);
    uint64_t id = 0;
    for (int i = 0; i < 12; ++i) {
      w.submit(id++);
      if (i % 3 != 0) w.step();
    }
    for (int i = 0; i < 30 && w.step(); ++i) {
    }
    num_padded += w.num_padded, num_lora += w.num_lora, num_chunks += w.num_chunks;
    num_unknown += w.num_unknown, num_several += w.num_several;
  }
  EXPECT_GT(num_padded, 50);
  EXPECT_GT(num_lora, 50);
  EXPECT_GT(num_several, 20);
  EXPECT_GT(num_chunks, 50);
  EXPECT_GT(num_unknown, 50);
}

TEST(StepBatch, PaddingIsNobodysRow) {
  StepBatch batch;
  batch.token_ids = {3}, batch.positions = {4}, batch.token_rows = {0}, batch.token_slots = {2};
  batch.row_starts = {0, 1}, batch.contexts = {5};
  const std::vector<BlockId> blocks{9, 8};
  batch.blocks = {blocks};
  batch.sampled.resize(1);
  pad(batch, {.num_tokens = 4, .num_rows = 4, .num_sampled = 4});
  const Arrays arrays(batch, 3);
  const StepArrays& at = arrays.at();
  for (int64_t i = 1; i < 4; ++i) {
    EXPECT_EQ(arrays.number(at.token_rows, i), -1);
    EXPECT_EQ(arrays.number(at.token_slots, i), -1);
    EXPECT_EQ(arrays.number(at.contexts, i), 0);
    EXPECT_EQ(arrays.number(at.row_starts, i + 1), 1);
    EXPECT_EQ(arrays.number(at.sampled_slots, i), -1);
    EXPECT_EQ(arrays.get<SamplingRow>(at.sampling, i).temperature, 0);
    EXPECT_EQ(arrays.number(at.block_tables, 3 * i), 0);
  }
  EXPECT_EQ(arrays.number(at.block_tables, 0), 9);
  EXPECT_EQ(arrays.number(at.block_tables, 1), 8);
  EXPECT_EQ(arrays.number(at.block_tables, 2), 0);
  EXPECT_EQ(at.block_tables % 256, 0);
}

}  // namespace
}  // namespace loratory::gpu
