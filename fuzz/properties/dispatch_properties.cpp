// Dispatch tables: choose() against a model, and the parser against tables and what is left of them
// once bytes have changed.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "fuzz/support/seeded_case.hpp"
#include "gpu/kernels/dispatch_table.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

auto key_of(const DispatchEntry& e) {
  return std::tuple(e.stage, e.num_slices, e.num_in, e.max_rank, e.num_tokens);
}

/// Few different sizes, so that entries and shapes meet at their boundaries.
int64_t any_size(sim::Draw& draw) { return draw.one_of<int64_t>({1, 7, 8, 9, 64, 300}); }
LoraStage any_stage(sim::Draw& draw) { return LoraStage(draw(3)); }

LoraVariant any_variant(sim::Draw& draw, LoraStage stage) {
  const int stages = int(draw.between(1, 4));
  const bool is_linear = stage == LoraStage::linear;
  if (stage == LoraStage::expand) {
    return {draw.one_of({1, 2}), draw.one_of({1, 4}), 1, stages, true};
  }
  if (draw.one_in(2)) {
    return {4, draw.one_of({4, 8}), draw.one_of({2, 4, 8}), stages, true, is_linear ? 2 : 1};
  }
  return {draw.one_of({1, 2, 4}),
          1,
          draw.one_of({1, 2, 4, 8}),
          stages,
          true,
          is_linear ? draw.one_of({1, 2}) : 1};
}

/// num_ops - 1 entries, less those that repeat one.
std::vector<DispatchEntry> any_entries(sim::Draw& draw, int num_ops) {
  std::vector<DispatchEntry> out;
  for (int i = 1; i < num_ops; ++i) {
    const LoraStage stage = any_stage(draw);
    const int64_t num_in = any_size(draw);
    out.push_back({.stage = stage,
                   .num_slices = draw.between(1, 8),
                   .num_in = stage == LoraStage::expand ? 0 : num_in,
                   .max_rank = any_size(draw),
                   .num_tokens = any_size(draw),
                   .variant = any_variant(draw, stage)});
  }
  const auto same = [](const auto& a, const auto& b) { return key_of(a) == key_of(b); };
  std::ranges::sort(out, {}, key_of);
  const auto rest = std::ranges::unique(out, same);
  out.erase(rest.begin(), rest.end());
  return out;
}

LaunchShape any_shape(sim::Draw& draw) {
  return {.stage = any_stage(draw),
          .num_tokens = any_size(draw) - draw(2),
          .num_in = any_size(draw),
          .max_rank = any_size(draw),
          .num_slices = draw.between(1, 8),
          .num_blocks = draw.between(1, 64),
          .has_workspace = !draw.one_in(4),
          .aligned = !draw.one_in(8),
          .has_clusters = !draw.one_in(8),
          .has_wgmma = !draw.one_in(4)};
}

bool is_enough(const DispatchEntry& e, const LaunchShape& s) {
  const bool in_is_enough = e.stage == LoraStage::expand || e.num_in >= s.num_in;
  return e.stage == s.stage && e.num_slices >= s.num_slices && in_is_enough &&
         e.max_rank >= s.max_rank && e.num_tokens >= s.num_tokens;
}

/// The smallest key of all that are enough, whatever their order.
LoraVariant expected(const std::vector<DispatchEntry>& entries, const LaunchShape& s) {
  std::optional<DispatchEntry> best;
  for (const DispatchEntry& e : entries) {
    if (is_enough(e, s) && (!best || key_of(e) < key_of(*best))) best = e;
  }
  const bool may_be_used = best && s.aligned && s.has_clusters &&
                           (s.has_wgmma || best->variant.token_tiles < 8) &&
                           (s.has_workspace || best->variant.launches == 1);
  return may_be_used ? best->variant : choose_variant(s);
}

bool can_be_launched(const LoraVariant& v, const LaunchShape& s) {
  const bool is_linear = s.stage == LoraStage::linear;
  return (s.aligned || !v.aligned) && (s.has_clusters || v.cluster == 1) &&
         (s.has_wgmma || v.token_tiles < 8) &&
         (v.launches == 1 || (is_linear && s.has_workspace)) &&
         (v.launches == 2 || !is_linear || v.token_tiles == 1);
}

