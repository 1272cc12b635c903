// The request log of an SGLang server (--log-requests), as text or as JSON lines
// (--log-requests-format json). sgl-project/sglang, python/sglang/srt/utils/request_logger.py,
// before 0.5.7 in managers/tokenizer_manager.py:
//   [2025-03-03 17:53:04] Receive: obj=GenerateReqInput(..., rid='...', lora_path=None, ...)
//   [2025-03-03 17:53:05] Finish: obj=GenerateReqInput(...), out={..., 'meta_info':
//   {'prompt_tokens': 64,
//                         'completion_tokens': 12, 'e2e_latency': 0.43, ...}}
//   {"timestamp": "...", "event": "request.received" | "request.finished", "rid": ..., "obj":
//   {...},
//    "out": {...}}
// A request arrives with its Receive; without one, e2e_latency before its Finish.
// --log-requests-level 0 and 1 leave out lora_path.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/logs/json_entries.hpp"
#include "scheduler_sim/trace/logs/log_time.hpp"
#include "scheduler_sim/trace/logs/python_text.hpp"
#include "scheduler_sim/trace/numbers.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kReceive = "Receive: obj=", kFinish = "Finish: obj=";
constexpr std::string_view kGenerate = "GenerateReqInput";

// One line of the log, whichever way it was written.
struct Event {
  bool is_finish = false;
  int64_t time_ns = 0;
  std::vector<std::string> ids{};  // a batch has several
  std::string lora{};
  bool has_lora_field = false;
  std::optional<uint32_t> prompt_tokens{}, output_tokens{};
  double e2e_latency_s = 0;
};

class SglangLog {
 public:
  explicit SglangLog(LogSink& sink) : sink_(sink) {}

  void add(const Event& event, uint64_t line) {
    const bool lacks_id = event.ids.empty() || std::ranges::count(event.ids, "") > 0;
    if (lacks_id) bad_row(1, "a request without its rid", "give the log as SGLang writes it");
    if (!event.has_lora_field) {
      sink_.note("no adapters: SGLang logs lora_path from --log-requests-level 2 on");
    }
    for (const std::string& id : event.ids) {
      const auto [place, is_new] = place_of_.try_emplace(id, requests_.size());
      if (is_new) requests_.push_back(first_seen(event, id, line));
      if (!event.is_finish) continue;
      LoggedRequest& request = requests_[place->second];
      request.prompt_tokens = event.prompt_tokens;
      request.output_tokens = event.output_tokens;
      place_of_.erase(place);  // an id may be used again
    }
  }

  void finish() {
    for (LoggedRequest& request : requests_) sink_.add(std::move(request));
  }

 private:
  static LoggedRequest first_seen(const Event& event, const std::string& id, uint64_t line) {
    LoggedRequest request;
    request.line = line;
    request.id = id;
    request.lora = event.lora;
    request.arrival_ns =
        event.time_ns - (event.is_finish ? std::llround(event.e2e_latency_s * 1e9) : 0);
    return request;
  }

  LogSink& sink_;
  std::vector<LoggedRequest> requests_;
  std::unordered_map<std::string, size_t> place_of_;  // of those that did not finish yet
};

// --- as text

