#include <fmt/format.h>

#include <algorithm>

#include "check/cases/draw_case.hpp"
#include "check/kernels/checks/checks.hpp"

// Memory that holds other things than it did: adapters come and go in place, layers too.

namespace loratory::check {
namespace {

// The case with another adapter in every slot: other numbers, and as far as they can be, ranks.
Case with_other_adapters(const Case& c) {
  Case out = c;
  out.seed = c.seed + 0x9E3779B97F4A7C15ULL;
  for (auto& of_slot : out.ranks) {
    for (int32_t& rank : of_slot)
      rank = rank == c.max_rank ? std::max(1, c.max_rank / 2) : c.max_rank;
  }
  return out;
}

void change_a_slot(CaseRun& run, CaseRun::Variant& v) {
  const std::vector<Stretch>& covered = v.expected.stretches();
  if (covered.empty()) return;
  Case c = v.data.shape;
  const CaseData others(with_other_adapters(c), run.beyond());
  const int32_t slot = covered[run.pick(50, covered.size())].slot;
  const CaseData before = v.data;
  v.trial.change(others, slot);
  const CaseData& now = v.trial.data();
  const StepData step = now.make_step(v.data.step.slots, [&] {
    std::vector<int64_t> contents(v.data.step.slots.size());
    for (size_t t = 0; t < contents.size(); ++t) contents[t] = int64_t(t);
    return contents;
  }());
  run.expect_reference("storage_reuse", now, step, run.run(v.trial, step),
                       fmt::format("another adapter in slot {}", slot));
  v.trial.change(before, slot);
  run.expect_reference("storage_reuse", v.data, v.data.step, run.run(v.trial, v.data.step),
                       fmt::format("the adapter of slot {} again", slot));
}

void change_the_layer(CaseRun& run, CaseRun::Variant& v) {
  const LoratoryClaims& claims = run.kernel().claims();
  Case c = v.data.shape;
  const auto multiple = int32_t(size_multiple(claims, claims.rank_multiple, c.weight));
  const int32_t smaller = c.max_rank - multiple;
  if (smaller >= multiple) {
    c.max_rank = smaller;
  } else {
    c.max_rank += multiple;
  }
  if (claims.max_rank > 0 && c.max_rank > claims.max_rank) return;
  for (auto& of_slot : c.ranks) {
    for (int32_t& rank : of_slot) rank = std::min(rank, c.max_rank);
  }
  c.seed += 17;
  v.trial.rebuild(CaseData(c, run.beyond()));
  const StepData step = v.trial.data().step;
  run.expect_reference(
      "storage_reuse", v.trial.data(), step, run.run(v.trial, step),
      fmt::format("a layer of R = {} where one of R = {} lay", c.max_rank, v.data.shape.max_rank));
  v.trial.rebuild(v.data);
}

}  // namespace

void look_at_storage_reuse(CaseRun& run) {
  CaseRun::Variant& v = run.exact();
  change_a_slot(run, v);
  change_the_layer(run, v);
}

void look_at_graph_replay(CaseRun& run) {
  CaseRun::Variant& v = run.plain();
  const int64_t count = run.shape().num_tokens;
  if (!run.memory().can_capture() || count == 0 || run.rows_depend_on_batch()) return;
  // Captured on base tokens and one adapter; replayed on the case's own mapping and its reverse.
  std::vector<int64_t> own(static_cast<size_t>(count)), reversed;
  for (int64_t t = 0; t < count; ++t) own[size_t(t)] = t;
  reversed.assign(own.rbegin(), own.rend());
  std::vector<int32_t> few(size_t(count), -1);
  const std::vector<int32_t>& slots = v.data.step.slots;
  const auto has_adapter = [](int32_t slot) { return slot >= 0; };
  const auto last = std::find_if(slots.rbegin(), slots.rend(), has_adapter);
  if (last == slots.rend()) return;  // engines capture with adapters: vLLM launches none without
  few[size_t(slots.rend() - last) - 1] = *last;
  const StepData captured = v.data.make_step(few, own);
  const std::vector<StepData> others{v.data.step_of(own), v.data.step_of(reversed)};
  const std::vector<Outcome> outcomes = v.trial.capture_and_replay(captured, others);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    for (const Trespass& trespass : outcomes[i].trespasses) run.fail(trespass.check, trespass.what);
    const std::vector<int64_t>& tokens = i == 0 ? own : reversed;
    const int64_t k = run.shape().experts_per_token;
    run.expect_rows(
        "graph_replay", others[i], v.data, outcomes[i],
        [&](int64_t row) { return tokens[size_t(row / k)] * k + row % k; }, run.must_keep_bits(),
        i == 0 ? "a graph captured on one adapter, replayed on all"
               : "the same graph, tokens in reverse order");
  }
}

}  // namespace loratory::check
