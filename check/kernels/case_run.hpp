#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "check/cases/case_data.hpp"
#include "check/kernels/expected.hpp"
#include "check/kernels/kernel.hpp"
#include "check/kernels/trial.hpp"

namespace loratory::check {

/// Of one tensor; room for 2^31 numbers of fp32 and as much before them.
inline constexpr int64_t kMaxBytes = int64_t(20) << 30;

/// An element that is not what it should be.
struct Wrong {
  Stretch at;
  int64_t i = 0;  ///< of the stretch: column at.first + i
  double got = 0, want = 0;
};

/// Elements that a pattern is looked for in.
inline constexpr size_t kMostWrong = 20000;

/// What one check found in one case.
struct CaseFinding {
  std::string check;
  std::string what;
  std::vector<Wrong> wrong;      ///< empty if it is not about elements
  std::vector<Stretch> covered;  ///< that they are some of; empty: those of the case's own step
};

/// What a check looked at in one case.
struct Tally {
  int64_t num_comparisons = 0;
  double worst = 0;                ///< error / bound
  int64_t num_different = 0;       ///< observed: rows of other bits
  std::set<std::string> left_out;  ///< what it could not look at, and why
};

struct CaseVerdict {
  std::map<std::string, Tally, std::less<>> tallies;
  std::vector<CaseFinding> findings;
  bool device_is_lost = false;  ///< nothing more can run on it

  bool has(std::string_view check) const;
};

/// A case, the kernel on it, and what the checks say. One object for each case.
class CaseRun {
 public:
  CaseRun(const Kernel& kernel, Memory& memory, const Case& c, CaseVerdict& verdict,
          int64_t max_bytes = kMaxBytes);

  /// The numbers of the case with the kernel on them, and what it gave for the case's own step.
  struct Variant {
    CaseData data;
    Trial trial;
    Outcome outcome;
    Expected expected;
  };
  /// With the fill of the label.
  Variant& plain();
  /// With small integers: every right kernel gives the reference's bits.
  Variant& exact();

  const Case& shape() const { return shape_; }
  const Kernel& kernel() const { return *kernel_; }
  Memory& memory() const { return *memory_; }
  BeyondRank beyond() const;
  /// 8-bit h with one factor for all tokens: a row is not a function of its token then.
  bool rows_depend_on_batch() const;
  /// Small integers are exact in any order; not if h is quantised by factors that are no powers of
  /// two.
  bool is_exact_in_any_order() const;
  /// Whether rows of another batch must have the same bits.
  bool must_keep_bits() const;
  int64_t max_tokens() const;
  /// Of one tensor of more than 2^31 elements, with what lies before it.
  int64_t max_bytes() const { return max_bytes_; }
  /// Bits of this case that are the same each time, for choices within a check.
  uint64_t pick(uint64_t index, uint64_t below) const;

  /// Runs a step; what was written around the result is a finding of the check that is for it.
  Outcome run(Trial& trial, const StepData& step);

  /// Row `row` of `outcome` came from row origin(row) of the plain step, in the same slices: equal
  /// bits if `bits`, else within that row's bound. Counts for `check`.
  void expect_rows(std::string_view check, const StepData& step, const CaseData& data,
                   const Outcome& outcome, const std::function<int64_t(int64_t)>& origin, bool bits,
                   std::string_view where);
  /// The outcome has the bits of the reference, or lies within the bound where bits depend on the
  /// order. If it has not, and a fresh layer of these numbers has not either, it is `exact` that
  /// fails, unless the plain run is wrong already.
  void expect_reference(std::string_view check, const CaseData& data, const StepData& step,
                        const Outcome& outcome, std::string_view where);

  Tally& tally(std::string_view check);
  /// Something that `check` could not look at, and why.
  void leave_out(std::string_view check, std::string what) {
    tally(check).left_out.insert(std::move(what));
  }
  bool has_found(std::string_view check) const { return verdict_->has(check); }
  /// The plain run has wrong values: they say nothing about what was changed since.
  bool is_plain_wrong() const {
    return has_found("numbers") || has_found("covered_written") || has_found("nan_containment");
  }
  /// Something was written that must not be.
  bool has_trespassed() const {
    return has_found("only_covered_written") || has_found("guards") ||
           has_found("inputs_unchanged");
  }
  void fail(std::string_view check, std::string what, std::vector<Wrong> wrong = {},
            std::vector<Stretch> covered = {});

 private:
  std::vector<Wrong> unlike_reference(const CaseData& data, const StepData& step,
                                      const reference::Tensor& got) const;
  std::unique_ptr<Variant> make(Fill fill, bool with_bounds);

  const Kernel* kernel_;
  Memory* memory_;
  Case shape_;
  CaseVerdict* verdict_;
  int64_t max_bytes_;
  std::unique_ptr<Variant> plain_, exact_;
};

/// Elements whose bits differ, each with what it should have been. With `zeros_are_equal` +0 is -0:
/// which of them a sum of zeros is depends on its order.
std::vector<Wrong> differing(const reference::Tensor& got, const std::vector<Stretch>& at,
                             const reference::Tensor& want, const std::vector<Stretch>& want_at,
                             bool zeros_are_equal = false);

/// A named check on one case; it says what it finds to the run.
struct KernelCheck {
  std::string_view name;
  void (*look)(CaseRun& run);
  /// Why it says nothing about this kernel; null or empty: it does.
  std::string_view (*skip)(const Kernel& kernel);
};

/// In the order of the report. A check whose `look` is null is one of those that every run makes.
const std::vector<KernelCheck>& kernel_checks();

/// All checks of `names` (empty: all) on one case.
CaseVerdict run_case(const Kernel& kernel, Memory& memory, const Case& c,
                     const std::vector<std::string>& names, int64_t max_bytes = kMaxBytes);

}  // namespace loratory::check
