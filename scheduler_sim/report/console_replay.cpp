#include <fmt/format.h>

#include <string_view>

#include "reference/base/check.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/advice.hpp"
#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/words.hpp"

namespace loratory::sim {
namespace {

// The widths of `vllm bench serve`, so that two terminals compare line by line.
constexpr int kBannerWidth = 50;
constexpr int kLabelWidth = 40;

class Banner {
 public:
  explicit Banner(double slo_percentile) : slo_percentile_(slo_percentile) {}
  void section(std::string_view title, char fill) {
    const std::string spaced = title.empty() ? ""
                                             : fmt::format("{}{}{}", fill == '=' ? " " : "", title,
                                                           fill == '=' ? " " : "");
    const size_t rest = kBannerWidth - spaced.size();
    text_ += std::string(rest / 2, fill) + spaced + std::string(rest - rest / 2, fill) + "\n";
  }
  void line(std::string_view label, int64_t value) {
    text_ += fmt::format("{:<{}} {}\n", label, kLabelWidth, value);
  }
  void line(std::string_view label, double value) {
    text_ += fmt::format("{:<{}} {:.2f}\n", label, kLabelWidth, value);
  }
  void line(std::string_view label, std::string_view value) {
    text_ += fmt::format("{:<{}} {}\n", label, kLabelWidth, printable(value));
  }
  void latency(std::string_view title, std::string_view name, const LatencySummary& latency) {
    section(title, '-');
    line(fmt::format("Mean {} (ms):", name), latency.mean_ms);
    line(fmt::format("Median {} (ms):", name), latency.p50_ms);
    line(fmt::format("P90 {} (ms):", name), latency.p90_ms);
    line(fmt::format("P95 {} (ms):", name), latency.p95_ms);
    line(fmt::format("P99 {} (ms):", name), latency.p99_ms);
    if (report::is_own_percentile(slo_percentile_)) {
      line(fmt::format("P{} {} (ms):", slo_percentile_, name), latency.pslo_ms);
    }
  }
  std::string text() && { return std::move(text_); }

 private:
  double slo_percentile_;
  std::string text_;
};

void add_throughput(Banner& banner, const ConfigResult& c, uint64_t num_rows_skipped) {
  banner.line("Successful requests:", c.completed);
  banner.line("Failed requests:", c.failed);
  banner.line("Cancelled requests:", c.cancelled);
  if (num_rows_skipped > 0) banner.line("Bad rows skipped:", int64_t(num_rows_skipped));
  banner.line("Replay duration (s):", c.duration_s);
  banner.line("Request throughput (req/s):", c.request_throughput);
  banner.line("Request goodput (req/s):", c.request_goodput);
  banner.line("Requests that meet the SLOs (%):", 100 * c.slo_attainment);
  banner.line("Output token throughput (tok/s):", c.output_throughput);
  banner.line("Total token throughput (tok/s):", c.total_token_throughput);
}

void add_adapters(Banner& banner, const ConfigResult& c) {
  banner.section("Adapters", '-');
  banner.line("max_loras:", int64_t{c.max_loras});
  banner.line("max_cpu_loras:", int64_t{c.max_cpu_loras});
  banner.line("GPU hit ratio (%):", 100 * c.adapter_gpu_hit_ratio);
  banner.line("CPU hit ratio (%):", 100 * c.adapter_cpu_hit_ratio);
  banner.line("Loads, disk to CPU:", c.adapter_loads);
  banner.line("Bytes loaded:", format_bytes(double(c.adapter_load_bytes)));
  banner.line("Copies, CPU to GPU:", c.adapter_copies);
  banner.line("Bytes copied:", format_bytes(double(c.adapter_copy_bytes)));
}

void add_engine(Banner& banner, const ConfigResult& c) {
  banner.section("Engine", '-');
  banner.line("KV blocks:", c.memory.kv_blocks);
  banner.line("HBM for slots:", format_bytes(double(c.memory.slot_bytes)));
  banner.line("HBM for KV:", format_bytes(double(c.memory.kv_bytes)));
  banner.line("Prefix hit ratio, tokens (%):", 100 * c.prefix_hit_ratio_tokens);
  banner.line("Prefix hit ratio, blocks (%):", 100 * c.prefix_hit_ratio_blocks);
  banner.line("Preemptions:", c.num_preemptions);
  banner.line("Drains for a starving adapter:", c.num_drains);
  banner.line("Steps:", c.num_steps);
  banner.line("Mean sequences per step:", c.mean_batch_seqs);
  banner.line("GPU busy (%):", 100 * c.gpu_busy_fraction);
  banner.line("Longest queue:", c.max_waiting);
}

// What was given first; the page and results.json have every default.
void add_settings(Banner& banner, const Provenance& provenance) {
  banner.section("Flags", '-');
  for (const Setting& setting : provenance.settings) {
    if (setting.is_given) banner.line(fmt::format("--{}:", setting.name), setting.value);
  }
  for (const Setting& setting : provenance.settings) {
    if (!report::is_notable_default(setting)) continue;
    banner.line(fmt::format("--{} (default):", setting.name), setting.value);
  }
}

void add_inputs(Banner& banner, const Provenance& provenance) {
  banner.section("Files", '-');
  std::string_view trace = "trace, ";  // the first
  for (const Provenance::Input& input : provenance.inputs) {
    banner.line(fmt::format("{}{}:", trace, input.format),
                fmt::format("{} {}", input.checksum, input.path));
    trace = "";
  }
}

std::string infeasible(const ConfigResult& c) {
  return fmt::format("max_loras {}: {}\n", c.max_loras, printable(c.problem));
}

}  // namespace

std::string replay_console(const SizeResult& result) {
  LORATORY_ASSERT(result.configs.size() == 1, "a replay has one configuration");
  const ConfigResult& config = result.configs[0];
  if (!config.feasible) return infeasible(config);
  Banner banner(result.slo.percentile);
  banner.section("Replay Result", '=');
  add_throughput(banner, config, result.workload.num_rows_skipped);
  banner.latency("Time to First Token", "TTFT", config.ttft);
  banner.latency("Time per Output Token (excl. 1st token)", "TPOT", config.tpot);
  banner.latency("Inter-token Latency", "ITL", config.itl);
  banner.latency("End-to-end Latency", "E2EL", config.e2el);
  banner.latency("Queue Time", "queue", config.queue);
  add_adapters(banner, config);
  add_engine(banner, config);
  add_settings(banner, result.provenance);
  add_inputs(banner, result.provenance);
  banner.section("", '=');
  for (const std::string& note : result.workload.notes) banner.line("Note:", note);
  banner.line("SLO:", report::slo_sentence(result.slo));
  banner.line("Verdict:", report::verdict_text(config));
  banner.line("Event log hash:", config.event_log_hash);
  return std::move(banner).text();
}

}  // namespace loratory::sim
