#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/kernels/checks/checks.hpp"
#include "check/kernels/reference_call.hpp"

namespace loratory::check {

using reference::Tensor;

namespace {

// Wrong elements by what is wrong with them: never written, NaN that came from elsewhere, others.
struct Sorted {
  std::vector<Wrong> unwritten, nan, others;

  void add(const Wrong& wrong, const Tensor& before, const Tensor& after) {
    const size_t size = size_bytes(after.dtype());
    const size_t begin = size_t(wrong.at.element + wrong.i) * size;
    const bool is_unwritten =
        std::memcmp(before.bytes().data() + begin, after.bytes().data() + begin, size) == 0;
    std::vector<Wrong>& to = is_unwritten ? unwritten : std::isnan(wrong.got) ? nan : others;
    if (to.size() < kMostWrong) to.push_back(wrong);
  }

  // Among small integers a wrong delta is 0 now and then, and leaves what was there.
  void forgive_coincidences() {
    if (others.empty()) return;
    others.insert(others.end(), unwritten.begin(), unwritten.end());
    unwritten.clear();
  }

  void tell(CaseRun& run, std::string_view check, int64_t count) const {
    const auto say = [&](std::string_view name, const std::vector<Wrong>& wrong,
                         std::string_view what) {
      if (wrong.empty()) return;
      const Wrong& first = wrong[0];
      const bool shrinks = run.shape().shrinks();
      run.fail(name,
               fmt::format("{} of {} covered elements {}, first {} row {} {} {} of slot {}: {}, "
                           "should be {}",
                           wrong.size(), count, what, shrinks ? "h" : "y", first.at.row,
                           shrinks ? "rank" : "column", first.at.first + first.i, first.at.slot,
                           first.got, first.want),
               wrong);
    };
    say("covered_written", unwritten, "hold what they held before");
    say("nan_containment", nan, "are NaN, which is only where nothing may be read");
    say(check, others, check == "exact" ? "differ" : "are off by more than the bound");
  }
};

}  // namespace

void look_at_numbers(CaseRun& run) {
  const CaseRun::Variant& v = run.plain();
  const Tensor& before = v.data.output(v.data.step);
  const Tensor& after = v.outcome.output;
  Sorted sorted;
  Tally& tally = run.tally("numbers");
  const auto& stretches = v.expected.stretches();
  for (size_t s = 0; s < stretches.size(); ++s) {
    for (int64_t i = 0; i < stretches[s].count; ++i) {
      const size_t at = size_t(stretches[s].element + i) * size_bytes(after.dtype());
      const double got = reference::load(after.dtype(), after.bytes().data() + at);
      const double exact = v.expected.exact(int64_t(s), i);
      const double ratio =
          reference::error_over(got, exact, v.expected.bound(int64_t(s), i), after.dtype());
      if (!(ratio <= 1)) sorted.add({stretches[s], i, got, exact}, before, after);
      tally.worst = std::max(tally.worst, std::isnan(ratio) ? HUGE_VAL : ratio);
    }
  }
  tally.num_comparisons += v.expected.num_values();
  run.tally("covered_written").num_comparisons += v.expected.num_values();
  run.tally("nan_containment").num_comparisons += v.expected.num_values();
  sorted.tell(run, "numbers", v.expected.num_values());
}

void look_at_exact(CaseRun& run) {
  if (!run.is_exact_in_any_order()) return;
  const CaseRun::Variant& v = run.exact();
  const Tensor want = reference_output(v.data, v.data.step);
  const auto& at = v.expected.stretches();
  Sorted sorted;
  for (const Wrong& wrong : differing(v.outcome.output, at, want, at, true)) {
    sorted.add(wrong, v.data.output(v.data.step), v.outcome.output);
  }
  sorted.forgive_coincidences();
  run.tally("exact").num_comparisons += v.expected.num_values();
  run.tally("covered_written").num_comparisons += v.expected.num_values();
  sorted.tell(run, "exact", v.expected.num_values());
}

}  // namespace loratory::check
