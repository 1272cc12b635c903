#include "check/schedulers/json_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/json_fields.hpp"
#include "reference/base/wording.hpp"

namespace loratory::check {
namespace {

using Json = nlohmann::ordered_json;
using nlohmann::json;

constexpr int64_t kMostId = (int64_t{1} << 53) - 1;  // what every JSON library keeps
constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();

constexpr std::array kOps = {"hello", "register",  "unload",    "pin",  "unpin", "submit",
                             "abort", "load_done", "copy_done", "plan", "commit"};
constexpr std::array kStatuses = {"ok", "exists", "unknown", "busy", "refused"};
constexpr std::array kReasons = {"stop", "length", "abort", "error"};
constexpr std::array kEvents = {"load",    "copy",   "evict",   "give_up",
                                "preempt", "finish", "unloaded"};

// The fields of structs that are plain: their names stand here once, for both directions.
template <typename Limits, typename Field>
void each_limit(Limits& limits, Field&& field) {
  field("max_loras", limits.max_loras);
  field("max_cpu_loras", limits.max_cpu_loras);
  field("num_load_workers", limits.num_load_workers);
  field("block_size", limits.block_size);
  field("num_blocks", limits.num_blocks);
  field("max_num_batched_tokens", limits.max_num_batched_tokens);
  field("max_num_seqs", limits.max_num_seqs);
  field("max_model_len", limits.max_model_len);
  field("max_adapters", limits.max_adapters);
  field("max_requests", limits.max_requests);
}

template <typename Claims, typename Field>
void each_claim(Claims& claims, Field&& field) {
  field("loads", claims.loads);
  field("prefix_cache", claims.prefix_cache);
  field("chunked_prefill", claims.chunked_prefill);
  field("preemption", claims.preemption);
  field("pins", claims.pins);
  field("unloads", claims.unloads);
  field("generations", claims.generations);
  field("waits", claims.waits);
  field("plan_ahead", claims.plan_ahead);
  field("deterministic", claims.deterministic);
}

// --- to text --------------------------------------------------------------------------------

Json name_or_null(const std::string& name) { return name.empty() ? Json() : Json(name); }

struct MessageWriter {
  Json& out;

  void operator()(const message::Hello& m) const {
    out["protocol"] = kSchedulerProtocol;
    Json& limits = out["limits"];
    each_limit(m.limits, [&](const char* key, auto value) { limits[key] = value; });
  }
  void operator()(const message::Register& m) const {
    out["name"] = m.name;
    out["replace"] = m.replace;
  }
  void operator()(const message::Unload& m) const {
    out["name"] = m.name;
    out["abort_requests"] = m.abort_requests;
  }
  void operator()(const message::Pin& m) const { out["name"] = m.name; }
  void operator()(const message::Unpin& m) const { out["name"] = m.name; }
  void operator()(const message::Submit& m) const {
    out["id"] = m.id;
    out["adapter"] = name_or_null(m.adapter);
    out["priority"] = m.priority;
    out["prompt"] = m.prompt;
    out["max_new_tokens"] = m.max_new_tokens;
    out["stop_tokens"] = m.stop_tokens;
    out["prefix_cache"] = m.prefix_cache;
  }
  void operator()(const message::Abort& m) const { out["id"] = m.id; }
  void operator()(const message::LoadDone& m) const {
    out["uid"] = m.uid;
    out["ok"] = m.ok;
  }
  void operator()(const message::CopyDone& m) const {
    out["uid"] = m.uid;
    out["slot"] = m.slot;
  }
  void operator()(const message::Plan& m) const { out["step"] = m.step; }
  void operator()(const message::Commit& m) const {
    out["step"] = m.step;
    Json& sampled = out["sampled"] = Json::array();
    for (const message::Sampled& s : m.sampled)
      sampled.push_back({{"id", s.id}, {"token", s.token}});
  }
};

Json json_of(const Event& e) {
  using Kind = Event::Kind;
  Json out;
  out["event"] = word_of(e.kind);
  if (e.kind == Kind::preempt || e.kind == Kind::finish) {
    out["id"] = e.id;
  } else {
    out["uid"] = e.uid;
  }
  if (e.kind == Kind::copy || e.kind == Kind::evict) out["slot"] = e.slot;
  if (e.kind == Kind::copy) out["generation"] = e.generation;
  if (e.kind == Kind::evict) out["from_cpu"] = e.from_cpu;
  if (e.kind == Kind::finish) {
    out["reason"] = word_of(e.reason);
    out["num_generated"] = e.num_generated;
  }
  return out;
}

Json json_of(const Row& r) {
  Json out;
  out["id"] = r.id;
  out["uid"] = r.uid;
  out["slot"] = r.slot;
  out["generation"] = r.generation;
  out["start"] = r.start;
  out["num_tokens"] = r.num_tokens;
  out["samples"] = r.samples;
  out["blocks"] = r.blocks;
  return out;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

const char* word_of(const Message& message) { return kOps[message.what.index()]; }
const char* word_of(Event::Kind kind) { return kEvents[size_t(kind)]; }
const char* word_of(FinishReason reason) { return kReasons[size_t(reason)]; }
const char* word_of(Status status) { return kStatuses[size_t(status)]; }

std::string one_line(std::string_view text, size_t longest) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  const std::string line = printable(text.substr(0, longest));
  return text.size() > longest ? fmt::format("{}... ({} bytes)", line, text.size()) : line;
}

std::string error_json(std::string_view what) {
  return fmt::format("{{\"error\":{}}}", json_string(what));
}

std::string to_json(const Message& message) {
  Json out;
  out["op"] = word_of(message);
  out["time_ns"] = message.time_ns;
  std::visit(MessageWriter{out}, message.what);
  return dump(out);
}

std::string to_json(const Reply& reply, const Message& asked) {
  Json out;
  if (asked.get_if<message::Hello>() != nullptr) {
    out["protocol"] = kSchedulerProtocol;
    out["name"] = reply.name;
    Json& claims = out["claims"];
    each_claim(reply.claims, [&](const char* key, bool value) { claims[key] = value; });
    if (reply.claims.max_overtakes >= 0) claims["max_overtakes"] = reply.claims.max_overtakes;
    return dump(out);
  }
  if (asked.get_if<message::Plan>() != nullptr) {
    Json& rows = out["rows"] = Json::array();
    for (const Row& row : reply.rows) rows.push_back(json_of(row));
    out["wait_for"] = reply.wait_for;
  } else {
    out["status"] = word_of(reply.status);
  }
  if (asked.get_if<message::Register>() != nullptr) out["uid"] = reply.uid;
  Json& events = out["events"] = Json::array();
  for (const Event& event : reply.events) events.push_back(json_of(event));
  return dump(out);
}

namespace {

// --- from text ------------------------------------------------------------------------------

// The fields of one object. Every error is a DoorError that names the key.
class Fields final : public JsonFields {
 public:
  Fields(const json& object, const std::string& place)
      : JsonFields(object, place), object_(object) {}

