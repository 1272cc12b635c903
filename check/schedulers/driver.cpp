#include "check/schedulers/driver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "check/schedulers/json_lines.hpp"
#include "check/schedulers/judge.hpp"
#include "check/schedulers/kv_executor.hpp"
#include "check/schedulers/session_draw.hpp"
#include "check/schedulers/world.hpp"

namespace loratory::check {
namespace {

constexpr uint64_t kDrawsEnd = UINT64_MAX - 1;
constexpr int kIdlePlans = 8;  // without anything happening, a second apart
constexpr int64_t kIdleNs = 1'000'000'000;
constexpr int64_t kMostMoves = 2'000;  // exchanges, without a step

/// Ends the session: a judge has objected.
struct Objection {
  std::string judge, what;
};

class Driver {
 public:
  Driver(SchedulerUnderTest& scheduler, const Session& session, const SessionOptions& options)
      : scheduler_(scheduler), session_(session), options_(options), executor_(Limits{}) {}

  SessionResult run() {
    try {
      begin();
      for (op_ = 0; op_ < session_.num_ops; ++op_) {
        if (session_.is_dropped(op_)) continue;
        SessionDraw draw(session_.seed, uint64_t(op_));
        operate(draw);
      }
      end();
      if (result_.claims.deterministic && options_.repeat) repeat();
    } catch (const Objection& objection) {
      found(objection);
    } catch (const DoorError& error) {
      if (options_.transcript_lines > 0) keep_line(error_json(error.what()));
      found({"door", error.what()});
    }
    result_.counts.exchanges = int64_t(said_.size());
    result_.transcript.assign(transcript_.begin(), transcript_.end());
    return std::move(result_);
  }

 private:
  // --- one exchange -------------------------------------------------------------------------
  // `what` is said, and the answer judged and taken in.
  Reply say(message::Any what) {
    now_ns_ += 1'000;
    said_.push_back({.time_ns = now_ns_, .what = std::move(what)});
    const Message& m = said_.back();
    keep_line(m);
    world_.said(m);
    answer_.reset();
    Reply reply = scheduler_.exchange(m);
    answer_ = reply;
    if (options_.transcript_lines > 0) keep_line(to_json(reply, m));
    if (m.get_if<message::Hello>() != nullptr) return reply;
    take(m, reply);
    if (options_.repeat) replies_.push_back(reply);
    return reply;
  }

  void take(const Message& m, const Reply& reply) {
    ask([&](Judge& j) { return j.on_status(world_, m, reply); });
    world_.heard(m, reply);
    for (const Event& event : reply.events) {
      ask([&](Judge& j) { return j.on_event(world_, m, event); });
      count(event);
      world_.take(event);
      begin_transfer(event);
    }
    if (const auto* plan = m.get_if<message::Plan>()) {
      ask([&](Judge& j) { return j.on_plan(world_, reply, plan->step); });
      if (std::string what = world_.cannot_take(reply); !what.empty()) {
        throw Objection{"sense", std::move(what)};  // the judge who says it better was not asked
      }
      count(reply);
      world_.take_plan(plan->step, reply);
      if (!reply.rows.empty()) ++num_steps_;
    }
    for (const World::Step* step : world_.start_steps()) {
      ask([&](Judge& j) { return j.on_start(world_, *step); });
    }
    ask([&](Judge& j) { return j.on_reply(world_, m); });
  }

  template <typename Question>
  void ask(const Question& question) {
    for (const auto& judge : judges_) {
      if (std::string what = question(*judge); !what.empty()) {
        throw Objection{judge->name(), std::move(what)};
      }
    }
  }

  void found(const Objection& objection) {
    result_.finding = {.judge = objection.judge,
                       .what = objection.what,
                       .exchange = int64_t(said_.size()),
                       .message = said_.empty() ? "" : to_json(said_.back()),
                       .reply = answer_ ? to_json(*answer_, said_.back()) : ""};
  }

  void keep_line(const Message& m) {
    if (options_.transcript_lines > 0) keep_line(to_json(m));
  }
  void keep_line(std::string line) {
    transcript_.push_back(std::move(line));
    if (transcript_.size() > options_.transcript_lines) transcript_.pop_front();
  }

