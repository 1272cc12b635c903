#include "check/kernels/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace loratory::check {
namespace {

constexpr size_t kGuardBytes = 512, kAlignment = 256;
constexpr std::byte kGuard{0xFF};  // NaN in every format but i8

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The first byte that differs, or npos.
size_t first_change(const std::byte* before, const std::byte* after, size_t bytes) {
  if (bytes == 0 || std::memcmp(before, after, bytes) == 0) return std::string::npos;
  return size_t(std::mismatch(before, before + bytes, after).first - before);
}

}  // namespace

Arena::~Arena() {
  if (base_ != nullptr) memory_->release(base_);
}

void Arena::place() {
  size_t at = kGuardBytes;
  for (Region& region : regions_) {
    region.begin = at + region.shift;
    at += aligned(region.shift + region.bytes) + kGuardBytes;
  }
  size_ = at;
  if (size_ <= capacity_) return;
  if (base_ != nullptr) memory_->release(base_);
  capacity_ = size_ + size_ / 2;
  base_ = static_cast<std::byte*>(memory_->allocate(capacity_));
}

void Arena::upload() {
  before_.assign(size_, kGuard);
  for (const Region& region : regions_) {
    if (region.host != nullptr && region.bytes > 0) {
      std::memcpy(before_.data() + region.begin, region.host, region.bytes);
    }
  }
  memory_->write(base_, before_.data(), size_);
}

bool Arena::guard_changed(size_t begin, size_t end, const std::string& region, bool is_behind,
                          std::vector<Change>& out) const {
  const size_t at = first_change(before_.data() + begin, after_ + begin, end - begin);
  if (at == std::string::npos) return false;
  out.push_back({true, is_behind ? fmt::format("byte {} behind {}", at, region)
                                 : fmt::format("byte {} before {}", end - begin - at, region)});
  return true;
}

std::vector<Arena::Change> Arena::read_back() {
  after_ = memory_->host_view(base_);
  if (after_ == nullptr) {
    copy_.resize(size_);
    memory_->read(copy_.data(), base_, size_);
    after_ = copy_.data();
  }
  std::vector<Change> out;
  bool has_guard =
      !regions_.empty() && guard_changed(0, regions_[0].begin, regions_[0].name, false, out);
  bool has_input = false;
  for (size_t i = 0; i < regions_.size(); ++i) {
    const Region& region = regions_[i];
    const size_t end = region.begin + region.bytes;
    if (!has_guard) {
      const size_t next = i + 1 < regions_.size() ? regions_[i + 1].begin : size_;
      has_guard = guard_changed(end, next, region.name, true, out);
    }
    if (has_input || !region.is_input) continue;
    const size_t at =
        first_change(before_.data() + region.begin, after_ + region.begin, region.bytes);
    if (at == std::string::npos) continue;
    out.push_back({false, fmt::format("{}, byte {}", region.name, at)});
    has_input = true;
  }
  return out;
}

}  // namespace loratory::check
