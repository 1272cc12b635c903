#include "check/kernels/run_kernel_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <set>

#include "check/cases/draw.hpp"
#include "check/cases/draw_case.hpp"
#include "check/kernels/case_run.hpp"
#include "check/kernels/checks/checks.hpp"
#include "check/kernels/pattern.hpp"
#include "check/kernels/shrink_case.hpp"
#include "check/report/ledger.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

namespace loratory::check {
namespace {

constexpr std::string_view kNoGraphs = "the kernel does not claim to be capturable";
constexpr std::string_view kHost = "the kernel runs on the host";

std::string_view skip_graphs(const Kernel& kernel) {
  if (!kernel.is_on_device()) return kHost;
  return kernel.promises(LORATORY_CAPTURABLE) ? std::string_view() : kNoGraphs;
}
std::string_view skip_on_host(const Kernel& kernel) {
  return kernel.is_on_device() ? std::string_view() : kHost;
}

// Fewer slots and tokens than any tensor of 2^31 elements has, in look_at_large_offsets().
std::string_view skip_small(const Kernel& kernel) {
  const LoratoryClaims& claims = kernel.claims();
  const bool has_few_slots = claims.max_slots > 0 && claims.max_slots <= 256;
  const bool has_few_tokens = claims.max_tokens > 0 && claims.max_tokens <= 8192;
  const bool is_small = has_few_slots && has_few_tokens && !kernel.has(LORATORY_TAKES_GAPS);
  return is_small ? "few slots and tokens are claimed, and no rows that lie apart" : "";
}

}  // namespace

const std::vector<KernelCheck>& kernel_checks() {
  static const std::vector<KernelCheck> kChecks = {
      {"accepted", nullptr, nullptr},
      {"numbers", look_at_numbers, nullptr},
      {"exact", look_at_exact, nullptr},
      {"statistics", look_at_statistics, nullptr},
      {"covered_written", nullptr, nullptr},
      {"only_covered_written", nullptr, nullptr},
      {"guards", nullptr, nullptr},
      {"inputs_unchanged", nullptr, nullptr},
      {"nan_containment", look_at_nan_containment, nullptr},
      {"repeatable", look_at_repeatable, nullptr},
      {"batch_invariant", look_at_batch_invariant, nullptr},
      {"permutation", look_at_permutation, nullptr},
      {"slot_relabelling", look_at_slot_relabelling, nullptr},
      {"rank_padding", look_at_rank_padding, nullptr},
      {"chunk_independence", look_at_chunk_independence, nullptr},
      {"dispatch", look_at_dispatch, nullptr},
      {"storage_reuse", look_at_storage_reuse, nullptr},
      {"graph_replay", look_at_graph_replay, skip_graphs},
      {"large_offsets", look_at_large_offsets, skip_small},
      {"device_health", nullptr, skip_on_host},
  };
  return kChecks;
}

std::vector<std::string> kernel_check_names() {
  std::vector<std::string> out;
  for (const KernelCheck& check : kernel_checks()) out.emplace_back(check.name);
  return out;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<LoratoryOperation> operations_of(const Kernel& kernel, const Options& options) {
  std::vector<LoratoryOperation> out;
  for (const std::string& name : options.operations) {
    out.push_back(operation_named(name));
    if ((kernel.claims().operations >> out.back() & 1) == 0) {
      throw InputError(name, "is not an operation that this kernel claims");
    }
  }
  for (int i = 0; options.operations.empty() && i < LORATORY_NUM_OPERATIONS; ++i) {
    if ((kernel.claims().operations >> i & 1) != 0) out.push_back(LoratoryOperation(i));
  }
  return out;
}

void check_names(const Options& options) {
  const std::vector<std::string> known = kernel_check_names();
  for (const std::string& name : options.checks) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw InputError(
        shown(name), "is no check",
        did_you_mean(name, known, fmt::format("name some of {}", fmt::join(known, ", "))));
  }
}

std::vector<Case> named_cases(const Kernel& kernel, const Options& options) {
  std::vector<Case> out;
  for (const std::string& label : options.labels) {
    out.push_back(case_named(label));
    check_claimed(out.back(), kernel.claims());
  }
  return out;
}

// All cases of one kernel, and what came of them.
class Session {
 public:
  Session(const Kernel& kernel, const Options& options)
      : kernel_(kernel),
        options_(options),
        memory_(kernel.is_on_device() ? make_device_memory() : make_host_memory()) {
    report_.subject = kernel.name();
    report_.seed = options.seed;
  }

