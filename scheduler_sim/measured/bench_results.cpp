// vllm-project/vllm, vllm/benchmarks/serve.py (before 0.9 benchmarks/benchmark_serving.py), and
// sgl-project/sglang, python/sglang/bench_serving.py, have the same names for nearly everything.
// Python's json writes Infinity and NaN, which are no JSON: SGLang's request_rate without
// --request- rate is one of them, vLLM writes "inf".
#include "scheduler_sim/measured/bench_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measure_fields.hpp"
#include "scheduler_sim/trace/logs/json_entries.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

constexpr double kMaxSeconds = 1e9;
constexpr int64_t kMostRequests = 10'000'000;
constexpr const char* kRemedy =
    "give the result of vllm bench serve --save-result or of SGLang's bench_serving --output-file";

// --- text ----------------------------------------------------------------------------------------

// Infinity and NaN outside of strings, as JSON of the same length, so that places stay right.
void make_json(std::string& text) {
  struct Word {
    std::string_view python, json;
  };
  constexpr Word kWords[] = {{"Infinity", "\"inf\"   "}, {"NaN", "\"\" "}};
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && (text[i] == 'I' || text[i] == 'N')) {
      for (const Word& word : kWords) {
        if (text.compare(i, word.python.size(), word.python) != 0) continue;
        text.replace(i, word.python.size(), word.json);
        i += word.python.size() - 1;
        break;
      }
    }
  }
}

// --- members -------------------------------------------------------------------------------------

// Nothing for texts ("inf", what was NaN) and for what is absent.
std::optional<double> number_at(const JsonObject& result, std::string_view key) {
  const auto value = member(result, key);
  double number = 0;
  if (!value || value->get(number) != simdjson::SUCCESS) return std::nullopt;
  if (!(number >= 0) || number > 1e15) {
    bad_row(1, fmt::format("{} is {}", key, number), "it can not be below 0: measure again");
  }
  return number;
}

double required_number(const JsonObject& result, std::string_view key) {
  const std::optional<double> number = number_at(result, key);
  if (!number) bad_row(1, fmt::format("{} is missing, or no number", key), kRemedy);
  return *number;
}

std::optional<simdjson::dom::array> list_at(const JsonObject& result, std::string_view key) {
  simdjson::dom::array values;
  const auto value = member(result, key);
  if (!value || value->get(values) != simdjson::SUCCESS) return std::nullopt;
  return values;
}

std::string cell_text(const JsonElement& value, std::string_view key) {
  std::string_view text;
  int64_t whole = 0;
  double number = 0;
  if (value.get(text) == simdjson::SUCCESS) return std::string(text);
  if (value.get(whole) == simdjson::SUCCESS) return std::to_string(whole);
  if (value.get(number) == simdjson::SUCCESS) return fmt::format("{}", number);
  bad_row(1, fmt::format("{} is neither a text nor a number", key), "write --metadata KEY=VALUE");
}

// "tensor-parallel-size" is our "tp".
std::string column_of(std::string_view key) {
  std::string column(key);
  std::ranges::replace(column, '-', '_');
  if (column == "model_id") return "model";
  if (column == "tensor_parallel_size" || column == "tp_size") return "tp";
  return column == "max_loras_per_batch" ? "max_loras" : column;
}

// --- a result ------------------------------------------------------------------------------------

class Result {
 public:
  Result(const JsonObject& result, std::span<const DescribedCell> also)
      : result_(result), also_(also) {}

  MeasuredDraft read() {
    describe();
    read_traffic();
    read_requests();
    read_measures();
    share_rates();
    if (draft_.run.sweep.empty()) draft_.run.sweep = sweep_name();
    measured_formats().back().finish(draft_);
    return std::move(draft_);
  }

 private:
  // The result's own members first, then what was said beside it, then what its client tells.
  void describe() {
    std::vector<DescribedCell> cells;
    for (const auto field : result_) {
      const std::string column = column_of(field.key);
      if (!is_description(column) || field.value.is_null()) continue;
      const std::string text = cell_text(field.value, column);
      if (!text.empty()) cells.push_back({column, text, ""});
    }
    cells.insert(cells.end(), also_.begin(), also_.end());
    const std::string backend = text_or_empty(member(result_, "backend"));
    if (backend.starts_with("sglang")) cells.push_back({"engine", "sglang", ""});
    add_described(cells, {}, draft_);
  }

  void read_traffic() {
    MeasuredClient& client = draft_.run.client;
    duration_s_ = required_number(result_, "duration");
    if (!(duration_s_ > 0) || duration_s_ > kMaxSeconds) {
      bad_row(1, fmt::format("duration is {} s", duration_s_), kRemedy);
    }
    completed_ = whole("completed").value_or(-1);
    if (completed_ < 0) bad_row(1, "completed is missing", kRemedy);
    client.num_requests = whole("num_prompts").value_or(completed_);
    rate_rps_ = number_at(result_, "request_rate").value_or(0);
    const int64_t limit = whole("max_concurrency").value_or(0);
    const double most_seen = number_at(result_, "max_concurrent_requests").value_or(INFINITY);
    if (rate_rps_ == 0) {
      client.concurrency = limit > 0 ? limit : std::max<int64_t>(1, client.num_requests);
    } else if (limit > 0 && !(most_seen < double(limit))) {
      skip("its client held requests back (--max-concurrency beside a rate)");
    }
    if (completed_ == 0) skip("no request was completed");
    if (completed_ < client.num_requests) skip("some of its requests failed");
    if (number_at(result_, "burstiness").value_or(1) != 1) skip("its arrivals are not Poisson");
    if (member(result_, "ramp_up_strategy")) skip("its rate changed during the run");
  }

