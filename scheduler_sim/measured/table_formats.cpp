#include "scheduler_sim/measured/table_formats.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/cost/engine_preset.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/measured/measure_fields.hpp"
#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

using Cell = MeasuredCell;
using Draft = MeasuredDraft;

constexpr double kMostRequests = 1e8;
constexpr double kSecondsPerDay = 86'400;

std::vector<std::string> words(const Cell& cell) {
  std::vector<std::string> found;
  for (const std::string_view word : split(cell.text, ' ')) {
    if (!word.empty()) found.emplace_back(word);
  }
  return found;
}

// "meta-llama/Llama-3.1-8B-Instruct" -> "Llama-3.1-8B": the preset whose sizes it has, or the name
// as it is.
std::string preset_model(std::string_view name) {
  name.remove_prefix(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1);
  std::string plain(name);
  for (const std::string_view end : {"-Instruct", "-instruct"}) {
    if (plain.ends_with(end)) plain.resize(plain.size() - end.size());
  }
  std::erase(plain, '_');
  if (plain == "qwen-2.5-7b") plain = "Qwen2.5-7B";
  for (const std::string& preset : model_preset_names()) {
    if (equal_ignoring_case(preset, plain)) return preset;
  }
  return plain;
}

template <typename Member>
MeasuredColumn count_column(std::string name, Member member) {
  return {std::move(name),
          [member](const Cell& c, Draft& d) { d.*member = decltype(Draft{}.*member)(c.count()); }};
}

template <typename Member>
MeasuredColumn run_count(std::string name, Member member) {
  return {std::move(name), [member](const Cell& c, Draft& d) {
            d.run.*member = std::remove_reference_t<decltype(d.run.*member)>(c.count());
          }};
}

MeasuredColumn run_text(std::string name, std::string MeasuredRun::*member) {
  return {std::move(name), [member](const Cell& c, Draft& d) { d.run.*member = c.text; }};
}

MeasuredColumn draft_number(std::string name, double Draft::*member) {
  return {std::move(name), [member](const Cell& c, Draft& d) { d.*member = c.number(); }};
}

MeasuredColumn measure(std::string name, RunMeasures MeasuredRun::*whose,
                       double RunMeasures::*value) {
  return {std::move(name),
          [whose, value](const Cell& c, Draft& d) { d.run.*whose.*value = c.number(); }};
}

MeasuredColumn client_count(std::string name, int64_t MeasuredClient::*member) {
  return {std::move(name), [member](const Cell& c, Draft& d) { d.run.client.*member = c.count(); }};
}

MeasuredColumn client_number(std::string name, double MeasuredClient::*member) {
  return {std::move(name), [member](const Cell& c, Draft& d) {
            d.run.client.*member = c.number();
            if (d.run.client.*member > 1e4 * kSecondsPerDay) {
              bad_row(c.column, "over 10,000 days", "give seconds");
            }
          }};
}

MeasuredColumn model_column() {
  return {"model", [](const Cell& c, Draft& d) { d.run.model = preset_model(c.text); }};
}

void read_rates(const Cell& c, Draft& d) { d.rates_rps = c.numbers(); }
void read_rate_counts(const Cell& c, Draft& d) { d.rate_counts = c.counts(); }

void set_adapters(Draft& d) {
  MeasuredRun& run = d.run;
  const bool is_base = d.rate_counts.empty() && d.rates_rps.size() == 1;
  if (is_base) d.rate_counts = {0};
  if (d.rates_rps.size() != d.rate_counts.size()) {
    bad_row(1,
            fmt::format("{} rates, but {} counts of adapters", d.rates_rps.size(),
                        d.rate_counts.size()),
            "give a count for each rate");
  }
  for (size_t i = 0; i < d.rates_rps.size(); ++i) {
    run.adapters.push_back({d.rate_counts[i], d.rates_rps[i]});
  }
}

