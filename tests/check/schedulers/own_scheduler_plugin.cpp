// Our own scheduler as a shared library behind the C header.
#include <memory>
#include <string>

#include "check/loratory_scheduler.h"
#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/own_scheduler.hpp"

namespace {

using namespace loratory::check;

struct State {
  std::unique_ptr<SchedulerUnderTest> scheduler = own_scheduler();
  std::string reply;
};

int exchange(void* state, const char* request, const char** reply) {
  auto& s = *static_cast<State*>(state);
  int status = 0;
  try {
    const Message message = parse_message(request);
    s.reply = to_json(s.scheduler->exchange(message), message);
  } catch (const DoorError& error) {
    s.reply = error.what();
    status = 1;
  }
  *reply = s.reply.c_str();
  return status;
}

constexpr LoratoryScheduler kScheduler = {
    .version = LORATORY_SCHEDULER_VERSION,
    .create = []() -> void* { return new State; },
    .exchange = exchange,
    .destroy = [](void* state) { delete static_cast<State*>(state); },
};

}  // namespace

const LoratoryScheduler* loratory_scheduler() { return &kScheduler; }