  std::optional<int64_t> whole(std::string_view key) const {
    const auto value = member(result_, key);
    std::string_view text;
    if (value && value->get(text) == simdjson::SUCCESS) return std::nullopt;
    return whole_number(value, key, kMostRequests);
  }

  void skip(const char* reason) {
    if (draft_.skip.empty()) draft_.skip = reason;
  }

  void read_requests() {
    MeasuredRun& run = draft_.run;
    const double count = std::max<double>(1, double(completed_));
    run.mean_prompt_tokens = required_number(result_, "total_input_tokens") / count;
    run.mean_output_tokens = required_number(result_, "total_output_tokens") / count;
    const auto inputs = list_at(result_, "input_lens"), outputs = list_at(result_, "output_lens");
    if (!inputs || !outputs) return;
    const auto starts = list_at(result_, "start_times");
    if (inputs->size() != outputs->size() || (starts && starts->size() != inputs->size())) {
      bad_row(1, fmt::format("{} input_lens and {} output_lens", inputs->size(), outputs->size()),
              "save the result again");
    }
    auto output = outputs->begin();
    for (const JsonElement input : *inputs) {
      run.requests.push_back({.prompt_tokens = tokens(input, "input_lens"),
                              .output_tokens = tokens(*output, "output_lens")});
      ++output;
    }
    if (starts && rate_rps_ > 0) read_starts(*starts);
    if (run.requests.empty()) return;
    run.lengths = LengthKind::recorded;
    run.client.num_requests = std::ssize(run.requests);
  }

  static uint32_t tokens(const JsonElement& value, std::string_view key) {
    return std::max<uint32_t>(1, token_count(value, key).value_or(0));
  }

  // Seconds of a clock of its own. Requests are listed as they were sent.
  void read_starts(const simdjson::dom::array& starts) {
    std::vector<RecordedRequest>& requests = draft_.run.requests;
    double first = 0;
    size_t i = 0;
    for (const JsonElement start : starts) {
      double seconds = -1;
      if (start.get(seconds) != simdjson::SUCCESS || !(std::fabs(seconds) <= 1e10)) {
        bad_row(1, "start_times holds what is no time", "save the result again");
      }
      if (i == 0) first = seconds;
      const double after = std::clamp(seconds - first, 0.0, kMaxSeconds);
      requests[i++].sent_ns = std::llround(after * 1e9);
    }
    std::ranges::sort(requests, {}, &RecordedRequest::sent_ns);
  }

  void read_measures() {
    RunMeasures& m = draft_.run.measured;
    for (const MeasureField& field : kMeasureFields) {
      if (!field.name.ends_with("_ms")) continue;
      if (const auto value = number_at(result_, field.name)) m.*field.value = *value;
    }
    m.completed = double(completed_);
    m.input_tps = required_number(result_, "total_input_tokens") / duration_s_;
    m.output_tps = required_number(result_, "total_output_tokens") / duration_s_;
  }

  // Both clients draw each request's adapter evenly from those that they were given.
  void share_rates() {
    if (!draft_.rates_rps.empty()) return;
    int64_t num_adapters = 0;
    for (const int64_t count : draft_.rate_counts) num_adapters += count;
    if (num_adapters > 0) {
      draft_.rates_rps.assign(draft_.rate_counts.size(), rate_rps_ / double(num_adapters));
    } else {
      draft_.rate_counts.clear();
      draft_.rates_rps = {rate_rps_};
      if (draft_.run.max_loras > 0) skip("it does not say how many adapters (rate_counts)");
    }
  }

  std::string sweep_name() const {
    int64_t num_adapters = 0;
    for (const int64_t count : draft_.rate_counts) num_adapters += count;
    const MeasuredRun& run = draft_.run;
    const std::string load = rate_rps_ > 0 ? fmt::format("{:.6g} requests/s", rate_rps_)
                                           : fmt::format("{} in flight", run.client.concurrency);
    return fmt::format("{}, {} adapters, {}, {:.0f} prompt tokens", run.model, num_adapters, load,
                       run.mean_prompt_tokens);
  }

  const JsonObject& result_;
  std::span<const DescribedCell> also_;
  MeasuredDraft draft_;
  double duration_s_ = 0, rate_rps_ = 0;
  int64_t completed_ = 0;
};

// Whatever cannot be read ends the reading.
class Strict final : public LogSink {
 public:
  explicit Strict(std::string name) : name_(std::move(name)) {}
  void add(LoggedRequest) override {}
  void note(std::string) override {}
  [[noreturn]] void refuse(uint64_t line, const BadRow& bad) override {
    throw InputError(fmt::format("{}:{}:{}", name_, line, bad.column), bad.rule, bad.remedy);
  }

 private:
  std::string name_;
};

}  // namespace

bool is_json(std::string_view head) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t first = std::min(head.find_first_not_of(kBlank), head.size());
  if (first == head.size() || head[first] == '{') return first < head.size();
  const size_t second = std::min(head.find_first_not_of(kBlank, first + 1), head.size());
  return head[first] == '[' && second < head.size() && (head[second] == '{' || head[second] == ']');
}

void read_bench_results(ByteSource& text, const std::string& name,
                        std::span<const DescribedCell> also,
                        const std::function<void(MeasuredDraft, uint64_t line)>& add) {
  std::string all =
      read_to_end(text, name, kMaxJsonBytes, "give results without texts, or fewer in a file");
  make_json(all);
  const std::unique_ptr<ByteSource> json = open_bytes(all);
  Strict strict(name);
  for_each_json_object(*json, strict, [&](const JsonObject& result, uint64_t line) {
    add(Result(result, also).read(), line);
  });
}

}  // namespace loratory::sim
