#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "scheduler_sim/report/format.hpp"
#include "scheduler_sim/report/html/charts.hpp"
#include "scheduler_sim/report/html/scale.hpp"
#include "scheduler_sim/report/html/slot_grid.hpp"
#include "scheduler_sim/report/html/svg.hpp"
#include "scheduler_sim/report/html/sweep.hpp"

namespace loratory::sim::report {
namespace {

constexpr double kWidth = 1000;
constexpr double kLeft = 64;
constexpr double kRight = 990;
constexpr double kTop = 26;
constexpr double kMaxSlotsHeight = 320;
constexpr double kMaxRowHeight = 18;
constexpr double kStripHeight = 56;
constexpr double kStripGap = 34;
constexpr uint32_t kMaxSlots = 64;
constexpr uint32_t kMaxColumns = 460;
constexpr uint32_t kMaxCells = 12'000;  // slots x columns: keeps the drawing near 200 KB
constexpr size_t kNumBins = 230;
constexpr size_t kNumColours = 8;
constexpr double kMinNamedWidth = 76;  // narrower runs carry no name
constexpr double kMinNamedRow = 12;
constexpr size_t kTableRows = 24;

// One part of the time axis.
struct Bin {
  int32_t num_running = 0, num_waiting = 0, num_adapters_gpu = 0;  // most in the bin
  int64_t kv_blocks_used = 0;
  int64_t num_copies = 0;  // adapters that became resident
};

int64_t end_of(const ConfigResult& config) {
  int64_t end_ns = 1;
  for (const TimelineSample& sample : config.timeline) end_ns = std::max(end_ns, sample.time_ns);
  for (const SlotSpan& span : config.slot_spans) end_ns = std::max(end_ns, span.end_ns);
  return end_ns;
}

size_t bin_of(int64_t time_ns, int64_t end_ns) {
  const double share = double(time_ns) / double(end_ns);
  return std::min(kNumBins - 1, size_t(share * kNumBins));
}

// Keeps the peak of every bin: what hurts is the peak. A bin without a sample repeats the last
// one.
std::vector<Bin> bins_of(const ConfigResult& config, int64_t end_ns) {
  std::vector<Bin> bins(kNumBins);
  std::vector<bool> sampled(kNumBins, false);
  for (const TimelineSample& sample : config.timeline) {
    const size_t at = bin_of(sample.time_ns, end_ns);
    Bin& bin = bins[at];
    sampled[at] = true;
    bin.num_running = std::max(bin.num_running, sample.num_running);
    bin.num_waiting = std::max(bin.num_waiting, sample.num_waiting);
    bin.num_adapters_gpu = std::max(bin.num_adapters_gpu, sample.num_adapters_gpu);
    bin.kv_blocks_used = std::max(bin.kv_blocks_used, sample.kv_blocks_used);
  }
  for (size_t i = 1; i < kNumBins; ++i) {
    if (!sampled[i]) bins[i] = bins[i - 1];
  }
  for (const SlotSpan& span : config.slot_spans) ++bins[bin_of(span.begin_ns, end_ns)].num_copies;
  return bins;
}

struct Share {
  uint32_t adapter = 0;
  double fraction = 0;  // of all slot time in use
};

// The adapters that hold slots longest get the colours.
std::vector<Share> leaders_of(const ConfigResult& config) {
  std::map<uint32_t, double> held_ns;
  double total_ns = 0;
  for (const SlotSpan& span : config.slot_spans) {
    held_ns[span.adapter] += double(span.end_ns - span.begin_ns);
    total_ns += double(span.end_ns - span.begin_ns);
  }
  std::vector<Share> shares;
  for (const auto& [adapter, ns] : held_ns)
    shares.push_back({adapter, ns / std::max(total_ns, 1.0)});
  std::stable_sort(shares.begin(), shares.end(),
                   [](const Share& a, const Share& b) { return a.fraction > b.fraction; });
  shares.resize(std::min(shares.size(), kNumColours));
  return shares;
}

class Timeline {
 public:
  Timeline(const ConfigResult& config, std::span<const TraceAdapter> adapters)
      : config_(config),
        adapters_(adapters),
        end_ns_(end_of(config)),
        bins_(bins_of(config, end_ns_)),
        leaders_(leaders_of(config)),
        num_slots_(config.slot_spans.empty()
                       ? 0
                       : std::min<uint32_t>(kMaxSlots, uint32_t(std::max(config.max_loras, 1)))),
        row_height_(std::min(kMaxRowHeight, kMaxSlotsHeight / std::max(1u, num_slots_))) {}

  Figure figure() const {
    Figure figure{.id = "timeline", .title = title()};
    figure.subtitle = subtitle();
    figure.description = has_slots()
                             ? "A row for each slot, coloured by the adapter that is resident; "
                               "under it adapter copies, requests running and waiting, and KV "
                               "blocks in use."
                             : "Requests running and waiting, and KV blocks in use.";
    figure.wide = true;
    figure.width = kWidth;
    figure.height = strip_top(3) + 12;
    figure.drawing = slots() + strips() + time_axis() + hover_areas();
    figure.legend = legend();
    figure.table = table();
    return figure;
  }