std::vector<std::string> ids_of(std::string_view rid) {
  if (auto one = python_string(rid)) return {*one};
  std::vector<std::string> ids;
  std::string_view rest = python_inside(rid).value_or("");
  while (!rest.empty()) {
    const auto end = python_value_end(rest);
    if (!end) return {};
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    if (auto id = python_string(rest.substr(0, *python_value_end(rest)))) ids.push_back(*id);
    const size_t comma = *python_value_end(rest);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return ids;
}

std::optional<uint32_t> count_of(std::string_view fields, std::string_view key) {
  const auto value = python_field(fields, key);
  int64_t count = 0;
  if (!value || parse_integer(*value, count) != Parse::good) return std::nullopt;
  if (count < 0 || count > kMaxCount)
    bad_row(1, std::string(key) + " is out of range", "check the log");
  return uint32_t(count);
}

// Latencies are finite, not negative and below a day; anything else is as good as none.
double latency(double seconds) { return seconds >= 0 && seconds < 86'400 ? seconds : 0; }

void read_out(std::string_view out, Event& event) {
  const auto inside = python_inside(out);
  const auto info = inside ? python_field(*inside, "meta_info") : std::nullopt;
  const auto fields = info ? python_inside(*info) : std::nullopt;
  if (!fields) return;
  event.prompt_tokens = count_of(*fields, "prompt_tokens");
  event.output_tokens = count_of(*fields, "completion_tokens");
  double seconds = 0;
  const auto e2e = python_field(*fields, "e2e_latency");
  if (e2e && parse_double(*e2e, seconds) == Parse::good) event.e2e_latency_s = latency(seconds);
}

std::optional<Event> text_event(std::string_view line) {
  const size_t receive = line.find(kReceive), finish = line.find(kFinish);
  const size_t at = std::min(receive, finish);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view fields =
      line.substr(at + std::string_view("Receive: ").size() - (finish == at ? 1 : 0));
  const auto obj = python_field(fields, "obj");
  if (!obj) bad_python(1);
  if (!obj->starts_with(kGenerate)) return std::nullopt;  // an embedding
  check_utf8(line);
  const auto inside = python_inside(*obj);
  const auto rid = inside ? python_field(*inside, "rid") : std::nullopt;
  if (!rid) bad_python(1);
  const auto time = log_time(line.substr(0, at));
  if (!time || !time->has_year)
    bad_row(1, "a line without its time", "give the log as SGLang writes it");
  Event event{.is_finish = finish == at, .time_ns = time->unix_ns, .ids = ids_of(*rid)};
  const auto lora = python_field(*inside, "lora_path");
  event.has_lora_field = lora.has_value();
  if (lora) event.lora = python_string(*lora).value_or("");
  if (const auto out = python_field(fields, "out")) read_out(*out, event);
  return event;
}

// --- as JSON

std::vector<std::string> ids_of(const std::optional<JsonElement>& rid) {
  simdjson::dom::array several;
  if (!rid || rid->get(several) != simdjson::SUCCESS) return {text_or_empty(rid)};
  std::vector<std::string> ids;
  for (const JsonElement id : several) ids.push_back(text_or_empty(id));
  return ids;
}

std::optional<JsonObject> object_at(const JsonObject& object, std::string_view key) {
  JsonObject inner;
  const auto value = member(object, key);
  if (!value || value->get(inner) != simdjson::SUCCESS) return std::nullopt;
  return inner;
}

std::optional<Event> json_event(const JsonObject& entry) {
  const std::string kind = text_or_empty(member(entry, "event"));
  if (kind != "request.received" && kind != "request.finished") return std::nullopt;
  Event event;
  event.is_finish = kind == "request.finished";
  if (parse_timestamp(text_or_empty(member(entry, "timestamp")), event.time_ns) != Parse::good) {
    bad_row(1, "timestamp is not a time", "give the log as SGLang writes it");
  }
  event.ids = ids_of(member(entry, "rid"));
  const auto obj = object_at(entry, "obj");
  JsonElement lora;
  event.has_lora_field = obj && obj->at_key("lora_path").get(lora) == simdjson::SUCCESS;
  if (event.has_lora_field) event.lora = text_or_empty(member(*obj, "lora_path"));
  const auto out = object_at(entry, "out");
  const auto info = out ? object_at(*out, "meta_info") : std::nullopt;
  if (!info) return event;
  event.prompt_tokens = token_count(member(*info, "prompt_tokens"), "prompt_tokens");
  event.output_tokens = token_count(member(*info, "completion_tokens"), "completion_tokens");
  double seconds = 0;
  const auto e2e = member(*info, "e2e_latency");
  if (e2e && e2e->get(seconds) == simdjson::SUCCESS) event.e2e_latency_s = latency(seconds);
  return event;
}

bool is_json_event(std::string_view line) {
  return line.starts_with('{') && line.find("\"event\"") != std::string_view::npos;
}

void read_sglang_log(ByteSource& text, LogSink& sink) {
  LineReader lines(text);
  SglangLog log(sink);
  simdjson::dom::parser parser;
  Line line;
  while (lines.next(line)) {
    if (is_json_event(line.text)) {
      visit_json_line(parser, line.text, line.number, sink,
                      [&](const JsonObject& entry, uint64_t number) {
                        if (const auto event = json_event(entry)) log.add(*event, number);
                      });
      continue;
    }
    try {
      if (line.is_too_long) bad_row(1, "a line of over 16 MiB", "log with --log-requests-level 2");
      if (const auto event = text_event(line.text)) log.add(*event, line.number);
    } catch (const BadRow& bad) {
      sink.refuse(line.number, bad);
    }
  }
  log.finish();
}

bool is_sglang_log(std::string_view head) {
  const auto has = [&](std::string_view word) { return head.find(word) != std::string_view::npos; };
  return has(kReceive) || has(kFinish) || has("\"request.received\"") ||
         has("\"request.finished\"");
}

}  // namespace

const LogFormat kSglangLog = {
    is_sglang_log, read_sglang_log, false,
    "they come with the Finish line of a request; give --default-prompt and "
    "--default-output for those without one"};

}  // namespace loratory::sim