  void begin_transfer(const Event& e) {
    if (e.kind == Event::Kind::load) loads_.push_back(e.uid);
    if (e.kind == Event::Kind::copy) {
      copies_.emplace_back(e.uid, e.slot);
      executor_.begin_copy(e.slot);
    }
    if (e.kind == Event::Kind::finish) last_end_step_ = num_steps_;
  }

  // --- the session --------------------------------------------------------------------------
  // The first hello asks for the claims: without chunked prefill a step has room for any prompt.
  void begin() {
    Limits limits = session_.limits();
    Reply reply = say(message::Hello{limits});
    if (!reply.claims.chunked_prefill && limits.max_num_batched_tokens < limits.max_model_len) {
      limits.max_num_batched_tokens = limits.max_model_len;
      reply = say(message::Hello{limits});
    }
    said_.erase(said_.begin(), said_.end() - 1);
    result_.claims = reply.claims;
    result_.name = reply.name;
    world_ = World(limits, reply.claims);
    executor_ = KvExecutor(limits);
    judges_ = all_judges();
    std::erase_if(judges_, [&](const auto& judge) {
      return !judge->applies(reply.claims) || !is_asked(judge->name());
    });
    for (int32_t i = 0; i < session_.num_names; ++i) say(message::Register{name(i), false});
  }

  // The world takes in nothing that makes no sense.
  bool is_asked(std::string_view judge) const {
    return judge == "sense" || options_.judges.empty() ||
           std::ranges::count(options_.judges, judge) > 0;
  }

  void operate(SessionDraw& draw) {
    now_ns_ += draw.one_in(8) ? draw(100'000'000) : draw(1000);
    switch (draw(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return submit(draw);
      case 4:
        return burst(draw);
      case 5:
        return abort(draw);
      case 6:
        return pin_or_unpin(draw);
      case 7:
        return change_names(draw);
      case 8:
        return session_.faults ? submit_nonsense(draw) : submit(draw);
      case 9:
      case 10:
      case 11:
        return end_transfer(draw, session_.faults && draw.one_in(5));
      default:
        return advance(draw);
    }
  }

  static std::string name(int64_t index) { return fmt::format("adapter{}", index); }
  std::string any_name(SessionDraw& draw) const {
    // Some adapters are popular.
    const int64_t index = draw(session_.num_names);
    return name(draw.one_in(2) ? index : std::min(index, draw(session_.num_names)));
  }

  // --- requests -----------------------------------------------------------------------------
  message::Submit any_request(SessionDraw& draw) {
    message::Submit m;
    m.id = next_id_++;
    m.adapter = draw.one_in(5) ? "" : any_name(draw);
    m.priority = draw.one_in(4) ? int32_t(draw.between(-1, 1)) : 0;
    const int64_t length = draw.between(1, session_.longest - 1);
    m.prompt = prompt(draw, length);
    m.max_new_tokens = uint32_t(draw.between(1, std::min<int64_t>(8, session_.longest - length)));
    if (draw.one_in(4)) m.stop_tokens = {1};
    m.prefix_cache = !draw.one_in(10);
    return m;
  }

  // Prompts begin alike: one of three texts, up to a point.
  std::vector<int32_t> prompt(SessionDraw& draw, int64_t length) const {
    const auto text = uint64_t(draw(3));
    const int64_t shared = draw(length + 1);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t common = mix(session_.seed ^ (text << 32) ^ uint64_t(i));
      const int64_t own = draw(KvExecutor::kVocabulary);
      tokens.push_back(int32_t(i < shared ? common % KvExecutor::kVocabulary : uint64_t(own)));
    }
    return tokens;
  }

  void submit(SessionDraw& draw) {
    const message::Submit m = any_request(draw);
    const bool is_registered = m.adapter.empty() || world_.uid_of(m.adapter) != kBaseUid;
    result_.counts.refusals += !is_registered;
    say(m);
  }
  void burst(SessionDraw& draw) {
    for (int64_t i = draw.between(2, 4); i > 0; --i) submit(draw);
  }

