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

constexpr size_t kRecordBytes = sizeof(EventLog::Record);
constexpr size_t kBufferBytes = 1024 * kRecordBytes;

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

void EventLog::on_decision(const Decision& d) {
  const Record record = record_of(d);
  const auto* bytes = reinterpret_cast<const std::byte*>(record.data());
  buffer_.insert(buffer_.end(), bytes, bytes + kRecordBytes);
  ++size_;
  if (buffer_.size() >= kBufferBytes) {
    hash_ = folded();
    buffer_.clear();
  }
  if (keep_) decisions_.push_back(d);
}

uint64_t EventLog::folded() const {
  return XXH3_64bits_withSeed(buffer_.data(), buffer_.size(), hash_);
}

std::string EventLog::hash() const { return fmt::format("{:016x}", folded()); }

std::string EventLog::line_of(const Decision& d) {
  const std::string request = d.request == kNoRequestId ? "-" : fmt::format("{}", d.request);
  const auto [a, b] = columns_of(d);
  return fmt::format("{} {} {} {} {} {}", d.time_ns, name_of(d), request, d.uid, a, b);
}

void EventLog::write_text(std::ostream& out, const std::vector<Decision>& decisions) {
  for (const Decision& d : decisions) out << line_of(d) << '\n';
}

}  // namespace loratory::sim
