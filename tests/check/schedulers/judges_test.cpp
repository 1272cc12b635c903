// Each judge objects to something: our own scheduler, with one thing in what it hears or says
// changed.
#include <gmock/gmock.h>

#include <functional>

#include "check/schedulers/driver.hpp"
#include "check/schedulers/judge.hpp"
#include "check/schedulers/kv_executor.hpp"
#include "check/schedulers/own_scheduler.hpp"
#include "check/schedulers/run_scheduler_checks.hpp"
#include "check/schedulers/session_draw.hpp"

namespace loratory::check {
namespace {

using Kind = Event::Kind;

struct Tampering {
  std::function<void(Message&)> hears{};
  std::function<void(const Message&, Reply&)> says{};
};

class TamperedScheduler final : public SchedulerUnderTest {
 public:
  explicit TamperedScheduler(Tampering tampering, const OwnOptions& options = {})
      : own_(own_scheduler(options)), tampering_(std::move(tampering)) {}
  Reply exchange(const Message& message) override {
    Message heard = message;
    if (tampering_.hears) tampering_.hears(heard);
    Reply reply = own_->exchange(heard);
    if (tampering_.says) tampering_.says(message, reply);
    return reply;
  }

 private:
  std::unique_ptr<SchedulerUnderTest> own_;
  Tampering tampering_;
};

// The judge that objects first within 200 sessions, and what to; "nobody".
std::string first_objection(SchedulerUnderTest& scheduler, const SessionOptions& options = {}) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SessionResult result = run_session(scheduler, draw_session(seed), options);
    if (result.finding) return result.finding->judge + ": " + result.finding->what;
  }
  return "nobody";
}
std::string objection_to(Tampering tampering) {
  TamperedScheduler scheduler(std::move(tampering));
  return first_objection(scheduler);
}

Tampering limits(const std::function<void(Limits&)>& change) {
  return {.hears = [change](Message& m) {
    if (auto* hello = std::get_if<message::Hello>(&m.what)) change(hello->limits);
  }};
}
Tampering rows(const std::function<void(Row&)>& change) {
  return {.says = [change](const Message&, Reply& reply) {
    for (Row& row : reply.rows) change(row);
  }};
}
Tampering without(Kind kind) {
  return {.says = [kind](const Message&, Reply& reply) {
    std::erase_if(reply.events, [&](const Event& e) { return e.kind == kind; });
  }};
}

TEST(Judges, ObjectToRoomThatIsNotThere) {
  using testing::StartsWith;
  EXPECT_THAT(objection_to(limits([](Limits& l) { ++l.max_loras, ++l.max_cpu_loras; })),
              testing::AnyOf(StartsWith("sense: copy"), StartsWith("tiers")));
  EXPECT_THAT(objection_to(limits([](Limits& l) { ++l.max_cpu_loras; })),
              testing::ContainsRegex("tiers: a load of uid .*places in host memory are taken"));
  EXPECT_THAT(objection_to(limits([](Limits& l) { ++l.num_load_workers; })),
              testing::ContainsRegex("tiers: a load of uid .* run already"));
  EXPECT_THAT(objection_to(limits([](Limits& l) { ++l.max_num_batched_tokens; })),
              testing::ContainsRegex("budgets: .* tokens, and max_num_batched_tokens is"));
  EXPECT_THAT(objection_to(limits([](Limits& l) {
                ++l.max_num_seqs;
                l.max_num_batched_tokens = std::max(l.max_num_batched_tokens, l.max_num_seqs);
              })),
              StartsWith("budgets: "));
  EXPECT_THAT(objection_to(limits([](Limits& l) { ++l.num_blocks; })),
              testing::AnyOf(StartsWith("blocks: "), StartsWith("identity: ")));
}

