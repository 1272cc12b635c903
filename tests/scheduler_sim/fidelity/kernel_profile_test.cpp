// Two servers whose kernels were timed one by one (LLMServingSim, commit 5daddb2, vLLM 0.19.0,
// Llama-3.1-8B in bf16, 300 ShareGPT requests). The simulator replays the requests with step times
// made of those kernels. The figures of docs/fidelity.md are the ones printed here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "scheduler_sim/metrics/quantiles.hpp"
#include "tests/scheduler_sim/measured_data.hpp"
#include "tests/scheduler_sim/simulator/tiny_replay.hpp"

namespace loratory::sim {
namespace {

// Values by an ascending key, with those between linear in the key, and flat beyond the ends.
template <typename Values, typename Read>
double between(const Values& values, double key, Read read) {
  const auto above = values.lower_bound(key);
  if (above == values.end()) return read(std::prev(above)->second);
  if (above == values.begin() || above->first == key) return read(above->second);
  const auto below = std::prev(above);
  const double share = (key - below->first) / (above->first - below->first);
  return (1 - share) * read(below->second) + share * read(above->second);
}

using Curve = std::map<double, double>;

double value_at(const Curve& curve, double key) {
  return between(curve, key, [](double value) { return value; });
}

// step = layers x (dense(tokens) + attention) + embedding and last norm (tokens) + lm_head and
// sampler (rows). Each kernel was timed alone; nothing of it was measured on a running server.
class KernelProfile final : public StepTimeModel {
 public:
  KernelProfile(const std::string& folder, double unevenness) : unevenness_(unevenness) {
    for (const MeasuredRow& row : read_measured(folder + "/profile_dense.csv")) {
      const std::string& layer = row.at("layer");
      const bool is_once = layer == "embedding" || layer == "final_layernorm";
      const double times = is_once ? 1 : layer == "layernorm" ? 2 * kLayers : kLayers;
      dense_[number(row, "tokens")] += times * number(row, "time_us");
    }
    for (const MeasuredRow& row : read_measured(folder + "/profile_per_sequence.csv")) {
      per_row_[number(row, "sequences")] += number(row, "time_us");
    }
    for (const MeasuredRow& row : read_measured(folder + "/profile_attention.csv")) {
      attention_[number(row, "prefill_chunk")][number(row, "n_decode")][number(row, "kv_prefill")]
                [number(row, "kv_decode")] = number(row, "time_us");
    }
  }

  int64_t step_ns(const BatchShape& s) const override {
    const double us = value_at(dense_, double(padded(s.num_tokens))) +
                      value_at(per_row_, double(s.num_seqs)) + kLayers * attention_us(s);
    return std::max<int64_t>(1, std::llround(1e3 * us));
  }

 private:
  static constexpr double kLayers = 32;

  // A step of up to 512 tokens replays the CUDA graph of the next captured size (meta.json:
  // cudagraph_capture_sizes).
  static int64_t padded(int64_t tokens) {
    if (tokens > 512 || tokens <= 2) return tokens;
    const int64_t step = tokens <= 4 ? 4 : tokens <= 256 ? 8 : 16;
    return (tokens + step - 1) / step * step;
  }

  // The grid has one prefill row and decoding rows of one length. Several prefills of C tokens in
  // all are taken as one with as many (query, key) pairs: C tokens behind k. Fewer pairs than C
  // tokens behind nothing have cost their share of the prefill's time.
  double attention_us(const BatchShape& s) const {
    const auto tokens = double(s.num_prefill_tokens);
    const double own_pairs = tokens * (tokens + 1) / 2;
    const double behind = tokens > 0 ? (double(s.prefill_pairs) - own_pairs) / tokens : 0;
    const double us = decode_and_prefill_us(s, std::max(0.0, behind));
    if (behind >= 0) return us;
    return us - grid_us(tokens, 0, 0, 0) * (1 - double(s.prefill_pairs) / own_pairs);
  }

  double decode_and_prefill_us(const BatchShape& s, double behind) const {
    const auto tokens = double(s.num_prefill_tokens);
    const double rows = double(s.num_tokens) - tokens;
    if (rows == 0) return grid_us(tokens, behind, 0, 0);
    const double mean_us = grid_us(tokens, behind, rows, double(s.decode_context_tokens) / rows);
    if (rows == 1) return mean_us;
    const double longest_us = grid_us(tokens, behind, rows, double(s.longest_decode_context));
    return mean_us + unevenness_ * (longest_us - mean_us);
  }

  double grid_us(double prefill, double behind, double rows, double kv) const {
    return between(attention_, prefill, [&](const auto& by_rows) {
      return between(by_rows, rows, [&](const auto& by_behind) {
        return between(by_behind, behind, [&](const Curve& by_kv) { return value_at(by_kv, kv); });
      });
    });
  }

