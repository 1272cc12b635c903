#include "check/kernels/running_case.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "reference/base/atomic_file.hpp"

namespace loratory::check {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

std::string running;  // empty: none

[[noreturn]] void end_by_signal(int signal) {
  tell_running_case(signal == SIGABRT ? "was aborted" : "crashed");
  _exit(1);
}

void end_by_exit() {
  if (running.empty()) return;
  tell_running_case("called exit()");
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
  if (running.empty()) return;  // the process was not the kernel's to end
  for (const char* text :
       {"loratory: the kernel ", what, " in this case\n  REPRO: ", running.c_str(), "\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  }
}

RunningCase::RunningCase() {
  use_other_stack();
  struct sigaction ours {
  }, before{};
  ours.sa_handler = end_by_signal;
  ours.sa_flags = SA_ONSTACK;
  for (const int signal : kSignals) {
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL) sigaction(signal, &ours, nullptr);
  }
  [[maybe_unused]] static const int kIsRegistered = std::atexit(end_by_exit);
}

RunningCase::~RunningCase() { running.clear(); }

void RunningCase::begin(std::string repro) { running = std::move(repro); }

}  // namespace loratory::check