TEST(Judges, ObjectToRowsThatAreWrong) {
  using testing::StartsWith;
  EXPECT_THAT(objection_to(rows([](Row& r) { r.uid = r.uid == 2 ? 1 : r.uid; })),
              StartsWith("identity: request"));
  EXPECT_THAT(objection_to(rows([](Row& r) { r.slot = r.slot == 1 ? 0 : r.slot; })),
              StartsWith("slots: request"));
  EXPECT_THAT(objection_to(rows([](Row& r) { r.generation += r.generation == 2; })),
              StartsWith("generations: request"));
  EXPECT_THAT(objection_to(rows([](Row& r) { r.samples = r.samples && r.start == 0; })),
              StartsWith("positions: request"));
  EXPECT_THAT(objection_to(rows([](Row& r) { r.blocks[0] = 1; })), StartsWith("blocks: request"));
  EXPECT_THAT(objection_to(rows([](Row& r) { r.blocks.pop_back(); })), StartsWith("blocks: "));
  EXPECT_THAT(objection_to(rows([](Row& r) { r.blocks[0] = r.start > 0 ? r.blocks[0] : 0; })),
              StartsWith("blocks: "));
  // A first row that begins one token too late has no KV there.
  EXPECT_THAT(objection_to(rows([](Row& r) {
                if (r.num_tokens > 1) ++r.start, --r.num_tokens;
              })),
              StartsWith("prefixes: request"));
  EXPECT_THAT(objection_to({.says =
                                [](const Message&, Reply& r) {
                                  if (r.rows.size() > 1) r.rows[1] = r.rows[0];
                                }}),
              StartsWith("budgets: request"));
}

TEST(Judges, ObjectToSilence) {
  using testing::StartsWith;
  EXPECT_THAT(objection_to(without(Kind::unloaded)), StartsWith("unloads: uid"));
  EXPECT_THAT(objection_to(without(Kind::finish)), StartsWith("ends: request"));
  EXPECT_THAT(objection_to(without(Kind::load)), StartsWith("progress: "));
  EXPECT_THAT(objection_to(without(Kind::copy)), StartsWith("progress: "));
  EXPECT_THAT(objection_to(without(Kind::preempt)),
              testing::AnyOf(StartsWith("positions: request"), StartsWith("blocks: request")));
  EXPECT_THAT(objection_to({.says = [](const Message&, Reply& r) { r.rows.clear(); }}),
              StartsWith("progress: "));  // our own scheduler waits for a commit then
  Tampering nothing_runs{.hears = [](Message& m) {
    if (m.get_if<message::Plan>() != nullptr) m.what = message::Abort{uint64_t{1} << 40};
  }};
  EXPECT_THAT(objection_to(nothing_runs), StartsWith("progress: "));
}

TEST(Judges, ObjectToWhatHappensUnasked) {
  using testing::StartsWith;
  const auto add = [](const Event& event, auto&& if_in) {
    return Tampering{.says = [event, if_in](const Message& m, Reply& r) {
      if (m.get_if<message::Hello>() == nullptr && if_in(r)) r.events.push_back(event);
    }};
  };
  const auto in_plan = [](const Reply& r) { return !r.rows.empty(); };
  EXPECT_THAT(objection_to(add({.kind = Kind::load, .uid = 99}, in_plan)),
              StartsWith("sense: load of uid 99, which was never given out"));
  EXPECT_THAT(objection_to(add({.kind = Kind::unloaded, .uid = 1}, in_plan)),
              testing::AnyOf(StartsWith("unloads: "), StartsWith("sense: ")));
  EXPECT_THAT(objection_to(add({.kind = Kind::finish, .id = 0}, in_plan)),
              testing::AnyOf(StartsWith("ends: request 0 ends with length, and it has"),
                             StartsWith("sense: finish of request 0, which is not live")));
  // Pins that the scheduler never heard of.
  Tampering deaf{.hears = [](Message& m) {
    if (m.get_if<message::Pin>() != nullptr) m.what = message::Abort{uint64_t{1} << 40};
  }};
  deaf.says = [](const Message& m, Reply& r) {
    if (m.get_if<message::Pin>() != nullptr) r.status = Status::ok;
  };
  EXPECT_THAT(objection_to(deaf),
              testing::AnyOf(StartsWith("pins: "), StartsWith("identity: 'nobody'")));
}