  void submit_nonsense(SessionDraw& draw) {
    message::Submit m = any_request(draw);
    switch (draw(4)) {
      case 0:
        m.adapter = "nobody";
        break;
      case 1:
        m.prompt.resize(size_t(world_.limits().max_model_len));  // and no room for an output
        m.max_new_tokens = 1;
        break;
      case 2:
        m.prompt.clear();
        break;
      default:
        if (world_.live().empty()) return;
        m.id = world_.live().begin()->first;
        break;
    }
    ++result_.counts.refusals;
    say(m);
  }

  void abort(SessionDraw& draw) {
    if (next_id_ == 0) return;
    const uint64_t id = next_id_ - 1 - uint64_t(draw(std::min<int64_t>(int64_t(next_id_), 8)));
    const World::Request* const r = world_.request(id);
    result_.counts.aborts_in_flight += r != nullptr && r->num_in_flight > 0;
    for (int64_t times = draw.between(1, 2); times > 0; --times) say(message::Abort{id});
  }

  // --- adapters -----------------------------------------------------------------------------
  void pin_or_unpin(SessionDraw& draw) {
    if (!world_.claims().pins) return;
    const std::string which = draw.one_in(10) ? "nobody" : any_name(draw);
    if (draw.one_in(2)) {
      result_.counts.pins += say(message::Pin{which}).status == Status::ok;
    } else {
      say(message::Unpin{which});
    }
  }

  void change_names(SessionDraw& draw) {
    const std::string which = any_name(draw);
    const bool unloads = world_.claims().unloads;
    const Uid uid = world_.uid_of(which);
    const bool is_used = uid != kBaseUid && world_.num_live_of(uid) > 0;
    if (unloads && draw.one_in(2)) {
      say(message::Unload{which, draw.one_in(3)});
      result_.counts.unloads_in_use += is_used;
      if (draw.one_in(3)) return;  // the name stays free for a while
    }
    const bool replaces = unloads && draw.one_in(2);
    result_.counts.names_reused += unloads;
    say(message::Register{which, replaces});
  }

  // A load or a copy ends, if one is on its way.
  void end_transfer(SessionDraw& draw, bool fails) {
    const bool copies = !copies_.empty() && (loads_.empty() || draw.one_in(2));
    if (copies) {
      const auto copy = copies_.begin() + draw(int64_t(copies_.size()));
      const auto [uid, slot] = *copy;
      copies_.erase(copy);
      executor_.end_copy(slot, uid);
      say(message::CopyDone{uid, slot});
    } else if (!loads_.empty()) {
      const auto load = loads_.begin() + draw(int64_t(loads_.size()));
      const Uid uid = *load;
      loads_.erase(load);
      result_.counts.failed_loads += fails;
      say(message::LoadDone{uid, !fails});
    }
  }

  // --- steps --------------------------------------------------------------------------------
  void advance(SessionDraw& draw) {
    if (world_.steps().empty()) {
      plan();
    } else if (!world_.steps().back().started) {
      end_transfer(draw, false);
    } else if (world_.steps().size() == 1 && may_plan_ahead() && draw.one_in(2)) {
      plan();
    } else {
      commit();
    }
  }
  bool may_plan_ahead() const { return session_.ahead && world_.claims().plan_ahead; }

  // Does the reply say anything?
  bool plan() {
    const bool is_ahead = !world_.steps().empty();
    const Reply reply = say(message::Plan{num_steps_ + 1});
    result_.counts.steps_ahead += is_ahead && !reply.rows.empty();
    return !reply.rows.empty() || !reply.events.empty();
  }

  void commit() {
    const World::Step& step = world_.steps().front();
    message::Commit m{.step = step.number, .sampled = {}};
    for (const KvExecutor::Sampled& s : executor_.run(step, world_.requests())) {
      judge_tokens(step, s);
      m.sampled.push_back({step.rows[s.row].id, s.token});
    }
    say(std::move(m));
  }