void check_size(const MeasuredRun& run) {
  if (run.mean_prompt_tokens > double(kMaxCount) || run.mean_output_tokens > double(kMaxCount)) {
    bad_row(1, fmt::format("a mean of more than {} tokens", kMaxCount), "check the lengths");
  }
  if (run.offered_rps() * run.client.duration_s > kMostRequests) {
    bad_row(1,
            fmt::format("{:.0g} requests in {:.0f} s, over 1e8",
                        run.offered_rps() * run.client.duration_s, run.client.duration_s),
            "give a shorter duration, or lower rates");
  }
  if (run.max_cpu_loras < run.max_loras) {
    bad_row(1,
            fmt::format("max_cpu_loras {} is below max_loras {}", run.max_cpu_loras, run.max_loras),
            "an adapter on the GPU is on the CPU too");
  }
}

// --- our own -------------------------------------------------------------------------------------

void read_engine(const Cell& c, Draft& d) {
  const std::vector<std::string> known = engine_preset_names();
  if (std::ranges::find(known, c.text) == known.end()) {
    bad_row(c.column, fmt::format("unknown engine {}", shown(c.text)),
            did_you_mean(c.text, known, fmt::format("use one of {}", fmt::join(known, ", "))));
  }
  d.run.engine = c.text;
}

void read_prefix_cache(const Cell& c, Draft& d) {
  if (c.text != "on" && c.text != "off") {
    bad_row(c.column, fmt::format("prefix_cache is {}", shown(c.text)), "write on or off");
  }
  d.run.prefix_cache = c.text == "on";
}

void read_lengths(const Cell& c, Draft& d) {
  if (c.text != "constant" && c.text != "sharegpt") {
    bad_row(c.column, fmt::format("lengths is {}", shown(c.text)), "write constant or sharegpt");
  }
  d.run.lengths = c.text == "constant" ? LengthKind::constant : LengthKind::sharegpt;
}

void finish_own(Draft& d) {
  MeasuredRun& run = d.run;
  const auto require = [&](const std::string& value, std::string_view name) {
    if (value.empty() && d.skip.empty()) d.skip = fmt::format("its {} is not known", name);
  };
  require(run.model, "model");
  require(run.engine, "engine");
  require(run.gpu, "gpu");
  set_adapters(d);
  if (run.max_lora_rank == 0 && !run.ranks.empty()) {
    run.max_lora_rank = *std::ranges::max_element(run.ranks);
  }
  if (run.ranks.empty() && run.max_lora_rank > 0) run.ranks = {run.max_lora_rank};
  if (run.max_cpu_loras == 0) run.max_cpu_loras = std::max(run.max_loras, run.num_adapters());
  if (run.group.empty()) run.group = run.model;
  check_size(run);
  if (d.skip.empty() && !run.has_traffic() && std::isnan(run.measured.kv_tokens)) {
    d.skip = "its requests are not described (rates, lengths, duration)";
  }
}

MeasuredFormat own_format() {
  MeasuredFormat f{.name = "native",
                   .telltale = "",
                   .refuses_unknown = true,
                   .columns = {},
                   .finish = finish_own};
  const auto mean = [](double MeasuredRun::*member) {
    return [member](const Cell& c, Draft& d) { d.run.*member = c.number(); };
  };
  f.columns = {
      run_text("sweep", &MeasuredRun::sweep),
      run_text("group", &MeasuredRun::group),
      model_column(),
      {"engine", read_engine},
      run_text("gpu", &MeasuredRun::gpu),
      run_text("dtype", &MeasuredRun::dtype),
      run_count("tp", &MeasuredRun::tp),
      run_count("max_loras", &MeasuredRun::max_loras),
      run_count("max_cpu_loras", &MeasuredRun::max_cpu_loras),
      run_count("max_lora_rank", &MeasuredRun::max_lora_rank),
      {"ranks", [](const Cell& c, Draft& d) { d.run.ranks = c.counts(); }},
      run_count("max_num_seqs", &MeasuredRun::max_num_seqs),
      run_count("max_num_batched_tokens", &MeasuredRun::max_num_batched_tokens),
      run_count("max_model_len", &MeasuredRun::max_model_len),
      {"prefix_cache", read_prefix_cache},
      {"rates_rps", read_rates},
      {"rate_counts", read_rate_counts},
      {"lengths", read_lengths},
      {"mean_prompt_tokens", mean(&MeasuredRun::mean_prompt_tokens)},
      {"mean_output_tokens", mean(&MeasuredRun::mean_output_tokens)},
      client_number("duration_s", &MeasuredClient::duration_s),
      client_count("num_requests", &MeasuredClient::num_requests),
      client_count("concurrency", &MeasuredClient::concurrency),
      client_count("max_in_flight", &MeasuredClient::max_in_flight),
      client_number("poll_interval_s", &MeasuredClient::poll_interval_s),
  };
  for (const MeasureField& field : kMeasureFields) {
    f.columns.push_back(measure(std::string(field.name), &MeasuredRun::measured, field.value));
    f.columns.push_back(
        measure(fmt::format("other_{}", field.name), &MeasuredRun::other, field.value));
  }
  return f;
}

