// A request file on a real clock's time: what each line gets is what the naive oracle computes for
// it alone, whenever things end.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/support/engine_case.hpp"
#include "fuzz/support/scheduler_cases.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "fuzz/support/tier_counts.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/serving/clocked_reference_executor.hpp"
#include "scheduler_sim/serving/serving_run.hpp"

namespace loratory::sim {
namespace {

using reference::Generation;
using reference::Model;
using reference::RandomAdapter;

// Time passes whenever somebody looks, mostly little.
class RestlessClock final : public Clock {
 public:
  explicit RestlessClock(uint64_t seed) : draw_(seed) {}
  int64_t now_ns() override {
    time_ns_ += draw_.one_in(6) ? draw_(400'000) : draw_(20'000);
    return time_ns_;
  }
  void wait_until(int64_t time_ns) override {
    RC_ASSERT(time_ns != kNever);
    time_ns_ = std::max(time_ns_, time_ns);
  }

 private:
  Draw draw_;
  int64_t time_ns_ = 0;
};

// A file of random lines, kept as text, with what each request must get.
class RandomFile {
 public:
  RandomFile(Draw& draw, const Model& model) : draw_(draw), model_(model) {
    const int64_t num_adapters = draw_.between(1, 4);
    for (int64_t i = 0; i < num_adapters; ++i) initial_[name(i)] = new_folder();
    for (const auto& [name, path] : initial_) names_.insert(name);
    current_ = initial_;
  }

  void add_line() {
    if (draw_.one_in(3)) arrival_us_ += draw_(600);
    if (draw_.one_in(7)) {
      add_operation();
    } else {
      add_request();
    }
  }

  // The first request that got something else, in words; empty if none did.
  std::string first_difference(const ServedFile& served) const {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const std::string what = difference(requests_[i], served.requests[i]);
      if (!what.empty()) return fmt::format("request {}: {}", i, what);
    }
    return served.requests.size() == requests_.size() ? "" : "a request is missing";
  }

  std::string text;
  std::set<std::string> names_;
  std::map<std::string, AdapterFolder> folders;
  std::map<std::string, std::string> initial_;
  int num_requests = 0, num_operations = 0, num_failing = 0;

 private:
  struct Expected {
    EngineRequest request;
    int num_logprobs = -1;
    std::string folder;  // "" = the base model
  };
  struct Folder {
    RandomAdapter adapter;
    bool fails = false;
  };

  static std::string name(int64_t index) { return fmt::format("a{}", index); }

  std::string new_folder() {
    const auto seed = uint64_t(draw_(int64_t{1} << 40));
    const std::string path = fmt::format("folder/{}", adapters_.size());
    const Folder& folder =
        adapters_
            .emplace(path, Folder{random_adapter(model_.config, seed,
                                                 reference::random_adapter_options(seed)),
                                  draw_.one_in(10)})
            .first->second;
    AdapterSource source = source_of(folder.adapter);
    if (folder.fails) {
      ++num_failing;
      source = []() -> reference::Adapter { throw InputError("disk", "it is gone"); };
    } else if (draw_.one_in(8)) {  // the first attempt
      source = [source, count = std::make_shared<int>(0)] {
        if ((*count)++ == 0) throw InputError("disk", "it is slow");
        return source();
      };
    }
    folders[path] = {.rank = uint32_t(folder.adapter.adapter.rank), .bytes = 1, .source = source};
    return path;
  }

  void add_operation() {
    ++num_operations;
    const std::string who = name(draw_(4));
    const bool is_known = current_.contains(who);
    const int64_t what = draw_(4);
    if (!is_known || what == 0) {
      const std::string path = new_folder();
      add(fmt::format(R"("operation": "load_lora_adapter", "lora_name": "{}", "lora_path": "{}", )"
                      R"("load_inplace": {})",
                      who, path, is_known || draw_.one_in(2)));
      current_[who] = path;
    } else if (what == 1) {
      add(fmt::format(R"("operation": "unload_lora_adapter", "lora_name": "{}", )"
                      R"("abort_requests": {})",
                      who, draw_.one_in(3)));
      current_.erase(who);
    } else {
      add(fmt::format(R"("operation": "{}", "lora_name": "{}")",
                      what == 2 ? "pin_lora" : "unpin_lora", who));
    }
  }

  void add_request() {
    Expected e{random_engine_request(draw_, uint64_t(num_requests++), model_.config, 7), -1, ""};
    reference::GenerateParams& params = e.request.params;
    params.max_new_tokens = std::max<int64_t>(params.max_new_tokens, 1);
    params.prompt_logprobs = false;
    if (draw_.one_in(3)) e.num_logprobs = int(draw_(4));
    std::string line = fmt::format(
        R"("prompt": [{}], "max_tokens": {}, "temperature": {}, "top_k": {}, "top_p": {}, )"
        R"("seed": {}, "stop_token_ids": [{}], "priority": {})",
        fmt::join(e.request.prompt, ", "), params.max_new_tokens, params.sampling.temperature,
        params.sampling.top_k, params.sampling.top_p, params.sampling.seed,
        fmt::join(params.stop_tokens, ", "), e.request.priority);
    if (e.num_logprobs >= 0) line += fmt::format(R"(, "logprobs": {})", e.num_logprobs);
    if (!current_.empty() && !draw_.one_in(4)) {
      const auto adapter = std::next(current_.begin(), draw_(int64_t(current_.size())));
      line += fmt::format(R"(, "model": "{}")", adapter->first);
      e.folder = adapter->second;
    }
    add(line);
    requests_.push_back(std::move(e));
  }

