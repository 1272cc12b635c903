// The result of `vllm bench serve --save-result --save-detailed`: one JSON object a file, or a line
// with --append-result. vllm-project/vllm, vllm/benchmarks/serve.py (before 0.9 benchmarks/
// benchmark_serving.py): input_lens, output_lens, errors, and start_times in newer versions, in
// seconds of a clock of its own. Without start_times the requests are spaced evenly at
// request_rate; "inf" sent them all at once.
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "scheduler_sim/trace/logs/json_entries.hpp"

namespace loratory::sim {
namespace {

using simdjson::dom::array;

std::optional<array> list_of(const JsonObject& result, std::string_view key) {
  array values;
  const auto value = member(result, key);
  if (!value || value->get(values) != simdjson::SUCCESS) return std::nullopt;
  return values;
}

array required_list(const JsonObject& result, std::string_view key) {
  const auto values = list_of(result, key);
  if (!values) {
    bad_row(1, fmt::format("{} is missing", key), "save it with --save-result --save-detailed");
  }
  return *values;
}

constexpr double kMaxSeconds = 3e9;  // 95 years

int64_t start_ns_of(double seconds, std::string_view key) {
  if (!(seconds >= 0) || seconds > kMaxSeconds) {
    bad_row(1, fmt::format("{} holds a time out of range", key), "save the result again");
  }
  return std::llround(seconds * 1e9);
}

// Of `count` requests, in nanoseconds.
std::vector<int64_t> start_times(const JsonObject& result, size_t count, LogSink& sink) {
  std::vector<int64_t> times;
  if (const auto starts = list_of(result, "start_times")) {
    for (const JsonElement start : *starts) {
      double seconds = -1;
      if (start.get(seconds) != simdjson::SUCCESS) seconds = -1;
      times.push_back(start_ns_of(seconds, "start_times"));
    }
    return times;
  }
  const auto rate = member(result, "request_rate");
  double rate_rps = 0;
  const bool is_number = rate && rate->get(rate_rps) == simdjson::SUCCESS && rate_rps > 0;
  if (!rate) {
    bad_row(1, "start_times and request_rate are both missing",
            "save the result with a newer vLLM");
  }
  if (!is_number && text_or_empty(rate) != "inf") {
    bad_row(1, "request_rate is neither a number above 0 nor inf", "check the result");
  }
  if (is_number) sink.note("no start_times: arrivals are spaced evenly at request_rate");
  for (size_t i = 0; i < count; ++i) {
    times.push_back(is_number ? start_ns_of(double(i) / rate_rps, "request_rate") : 0);
  }
  return times;
}

// Of each request: an error is a text that is not empty.
std::vector<bool> failures(const JsonObject& result, size_t count) {
  std::vector<bool> failed;
  if (const auto errors = list_of(result, "errors")) {
    for (const JsonElement error : *errors) failed.push_back(!text_or_empty(error).empty());
  }
  failed.resize(count);
  return failed;
}

void visit_result(const JsonObject& result, uint64_t line, LogSink& sink) {
  const array inputs = required_list(result, "input_lens");
  const array outputs = required_list(result, "output_lens");
  const std::vector<int64_t> times = start_times(result, inputs.size(), sink);
  if (inputs.size() != outputs.size() || inputs.size() != times.size()) {
    bad_row(1,
            fmt::format("{} input_lens, {} output_lens and {} start_times", inputs.size(),
                        outputs.size(), times.size()),
            "save the result again");
  }
  const std::vector<bool> failed = failures(result, inputs.size());
  const std::string model = text_or_empty(member(result, "model_id"));
  auto output = outputs.begin();
  size_t i = 0;
  for (const JsonElement input : inputs) {
    try {
      LoggedRequest request;
      request.line = line;
      request.arrival_ns = times[i];
      request.prompt_tokens = token_count(input, "input_lens");
      request.output_tokens = token_count(*output, "output_lens");
      request.model = model;
      if (failed[i]) {
        bad_row(1, "a failed request", "leave failures out with --skip-bad-rows");
      }
      sink.add(std::move(request));
    } catch (BadRow& bad) {
      bad.rule = fmt::format("request {}: {}", i, bad.rule);
      sink.refuse(line, bad);
    }
    ++output;
    ++i;
  }
}

void read_bench_result(ByteSource& text, LogSink& sink) {
  for_each_json_object(text, sink, [&](const JsonObject& result, uint64_t line) {
    visit_result(result, line, sink);
  });
}

bool is_bench_result(std::string_view head) {
  const auto has = [&](std::string_view word) { return head.find(word) != std::string_view::npos; };
  return has("\"tokenizer_id\"") && has("\"num_prompts\"");
}

}  // namespace

const LogFormat kVllmBenchLog = {is_bench_result, read_bench_result, true,
                                 "save the result with --save-detailed"};

}  // namespace loratory::sim