  void allow(const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      fail(shown(key), "is no key here", did_you_mean(key, known, "leave it out"));
    }
  }
  const json& at(const char* key) const {
    const json* const value = find(key);
    if (value == nullptr) fail(key, "is missing");
    return *value;
  }
  template <typename T>
  T integer_at(const char* key, int64_t low, int64_t high) const {
    return T(integer(key, at(key), low, high));
  }
  template <typename T>
  T integer_or(const char* key, T fallback, int64_t low, int64_t high) const {
    return find(key) == nullptr ? fallback : T(integer(key, *find(key), low, high));
  }
  uint64_t id_at(const char* key) const { return integer_at<uint64_t>(key, 0, kMostId); }
  Uid uid_at(const char* key) const { return integer_at<Uid>(key, 1, kMostId); }
  std::string name_at(const char* key) const {
    const std::string name = text_or(key, "");
    if (name.empty()) fail(key, has(key) ? "is empty" : "is missing");
    return name;
  }
  const json& list(const char* key) const {
    static const json kEmpty = json::array();
    if (find(key) == nullptr) return kEmpty;
    if (!find(key)->is_array()) fail(key, "must be a list");
    return *find(key);
  }
  template <typename T>
  std::vector<T> integers(const char* key, int64_t low, int64_t high) const {
    std::vector<T> out;
    for (const json& value : list(key)) {
      const std::string place = fmt::format("{}[{}]", key, out.size());
      out.push_back(T(integer(place.c_str(), value, low, high)));
    }
    return out;
  }
  template <typename Enum, size_t N>
  Enum word(const char* key, const std::array<const char*, N>& words) const {
    const std::string text = name_at(key);
    const auto found = std::ranges::find(words, text);
    if (found == words.end()) {
      fail(key, fmt::format("{} is none of {}", shown(text), fmt::join(words, ", ")));
    }
    return Enum(found - words.begin());
  }
  /// The members of a list, each of which is an object.
  template <typename Read>
  auto objects(const char* key, const Read& read) const {
    std::vector<decltype(read(*this))> out;
    for (const json& value : list(key)) {
      const std::string place = fmt::format("{}: {}[{}]", file(), key, out.size());
      if (!value.is_object()) throw DoorError(fmt::format("{}: must be an object", place));
      out.push_back(read(Fields(value, place)));
    }
    return out;
  }

