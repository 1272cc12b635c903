// The three doors: what one scheduler says is the same through each, and what goes wrong at a door
// is one line.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "check/schedulers/child_scheduler.hpp"
#include "check/schedulers/driver.hpp"
#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/own_scheduler.hpp"
#include "check/schedulers/plugin_scheduler.hpp"
#include "check/schedulers/run_scheduler_checks.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

using testing::HasSubstr;

std::vector<std::string> transcript_of(SchedulerUnderTest& scheduler, const Session& session) {
  SessionResult result =
      run_session(scheduler, session, {.repeat = false, .transcript_lines = 1'000'000});
  EXPECT_FALSE(result.finding) << result.finding->judge << ": " << result.finding->what;
  return result.transcript;
}

TEST(Doors, OneSchedulerSaysTheSameThroughEach) {
  const auto own = own_scheduler();
  const auto library = load_scheduler_library(LORATORY_SCHEDULER_PLUGIN)();
  const auto child = child_scheduler(LORATORY_SCHEDULER_SERVER);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Session session = draw_session(seed);
    const std::vector<std::string> expected = transcript_of(*own, session);
    EXPECT_GT(expected.size(), 20u);
    EXPECT_EQ(transcript_of(*library, session), expected);
    EXPECT_EQ(transcript_of(*child, session), expected);
  }
}

// --- what breaks --------------------------------------------------------------------------------

Message hello() { return {.time_ns = 0, .what = message::Hello{}}; }

std::string error_of(SchedulerUnderTest& scheduler) {
  try {
    scheduler.exchange(hello());
  } catch (const DoorError& error) {
    return error.what();
  }
  return "none";
}
std::string child_error(const std::string& command, int64_t timeout_ms = 10'000) {
  return error_of(*child_scheduler(command, timeout_ms));
}

TEST(ChildScheduler, WhatBreaksIsOneLine) {
  EXPECT_THAT(child_error("exit 3"),
              HasSubstr("the process ended with status 3 before it answered hello"));
  EXPECT_THAT(child_error("read line; kill -9 $$"), HasSubstr("was ended by signal 9"));
  EXPECT_THAT(child_error("read line; printf 'half a li'"),
              HasSubstr("ended with status 0 before it answered hello; it wrote: half a li"));
  EXPECT_THAT(child_error("read line; echo Traceback; sleep 60"),
              HasSubstr("reply to hello: is not JSON (byte 1); it was: Traceback"));
  EXPECT_THAT(child_error("read line; printf '{'; sleep 60", 50),
              HasSubstr("no reply to hello within 50 ms, only: {"));
  EXPECT_THROW(child_error("no-such-program-here 2>/dev/null"), InputError);
}

TEST(ChildScheduler, ATranscriptEndsWithWhatIsNoReply) {
  const auto child = child_scheduler("read line; echo Traceback; sleep 60", 60'000);
  const std::vector<std::string> lines =
      run_session(*child, parse_session("sched.seed1"), {.transcript_lines = 10}).transcript;
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "{\"error\":\"reply to hello: is not JSON (byte 1); it was: Traceback\"}");
}

TEST(ChildScheduler, ALineTooManyIsNotTakenForTheNextReply) {
  const auto child = child_scheduler(
      "while read line; do echo '{\"protocol\":1,\"name\":\"x\",\"claims\":{}}'; echo more; done");
  child->exchange(hello());
  EXPECT_THAT(error_of(*child), testing::AnyOf(HasSubstr("a line that nobody asked for: more"),
                                               HasSubstr("is not JSON")));
}