  Report run() {
    if (options_.labels.empty()) draw_cases();
    for (const Case& c : named_cases(kernel_, options_)) judge(c);
    return so_far();
  }

 private:
  bool is_past(double budgets) const {
    return options_.budget_s > 0 && seconds_since(begin_) > budgets * options_.budget_s;
  }

  void draw_cases() {
    const std::vector<LoratoryOperation> operations = operations_of(kernel_, options_);
    for (int64_t i = 0; i < options_.num_cases && !is_over_; ++i) {
      if (is_past(1)) break;
      if (options_.is_interrupted && options_.is_interrupted()) break;
      const CaseLimits limits{.claims = kernel_.claims(),
                              .operation = operations[size_t(i) % operations.size()],
                              .max_products = options_.max_products};
      judge(draw_case(random_bits(options_.seed, 1, uint64_t(i)) >> 32, limits));
    }
  }

  void judge(const Case& c) {
    try {
      judge_in_memory(c);
    } catch (const std::bad_alloc&) {  // the tensors of the case, or their judge's numbers
      throw_no_room();
    }
  }

  void judge_in_memory(const Case& c) {
    ++report_.num_cases;
    if (options_.on_case) options_.on_case(label_of(c));
    const CaseVerdict verdict = run_checks(c, options_.checks);
    for (const auto& [name, tally] : verdict.tallies) add(name, tally);
    for (const CaseFinding& finding : verdict.findings) tell(c, finding);
    if (verdict.device_is_lost) is_over_ = true;
  }

  CaseVerdict run_checks(const Case& c, const std::vector<std::string>& names) {
    if (options_.on_run) options_.on_run(label_of(c), if_it_ends_in(label_of(c)));
    return run_case(kernel_, *memory_, c, names, options_.max_bytes);
  }

  std::string repro_of(const std::string& label) const {
    return fmt::format("{} --case {}", options_.command, label);
  }

  void add(const std::string& name, const Tally& tally) {
    CheckResult& result = results_[name];
    result.num_cases += tally.num_comparisons > 0 ? 1 : 0;
    result.num_comparisons += tally.num_comparisons;
    result.worst = std::max(result.worst, tally.worst);
    num_different_[name] += tally.num_different;
    left_out_[name].insert(tally.left_out.begin(), tally.left_out.end());
  }

  void tell(const Case& c, const CaseFinding& finding) {
    const std::vector<size_t> lines =
        options_.knows ? options_.knows(finding.check, label_of(c)) : std::vector<size_t>();
    if (!told_.add(finding.check, lines)) return;
    if (lines.empty() && options_.stops_at_first) is_over_ = true;
    // Told as it is, should the kernel end the process while it shrinks.
    report_.findings.push_back(finding_of(c, c, finding));
    if (!options_.shrinks || !can_shrink(finding)) return;
    shrink_case(c, kernel_.claims(), [&](const Case& candidate) {
      if (is_past(2)) return false;
      for (const CaseFinding& f : run_checks(candidate, {}).findings) {
        if (f.check != finding.check) continue;
        report_.findings.back() = finding_of(c, candidate, f);
        return true;
      }
      return false;
    });
  }

  // large_offsets has sizes of its own: a smaller case is as large.
  static bool can_shrink(const CaseFinding& finding) {
    return finding.check != "large_offsets" && finding.check != "device_health";
  }

