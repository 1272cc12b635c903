// Tables of measured runs, results of load generators and logs of servers: any bytes are runs that
// can be described, or one InputError. The first byte says whether something is described beside.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measured_table.hpp"

namespace {

using loratory::sim::MeasuredRun;

// What a simulation would stumble over.
bool is_sound(const MeasuredRun& run) {
  if (run.has_traffic() && !(run.mean_prompt_tokens > 0 && run.mean_output_tokens > 0))
    return false;
  for (const loratory::sim::RecordedRequest& request : run.requests) {
    if (request.prompt_tokens == 0 || request.output_tokens == 0 || request.sent_ns < -1) {
      return false;
    }
  }
  return run.num_adapters() >= 0 && run.offered_rps() >= 0 && !run.place.empty();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::sim;
  if (size == 0) return 0;
  std::vector<DescribedCell> also;
  if ((data[0] & 1) != 0) {
    also = {{"gpu", "H100-80", "--describe"},
            {"engine", "vllm-0.8", "--describe"},
            {"model", "Llama-3.1-8B", "--describe"},
            {"rate_counts", "4", "--describe"}};
  }
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    const MeasuredTable table = read_measured_runs_from(bytes, "runs.csv", also);
    if (table.runs.empty() && table.skipped.empty()) std::abort();
    for (const MeasuredRun& run : table.runs) {
      if (!is_sound(run)) std::abort();
    }
  } catch (const loratory::InputError&) {
  }
  return 0;
}
