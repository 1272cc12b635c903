#pragma once

#include <memory>
#include <string>

#include "check/loratory_scheduler.h"
#include "check/schedulers/scheduler_under_test.hpp"

namespace loratory::check {

/// A state of a scheduler behind the C header. `plugin` outlives it.
/// Errors  InputError: another version, a function that is null, create() gave none.
std::unique_ptr<SchedulerUnderTest> plugin_scheduler(const LoratoryScheduler& plugin);

/// States of the scheduler in a shared library, which stays loaded while the factory or a state
/// lives. Errors  InputError: no such file, no library, no loratory_scheduler in it, as above.
SchedulerFactory load_scheduler_library(const std::string& path);

}  // namespace loratory::check