TEST(Judges, OldUidsOldPromisesAndOtherReplies) {
  using testing::StartsWith;
  Tampering same_uid{.says = [](const Message& m, Reply& r) {
    if (m.get_if<message::Register>() != nullptr && r.uid > 3) r.uid = 1;
  }};
  EXPECT_THAT(objection_to(same_uid), StartsWith("identity: register of"));

  Tampering claims_too_much{.says = [](const Message&, Reply& r) { r.claims.max_overtakes = 0; }};
  EXPECT_THAT(objection_to(claims_too_much), StartsWith("overtaking: request"));

  auto num_hellos = std::make_shared<uint64_t>(0);
  Tampering other_each_time{.says = [num_hellos](const Message& m, Reply& r) {
    *num_hellos += m.get_if<message::Hello>() != nullptr;
    for (Event& e : r.events) {
      if (e.kind == Kind::copy) e.generation += *num_hellos;
    }
    for (Row& row : r.rows) row.generation += row.slot == kNoSlot ? 0 : *num_hellos;
  }};
  EXPECT_THAT(objection_to(other_each_time), StartsWith("repeatable: the same messages again"));
}

// The executor sees by itself what judges of the plan see.
TEST(Judges, TokensTellOfEveryWrongRow) {
  const auto tokens_of = [](const Tampering& tampering, bool prefix_cache = true) {
    TamperedScheduler scheduler(tampering, {.prefix_cache = prefix_cache});
    return first_objection(scheduler, {.judges = {"tokens"}, .repeat = false});
  };
  using testing::StartsWith;
  EXPECT_THAT(tokens_of(rows([](Row& r) { r.slot = r.slot == 1 ? 0 : r.slot; })),
              StartsWith("tokens: request"));
  EXPECT_THAT(tokens_of(rows([](Row& r) { r.blocks[0] = 1; })), StartsWith("tokens: request"));
  EXPECT_THAT(tokens_of(rows([](Row& r) {
                if (r.num_tokens > 1) ++r.start, --r.num_tokens;
              })),
              StartsWith("tokens: request"));
  EXPECT_EQ(tokens_of({}), "nobody");
}

// Judges who would object before are not asked.
TEST(Judges, PrefixesTellOfTablesThatAreNone) {
  const auto prefixes_of = [](const std::function<void(Row&)>& change) {
    TamperedScheduler scheduler(rows(change));
    return first_objection(scheduler, {.judges = {"prefixes"}, .repeat = false});
  };
  using testing::HasSubstr;
  EXPECT_THAT(prefixes_of([](Row& r) { r.start = 1, r.blocks.clear(); }),
              HasSubstr("begins at 1: position 0 is in no block"));
  EXPECT_THAT(prefixes_of([](Row& r) { r.start = 1, r.blocks = {1u << 31}; }),
              HasSubstr("begins at 1: there is no block 2147483648"));
}

TEST(Judges, ObjectToAnswersToAborts) {
  const auto answers = [](Status from, Status to) {
    return objection_to({.says = [=](const Message& m, Reply& r) {
      if (m.get_if<message::Abort>() != nullptr && r.status == from) r.status = to;
    }});
  };
  EXPECT_THAT(answers(Status::ok, Status::unknown),
              testing::ContainsRegex("identity: request .* is live, and the answer .* is unknown"));
  EXPECT_THAT(answers(Status::unknown, Status::ok),
              testing::ContainsRegex("identity: request .* is not live, and the answer .* is ok"));
}

TEST(Judges, ObjectToCountsOfTokens) {
  for (const FinishReason reason :
       {FinishReason::length, FinishReason::stop, FinishReason::abort, FinishReason::error}) {
    EXPECT_THAT(objection_to({.says =
                                  [reason](const Message&, Reply& r) {
                                    for (Event& e : r.events) {
                                      e.num_generated +=
                                          e.kind == Kind::finish && e.reason == reason;
                                    }
                                  }}),
                testing::ContainsRegex("ends: request .* tokens generated, and it has"));
  }
}