// What a shell started does not outlive it.
TEST(ChildScheduler, IsKilledWithWhatItStarted) {
  const std::string file = testing::TempDir() + "pid";
  child_error(fmt::format("trap '' TERM; sleep 600 & echo $! > {}; wait", file), 100);
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  std::filesystem::remove(file);
  ASSERT_GT(pid, 0);
  const auto state = [&] {
    std::ifstream status(fmt::format("/proc/{}/status", pid));
    for (std::string word; status >> word;) {
      if (word == "State:" && status >> word) return word;
    }
    return std::string("gone");
  };
  // It was killed; the kernel may not have come to it yet.
  for (int i = 0; i < 100'000 && state() != "gone" && state() != "Z"; ++i) sched_yield();
  EXPECT_THAT(state(), testing::AnyOf("gone", "Z"));
}

const CheckResult& check_of(const Report& report, std::string_view name) {
  return *std::ranges::find(report.checks, name, &CheckResult::name);
}

TEST(SchedulerNamed, AFileWithABlankInItsPathIsALibrary) {
  const std::string folder = testing::TempDir() + "a folder";
  std::filesystem::create_directories(folder);
  const std::string library = folder + "/x.so";
  std::filesystem::copy_file(LORATORY_SCHEDULER_PLUGIN, library);
  EXPECT_EQ(scheduler_named(library)()->exchange(hello()).name, "loratory");
  std::filesystem::remove_all(folder);
}

// Claims are those of the hello that was answered, whatever broke behind it.
TEST(RunSchedulerChecks, ABrokenDoorLeavesTheClaims) {
  const std::string command =
      "read line; echo '{\"protocol\":1,\"name\":\"x\",\"claims\":{\"pins\":true,"
      "\"chunked_prefill\":true}}'; read line; echo '{\"status\":\"busy\"}'; read line";
  const Report report = run_scheduler_checks(scheduler_named(command),
                                             {.num_sessions = 1, .shrinks = false, .command = "x"});
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].check, "door");
  EXPECT_THAT(report.findings[0].what, HasSubstr("status: 'busy' is no answer to register"));
  EXPECT_EQ(check_of(report, "pins").note, "no session came to its end");
  EXPECT_EQ(check_of(report, "unloads").note, "unloads is not claimed");
}

TEST(RunSchedulerChecks, ASchedulerThatCannotBeMadeIsAFindingOfTheDoor) {
  const SchedulerFactory make = []() -> std::unique_ptr<SchedulerUnderTest> {
    throw DoorError("create threw: no licence");
  };
  const Report report = run_scheduler_checks(make, {.num_sessions = 3});
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].check, "door");
  EXPECT_EQ(report.findings[0].what, "create threw: no licence");
  EXPECT_FALSE(report.ok());
}

