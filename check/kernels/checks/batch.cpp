#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "check/cases/draw.hpp"
#include "check/cases/draw_case.hpp"
#include "check/kernels/checks/checks.hpp"

// Rows are functions of their token, its adapter and the layer: other batches, slots and buffers
// may not change them. Bits where the kernel promises that, else the bound of the same row.

namespace loratory::check {

using reference::Tensor;

namespace {

// Row r of a step of these tokens is row origin(r) of the plain step.
std::function<int64_t(int64_t)> origin_of(std::vector<int64_t> tokens, int64_t rows_per_token) {
  return [tokens = std::move(tokens), rows_per_token](int64_t row) {
    return tokens[size_t(row / rows_per_token)] * rows_per_token + row % rows_per_token;
  };
}

void expect_tokens(CaseRun& run, Trial& trial, std::string_view check,
                   const std::vector<int64_t>& tokens, std::string_view where) {
  CaseRun::Variant& v = run.plain();
  if (run.rows_depend_on_batch() || int64_t(tokens.size()) > run.max_tokens()) return;
  const StepData step = v.data.step_of(tokens);
  const Outcome outcome = run.run(trial, step);
  run.expect_rows(check, step, v.data, outcome, origin_of(tokens, run.shape().experts_per_token),
                  run.must_keep_bits(), where);
}

void expect_tokens(CaseRun& run, std::string_view check, const std::vector<int64_t>& tokens,
                   std::string_view where) {
  expect_tokens(run, run.plain().trial, check, tokens, where);
}

std::vector<int64_t> all_tokens(const CaseRun& run) {
  std::vector<int64_t> out(size_t(run.shape().num_tokens));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// Tokens with an adapter that changes something.
std::vector<int64_t> covered_tokens(CaseRun& run) {
  std::vector<int64_t> out;
  for (const Stretch& s : run.plain().expected.stretches()) {
    const int64_t token = s.row / run.shape().experts_per_token;
    if (out.empty() || out.back() != token) out.push_back(token);
  }
  return out;
}

void poison_row(Tensor& t, int64_t first_row, int64_t num_rows) {
  const int64_t columns = t.shape().back();
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const int64_t begin = row * t.strides()[t.shape().size() - 2];
    poison(t.dtype(), t.bytes().data() + begin * int64_t(size_bytes(t.dtype())), columns);
  }
}

// The rows of the plain step that still have to be right.
void expect_others(CaseRun& run, Trial& trial, const StepData& step,
                   const std::function<bool(const Stretch&)>& is_poisoned, std::string_view where) {
  const CaseRun::Variant& base = run.plain();
  const Outcome outcome = run.run(trial, step);
  std::vector<Wrong> wrong;
  Tally& tally = run.tally("nan_containment");
  for (const Stretch& s : base.expected.stretches()) {
    if (is_poisoned(s)) continue;
    for (int64_t i = 0; i < s.count; ++i) {
      const size_t size = size_bytes(outcome.output.dtype());
      const size_t at = size_t(s.element + i) * size;
      const double got =
          reference::load(outcome.output.dtype(), outcome.output.bytes().data() + at);
      const double want =
          reference::load(outcome.output.dtype(), base.outcome.output.bytes().data() + at);
      ++tally.num_comparisons;
      if (got != got && want == want) wrong.push_back({s, i, got, want});
    }
  }
  if (wrong.empty()) return;
  run.fail(
      "nan_containment",
      fmt::format("{}: NaN reached {} elements of others, first row {} column {} of slot {}", where,
                  wrong.size(), wrong[0].at.row, wrong[0].at.first + wrong[0].i, wrong[0].at.slot),
      wrong);
}

void poison_token(CaseRun& run, int64_t token) {
  CaseRun::Variant& v = run.plain();
  const Case& c = run.shape();
  StepData step = v.data.step;
  if (c.operation == LORATORY_OP_EMBEDDING || c.x == reference::Dtype::i8) return;
  const int64_t k = c.experts_per_token, rows = step.num_tokens() * k;
  if (c.expands()) {
    for (int64_t i = 0; i < int64_t(c.num_out.size()); ++i)
      poison_row(*step.h, i * rows + token * k, k);
  } else {
    const int64_t per_token = c.x_by_row ? k : 1;
    poison_row(*step.x, token * per_token, per_token);
  }
  expect_others(
      run, v.trial, step, [&](const Stretch& s) { return s.row / k == token; },
      fmt::format("NaN in token {}", token));
}

// NaN in each number; the zeros that who reads beyond the rank counts on stay.
void poison_numbers(reference::Dtype dtype, std::span<std::byte> bytes, BeyondRank beyond) {
  const size_t size = size_bytes(dtype);
  for (size_t at = 0; at < bytes.size(); at += size) {
    const auto number = bytes.subspan(at, size);
    const bool is_zero = std::ranges::all_of(number, [](std::byte b) { return b == std::byte{0}; });
    if (is_zero && beyond == BeyondRank::zeros) continue;
    poison(dtype, number.data(), 1);
  }
}

void poison_slot(CaseRun& run, int32_t slot) {
  const CaseRun::Variant& v = run.plain();
  if (run.shape().weight == reference::Dtype::i8) return;
  CaseData data = v.data;
  const auto poison_in = [&](std::optional<Tensor>& t) {
    if (!t || t->bytes().empty()) return;
    const auto stride = size_t(t->strides()[0]) * size_bytes(t->dtype());
    const size_t begin = size_t(slot) * stride, end = std::min(begin + stride, t->bytes().size());
    poison_numbers(t->dtype(), std::span(t->bytes()).subspan(begin, end - begin), data.beyond);
  };
  for (SliceData& slice : data.slices) poison_in(slice.a), poison_in(slice.b);
  poison_in(data.stacked_a), poison_in(data.stacked_b);
  Trial trial(run.kernel(), run.memory(), data, run.max_tokens());
  expect_others(
      run, trial, data.step, [&](const Stretch& s) { return s.slot == slot; },
      fmt::format("NaN in the weights of slot {}", slot));
}

}  // namespace

void look_at_nan_containment(CaseRun& run) {
  const std::vector<int64_t> tokens = covered_tokens(run);
  if (tokens.empty() || run.rows_depend_on_batch()) return;
  const int64_t token = tokens[run.pick(1, tokens.size())];
  poison_token(run, token);
  const int64_t other = tokens[run.pick(2, tokens.size())];
  poison_slot(run, run.plain().data.step.slots[size_t(other)]);
}

namespace {

// Without the promise the bits may be others, but those of a right result.
void keep_beyond_bound(const CaseRun::Variant& v, std::vector<Wrong>& wrong) {
  std::erase_if(wrong, [&](const Wrong& w) {
    const int64_t stretch = v.expected.find(w.at.row, w.at.slice);
    const double exact = v.expected.exact(stretch, w.i), bound = v.expected.bound(stretch, w.i);
    return reference::error_over(w.got, exact, bound, v.outcome.output.dtype()) <= 1;
  });
}

}  // namespace

void look_at_repeatable(CaseRun& run) {
  CaseRun::Variant& v = run.plain();
  const auto& at = v.expected.stretches();
  const bool is_promised = run.kernel().promises(LORATORY_REPEATABLE);
  Tally& tally = run.tally("repeatable");
  for (int i = 0; i < 3; ++i) {
    const Outcome again = run.run(v.trial, v.data.step);
    std::vector<Wrong> wrong = differing(again.output, at, v.outcome.output, at);
    tally.num_comparisons += v.expected.num_values();
    tally.num_different += int64_t(wrong.size());
    if (!is_promised) keep_beyond_bound(v, wrong);
    if (wrong.empty() || (!is_promised && run.is_plain_wrong())) continue;
    run.fail(
        "repeatable",
        fmt::format("the same call again: {} of {} elements {}, first row {} column {}: {}, "
                    "was {}",
                    wrong.size(), v.expected.num_values(),
                    is_promised ? "have other bits" : "are off by more than the bound",
                    wrong[0].at.row, wrong[0].at.first + wrong[0].i, wrong[0].got, wrong[0].want),
        wrong);
  }
}

void look_at_batch_invariant(CaseRun& run) {
  const std::vector<int64_t> tokens = covered_tokens(run);
  if (tokens.empty() || run.rows_depend_on_batch()) return;
  CaseRun::Variant& v = run.plain();
  for (uint64_t i = 0; i < 2; ++i) {
    const std::vector<int64_t> alone{tokens[run.pick(10 + i, tokens.size())]};
    if (run.must_keep_bits()) {
      expect_tokens(run, "batch_invariant", alone, fmt::format("token {} alone", alone[0]));
      continue;
    }
    const StepData step = v.data.step_of(alone);
    const Outcome outcome = run.run(v.trial, step);
    const std::vector<Stretch> at = v.data.covered(step);
    const auto origin = origin_of(alone, run.shape().experts_per_token);
    std::vector<Stretch> from;
    for (const Stretch& s : at) {
      from.push_back(v.expected.stretches()[size_t(v.expected.find(origin(s.row), s.slice))]);
    }
    Tally& tally = run.tally("batch_invariant");
    for (const Stretch& s : at) tally.num_comparisons += s.count;
    tally.num_different += int64_t(differing(outcome.output, at, v.outcome.output, from).size());
  }
}

void look_at_permutation(CaseRun& run) {
  if (run.shape().num_tokens < 2) return;
  expect_tokens(run, "permutation", shuffled(run.shape().num_tokens, run.shape().seed + 1),
                "tokens in another order");
  std::vector<int64_t> back = all_tokens(run);
  std::ranges::reverse(back);
  expect_tokens(run, "permutation", back, "tokens in reverse order");
}

void look_at_chunk_independence(CaseRun& run) {
  const std::vector<int64_t> all = all_tokens(run);
  if (all.size() < 2) return;
  const auto cut = ptrdiff_t(1 + run.pick(20, all.size() - 1));
  expect_tokens(run, "chunk_independence", {all.begin(), all.begin() + cut},
                fmt::format("the first {} tokens", cut));
  expect_tokens(run, "chunk_independence", {all.begin() + cut, all.end()},
                fmt::format("the tokens from {} on", cut));
}

void look_at_dispatch(CaseRun& run) {
  const Case& c = run.shape();
  if (c.num_tokens == 0) return;
  constexpr std::array<int64_t, 8> kCounts{1, 2, 8, 17, 33, 65, 129, 257};
  const int64_t products = std::max(int64_t(1) << 16, 4 * c.num_products());
  const int64_t most = std::max<int64_t>(1, products * c.num_tokens / c.num_products());
  const auto over_again = [&](Trial& trial, int64_t count) {
    std::vector<int64_t> tokens;
    for (int64_t t = 0; t < count; ++t) tokens.push_back((t * 7 + count) % c.num_tokens);
    expect_tokens(run, trial, "dispatch", tokens,
                  fmt::format("{} tokens of the batch, over again", count));
  };
  over_again(run.plain().trial, std::min(most, kCounts[run.pick(30, kCounts.size())]));
  // A kernel whose first step is small must not stay small.
  Trial fresh(run.kernel(), run.memory(), run.plain().data, run.max_tokens());
  over_again(fresh, 1);
  over_again(fresh, std::min(most, kCounts[3 + run.pick(31, kCounts.size() - 3)]));
}

void look_at_slot_relabelling(CaseRun& run) {
  const CaseRun::Variant& v = run.plain();
  if (run.shape().num_slots() < 2 || run.rows_depend_on_batch()) return;
  const std::vector<int64_t> to = shuffled(run.shape().num_slots(), run.shape().seed + 2);
  CaseData data = v.data;
  move_slots(data, to);
  StepData step = v.data.step;
  for (int32_t& slot : step.slots) {
    if (slot >= 0) slot = int32_t(to[size_t(slot)]);
  }
  for (size_t s = 0; s < step.enabled.size(); ++s) {
    step.enabled[size_t(to[s])] = v.data.step.enabled[s];
  }
  Trial trial(run.kernel(), run.memory(), data, run.max_tokens());
  const Outcome outcome = run.run(trial, step);
  run.expect_rows(
      "slot_relabelling", step, data, outcome, [](int64_t row) { return row; },
      run.must_keep_bits(), "adapters in other slots");
}

void look_at_rank_padding(CaseRun& run) {
  const LoratoryClaims& claims = run.kernel().claims();
  Case c = run.shape();
  const auto more = int32_t(size_multiple(claims, claims.rank_multiple, c.weight));
  c.max_rank += more * int32_t(1 + run.pick(40, 3));
  if (claims.max_rank > 0 && c.max_rank > claims.max_rank) return;
  const CaseData data(c, run.beyond());
  Trial trial(run.kernel(), run.memory(), data, run.max_tokens());
  const Outcome outcome = run.run(trial, data.step);
  // Another layer: a promise about batches says nothing of its bits.
  run.expect_rows(
      "rank_padding", data.step, data, outcome, [](int64_t row) { return row; }, false,
      fmt::format("buffers with room for rank {}, {} beyond each adapter's", c.max_rank,
                  run.beyond() == BeyondRank::nan ? "NaN" : "zeros"));
}

}  // namespace loratory::check
