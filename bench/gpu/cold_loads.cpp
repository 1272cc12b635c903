#include "cold_loads.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "gpu/engine/device/gpu_executor.hpp"
#include "reference/base/check.hpp"
#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/serving/synthetic_adapter.hpp"

namespace loratory::gpu {
namespace {

using sim::Scheduler;
using sim::Uid;

constexpr int kRepeats = 5;
constexpr uint32_t kPrompt = 512;    // tokens of a request alone
constexpr int kNumLoads = 4;         // beside a batch
constexpr int kBatch = 32;           // requests that decode
constexpr uint32_t kContext = 1024;  // of each, at first
constexpr int kSteps = 150;          // of a round, or more if a load takes longer
constexpr double kMs = 1e-6;

struct WallClock final : sim::Clock {
  int64_t now_ns() override {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  void wait_until(int64_t) override {}
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// --- an engine --------------------------------------------------------------------------------

class Server : private sim::DecisionSink, private sim::StepObserver {
  // From outside, now: behind everything that has ended by then.
  template <typename Call>
  auto call(Call&& make) {
    const int64_t now = std::max(loop_.now_ns(), clock_.now_ns());
    while (loop_.advance({now, sim::Moment::Phase::operations})) {
    }
    return loop_.call(now, std::forward<Call>(make));
  }

 public:
  Server(const DeviceModel& model, Products& products, const sim::SchedulerConfig& config,
         const EngineOptions& options)
      : model_(model),
        executor_(model, products, config, options, clock_),
        loop_(config, executor_, {this}, this, sim::StepsAhead::one) {}

  Uid add_adapter(const std::string& folder, int64_t rank) {
    reference::LoadOptions load;
    load.engine_dtype = model_.dtype();
    auto source = sim::peft_directory(folder, base_model_shapes(model_.config()), load);
    return call([&](Scheduler& scheduler, int64_t now) {
      const std::string name = fmt::format("adapter {}", ++num_adapters_);
      const auto added = scheduler.register_adapter(name, uint32_t(rank), 1, false, now);
      executor_.add_adapter(added.uid, std::move(source));
      return added.uid;
    });
  }
  void submit(Uid adapter, uint32_t num_prompt, uint32_t num_new) {
    std::vector<int32_t> prompt;
    const uint64_t id = ++num_requests_;
    for (uint32_t i = 0; i < num_prompt; ++i) {
      prompt.push_back(int32_t((id * 7919 + i * 31) % uint64_t(model_.config().vocab)));
    }
    call([&](Scheduler& scheduler, int64_t now) {
      sim::RequestSpec spec{.id = id, .adapter = adapter};
      spec.num_prompt_tokens = num_prompt;
      spec.max_new_tokens = num_new;
      spec.tokens = prompt;
      spec.disable_prefix_cache = true;
      submitted_ns_ = now;
      first_token_ns_ = -1;
      const sim::SubmitStatus status = scheduler.submit(spec, now);
      LORATORY_ASSERT(status == sim::SubmitStatus::ok, "the engine has room for it");
    });
  }
  void pin(Uid adapter) {
    call([&](Scheduler& scheduler, int64_t now) {
      const sim::PinStatus status = scheduler.pin(adapter, now);
      LORATORY_ASSERT(status == sim::PinStatus::ok, "there is a slot");
    });
  }
  void unpin(Uid adapter) {
    call([&](Scheduler& scheduler, int64_t now) { scheduler.unpin(adapter, now); });
  }
  bool is_on_gpu(Uid adapter) const {
    const sim::Residency& residency = loop_.scheduler().residency();
    return residency.ready(residency.find_uid(adapter));
  }
  bool advance() { return loop_.advance(); }
  void run() {
    while (advance()) {
    }
  }
  // Alone: to its first token.
  double ttft_ms(Uid adapter) {
    submit(adapter, kPrompt, 1);
    run();
    LORATORY_ASSERT(first_token_ns_ >= 0, "it has one");
    return double(first_token_ns_ - submitted_ns_) * kMs;
  }

  // Since they were cleared, from end to end of a step.
  struct Steps {
    std::vector<double> gpu_ms;   // by the GPU's clock
    std::vector<double> host_ms;  // as the host sees their ends, which may be late

    size_t size() const { return gpu_ms.size(); }
  } steps;

 private:
  void on_decision(const sim::Decision& d) override {
    if (d.is<sim::decision::FirstToken>()) first_token_ns_ = d.time_ns;
  }
  void on_step_end(const Scheduler&, const sim::StepPlan&, int64_t start_ns,
                   int64_t now_ns) override {
    steps.gpu_ms.push_back(executor_.times().num_steps > 1 ? executor_.last_step_ms() : 0);
    steps.host_ms.push_back(double(now_ns - start_ns) * kMs);
  }
  void on_commit(const Scheduler&, int64_t) override {}

  const DeviceModel& model_;
  WallClock clock_;
  GpuExecutor executor_;
  sim::EngineLoop loop_;
  uint64_t num_requests_ = 0;
  int num_adapters_ = 0;
  int64_t submitted_ns_ = 0, first_token_ns_ = -1;
};

sim::SchedulerConfig scheduler_config() {
  sim::SchedulerConfig c;
  c.max_num_seqs = kBatch + 1;
  c.max_num_batched_tokens = 8192;
  c.max_model_len = 4096;
  c.num_blocks = 1 + (kBatch + 1) * 4096 / 16;
  c.residency.max_loras = 2;
  c.residency.max_cpu_loras = 6;
  c.prefix_cache = false;
  return c;
}

EngineOptions engine_options(const DeviceModel& model, int64_t rank) {
  EngineOptions options;
  options.dtype = model.dtype();
  options.max_lora_rank = rank;
  options.modules.embed_tokens = options.modules.lm_head = false;
  options.num_host_images = 8;
  return options;
}

// The page cache lets go of a file that the disk has.
void drop_from_page_cache(const std::string& folder) {
  const std::string path = folder + "/adapter_model.safetensors";
  const int file = open(path.c_str(), O_RDONLY);
  if (file < 0) return;
  fsync(file);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
}

// --- first tokens -------------------------------------------------------------------------------

// Two slots; what two others use goes back to host memory.
std::string measure_ttft(const std::string& name, Server& server, int64_t rank,
                         const std::vector<std::string>& folders) {
  const Uid a = server.add_adapter(folders[0], rank), b = server.add_adapter(folders[1], rank),
            c = server.add_adapter(folders[2], rank);
  for (const Uid uid : {a, b, c, a}) server.ttft_ms(uid);  // everything once
  std::map<std::string, std::vector<double>> by_tier;
  for (int i = 0; i < kRepeats; ++i) {
    by_tier["1 GPU"].push_back(server.ttft_ms(a));
    server.ttft_ms(b), server.ttft_ms(c);
    by_tier["2 pinned"].push_back(server.ttft_ms(a));
    by_tier["3 page cache"].push_back(server.ttft_ms(server.add_adapter(folders[3], rank)));
    drop_from_page_cache(folders[3]);
    by_tier["4 disk"].push_back(server.ttft_ms(server.add_adapter(folders[3], rank)));
    server.ttft_ms(b), server.ttft_ms(c), server.ttft_ms(a);
  }
  std::string json;
  fmt::print("\n| {} r{} | TTFT of {} tokens, ms | least | most |\n| --- | ---: | ---: | ---: |\n",
             name, rank, kPrompt);
  for (const auto& [tier, times] : by_tier) {
    const auto [least, most] = std::ranges::minmax(times);
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} |\n", tier.substr(2), median(times), least, most);
    json += fmt::format(
        "{}\n  {{\"model\": \"{}\", \"rank\": {}, \"tier\": \"{}\", \"prompt\": {}, \"ttft_ms\": "
        "{:.3f}, \"least_ms\": {:.3f}, \"most_ms\": {:.3f}}}",
        json.empty() ? "" : ",", name, rank, tier.substr(2), kPrompt, median(times), least, most);
  }
  return json;
}

// --- the steps of others ------------------------------------------------------------------------

// Steps of requests that decode. With `loads`, an adapter comes from the disk onto the GPU at the
// begin of each round. Steps take longer as contexts grow, so one is compared with those of the
// same number in a run without loads.
Server::Steps measure_steps(Server& server, int64_t rank, const std::vector<std::string>& folders,
                            bool loads) {
  const Uid a = server.add_adapter(folders[0], rank);
  server.ttft_ms(a);
  for (int i = 0; i < kBatch; ++i) {
    server.submit(i % 2 == 0 ? a : sim::kBaseUid, kContext, 4096 - kContext - 8);
  }
  while (server.steps.size() < 100 && server.advance()) {  // prompts, and some steps more
  }
  server.steps = {};
  for (size_t round = 1; round <= kNumLoads; ++round) {
    std::optional<Uid> other;
    if (loads) {
      other = server.add_adapter(folders[round], rank);
      server.pin(*other);
    }
    const size_t end = round * size_t(kSteps);
    while ((server.steps.size() < end || (other && !server.is_on_gpu(*other))) &&
           server.advance()) {
    }
    if (other) server.unpin(*other);
  }
  return server.steps;
}

// Each step over the median of those without loads around it: sorted.
std::vector<double> over_usual(const std::vector<double>& steps,
                               const std::vector<double>& without) {
  constexpr size_t kAround = 10;
  std::vector<double> out;
  for (size_t i = 0; i < std::min(steps.size(), without.size()); ++i) {
    const size_t begin = i < kAround ? 0 : i - kAround;
    const size_t end = std::min(i + kAround + 1, without.size());
    out.push_back(steps[i] /
                  median({without.begin() + int64_t(begin), without.begin() + int64_t(end)}));
  }
  std::ranges::sort(out);
  return out;
}

std::string report_steps(const std::string& name, int64_t rank, const Server::Steps& without,
                         const Server::Steps& with) {
  fmt::print(
      "\n| {} r{}: steps of {} that decode | clock | median, ms | over usual: median | 99 % | most "
      "|\n| --- | --- | ---: | ---: | ---: | ---: |\n",
      name, rank, kBatch);
  std::string json;
  const auto row = [&](const char* what, const std::string& key, const char* clock,
                       std::vector<double> Server::Steps::*ms, const Server::Steps& of) {
    const std::vector<double>& steps = of.*ms;
    const std::vector<double> over = over_usual(steps, without.*ms);
    const double usual = over[over.size() / 2], p99 = over[over.size() * 99 / 100];
    fmt::print("| {} | {} | {:.3f} | {:+.2f} % | {:+.2f} % | {:+.2f} % |\n", what, clock,
               median(steps), 100 * (usual - 1), 100 * (p99 - 1), 100 * (over.back() - 1));
    json += fmt::format(
        ", \"{0}_ms\": {1:.4f}, \"{0}_over\": {2:.5f}, \"{0}_over_p99\": {3:.5f}, "
        "\"{0}_over_most\": {4:.5f}",
        key, median(steps), usual, p99, over.back());
  };
  const auto rows = [&](const char* what, const std::string& key, const Server::Steps& of) {
    row(what, key + "_gpu", "GPU", &Server::Steps::gpu_ms, of);
    row(what, key, "host", &Server::Steps::host_ms, of);
  };
  rows("without a load", "without", without);
  rows("beside loads from the disk", "beside", with);
  return fmt::format(
      "  {{\"model\": \"{}\", \"rank\": {}, \"tier\": \"others\", \"batch\": {}, \"loads\": {}, "
      "\"steps\": {}{}}}",
      name, rank, kBatch, kNumLoads, with.size(), json);
}

}  // namespace

std::string measure_cold_loads(const std::string& name, const DeviceModel& model,
                               Products& products, int64_t rank, const std::string& folder) {
  std::vector<std::string> folders;
  for (uint64_t i = 0; i <= kNumLoads; ++i) {
    folders.push_back(fmt::format("{}/r{}-{}", folder, rank, i));
    sim::write_synthetic_adapter(folders.back(), model.config(), rank, i);
  }
  const sim::SchedulerConfig config = bounded_by_model(scheduler_config(), model.config());
  std::string json;
  {
    Server server(model, products, config, engine_options(model, rank));
    json = measure_ttft(name, server, rank, folders);
  }
  Server::Steps steps[2];
  for (const std::string& written : folders) drop_from_page_cache(written);  // takes milliseconds
  for (const bool loads : {false, true}) {
    Server server(model, products, config, engine_options(model, rank));
    steps[loads] = measure_steps(server, rank, folders, loads);
  }
  json += ",\n" + report_steps(name, rank, steps[0], steps[1]);
  for (const std::string& written : folders) std::filesystem::remove_all(written);
  return json;
}

}  // namespace loratory::gpu
