#pragma once

#include <cstdint>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// What the event log holds: decisions and their times, not regular decode steps.
enum class DecisionKind : uint8_t {
  arrival,    ///< a = prompt tokens, b = max new tokens
  admission,  ///< a = cached tokens, b = tokens in its first step
  chunk,      ///< a = tokens, b = computed before; prefill rows after the first
  load,       ///< disk -> CPU starts; a = bytes
  load_done,
  copy,         ///< CPU -> GPU starts; a = slot, b = bytes
  copy_done,    ///< a = slot
  eviction,     ///< a = slot it held or -1, b = 1 if it left the CPU
  reservation,  ///< a = reservation number
  drain,        ///< begins; a = steps left
  drain_end,
  preemption,  ///< a = tokens computed that are lost
  first_token,
  finish,        ///< a = FinishReason, b = generated tokens
  abort,         ///< asked for
  unload,        ///< completed; a = blocks freed
  load_failure,  ///< a = 1 if it is tried again
};
const char* name_of(DecisionKind kind);

struct Decision {
  int64_t time_ns;
  DecisionKind kind;
  uint64_t request;  ///< RequestSpec::id, UINT64_MAX = none
  Uid uid;           ///< kBaseUid = base model or none
  int64_t a = 0, b = 0;
};
inline constexpr uint64_t kNoRequestId = UINT64_MAX;

/// Receives every decision at the moment it is made, in order.
class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void on_decision(const Decision& decision) = 0;
};

}  // namespace loratory::sim