TEST(PluginScheduler, WhatBreaksIsOneLine) {
  const auto error_of_loading = [](const std::string& path) -> std::string {
    try {
      load_scheduler_library(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(error_of_loading("/no/such.so"), HasSubstr("/no/such.so: cannot be loaded: "));
  EXPECT_THAT(error_of_loading("/lib/x86_64-linux-gnu/libm.so.6"),
              HasSubstr("has no function loratory_scheduler"));

  LoratoryScheduler plugin = {
      .version = 7,
      .create = []() -> void* { return new int; },
      .exchange = [](void*, const char*, const char** reply) { return *reply = "no\nroom", 5; },
      .destroy = [](void* state) { delete static_cast<int*>(state); }};
  try {
    plugin_scheduler(plugin);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "scheduler: its version is 7, and this harness speaks 1; build it with this "
                 "loratory_scheduler.h");
  }
  plugin.version = LORATORY_SCHEDULER_VERSION;
  EXPECT_EQ(error_of(*plugin_scheduler(plugin)), "exchange returned 5 to hello: no\\nroom");
  plugin.exchange = [](void*, const char*, const char**) { return 0; };
  EXPECT_EQ(error_of(*plugin_scheduler(plugin)), "no reply to hello");
  plugin.exchange = [](void*, const char*, const char**) -> int {
    throw std::runtime_error("no\nroom");
  };
  EXPECT_EQ(error_of(*plugin_scheduler(plugin)), "exchange threw: no\\nroom");
  plugin.exchange = nullptr;
  EXPECT_THROW(plugin_scheduler(plugin), InputError);
}

// What our own scheduler answers to each line.
std::vector<std::string> served(const std::vector<std::string>& lines) {
  std::FILE* in = std::tmpfile();
  std::FILE* out = std::tmpfile();
  for (const std::string& line : lines) std::fputs((line + "\n").c_str(), in);
  std::rewind(in);
  serve_scheduler(*own_scheduler(), in, out);
  std::rewind(out);
  std::vector<std::string> answers;
  for (char text[4000]; std::fgets(text, sizeof text, out) != nullptr;) answers.push_back(text);
  std::fclose(in);
  std::fclose(out);
  return answers;
}

TEST(ServeScheduler, AnswersWhatIsNoMessage) {
  EXPECT_THAT(served({R"({"op":"jump"})", R"({"op":"plan","step":1})"}),
              testing::ElementsAre(
                  testing::StartsWith("{\"error\":\"message: op: 'jump' is none of hello,"),
                  "{\"error\":\"a session begins with hello\"}\n"));
}

// Somebody else's harness that has lost its way is told so, and the session goes on.
TEST(ServeScheduler, RefusesWhatNeverBegan) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {R"({"op":"hello","protocol":1,"limits":{}})", "loratory"},
      {R"({"op":"load_done","uid":9})", "load_done without a load"},
      {R"({"op":"register","name":"a"})", "ok"},
      {R"({"op":"load_done","uid":1})", "load_done without a load"},
      {R"({"op":"copy_done","uid":1,"slot":0})", "copy_done without a copy into that slot"},
      {R"({"op":"submit","id":7,"adapter":"a","prompt":[1],"max_new_tokens":2})", "load"},
      {R"({"op":"load_done","uid":1})", "ok"},
      {R"({"op":"plan","step":1})", "copy"},
      {R"({"op":"copy_done","uid":1,"slot":1})", "copy_done without a copy into that slot"},
      {R"({"op":"copy_done","uid":1,"slot":0})", "ok"},
      {R"({"op":"plan","step":1})", R"({"id":7,)"},
      {R"({"op":"commit","step":2,"sampled":[{"id":7,"token":1}]})",
       "commit of step 2: the oldest is 1"},
      {R"({"op":"commit","step":1,"sampled":[]})", "sampled: must have the ids [7], the rows of"},
      {R"({"op":"commit","step":1,"sampled":[{"id":7,"token":1},{"id":7,"token":1}]})",
       "sampled: must have the ids [7], the rows of"},
      {R"({"op":"commit","step":1,"sampled":[{"id":8,"token":1}]})",
       "sampled: must have the ids [7], the rows of"},
      {R"({"op":"commit","step":1,"sampled":[{"id":7,"token":1}]})", "ok"},
  };
  std::vector<std::string> lines;
  for (const auto& [line, says] : all) lines.push_back(line);
  const std::vector<std::string> answers = served(lines);
  ASSERT_EQ(answers.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_THAT(answers[i], HasSubstr(all[i].second)) << lines[i];
    EXPECT_EQ(answers[i].starts_with("{\"error\""), all[i].second.find(' ') != std::string::npos)
        << answers[i];
  }
}

// What time_ns leaves out is 0.
TEST(ServeScheduler, RefusesTimeThatFalls) {
  const std::string hello = R"({"op":"hello","time_ns":9,"protocol":1,"limits":{}})";
  const std::string no_room = R"({"op":"hello","time_ns":1,"limits":{"num_blocks":1}})";
  const auto falls = [](int to, int from) {
    return testing::StartsWith(
        fmt::format("{{\"error\":\"time_ns: is {}, and was {} before: it never falls", to, from));
  };
  EXPECT_THAT(
      served({hello, R"({"op":"register","time_ns":8,"name":"a"})",
              R"({"op":"register","time_ns":9,"name":"a"})",
              R"({"op":"plan","time_ns":20,"step":1})", R"({"op":"plan","step":1})",
              R"({"op":"plan","time_ns":20,"step":1})", hello,
              R"({"op":"plan","time_ns":10,"step":1})", no_room, R"({"op":"plan","step":1})"}),
      testing::ElementsAre(HasSubstr("claims"), falls(8, 9), HasSubstr("ok"), HasSubstr("rows"),
                           falls(0, 20), HasSubstr("rows"), HasSubstr("claims"), HasSubstr("rows"),
                           testing::StartsWith("{\"error\""), HasSubstr("begins with hello")));
}

