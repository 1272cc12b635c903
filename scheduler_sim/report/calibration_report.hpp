#pragma once

#include <string>

#include "scheduler_sim/measured/calibration.hpp"
#include "scheduler_sim/measured/step_fit.hpp"

namespace loratory::sim {

/// What `calibrate` prints of the fit: every term with its standard error, what was known before,
/// and which of them the runs do not tell. At most 100 columns.
std::string calibration_console(const Calibration& calibration);

/// The same of a fit to recorded steps, and how far held traces are from it.
std::string step_fit_console(const StepFit& fit);

}  // namespace loratory::sim
