// Messages and replies as text: what is written is read back, and what is no reply is refused in
// one line that names the key and quotes the text.
#include "check/schedulers/json_lines.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "check/schedulers/own_scheduler.hpp"

namespace loratory::check {
namespace {

using testing::HasSubstr;

Message at(message::Any what) { return {.time_ns = 5, .what = std::move(what)}; }

std::string round_trip(const Message& message) { return to_json(parse_message(to_json(message))); }

TEST(JsonLines, EveryMessageIsReadBack) {
  const std::vector<message::Any> all = {
      message::Hello{{.max_loras = 3, .max_cpu_loras = 7}},
      message::Register{"a \"b\"\n\xc3\xa9", true},
      message::Unload{"a", true},
      message::Pin{"a"},
      message::Unpin{"a"},
      message::Submit{7, "a", -1, {1, 2, 3}, 4, {1}, false},
      message::Submit{8, "", 0, {1}, 1, {}, true},
      message::Abort{7},
      message::LoadDone{3, false},
      message::CopyDone{3, 1},
      message::Plan{9},
      message::Commit{9, {{7, 1}, {8, kNoToken}}},
  };
  for (const message::Any& what : all) {
    EXPECT_EQ(round_trip(at(what)), to_json(at(what)));
    EXPECT_EQ(parse_message(to_json(at(what))).what.index(), what.index());
  }
  EXPECT_EQ(to_json(at(message::Submit{7, "a", -1, {1, 2}, 4, {1}, false})),
            R"({"op":"submit","time_ns":5,"id":7,"adapter":"a","priority":-1,"prompt":[1,2],)"
            R"("max_new_tokens":4,"stop_tokens":[1],"prefix_cache":false})");
}

TEST(JsonLines, EveryReplyIsReadBack) {
  using Kind = Event::Kind;
  Reply reply;
  reply.events = {
      {.kind = Kind::load, .uid = 1},
      {.kind = Kind::copy, .uid = 2, .slot = 1, .generation = 5},
      {.kind = Kind::evict, .uid = 3, .slot = 0, .from_cpu = true},
      {.kind = Kind::give_up, .uid = 4},
      {.kind = Kind::preempt, .id = 5},
      {.kind = Kind::finish, .id = 6, .reason = FinishReason::error, .num_generated = 2},
      {.kind = Kind::unloaded, .uid = 7}};
  const Message abort = at(message::Abort{6});
  EXPECT_EQ(parse_reply(to_json(reply, abort), abort).events, reply.events);

  reply.rows = {{.id = 1,
                 .uid = 2,
                 .slot = 1,
                 .generation = 5,
                 .start = 4,
                 .num_tokens = 3,
                 .samples = true,
                 .blocks = {3, 1}}};
  reply.wait_for = {2};
  const Message plan = at(message::Plan{1});
  const Reply read = parse_reply(to_json(reply, plan), plan);
  EXPECT_EQ(read.rows, reply.rows);
  EXPECT_EQ(read.wait_for, reply.wait_for);
  EXPECT_EQ(read.events, reply.events);

  reply = {.status = Status::exists, .uid = 0};
  const Message add = at(message::Register{"a", false});
  EXPECT_EQ(parse_reply(to_json(reply, add), add).status, Status::exists);
}

TEST(JsonLines, ClaimsAreThoseOfTheHello) {
  const Message hello = at(message::Hello{});
  const Reply read =
      parse_reply(R"({"protocol":1,"name":"x","claims":{"loads":true,"max_overtakes":3}})", hello);
  EXPECT_TRUE(read.claims.loads);
  EXPECT_FALSE(read.claims.pins);
  EXPECT_EQ(read.claims.max_overtakes, 3);
  EXPECT_EQ(read.name, "x");
}

std::string error_of(std::string_view text, const message::Any& asked) {
  try {
    parse_reply(text, at(asked));
  } catch (const DoorError& error) {
    return error.what();
  }
  return "none";
}

TEST(JsonLines, WhatIsNoReplyIsRefusedInOneLine) {
  struct Bad {
    message::Any asked;
    std::string text, says;
  };
  const std::vector<Bad> all = {
      {message::Plan{}, "", "reply to plan: is not JSON (byte 1); it was: "},
      {message::Plan{}, "[1]\n", "reply to plan: must be a JSON object; it was: [1]"},
      {message::Plan{}, R"({"row":[]})",
       "reply to plan: 'row': is no key here; did you mean 'rows'?; it was: {\"row\":[]}"},
      {message::Plan{}, R"({"rows":[{"id":1}]})", "reply to plan: rows[0]: uid: is missing"},
      {message::Plan{}, R"({"rows":[{"id":1,"uid":9007199254740992}]})",
       "reply to plan: rows[0]: uid: must be an integer from 0 to 9007199254740991"},
      {message::Plan{}, R"({"rows":[3]})", "reply to plan: rows[0]: must be an object"},
      {message::Plan{}, R"({"rows":3})", "reply to plan: rows: must be a list"},
      {message::Plan{}, R"({"wait_for":["a"]})", "wait_for[0]: must be an integer from 1 to"},
      {message::Abort{}, R"({"events":[{"event":"copied","uid":1}]})",
       "events[0]: event: 'copied' is none of load, copy, evict,"},
      {message::Abort{}, R"({"events":[{"event":"copy","uid":1}]})", "events[0]: slot: is missing"},
      {message::Abort{}, R"({"events":[{"event":"load","id":1}]})", "events[0]: uid: is missing"},
      {message::Abort{}, R"({"events":[{"event":"load","uid":1,"slot":2}]})",
       "events[0]: 'slot': is no key here"},
      {message::Plan{}, R"({"rows":[],"events":[],"rows":[]})",
       "reply to plan: 'rows': stands twice in one object"},
      {message::Abort{},
       R"({"events":[{"event":"load","uid":1},{"event":"load","uid":1,"uid":2}]})",
       "reply to abort: 'uid': stands twice in one object"},
      {message::Abort{}, R"({"status":"fine"})", "status: 'fine' is none of ok, exists,"},
      {message::Abort{}, R"({"error":"no"})", "reply to abort: error: says 'no'"},
      {message::Register{}, R"({"status":"ok"})", "reply to register: uid: is missing"},
      {message::Register{}, R"({"uid":1e300})", "uid: must be an integer from 1 to"},
      {message::Hello{}, R"({"protocol":2,"name":"x","claims":{}})",
       "protocol: is 2, and this end speaks 1"},
      {message::Hello{}, R"({"protocol":1,"name":"x","claims":{"pin":true}})",
       "claims: 'pin': is no key here; did you mean 'pins'?"},
  };
  for (const Bad& bad : all) {
    const std::string line = error_of(bad.text, bad.asked);
    EXPECT_THAT(line, HasSubstr(bad.says));
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
  EXPECT_THAT(error_of("{\"x\":\"" + std::string(1000, 'a') + "\"}", message::Plan{}),
              HasSubstr("... (1008 bytes)"));
}

// What the table of messages in docs/check_scheduler.md says, and nothing else.
TEST(JsonLines, EachMessageHasItsStatuses) {
  const std::vector<std::pair<message::Any, std::string>> all = {
      {message::Register{}, "ok exists"},  {message::Unload{}, "ok unknown"},
      {message::Pin{}, "ok unknown busy"}, {message::Unpin{}, "ok unknown"},
      {message::Abort{}, "ok unknown"},    {message::Submit{}, "ok unknown refused"},
      {message::LoadDone{}, "ok"},         {message::CopyDone{}, "ok"},
      {message::Commit{}, "ok"},
  };
  for (const auto& [asked, allowed] : all) {
    std::string taken;
    for (const std::string word : {"ok", "exists", "unknown", "busy", "refused"}) {
      const bool needs_uid = std::holds_alternative<message::Register>(asked) && word == "ok";
      const std::string line = error_of(
          fmt::format(R"({{"status":"{}"{}}})", word, needs_uid ? R"(,"uid":1)" : ""), asked);
      if (line == "none") {
        taken += (taken.empty() ? "" : " ") + word;
      } else {
        EXPECT_THAT(line, HasSubstr(fmt::format("status: '{}' is no answer to ", word)));
      }
    }
    EXPECT_EQ(taken, allowed) << word_of(at(asked));
  }
}

// A served scheduler reads messages of somebody else's harness.
TEST(JsonLines, WhatIsNoMessageIsRefused) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {R"({"op":"jump"})", "op: 'jump' is none of hello, register,"},
      {R"({"op":"submit","id":1,"prompt":[-1]})", "prompt[0]: must be an integer from 0"},
      {R"({"op":"hello","protocol":2,"limits":{}})", "protocol: is 2, and this end speaks 1"},
      {R"({"op":"hello"})", "limits: is missing"},
      {R"({"op":"commit","step":1,"sampled":[{"id":1}]})", "sampled[0]: token: is missing"},
  };
  for (const auto& [text, says] : all) {
    try {
      parse_message(text);
      ADD_FAILURE() << text;
    } catch (const DoorError& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }
}

// A session by hand: a load, a copy, a step; the reply to each message.
TEST(OwnScheduler, AnswersASession) {
  const auto scheduler = own_scheduler();
  int64_t now_ns = 0;
  const auto say = [&](const message::Any& what) {
    const Message m{.time_ns = ++now_ns, .what = what};
    return to_json(scheduler->exchange(m), m);
  };
  EXPECT_THAT(say(message::Hello{}), HasSubstr(R"("name":"loratory","claims":{"loads":true)"));
  EXPECT_EQ(say(message::Register{"a", false}), R"({"status":"ok","uid":1,"events":[]})");
  EXPECT_EQ(say(message::Register{"a", false}), R"({"status":"exists","uid":0,"events":[]})");
  EXPECT_EQ(say(message::Submit{7, "a", 0, {1, 2, 3}, 1, {}, true}),
            R"({"status":"ok","events":[{"event":"load","uid":1}]})");
  EXPECT_EQ(say(message::Submit{8, "b", 0, {1}, 1, {}, true}),
            R"({"status":"unknown","events":[]})");
  EXPECT_EQ(say(message::Plan{1}), R"({"rows":[],"wait_for":[],"events":[]})");
  EXPECT_EQ(say(message::LoadDone{1, true}),
            R"({"status":"ok","events":[{"event":"copy","uid":1,"slot":0,"generation":1}]})");
  EXPECT_EQ(say(message::CopyDone{1, 0}), R"({"status":"ok","events":[]})");
  EXPECT_EQ(say(message::Plan{1}),
            R"({"rows":[{"id":7,"uid":1,"slot":0,"generation":1,"start":0,"num_tokens":3,)"
            R"("samples":true,"blocks":[1]}],"wait_for":[],"events":[]})");
  EXPECT_EQ(say(message::Commit{1, {{7, 1}}}),
            R"({"status":"ok","events":[{"event":"finish","id":7,"reason":"length",)"
            R"("num_generated":1}]})");
  EXPECT_THROW(own_scheduler()->exchange({.time_ns = 0, .what = message::Plan{1}}), DoorError);
}

}  // namespace
}  // namespace loratory::check
