#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/bug_zoo/note.hpp"

namespace loratory::zoo {

/// What became of one inhabitant.
struct ZooRow {
  Note note;
  std::string caught_by{};  ///< the check; empty: nothing noticed
  std::string finding{};    ///< in words
  int64_t num_cases = 0;    ///< up to and with the first finding
};

/// Fails the running test where the table between `<!-- begin SECTION -->` and `<!-- end SECTION
/// -->` in docs/bug_zoo.md is not this one, and says how to write it anew.
void expect_in_docs(std::string_view section, const std::vector<ZooRow>& rows);

}  // namespace loratory::zoo
