#pragma once

#include <map>
#include <set>
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
  size_t number = 0;      ///< in the file, from 1
  bool has_case = false;  ///< one that it names was judged
};

/// Errors  InputError at `file`:line: no reference, or a check that is none of `known`.
std::vector<LedgerLine> parse_ledger(std::string_view text, const std::string& file,
                                     const std::vector<std::string>& known);

/// The numbers of the lines for a finding of this check in this case.
std::vector<size_t> lines_for(const std::vector<LedgerLine>& ledger, std::string_view check,
                              std::string_view label);

/// Notes at every line that names this case that it was judged.
void note_case(std::vector<LedgerLine>& ledger, std::string_view label);

/// Which findings of a run are told: the first of each check that no line knows, and for each line
/// the first that it knows.
class FirstFindings {
 public:
  /// Is this one told? `lines` know it.
  bool add(const std::string& check, const std::vector<size_t>& lines);
  bool has_failed(const std::string& check) const { return failed_.contains(check); }
  bool has_known(const std::string& check) const { return known_.contains(check); }

 private:
  std::set<std::string> failed_;
  std::map<std::string, std::set<size_t>> known_;  // lines that have theirs
};

/// Gives the findings that the ledger knows their reference, and lists the lines whose check ran,
/// of which a case was judged, and whose finding did not show.
void apply_ledger(const std::vector<LedgerLine>& ledger, Report& report);

}  // namespace loratory::check