// --- the sweeps of arXiv:2508.08343 --------------------------------------------------------------

constexpr std::string_view kSweepOrigin =
    "arXiv:2508.08343 (FerranAgulloLopez/GPULLMAdapterOptimization)";

// vLLM takes max_model_len from config.json, max_position_embeddings.
int64_t config_model_len(std::string_view model) {
  if (model == "Llama-3.1-8B") return 131'072;
  return model == "Qwen2.5-7B" ? 32'768 : 0;
}

// MareNostrum 5's H100 of 64 GB, as its logs have it, and vLLM 0.8.5 with 2,048 sequences. BSC's
// guide calls the memory HBM2; an H100 PCIe has 80 GB and 2.04 TB/s in five stacks of HBM2e, so
// four have 1.63. Its products reach 743 TFLOP/s where the table's card has 989: so a step of 2,048
// prompt tokens without adapters takes 54.9 ms, as in the logs of 12 other servers on this card
// (predictor_default_latency/llama-3.1-8b-instruct/input; MeasuredSteps.PrefillWithoutAdapters).
void set_sweep_server(MeasuredRun& run) {
  run.engine = "vllm-0.8";
  run.gpu = "H100-80,mem=63.4GiB,bw=1.63TB/s,flops=743T,host=64GB/s";
  run.max_num_seqs = run.max_num_batched_tokens = 2048;
  run.max_model_len = config_model_len(run.model);
  run.prefix_cache = false;
  // The client asks for no penalty, so vLLM takes the model's generation_config.json: 1.05 in
  // Qwen2.5-7B-Instruct's.
  run.has_penalties = run.model == "Qwen2.5-7B";
}

// "rank_16_rates_0.1_0.05" -> "rank 16 rates 0.1 0.05".
std::string spaced(std::string text) {
  std::ranges::replace(text, '_', ' ');
  return text;
}

void finish_sweep(Draft& d) {
  MeasuredRun& run = d.run;
  set_sweep_server(run);
  run.max_cpu_loras = std::max(run.max_loras, d.num_adapters);
  for (const int64_t rank : {8, 16, 32}) {
    if (rank <= std::max<int64_t>(8, run.max_lora_rank)) run.ranks.push_back(rank);
  }
  set_adapters(d);
  run.lengths = LengthKind::sharegpt;
  if (d.num_prompts > 0) {
    run.mean_prompt_tokens = d.prompt_tokens / d.num_prompts;
    run.mean_output_tokens = d.output_tokens / d.num_prompts;
  }
  run.client.duration_s = 3600;
  run.client.poll_interval_s = 2;
  run.client.max_in_flight = 26'500;  // the ports of localhost, less what closes slowly
  run.group = fmt::format("{} {}", run.model, spaced(d.set));
  run.sweep = fmt::format("{}, {} adapters", run.group, d.num_adapters);
  if (std::isnan(run.measured.completed)) run.measured.kv_tokens = 0;  // it did not start
  check_size(run);
  if (run.model.empty() || d.num_adapters == 0) d.skip = "its model or n_adapters is not known";
}

