#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpu/model/sampler.hpp"
#include "scheduler_sim/engine/sampled_before.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::gpu {

/// How many tokens, rows and sampled rows a launch has, padding included: what its grids follow
/// from.
struct StepShape {
  int32_t num_tokens = 0;
  int32_t num_rows = 0;
  int32_t num_sampled = 0;

  friend bool operator==(const StepShape&, const StepShape&) = default;
};

/// One row of a step that samples.
struct SampledRow {
  int32_t token = 0;    ///< index into the batch: the row's last token
  SamplingRow how{};    ///< at the position of the token that is sampled
  int64_t column = -1;  ///< place in StepResult::sampled; -1: padding
  sim::RequestRef request = sim::kNoRequest;
};

/// A plan, flattened: the tokens of its rows one after the other [2.13], then padding [2.16].
struct StepBatch {
  /// Below 0: what sampled row -1 - id of the step before has sampled.
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> token_rows;                    ///< -1: padding
  std::vector<int32_t> token_slots;                   ///< -1: base model, padding
  std::vector<int32_t> row_starts;                    ///< [rows + 1]
  std::vector<int32_t> contexts;                      ///< [rows] 0: padding
  std::vector<std::span<const sim::BlockId>> blocks;  ///< [rows] the scheduler's
  std::vector<SampledRow> sampled;
  int64_t num_columns = 0;   ///< of StepResult::sampled: rows that were left out count too
  int32_t num_adapters = 0;  ///< slots that tokens have, each counted once
  int32_t max_row_tokens = 0;

  StepShape shape() const {
    return {int32_t(token_ids.size()), int32_t(contexts.size()), int32_t(sampled.size())};
  }
  bool empty() const { return token_ids.empty(); }
  bool has_lora() const { return num_adapters > 0; }
  /// Every row computes one token: what a decode graph computes.
  bool is_one_token_a_row() const { return token_ids.size() == contexts.size(); }
};

/// How the token of a request at `position` is sampled.
using SamplingOf = std::function<SamplingRow(uint64_t request_id, int64_t position)>;

/// Rows without weights are left out. The block tables are those of the scheduler, until its next
/// plan. `before` knows the sampled rows of the step before, for tokens that the host does not.
StepBatch make_step_batch(const sim::StepPlan& plan, const sim::Scheduler& scheduler,
                          const SamplingOf& sampling_of, const sim::SampledBefore& before);

/// Base tokens without a row, rows without tokens, and sampled rows that nobody reads.
/// Errors   asserted: a shape below the batch's.
void pad(StepBatch& batch, const StepShape& shape);

/// The arrays of a step in one buffer: one copy brings all of them to the GPU. Offsets follow from
/// the shape, so that a captured graph finds them where they were. All are multiples of 256 bytes.
struct StepArrays {
  StepShape shape;
  int32_t max_blocks = 0;  ///< width of a block table
  int64_t token_ids = 0, positions = 0, token_rows = 0, token_slots = 0;  ///< int32 [T]
  int64_t row_starts = 0;                                                 ///< int32 [R + 1]
  int64_t contexts = 0;                                                   ///< int32 [R]
  int64_t sampled_tokens = 0, sampled_slots = 0;                          ///< int32 [S]
  int64_t sampling = 0;                                                   ///< SamplingRow [S]
  int64_t block_tables = 0;                                               ///< int32 [R, max_blocks]
  int64_t bytes = 0;
};
StepArrays lay_out_step(const StepShape& shape, int32_t max_blocks);

/// Writes all of the arrays. Past a row's own blocks its table holds the null block.
/// Errors   asserted: a batch of another shape, a table wider than max_blocks, a buffer too small.
void write_step(const StepBatch& batch, const StepArrays& arrays, std::span<std::byte> out);

}  // namespace loratory::gpu
