#pragma once

#include <string>

#include "scheduler_sim/measured/calibration.hpp"

namespace loratory::sim {

/// What `calibrate` prints of the fit: every term with its standard error, what was known before,
/// and which of them the runs do not tell. At most 100 columns.
std::string calibration_console(const Calibration& calibration);

}  // namespace loratory::sim