// P12: a total function of the shape, and never a launch that could not be.
RC_GTEST_PROP(DispatchTableChoice, IsThatOfTheModel, ()) {
  const sim::SeededCase c = sim::any_seeded_case(60);
  sim::Draw draw(c.seed);
  const std::vector<DispatchEntry> entries = any_entries(draw, c.num_ops);
  const DispatchTable table(entries);
  int num_others = 0;
  for (int i = 0; i < 50; ++i) {
    const LaunchShape shape = any_shape(draw);
    const LoraVariant chosen = table.choose(shape);
    RC_ASSERT(chosen == expected(entries, shape));
    RC_ASSERT(can_be_launched(chosen, shape));
    RC_ASSERT(can_be_launched(choose_variant(shape), shape));
    num_others += chosen == choose_variant(shape) ? 0 : 1;
  }
  RC_CLASSIFY(num_others > 0, "other than the rules");
}

std::string text_of(const DispatchEntry& e) {
  const char* const names[] = {"linear", "shrink", "expand"};
  const std::string num_in =
      e.stage == LoraStage::expand ? "" : fmt::format(R"("num_in": {}, )", e.num_in);
  return fmt::format(
      R"({{"stage": "{}", "num_slices": {}, {}"max_rank": {}, "num_tokens": {}, "variant": )"
      R"({{"rank_tiles": {}, "token_tiles": {}, "cluster": {}, "stages": {}, "launches": {}}}}})",
      names[size_t(e.stage)], e.num_slices, num_in, e.max_rank, e.num_tokens, e.variant.rank_tiles,
      e.variant.token_tiles, e.variant.cluster, e.variant.stages, e.variant.launches);
}

std::string text_of(const std::vector<DispatchEntry>& entries) {
  std::string list;
  for (const DispatchEntry& e : entries) list += (list.empty() ? "" : ",\n") + text_of(e);
  return fmt::format(
      R"({{"gpu": "", "driver": "", "commit": "", "date": "", "command": "", "entries": [{}]}})",
      list);
}

RC_GTEST_PROP(DispatchTableFile, GivesTheTableThatWasWritten, ()) {
  const sim::SeededCase c = sim::any_seeded_case(40);
  sim::Draw draw(c.seed);
  const std::vector<DispatchEntry> entries = any_entries(draw, c.num_ops);
  const DispatchTable table = parse_dispatch_table(text_of(entries), "t.json");
  RC_ASSERT(table.entries().size() == entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    RC_ASSERT(key_of(table.entries()[i]) == key_of(entries[i]));
    RC_ASSERT(table.entries()[i].variant == entries[i].variant);
  }
}

/// Digits above all: they leave it JSON.
void damage(std::string& text, sim::Draw& draw) {
  const auto at = size_t(draw(int64_t(text.size())));
  const size_t digit = text.find_first_of("0123456789", at);
  if (draw.one_in(4) || digit == text.npos)
    text[at] = char(draw(256));
  else
    text.replace(digit, 1, draw.one_of<const char*>({"0", "3", "8", "-1", "1e99", "null", "[]"}));
}

// A table in order, or one line that names the file.
RC_GTEST_PROP(DispatchTableFile, ThatIsDamagedIsRefusedInOneLine, ()) {
  const sim::SeededCase c = sim::any_seeded_case(12);
  sim::Draw draw(c.seed);
  std::string text = text_of(any_entries(draw, c.num_ops));
  for (int64_t times = draw.between(1, 3); times > 0; --times) damage(text, draw);
  try {
    const std::vector<DispatchEntry> entries = parse_dispatch_table(text, "t.json").entries();
    for (size_t i = 1; i < entries.size(); ++i) {
      RC_ASSERT(key_of(entries[i - 1]) < key_of(entries[i]));
    }
    RC_CLASSIFY(true, "still a table");
  } catch (const InputError& error) {
    const std::string line = error.what();
    RC_ASSERT(line.starts_with("t.json: "));
    RC_ASSERT(line.find('\n') == line.npos);
  }
}

}  // namespace
}  // namespace loratory::gpu
