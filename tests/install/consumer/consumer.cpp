// The smallest use of the installed libraries: three requests with two adapters, replayed on one
// slot with a step time of our own. Exit status 0 if the replay went as expected.
#include <cstdio>
#include <sstream>

#include "reference/base/check.hpp"
#include "scheduler_sim/report/csv.hpp"
#include "scheduler_sim/simulator/simulator.hpp"

using namespace loratory;

namespace {

struct OneMillisecondSteps : sim::StepTimeModel {
  int64_t step_ns(const sim::BatchShape&) const override { return 1'000'000; }
};

sim::Trace three_requests() {
  sim::Trace trace;
  trace.adapters = {{.name = "poet", .rank = 8}, {.name = "lawyer", .rank = 16}};
  trace.requests = {{.arrival_ns = 0, .prompt_tokens = 20, .output_tokens = 3, .adapter = 0},
                    {.arrival_ns = 0, .prompt_tokens = 20, .output_tokens = 3, .adapter = 1},
                    {.arrival_ns = 0, .prompt_tokens = 20, .output_tokens = 3}};
  return trace;
}

sim::SimulationConfig one_slot() {
  sim::SimulationConfig config;
  config.scheduler.residency.max_loras = 1;
  config.scheduler.residency.max_cpu_loras = 2;
  config.scheduler.num_blocks = 100;
  config.adapter_bytes = {8 << 20, 16 << 20};
  config.adapter_ranks = {8, 16};
  return config;
}

}  // namespace

int main() {
  const sim::Trace trace = three_requests();
  const OneMillisecondSteps step_time;
  sim::Simulator simulator(trace, one_slot(), step_time);
  simulator.run();
  sim::ConfigResult result;
  simulator.metrics().fill(result, {}, /*block_size=*/16, /*keep_details=*/false);
  std::printf("%d of %d requests completed, %d adapters copied, log %s\n", int(result.completed),
              int(result.num_requests), int(result.adapter_copies), simulator.log().hash().c_str());
  LORATORY_ASSERT(result.completed == 3, "every request ends");
  LORATORY_ASSERT(result.adapter_copies == 2, "two adapters take turns in one slot");
  std::ostringstream csv;
  sim::write_results_csv(csv, {&result, 1}, "ideal");
  LORATORY_ASSERT(csv.str().find("request_goodput") != std::string::npos, "a row of results.csv");
  return 0;
}