 private:
  // Those of a fleet are not kept, and a trace without adapters uses none.
  bool has_slots() const { return num_slots_ > 0; }
  double time_x(double share) const { return kLeft + share * (kRight - kLeft); }
  double slots_bottom() const { return kTop + row_height_ * num_slots_; }
  double strip_top(int index) const {
    const int row = has_slots() ? index : index - 1;  // without the copies
    return slots_bottom() + kStripGap + row * (kStripHeight + kStripGap);
  }

  std::string title() const {
    if (!has_slots()) return "Load over time";
    return fmt::format("Slots over time, max_loras {}", config_.max_loras);
  }

  std::string subtitle() const {
    if (!has_slots()) {
      return config_.fleet.num_replicas > 1 ? "The replicas together." : "Requests and KV blocks.";
    }
    std::string words = "Each row is a slot; a change of colour is an eviction and a copy.";
    if (uint32_t(config_.max_loras) > num_slots_) {
      words += fmt::format(" The first {} of {} slots.", num_slots_, config_.max_loras);
    }
    return words;
  }

  std::string name_of(uint32_t adapter) const {
    return adapter < adapters_.size() ? printable(adapters_[adapter].name)
                                      : fmt::format("#{}", adapter);
  }

  // Classes a1..a8 for the leaders, two greys in turn for the rest.
  std::string colour_of(uint32_t adapter) const {
    for (size_t i = 0; i < leaders_.size(); ++i) {
      if (leaders_[i].adapter == adapter) return fmt::format("a{}", i + 1);
    }
    return adapter % 2 == 0 ? "o0" : "o1";
  }

  std::string slots() const {
    if (!has_slots()) return "";
    const uint32_t columns = std::min(kMaxColumns, kMaxCells / num_slots_);
    std::map<std::string, std::string> path_of_colour;
    std::string names;
    for (const SlotRun& run : runs_of(config_.slot_spans, num_slots_, columns, end_ns_)) {
      const double x = time_x(run.begin / double(columns));
      const double width = time_x(run.end / double(columns)) - x - 0.6;
      const double y = kTop + run.slot * row_height_;
      const double height = row_height_ - (row_height_ > 5 ? 1.5 : 0.3);
      path_of_colour[colour_of(run.adapter)] +=
          fmt::format("M{} {}h{}v{}h-{}z", coordinate(x), coordinate(y), coordinate(width),
                      coordinate(height), coordinate(width));
      if (width >= kMinNamedWidth && row_height_ >= kMinNamedRow) {
        const auto room = size_t(width / 6.5);
        names += text({x + 4, y + height / 2 + 3.5}, "run-name " + colour_of(run.adapter) + "n",
                      clip(name_of(run.adapter), room));
      }
    }
    std::string svg = text({kLeft, 14}, "name", "slots");
    for (const auto& [colour, path] : path_of_colour) {
      svg += fmt::format("<path d=\"{}\" class=\"{}\"/>\n", path, colour);
    }
    return svg + names + slot_numbers();
  }

  std::string slot_numbers() const {
    std::string svg;
    const auto stride = uint32_t(std::max(1.0, std::ceil(14 / row_height_)));
    for (uint32_t slot = 0; slot < num_slots_; slot += stride) {
      svg += text({kLeft - 8, kTop + row_height_ * (slot + 0.5) + 3}, "tick end",
                  fmt::format("{}", slot));
    }
    return svg;
  }

  template <class Value>
  std::string area(int strip, double most, std::string_view classes, Value value) const {
    const Scale y(0, most, strip_top(strip) + kStripHeight, strip_top(strip), false);
    std::vector<Point> outline{{kLeft, y(0)}};
    for (size_t i = 0; i < kNumBins; ++i) {
      const double level = y(double(value(bins_[i])));
      outline.push_back({time_x(double(i) / kNumBins), level});
      outline.push_back({time_x(double(i + 1) / kNumBins), level});
    }
    outline.push_back({kRight, y(0)});
    return polygon(outline, classes);
  }

  std::string strip_frame(int strip, std::string_view name, double most,
                          const std::string& most_label) const {
    const double top = strip_top(strip);
    return text({kLeft, top - 8}, "name", name) + line({kLeft, top}, {kRight, top}, "grid") +
           line({kLeft, top + kStripHeight}, {kRight, top + kStripHeight}, "axis") +
           text({kLeft - 8, top + 4}, "tick end", most > 0 ? most_label : "") +
           text({kLeft - 8, top + kStripHeight + 4}, "tick end", "0");
  }

  template <class Value>
  double most_of(Value value) const {
    double most = 0;
    for (const Bin& bin : bins_) most = std::max(most, double(value(bin)));
    return round_up(most);
  }

