#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_sim/prefix_cache/block_pool.hpp"
#include "scheduler_sim/residency/residency.hpp"

namespace loratory::sim {

/// Index of a live request inside one Scheduler; reused after it finished.
using RequestRef = uint32_t;
inline constexpr RequestRef kNoRequest = UINT32_MAX;

enum class RequestState : uint8_t { queued, prefilling, decoding, preempted, finished };
enum class FinishReason : uint8_t { stop, length, abort, error };

/// What a client asks for.
struct RequestSpec {
  uint64_t id = 0;                 ///< unique among live requests
  Uid adapter = kBaseUid;          ///< its name was resolved once, by the caller
  int32_t priority = 0;            ///< lower runs first
  uint32_t num_prompt_tokens = 0;  ///< >= 1
  uint32_t max_new_tokens = 0;     ///< 0 = prefill only
  /// What is in the prompt, for the prefix cache; at most one of the two, empty = content unknown.
  std::span<const int32_t> tokens{};           ///< the prompt itself, num_prompt_tokens entries
  std::span<const uint64_t> block_contents{};  ///< one id per full block of the prompt
  std::span<const int32_t> stop_tokens{};  ///< end the request when sampled (EOS is one of them)
  bool prompt_logprobs = false;            ///< needs logits of every prompt row: matches nothing
  bool disable_prefix_cache = false;       ///< neither matches nor publishes
};

enum class SubmitStatus : uint8_t {
  ok,
  empty_prompt,
  bad_content,  ///< tokens or block_contents do not fit num_prompt_tokens
  duplicate_id,
  too_long,    ///< num_prompt_tokens + max_new_tokens > max_model_len
  never_fits,  ///< needs more KV blocks than the pool has
  unknown_adapter,
};
const char* describe(SubmitStatus status);

/// Place in the waiting order: by priority, preempted ones first, then arrival. Only WalkOrder sets
/// `not_packed`.
struct WaitKey {
  int32_t priority = 0;
  uint32_t not_preempted = 1;
  bool not_packed = false;
  uint64_t arrival_seq = 0;
  bool operator==(const WaitKey&) const = default;
  constexpr std::strong_ordering operator<=>(const WaitKey& other) const {
    const auto group_order = group() <=> other.group();
    return group_order != 0 ? group_order : arrival_seq <=> other.arrival_seq;
  }
  /// Comes before every request.
  static constexpr WaitKey before_all() { return {INT32_MIN, 0, false, 0}; }

 private:
  /// All but the last field, in one number: keys are compared more often than anything else.
  constexpr int64_t group() const {
    return int64_t{priority} * 4 + int64_t{not_preempted} * 2 + int64_t{not_packed};
  }
};

/// Place in the order of reservations: by priority, then by number.
struct ReservationKey {
  int32_t priority;
  int64_t number;
  auto operator<=>(const ReservationKey&) const = default;
};

/// A live request: counters, KV blocks, and its place in the waiting order. What has no value here
/// gets one when the request is accepted, or later when it begins to mean something.
///   num_total = num_prompt + num_generated; a step computes KV for some of the tokens beyond
///   num_computed and samples one token when it reaches num_total.
struct alignas(64) Request {
  // What every step asks of every running request: one cache line.
  uint32_t num_prompt, num_generated = 0, num_computed = 0, max_new_tokens;
  AdapterRef adapter;
  RequestState state;
  uint8_t num_in_flight = 0;   ///< steps in flight that it has tokens in
  bool end_at_commit = false;  ///< aborted or failed while in flight
  FinishReason end_reason;
  bool match_prefix, publish_prefix;
  uint32_t room = 0;  ///< tokens that `blocks` can hold
  std::vector<BlockId> blocks;
  uint64_t arrival_seq;  ///< order of submission, never reused

  uint64_t id;
  uint64_t admission_seq;  ///< order of (last) admission
  int32_t priority;
  uint32_t num_recoverable = 0;  ///< the most num_computed that it lost by a preemption
  uint32_t last_row_tokens;      ///< of its last row; unspecified while it decodes
  std::vector<BlockKey> keys;    ///< known keys of its first full blocks
  std::vector<int32_t> tokens;   ///< prompt + generated, when the submitter gave tokens
  std::vector<int32_t> stop_tokens;

  // Waiting only.
  WaitKey wait_key;
  RequestRef rejected_prev = kNoRequest, rejected_next = kNoRequest;  ///< by first_rejection_ns
  int64_t num_rejections = 0;  ///< walks in which the adapter gate turned it away, while they count
  int64_t first_rejection_ns;  ///< -1 = it was not turned away
  int64_t reservation;         ///< number, -1 = not reserving

  uint32_t num_total() const { return num_prompt + num_generated; }
  /// num_computed and num_generated as they will be when the step in flight has ended, if the
  /// request goes on. At most one is in flight. Of a request that generates nothing the step that
  /// ends its prompt counts as if it did.
  uint32_t computed_ahead() const {
    if (num_in_flight == 0) return num_computed;
    return num_computed + (state == RequestState::decoding ? 1 : last_row_tokens);
  }
  uint32_t generated_ahead() const {
    const bool samples = num_in_flight > 0 && computed_ahead() == num_total();
    return num_generated + uint32_t(samples);
  }
  /// The step in flight is known to be its last one, whatever it samples.
  bool ends_in_flight() const {
    if (num_in_flight == 0) return false;
    const uint32_t ahead = generated_ahead();
    return end_at_commit || (ahead > num_generated && ahead >= max_new_tokens);
  }
  /// Output tokens still to come; a request that is still in prefill counts all of them.
  uint32_t num_remaining() const { return max_new_tokens - num_generated; }
};

}  // namespace loratory::sim
