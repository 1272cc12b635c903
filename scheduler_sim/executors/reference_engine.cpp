#include "scheduler_sim/executors/reference_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

constexpr uint64_t kDelayStream = 1;
constexpr uint64_t kMaxDelayNs = 8;
constexpr uint64_t kSlowFactor = 20;  // of one delay in eight

void check_vocabulary(const EngineRequest& request, int64_t vocab) {
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < vocab) continue;
    throw InputError(
        fmt::format("request {}: prompt[{}]", request.id, i),
        fmt::format("token {} is outside the vocabulary of {}", request.prompt[i], vocab));
  }
}

// A request whose context may outgrow the model's sliding window is refused at its submission, and
// not by the step that gets there. vLLM bounds max_model_len so where the window is not in use
// (disable_sliding_window).
SchedulerConfig within_window(SchedulerConfig config, const reference::ModelConfig& model) {
  if (model.sliding_window > 0 && model.sliding_window < int64_t{config.max_model_len}) {
    config.max_model_len = uint32_t(model.sliding_window);
  }
  return config;
}

std::vector<DecisionSink*> sinks_of(DecisionSink* engine, DecisionSink* sink) {
  return sink == nullptr ? std::vector{engine} : std::vector{engine, sink};
}

}  // namespace

RequestSpec request_spec(const EngineRequest& request) {
  return {.id = request.id,
          .priority = request.priority,
          .num_prompt_tokens = uint32_t(request.prompt.size()),
          .max_new_tokens = uint32_t(request.params.max_new_tokens),
          .tokens = request.prompt,
          .stop_tokens = request.params.stop_tokens,
          .prompt_logprobs = request.params.prompt_logprobs,
          .disable_prefix_cache = request.disable_prefix_cache};
}

ReferenceEngine::ReferenceEngine(const reference::Model& model, const SchedulerConfig& config,
                                 const ModelRunnerConfig& runner, uint64_t seed, DecisionSink* sink,
                                 StepsAhead ahead)
    : model_(model),
      delays_(seed, kDelayStream),
      executor_(model, config, runner, [this] { return random_delay_ns(); }),
      loop_(within_window(config, model.config), executor_, sinks_of(this, sink), this, ahead) {}

int64_t ReferenceEngine::random_delay_ns() {
  const uint64_t index = num_delays_++;
  const bool is_slow = delays_.below(8, 2 * index) == 0;
  const uint64_t delay = 1 + delays_.below(kMaxDelayNs, 2 * index + 1);
  return int64_t(is_slow ? kSlowFactor * delay : delay);
}

// --- calls from outside ---------------------------------------------------------------------

RegisterStatus ReferenceEngine::register_adapter(std::string_view name, uint32_t rank,
                                                 AdapterSource source, bool replace) {
  return call([&](Scheduler& scheduler, int64_t now_ns) {
    const auto added = scheduler.register_adapter(name, rank, /*bytes=*/1, replace, now_ns);
    if (added.status == RegisterStatus::ok) {
      executor_.runner().add_adapter(added.uid, std::move(source));
    }
    return added.status;
  });
}

bool ReferenceEngine::unload_adapter(std::string_view name, bool abort_requests) {
  return call([&](Scheduler& scheduler, int64_t now_ns) {
    return scheduler.unload_adapter(name, abort_requests, now_ns);
  });
}

PinStatus ReferenceEngine::pin(std::string_view name) {
  return call([&](Scheduler& scheduler, int64_t now_ns) {
    return scheduler.pin(scheduler.residency().find_name(name), now_ns);
  });
}

SubmitStatus ReferenceEngine::submit(const EngineRequest& request) {
  check_vocabulary(request, model_.config.vocab);
  RequestSpec spec = request_spec(request);
  if (!request.adapter.empty()) {
    spec.adapter = scheduler().residency().find_name(request.adapter);
    if (spec.adapter == kBaseUid) return SubmitStatus::unknown_adapter;
  }
  const SubmitStatus status =
      call([&](Scheduler& scheduler, int64_t now_ns) { return scheduler.submit(spec, now_ns); });
  if (status == SubmitStatus::ok) {
    executor_.runner().set_sampling(spec.id, request.params.sampling);
  }
  return status;
}

void ReferenceEngine::cancel(uint64_t id) {
  call([id](Scheduler& scheduler, int64_t now_ns) { scheduler.abort(id, now_ns); });
}

// --- what comes out -------------------------------------------------------------------------

void ReferenceEngine::on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t,
                                  int64_t) {
  Eigen::Index column = 0;
  for (const StepRow& row : plan.rows) {
    if (!row.samples) continue;
    const Request& r = scheduler.request(row.request);
    if (!scheduler.is_discarded(row))
      logits_[r.id].emplace_back(executor_.runner().logits().col(column));
    ++column;
  }
}

// A request is alive while the scheduler says that it ends, and gone right after.
void ReferenceEngine::on_decision(const Decision& decision) {
  const auto* finish = decision.get_if<decision::Finish>();
  if (finish == nullptr) return;
  const Request& r = scheduler().request(scheduler().find_request(decision.request));
  EngineOutput& output = outputs_[r.id];
  output.reason = finish->reason;
  output.tokens.assign(r.tokens.begin() + r.num_prompt, r.tokens.end());
  output.logits = std::move(logits_[r.id]);
  logits_.erase(r.id);
  executor_.runner().forget_request(r.id);
}

}  // namespace loratory::sim
