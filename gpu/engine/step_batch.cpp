#include "gpu/engine/step_batch.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/engine/arena.hpp"
#include "reference/base/check.hpp"
#include "scheduler_sim/executors/plan_problem.hpp"

namespace loratory::gpu {

using sim::Request;
using sim::Scheduler;
using sim::StepPlan;
using sim::StepRow;

namespace {

void add_row(const StepRow& row, const Request& r, const sim::SampledBefore& before,
             StepBatch& batch) {
  const size_t end = row.num_computed + row.num_tokens;
  LORATORY_ASSERT(end <= r.tokens.size() + 1, "its tokens are known, or sampled just now");
  const auto index = int32_t(batch.contexts.size());
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const size_t position = row.num_computed + i;
    const bool is_known = position < r.tokens.size();
    batch.token_ids.push_back(is_known ? r.tokens[position] : -1 - before.index_of(row.request));
    batch.positions.push_back(int32_t(row.num_computed + i));
    batch.token_rows.push_back(index);
    batch.token_slots.push_back(row.slot);
  }
  batch.max_row_tokens = std::max(batch.max_row_tokens, int32_t(row.num_tokens));
  batch.contexts.push_back(int32_t(row.num_computed + row.num_tokens));
  batch.row_starts.push_back(int32_t(batch.token_ids.size()));
  batch.blocks.push_back(r.blocks);
}

int32_t num_adapters(std::vector<int32_t> slots_of_rows) {
  std::ranges::sort(slots_of_rows);
  const auto rest = std::unique(slots_of_rows.begin(), slots_of_rows.end());
  return int32_t(std::count_if(slots_of_rows.begin(), rest,
                               [](int32_t slot) { return slot != sim::kNoSlot; }));
}

}  // namespace

StepBatch make_step_batch(const StepPlan& plan, const Scheduler& scheduler,
                          const SamplingOf& sampling_of, const sim::SampledBefore& before) {
  StepBatch batch;
  std::vector<int32_t> slots;  // of rows
  batch.row_starts.push_back(0);
  for (const StepRow& row : plan.rows) {
    const int64_t column = batch.num_columns;
    batch.num_columns += row.samples;
    if (has_no_weights(row, scheduler)) continue;
    const Request& r = scheduler.request(row.request);
    add_row(row, r, before, batch);
    slots.push_back(row.slot);
    if (!row.samples) continue;
    batch.sampled.push_back({.token = int32_t(batch.token_ids.size()) - 1,
                             .how = sampling_of(r.id, int64_t{row.num_computed} + row.num_tokens),
                             .column = column,
                             .request = row.request});
  }
  batch.num_adapters = num_adapters(std::move(slots));
  return batch;
}

void pad(StepBatch& batch, const StepShape& shape) {
  const StepShape own = batch.shape();
  LORATORY_ASSERT(own.num_tokens <= shape.num_tokens && own.num_rows <= shape.num_rows &&
                      own.num_sampled <= shape.num_sampled,
                  "padding only adds");
  const auto num_tokens = size_t(shape.num_tokens), num_rows = size_t(shape.num_rows);
  batch.token_ids.resize(num_tokens, 0);
  batch.positions.resize(num_tokens, 0);
  batch.token_rows.resize(num_tokens, -1);
  batch.token_slots.resize(num_tokens, sim::kNoSlot);
  batch.contexts.resize(num_rows, 0);
  batch.row_starts.resize(num_rows + 1, own.num_tokens);
  batch.blocks.resize(num_rows);
  SampledRow unread;
  unread.token = std::max(0, shape.num_tokens - 1);
  batch.sampled.resize(size_t(shape.num_sampled), unread);
}

StepArrays lay_out_step(const StepShape& shape, int32_t max_blocks) {
  const int64_t tokens = shape.num_tokens, rows = shape.num_rows, sampled = shape.num_sampled;
  StepArrays out{.shape = shape, .max_blocks = max_blocks};
  Arena arena;
  for (int64_t* const at : {&out.token_ids, &out.positions, &out.token_rows, &out.token_slots}) {
    *at = arena.add(tokens * 4);
  }
  out.row_starts = arena.add((rows + 1) * 4);
  out.contexts = arena.add(rows * 4);
  out.sampled_tokens = arena.add(sampled * 4);
  out.sampled_slots = arena.add(sampled * 4);
  out.sampling = arena.add(sampled * int64_t(sizeof(SamplingRow)));
  out.block_tables = arena.add(rows * max_blocks * 4);
  out.bytes = arena.bytes();
  return out;
}

namespace {

template <typename T>
void write_array(const std::vector<T>& from, int64_t offset, std::span<std::byte> out) {
  if (!from.empty()) std::memcpy(out.data() + offset, from.data(), from.size() * sizeof(T));
}

// One array of what each sampled row says.
template <typename Of>
void write_sampled(const StepBatch& batch, int64_t offset, std::span<std::byte> out, Of&& of) {
  for (size_t i = 0; i < batch.sampled.size(); ++i) {
    const auto value = of(batch.sampled[i]);
    std::memcpy(out.data() + size_t(offset) + i * sizeof value, &value, sizeof value);
  }
}

void write_tables(const StepBatch& batch, const StepArrays& arrays, std::span<std::byte> out) {
  static_assert(sizeof(sim::BlockId) == sizeof(int32_t));
  const size_t row_bytes = size_t(arrays.max_blocks) * sizeof(int32_t);
  std::byte* at = out.data() + arrays.block_tables;
  for (const std::span<const sim::BlockId> blocks : batch.blocks) {
    LORATORY_ASSERT(blocks.size_bytes() <= row_bytes, "no request is longer than max_model_len");
    if (!blocks.empty()) std::memcpy(at, blocks.data(), blocks.size_bytes());
    std::memset(at + blocks.size_bytes(), 0, row_bytes - blocks.size_bytes());
    at += row_bytes;
  }
}

}  // namespace

void write_step(const StepBatch& batch, const StepArrays& arrays, std::span<std::byte> out) {
  LORATORY_ASSERT(batch.shape() == arrays.shape, "arrays of this shape");
  LORATORY_ASSERT(int64_t(out.size()) >= arrays.bytes, "room for all arrays");
  write_array(batch.token_ids, arrays.token_ids, out);
  write_array(batch.positions, arrays.positions, out);
  write_array(batch.token_rows, arrays.token_rows, out);
  write_array(batch.token_slots, arrays.token_slots, out);
  write_array(batch.row_starts, arrays.row_starts, out);
  write_array(batch.contexts, arrays.contexts, out);
  const auto sampled = [&](int64_t offset, auto&& of) { write_sampled(batch, offset, out, of); };
  sampled(arrays.sampled_tokens, [](const SampledRow& r) { return r.token; });
  sampled(arrays.sampled_slots,
          [&](const SampledRow& r) { return batch.token_slots[size_t(r.token)]; });
  sampled(arrays.sampling, [](const SampledRow& r) { return r.how; });
  write_tables(batch, arrays, out);
}

}  // namespace loratory::gpu
