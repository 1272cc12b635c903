// Properties of reading and writing traces, and of showing what stands in them. A case is a few
// sizes and a seed; everything else comes from the seed. Prefix reuse is compared with a model that
// keeps a plain list.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdio>
#include <list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/reuse.hpp"
#include "scheduler_sim/trace/writer.hpp"

namespace loratory::sim {
namespace {

enum class Content : uint8_t { none, blocks, tokens };

struct TraceCase {
  int num_requests = 1;
  int num_adapters = 0;
  int block_tokens = 1;
  Content content = Content::none;
  uint64_t seed = 0;
};

std::ostream& operator<<(std::ostream& out, const TraceCase& c) {
  return out << "requests " << c.num_requests << " adapters " << c.num_adapters << " block_tokens "
             << c.block_tokens << " content " << int(c.content) << " seed " << c.seed;
}

// splitmix64: small, and the same everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t any() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0..bound-1
  uint64_t below(uint64_t bound) { return any() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

std::string adapter_name(Dice& dice, size_t index) {
  static const char* const kOdd[] = {"\"", "\\", "\n", "\xc3\xa9", "\x01", " ", "/"};
  std::string name = "adapter";
  if (dice.one_in(2)) name += kOdd[dice.below(std::size(kOdd))];
  return name + std::to_string(index);
}

void add_content(const TraceCase& c, Dice& dice, Trace& trace, TraceRequest& request) {
  if (dice.one_in(4)) return;  // unknown content, in a trace that has some
  if (c.content == Content::blocks) {
    trace.block_tokens = uint32_t(c.block_tokens);
    request.content_begin = trace.block_ids.size();
    request.content_count = (request.prompt_tokens + trace.block_tokens - 1) / trace.block_tokens;
    const uint64_t hot = dice.below(3);
    for (uint32_t i = 0; i < request.content_count; ++i) {
      trace.block_ids.push_back(dice.one_in(8) ? dice.any() : 100 * hot + i);
    }
  } else if (c.content == Content::tokens) {
    request.content_begin = trace.token_ids.size();
    request.content_count = request.prompt_tokens;
    for (uint32_t i = 0; i < request.content_count; ++i) {
      trace.token_ids.push_back(int32_t(dice.below(1u << 31)));
    }
  }
}

void add_adapter(const TraceCase& c, Dice& dice, Trace& trace, TraceRequest& request) {
  if (c.num_adapters == 0 || dice.one_in(3)) return;
  const size_t index =
      std::min<size_t>(dice.below(uint64_t(c.num_adapters)), trace.adapters.size());
  if (index == trace.adapters.size()) {
    const uint32_t rank = dice.one_in(3) ? 0 : 1u << dice.below(8);
    trace.adapters.push_back({adapter_name(dice, index), rank});
  }
  request.adapter = AdapterIndex(index);
}

Trace make_trace(const TraceCase& c) {
  Dice dice(c.seed);
  Trace trace;
  int64_t now = 0;
  for (int i = 0; i < c.num_requests; ++i) {
    TraceRequest request;
    if (!dice.one_in(3)) now += int64_t(dice.below(dice.one_in(2) ? 3'000'000 : 1u << 30));
    request.arrival_ns = now;
    request.prompt_tokens = 1 + uint32_t(dice.below(40));
    request.output_tokens = uint32_t(dice.below(dice.one_in(9) ? 1u << 31 : 100));
    if (dice.one_in(4)) request.priority = int32_t(dice.any());
    if (dice.one_in(4)) request.session = uint32_t(dice.any());
    if (dice.one_in(4)) request.cancel_ns = now + int64_t(dice.below(1u << 30));
    if (dice.one_in(4)) {
      trace.ids.resize(size_t(i));
      trace.ids.push_back(adapter_name(dice, dice.below(9)));
    }
    add_adapter(c, dice, trace, request);
    add_content(c, dice, trace, request);
    trace.requests.push_back(request);
  }
  if (!trace.ids.empty()) trace.ids.resize(trace.requests.size());
  return trace;
}

std::string written(const Trace& trace) {
  std::ostringstream out;
  write_native(out, trace);
  return out.str();
}

void expect_same(const Trace& a, const Trace& b) {
  RC_ASSERT(a.requests.size() == b.requests.size());
  for (size_t i = 0; i < a.requests.size(); ++i) {
    const TraceRequest &x = a.requests[i], &y = b.requests[i];
    RC_ASSERT(x.arrival_ns == y.arrival_ns);
    RC_ASSERT(x.cancel_ns == y.cancel_ns);
    RC_ASSERT(x.prompt_tokens == y.prompt_tokens);
    RC_ASSERT(x.output_tokens == y.output_tokens);
    RC_ASSERT(x.adapter == y.adapter);
    RC_ASSERT(x.priority == y.priority);
    RC_ASSERT(x.session == y.session);
    RC_ASSERT(x.content_count == y.content_count);
    RC_ASSERT(x.content_count == 0 || x.content_begin == y.content_begin);
  }
  RC_ASSERT(a.adapters.size() == b.adapters.size());
  for (size_t i = 0; i < a.adapters.size(); ++i) {
    RC_ASSERT(a.adapters[i].name == b.adapters[i].name);
    RC_ASSERT(a.adapters[i].rank == b.adapters[i].rank);
  }
  RC_ASSERT(a.block_tokens == b.block_tokens);
  RC_ASSERT(a.block_ids == b.block_ids);
  RC_ASSERT(a.token_ids == b.token_ids);
  RC_ASSERT(a.ids == b.ids);
}

TraceCase trace_case() {
  TraceCase c;
  c.num_requests = *rc::gen::inRange(1, 40);
  c.num_adapters = *rc::gen::inRange(0, 6);
  c.block_tokens = *rc::gen::inRange(1, 20);
  c.content = static_cast<Content>(*rc::gen::inRange(0, 3));
  c.seed = *rc::gen::arbitrary<uint64_t>();
  RC_CLASSIFY(c.content == Content::blocks, "block ids");
  RC_CLASSIFY(c.content == Content::tokens, "token ids");
  RC_CLASSIFY(c.num_adapters > 0, "adapters");
  RC_LOG() << "REPRO: " << c << "\n";
  return c;
}

// Property: reading what was written gives the same trace, and writing that the same bytes.
RC_GTEST_PROP(TraceFiles, ReadingIsTheInverseOfWriting, ()) {
  const Trace trace = make_trace(trace_case());
  const std::string bytes = written(trace);
  const Trace again = read_trace_from(bytes, "t");
  expect_same(trace, again);
  RC_ASSERT(written(again) == bytes);
}

// Property: with one byte changed or the end cut off, reading is an InputError or a trace; under
// skip_bad_rows every row is either kept or counted.
RC_GTEST_PROP(TraceFiles, DamageIsAnErrorOrAnotherTrace, ()) {
  const TraceCase c = trace_case();
  std::string bytes = written(make_trace(c));
  const auto at = *rc::gen::inRange<size_t>(0, bytes.size());
  const bool is_cut = *rc::gen::arbitrary<bool>();
  if (is_cut) {
    bytes.resize(at);
  } else {
    bytes[at] = char(*rc::gen::inRange(0, 256));
  }
  RC_CLASSIFY(is_cut, "cut off");
  RC_LOG() << "REPRO: " << c << " at " << at << " cut " << is_cut << "\n";
  const auto num_lines = std::count(bytes.begin(), bytes.end(), '\n') +
                         (!bytes.empty() && bytes.back() != '\n' ? 1 : 0);
  ReadOptions options;
  options.format = TraceFormat::native;
  options.skip_bad_rows = true;
  try {
    const Trace trace = read_trace_from(bytes, "t", options);
    RC_ASSERT(trace.requests.size() + trace.num_rows_skipped == uint64_t(num_lines));
    RC_ASSERT(written(trace).size() > 0u);
  } catch (const InputError&) {
    RC_TAG("error");
  }
}

// The oracle as its definition reads, over a list. Blocks of two adapters are two blocks.
uint64_t model_hits(const Trace& trace, uint64_t capacity) {
  std::list<std::pair<AdapterIndex, uint64_t>> cache;  // most recent first
  uint64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    std::vector<std::pair<AdapterIndex, uint64_t>> blocks;
    for (const uint64_t id : trace.blocks_of(request)) blocks.emplace_back(request.adapter, id);
    size_t prefix = 0;
    while (prefix < blocks.size() && std::ranges::count(cache, blocks[prefix]) > 0) ++prefix;
    hits += prefix;
    for (size_t i = blocks.size(); i-- > 0;) {
      cache.remove(blocks[i]);
      cache.push_front(blocks[i]);
      if (cache.size() > capacity) cache.pop_back();
    }
  }
  return hits;
}

// Property: the linked ring gives the hits of the list, for every capacity; and more room never
// hurts (LRU is a stack algorithm).
RC_GTEST_PROP(PrefixReuse, EqualsTheListModel, ()) {
  TraceCase c = trace_case();
  c.content = Content::blocks;
  const Trace trace = make_trace(c);
  const std::vector<uint64_t> capacities = {0, 1, 2, 3, 5, 8, 13, 21, 34, kUnboundedBlocks};
  const std::vector<PrefixReuse> curve = prefix_reuse(trace, capacities);
  for (size_t i = 0; i < curve.size(); ++i) {
    RC_ASSERT(curve[i].hit_blocks == model_hits(trace, capacities[i]));
    if (i > 0)
      RC_ASSERT(curve[i].hit_blocks >= curve[i - 1].hit_blocks);  // no || inside: it is overloaded
    RC_ASSERT(curve[i].hit_tokens <= curve[i].num_tokens);
  }
}

// --- names: whatever bytes they have

// Bytes of any kind, and often what harms one of the media.
std::string hostile_text(Dice& dice, size_t num_parts) {
  static const char* const kParts[] = {"=",
                                       "-",
                                       "+",
                                       "@",
                                       ",",
                                       ";",
                                       "\"",
                                       "'",
                                       "\\",
                                       "<",
                                       "&",
                                       "{",
                                       "\n",
                                       "\r",
                                       "\t",
                                       "\x1b[2J",
                                       "\x7f",
                                       "\xc2\x9b",
                                       "\xe2\x80\xae",
                                       "\xe2\x81\xa9",
                                       "\xef\xbb\xbf",
                                       "\xe2\x80\x8b",
                                       "\xc3\xa9",
                                       "\xf0\x9f\x90\xa6",
                                       "\xed\xa0\x80",
                                       "\xc0\xaf",
                                       "\xff",
                                       "a"};
  std::string text;
  for (size_t i = 0; i < num_parts; ++i) {
    text +=
        dice.one_in(3) ? std::string(1, char(dice.any())) : kParts[dice.below(std::size(kParts))];
  }
  return text;
}

// Not by the library that the readers use.
bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

// Whether a terminal takes it for ink on one line and nothing else; by bytes, not by characters.
bool is_harmless(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto at = [&](size_t k) { return k < text.size() ? uint8_t(text[k]) : uint8_t{0}; };
    const uint8_t a = at(i), b = at(i + 1), c = at(i + 2);
    if (a < 0x20 || a == 0x7f || (a == 0xc2 && b < 0xa0)) return false;
    if (a == 0xe2 && b == 0x80 && ((c >= 0x8b && c <= 0x8f) || (c >= 0xa8 && c <= 0xae)))
      return false;
    if (a == 0xe2 && b == 0x81 && c >= 0xa0 && c <= 0xaf) return false;
    if (a == 0xef && b == 0xbb && c == 0xbf) return false;
  }
  return is_utf8(text);
}

// The cells of one record, as RFC 4180 reads them.
std::vector<std::string> csv_cells(std::string_view record) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (size_t i = 0; i < record.size(); ++i) {
    const char c = record[i];
    if (c == '"' && is_quoted && i + 1 < record.size() && record[i + 1] == '"') {
      cells.back() += record[++i];
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string without_entities(std::string text) {
  for (const auto& [from, to] :
       {std::pair{"&lt;", "<"}, std::pair{"&gt;", ">"}, std::pair{"&quot;", "\""},
        std::pair{"&#39;", "'"}, std::pair{"&#10;", "\\n"}, std::pair{"&amp;", "&"}}) {
    text = replaced(std::move(text), from, to);
  }
  return text;
}

std::string prometheus_unescaped(std::string_view label) {
  std::string text;
  for (size_t i = 0; i < label.size(); ++i) {
    RC_ASSERT(label[i] != '"' && label[i] != '\n');
    const bool is_escaped = label[i] == '\\';
    if (is_escaped) ++i;
    RC_ASSERT(i < label.size());
    text += is_escaped && label[i] == 'n' ? '\n' : label[i];
  }
  return text;
}

// Property: whatever bytes a name has, every medium shows it harmlessly and reads it back.
RC_GTEST_PROP(Names, EveryMediumReadsThemBack, ()) {
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const auto num_parts = *rc::gen::inRange<size_t>(0, 12);
  RC_LOG() << "REPRO: parts " << num_parts << " seed " << seed << "\n";
  Dice dice(seed);
  const std::string text = hostile_text(dice, num_parts);
  const std::string shown = printable(text);
  RC_CLASSIFY(!is_utf8(text), "not UTF-8");
  RC_CLASSIFY(shown != text, "spelled out");
  RC_ASSERT(is_harmless(shown));
  RC_ASSERT(printable(shown) == shown);
  RC_ASSERT(is_utf8(shown.substr(0, cut(shown, dice.below(9)).size())));

  const std::vector<std::string> cells = csv_cells("1," + csv_field(text) + ",2");
  RC_ASSERT(cells.size() == 3u);
  const bool is_formula =
      !shown.empty() && std::string_view("=+-@").find(shown[0]) != std::string::npos;
  RC_CLASSIFY(is_formula, "formula");
  RC_ASSERT(cells[1] == (is_formula ? "'" : "") + shown);
  RC_ASSERT(is_harmless(csv_field(text)));

  const std::string read = nlohmann::json::parse(json_string(text)).get<std::string>();
  if (is_utf8(text)) RC_ASSERT(read == text);
  if (!is_utf8(text)) RC_ASSERT(read.find("\xef\xbf\xbd") != std::string_view::npos);

  RC_ASSERT(printable(prometheus_unescaped(prometheus_label(text))) == shown);
  RC_ASSERT(is_harmless(prometheus_label(text)));
  const std::string html = html_text(text);
  RC_ASSERT(html.find_first_of("<>\"'") == std::string::npos);
  RC_ASSERT(is_harmless(html));
  RC_ASSERT(without_entities(html) == shown);
}

// --- logs: a trace written as another program would log it, and read back

struct LogCase {
  TraceFormat format;
  uint64_t seed;
  int num_requests;
};

int64_t second_of(const TraceRequest& request) { return request.arrival_ns / 1'000'000'000; }

// Below a day.
std::string clock_of(int64_t seconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d", int(seconds / 3600), int(seconds / 60 % 60),
                int(seconds % 60));
  return text;
}

std::string python_repr(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

// Quoted like a cell of psql's, without the care that our own outputs take.
std::string csv_quoted(const std::string& text) { return '"' + replaced(text, "\"", "\"\"") + '"'; }

using Lines = std::vector<std::string>;

std::string model_of(const Trace& trace, const TraceRequest& request) {
  return request.adapter == kBaseModel ? "base" : trace.adapters[request.adapter].name;
}

Lines otel_lines(const Trace& trace) {
  Lines lines;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    const auto attribute = [](const std::string& key, const std::string& value) {
      return "{\"key\":\"gen_ai." + key + "\",\"value\":{" + value + "}}";
    };
    lines.push_back(
        "{\"resourceSpans\":[{\"scopeSpans\":[{\"spans\":[{\"spanId\":" +
        json_string(trace.ids[i]) + ",\"startTimeUnixNano\":\"" +
        std::to_string(1'740'787'200'000'000'000 + r.arrival_ns) + "\",\"attributes\":[" +
        attribute("request.model", "\"stringValue\":" + json_string(model_of(trace, r))) + "," +
        attribute("usage.input_tokens",
                  "\"intValue\":\"" + std::to_string(r.prompt_tokens) + "\"") +
        "," + attribute("usage.output_tokens", "\"intValue\":" + std::to_string(r.output_tokens)) +
        "]}]}]}]}\n");
  }
  return lines;
}

Lines litellm_lines(const Trace& trace) {
  Lines lines;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    char fraction[24];
    std::snprintf(fraction, sizeof fraction, ".%09d", int(r.arrival_ns % 1'000'000'000));
    lines.push_back(csv_quoted(trace.ids[i]) + ",\"{\n\"\"a\"\": 1}\",2025-03-01 " +
                    clock_of(second_of(r)) + fraction + "," + csv_quoted(model_of(trace, r)) + "," +
                    std::to_string(r.prompt_tokens) + "," + std::to_string(r.output_tokens) + "\n");
  }
  return lines;
}

std::string token_list(uint32_t count) {
  std::string list = "[";
  for (uint32_t i = 0; i < count; ++i) list += i == 0 ? "7" : ", 7";
  return list + "]";
}

Lines vllm_lines(const Trace& trace) {
  Lines lines;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    const std::string lora =
        r.adapter == kBaseModel
            ? "None"
            : "LoRARequest(lora_name=" + python_repr(model_of(trace, r)) + ", lora_int_id=1)";
    const std::string prefix = "INFO 03-01 " + clock_of(second_of(r)) + " [logger.py:42] ";
    lines.push_back(
        prefix + "Received request " + trace.ids[i] +
        ": prompt: " + python_repr(model_of(trace, r) + ", lora_request: x") +
        ", params: SamplingParams(stop=['(']), prompt_token_ids: " + token_list(r.prompt_tokens) +
        ", lora_request: " + lora + ".\n" + prefix + "Generated response " + trace.ids[i] +
        ": output: 'x', output_token_ids: " + token_list(r.output_tokens) +
        ", finish_reason: stop\n");
  }
  return lines;
}

Lines sglang_lines(const Trace& trace) {
  Lines lines;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    const std::string lora = r.adapter == kBaseModel ? "None" : python_repr(model_of(trace, r));
    const std::string at = "[2025-03-01 " + clock_of(second_of(r)) + "] ";
    const std::string obj =
        "obj=GenerateReqInput(text=" + python_repr("), out={'" + model_of(trace, r)) +
        ", rid=" + python_repr(trace.ids[i]) + ", lora_path=" + lora + ")";
    lines.push_back(at + "Receive: " + obj + "\n" + at + "Finish: " + obj +
                    ", out={'meta_info': {'prompt_tokens': " + std::to_string(r.prompt_tokens) +
                    ", 'completion_tokens': " + std::to_string(r.output_tokens) + "}}\n");
  }
  return lines;
}

Lines lines_of(TraceFormat format, const Trace& trace) {
  if (format == TraceFormat::otel) return otel_lines(trace);
  if (format == TraceFormat::litellm) return litellm_lines(trace);
  return format == TraceFormat::vllm_log ? vllm_lines(trace) : sglang_lines(trace);
}

// Names that survive a log: on one line, and no id has a colon.
Trace logged_trace(const LogCase& c) {
  Trace trace = make_trace({c.num_requests, 4, 1, Content::none, c.seed});
  for (TraceAdapter& adapter : trace.adapters) adapter.name = printable(adapter.name);
  trace.ids.clear();
  const bool has_whole_seconds =
      c.format == TraceFormat::vllm_log || c.format == TraceFormat::sglang_log;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    trace.ids.push_back("req-" + std::to_string(i));
    TraceRequest& request = trace.requests[i];
    request.output_tokens %= 50;
    if (has_whole_seconds) request.arrival_ns -= request.arrival_ns % 1'000'000'000;
  }
  return trace;
}

// Property: whatever order a log's entries have, reading it gives the trace it was written from.
RC_GTEST_PROP(Logs, ReadingGivesBackWhatWasLogged, ()) {
  const LogCase c{.format = *rc::gen::element(TraceFormat::otel, TraceFormat::litellm,
                                              TraceFormat::vllm_log, TraceFormat::sglang_log),
                  .seed = *rc::gen::arbitrary<uint64_t>(),
                  .num_requests = *rc::gen::inRange(1, 20)};
  RC_LOG() << "REPRO: format " << int(c.format) << " seed " << c.seed << " requests "
           << c.num_requests << "\n";
  const Trace trace = logged_trace(c);
  Lines lines = lines_of(c.format, trace);
  Dice dice(c.seed);
  for (size_t i = lines.size(); i > 1; --i) std::swap(lines[i - 1], lines[dice.below(i)]);
  std::string log;
  if (c.format == TraceFormat::litellm) {
    log = "request_id,messages,startTime,model,prompt_tokens,completion_tokens\n";
  }
  for (const std::string& line : lines) log += line;

  ReadOptions options;
  options.adapter_from_model = c.format == TraceFormat::otel || c.format == TraceFormat::litellm;
  if (options.adapter_from_model) options.base_models = {"base"};
  const Trace read = read_trace_from(log, "t", options);
  RC_TAG(read.format);
  RC_ASSERT(read.requests.size() == trace.requests.size());
  for (size_t k = 0; k < read.requests.size(); ++k) {
    const TraceRequest& r = read.requests[k];
    const auto i = size_t(std::stoul(read.ids[k].substr(4)));
    const TraceRequest& expected = trace.requests[i];
    RC_ASSERT(r.arrival_ns == expected.arrival_ns - trace.requests[0].arrival_ns);
    RC_ASSERT(r.prompt_tokens == expected.prompt_tokens);
    RC_ASSERT(r.output_tokens == expected.output_tokens);
    RC_ASSERT(model_of(read, r) == model_of(trace, expected));
  }
}

}  // namespace
}  // namespace loratory::sim
