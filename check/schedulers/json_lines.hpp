#pragma once

#include <string>
#include <string_view>

#include "check/schedulers/scheduler_under_test.hpp"

/// Messages and replies as JSON, one object on one line each. docs/check_scheduler.md.
namespace loratory::check {

/// The longest line that either side takes, in bytes.
inline constexpr size_t kLongestLine = size_t{4} << 20;

/// Without a line feed. Pure.
std::string to_json(const Message& message);
std::string to_json(const Reply& reply, const Message& asked);
/// {"error": what}: in place of an answer that there is not.
std::string error_json(std::string_view what);

/// Errors  DoorError: not JSON, a key that is missing or unknown, a value out of its limits; in one
/// line, which names the key and quotes the text.
Message parse_message(std::string_view text);
/// `asked` says what was asked: each message has its own keys in a reply.
Reply parse_reply(std::string_view text, const Message& asked);

/// "submit", "plan", ...; the word of a reason, an event, a status.
const char* word_of(const Message& message);
const char* word_of(Event::Kind kind);
const char* word_of(FinishReason reason);
const char* word_of(Status status);

/// `text` on one line of at most `longest` bytes, for a message.
std::string one_line(std::string_view text, size_t longest = 300);

}  // namespace loratory::check
