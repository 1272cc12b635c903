#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "check/schedulers/scheduler_under_test.hpp"

namespace loratory::check {

/// A scheduler in a process of its own: `command` is run by /bin/sh, reads a message per line and
/// writes a reply per line. Its stderr is ours. It is told to end by the end of its stdin, and
/// killed with all that it started if it does not.
/// Errors  InputError: no process could be made, or the shell knows no such command. DoorError: it
/// ended, or gave no line within `timeout_ms` of a message.
std::unique_ptr<SchedulerUnderTest> child_scheduler(const std::string& command,
                                                    int64_t timeout_ms = 10'000);

/// For who is about to end the process at any moment (Ctrl-C), which does not reach the children:
/// kills them all with what they started, and lets no further one begin.
void abandon_children();

/// The other side: answers the lines of `in` on `out` until `in` ends. A line that is no message,
/// or that the scheduler throws DoorError for, gets {"error": "..."}.
void serve_scheduler(SchedulerUnderTest& scheduler, std::FILE* in, std::FILE* out);

}  // namespace loratory::check
