#include "scheduler_sim/simulator/event_log.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <ostream>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace loratory::sim {
namespace {

constexpr size_t kRecordBytes = 6 * sizeof(uint64_t);
constexpr size_t kBufferBytes = 1024 * kRecordBytes;

}  // namespace

void EventLog::on_decision(const Decision& d) {
  const std::array<uint64_t, 6> record{uint64_t(d.time_ns), uint64_t(d.kind), d.request, d.uid,
                                       uint64_t(d.a),       uint64_t(d.b)};
  static_assert(sizeof record == kRecordBytes);
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

void EventLog::write_text(std::ostream& out, const std::vector<Decision>& decisions) {
  for (const Decision& d : decisions) {
    const std::string request = d.request == kNoRequestId ? "-" : fmt::format("{}", d.request);
    out << fmt::format("{} {} {} {} {} {}\n", d.time_ns, name_of(d.kind), request, d.uid, d.a, d.b);
  }
}

}  // namespace loratory::sim
