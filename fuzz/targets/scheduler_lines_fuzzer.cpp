// What a scheduler under test and its user may write: any bytes are a reply, a message, a label or
// a ledger that is read back as it was, or one line of error. The first byte says which.
#include <cstdint>
#include <string>
#include <string_view>

#include "check/report/ledger.hpp"
#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/session.hpp"
#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace {

using namespace loratory::check;

void check_reply(std::string_view text, const Message& asked) {
  const Reply reply = parse_reply(text, asked);
  const std::string again = to_json(reply, asked);
  LORATORY_ASSERT(to_json(parse_reply(again, asked), asked) == again, "a reply is read back");
}

void check_text(char kind, std::string_view text) {
  switch (kind) {
    case 'h':
      return check_reply(text, {.what = message::Hello{}});
    case 'p':
      return check_reply(text, {.what = message::Plan{}});
    case 'r':
      return check_reply(text, {.what = message::Register{}});
    case 'c':
      return check_reply(text, {.what = message::Commit{}});
    case 'm': {
      const std::string again = to_json(parse_message(text));
      LORATORY_ASSERT(to_json(parse_message(again)) == again, "a message is read back");
      return;
    }
    case 's': {
      const Session session = parse_session(text);
      LORATORY_ASSERT(parse_session(label_of(session)) == session, "a label is read back");
      return;
    }
    default:
      for (const LedgerLine& line : parse_ledger(text, "ledger", {"prefixes", "numbers"})) {
        LORATORY_ASSERT(!line.reference.empty(), "a known finding has a reference");
      }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check_text(text.front(), text.substr(1));
  } catch (const DoorError& error) {
    LORATORY_ASSERT(std::string_view(error.what()).find('\n') == std::string_view::npos,
                    "an error is one line");
  } catch (const loratory::InputError&) {
  }
  return 0;
}
