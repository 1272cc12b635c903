#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check/schedulers/messages.hpp"
#include "check/schedulers/world.hpp"

namespace loratory::check {

/// Looks for one kind of mistake. Each question is answered with what is wrong, in one sentence, or
/// with nothing. A judge sees the world as it was before the thing that it is asked about; after
/// the first finding the session ends, so it never sees a world that went wrong.
class Judge {
 public:
  virtual ~Judge() = default;
  virtual const char* name() const = 0;
  /// What must be claimed for it to judge; nullptr = nothing, it always does.
  virtual const char* needs() const { return nullptr; }
  virtual bool applies(const Claims&) const { return true; }

  virtual std::string on_status(const World&, const Message&, const Reply&) { return {}; }
  virtual std::string on_event(const World&, const Message&, const Event&) { return {}; }
  virtual std::string on_plan(const World&, const Reply&, int64_t /*step*/) { return {}; }
  /// The step begins: its adapters are where they will be read.
  virtual std::string on_start(const World&, const World::Step&) { return {}; }
  /// The whole reply was taken in.
  virtual std::string on_reply(const World&, const Message&) { return {}; }
  /// Every request has ended and every adapter was unloaded.
  virtual std::string at_end(const World&) { return {}; }
};

/// One of each, in the order of docs/check_scheduler.md: what makes no sense at all comes first.
std::vector<std::unique_ptr<Judge>> all_judges();

/// Judges that are not classes: the session itself finds these.
struct SessionJudge {
  const char* name;
  const char* needs;
};
std::vector<SessionJudge> session_judges();

}  // namespace loratory::check
