#include "cli/interrupt.hpp"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>

#include "check/library/running_case.hpp"
#include "check/schedulers/child_scheduler.hpp"
#include "cli/progress.hpp"
#include "reference/base/atomic_file.hpp"

namespace loratory::cli {

// All threads block the signals and one waits for them: it may lock and call what a handler may
// not. It ends the process with the signal itself, so that a script that ran it stops as well.
void clean_up_on_signals() {
  std::signal(SIGXFSZ, [](int) {});  // a file that may not grow is a write that fails
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto wait_for_one = [signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    Progress::wipe_for_good();
    check::tell_running_case("was interrupted");
    abandon_files();
    check::abandon_children();
    std::signal(signal, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    std::raise(signal);
  };
  try {
    std::thread(wait_for_one).detach();
  } catch (const std::system_error&) {  // no thread to be had: a signal ends the process at once
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }
}

}  // namespace loratory::cli
