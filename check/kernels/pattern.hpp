#pragma once

#include <string>
#include <vector>

#include "check/kernels/case_run.hpp"

namespace loratory::check {

/// Which elements are wrong, in words: "every 64th column", "rows of slot 3 alone", "columns from
/// 1024 on". Several that hold are joined by "; ". Empty where none does.
/// `covered` is what the step covers, of which `wrong` is a part.
std::string pattern_of(const Case& c, const std::vector<Stretch>& covered,
                       const std::vector<Wrong>& wrong);

}  // namespace loratory::check