// dt_ttft charges requests that were not done, which a client can not measure: not read.
MeasuredFormat sweep_format() {
  MeasuredFormat f{.name = "multi-lora-sweep",
                   .telltale = "real_req",
                   .refuses_unknown = false,
                   .columns = {},
                   .finish = finish_sweep,
                   .origin = kSweepOrigin};
  const auto real = [](std::string name, double RunMeasures::*value) {
    return measure("real_" + name, &MeasuredRun::measured, value);
  };
  f.columns = {
      model_column(),
      {"set", [](const Cell& c, Draft& d) { d.set = c.text; }},
      run_count("max_loras", &MeasuredRun::max_loras),
      count_column("n_adapters", &Draft::num_adapters),
      run_count("max_lora_rank", &MeasuredRun::max_lora_rank),
      real("req", &RunMeasures::completed),
      real("in_tps", &RunMeasures::input_tps),
      real("out_tps", &RunMeasures::output_tps),
      {"rates", read_rates},
      {"rate_counts", read_rate_counts},
      draft_number("prompts_available", &Draft::num_prompts),
      draft_number("avail_in_tok", &Draft::prompt_tokens),
      draft_number("avail_out_tok", &Draft::output_tokens),
      measure("dt_finished_requests", &MeasuredRun::other, &RunMeasures::completed),
      measure("dt_input_throughput", &MeasuredRun::other, &RunMeasures::input_tps),
      measure("dt_output_throughput", &MeasuredRun::other, &RunMeasures::output_tps),
      measure("dt_itl", &MeasuredRun::other, &RunMeasures::mean_itl_ms),
  };
  for (const MeasureField& field : kMeasureFields) {
    if (field.name.ends_with("_ms"))
      f.columns.push_back(real(std::string(field.name), field.value));
  }
  return f;
}

// --- what those servers printed when they started ------------------------------------------------

void finish_start(Draft& d) {
  MeasuredRun& run = d.run;
  set_sweep_server(run);
  run.max_cpu_loras = run.max_loras;
  run.ranks = {std::max<int64_t>(1, run.max_lora_rank)};
  run.group = fmt::format("{} starts", run.model);
  if (!d.set.starts_with("0.8.5")) d.skip = fmt::format("no preset of vLLM {}", d.set);
  if (std::isnan(run.measured.kv_tokens)) run.measured.kv_tokens = 0;
}

MeasuredFormat start_format() {
  return {.name = "vllm-starts",
          .telltale = "weights_plus_lora_gib",
          .refuses_unknown = false,
          .columns = {model_column(),
                      {"vllm", [](const Cell& c, Draft& d) { d.set = c.text; }},
                      run_count("max_loras", &MeasuredRun::max_loras),
                      run_count("max_lora_rank", &MeasuredRun::max_lora_rank),
                      measure("weights_plus_lora_gib", &MeasuredRun::measured,
                              &RunMeasures::weights_gib),
                      measure("kv_cache_tokens", &MeasuredRun::measured, &RunMeasures::kv_tokens)},
          .finish = finish_start,
          .origin = kSweepOrigin};
}

// --- servers without adapters, of aiconfigurator's silicon_sample.csv ----------------------------

// What the publisher's own tools start and send (aiconfigurator at 07a3779, January 2026):
// generator/rule_plugin/{vllm,sglang}.rule and eval/benchmarks/genai_perf_runner.py. Ten requests
// for each in flight come after a warm-up that has ended.
void set_base_run(MeasuredRun& run) {
  constexpr int64_t kRequestsEach = 10, kRoomTokens = 1500;
  const int64_t concurrency = run.client.concurrency;
  run.client.num_requests = kRequestsEach * concurrency;
  run.max_num_batched_tokens = int64_t(run.mean_prompt_tokens) + kRoomTokens;
  run.max_model_len = int64_t(run.mean_prompt_tokens + run.mean_output_tokens) + kRoomTokens;
  run.prefix_cache = false;
  if (!run.engine.starts_with("vllm")) return;
  run.max_num_seqs = concurrency;
  run.max_num_batched_tokens += concurrency;
}

