#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

#include "cli/commands.hpp"
#include "cli/flags.hpp"
#include "cli/output_files.hpp"
#include "cli/progress.hpp"
#include "cli/read_options.hpp"
#include "cli/workload_options.hpp"
#include "cli/write_trace.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/workload/generate.hpp"

namespace loratory::cli {
namespace {

constexpr double kLongestSeconds = 3e9;              // 95 years, in nanoseconds an int64
constexpr std::string_view kTracePrefix = "trace:";  // of --arrivals

// The flags as they were written.
struct GenerateFlags {
  std::string out = "-";
  uint64_t num_requests = 0;
  double duration_s = 0;
  std::string arrivals;
  bool per_adapter = false;
  std::string adapter_rates;
  double rate_scale = 1;
  uint64_t seed = 0;
  AdapterOptions adapters;
  std::string prompt_tokens = "lognormal:1155:1020";
  std::string output_tokens = "lognormal:211:129";
  std::string lengths_from;
  bool lengths_in_order = false;
  double mean_turns = 1;
  double turn_gap_s = 60;
  uint32_t block_tokens = 0;
  uint32_t num_system_prompts = 0;
  std::string system_tokens = "constant:512";
  uint32_t max_prompt_tokens = 32'768;
};

void add_arrival_flags(CLI::App& app, GenerateFlags& flags) {
  add_number(app, "--requests", flags.num_requests, {1, 1'000'000'000},
             "Stop after so many requests")
      ->default_str("");
  add_number(app, "--duration", flags.duration_s, {0, kLongestSeconds},
             "Stop after so many seconds; 0 = never");
  app.add_option("--arrivals", flags.arrivals,
                 "poisson:RATE | gamma:RATE:CV | trace:FILE, in requests per second. Not with "
                 "--popularity servegen:FILE, whose clients have rates and gaps");
  app.add_flag("--per-adapter", flags.per_adapter,
               "Give each adapter an arrival stream of its own, with its share of the rate");
  app.add_option("--adapter-rates", flags.adapter_rates,
                 "Instead of --arrivals: RATE:COUNT,... for COUNT adapters, each with a Poisson "
                 "stream of RATE");
  add_number(app, "--rate-scale", flags.rate_scale, {0, 1e9}, "Multiplies every rate");
  add_number(app, "--seed", flags.seed, {0, UINT64_MAX}, "Seed of all random numbers");
}

void add_length_flags(CLI::App& app, GenerateFlags& flags) {
  constexpr const char* kLaws = "constant:N | lognormal:MEAN:P50[:MAX] | histogram:FILE";
  app.add_option(
         "--prompt-tokens", flags.prompt_tokens,
         fmt::format("Law of prompt lengths, or of message lengths with --turns: {}", kLaws))
      ->capture_default_str();
  app.add_option("--output-tokens", flags.output_tokens, "Law of output lengths, in the same form")
      ->capture_default_str();
  app.add_option("--lengths-from", flags.lengths_from,
                 "Take (prompt, output) pairs from the rows of this trace, at random");
  app.add_flag("--lengths-in-order", flags.lengths_in_order,
               "With --lengths-from: take its rows in order");
}

void add_session_flags(CLI::App& app, GenerateFlags& flags) {
  add_number(app, "--turns", flags.mean_turns, {1, 1e6}, "Mean turns of a session");
  add_number(app, "--turn-gap", flags.turn_gap_s, {1e-3, 1e6},
             "Mean seconds until a next turn is ready");
  add_number(app, "--block-tokens", flags.block_tokens, {0, 65'536},
             "Write block ids of the prompts, one per this many tokens; 0 = none");
  add_number(app, "--system-prompts", flags.num_system_prompts, {0, 1'000'000},
             "Number of system prompts that the adapters share; 0 = none");
  app.add_option("--system-tokens", flags.system_tokens, "Law of system prompt lengths")
      ->capture_default_str();
  add_number(app, "--max-prompt-tokens", flags.max_prompt_tokens, {1, 1 << 24},
             "With --turns, --system-prompts or --block-tokens: end a session before it grows past "
             "this; cut a longer first prompt");
}

// The options of the generator and the traces they point to.
struct Generation {
  sim::GenerateOptions options;
  std::optional<sim::Trace> arrivals_from, lengths_from;
};

void set_arrivals(const GenerateFlags& flags, Generation& generation) {
  sim::GenerateOptions& options = generation.options;
  if (!flags.adapter_rates.empty()) {
    options.source = sim::ArrivalSource::adapter_rates;
    options.adapter_rates = sim::parse_adapter_rates(flags.adapter_rates);
  } else if (flags.arrivals.starts_with(kTracePrefix)) {
    options.source = sim::ArrivalSource::trace;
    generation.arrivals_from = read_with_progress(flags.arrivals.substr(kTracePrefix.size()));
    options.arrivals_from = &*generation.arrivals_from;
  } else if (!flags.arrivals.empty()) {
    options.source =
        flags.per_adapter ? sim::ArrivalSource::per_adapter : sim::ArrivalSource::shared;
    options.arrivals = sim::parse_arrival_law(flags.arrivals);
  } else if (options.popularity.kind == sim::PopularityKind::servegen) {
    options.source = sim::ArrivalSource::clients;
  } else {
    throw InputError("--arrivals", "the law of arrivals is missing",
                     "give poisson:RATE, gamma:RATE:CV or trace:FILE");
  }
  options.rate_scale = flags.rate_scale;
  if (flags.num_requests != 0) options.limit.num_requests = flags.num_requests;
  if (flags.duration_s > 0) {
    options.limit.duration_ns = int64_t(flags.duration_s * 1e9);
  }
}

void set_lengths(const GenerateFlags& flags, Generation& generation) {
  sim::GenerateOptions& options = generation.options;
  options.prompt_tokens = sim::parse_length_law(flags.prompt_tokens, "--prompt-tokens");
  options.output_tokens = sim::parse_length_law(flags.output_tokens, "--output-tokens");
  options.lengths_in_order = flags.lengths_in_order;
  if (!flags.lengths_from.empty()) {
    generation.lengths_from = read_with_progress(flags.lengths_from);
    options.lengths_from = &*generation.lengths_from;
  }
  options.sessions = {
      .block_tokens = flags.block_tokens,
      .mean_turns = flags.mean_turns,
      .mean_gap_s = flags.turn_gap_s,
      .num_system_prompts = flags.num_system_prompts,
      .system_tokens = sim::parse_length_law(flags.system_tokens, "--system-tokens"),
      .max_prompt_tokens = flags.max_prompt_tokens};
}

void refuse(bool contradiction, const char* flag, const char* rule, const char* remedy) {
  if (contradiction) throw InputError(flag, rule, remedy);
}

void check_flags(const GenerateFlags& flags) {
  const bool popularity_is_given = flags.adapters.popularity != "uniform";
  refuse(!flags.adapter_rates.empty() &&
             (!flags.arrivals.empty() || popularity_is_given || flags.adapters.num_adapters != 0),
         "--adapter-rates", "it names the adapters and their rates itself",
         "leave out --arrivals, --adapters and --popularity");
  refuse(popularity_is_given && !flags.adapters.are_given(), "--popularity",
         "the number of adapters is missing", "add --adapters N");
  refuse(flags.per_adapter && !flags.adapters.are_given(), "--per-adapter", "there are no adapters",
         "add --adapters N");
  refuse(flags.per_adapter && flags.arrivals.starts_with(kTracePrefix), "--per-adapter",
         "a trace already has its arrival times", "leave one of the two out");
  refuse(flags.lengths_in_order && flags.lengths_from.empty(), "--lengths-in-order",
         "the trace to take lengths from is missing", "add --lengths-from FILE");
}

// FILE of "prefix:FILE"; empty for other laws.
std::string file_of(const std::string& law, std::string_view prefix) {
  return law.starts_with(prefix) ? law.substr(prefix.size()) : "";
}

std::vector<InputFile> input_files(const GenerateFlags& flags) {
  constexpr std::string_view kHistogram = "histogram:";
  return {{"the trace of --arrivals", file_of(flags.arrivals, kTracePrefix)},
          {"the trace of --lengths-from", flags.lengths_from},
          {"the file of --popularity", popularity_file(flags.adapters)},
          {"the file of --prompt-tokens", file_of(flags.prompt_tokens, kHistogram)},
          {"the file of --output-tokens", file_of(flags.output_tokens, kHistogram)},
          {"the file of --system-tokens", file_of(flags.system_tokens, kHistogram)}};
}

// Flags without effect beside the others.
void refuse_ignored_flags(const CLI::App& command, const GenerateFlags& flags) {
  if (!flags.lengths_from.empty()) {
    refuse_ignored(command, {"--prompt-tokens", "--output-tokens"},
                   "the lengths are those of --lengths-from");
  }
  if (flags.mean_turns == 1) {
    refuse_ignored(command, {"--turn-gap"}, "a session has one turn", "add --turns N");
  }
  if (flags.mean_turns == 1 && flags.num_system_prompts == 0 && flags.block_tokens == 0) {
    refuse_ignored(command, {"--max-prompt-tokens"}, "prompts are as long as their law says",
                   "add --turns N, --system-prompts N or --block-tokens N");
  }
  if (flags.num_system_prompts == 0) {
    refuse_ignored(command, {"--system-tokens"}, "there are no system prompts",
                   "add --system-prompts N");
  }
  if (!flags.adapters.are_given() && flags.adapter_rates.empty()) {
    refuse_ignored(command, {"--ranks"}, "there are no adapters", "add --adapters N");
  }
  if (flags.arrivals.empty()) {
    refuse_ignored(command, {"--per-adapter"}, "it deals out the rate of --arrivals");
  }
}

sim::Trace generate_with_progress(sim::GenerateOptions& options) {
  Progress progress("generating");
  options.on_progress = [&](uint64_t done, uint64_t total) {
    progress.show(int64_t(done), int64_t(total), "requests");
  };
  return sim::generate(options);
}

// Neither a duration nor what the rates come from ends it.
bool ends_early(const GenerateFlags& flags, const sim::GenerateOptions& options,
                const sim::Trace& trace) {
  const bool goes_on = options.source != sim::ArrivalSource::trace &&
                       options.source != sim::ArrivalSource::clients && flags.duration_s == 0;
  return goes_on && trace.requests.size() < flags.num_requests;
}

void run_generate(const CLI::App& command, const GenerateFlags& flags) {
  check_flags(flags);
  refuse_ignored_flags(command, flags);
  OutputFiles files(command, input_files(flags));
  files.open("--out", flags.out);
  Generation generation;
  sim::GenerateOptions& options = generation.options;
  options.seed = flags.seed;
  options.popularity = sim::parse_popularity(flags.adapters.popularity);
  options.num_adapters = flags.adapters.num_adapters;
  options.ranks = flags.adapters.ranks_or_default();
  set_arrivals(flags, generation);
  set_lengths(flags, generation);

  const sim::Trace trace = generate_with_progress(options);
  refuse(trace.requests.empty(), "loratory trace generate", "not one request arrives in that time",
         "raise the rates or --duration");
  refuse(ends_early(flags, options, trace), "--requests", "so many do not arrive within 100 years",
         "raise the rates, or give --duration");
  write_trace(files, "--out", trace);
  fmt::print(stderr, "{}, {}, {}\n", count_text(std::ssize(trace.requests), "request"),
             count_text(std::ssize(trace.adapters), "adapter"), trace.checksum);
}

}  // namespace

void add_trace_generate(CLI::App& trace) {
  CLI::App* app = trace.add_subcommand(
      "generate",
      "Generate a trace from laws of arrivals, adapters and lengths; same flags, same bytes");
  const auto flags = std::make_shared<GenerateFlags>();
  app->add_option("--out", flags->out, "Native JSON lines; .gz and .zst compress, - is stdout")
      ->capture_default_str();
  add_arrival_flags(*app, *flags);
  add_adapter_options(*app, flags->adapters);
  add_length_flags(*app, *flags);
  add_session_flags(*app, *flags);
  app->final_callback([app, flags] { run_generate(*app, *flags); });
}

}  // namespace loratory::cli