  // What was sampled is a function of the request alone.
  void judge_tokens(const World::Step& step, const KvExecutor::Sampled& s) {
    const World::Request& r = world_.requests()[step.requests[s.row]];
    const Row& row = step.rows[s.row];
    if (s.token == kNoToken || !r.live || r.aborted) return;
    if (s.state == KvExecutor::state_alone(r.uid, r.tokens)) return;
    const int64_t p = executor_.first_wrong_position(row, r);
    throw Objection{
        "tokens", fmt::format("request {} samples another token than alone: position {} in block "
                              "{} was computed with other weights, tokens or context",
                              row.id, p, p < 0 ? 0 : row.blocks[size_t(p / session_.block_size)])};
  }

  // --- the end ------------------------------------------------------------------------------
  void end() {
    SessionDraw draw(session_.seed, kDrawsEnd);
    drain(draw, "progress");
    bring_pinned(draw);
    unload_everything(draw);
    ask([&](Judge& j) { return j.at_end(world_); });
    fill_all_blocks(draw);
  }

  // Every live request ends, and every transfer. While nothing ends, steps go by: no more than the
  // tokens of all requests, four times over for what is preempted and computed again.
  void drain(SessionDraw& draw, const char* judge) {
    int num_idle = 0;
    int64_t num_moves = 0;
    last_end_step_ = num_steps_;
    const int64_t most_steps = 4 * num_tokens_to_come() + 100;
    while (!world_.live().empty() || !world_.steps().empty()) {
      if (num_steps_ - last_end_step_ > most_steps) {
        throw Objection{judge, fmt::format("{} requests live, and none ended in {} steps",
                                           world_.live().size(), most_steps)};
      }
      const auto before = what_drains();
      const bool is_busy = step_drain(draw);
      num_moves = what_drains() == before ? num_moves + 1 : 0;
      if (num_moves > most_moves()) {
        throw Objection{judge, fmt::format("{} requests wait, and adapters come and go without a "
                                           "step: none stays until its request runs",
                                           world_.live().size())};
      }
      if (is_busy) {
        num_idle = 0;
      } else if (++num_idle == kIdlePlans) {
        throw Objection{judge, fmt::format("{} requests wait, nothing runs and nothing is on its "
                                           "way",
                                           world_.live().size())};
      } else {
        now_ns_ += kIdleNs;
      }
    }
    end_transfers(draw, judge);
  }

  void end_transfers(SessionDraw& draw, const char* judge) {
    for (int64_t i = 0; !loads_.empty() || !copies_.empty(); ++i) {
      if (i > most_moves()) throw Objection{judge, "transfers go on for ever, for nobody"};
      end_transfer(draw, false);
    }
  }

  // An adapter takes a few to come to the GPU, and all of them may have to.
  int64_t most_moves() const { return kMostMoves + 8 * int64_t(world_.adapters().size()); }
  // Changes with every step that is planned or ends, and with the end of every request.
  std::array<size_t, 3> what_drains() const {
    return {size_t(num_steps_), world_.steps().size(), world_.live().size()};
  }

  bool step_drain(SessionDraw& draw) {
    const bool is_moving = !loads_.empty() || !copies_.empty();
    if (is_moving && draw.one_in(2)) {
      end_transfer(draw, false);
      return true;
    }
    if (world_.steps().empty()) return plan() || is_moving;
    if (!world_.steps().front().started) {
      if (!is_moving) {
        throw Objection{"progress",
                        fmt::format("step {} waits for adapters, and none is on its way",
                                    world_.steps().front().number)};
      }
      end_transfer(draw, false);
    } else {
      advance(draw);
    }
    return true;
  }

  int64_t num_tokens_to_come() const {
    int64_t num_tokens = 0;
    for (const auto& [id, serial] : world_.live()) {
      const World::Request& r = world_.requests()[serial];
      num_tokens += r.num_prompt + r.max_new_tokens;
    }
    return num_tokens;
  }

  // Nothing runs any more, so whoever is pinned has come to the GPU, or will.
  void bring_pinned(SessionDraw& draw) {
    for (const auto& [uid, a] : world_.adapters()) {
      for (int64_t i = 0; a.pinned && world_.ready_slot_of(uid) == kNoSlot; ++i) {
        if ((loads_.empty() && copies_.empty() && !plan()) || i > most_moves()) {
          throw Objection{"pins", fmt::format("uid {} is pinned, and never comes to the GPU", uid)};
        }
        end_transfer(draw, false);
      }
    }
  }

