#include "scheduler_sim/simulator/event_log.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <ostream>
#include <type_traits>
#include <variant>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace loratory::sim {
namespace {

constexpr uint64_t kChunkRecords = 1024;

// The columns a and b of the log, and of its hash: docs/simulation.md, part "The event log".
using Columns = std::array<int64_t, 2>;

// clang-format off
Columns columns(const decision::Arrival& d) { return {d.num_prompt_tokens, d.max_new_tokens}; }
Columns columns(const decision::Admission& d) { return {d.num_cached_tokens, d.num_step_tokens}; }
Columns columns(const decision::Chunk& d) { return {d.num_step_tokens, d.num_computed}; }
Columns columns(const decision::Load& d) { return {d.bytes, 0}; }
Columns columns(const decision::Copy& d) { return {d.slot, d.bytes}; }
Columns columns(const decision::CopyDone& d) { return {d.slot, 0}; }
Columns columns(const decision::Eviction& d) { return {d.slot, int64_t{d.from_cpu}}; }
Columns columns(const decision::Reservation& d) { return {d.number, 0}; }
Columns columns(const decision::Drain& d) { return {d.num_steps_left, 0}; }
Columns columns(const decision::Preemption& d) { return {d.num_lost_tokens, 0}; }
Columns columns(const decision::Finish& d) { return {int64_t(d.reason), d.num_generated}; }
Columns columns(const decision::Unload& d) { return {d.num_freed_blocks, 0}; }
Columns columns(const decision::LoadFailure& d) { return {int64_t{d.is_retried}, 0}; }
// clang-format on

template <typename Kind>
Columns columns(const Kind& /*d*/) {
  static_assert(std::is_empty_v<Kind>, "what a decision holds is in the log");
  return {0, 0};
}

Columns columns_of(const Decision& d) {
  return std::visit([](const auto& what) { return columns(what); }, d.what);
}

}  // namespace

EventLog::Record EventLog::record_of(const Decision& d) {
  const auto [a, b] = columns_of(d);
  return {uint64_t(d.time_ns), d.what.index(), d.request, d.uid, uint64_t(a), uint64_t(b)};
}

// A few records at a time: a fleet has many logs, and what each of them holds stays small.
struct EventLog::Hasher {
  static constexpr size_t kMostPending = 16;

  Hasher() {
    XXH3_64bits_reset_withSeed(&state, 0);
    pending.reserve(kMostPending);
  }
  void add(const Record& record) {
    pending.push_back(record);
    if (pending.size() == kMostPending) take_pending();
  }
  void take_pending() {
    XXH3_64bits_update(&state, pending.data(), pending.size() * sizeof(Record));
    pending.clear();
  }
  uint64_t hash() const {
    Hasher all = *this;
    all.take_pending();
    return XXH3_64bits_digest(&all.state);
  }

  XXH3_state_t state;
  std::vector<Record> pending;
};

EventLog::EventLog(bool keep) : keep_(keep), hasher_(std::make_unique<Hasher>()) {}
EventLog::~EventLog() = default;

void EventLog::on_decision(const Decision& d) {
  hasher_->add(record_of(d));
  if (++size_ % kChunkRecords == 0) {
    XXH3_64bits_reset_withSeed(&hasher_->state, hasher_->hash());
  }
  if (keep_) decisions_.push_back(d);
}

std::string EventLog::hash() const { return fmt::format("{:016x}", hasher_->hash()); }

std::string EventLog::line_of(const Decision& d) {
  const std::string request = d.request == kNoRequestId ? "-" : fmt::format("{}", d.request);
  const auto [a, b] = columns_of(d);
  return fmt::format("{} {} {} {} {} {}", d.time_ns, name_of(d), request, d.uid, a, b);
}

void EventLog::write_text(std::ostream& out, const std::vector<Decision>& decisions) {
  for (const Decision& d : decisions) out << line_of(d) << '\n';
}

}  // namespace loratory::sim
