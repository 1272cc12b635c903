#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// One sequence in one step.
struct StepRow {
  RequestRef request;
  AdapterRef adapter;     ///< kBaseRef = base model
  int32_t slot;           ///< GPU slot of the adapter, kNoSlot = base model or no slot yet
  uint32_t num_computed;  ///< tokens with KV before the step
  uint64_t generation;    ///< of the slot when it was given to the adapter [2.12], 0 = no slot
  uint32_t num_tokens;    ///< tokens computed in it, >= 1
  bool is_decode;         ///< one token, and the request runs and has generated before [7.2]
  bool samples;           ///< reaches the last token: yields one token
};

/// An adapter of a step, and how many tokens are computed with it.
struct StepAdapter {
  AdapterRef adapter;
  uint32_t num_tokens;
};

/// What one forward pass must compute. Block tables: Scheduler::request(row.request).blocks.
struct StepPlan {
  int64_t step = 0;  ///< counts from 1
  uint32_t num_tokens = 0;
  uint32_t num_decode_rows = 0;
  std::vector<StepRow> rows;
  std::vector<StepAdapter> adapters;  ///< distinct, in the order of the rows before they are packed
  /// Blocking load mode: the pass may start once all of these are on the GPU.
  std::vector<AdapterRef> wait_for;
  /// Adapters that lose their slot and get it back before the pass starts:
  /// Activation::in_set_order.
  std::vector<AdapterRef> copied_again;
  /// Waiting requests that an engine looks at to make this plan if it goes through the queue one by
  /// one: those that it admitted, and those that it passed over on the way. 0 unless
  /// SchedulerConfig::count_waiting_seen.
  uint32_t num_waiting_seen = 0;
  /// Rows whose request has ended since: what they compute counts for nothing [7.17].
  uint32_t num_discarded = 0;

  bool empty() const { return rows.empty(); }
  bool decode_only() const { return num_decode_rows == rows.size(); }
};

/// What the executor brings back.
struct StepResult {
  /// One token per row with `samples`, in row order; empty if the executor computes none (then
  /// every request runs to max_new_tokens).
  std::span<const int32_t> sampled;
};

/// A stretch of future steps that repeat the last one: the same rows, one decode token each, with
/// no decision in between.
struct Stretch {
  int64_t num_steps = 0;    ///< how many at most, 0 = none
  int64_t deadline_ns = 0;  ///< a step of the stretch must be planned before this time
};

}  // namespace loratory::sim
