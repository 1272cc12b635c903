#include "scheduler_sim/report/html/slot_grid.hpp"

#include <algorithm>

namespace loratory::sim::report {
namespace {

struct Cell {
  uint32_t adapter = 0;
  double overlap = 0;  // in columns; 0 = empty
};

void paint(std::vector<Cell>& row, const SlotSpan& span, double columns_per_ns) {
  const double begin = double(span.begin_ns) * columns_per_ns;
  const double end = std::min(double(span.end_ns) * columns_per_ns, double(row.size()));
  for (auto c = size_t(begin); c < row.size() && double(c) < end; ++c) {
    const double overlap = std::min(end, double(c + 1)) - std::max(begin, double(c));
    if (overlap > row[c].overlap) row[c] = {span.adapter, overlap};
  }
}

void append_runs(std::vector<SlotRun>& runs, const std::vector<Cell>& row, uint16_t slot) {
  for (uint32_t c = 0; c < row.size(); ++c) {
    if (row[c].overlap <= 0) continue;
    const bool continues = !runs.empty() && runs.back().slot == slot && runs.back().end == c &&
                           runs.back().adapter == row[c].adapter;
    if (continues) {
      ++runs.back().end;
    } else {
      runs.push_back({slot, c, c + 1, row[c].adapter});
    }
  }
}

}  // namespace

std::vector<SlotRun> runs_of(std::span<const SlotSpan> spans, uint32_t num_slots,
                             uint32_t num_columns, int64_t end_ns) {
  std::vector<std::vector<Cell>> rows(num_slots, std::vector<Cell>(num_columns));
  const double columns_per_ns = num_columns / double(std::max<int64_t>(end_ns, 1));
  for (const SlotSpan& span : spans) {
    if (span.slot < num_slots) paint(rows[span.slot], span, columns_per_ns);
  }
  std::vector<SlotRun> runs;
  for (uint32_t slot = 0; slot < num_slots; ++slot) {
    append_runs(runs, rows[slot], uint16_t(slot));
  }
  return runs;
}

}  // namespace loratory::sim::report
