#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/base/units.hpp"
#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/charts.hpp"
#include "scheduler_sim/report/html/line_chart.hpp"
#include "scheduler_sim/report/html/sweep.hpp"

namespace loratory::sim::report {
namespace {

struct Part {
  const char* name;
  const char* style;
  int64_t MemorySplit::*bytes;
};

// From the bottom: what never changes first, so that the growth of the slots is read off one line.
constexpr std::array kParts = {Part{"weights", "weights", &MemorySplit::weights_bytes},
                               Part{"reserve", "reserve", &MemorySplit::reserve_bytes},
                               Part{"slots", "slots", &MemorySplit::slot_bytes},
                               Part{"KV cache", "kv", &MemorySplit::kv_bytes}};

constexpr Box kPlot{58, 34, kChartWidth - 84, kChartHeight - 46};
constexpr double kMaxBarWidth = 40;

double gib(int64_t bytes) { return double(bytes) / double(kGiB); }

double total_gib(const MemorySplit& memory) {
  double total = 0;
  for (const Part& part : kParts) total += gib(memory.*part.bytes);
  return total;
}

std::string tip_of(const SizeResult& result, size_t i) {
  const MemorySplit& memory = result.configs[i].memory;
  std::string tip = fmt::format("max_loras {}", size_label(result, i));
  for (auto part = kParts.rbegin(); part != kParts.rend(); ++part) {
    tip += fmt::format("\n{}  {}", part->name, format_bytes(double(memory.*part->bytes)));
  }
  return tip + fmt::format("\nKV blocks  {}", format_count(memory.kv_blocks));
}

class Bars {
 public:
  Bars(const SizeResult& result, std::vector<size_t> sweep)
      : result_(result), sweep_(std::move(sweep)), y_(0, top(), kPlot.bottom, kPlot.top, false) {}

  std::string draw() const {
    std::string svg = axes();
    for (size_t k = 0; k < sweep_.size(); ++k) svg += bar(k);
    return svg + capacity() + labels() + hover_areas();
  }

 private:
  double top() const {
    double most = 0;
    for (const size_t i : sweep_) {
      const MemorySplit& memory = result_.configs[i].memory;
      most = std::max({most, total_gib(memory), gib(memory.hbm_bytes)});
    }
    return round_up(most);
  }
  double pitch() const { return kPlot.width() / double(sweep_.size()); }
  double centre(size_t k) const { return kPlot.left + pitch() * (double(k) + 0.5); }

  std::string axes() const {
    std::string svg = text({0, 14}, "name", "GiB");
    for (const double tick : round_ticks(y_, 5)) {
      svg += line({kPlot.left, y_(tick)}, {kPlot.right, y_(tick)}, "grid");
      svg += text({kPlot.left - 8, y_(tick) + 4}, "tick end", format_number(tick));
    }
    double last = 0;
    for (size_t k = 0; k < sweep_.size(); ++k) {
      if (centre(k) - last < 26) continue;
      last = centre(k);
      const bool chosen = int32_t(sweep_[k]) == result_.recommended;
      svg += text({last, kPlot.bottom + 18}, chosen ? "tick mid chosen" : "tick mid",
                  fmt::format("{}", result_.configs[sweep_[k]].max_loras));
    }
    return svg + text({(kPlot.left + kPlot.right) / 2, kChartHeight - 8}, "name mid", "max_loras");
  }

  std::string bar(size_t k) const {
    const ConfigResult& config = result_.configs[sweep_[k]];
    const double half = std::min(kMaxBarWidth, pitch() * 0.72) / 2;
    double below = 0;
    std::string svg;
    for (const Part& part : kParts) {
      const double above = below + gib(config.memory.*part.bytes);
      svg += rect({centre(k) - half, y_(above), centre(k) + half, y_(below)},
                  fmt::format("part {}", part.style));
      below = above;
    }
    if (!config.feasible) svg += text({centre(k), y_(below) - 5}, "limit-name mid", "too big");
    return svg;
  }

  std::string capacity() const {
    const double y = y_(gib(result_.configs[sweep_.front()].memory.hbm_bytes));
    return line({kPlot.left, y}, {kPlot.right, y}, "limit") +
           text(
               {kPlot.left + 6, y - 5}, "limit-name",
               fmt::format("usable {}",
                           format_bytes(double(result_.configs[sweep_.front()].memory.hbm_bytes))));
  }

  // Names beside the last bar, each at the middle of its part.
  std::string labels() const {
    const MemorySplit& last = result_.configs[sweep_.back()].memory;
    std::vector<double> wanted;
    double below = 0;
    for (const Part& part : kParts) {
      const double above = below + gib(last.*part.bytes);
      wanted.push_back(y_((below + above) / 2) + 4);
      below = above;
    }
    const auto placed = spread(wanted, kLabelGap, kPlot.top, kPlot.bottom);
    std::string svg;
    for (size_t p = 0; p < kParts.size(); ++p) {
      svg += rect({kPlot.right + 4, placed[p] - 9, kPlot.right + 13, placed[p]},
                  fmt::format("part {}", kParts[p].style));
      svg += text({kPlot.right + 18, placed[p]}, "label", kParts[p].name);
    }
    return svg;
  }

  std::string hover_areas() const {
    std::string svg;
    for (size_t k = 0; k < sweep_.size(); ++k) {
      svg += hover_area({centre(k) - pitch() / 2, kPlot.top, centre(k) + pitch() / 2, kPlot.bottom},
                        tip_of(result_, sweep_[k]));
    }
    return svg;
  }

  const SizeResult& result_;
  std::vector<size_t> sweep_;
  Scale y_;
};

DataTable table_of(const SizeResult& result, const std::vector<size_t>& sweep) {
  DataTable table{{"max_loras", "weights", "reserve", "slots", "KV cache", "KV blocks"}, {}};
  for (const size_t i : sweep) {
    std::vector<std::string> row{size_label(result, i)};
    const MemorySplit& memory = result.configs[i].memory;
    for (const Part& part : kParts) row.push_back(format_bytes(double(memory.*part.bytes)));
    row.push_back(format_count(memory.kv_blocks));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::vector<Figure> memory_figures(const SizeResult& result) {
  const std::vector<size_t> sweep = sweep_of(result);
  if (sweep.empty()) return {};
  Figure figure{.id = "memory", .title = "GPU memory"};
  figure.subtitle = result.is_replay ? "What the engine may use of the card, and for what."
                                     : "The KV cache loses what the slots take.";
  figure.description =
      "Stacked bars against max_loras: weights, reserve, slots and KV cache, with "
      "the usable GPU memory as a line.";
  figure.drawing = Bars(result, sweep).draw();
  figure.table = table_of(result, sweep);
  return {figure};
}

}  // namespace loratory::sim::report
