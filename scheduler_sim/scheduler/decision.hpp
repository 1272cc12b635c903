#pragma once

#include <cstdint>
#include <variant>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// The kinds of decision, each with what it decided. In the order of these types they are numbered
/// in the event log, which hashes the number.
namespace decision {

// clang-format off
struct Arrival { uint32_t num_prompt_tokens, max_new_tokens; };
struct Admission { uint32_t num_cached_tokens, num_step_tokens; };  ///< found; in its first step
struct Chunk { uint32_t num_step_tokens, num_computed; };  ///< a prefill row after the first one
struct Load { int64_t bytes; };                            ///< disk -> CPU starts
struct LoadDone {};
struct Copy { int32_t slot; int64_t bytes; };              ///< CPU -> GPU starts
struct CopyDone { int32_t slot; };
struct Eviction { int32_t slot; bool from_cpu; };          ///< the slot it had, or kNoSlot
struct Reservation { int64_t number; };
struct Drain { int64_t num_steps_left; };                  ///< begins
struct DrainEnd {};
struct Preemption { uint32_t num_lost_tokens; };           ///< whose KV must be computed again
struct FirstToken {};
struct Finish { FinishReason reason; uint32_t num_generated; };
struct Abort {};                                           ///< asked for; Finish follows
struct Unload { uint32_t num_freed_blocks; };              ///< completed
struct LoadFailure { bool is_retried; };
// clang-format on

using Any =
    std::variant<Arrival, Admission, Chunk, Load, LoadDone, Copy, CopyDone, Eviction, Reservation,
                 Drain, DrainEnd, Preemption, FirstToken, Finish, Abort, Unload, LoadFailure>;

}  // namespace decision

inline constexpr uint64_t kNoRequestId = UINT64_MAX;

/// What the event log holds: decisions and their times, not regular decode steps.
///
///   if (const auto* copy = d.get_if<decision::Copy>()) bytes += copy->bytes;
struct Decision {
  int64_t time_ns;
  uint64_t request;  ///< RequestSpec::id, kNoRequestId = it is about an adapter
  Uid uid;           ///< kBaseUid = base model
  decision::Any what;

  template <typename Kind>
  bool is() const {
    return std::holds_alternative<Kind>(what);
  }
  /// nullptr if the decision is of another kind.
  template <typename Kind>
  const Kind* get_if() const {
    return std::get_if<Kind>(&what);
  }
};
/// The word for the kind of a decision in the event log: "arrival", "load_done", ...
const char* name_of(const Decision& decision);

/// Receives every decision at the moment it is made, in order.
class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void on_decision(const Decision& decision) = 0;
};

/// Passes decisions on and counts them: whoever saw the same count twice knows that nothing was
/// decided in between.
class DecisionNotes {
 public:
  /// `sink` may be nullptr.
  explicit DecisionNotes(DecisionSink* sink) : sink_(sink) {}
  void note(const Decision& decision) {
    ++num_decisions_;
    if (sink_ != nullptr) sink_->on_decision(decision);
  }
  uint64_t num_decisions() const { return num_decisions_; }

 private:
  DecisionSink* sink_;
  uint64_t num_decisions_ = 0;
};

}  // namespace loratory::sim
