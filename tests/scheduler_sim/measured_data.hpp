#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace loratory::sim {

/// Where public measurements lie, which the repository does not contain: LORATORY_SHARED, or beside
/// the checkout. Tests that need a file skip themselves where it is absent.
inline std::filesystem::path reference_folder() {
  namespace fs = std::filesystem;
  const char* given = std::getenv("LORATORY_SHARED");
  const fs::path traces =
      given ? fs::path(given) : fs::path(LORATORY_SOURCE_DIR) / "../shared/traces";
  return traces / "reference";
}

/// Cells by the name of their column.
using MeasuredRow = std::map<std::string, std::string>;

/// A plain CSV file with a header; no row if there is no such file.
inline std::vector<MeasuredRow> read_measured(const std::string& file) {
  std::ifstream in(reference_folder() / file);
  std::string line, cell;
  std::vector<std::string> header;
  std::vector<MeasuredRow> rows;
  while (std::getline(in, line)) {
    if (line.ends_with('\r')) line.pop_back();
    std::vector<std::string> cells;
    for (std::stringstream cells_in(line); std::getline(cells_in, cell, ',');) {
      cells.push_back(cell);
    }
    if (header.empty()) {
      header = cells;
      continue;
    }
    MeasuredRow& row = rows.emplace_back();
    for (size_t i = 0; i < cells.size(); ++i) row[header[i]] = cells[i];
  }
  return rows;
}

/// NaN for an empty cell.
inline double number(const MeasuredRow& row, const std::string& key) {
  const std::string& text = row.at(key);
  return text.empty() ? NAN : std::stod(text);
}

/// Relative errors of predictions.
class Errors {
 public:
  void add(double predicted, double measured) { relative_.push_back(predicted / measured - 1); }
  size_t size() const { return relative_.size(); }
  double median_size() const { return percentile_of_size(50); }
  double worst_size() const { return percentile_of_size(100); }
  double mean_size() const {
    double sum = 0;
    for (double e : relative_) sum += std::fabs(e);
    return sum / double(size());
  }
  double median() const {
    std::vector<double> sorted = relative_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

 private:
  double percentile_of_size(size_t percent) const {
    std::vector<double> sizes;
    for (double e : relative_) sizes.push_back(std::fabs(e));
    std::ranges::sort(sizes);
    return sizes[(sizes.size() - 1) * percent / 100];
  }

  std::vector<double> relative_;
};

}  // namespace loratory::sim
