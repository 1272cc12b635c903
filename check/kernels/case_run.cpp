#include "check/kernels/case_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/cases/draw.hpp"
#include "check/kernels/reference_call.hpp"

namespace loratory::check {

using reference::Tensor;

namespace {

constexpr const char* kPlainIsWrong = "cases whose plain run is wrong";

const std::byte* element(const Tensor& t, const Stretch& at, int64_t i) {
  return t.bytes().data() + size_t(at.element + i) * size_bytes(t.dtype());
}

double number(const Tensor& t, const Stretch& at, int64_t i) {
  return reference::load(t.dtype(), element(t, at, i));
}

std::string place(const Case& c, const Wrong& w) {
  const std::string adapter = c.has_experts()
                                  ? fmt::format("slot {}, expert {}", w.at.slot, w.at.expert)
                                  : fmt::format("slot {}", w.at.slot);
  return c.shrinks()
             ? fmt::format("h of slice {}, row {}, rank {} ({})", w.at.slice, w.at.row, w.i,
                           adapter)
             : fmt::format("y, row {}, column {} ({})", w.at.row, w.at.first + w.i, adapter);
}

std::string first_of(const Case& c, const std::vector<Wrong>& wrong) {
  return fmt::format("{}: {}, should be {}", place(c, wrong[0]), wrong[0].got, wrong[0].want);
}

}  // namespace

std::vector<Wrong> differing(const Tensor& got, const std::vector<Stretch>& at, const Tensor& want,
                             const std::vector<Stretch>& want_at, bool zeros_are_equal) {
  std::vector<Wrong> out;
  const size_t size = size_bytes(got.dtype());
  for (size_t s = 0; s < at.size(); ++s) {
    const auto bytes = size_t(at[s].count) * size;
    if (std::memcmp(element(got, at[s], 0), element(want, want_at[s], 0), bytes) == 0) continue;
    for (int64_t i = 0; i < at[s].count && out.size() < kMostWrong; ++i) {
      const bool same =
          std::memcmp(element(got, at[s], i), element(want, want_at[s], i), size) == 0;
      if (same) continue;
      const Wrong wrong{at[s], i, number(got, at[s], i), number(want, want_at[s], i)};
      const bool are_zeros = wrong.got == 0 && wrong.want == 0;
      if (!are_zeros || !zeros_are_equal) out.push_back(wrong);
    }
  }
  return out;
}

bool CaseVerdict::has(std::string_view check) const {
  return std::ranges::any_of(findings, [&](const CaseFinding& f) { return f.check == check; });
}

CaseRun::CaseRun(const Kernel& kernel, Memory& memory, const Case& c, CaseVerdict& verdict,
                 int64_t max_bytes)
    : kernel_(&kernel), memory_(&memory), shape_(c), verdict_(&verdict), max_bytes_(max_bytes) {}

Tally& CaseRun::tally(std::string_view check) {
  const auto found = verdict_->tallies.find(check);
  if (found != verdict_->tallies.end()) return found->second;
  return verdict_->tallies[std::string(check)];
}

void CaseRun::fail(std::string_view check, std::string what, std::vector<Wrong> wrong,
                   std::vector<Stretch> covered) {
  if (verdict_->has(check)) return;  // one of each is enough to say
  verdict_->findings.push_back(
      {std::string(check), std::move(what), std::move(wrong), std::move(covered)});
}

BeyondRank CaseRun::beyond() const {
  return kernel_->has(LORATORY_READS_BEYOND_RANK) ? BeyondRank::zeros : BeyondRank::nan;
}

bool CaseRun::rows_depend_on_batch() const {
  return shape_.is_linear() && shape_.activation_scales == LORATORY_SCALES_TENSOR;
}

bool CaseRun::is_exact_in_any_order() const {
  return !(shape_.is_linear() && shape_.has_quantized_activations());
}

bool CaseRun::must_keep_bits() const { return kernel_->promises(LORATORY_BATCH_INVARIANT); }

int64_t CaseRun::max_tokens() const {
  const int64_t most = kernel_->claims().max_tokens;
  const int64_t wanted = std::max<int64_t>(2 * shape_.num_tokens + 1, 260);
  return most > 0 ? std::min(most, wanted) : wanted;
}

uint64_t CaseRun::pick(uint64_t index, uint64_t below) const {
  return random_bits(shape_.seed, 9000, index) % below;
}

std::unique_ptr<CaseRun::Variant> CaseRun::make(Fill fill, bool with_bounds) {
  Case c = shape_;
  c.fill = fill;
  CaseData data(c, beyond());
  Expected expected(data, data.step, kernel_->claims(), with_bounds);
  auto out = std::unique_ptr<Variant>(
      new Variant{data, Trial(*kernel_, *memory_, data, max_tokens()),
                  Outcome{data.output(data.step), {}}, std::move(expected)});
  out->outcome = run(out->trial, out->data.step);
  return out;
}

CaseRun::Variant& CaseRun::plain() {
  if (!plain_) plain_ = make(shape_.fill, true);
  return *plain_;
}

CaseRun::Variant& CaseRun::exact() {
  if (!exact_) exact_ = make(Fill::small_integers, false);
  return *exact_;
}

Outcome CaseRun::run(Trial& trial, const StepData& step) {
  Outcome out = trial.run(step);
  for (const char* check : {"only_covered_written", "guards", "inputs_unchanged"}) {
    ++tally(check).num_comparisons;
  }
  for (const Trespass& trespass : out.trespasses) fail(trespass.check, trespass.what);
  return out;
}

void CaseRun::expect_rows(std::string_view check, const StepData& step, const CaseData& data,
                          const Outcome& outcome, const std::function<int64_t(int64_t)>& origin,
                          bool bits, std::string_view where) {
  const Variant& base = plain();
  if (check != "batch_invariant" && is_plain_wrong()) return leave_out(check, kPlainIsWrong);
  std::vector<Stretch> at = data.covered(step), from;
  for (const Stretch& s : at) {
    from.push_back(base.expected.stretches()[size_t(base.expected.find(origin(s.row), s.slice))]);
  }
  std::vector<Wrong> wrong;
  Tally& counted = tally(check);
  int64_t count = 0;
  for (const Stretch& s : at) count += s.count;
  counted.num_comparisons += count;
  if (bits) wrong = differing(outcome.output, at, base.outcome.output, from);
  for (size_t s = 0; !bits && s < at.size(); ++s) {
    const int64_t stretch = base.expected.find(origin(at[s].row), at[s].slice);
    for (int64_t i = 0; i < at[s].count; ++i) {
      const double got = number(outcome.output, at[s], i);
      const double exact = base.expected.exact(stretch, i);
      const double ratio = reference::error_over(got, exact, base.expected.bound(stretch, i),
                                                 outcome.output.dtype());
      if (ratio <= 1) counted.worst = std::max(counted.worst, ratio);
      if (!(ratio <= 1) && wrong.size() < kMostWrong) wrong.push_back({at[s], i, got, exact});
    }
  }
  if (wrong.empty()) return;
  fail(check,
       fmt::format("{}: {} of {} elements differ, first {}", where, wrong.size(), count,
                   first_of(shape_, wrong)),
       wrong, at);
}

std::vector<Wrong> CaseRun::unlike_reference(const CaseData& data, const StepData& step,
                                             const Tensor& got) const {
  if (is_exact_in_any_order()) {
    const std::vector<Stretch> at = data.covered(step);
    return differing(got, at, reference_output(data, step), at, true);
  }
  std::vector<Wrong> out;
  const Expected expected(data, step, kernel_->claims(), true);
  for (size_t s = 0; s < expected.stretches().size(); ++s) {
    const Stretch& at = expected.stretches()[s];
    for (int64_t i = 0; i < at.count; ++i) {
      const double value = number(got, at, i), exact = expected.exact(int64_t(s), i);
      const double bound = expected.bound(int64_t(s), i);
      if (!(reference::error_over(value, exact, bound, got.dtype()) <= 1)) {
        out.push_back({at, i, value, exact});
      }
    }
  }
  return out;
}

void CaseRun::expect_reference(std::string_view check, const CaseData& data, const StepData& step,
                               const Outcome& outcome, std::string_view where) {
  const std::vector<Wrong> wrong = unlike_reference(data, step, outcome.output);
  int64_t count = 0;
  for (const Stretch& s : data.covered(step)) count += s.count;
  tally(check).num_comparisons += count;
  if (wrong.empty()) return;
  // Blamed alone if the same numbers are right where nothing lay before.
  Trial fresh(*kernel_, *memory_, data, max_tokens());
  const bool is_right_elsewhere = unlike_reference(data, step, fresh.run(step).output).empty();
  if (!is_right_elsewhere && is_plain_wrong()) return;  // which is said already
  const std::string_view lane = is_exact_in_any_order() ? "exact" : "numbers";
  fail(is_right_elsewhere ? check : lane,
       fmt::format("{}: {} of {} elements differ, first {}",
                   is_right_elsewhere ? where : "another adapter of this case", wrong.size(), count,
                   first_of(shape_, wrong)),
       wrong, data.covered(step));
}

namespace {

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// `numbers` and `exact` tell some of what they see under other names.
bool looks_at_elements(std::string_view name) { return name == "numbers" || name == "exact"; }
bool is_told_by_those(std::string_view name) {
  return name == "covered_written" || name == "nan_containment";
}

// Looked for in every run of the kernel, whatever check it is for.
bool is_of_every_run(std::string_view name) {
  return name == "only_covered_written" || name == "guards" || name == "inputs_unchanged";
}

// `numbers` always: where it is wrong, others have nobody to blame.
bool is_looked_at(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || name == "numbers" || has(names, name) ||
         std::ranges::any_of(names, is_of_every_run) ||
         (name == "exact" && std::ranges::any_of(names, is_told_by_those));
}

// What a wrong plain run is told as, if not under other names.
bool is_of_plain_run(std::string_view name) { return name == "numbers" || is_told_by_those(name); }

// A kernel that fails or loses the device is told whatever was asked for: nothing was judged then.
// Nor was what is left out because the plain run is wrong.
bool is_told(const CaseVerdict& verdict, const std::vector<std::string>& names,
             std::string_view name) {
  const auto left_it_out = [&](const std::string& asked) {
    const auto tally = verdict.tallies.find(asked);
    return tally != verdict.tallies.end() && tally->second.left_out.contains(kPlainIsWrong);
  };
  const bool ends_a_case = name == "accepted" || name == "device_health";
  return ends_a_case || has(names, name) ||
         (is_told_by_those(name) && std::ranges::any_of(names, looks_at_elements)) ||
         (is_of_plain_run(name) && std::ranges::any_of(names, left_it_out));
}

}  // namespace

CaseVerdict run_case(const Kernel& kernel, Memory& memory, const Case& c,
                     const std::vector<std::string>& names, int64_t max_bytes) {
  CaseVerdict verdict;
  CaseRun run(kernel, memory, c, verdict, max_bytes);
  ++run.tally("accepted").num_comparisons;
  std::string_view looks;  // the check that runs the kernel, behind the case's own run
  try {
    run.plain();
    for (const KernelCheck& check : kernel_checks()) {
      if (check.look == nullptr || !is_looked_at(names, check.name)) continue;
      if (check.skip != nullptr && !check.skip(kernel).empty()) continue;
      looks = check.name;
      check.look(run);
    }
  } catch (const KernelFailed& error) {
    const std::string what = error.what();
    run.fail("accepted", looks.empty() ? what : fmt::format("{}, in a run for {}", what, looks));
  } catch (const DeviceError& error) {
    run.fail("device_health", error.what());
    verdict.device_is_lost = true;
  }
  if (!names.empty()) {
    std::erase_if(verdict.findings,
                  [&](const CaseFinding& f) { return !is_told(verdict, names, f.check); });
  }
  return verdict;
}

}  // namespace loratory::check
