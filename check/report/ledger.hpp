#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "check/report/report.hpp"

namespace loratory::check {

/// Findings that are known, one a line, with where they are reported:
///
///   # check      case         reference
///   dispatch     *            https://example.org/issues/7
///   numbers      linear.K4097.*   https://example.org/issues/8 wrong tail
///
/// The case is a label, in which `*` stands for any text. Blank lines and lines with # are
/// comments.
struct LedgerLine {
  std::string check, label, reference;
  size_t number = 0;  ///< in the file, from 1
};

/// Errors  InputError at `file`:line: no reference, or a check that is none of `known`.
std::vector<LedgerLine> parse_ledger(std::string_view text, const std::string& file,
                                     const std::vector<std::string>& known);

/// Is there a line for a finding of this check in this case?
bool is_in_ledger(const std::vector<LedgerLine>& ledger, std::string_view check,
                  std::string_view label);

/// Gives the findings that the ledger knows their reference, and lists the lines whose check ran
/// and whose finding did not show.
void apply_ledger(const std::vector<LedgerLine>& ledger, Report& report);

}  // namespace loratory::check