// Runs nothing, and copies an adapter again and again once it was unloaded.
class RestlessScheduler final : public SchedulerUnderTest {
 public:
  Reply exchange(const Message& message) override {
    Reply reply{.name = "restless", .claims = {.unloads = true}};
    if (message.get_if<message::Register>() != nullptr) reply.uid = ++last_uid_;
    if (message.get_if<message::CopyDone>() != nullptr) {
      reply.events.push_back({.kind = Kind::evict, .uid = last_uid_, .slot = 0});
    }
    if (message.get_if<message::Unload>() != nullptr || !reply.events.empty()) {
      reply.events.push_back({.kind = Kind::copy, .uid = last_uid_, .slot = 0});
    }
    return reply;
  }

 private:
  Uid last_uid_ = 0;
};

TEST(Judges, ObjectToTransfersWithoutEnd) {
  RestlessScheduler scheduler;
  const SessionResult result =
      run_session(scheduler, parse_session("sched.seed1.ops0.loras1.names1"));
  ASSERT_TRUE(result.finding);
  EXPECT_EQ(result.finding->judge, "progress");
  EXPECT_EQ(result.finding->what, "transfers go on for ever, for nobody");
}

// Of what a judge did not see to its end the report does not say that it passed.
TEST(SchedulerReport, ASessionThatEndsEarlyCountsForWhoObjectedAlone) {
  constexpr int64_t kNumSessions = 20;
  int64_t num_even = 0;
  for (int64_t i = 0; i < kNumSessions; ++i) {
    num_even += draw_session(uint64_t(i)).block_size % 2 == 0;
  }
  ASSERT_GT(num_even, 0);
  ASSERT_LT(num_even, kNumSessions);
  const auto report_of = [](const std::function<bool(const Limits&)>& is_hit) {
    const SchedulerFactory make = [&]() -> std::unique_ptr<SchedulerUnderTest> {
      auto hits = std::make_shared<bool>();
      return std::make_unique<TamperedScheduler>(
          Tampering{.says = [&is_hit, hits](const Message& m, Reply& reply) {
            if (const auto* hello = m.get_if<message::Hello>()) *hits = is_hit(hello->limits);
            for (Row& row : reply.rows) row.id += *hits ? 1'000'000 : 0;
          }});
    };
    return run_scheduler_checks(
        make, {.seed = 0, .num_sessions = kNumSessions, .shrinks = false, .command = "x"});
  };

  const Report some = report_of([](const Limits& l) { return l.block_size % 2 == 0; });
  EXPECT_EQ(some.num_cases, kNumSessions);
  EXPECT_EQ(some.find("sense")->state, CheckState::failed);
  EXPECT_EQ(some.find("sense")->num_cases, kNumSessions);
  EXPECT_EQ(some.find("budgets")->state, CheckState::passed);
  EXPECT_EQ(some.find("budgets")->num_cases, kNumSessions - num_even);

  const Report all = report_of([](const Limits&) { return true; });
  EXPECT_EQ(all.find("sense")->state, CheckState::failed);
  for (const CheckResult& check : all.checks) {
    if (check.name == "sense") continue;
    EXPECT_EQ(check.state, CheckState::skipped) << check.name;
    EXPECT_EQ(check.num_comparisons, 0) << check.name;
  }
  EXPECT_EQ(all.find("budgets")->note, "no session came to its end");
}

// Right for a while, and then anything.
class WildScheduler final : public SchedulerUnderTest {
 public:
  explicit WildScheduler(uint64_t seed) : draw_(seed, 1) {}
  Reply exchange(const Message& message) override {
    if (message.get_if<message::Hello>() != nullptr) {
      own_ = own_scheduler();
      is_wild_ = false;
    }
    Reply reply;
    if (!is_wild_) reply = own_->exchange(message);
    if (message.get_if<message::Hello>() == nullptr && draw_.one_in(is_wild_ ? 2 : 60)) {
      is_wild_ = true;  // our own would abort: what it hears from here on is not what it said
      make_wild(reply);
    }
    if (!reply.rows.empty()) last_rows_ = reply.rows;
    return reply;
  }

 private:
  uint64_t number() { return draw_.one_of<uint64_t>({0, 1, 2, 3, 9, 1 << 20, 1u << 31}); }