  Finding finding_of(const Case& c, const Case& smallest, const CaseFinding& finding) const {
    Finding out{.check = finding.check,
                .label = label_of(c),
                .smallest = label_of(smallest),
                .what = finding.what,
                .pattern = {},
                .repro = repro_of(label_of(smallest)),
                .reference = {}};
    if (finding.check != "large_offsets" && !finding.wrong.empty()) {
      const CaseData data(smallest);
      const bool is_of_step = finding.covered.empty();
      out.pattern = pattern_of(smallest, is_of_step ? data.covered(data.step) : finding.covered,
                               finding.wrong);
    }
    return out;
  }

  Report so_far() const {
    Report out = report_;
    out.seconds = seconds_since(begin_);
    for (const KernelCheck& check : kernel_checks()) {
      const bool is_asked_for =
          options_.checks.empty() ||
          std::ranges::find(options_.checks, check.name) != options_.checks.end();
      if (is_asked_for || told_.has_failed(std::string(check.name))) {
        out.checks.push_back(result_of(check));
      }
    }
    return out;
  }

  // That it does is a finding of `accepted`, which is the first check.
  Report if_it_ends_in(const std::string& label) const {
    Report out = so_far();
    const std::string name(kernel_checks().front().name);
    if (out.checks.empty() || out.checks.front().name != name) {
      out.checks.insert(out.checks.begin(), CheckResult{.name = name, .note = {}});
    }
    out.checks.front().state = CheckState::failed;
    out.findings.push_back({.check = name,
                            .label = label,
                            .smallest = label,
                            .what = "the kernel ends the process: exit(), abort() or a crash",
                            .pattern = {},
                            .repro = repro_of(label),
                            .reference = {}});
    return out;
  }

  CheckResult result_of(const KernelCheck& check) const {
    const std::string name(check.name);
    const auto found = results_.find(name);
    CheckResult result = found == results_.end() ? CheckResult() : found->second;
    result.name = name;
    const auto left_out = left_out_.find(name);
    const bool has_left_out = left_out != left_out_.end() && !left_out->second.empty();
    const std::string_view skipped =
        check.skip == nullptr ? std::string_view() : check.skip(kernel_);
    if (!skipped.empty()) {
      result.state = CheckState::skipped, result.note = skipped;
    } else if (told_.has_failed(name)) {
      result.state = CheckState::failed;
    } else if (told_.has_known(name)) {
      result.state = CheckState::observed, result.note = "a known finding";
    } else if (result.num_comparisons == 0 && name != "device_health") {
      result.state = CheckState::skipped;
      if (!has_left_out) result.note = "no case had anything to look at";
    } else {
      observe(result);
    }
    if (has_left_out && result.note.empty()) {
      result.note = fmt::format("left out: {}", fmt::join(left_out->second, ", "));
    }
    return result;
  }

  // What is not promised is told and no failure.
  void observe(CheckResult& result) const {
    const bool is_promised = result.name == "repeatable"
                                 ? kernel_.promises(LORATORY_REPEATABLE)
                                 : kernel_.promises(LORATORY_BATCH_INVARIANT);
    if (is_promised || (result.name != "repeatable" && result.name != "batch_invariant")) return;
    result.state = CheckState::observed;
    const auto found = num_different_.find(result.name);
    const int64_t different = found == num_different_.end() ? 0 : found->second;
    result.note = different == 0 ? "not promised, and true of all that was compared"
                                 : fmt::format("not promised: {} of {} elements have other bits",
                                               different, result.num_comparisons);
  }

  const Clock::time_point begin_ = Clock::now();
  const Kernel& kernel_;
  const Options& options_;
  std::unique_ptr<Memory> memory_;
  Report report_;
  std::map<std::string, CheckResult> results_;
  std::map<std::string, int64_t> num_different_;
  std::map<std::string, std::set<std::string>> left_out_;
  FirstFindings told_;
  bool is_over_ = false;
};

}  // namespace

Report run_kernel_checks(const Kernel& kernel, const Options& options) {
  check_names(options);
  return Session(kernel, options).run();
}

}  // namespace loratory::check
