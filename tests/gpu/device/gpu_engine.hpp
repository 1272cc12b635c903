#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/engine/device/gpu_executor.hpp"
#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/executors/reference_engine.hpp"

namespace loratory::gpu {

/// The configuration with sizes that the tensor cores take, as small as they go.
reference::ModelConfig with_tensor_core_sizes(reference::ModelConfig config);

/// ReferenceEngine's calls on a GPU: EngineLoop over a GpuExecutor, in real time. Outputs have the
/// logits of every token.
class GpuEngine : private sim::DecisionSink, private sim::StepObserver {
 public:
  /// `model` and `products` outlive this object. `config` is bounded_by_model().
  GpuEngine(const DeviceModel& model, Products& products, const sim::SchedulerConfig& config,
            const EngineOptions& options, sim::DecisionSink* sink = nullptr,
            sim::StepsAhead ahead = sim::StepsAhead::none);
  /// With an executor of the caller's, on the clock that it is given.
  using MakeExecutor = std::function<std::unique_ptr<GpuExecutor>(sim::Clock&)>;
  GpuEngine(const MakeExecutor& make_executor, const sim::SchedulerConfig& config,
            sim::DecisionSink* sink, sim::StepsAhead ahead);

  sim::RegisterStatus register_adapter(std::string_view name, uint32_t rank,
                                       sim::AdapterSource source, bool replace = false);
  bool unload_adapter(std::string_view name, bool abort_requests = false);
  sim::SubmitStatus submit(const sim::EngineRequest& request);
  void cancel(uint64_t id);
  sim::PinStatus pin(std::string_view name);
  void unpin(std::string_view name);
  bool advance() { return loop_.advance(); }
  void run() {
    while (advance()) {
    }
  }

  const std::map<uint64_t, sim::EngineOutput>& outputs() const { return outputs_; }
  const sim::EngineOutput& output(uint64_t id) const { return outputs_.at(id); }
  const sim::StepPlan* step(size_t index = 0) const { return loop_.step(index); }
  const sim::Scheduler& scheduler() const { return loop_.scheduler(); }
  const GpuExecutor& executor() const { return *executor_; }
  GpuExecutor& executor() { return *executor_; }

 private:
  struct WallClock final : sim::Clock {
    int64_t now_ns() override {
      return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }
    void wait_until(int64_t) override {}  // no arrival has a time of its own
  };
  /// A call from outside, now: behind everything that has ended by then.
  template <typename Call>
  auto call(Call&& make) {
    const int64_t now = std::max(loop_.now_ns(), clock_.now_ns());
    while (loop_.advance({now, sim::Moment::Phase::operations})) {
    }
    return loop_.call(now, std::forward<Call>(make));
  }
  void on_decision(const sim::Decision& decision) override;
  void on_step_end(const sim::Scheduler& scheduler, const sim::StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override;
  void on_commit(const sim::Scheduler&, int64_t) override {}

  std::map<uint64_t, std::vector<reference::Vector<float>>> logits_;  // of live requests
  std::map<uint64_t, sim::EngineOutput> outputs_;
  WallClock clock_;
  std::unique_ptr<GpuExecutor> executor_;
  sim::EngineLoop loop_;
};

}  // namespace loratory::gpu
