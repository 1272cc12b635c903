#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check/kernels/kernel.hpp"
#include "check/kernels/run_kernel_checks.hpp"
#include "check/library/running_case.hpp"
#include "check/report/ledger.hpp"
#include "cli/check_scheduler.hpp"
#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "cli/flags.hpp"
#include "cli/output_files.hpp"
#include "gpu/plugin/cuda_plugin.hpp"
#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

namespace loratory::cli {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 nothing found; 1 a finding, a stale line of the ledger, or a failure such as a\n"
    "full disk; 2 bad input.";

constexpr uint64_t kMostSeed = uint64_t{1} << 53;

struct CheckOptions {
  std::string impl;
  SchedulerFlags scheduler;
  std::vector<std::string> operations, checks, labels;
  std::string seed = "1", budget;
  int64_t num_cases = 200, max_products = check::Options().max_products;
  int64_t max_bytes = check::Options().max_bytes;
  bool keeps_case = false, stops_at_first = false;
  std::string json, junit, ledger, transcript;
};

// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  const bool is_plain = text.find_first_not_of(
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                            "_-./=+:,") == std::string::npos;
  if (is_plain && !text.empty()) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

uint64_t seed_of(const std::string& text) {
  if (text == "fresh") return std::random_device()() % kMostSeed;
  return parse_number<uint64_t>("--seed", text, {0, kMostSeed}, "give a whole number, or fresh");
}

double seconds_of(const std::string& text) {
  if (text.empty()) return 0;
  const bool is_in_minutes = text.ends_with('m');
  const std::string number = text.substr(0, text.size() - (is_in_minutes || text.ends_with('s')));
  // What is no number is quoted with its unit.
  const bool has_unit_left = number.find_first_not_of("0123456789.eE+-") != std::string::npos;
  return (is_in_minutes ? 60 : 1) * parse_number<double>("--budget", has_unit_left ? text : number,
                                                         {0.001, 1e6}, "such as 60s or 10m");
}

check::Kernel kernel_of(const std::string& impl) {
  if (impl == "reference") return check::Kernel(check::reference_plugin());
  if (impl == "cuda") {
    const LoratoryPlugin* const plugin = gpu::cuda_plugin();
    if (plugin == nullptr) {
      throw InputError("--impl cuda", "this build of loratory has no CUDA kernels",
                       "build with nvcc, or name a library");
    }
    return check::Kernel(*plugin);
  }
  return check::Kernel::load(impl);
}

using Ledger = std::vector<check::LedgerLine>;

// What people and files are told if the kernel or scheduler ends the process, which a ledger does
// not excuse.
class LastWords {
 public:
  LastWords(OutputFiles& files, const Ledger& ledger, const char* whose)
      : files_(files), ledger_(ledger), running_(whose, [this] { say(); }) {}

  /// Before each run. The last finding of the report is that it ends the process.
  void set(check::Report report) {
    running_.begin(report.findings.back().repro);
    check::apply_ledger(ledger_, report);
    report.findings.back().reference.clear();
    report.stale.clear();  // there was no time for its finding to show
    text_ = check::as_text(report);
    files_.set_last_words("--json", check::as_json(report));
    files_.set_last_words("--junit", check::as_junit(report));
  }

 private:
  /// In a signal handler.
  void say() const {
    files_.publish_last_words();
    // Nobody is left to tell if that fails.
    [[maybe_unused]] const ssize_t written =
        write(fileno(files_.table()), text_.data(), text_.size());
  }

  OutputFiles& files_;
  const Ledger& ledger_;
  std::string text_;
  check::RunningCase running_;
};

check::Report check_kernel(const CheckOptions& o, Ledger& ledger, const std::string& command,
                           OutputFiles& files) {
  check::Options options;
  options.operations = o.operations;
  options.checks = o.checks;
  options.labels = o.labels;
  options.seed = seed_of(o.seed);
  options.num_cases = o.num_cases;
  options.budget_s = seconds_of(o.budget);
  options.max_products = o.max_products;
  options.max_bytes = o.max_bytes;
  options.shrinks = !o.keeps_case;
  options.stops_at_first = o.stops_at_first;
  options.command = command;
  options.knows = [&](auto name, auto label) { return check::lines_for(ledger, name, label); };
  options.on_case = [&](auto label) { check::note_case(ledger, label); };
  LastWords last_words(files, ledger, "kernel");
  options.on_run = [&](auto, const check::Report& if_it_ends) { last_words.set(if_it_ends); };
  return check::run_kernel_checks(kernel_of(o.impl), options);
}

check::Report check_scheduler(const CheckOptions& o, Ledger& ledger, const std::string& command,
                              OutputFiles& files) {
  check::SchedulerOptions options;
  options.labels = o.labels;
  options.judges = o.checks;
  options.seed = seed_of(o.seed);
  options.num_sessions = o.num_cases;
  options.budget_s = seconds_of(o.budget);
  options.shrinks = !o.keeps_case;
  options.stops_at_first = o.stops_at_first;
  options.command = command;
  options.knows = [&](auto name, auto label) { return check::lines_for(ledger, name, label); };
  options.on_case = [&](auto label) { check::note_case(ledger, label); };
  // A command has a process of its own.
  if (!check::is_scheduler_library(o.scheduler.scheduler)) {
    return check_scheduler(o.scheduler, options);
  }
  LastWords last_words(files, ledger, "scheduler");
  options.on_run = [&](auto, const check::Report& if_it_ends) { last_words.set(if_it_ends); };
  return check_scheduler(o.scheduler, options);
}

