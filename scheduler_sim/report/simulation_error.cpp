#include "scheduler_sim/report/simulation_error.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "scheduler_sim/measured/validation.hpp"
#include "scheduler_sim/report/format.hpp"

namespace loratory::sim {
namespace {

struct RealAndSimulated {
  const char* name;
  double real, simulated;
  bool is_ttft = false;
};

std::string error_cell(const RealAndSimulated& figure) {
  const std::array<ErrorRow, 1> one = {{{.predicted = figure.simulated, .measured = figure.real}}};
  const double relative = errors_of(one, /*is_in_ms=*/false).bias;
  if (!(figure.real > 0) || std::isnan(relative)) return "-";
  std::string cell = fmt::format("{:+.1f} %", 100 * relative);
  if (figure.is_ttft && figure.real <= kSlowTtftMs) {
    cell += fmt::format(", {:+.1f} ms", errors_of(one, /*is_in_ms=*/true).bias);
  }
  return cell;
}

}  // namespace

std::string simulation_error_text(const ConfigResult& real, const ConfigResult& simulated) {
  const RealAndSimulated figures[] = {
      {"completed requests", double(real.completed), double(simulated.completed)},
      {"throughput, tok/s", real.total_token_throughput, simulated.total_token_throughput},
      {"output, tok/s", real.output_throughput, simulated.output_throughput},
      {"TTFT mean, ms", real.ttft.mean_ms, simulated.ttft.mean_ms, true},
      {"TTFT p50, ms", real.ttft.p50_ms, simulated.ttft.p50_ms, true},
      {"TTFT p99, ms", real.ttft.p99_ms, simulated.ttft.p99_ms, true},
      {"TPOT mean, ms", real.tpot.mean_ms, simulated.tpot.mean_ms},
      {"TPOT p99, ms", real.tpot.p99_ms, simulated.tpot.p99_ms},
      {"ITL mean, ms", real.itl.mean_ms, simulated.itl.mean_ms},
      {"ITL p99, ms", real.itl.p99_ms, simulated.itl.p99_ms},
  };
  std::string text = fmt::format("{:<20}{:>14}{:>14}  {}\n", "", "real", "simulated", "error");
  for (const RealAndSimulated& figure : figures) {
    text += fmt::format("{:<20}{:>14}{:>14}  {}\n", figure.name, format_number(figure.real),
                        format_number(figure.simulated), error_cell(figure));
  }
  return text;
}

}  // namespace loratory::sim
