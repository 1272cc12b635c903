#include "check/schedulers/plugin_scheduler.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "check/library/guarded_call.hpp"
#include "check/schedulers/json_lines.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

using Library = std::shared_ptr<void>;

void check_scheduler(const LoratoryScheduler& plugin, std::string_view place) {
  if (plugin.version != LORATORY_SCHEDULER_VERSION) {
    throw InputError(place,
                     fmt::format("its version is {}, and this harness speaks {}", plugin.version,
                                 LORATORY_SCHEDULER_VERSION),
                     "build it with this loratory_scheduler.h");
  }
  const auto require = [&](bool is_there, std::string_view function) {
    if (!is_there) throw InputError(place, fmt::format("its function {} is null", function));
  };
  require(plugin.create != nullptr, "create");
  require(plugin.exchange != nullptr, "exchange");
  require(plugin.destroy != nullptr, "destroy");
}

class PluginScheduler final : public SchedulerUnderTest {
 public:
  PluginScheduler(const LoratoryScheduler& plugin, std::string_view place, Library library)
      : library_(std::move(library)), plugin_(plugin) {
    check_scheduler(plugin, place);
    state_ = guarded<DoorError>("create", plugin.create);
    if (state_ == nullptr) throw InputError(place, "create() gave no state");
  }
  ~PluginScheduler() override {
    const OwnArithmetic own;
    plugin_.destroy(state_);
  }
  PluginScheduler(const PluginScheduler&) = delete;
  PluginScheduler& operator=(const PluginScheduler&) = delete;

  Reply exchange(const Message& message) override {
    const std::string request = to_json(message);
    const char* reply = nullptr;
    const int status = guarded<DoorError>(
        "exchange", [&] { return plugin_.exchange(state_, request.c_str(), &reply); });
    if (status != 0) {
      throw DoorError(fmt::format("exchange returned {} to {}{}", status, word_of(message),
                                  reply == nullptr ? "" : ": " + one_line(reply)));
    }
    if (reply == nullptr) throw DoorError(fmt::format("no reply to {}", word_of(message)));
    return parse_reply(reply, message);
  }

 private:
  Library library_;  // is unloaded after everything that points into it
  const LoratoryScheduler& plugin_;
  void* state_ = nullptr;
};

}  // namespace

std::unique_ptr<SchedulerUnderTest> plugin_scheduler(const LoratoryScheduler& plugin) {
  return std::make_unique<PluginScheduler>(plugin, "scheduler", nullptr);
}

SchedulerFactory load_scheduler_library(const std::string& path) {
  // A name without a slash would be looked for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  const OwnArithmetic own;
  Library library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* handle) {
    if (handle != nullptr) dlclose(handle);
  });
  if (library == nullptr) {
    throw InputError(path, fmt::format("cannot be loaded: {}", one_line(dlerror())));
  }
  using Entry = const LoratoryScheduler* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library.get(), "loratory_scheduler"));
  if (entry == nullptr) {
    throw InputError(path, "has no function loratory_scheduler",
                     "export it as check/loratory_scheduler.h says");
  }
  const LoratoryScheduler* const plugin = entry();
  if (plugin == nullptr) throw InputError(path, "loratory_scheduler() gave nothing");
  check_scheduler(*plugin, path);
  return
      [library, plugin, path] { return std::make_unique<PluginScheduler>(*plugin, path, library); };
}

}  // namespace loratory::check