void refuse_both_or_none(const CLI::App& command, const CheckOptions& o) {
  const bool is_kernel = !o.impl.empty(), is_scheduler = !o.scheduler.scheduler.empty();
  if (is_kernel == is_scheduler) {
    throw InputError("check", is_kernel ? "has --impl and --scheduler" : "has nothing to judge",
                     "give --impl for a kernel or --scheduler for a scheduler");
  }
  if (is_kernel) {
    refuse_ignored(command, {"--timeout-ms", "--transcript"}, "a kernel is judged");
  } else {
    refuse_ignored(command, {"--operations", "--max-products", "--max-bytes"},
                   "a scheduler is judged");
  }
}

// Our own scheduler takes its sessions from stdin and nothing from flags.
void refuse_others(const CLI::App& command) {
  std::vector<std::string> others;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (name != "--serve-scheduler" && name != "--help") others.push_back(name);
  }
  refuse_ignored(command, others, "our own scheduler answers the lines of stdin");
}

// What a REPRO line begins with: whatever decides what is found in a case that is named.
std::string repro_of(const CLI::App& command, const CheckOptions& o) {
  std::string repro = o.impl.empty() ? fmt::format("loratory check --scheduler {}",
                                                   shell_word(o.scheduler.scheduler))
                                     : fmt::format("loratory check --impl {}", shell_word(o.impl));
  if (command.count("--timeout-ms") > 0) {
    repro += fmt::format(" --timeout-ms {}", o.scheduler.timeout_ms);
  }
  if (command.count("--max-bytes") > 0) repro += fmt::format(" --max-bytes {}", o.max_bytes);
  if (!o.checks.empty()) repro += fmt::format(" --checks {}", fmt::join(o.checks, ","));
  return repro;
}

void run(const CLI::App& command, const CheckOptions& o) {
  if (o.scheduler.serves) {
    refuse_others(command);
    return serve_own_scheduler();
  }
  refuse_both_or_none(command, o);
  const bool is_kernel = !o.impl.empty();
  OutputFiles files(
      command,
      {{"the ledger", o.ledger}, {"the kernel", o.impl}, {"the scheduler", o.scheduler.scheduler}});
  files.open("--json", o.json);
  files.open("--junit", o.junit);
  files.open("--transcript", o.transcript);
  Ledger ledger;
  if (!o.ledger.empty()) {
    ledger = check::parse_ledger(
        read_text_file(o.ledger), o.ledger,
        is_kernel ? check::kernel_check_names() : check::scheduler_judge_names());
  }
  const std::string repro = repro_of(command, o);
  check::Report report =
      is_kernel ? check_kernel(o, ledger, repro, files) : check_scheduler(o, ledger, repro, files);
  check::apply_ledger(ledger, report);
  std::fputs(check::as_text(report).c_str(), files.table());
  if (auto* out = files.find("--json")) *out << check::as_json(report);
  if (auto* out = files.find("--junit")) *out << check::as_junit(report);
  if (auto* out = files.find("--transcript")) write_transcript(*out, o.scheduler, report);
  files.commit();
  end_with(report.ok() ? ExitCode::good : ExitCode::failure);
}

}  // namespace

void add_check(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "check", "Judge somebody's LoRA kernel or scheduler: is it right? Exit code 1 if not");
  command.footer(kFooter);
  const auto o = std::make_shared<CheckOptions>();
  command.add_option("--impl", o->impl, "A kernel: reference, cuda, or a path to a shared library")
      ->group("Kernels");
  add_names(command, "--operations", o->operations, "Only these, of those it claims")
      ->group("Kernels");
  add_number(command, "--max-products", o->max_products, {1, int64_t{1} << 40},
             "Multiplications of the largest case that is drawn")
      ->group("Kernels");
  add_number(command, "--max-bytes", o->max_bytes, {0, int64_t{1} << 50},
             "Of the largest tensor of large_offsets, mostly untouched; 0: rows lie apart at most")
      ->group("Kernels");
  add_scheduler_flags(command, o->scheduler);
  add_names(command, "--checks", o->checks, "Only these, by name");
  command.add_option("--case", o->labels, "Only this case, by its label; may be repeated")
      ->allow_extra_args(false);
  add_number(command, "--cases", o->num_cases, {1, 100'000'000}, "How many are drawn");
  command.add_option("--seed", o->seed, "Of the cases that are drawn, or fresh")
      ->default_str(o->seed);
  command.add_option("--budget", o->budget, "No further case after this time, such as 60s or 10m");
  command.add_flag("--no-shrink", o->keeps_case, "Keep the case that failed as it is");
  command.add_flag("--stop-at-first", o->stops_at_first, "End with the first finding");
  command.add_option("--ledger", o->ledger, "Known findings: a check, a case or *, a reference");
  command.add_option("--json", o->json, "Write the report")->group("Outputs");
  command.add_option("--junit", o->junit, "Write a JUnit test suite")->group("Outputs");
  command
      .add_option("--transcript", o->transcript,
                  "Write the first finding's smallest session: its messages and replies")
      ->group("Outputs");
  command.final_callback([&command, o] { run(command, *o); });
}

}  // namespace loratory::cli
