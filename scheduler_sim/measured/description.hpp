#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/measured/table_formats.hpp"

namespace loratory::sim {

/// A cell that stands elsewhere than in its row: `--describe gpu=H100-80`, a line of a server's
/// log.
struct DescribedCell {
  std::string column, text;
  std::string place;  ///< "--describe", "server.log:12"; empty = the row itself
};

/// Columns of our own format that say how a server was started and with which adapters.
bool is_description(std::string_view column);

/// "gpu=H100-80". Throws InputError at `place` if it has no such column, or no value.
DescribedCell parse_description(std::string_view text, std::string_view place);

/// Reads the cells whose columns are not in `given` into the row, the first of several for a
/// column. Throws InputError at a cell's place, BadRow if that is the row.
void add_described(std::span<const DescribedCell> cells, std::vector<std::string_view> given,
                   MeasuredDraft& draft);

}  // namespace loratory::sim
