#include "scheduler_sim/measured/recorded_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/csv_cells.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/row_fields.hpp"
#include "scheduler_sim/trace/text_encoding.hpp"

namespace loratory::sim {
namespace {

// What a step can have at most; a sum is over its rows or tokens.
constexpr int64_t kMostOfSum = int64_t{1} << 47;
constexpr int64_t kMostPairs = int64_t{1} << 53;
constexpr int64_t kLongestNs = 1'000'000'000'000'000;

struct StepColumn {
  std::string_view name;
  int64_t most;
  int64_t (*get)(const RecordedStep&);
  void (*set)(RecordedStep&, int64_t);
};

template <int64_t BatchShape::*Field>
constexpr StepColumn of_shape(std::string_view name, int64_t most = kMaxCount) {
  return {name, most, [](const RecordedStep& s) { return s.shape.*Field; },
          [](RecordedStep& s, int64_t value) { s.shape.*Field = value; }};
}

constexpr std::array kStepColumns{
    StepColumn{"held", 1, [](const RecordedStep& s) { return int64_t{s.is_held}; },
               [](RecordedStep& s, int64_t value) { s.is_held = value != 0; }},
    of_shape<&BatchShape::num_seqs>("num_seqs"),
    of_shape<&BatchShape::num_tokens>("num_tokens"),
    of_shape<&BatchShape::num_prefill_tokens>("num_prefill_tokens"),
    of_shape<&BatchShape::num_sampled>("num_sampled"),
    of_shape<&BatchShape::decode_context_tokens>("decode_context_tokens", kMostOfSum),
    of_shape<&BatchShape::prefill_context_tokens>("prefill_context_tokens", kMostOfSum),
    of_shape<&BatchShape::prefill_pairs>("prefill_pairs", kMostPairs),
    of_shape<&BatchShape::num_lora_tokens>("num_lora_tokens"),
    of_shape<&BatchShape::lora_rank_tokens>("lora_rank_tokens", kMostOfSum),
    of_shape<&BatchShape::num_adapters>("num_adapters"),
    of_shape<&BatchShape::sum_rank>("sum_rank", kMostOfSum),
    of_shape<&BatchShape::max_rank>("max_rank", kMaxRank),
    of_shape<&BatchShape::longest_decode_context>("longest_decode_context"),
    of_shape<&BatchShape::longest_prefill>("longest_prefill"),
    StepColumn{"rows_changed", 1,
               [](const RecordedStep& s) { return int64_t{s.shape.rows_changed}; },
               [](RecordedStep& s, int64_t value) { s.shape.rows_changed = value != 0; }},
    StepColumn{"step_ns", kLongestNs, [](const RecordedStep& s) { return s.ns; },
               [](RecordedStep& s, int64_t value) { s.ns = value; }},
};

using ColumnOrder = std::vector<const StepColumn*>;

ColumnOrder read_header(std::string_view line) {
  ColumnOrder order;
  for_each_cell(line, ',', [&](std::string_view name, uint32_t place, size_t) {
    const auto* found = std::ranges::find(kStepColumns, name, &StepColumn::name);
    if (found == kStepColumns.end()) {
      bad_row(place, fmt::format("{} is no column of recorded steps", shown(std::string(name))),
              "traces/SCHEMA.md has the columns");
    }
    if (std::ranges::count(order, found) > 0) {
      bad_row(place, fmt::format("column {} appears twice", name), "remove one");
    }
    order.push_back(found);
  });
  for (const StepColumn& column : kStepColumns) {
    if (std::ranges::count(order, &column) > 0) continue;
    bad_row(1, fmt::format("column {} is missing", column.name),
            "traces/SCHEMA.md has the columns");
  }
  return order;
}

RecordedStep read_step(const Line& line, const ColumnOrder& order) {
  check_is_whole(line);
  RecordedStep step;
  const size_t cells =
      for_each_cell(line.text, ',', [&](std::string_view text, uint32_t place, size_t i) {
        int64_t value = 0;
        if (i >= order.size()) return;
        if (parse_integer(text, value) != Parse::good || value < 0 || value > order[i]->most) {
          bad_row(place, fmt::format("{} must be a whole number from 0 to {}", order[i]->name,
                                     order[i]->most));
        }
        order[i]->set(step, value);
      });
  if (cells != order.size()) {
    bad_row(1, fmt::format("{} cells, but the header has {}", cells, order.size()));
  }
  if (step.shape.num_seqs == 0 || step.shape.num_tokens == 0) bad_row(1, "a step without rows");
  if (step.ns == 0) bad_row(1, "a step that took no time");
  return step;
}

std::vector<RecordedStep> read_steps(ByteSource& raw, std::string_view name) {
  const std::unique_ptr<ByteSource> unpacked = decompressed(raw, std::string(name));
  const std::unique_ptr<ByteSource> text = utf8_text(*unpacked, std::string(name));
  LineReader lines(*text);
  Line line;
  std::vector<RecordedStep> steps;
  ColumnOrder order;
  while (lines.next(line)) {
    try {
      if (line.is_too_long) bad_row(1, "a line of over 16 MiB", "give a CSV of one row per step");
      if (order.empty()) {
        order = read_header(line.text);
      } else {
        steps.push_back(read_step(line, order));
      }
    } catch (const BadRow& bad) {
      throw InputError(fmt::format("{}:{}:{}", name, line.number, bad.column), bad.rule,
                       bad.remedy);
    }
  }
  if (text->is_truncated()) {
    throw InputError(fmt::format("{}:{}:1", name, line.number + 1),
                     "the compressed data stops in the middle", "fetch the file again");
  }
  if (steps.empty()) throw InputError(name, "has no steps", "record some with --executor");
  return steps;
}

}  // namespace

void write_recorded_steps(std::ostream& out, std::span<const RecordedStep> steps) {
  std::string text;
  for (const StepColumn& column : kStepColumns) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", column.name);
  }
  out << text << '\n';
  for (const RecordedStep& step : steps) {
    text.clear();
    for (const StepColumn& column : kStepColumns) {
      text += fmt::format("{}{}", text.empty() ? "" : ",", column.get(step));
    }
    out << text << '\n';
  }
}

std::vector<RecordedStep> read_recorded_steps(const std::string& path) {
  const std::unique_ptr<ByteSource> file = open_file(path);
  return read_steps(*file, path);
}

std::vector<RecordedStep> read_recorded_steps_from(std::string_view bytes, std::string_view name) {
  const std::unique_ptr<ByteSource> source = open_bytes(bytes);
  return read_steps(*source, name);
}

void StepRecorder::on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                               int64_t now_ns) {
  const BatchShape& shape = shapes_.next(plan, scheduler.residency());
  const bool follows = had_work_ && plan.wait_for.empty();
  const int64_t begin_ns = follows ? last_end_ns_ : std::max(start_ns, last_end_ns_);
  const auto is_held = [&](const StepRow& row) {
    return scheduler.request(row.request).id >= first_held_id_;
  };
  if (plan.num_discarded == 0 && plan.copied_again.empty() && now_ns > begin_ns) {
    steps_.push_back({shape, now_ns - begin_ns, std::ranges::any_of(plan.rows, is_held)});
  }
  last_end_ns_ = now_ns;
  if (next_ != nullptr) next_->on_step_end(scheduler, plan, start_ns, now_ns);
}

void StepRecorder::on_commit(const Scheduler& scheduler, int64_t now_ns) {
  had_work_ = !scheduler.running().empty();
  if (next_ != nullptr) next_->on_commit(scheduler, now_ns);
}

}  // namespace loratory::sim
