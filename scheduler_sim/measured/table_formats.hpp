#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/measured/measured_run.hpp"

namespace loratory::sim {

/// A cell that is not empty. Its readers throw BadRow.
struct MeasuredCell {
  std::string_view text;
  uint32_t column = 0;  ///< 1-based byte in the line

  double number() const;                ///< finite, >= 0
  int64_t count() const;                ///< whole, from 0 to kMaxCount
  std::vector<double> numbers() const;  ///< with blanks between them
  std::vector<int64_t> counts() const;
};

/// A row while its cells are being read.
struct MeasuredDraft {
  MeasuredRun run;
  std::string skip;  ///< why nothing can be made of it; empty = it is good
  std::vector<double> rates_rps;
  std::vector<int64_t> rate_counts;
  std::string set;  ///< what the source calls a series of runs
  /// Of the requests that were prepared.
  double num_prompts = 0, prompt_tokens = 0, output_tokens = 0;
  int64_t num_adapters = 0, batch_size = 0;
};

struct MeasuredColumn {
  std::string name;
  std::function<void(const MeasuredCell&, MeasuredDraft&)> read;  ///< none: the column says nothing
};

struct MeasuredFormat {
  std::string_view name;
  std::string_view telltale;  ///< a column that no other format has; empty: what is none of them
  bool refuses_unknown = false;
  std::vector<MeasuredColumn> columns;
  /// After the cells: derives what the file leaves unsaid.
  void (*finish)(MeasuredDraft&);
  std::string_view origin = {};  ///< who measured, where that is published
};

/// Our own format comes last.
const std::vector<MeasuredFormat>& measured_formats();

/// The preset of a version, "0.8.5".
std::string vllm_preset(std::string_view version);

}  // namespace loratory::sim
