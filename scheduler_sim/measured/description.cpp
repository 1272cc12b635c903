#include "scheduler_sim/measured/description.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/bad_row.hpp"

namespace loratory::sim {
namespace {

constexpr std::array<std::string_view, 20> kDescription{"sweep",         "weights_gib",
                                                        "group",         "model",
                                                        "engine",        "gpu",
                                                        "dtype",         "tp",
                                                        "max_loras",     "max_cpu_loras",
                                                        "max_lora_rank", "ranks",
                                                        "max_num_seqs",  "max_model_len",
                                                        "prefix_cache",  "rates_rps",
                                                        "rate_counts",   "poll_interval_s",
                                                        "kv_tokens",     "max_num_batched_tokens"};

void read_cell(const DescribedCell& cell, MeasuredDraft& draft) {
  const std::vector<MeasuredColumn>& columns = measured_formats().back().columns;
  const auto column = std::ranges::find(columns, cell.column, &MeasuredColumn::name);
  try {
    column->read({cell.text, 1}, draft);
  } catch (const BadRow& bad) {
    std::string rule = fmt::format("{}: {}", cell.column, bad.rule);
    if (cell.place.empty()) bad_row(1, std::move(rule), bad.remedy);
    throw InputError(cell.place, rule, bad.remedy);
  }
}

}  // namespace

bool is_description(std::string_view column) {
  return std::ranges::find(kDescription, column) != kDescription.end();
}

DescribedCell parse_description(std::string_view text, std::string_view place) {
  const size_t equals = std::min(text.find('='), text.size());
  DescribedCell cell{std::string(text.substr(0, equals)), "", std::string(place)};
  if (!is_description(cell.column)) {
    const std::vector<std::string> known(kDescription.begin(), kDescription.end());
    throw InputError(place, fmt::format("{} describes no server", shown(cell.column)),
                     did_you_mean(cell.column, known, "traces/SCHEMA.md has the columns"));
  }
  if (equals + 1 >= text.size()) {
    throw InputError(place, fmt::format("{} has no value", cell.column),
                     fmt::format("write {}=VALUE", cell.column));
  }
  cell.text = text.substr(equals + 1);
  return cell;
}

void add_described(std::span<const DescribedCell> cells, std::vector<std::string_view> given,
                   MeasuredDraft& draft) {
  for (const DescribedCell& cell : cells) {
    if (std::ranges::find(given, cell.column) != given.end()) continue;
    given.push_back(cell.column);
    read_cell(cell, draft);
  }
}

}  // namespace loratory::sim
