#include "check/schedulers/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "check/schedulers/session_draw.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"

namespace loratory::check {
namespace {

constexpr uint64_t kDrawsSession = UINT64_MAX;

struct Part {
  const char* name;
  int32_t Session::*field;
  int32_t low, high;
};

// In the order of the label.
constexpr Part kParts[] = {
    {"ops", &Session::num_ops, 0, 1'000'000},
    {"loras", &Session::max_loras, 1, 4096},
    {"cpu", &Session::max_cpu_loras, 1, 4096},
    {"workers", &Session::num_load_workers, 1, 64},
    {"blocks", &Session::num_blocks, 2, 1 << 20},
    {"bs", &Session::block_size, 1, 1024},
    {"tokens", &Session::max_num_batched_tokens, 1, 1 << 20},
    {"seqs", &Session::max_num_seqs, 1, 4096},
    {"len", &Session::longest, 2, 1 << 20},
    {"names", &Session::num_names, 1, 4096},
};

[[noreturn]] void fail(std::string_view label, std::string_view rule, std::string_view remedy) {
  throw InputError(fmt::format("session {}", shown(label)), rule, remedy);
}

std::vector<std::pair<int32_t, int32_t>> parse_ranges(std::string_view text,
                                                      std::string_view label) {
  std::vector<std::pair<int32_t, int32_t>> ranges;
  for (const std::string_view part : split(text, '+')) {
    const std::vector<std::string_view> ends = split(part, '-');
    const auto first = to_number<int32_t>(ends.front());
    const auto last = to_number<int32_t>(ends.back());
    const bool good = ends.size() <= 2 && first && last && *first >= 0 && *first <= *last;
    if (!good) fail(label, fmt::format("{} is no range", shown(part)), "write drop3-17+40");
    ranges.emplace_back(*first, *last);
  }
  return ranges;
}

// Digits at the end of a part.
std::pair<std::string_view, std::string_view> name_and_number(std::string_view part) {
  const size_t digits = part.find_first_of("0123456789");
  return {part.substr(0, digits), digits == part.npos ? "" : part.substr(digits)};
}

void read_part(Session& session, std::string_view text, std::string_view label) {
  if (text == "faults") {
    session.faults = true;
    return;
  }
  if (text == "ahead") {
    session.ahead = true;
    return;
  }
  const auto [name, digits] = name_and_number(text);
  if (name == "drop") {
    session.dropped = parse_ranges(digits, label);
    return;
  }
  std::vector<std::string> names = {"faults", "ahead", "drop"};
  for (const Part& part : kParts) {
    names.emplace_back(part.name);
    if (name != part.name) continue;
    const auto value = to_number<int32_t>(digits);
    if (!value || *value < part.low || *value > part.high) {
      fail(label, fmt::format("{} must be a number from {} to {}", part.name, part.low, part.high),
           "");
    }
    session.*part.field = *value;
    return;
  }
  fail(label, fmt::format("{} is no part of a session's label", shown(name)),
       did_you_mean(name, names, "docs/check_scheduler.md lists them"));
}

}  // namespace

bool Session::is_dropped(int32_t op) const {
  return std::ranges::any_of(dropped,
                             [&](const auto& d) { return d.first <= op && op <= d.second; });
}

Limits Session::limits() const {
  const int64_t room = int64_t{num_blocks - 1} * block_size;
  Limits l;
  l.max_loras = max_loras;
  l.max_cpu_loras = std::max(max_cpu_loras, max_loras);
  l.num_load_workers = num_load_workers;
  l.block_size = uint32_t(block_size);
  l.num_blocks = uint32_t(num_blocks);
  l.max_num_batched_tokens = uint32_t(std::max(max_num_batched_tokens, max_num_seqs));
  l.max_num_seqs = uint32_t(max_num_seqs);
  l.max_model_len = uint32_t(std::max<int64_t>(longest, room + 1));
  l.max_adapters = num_names;
  l.max_requests = num_ops * 4 + 2;  // an operation submits four at most
  return l;
}

Session draw_session(uint64_t seed) {
  SessionDraw draw(seed, kDrawsSession);
  Session s{.seed = seed};
  s.num_ops = draw.one_of({30, 60, 120, 120});
  s.max_loras = int32_t(draw.between(1, 4));
  s.max_cpu_loras = s.max_loras + int32_t(draw(4));
  s.num_load_workers = int32_t(draw.between(1, 2));
  s.block_size = int32_t(draw.between(1, 4));
  s.longest = draw.one_of({8, 16, 20});
  const int32_t one_request = (s.longest + s.block_size - 1) / s.block_size;
  s.num_blocks = 1 + one_request + draw.one_of({0, 1, 2, 5, 5, 20});
  s.max_num_seqs = draw.one_of({1, 2, 3, 4, 8});
  s.max_num_batched_tokens = s.max_num_seqs + draw.one_of({0, 1, 5, 30});
  s.num_names = s.max_loras + int32_t(draw(4));
  s.faults = draw.one_in(2);
  s.ahead = draw.one_in(2);
  return s;
}

std::string label_of(const Session& s) {
  std::string label = fmt::format("sched.seed{}", s.seed);
  for (const Part& part : kParts) label += fmt::format(".{}{}", part.name, s.*part.field);
  if (s.faults) label += ".faults";
  if (s.ahead) label += ".ahead";
  std::string separator = ".drop";
  for (const auto& [first, last] : s.dropped) {
    label +=
        separator + (first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
    separator = "+";
  }
  return label;
}

Session parse_session(std::string_view label) {
  const std::vector<std::string_view> parts = split(label, '.');
  const std::string_view seed_part = parts.size() > 1 ? parts[1] : "";
  const auto seed = seed_part.starts_with("seed") ? to_number<uint64_t>(seed_part.substr(4))
                                                  : std::optional<uint64_t>{};
  if (parts[0] != "sched" || !seed) {
    fail(label, "is no label of a session", "it begins with sched.seed7");
  }
  Session session = draw_session(*seed);
  if (parts.size() > 2) session.faults = session.ahead = false;
  for (size_t i = 2; i < parts.size(); ++i) read_part(session, parts[i], label);
  return session;
}

}  // namespace loratory::check
