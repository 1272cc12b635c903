#pragma once

#include <functional>
#include <string>

namespace loratory::check {

/// Says on stderr which case ran if the code under test ends the process, by exit(), quick_exit(),
/// abort() or a crash; the exit code is 1 then. Processes that it forks may end as they like. One
/// object at a time, for the whole process. A handler of signals that is there already, as
/// AddressSanitizer's, stays. _exit() and exec() go unnoticed.
class RunningCase {
 public:
  /// `whose` code runs: "kernel", "scheduler". `last_act` is called then, after a crash in a signal
  /// handler.
  explicit RunningCase(
      const char* whose, std::function<void()> last_act = [] {});
  /// Nothing runs any more.
  ~RunningCase();
  RunningCase(const RunningCase&) = delete;
  RunningCase& operator=(const RunningCase&) = delete;

  /// `repro` runs the case again that begins now.
  void begin(std::string repro);
};

/// For a thread that ends the process while a case runs in another one: says that the kernel or
/// scheduler `what`, such as "was interrupted", and the REPRO line of its case. Says nothing if no
/// case runs, or one begins at that moment, and never waits. No signal handler may call it.
void tell_running_case(const char* what);

}  // namespace loratory::check