  double unevenness_;
  Curve dense_, per_row_;
  std::map<double, std::map<double, std::map<double, Curve>>> attention_;
};

struct Latencies {
  std::vector<double> ttft_ms, tpot_ms;
};

// Prompts that begin as an earlier one does: request, the earlier one, 16-token blocks in common.
// Counted in workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl of the same commit.
struct SharedPrefix {
  uint32_t request, earlier, blocks;
};
constexpr SharedPrefix kSharedPrefixes[] = {
    {47, 40, 28},   {66, 35, 39},   {68, 28, 22},   {79, 17, 53},   {88, 27, 20},   {93, 82, 39},
    {117, 45, 24},  {128, 63, 52},  {139, 117, 62}, {140, 76, 24},  {152, 31, 2},   {158, 107, 38},
    {173, 153, 28}, {174, 38, 82},  {177, 22, 30},  {180, 61, 51},  {183, 31, 19},  {184, 151, 36},
    {188, 138, 45}, {200, 109, 16}, {209, 201, 37}, {220, 146, 32}, {223, 36, 50},  {227, 226, 32},
    {235, 56, 52},  {237, 207, 79}, {265, 149, 37}, {280, 147, 51}, {281, 186, 51}, {285, 165, 45},
    {287, 111, 28}, {293, 163, 16}};

void add_prompts(Trace& trace) {
  std::vector<std::vector<uint64_t>> lists(trace.requests.size());
  uint64_t next = 1;
  const SharedPrefix* prefix = std::begin(kSharedPrefixes);
  for (uint32_t i = 0; i < lists.size(); ++i) {
    if (prefix != std::end(kSharedPrefixes) && prefix->request == i) {
      const auto& earlier = lists[prefix->earlier];
      lists[i].assign(earlier.begin(), earlier.begin() + prefix->blocks);
      ++prefix;
    }
    while (lists[i].size() * 16 < trace.requests[i].prompt_tokens) lists[i].push_back(next++);
  }
  add_contents(trace, 16, lists);
}

struct MeasuredServer {
  Trace trace;
  Latencies latencies;
};

// An arrival is the time at which vLLM's engine core queued the request, as in LLMServingSim's own
// comparison.
MeasuredServer measured_server(const std::string& folder) {
  MeasuredServer m;
  std::ifstream in(reference_folder() / folder / "requests.jsonl");
  double start_s = -1;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    const double queued_s = json.at("queued_ts"), first_s = json.at("first_token_ts");
    const double last_s = json.at("last_token_ts");
    if (start_s < 0) start_s = queued_s;
    const uint32_t output = json.at("output_toks");
    m.trace.requests.push_back(
        at(std::llround(1e9 * (queued_s - start_s)), kBaseModel, json.at("input_toks"), output));
    m.latencies.ttft_ms.push_back(1e3 * (first_s - queued_s));
    m.latencies.tpot_ms.push_back(1e3 * (last_s - first_s) / (output - 1));
  }
  add_prompts(m.trace);
  return m;
}

struct Server {
  std::string folder;
  uint32_t max_num_seqs, num_blocks;
  /// How far attention over decoding rows of uneven contexts is from its time at their mean (0) to
  /// that at their longest (1).
  double unevenness;
};

Latencies replayed(const Trace& trace, const Server& server, const StepTimeModel& model) {
  SimulationConfig config;
  config.scheduler.num_blocks = server.num_blocks;
  config.scheduler.max_num_seqs = server.max_num_seqs;
  Simulator simulator(trace, config, model);
  simulator.run();
  const ConfigResult result = result_of(simulator);
  Latencies l;
  for (const RequestRecord& r : result.requests) {
    l.ttft_ms.push_back(1e-6 * double(r.first_token_ns - r.arrival_ns));
    l.tpot_ms.push_back(1e-6 * double(r.finish_ns - r.first_token_ns) / (r.output_tokens - 1));
  }
  fmt::print("{}: {} preemptions, {} steps, {:.1f} % of prompt tokens cached\n", server.folder,
             result.num_preemptions, result.num_steps, 100 * result.prefix_hit_ratio_tokens);
  return l;
}

// Prints mean, median and 99th percentile of both; the error of the mean.
double compare(const char* what, std::vector<double> simulated, std::vector<double> measured) {
  const LatencySummary s = summarize_ms(simulated, 99), m = summarize_ms(measured, 99);
  const auto cell = [](double simulated_ms, double measured_ms) {
    return fmt::format("{:.1f} for {:.1f} ({:+.1f} %)", simulated_ms, measured_ms,
                       100 * (simulated_ms / measured_ms - 1));
  };
  fmt::print("{}, ms: mean {}, p50 {}, p99 {}\n", what, cell(s.mean_ms, m.mean_ms),
             cell(s.p50_ms, m.p50_ms), cell(s.p99_ms, m.p99_ms));
  return s.mean_ms / m.mean_ms - 1;
}

class LlmServingSim : public ::testing::TestWithParam<Server> {};

TEST_P(LlmServingSim, MeansOfTtftAndTpot) {
  const Server& server = GetParam();
  const std::string folder = "llmservingsim/" + server.folder;
  const MeasuredServer measured = measured_server(folder);
  if (measured.trace.requests.empty()) GTEST_SKIP() << "no measured requests";
  const KernelProfile model(folder, server.unevenness);
  const Latencies simulated = replayed(measured.trace, server, model);
  const double ttft = compare("TTFT", simulated.ttft_ms, measured.latencies.ttft_ms);
  const double tpot = compare("TPOT", simulated.tpot_ms, measured.latencies.tpot_ms);
  EXPECT_LT(std::fabs(ttft), 0.03);
  EXPECT_LT(std::fabs(tpot), 0.03);
}

// max_num_seqs and num_gpu_blocks of meta.json; the second card's are not known, and never full.
INSTANTIATE_TEST_SUITE_P(Servers, LlmServingSim,
                         ::testing::Values(Server{"RTX4090", 256, 2588, 0},
                                           Server{"RTXPRO6000", 128, 34000, 0.0543}));

}  // namespace
}  // namespace loratory::sim