 private:
  void throw_error(std::string_view key, std::string_view rule,
                   std::string_view remedy) const override {
    throw DoorError(InputError(fmt::format("{}: {}", file(), key), rule, remedy).what());
  }
  const json& object_;
};

constexpr int64_t kMostBlocks = int64_t{1} << 24;

void require_protocol(const Fields& hello) {
  const auto protocol = hello.integer_or<int32_t>("protocol", kSchedulerProtocol, 1, kMost32);
  if (protocol == kSchedulerProtocol) return;
  hello.fail("protocol",
             fmt::format("is {}, and this end speaks {}", protocol, kSchedulerProtocol));
}

Limits read_limits(const Fields& hello) {
  const json& value = hello.at("limits");
  if (!value.is_object()) hello.fail("limits", "must be an object");
  const Fields fields(value, "limits");
  Limits limits;
  each_limit(limits, [&](const char* key, auto& field) {
    field = fields.integer_or<std::decay_t<decltype(field)>>(key, field, 1, kMostBlocks);
  });
  return limits;
}

message::Submit read_submit(const Fields& f) {
  message::Submit m;
  m.id = f.id_at("id");
  m.adapter = f.text_or("adapter", "");
  m.priority = f.integer_or<int32_t>("priority", 0, -kMost32, kMost32);
  m.prompt = f.integers<int32_t>("prompt", 0, kMost32);
  m.max_new_tokens = f.integer_at<uint32_t>("max_new_tokens", 1, kMost32);
  m.stop_tokens = f.integers<int32_t>("stop_tokens", 0, kMost32);
  m.prefix_cache = f.flag_or("prefix_cache", true);
  return m;
}

message::Commit read_commit(const Fields& f) {
  message::Commit m{.step = f.integer_at<int64_t>("step", 1, kMostId), .sampled = {}};
  m.sampled = f.objects("sampled", [](const Fields& s) {
    return message::Sampled{s.id_at("id"), s.integer_at<int32_t>("token", kNoToken, kMost32)};
  });
  return m;
}

message::Any read_message(const Fields& f) {
  switch (f.word<size_t>("op", kOps)) {
    case 0:
      require_protocol(f);
      return message::Hello{read_limits(f)};
    case 1:
      return message::Register{f.name_at("name"), f.flag_or("replace", false)};
    case 2:
      return message::Unload{f.name_at("name"), f.flag_or("abort_requests", false)};
    case 3:
      return message::Pin{f.name_at("name")};
    case 4:
      return message::Unpin{f.name_at("name")};
    case 5:
      return read_submit(f);
    case 6:
      return message::Abort{f.id_at("id")};
    case 7:
      return message::LoadDone{f.uid_at("uid"), f.flag_or("ok", true)};
    case 8:
      return message::CopyDone{f.uid_at("uid"), f.integer_at<int32_t>("slot", 0, kMost32)};
    case 9:
      return message::Plan{f.integer_at<int64_t>("step", 1, kMostId)};
    default:
      return read_commit(f);
  }
}

Event read_event(const Fields& f) {
  using Kind = Event::Kind;
  Event e;
  e.kind = f.word<Kind>("event", kEvents);
  const bool is_request = e.kind == Kind::preempt || e.kind == Kind::finish;
  std::vector<std::string> keys = {"event", is_request ? "id" : "uid"};
  if (is_request) {
    e.id = f.id_at("id");
  } else {
    e.uid = f.uid_at("uid");
  }
  if (e.kind == Kind::copy) {
    keys.insert(keys.end(), {"slot", "generation"});
    e.slot = f.integer_at<int32_t>("slot", 0, kMost32);
    e.generation = f.integer_or<uint64_t>("generation", 0, 0, kMostId);
  } else if (e.kind == Kind::evict) {
    keys.insert(keys.end(), {"slot", "from_cpu"});
    e.slot = f.integer_or<int32_t>("slot", kNoSlot, kNoSlot, kMost32);
    e.from_cpu = f.flag_or("from_cpu", false);
  } else if (e.kind == Kind::finish) {
    keys.insert(keys.end(), {"reason", "num_generated"});
    e.reason = f.word<FinishReason>("reason", kReasons);
    e.num_generated = f.integer_at<uint32_t>("num_generated", 0, kMost32);
  }
  f.allow(keys);
  return e;
}

Row read_row(const Fields& f) {
  f.allow({"id", "uid", "slot", "generation", "start", "num_tokens", "samples", "blocks"});
  Row r;
  r.id = f.id_at("id");
  r.uid = f.id_at("uid");
  r.slot = f.integer_or<int32_t>("slot", kNoSlot, kNoSlot, kMost32);
  r.generation = f.integer_or<uint64_t>("generation", 0, 0, kMostId);
  r.start = f.integer_at<uint32_t>("start", 0, kMost32);
  r.num_tokens = f.integer_at<uint32_t>("num_tokens", 1, kMost32);
  f.at("samples");
  r.samples = f.flag_or("samples", false);
  f.at("blocks");
  r.blocks = f.integers<uint32_t>("blocks", 0, kMost32);
  return r;
}

Claims read_claims(const Fields& hello) {
  const json& value = hello.at("claims");
  if (!value.is_object()) hello.fail("claims", "must be an object");
  const Fields fields(value, hello.file() + ": claims");
  Claims claims;
  std::vector<std::string> known = {"max_overtakes"};
  each_claim(claims, [&](const char* key, bool& claim) {
    known.emplace_back(key);
    claim = fields.flag_or(key, false);
  });
  fields.allow(known);
  claims.max_overtakes = fields.integer_or<int64_t>("max_overtakes", -1, -1, kMostId);
  return claims;
}

Reply read_hello_reply(const Fields& f) {
  f.allow({"protocol", "name", "claims"});
  f.at("protocol");
  require_protocol(f);
  Reply reply;
  reply.name = f.name_at("name");
  reply.claims = read_claims(f);
  return reply;
}

template <typename... Kinds>
bool is_one_of(const Message& message) {
  return ((message.get_if<Kinds>() != nullptr) || ...);
}

// The table of messages in docs/check_scheduler.md.
bool may_answer(Status status, const Message& asked) {
  using namespace message;
  switch (status) {
    case Status::ok:
      return true;
    case Status::exists:
      return is_one_of<Register>(asked);
    case Status::unknown:
      return is_one_of<Unload, Pin, Unpin, Submit, Abort>(asked);
    case Status::busy:
      return is_one_of<Pin>(asked);
    case Status::refused:
      return is_one_of<Submit>(asked);
  }
  return false;
}

Reply read_reply(const Fields& f, const Message& asked) {
  if (f.has("error")) f.fail("error", fmt::format("says {}", shown(f.text_or("error", ""))));
  if (asked.get_if<message::Hello>() != nullptr) return read_hello_reply(f);
  const bool is_plan = asked.get_if<message::Plan>() != nullptr;
  const bool is_register = asked.get_if<message::Register>() != nullptr;
  std::vector<std::string> known = {"events"};
  if (is_plan) known.insert(known.end(), {"rows", "wait_for"});
  if (!is_plan) known.emplace_back("status");
  if (is_register) known.emplace_back("uid");
  f.allow(known);
  Reply reply;
  if (f.has("status")) reply.status = f.word<Status>("status", kStatuses);
  if (!may_answer(reply.status, asked)) {
    f.fail("status", fmt::format("'{}' is no answer to {}", word_of(reply.status), word_of(asked)));
  }
  const bool is_new = is_register && reply.status == Status::ok;
  if (is_new) reply.uid = f.uid_at("uid");
  reply.events = f.objects("events", read_event);
  reply.rows = f.objects("rows", read_row);
  reply.wait_for = f.integers<Uid>("wait_for", 1, kMostId);
  return reply;
}

// Which of two values was meant, nobody knows. The JSON library keeps one of them.
json parse_without_twins(std::string_view text, const std::string& place) {
  std::map<int, std::set<std::string>> keys;  // of the objects that are open, by depth
  const auto note = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) keys[depth + 1].clear();
    if (event == json::parse_event_t::key && !keys[depth].insert(value.get<std::string>()).second) {
      throw DoorError(fmt::format("{}: {}: stands twice in one object", place,
                                  shown(value.get<std::string>())));
    }
    return true;
  };
  return json::parse(text, note);
}

json parse_object(std::string_view text, const std::string& place) {
  try {
    parse_json_object(text, place, kLongestLine);  // else it says why not
    return parse_without_twins(text, place);
  } catch (const InputError& error) {
    throw DoorError(error.what());
  }
}

}  // namespace

Message parse_message(std::string_view text) {
  try {
    const json object = parse_object(text, "message");
    const Fields fields(object, "message");
    Message message{.time_ns = fields.integer_or<int64_t>("time_ns", 0, 0, INT64_MAX / 2),
                    .what = read_message(fields)};
    return message;
  } catch (const DoorError& error) {
    throw DoorError(fmt::format("{}; it was: {}", one_line(error.what()), one_line(text)));
  }
}

Reply parse_reply(std::string_view text, const Message& asked) {
  const std::string place = fmt::format("reply to {}", word_of(asked));
  try {
    const json object = parse_object(text, place);
    return read_reply(Fields(object, place), asked);
  } catch (const DoorError& error) {
    throw DoorError(fmt::format("{}; it was: {}", one_line(error.what()), one_line(text)));
  }
}

}  // namespace loratory::check