// --- the sample ---------------------------------------------------------------------------------

std::string sample() { return LORATORY_SOURCE_DIR "/check/samples/naive_scheduler.py"; }
bool has_python() { return std::system("python3 -c '' 2>/dev/null") == 0; }

Report report_of(const std::string& script, int64_t num_sessions) {
  return run_scheduler_checks(
      scheduler_named("python3 " + script),
      {.num_sessions = num_sessions, .command = "loratory check --scheduler x"});
}

TEST(NaiveScheduler, IsRight) {
  if (!has_python()) GTEST_SKIP() << "no python3";
  const Report report = report_of(sample(), 40);
  for (const Finding& f : report.findings) {
    ADD_FAILURE() << f.repro << '\n' << f.check << ": " << f.what << '\n' << f.pattern;
  }
  EXPECT_EQ(report.subject, "naive");
  EXPECT_EQ(report.num_cases, 40);
  EXPECT_EQ(check_of(report, "pins").state, CheckState::skipped);
  EXPECT_EQ(check_of(report, "pins").note, "pins is not claimed");
  EXPECT_EQ(check_of(report, "overtaking").state, CheckState::passed);
}

// One line of it changed: each time a judge says what is wrong.
TEST(NaiveScheduler, PlantedBugsAreFound) {
  if (!has_python()) GTEST_SKIP() << "no python3";
  struct Planted {
    std::string line, instead, judge;
  };
  const std::vector<Planted> all = {
      {"return (request.uid, tuple(", "return (0, tuple(", "prefixes"},
      {"(len(found) + 1) * size < len(", "(len(found) + 1) * size <= len(", "progress"},
      {"a.ready and a.num_running == 0", "a.ready", "slots"},
      {"self.users[block] -= 1\n", "self.users[block] -= request.max_new != 3\n", "leaks|progress"},
      {"self.next_uid += 1", "self.next_uid = len(self.by_name) + 1", "identity"},
      {"if (adapter and not adapter.ready) or", "if", "slots"},
      {"if self.users[block] == 0:  #", "if True:  #", "blocks"},
      {"request.adapter.num_live -= 1\n", "request.adapter.num_live -= reason != \"abort\"\n",
       "unloads"},
      {"if token in request.stops:", "if False:", "ends"},
  };
  std::ostringstream text;
  text << std::ifstream(sample()).rdbuf();
  for (const Planted& planted : all) {
    std::string changed = text.str();
    const size_t at = changed.find(planted.line);
    ASSERT_NE(at, std::string::npos) << planted.line;
    changed.replace(at, planted.line.size(), planted.instead);
    const std::string file = testing::TempDir() + "changed.py";
    std::ofstream(file) << changed;
    const Report report =
        run_scheduler_checks(scheduler_named(fmt::format("python3 {} 2>/dev/null", file)),
                             {.num_sessions = 200, .shrinks = false, .stops_at_first = true});
    std::filesystem::remove(file);
    ASSERT_EQ(report.findings.size(), 1u) << planted.instead;
    EXPECT_THAT("|" + planted.judge + "|", HasSubstr("|" + report.findings[0].check + "|"))
        << planted.instead << '\n'
        << report.findings[0].what;
  }
}

}  // namespace
}  // namespace loratory::check
