#pragma once

#include <cstdint>
#include <memory>

namespace loratory::sim {

/// What the duration of one step (one forward pass) depends on: sums over the rows of the batch,
/// so that the event loop can move it forward without visiting rows.
struct BatchShape {
  int64_t num_seqs = 0;                ///< rows in the step
  int64_t num_tokens = 0;              ///< all tokens computed, prefill and decode
  int64_t num_prefill_tokens = 0;      ///< tokens of rows that are not decoding
  int64_t num_sampled = 0;             ///< rows whose logits are needed
  int64_t decode_context_tokens = 0;   ///< sum over decoding rows of the KV entries read
  int64_t prefill_context_tokens = 0;  ///< sum over prefill rows of the KV entries read
  int64_t prefill_pairs = 0;    ///< sum over prefill rows of (query, key) pairs: the quadratic term
  int64_t num_lora_tokens = 0;  ///< tokens that have an adapter
  int64_t lora_rank_tokens = 0;        ///< sum over tokens of the true rank of their adapter
  int64_t num_adapters = 0;            ///< distinct adapters
  int64_t sum_rank = 0;                ///< sum of true ranks over distinct adapters
  int64_t max_rank = 0;                ///< largest true rank in the batch
  int64_t num_waiting_seen = 0;        ///< waiting requests looked at to plan the step
  int64_t longest_decode_context = 0;  ///< most KV entries that one decoding row reads
  int64_t longest_prefill = 0;         ///< most tokens of one row that is not decoding
  /// Which row each token belongs to is not what it was in the last step.
  bool rows_changed = false;

  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// Duration of one step. Pure: the same shape always gives the same duration, on any machine.
class StepTimeModel {
 public:
  virtual ~StepTimeModel() = default;
  /// Nanoseconds, >= 1.
  virtual int64_t step_ns(const BatchShape& shape) const = 0;
  /// False: num_waiting_seen does not matter, and the scheduler need not count it.
  virtual bool asks_waiting_seen() const { return true; }
};

}  // namespace loratory::sim
