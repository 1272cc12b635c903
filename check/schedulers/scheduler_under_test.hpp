#pragma once

#include <functional>
#include <memory>
#include <stdexcept>

#include "check/schedulers/messages.hpp"

namespace loratory::check {

/// The door broke: a reply that is no reply, a process that died or did not answer in time. One
/// line, with the reply quoted.
class DoorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A scheduler that somebody else wrote. Ours, a shared library and a child process are three
/// kinds of it; a test writes its own.
///
///   hello, then any messages in the order of time; another hello begins another session
///
/// Errors  exchange throws DoorError. What a scheduler merely decides wrongly is in its replies.
class SchedulerUnderTest {
 public:
  virtual ~SchedulerUnderTest() = default;
  virtual Reply exchange(const Message& message) = 0;
};

using SchedulerFactory = std::function<std::unique_ptr<SchedulerUnderTest>()>;

}  // namespace loratory::check