void finish_base(Draft& d) {
  MeasuredRun& run = d.run;
  if (run.client.concurrency == 0) run.client.concurrency = d.batch_size;
  if (run.engine == "vllm") run.engine = vllm_preset(d.set);
  set_base_run(run);
  run.group = fmt::format("{} {} {}", run.model, run.engine, run.gpu);
  if (run.dtype != "auto") run.group += " " + run.dtype;
  const std::vector<std::string> presets = engine_preset_names();
  if (std::ranges::find(presets, run.engine) == presets.end()) {
    d.skip = fmt::format("no preset of engine {}", shown(run.engine));
  } else if (run.client.concurrency == 0) {
    d.skip = "its concurrency is not known";
  } else if (run.model.empty() || run.gpu.empty() || !run.has_traffic()) {
    d.skip = "its model, gpu or lengths are not known";
  }
}

MeasuredFormat base_format() {
  const auto length = [](double MeasuredRun::*member) {
    return [member](const Cell& c, Draft& d) { d.run.*member = double(c.count()); };
  };
  return {.name = "base-servers",
          .telltale = "engine_version",
          .refuses_unknown = false,
          .columns = {model_column(),
                      run_text("gpu", &MeasuredRun::gpu),
                      run_text("engine", &MeasuredRun::engine),
                      {"engine_version", [](const Cell& c, Draft& d) { d.set = c.text; }},
                      run_text("precision", &MeasuredRun::dtype),
                      {"prompt_tokens", length(&MeasuredRun::mean_prompt_tokens)},
                      {"output_tokens", length(&MeasuredRun::mean_output_tokens)},
                      client_count("concurrency", &MeasuredClient::concurrency),
                      count_column("batch_size", &Draft::batch_size),
                      run_count("tp", &MeasuredRun::tp),
                      measure("ttft_ms", &MeasuredRun::measured, &RunMeasures::mean_ttft_ms),
                      measure("tpot_ms", &MeasuredRun::measured, &RunMeasures::mean_tpot_ms)},
          .finish = finish_base,
          .origin = "aiconfigurator-core, silicon_sample.csv"};
}

}  // namespace

// vLLM 0.14 is the first that schedules asynchronously unless it is told otherwise.
std::string vllm_preset(std::string_view version) {
  const std::string_view rest = version.starts_with("0.") ? version.substr(2) : "";
  int64_t minor = 0;
  if (parse_integer(rest.substr(0, rest.find('.')), minor) != Parse::good) return "vllm";
  return minor <= 8 ? "vllm-0.8" : minor < 14 ? "vllm-0.12" : "vllm";
}

double MeasuredCell::number() const {
  double value = 0;
  if (parse_double(text, value) != Parse::good || value < 0) {
    bad_row(column, fmt::format("{} is not a number from 0", shown(text)),
            "write a decimal number, or leave the cell empty");
  }
  return value;
}

int64_t MeasuredCell::count() const {
  int64_t value = 0;
  if (parse_integer(text, value) != Parse::good || value < 0 || value > kMaxCount) {
    bad_row(column, fmt::format("{} is not a whole number from 0 to {}", shown(text), kMaxCount),
            "write decimal digits, or leave the cell empty");
  }
  return value;
}

std::vector<double> MeasuredCell::numbers() const {
  std::vector<double> values;
  for (const std::string& word : words(*this)) values.push_back(Cell{word, column}.number());
  return values;
}

std::vector<int64_t> MeasuredCell::counts() const {
  std::vector<int64_t> values;
  for (const std::string& word : words(*this)) values.push_back(Cell{word, column}.count());
  return values;
}

const std::vector<MeasuredFormat>& measured_formats() {
  static const std::vector<MeasuredFormat> kFormats{sweep_format(), start_format(), base_format(),
                                                    own_format()};
  return kFormats;
}

}  // namespace loratory::sim