  void unload_everything(SessionDraw& draw) {
    if (!world_.claims().unloads) return;
    const auto names = world_.names();
    for (const auto& [which, uid] : names) say(message::Unload{which, false});
    end_transfers(draw, "progress");
    plan();
  }

  // If a block was lost, a request that needs all of them never runs.
  void fill_all_blocks(SessionDraw& draw) {
    const Limits& l = world_.limits();
    message::Submit m;
    m.id = next_id_++;
    for (uint32_t i = 0; i < (l.num_blocks - 1) * l.block_size; ++i) {
      m.prompt.push_back(int32_t(draw(KvExecutor::kVocabulary)));
    }
    say(std::move(m));
    drain(draw, "leaks");
    ++result_.counts.full_pools;
  }

  // Everything is said again. The answers are the same.
  void repeat() {
    std::vector<Message> said = std::move(said_);
    said_.clear();
    for (size_t i = 0; i < said.size(); ++i) {
      said_.push_back(said[i]);
      answer_.reset();
      const Reply reply = scheduler_.exchange(said[i]);
      answer_ = reply;
      if (i == 0) continue;
      const std::string before = to_json(replies_[i - 1], said[i]);
      if (same_replies(reply, replies_[i - 1])) continue;
      throw Objection{"repeatable", fmt::format("the same messages again, and another reply: {}",
                                                one_line(before))};
    }
  }
  static bool same_replies(const Reply& a, const Reply& b) {
    return a.status == b.status && a.uid == b.uid && a.events == b.events && a.rows == b.rows &&
           a.wait_for == b.wait_for;
  }

  // --- counts -------------------------------------------------------------------------------
  void count(const Event& e) {
    SessionCounts& c = result_.counts;
    c.preemptions += e.kind == Event::Kind::preempt;
    c.evictions += e.kind == Event::Kind::evict;
    c.copies += e.kind == Event::Kind::copy;
  }
  void count(const Reply& reply) {
    SessionCounts& c = result_.counts;
    c.steps += !reply.rows.empty();
    for (const Row& row : reply.rows) {
      ++c.rows;
      c.tokens += row.num_tokens;
      c.prefix_hits += !world_.request(row.id)->has_table && row.start > 0;
      c.chunks += !row.samples;
    }
  }

  SchedulerUnderTest& scheduler_;
  Session session_;
  SessionOptions options_;
  World world_;
  KvExecutor executor_;
  std::vector<std::unique_ptr<Judge>> judges_;
  SessionResult result_;
  std::vector<Message> said_;
  std::vector<Reply> replies_;  // to said_, without hello's
  std::optional<Reply> answer_;
  std::deque<std::string> transcript_;
  std::vector<Uid> loads_;                       // on their way
  std::vector<std::pair<Uid, int32_t>> copies_;  // with their slots
  int32_t op_ = 0;
  int64_t now_ns_ = 0;
  int64_t num_steps_ = 0, last_end_step_ = 0;
  uint64_t next_id_ = 0;
};

}  // namespace

void SessionCounts::add(const SessionCounts& other) {
  for (const auto field :
       {&SessionCounts::exchanges, &SessionCounts::steps, &SessionCounts::rows,
        &SessionCounts::tokens, &SessionCounts::steps_ahead, &SessionCounts::prefix_hits,
        &SessionCounts::chunks, &SessionCounts::preemptions, &SessionCounts::evictions,
        &SessionCounts::copies, &SessionCounts::failed_loads, &SessionCounts::aborts_in_flight,
        &SessionCounts::unloads_in_use, &SessionCounts::pins, &SessionCounts::names_reused,
        &SessionCounts::refusals, &SessionCounts::full_pools}) {
    this->*field += other.*field;
  }
}

SessionResult run_session(SchedulerUnderTest& scheduler, const Session& session,
                          const SessionOptions& options) {
  return Driver(scheduler, session, options).run();
}

}  // namespace loratory::check
