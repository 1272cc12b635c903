#pragma once

#include <string>

namespace loratory::check {

/// Says on stderr which case ran if the kernel ends the process, by exit(), abort() or a crash; the
/// exit code is 1 then. One object at a time, for the whole process. A handler of signals that is
/// there already, as AddressSanitizer's, stays.
class RunningCase {
 public:
  RunningCase();
  /// Nothing runs any more.
  ~RunningCase();
  RunningCase(const RunningCase&) = delete;
  RunningCase& operator=(const RunningCase&) = delete;

  /// `repro` runs the case again that begins now.
  void begin(std::string repro);
};

/// What a RunningCase says, if a case runs: `what` happened, and its REPRO line. May be called in a
/// signal handler.
void tell_running_case(const char* what);

}  // namespace loratory::check