  void make_wild(Reply& r) {
    if (draw_.one_in(3)) r.status = Status(draw_(5));
    if (draw_.one_in(3)) r.uid = number();
    if (r.rows.empty() && draw_.one_in(2)) r.rows = last_rows_;
    if (draw_.one_in(2)) {
      r.events.push_back({.kind = Event::Kind(draw_(7)),
                          .uid = number(),
                          .slot = int32_t(number()),
                          .generation = number(),
                          .from_cpu = draw_.one_in(2),
                          .id = number(),
                          .reason = FinishReason(draw_(4)),
                          .num_generated = uint32_t(number())});
    }
    for (Row& row : r.rows) make_wild(row);
    if (draw_.one_in(8)) r.wait_for.push_back(number());
  }
  void make_wild(Row& row) {
    if (draw_.one_in(8)) row.id = number();
    if (draw_.one_in(8)) row.uid = number();
    if (draw_.one_in(8)) row.slot = int32_t(number());
    if (draw_.one_in(8)) row.start = uint32_t(number());
    if (draw_.one_in(8)) row.num_tokens = uint32_t(number());
    if (draw_.one_in(8)) row.blocks.push_back(uint32_t(number()));
    if (draw_.one_in(8)) row.blocks.resize(size_t(draw_(3)));
    if (draw_.one_in(8)) row.samples = !row.samples;
  }

  SessionDraw draw_;
  std::unique_ptr<SchedulerUnderTest> own_;
  std::vector<Row> last_rows_;
  bool is_wild_ = false;
};

// Whatever a scheduler says, and whichever judges are asked, the session ends with a finding or
// without: it never breaks.
TEST(Judges, NoReplyBreaksTheSession) {
  std::vector<std::string> names = {"tokens"};
  for (const auto& judge : all_judges()) names.emplace_back(judge->name());
  std::map<std::string, int> found;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    WildScheduler scheduler(seed);
    SessionOptions options{.repeat = false};
    if (seed % 2 == 0) options.judges = {names[seed / 2 % names.size()]};
    const SessionResult result = run_session(scheduler, draw_session(seed), options);
    if (result.finding) ++found[result.finding->judge];
  }
  EXPECT_GE(found.size(), 8u);
}

TEST(KvExecutor, AStateIsThatOfTheRequestAlone) {
  const Limits limits{.max_loras = 1, .block_size = 2, .num_blocks = 4};
  KvExecutor executor(limits);
  executor.begin_copy(0);
  executor.end_copy(0, 5);
  const std::vector<World::Request> requests = {{.uid = 5, .tokens = {1, 2, 3}}};
  const Row first{.uid = 5, .slot = 0, .start = 0, .num_tokens = 2, .blocks = {3}};
  const Row second{
      .uid = 5, .slot = 0, .start = 2, .num_tokens = 1, .samples = true, .blocks = {3, 1}};
  EXPECT_TRUE(executor.run({.rows = {first}, .requests = {0}}, requests).empty());
  const auto sampled = executor.run({.rows = {second}, .requests = {0}}, requests);
  ASSERT_EQ(sampled.size(), 1u);
  EXPECT_EQ(sampled[0].state, KvExecutor::state_alone(5, {1, 2, 3}));
  EXPECT_NE(sampled[0].state, KvExecutor::state_alone(4, {1, 2, 3}));
  EXPECT_EQ(executor.first_wrong_position(second, requests[0]), -1);
  // Weights that are being overwritten; a block of somebody else.
  executor.begin_copy(0);
  EXPECT_NE(executor.run({.rows = {second}, .requests = {0}}, requests)[0].state, sampled[0].state);
  EXPECT_EQ(executor.first_wrong_position(second, requests[0]), 2);
}

TEST(Judges, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const auto& judge : all_judges()) EXPECT_TRUE(names.insert(judge->name()).second);
  for (const SessionJudge& judge : session_judges()) {
    EXPECT_TRUE(names.insert(judge.name).second);
  }
  EXPECT_EQ(names.size(), 18u);
}

}  // namespace
}  // namespace loratory::check
