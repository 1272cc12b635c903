#include "gpu_engine.hpp"

#include <utility>

namespace loratory::gpu {

using sim::Scheduler;

namespace {

std::vector<sim::DecisionSink*> sinks_of(sim::DecisionSink* engine, sim::DecisionSink* sink) {
  return sink == nullptr ? std::vector{engine} : std::vector{engine, sink};
}

}  // namespace

reference::ModelConfig with_tensor_core_sizes(reference::ModelConfig config) {
  config.head_dim = 64;
  config.hidden = 64;
  config.intermediate = 96;
  config.vocab = 104;
  config.num_kv_heads = 2;
  config.num_heads = 4;
  config.mlp_bias = config.o_bias = false;
  return config;
}

GpuEngine::GpuEngine(const DeviceModel& model, Products& products,
                     const sim::SchedulerConfig& config, const EngineOptions& options,
                     sim::DecisionSink* sink, sim::StepsAhead ahead)
    : GpuEngine(
          [&](sim::Clock& clock) {
            return std::make_unique<GpuExecutor>(model, products, config, options, clock);
          },
          config, sink, ahead) {}

GpuEngine::GpuEngine(const MakeExecutor& make_executor, const sim::SchedulerConfig& config,
                     sim::DecisionSink* sink, sim::StepsAhead ahead)
    : executor_(make_executor(clock_)),
      loop_(config, *executor_, sinks_of(this, sink), this, ahead) {
  executor_->keep_logits();
}

sim::RegisterStatus GpuEngine::register_adapter(std::string_view name, uint32_t rank,
                                                sim::AdapterSource source, bool replace) {
  return call([&](Scheduler& scheduler, int64_t now) {
    const auto added = scheduler.register_adapter(name, rank, /*bytes=*/1, replace, now);
    if (added.status == sim::RegisterStatus::ok) {
      executor_->add_adapter(added.uid, std::move(source));
    }
    return added.status;
  });
}

bool GpuEngine::unload_adapter(std::string_view name, bool abort_requests) {
  return call([&](Scheduler& scheduler, int64_t now) {
    return scheduler.unload_adapter(name, abort_requests, now);
  });
}

sim::PinStatus GpuEngine::pin(std::string_view name) {
  return call([&](Scheduler& scheduler, int64_t now) {
    return scheduler.pin(scheduler.residency().find_name(name), now);
  });
}

void GpuEngine::unpin(std::string_view name) {
  call([&](Scheduler& scheduler, int64_t now) {
    scheduler.unpin(scheduler.residency().find_name(name), now);
  });
}

sim::SubmitStatus GpuEngine::submit(const sim::EngineRequest& request) {
  sim::RequestSpec spec = sim::request_spec(request);
  if (!request.adapter.empty()) {
    spec.adapter = scheduler().residency().find_name(request.adapter);
    if (spec.adapter == sim::kBaseUid) return sim::SubmitStatus::unknown_adapter;
  }
  const sim::SubmitStatus status =
      call([&](Scheduler& scheduler, int64_t now) { return scheduler.submit(spec, now); });
  if (status == sim::SubmitStatus::ok) {
    executor_->set_sampling(spec.id, {.sampling = request.params.sampling});
  }
  return status;
}

void GpuEngine::cancel(uint64_t id) {
  call([id](Scheduler& scheduler, int64_t now) { scheduler.abort(id, now); });
}

void GpuEngine::on_step_end(const Scheduler& scheduler, const sim::StepPlan& plan, int64_t,
                            int64_t) {
  size_t column = 0;
  for (const sim::StepRow& row : plan.rows) {
    if (!row.samples) continue;
    const std::vector<float>& from = executor_->logits()[column++];
    if (scheduler.is_discarded(row)) continue;
    const sim::Request& r = scheduler.request(row.request);
    logits_[r.id].emplace_back(
        Eigen::Map<const reference::Vector<float>>(from.data(), Eigen::Index(from.size())));
  }
}

void GpuEngine::on_decision(const sim::Decision& decision) {
  const auto* finish = decision.get_if<sim::decision::Finish>();
  if (finish == nullptr) return;
  const sim::Request& r = scheduler().request(scheduler().find_request(decision.request));
  sim::EngineOutput& output = outputs_[r.id];
  output.reason = finish->reason;
  output.tokens.assign(r.tokens.begin() + r.num_prompt, r.tokens.end());
  output.logits = std::move(logits_[r.id]);
  logits_.erase(r.id);
  executor_->forget_request(r.id);
}

}  // namespace loratory::gpu