  std::string copies_strip() const {
    if (!has_slots()) return "";
    const auto copies = [](const Bin& b) { return b.num_copies; };
    const double bin_s = double(end_ns_) / 1e9 / kNumBins;
    const double most = most_of(copies);
    return strip_frame(0, fmt::format("adapters copied to the GPU, per {}", format_ms(bin_s * 1e3)),
                       most, format_number(most)) +
           area(0, most, "area f4", copies);
  }

  std::string strips() const {
    const auto waiting = [](const Bin& b) { return b.num_waiting; };
    const auto running = [](const Bin& b) { return b.num_running; };
    const auto used = [](const Bin& b) { return b.kv_blocks_used; };
    const double most_requests = std::max(most_of(running), most_of(waiting));
    const int64_t num_blocks = config_.memory.kv_blocks * config_.fleet.num_replicas;
    const auto kv_blocks = double(std::max<int64_t>(num_blocks, 1));
    return copies_strip() +
           strip_frame(1, "requests: running (filled), waiting (line)", most_requests,
                       format_number(most_requests)) +
           area(1, most_requests, "area f6", running) +
           area(1, most_requests, "outline s2", waiting) +
           strip_frame(2, fmt::format("KV blocks in use, of {}", format_count(num_blocks)),
                       kv_blocks, "100 %") +
           area(2, kv_blocks, "area f3", used);
  }

  std::string time_axis() const {
    const double end_s = double(end_ns_) / 1e9;
    const bool minutes = end_s > 300;
    const Scale scale(0, minutes ? end_s / 60 : end_s, kLeft, kRight, false);
    const double bottom = strip_top(2) + kStripHeight;
    std::string svg;
    for (const double tick : round_ticks(scale, 10)) {
      svg += line({scale(tick), bottom}, {scale(tick), bottom + 4}, "axis");
      svg += text(
          {scale(tick), bottom + 18}, "tick mid",
          fmt::format("{}{}", format_number(tick), tick == 0 ? (minutes ? " min" : " s") : ""));
    }
    return svg;
  }

  std::string time_label(size_t bin) const {
    return format_ms(double(end_ns_) / 1e6 * double(bin) / kNumBins);
  }

  std::string hover_areas() const {
    std::string svg;
    for (size_t i = 0; i < kNumBins; ++i) {
      const Bin& bin = bins_[i];
      svg += hover_area(
          {time_x(double(i) / kNumBins), kTop, time_x(double(i + 1) / kNumBins),
           strip_top(2) + kStripHeight},
          fmt::format("at {}\nrunning  {}\nwaiting  {}\nadapters on GPU  {}\n"
                      "{}KV blocks  {}",
                      time_label(i), bin.num_running, bin.num_waiting, bin.num_adapters_gpu,
                      has_slots() ? fmt::format("copies  {}\n", bin.num_copies) : "",
                      format_count(bin.kv_blocks_used)));
    }
    return svg;
  }

  std::string legend() const {
    if (!has_slots()) return "";
    std::string html = "<ul class=\"legend\">";
    for (size_t i = 0; i < leaders_.size(); ++i) {
      html += fmt::format("<li><i class=\"swatch a{}\"></i>{} <span>{}</span></li>", i + 1,
                          html_name(clip(name_of(leaders_[i].adapter), 40)),
                          format_percent(leaders_[i].fraction));
    }
    html += "<li><i class=\"swatch o0\"></i><i class=\"swatch o1\"></i>all others</li></ul>\n";
    return html;
  }

  DataTable table() const {
    DataTable table{
        {"time", "running", "waiting", "adapters on the GPU", "copies", "KV blocks used"}, {}};
    for (size_t row = 0; row < kTableRows; ++row) {
      const size_t i = row * (kNumBins - 1) / (kTableRows - 1);
      const Bin& bin = bins_[i];
      table.rows.push_back({time_label(i), format_count(bin.num_running),
                            format_count(bin.num_waiting), format_count(bin.num_adapters_gpu),
                            format_count(bin.num_copies), format_count(bin.kv_blocks_used)});
    }
    if (has_slots()) return table;
    const auto without_copies = [](auto& cells) { cells.erase(cells.begin() + 4); };
    without_copies(table.head);
    for (auto& row : table.rows) without_copies(row);
    return table;
  }

  const ConfigResult& config_;
  std::span<const TraceAdapter> adapters_;
  int64_t end_ns_;
  std::vector<Bin> bins_;
  std::vector<Share> leaders_;
  uint32_t num_slots_;
  double row_height_;
};

}  // namespace

std::vector<Figure> timeline_figures(const SizeResult& result,
                                     std::span<const TraceAdapter> adapters) {
  const int32_t focus = focus_of(result);
  if (focus < 0) return {};
  const ConfigResult& config = result.configs[size_t(focus)];
  if (config.slot_spans.empty() && config.timeline.empty()) return {};
  return {Timeline(config, adapters).figure()};
}

}  // namespace loratory::sim::report
