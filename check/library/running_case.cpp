#include "check/library/running_case.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "reference/base/atomic_file.hpp"

namespace loratory::check {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};

std::mutex guard;                // of what follows, for threads that do not run the case
std::string running;             // empty: none
std::function<void()> last_act;  // for whoever runs it
const char* subject = "";        // whose code runs
pid_t owner = 0;                 // a process that it forked is none of ours

// For whoever ends the process: it runs, so no case begins or ends.
void tell(const char* what) {
  if (running.empty()) return;  // no code under test ran
  for (const char* text :
       {"loratory: the ", subject, " ", what, " in this case\n  REPRO: ", running.c_str(), "\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  }
}

void tell_last(const char* what) {
  if (running.empty()) return;
  tell(what);
  last_act();
}

[[noreturn]] void end_by_signal(int signal) {
  if (getpid() == owner) {
    tell_last(signal == SIGABRT ? "was aborted" : "crashed");
    _exit(1);
  }
  std::signal(signal, SIG_DFL);
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, signal);
  pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  std::raise(signal);
  _exit(1);
}

void end_by_exit() {
  if (running.empty() || getpid() != owner) return;
  tell_last("called exit()");
  abandon_files();
  _exit(1);
}

// A stack that has no room left has none for a handler.
void use_other_stack() {
  static char memory[1 << 16];
  const stack_t stack{.ss_sp = memory, .ss_flags = 0, .ss_size = sizeof memory};
  sigaltstack(&stack, nullptr);
}

}  // namespace

void tell_running_case(const char* what) {
  const std::unique_lock lock(guard, std::try_to_lock);
  if (lock.owns_lock()) tell(what);
}

RunningCase::RunningCase(const char* whose, std::function<void()> act) {
  subject = whose;
  owner = getpid();
  last_act = std::move(act);
  use_other_stack();
  struct sigaction ours {
  }, before{};
  ours.sa_handler = end_by_signal;
  ours.sa_flags = SA_ONSTACK;
  for (const int signal : kSignals) {
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL) sigaction(signal, &ours, nullptr);
  }
  [[maybe_unused]] static const int kIsRegistered =
      std::atexit(end_by_exit) + std::at_quick_exit(end_by_exit);
}

RunningCase::~RunningCase() { begin(""); }

void RunningCase::begin(std::string repro) {
  const std::scoped_lock lock(guard);
  running = std::move(repro);
}

}  // namespace loratory::check
