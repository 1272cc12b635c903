// Our own scheduler as a process that reads lines and writes lines.
#include "check/schedulers/child_scheduler.hpp"
#include "check/schedulers/own_scheduler.hpp"

int main() {
  loratory::check::serve_scheduler(*loratory::check::own_scheduler(), stdin, stdout);
  return 0;
}