  void add(const std::string& keys) {
    text += fmt::format("{{{}, \"arrival_s\": {}}}\n", keys, double(arrival_us_) * 1e-6);
  }

  std::string difference(const Expected& expected, const ServedRequest& got) const {
    const bool fails = !expected.folder.empty() && adapters_.at(expected.folder).fails;
    if (got.reason == FinishReason::error) {
      if (!fails) return "an error: " + got.error;
      return got.error.find("it is gone") == std::string::npos ? "another error" : "";
    }
    const Generation oracle = generate(
        model_, expected.folder.empty() ? nullptr : &adapters_.at(expected.folder).adapter.adapter,
        expected.request.prompt, expected.request.params);
    const bool is_whole = got.reason != FinishReason::abort;
    if (is_whole && got.tokens.size() != oracle.tokens.size()) return "another length";
    if (!std::equal(got.tokens.begin(), got.tokens.end(), oracle.tokens.begin())) return "tokens";
    if (got.token_ns.size() != got.tokens.size()) return "times are not those of tokens";
    if (!std::ranges::is_sorted(got.token_ns)) return "time runs backwards";
    return difference_of_logprobs(expected, got, oracle);
  }

  static std::string difference_of_logprobs(const Expected& expected, const ServedRequest& got,
                                            const Generation& oracle) {
    if (expected.num_logprobs < 0) return got.logprobs.empty() ? "" : "logprobs nobody wanted";
    if (got.logprobs.size() != got.tokens.size()) return "logprobs are not those of tokens";
    for (size_t i = 0; i < got.tokens.size(); ++i) {
      const TokenLogprobs& l = got.logprobs[i];
      if (l.logprob != reference::log_probability(oracle.logits[i], got.tokens[i]))
        return "logprob";
      if (l.top != reference::top_log_probabilities(oracle.logits[i], expected.num_logprobs)) {
        return "top logprobs";
      }
    }
    return "";
  }

  Draw& draw_;
  const Model& model_;
  std::map<std::string, Folder> adapters_;      // by folder
  std::map<std::string, std::string> current_;  // the folder that a name means now
  std::vector<Expected> requests_;
  int64_t arrival_us_ = 0;
};

SchedulerConfig serving_config(Draw& draw) {
  SchedulerConfig c = random_scheduler_config(draw);
  c.num_blocks = uint32_t(1 + (20 + c.block_size - 1) / c.block_size);  // room for one request
  c.num_blocks += uint32_t(draw.one_of({0, 1, 3, 5, 60}));
  return c;
}

bool is_idle(const Scheduler& s) {
  return s.num_live() == 0 && s.blocks().num_referenced() == 0 && s.waiting().empty() &&
         !s.residency().transfer_in_flight();
}

// [2.10] [5.24] [7.19] P32 P39 P40 P63: served from a file, with loads, unloads, replacements and
// pins between the requests, each request gets the tokens and log probabilities that the oracle
// computes for it alone, or the error of its own adapter; and nothing is held in the end.
RC_GTEST_PROP(Serving, EachLineGetsWhatTheOracleComputes, ()) {
  const SeededCase c = any_seeded_case(40);
  Draw draw(c.seed);
  const Model model = reference::random_model(reference::random_model_config(c.seed), c.seed);
  const SchedulerConfig config = serving_config(draw);
  RandomFile random(draw, model);
  for (int i = 0; i < c.num_ops; ++i) random.add_line();
  RC_PRE(random.num_requests > 0);
  RC_LOG() << random.text;
  RequestFile file = parse_request_file(random.text, "random.jsonl");
  resolve_names(file, "base", random.names_);
  check_vocabulary(file, model.config.vocab);

  RestlessClock clock(c.seed);
  ClockedReferenceExecutor executor(model, config, {.max_lora_rank = 4}, clock);
  const StepsAhead ahead = draw.one_in(2) ? StepsAhead::one : StepsAhead::none;
  ServingRun run(config, executor, clock, ahead);
  for (const auto& [name, path] : random.initial_) run.add_adapter(name, random.folders.at(path));
  const ServedFile served = run.serve(file, random.folders);

  const auto ended = [&](FinishReason reason) {
    return std::ranges::count(served.requests, reason, &ServedRequest::reason) > 0;
  };
  RC_CLASSIFY(ahead == StepsAhead::one, "a step ahead");
  RC_CLASSIFY(served.num_preemptions > 0, "preempts");
  RC_CLASSIFY(random.num_operations > 0, "operations");
  RC_CLASSIFY(!served.refused.empty(), "a pin is refused");
  RC_CLASSIFY(ended(FinishReason::error), "loads fail");
  RC_CLASSIFY(ended(FinishReason::abort), "aborts");
  RC_CLASSIFY(ended(FinishReason::stop), "stops");
  RC_CLASSIFY(config.load_mode == LoadMode::blocking, "blocking");
  RC_ASSERT(random.first_difference(served) == "");
  RC_ASSERT(is_idle(run.scheduler()));
}

}  // namespace
}  // namespace loratory::sim
