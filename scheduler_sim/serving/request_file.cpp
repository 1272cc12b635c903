#include "scheduler_sim/serving/request_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "reference/base/input_error.hpp"
#include "reference/base/json_fields.hpp"
#include "reference/base/units.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/trace/bad_escape.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/text_encoding.hpp"

namespace loratory::sim {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kMostSeed = int64_t{1} << 53;  // what every JSON library keeps
constexpr int64_t kMostLogprobs = 20;            // vLLM's --max-logprobs
constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();
constexpr size_t kLongestName = 256;
constexpr double kLatestArrivalS = 1e7;  // four months

const std::vector<std::string> kRequestKeys = {
    "request_id", "model",    "prompt",         "max_tokens", "temperature", "top_k",    "top_p",
    "seed",       "logprobs", "stop_token_ids", "ignore_eos", "priority",    "arrival_s"};
const std::vector<std::string> kOperations = {"load_lora_adapter", "unload_lora_adapter",
                                              "pin_lora", "unpin_lora"};

std::vector<std::string> keys_of(OperationKind kind) {
  std::vector<std::string> keys = {"operation", "lora_name", "arrival_s"};
  if (kind == OperationKind::load) keys.insert(keys.end(), {"lora_path", "load_inplace"});
  if (kind == OperationKind::unload) keys.emplace_back("abort_requests");
  return keys;
}

// --- one line as JSON -------------------------------------------------------------------------

json parse_line(std::string_view text, const std::string& place) {
  std::set<std::string> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    const bool is_nested = (event == json::parse_event_t::object_start && depth > 0) ||
                           (event == json::parse_event_t::array_start && depth > 1);
    if (is_nested) throw InputError(place, "nests too deep", "values are plain, or a list");
    if (event == json::parse_event_t::key && !keys.insert(value.get<std::string>()).second) {
      throw InputError(place,
                       fmt::format("the key {} stands twice", shown(value.get<std::string>())),
                       "remove one");
    }
    return true;
  };
  try {
    json object = json::parse(text, check);
    if (object.is_object()) return object;
  } catch (const json::parse_error& error) {
    const auto escape = bad_escape(text);
    if (escape && escape->column <= error.byte) {
      throw InputError(fmt::format("{}:{}", place, escape->column), escape->rule, escape->remedy);
    }
    throw InputError(fmt::format("{}:{}", place, error.byte), "is not JSON",
                     "one JSON object per line");
  } catch (const json::out_of_range&) {
    throw InputError(place, "a number is outside the range of a double");
  }
  throw InputError(fmt::format("{}:1", place), "is no JSON object", "one JSON object per line");
}

class LineFields final : public JsonFields {
 public:
  LineFields(const json& object, const std::string& place)
      : JsonFields(object, place), object_(object) {}

  void refuse_others(const std::vector<std::string>& known, std::string_view what) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      fail(shown(key), fmt::format("is no key of {}", what),
           did_you_mean(key, known, "leave it out"));
    }
  }

  double number(const char* key, double fallback, double low, double high) const {
    const json* const value = find(key);
    if (value == nullptr) return fallback;
    const bool good =
        value->is_number() && value->get<double>() >= low && value->get<double>() <= high;
    if (!good) fail(key, fmt::format("must be a number from {} to {}", low, high));
    return value->get<double>();
  }

  int64_t integer_or(const char* key, int64_t fallback, int64_t low, int64_t high) const {
    const json* const value = find(key);
    return value == nullptr ? fallback : integer(key, *value, low, high);
  }

  std::vector<int32_t> ids(const char* key, const json& value) const {
    std::vector<int32_t> out;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string element = fmt::format("{}[{}]", key, i);
      out.push_back(int32_t(integer(element.c_str(), value[i], 0, kMostId)));
    }
    return out;
  }

  // Present, and not empty.
  std::string name(const char* key) const {
    const std::string value = text_or(key, "");
    if (value.empty()) fail(key, has(key) ? "is empty" : "is missing");
    if (value.size() > kLongestName) fail(key, fmt::format("has over {} bytes", kLongestName));
    return value;
  }
  std::string name_or(const char* key, const std::string& fallback) const {
    return has(key) ? name(key) : fallback;
  }

 private:
  const json& object_;
};

// --- what a line says -------------------------------------------------------------------------

void read_prompt(const LineFields& fields, ServingRequest& request) {
  const json* const prompt = fields.find("prompt");
  if (prompt == nullptr) fields.fail("prompt", "is missing", "give a text or a list of token ids");
  if (prompt->is_string()) {
    request.text = prompt->get<std::string>();
  } else if (prompt->is_array()) {
    request.prompt = fields.ids("prompt", *prompt);
  } else {
    fields.fail("prompt", "must be a text or a list of token ids");
  }
  if (prompt->empty() || (request.text && request.text->empty())) {
    fields.fail("prompt", "is empty", "a prompt has at least one token");
  }
}

ServingRequest read_request(const LineFields& fields, uint64_t number) {
  constexpr int64_t kMostPriority = std::numeric_limits<int32_t>::max();
  fields.refuse_others(kRequestKeys, "a request");
  ServingRequest r;
  r.id = fields.name_or("request_id", fmt::format("line-{}", number));
  r.adapter = fields.name_or("model", "");
  read_prompt(fields, r);
  r.max_tokens = uint32_t(fields.integer_or("max_tokens", r.max_tokens, 1, kMostTokens));
  reference::SamplingParams& sampling = r.params.sampling;
  sampling.temperature = fields.number("temperature", sampling.temperature, 0, 1e6);
  sampling.top_k = std::max<int64_t>(fields.integer_or("top_k", 0, -1, kMostTokens), 0);
  sampling.top_p = fields.number("top_p", 1, 0, 1);
  if (sampling.top_p == 0) fields.fail("top_p", "must be above 0");
  sampling.seed = uint64_t(fields.integer_or("seed", 0, 0, kMostSeed));
  r.params.num_logprobs = int32_t(fields.integer_or("logprobs", -1, 0, kMostLogprobs));
  if (const json* stops = fields.find("stop_token_ids")) {
    if (!stops->is_array()) fields.fail("stop_token_ids", "must be a list of token ids");
    r.stop_token_ids = fields.ids("stop_token_ids", *stops);
  }
  r.ignore_eos = fields.flag_or("ignore_eos", false);
  r.priority = int32_t(fields.integer_or("priority", 0, -kMostPriority, kMostPriority));
  return r;
}

AdapterOperation read_operation(const LineFields& fields) {
  const std::string word = fields.name("operation");
  const auto found = std::ranges::find(kOperations, word);
  if (found == kOperations.end()) {
    fields.fail("operation", fmt::format("{} is unknown", shown(word)),
                did_you_mean(word, kOperations, fmt::format("give {}", kOperations.front())));
  }
  AdapterOperation o;
  o.kind = OperationKind(found - kOperations.begin());
  fields.refuse_others(keys_of(o.kind), word);
  o.name = fields.name("lora_name");
  if (o.kind == OperationKind::load) {
    o.path = fields.text_or("lora_path", "");
    if (o.path.empty()) fields.fail("lora_path", "is missing", "name the adapter's folder");
    o.load_inplace = fields.flag_or("load_inplace", false);
  }
  o.abort_requests = o.kind == OperationKind::unload && fields.flag_or("abort_requests", false);
  return o;
}

// --- the file ---------------------------------------------------------------------------------

class RequestFileReader {
 public:
  explicit RequestFileReader(std::string path) { file_.path = std::move(path); }

  RequestFile read(ByteSource& raw) {
    const std::unique_ptr<ByteSource> unpacked = decompressed(raw, file_.path);
    const std::unique_ptr<ByteSource> text = utf8_text(*unpacked, file_.path);
    LineReader lines(*text);
    Line line;
    while (lines.next(line)) read_line(line);
    if (lines.is_endless()) fail_at(line.number + 1, "a line without end");
    if (text->is_truncated()) {
      fail_at(line.number + 1, "the compressed file is cut off", "fetch or make it again");
    }
    if (ids_.empty()) throw InputError(file_.path, "has no request", "give one JSON object a line");
    return std::move(file_);
  }

 private:
  void read_line(const Line& line) {
    if (line.is_too_long) {
      fail_at(line.number, fmt::format("a line of over {} MiB", LineReader::kMaxBytes >> 20));
    }
    const std::string place = fmt::format("{}:{}", file_.path, line.number);
    const json object = parse_line(line.text, place);
    const LineFields fields(object, place);
    RequestLine out{.number = line.number, .arrival_ns = arrival_ns(fields), .what = {}};
    if (fields.has("operation")) {
      out.what = read_operation(fields);
    } else {
      ServingRequest request = read_request(fields, line.number);
      if (!ids_.insert(request.id).second) {
        fields.fail("request_id", fmt::format("{} is that of a request above", shown(request.id)),
                    "give each its own");
      }
      out.what = std::move(request);
    }
    file_.lines.push_back(std::move(out));
  }

  // A line that does not say comes with the one above it.
  int64_t arrival_ns(const LineFields& fields) const {
    const int64_t before = file_.lines.empty() ? 0 : file_.lines.back().arrival_ns;
    if (!fields.has("arrival_s")) return before;
    const double seconds = fields.number("arrival_s", 0, 0, kLatestArrivalS);
    const auto time_ns = int64_t(std::llround(seconds * kNsPerSecond));
    if (time_ns < before) {
      fields.fail("arrival_s", fmt::format("{} s is before the line above", seconds),
                  "sort the lines by arrival_s");
    }
    return time_ns;
  }

  [[noreturn]] void fail_at(uint64_t number, std::string_view rule,
                            std::string_view remedy = "one JSON object per line") const {
    throw InputError(fmt::format("{}:{}", file_.path, number), rule, remedy);
  }

  RequestFile file_;
  std::set<std::string> ids_;
};

}  // namespace

std::string RequestFile::place(const RequestLine& line) const {
  return fmt::format("{}:{}", path, line.number);
}

RequestFile read_request_file(const std::string& path) {
  const std::unique_ptr<ByteSource> raw = open_file(path);
  return RequestFileReader(path == "-" ? "stdin" : path).read(*raw);
}

RequestFile parse_request_file(std::string_view text, const std::string& path) {
  const std::unique_ptr<ByteSource> raw = open_bytes(text);
  return RequestFileReader(path).read(*raw);
}

// --- what a line alone does not tell ----------------------------------------------------------

namespace {

// The names that adapters have, followed from line to line.
class NamesInService {
 public:
  NamesInService(std::string_view base_model, std::set<std::string> adapters)
      : base_model_(base_model), adapters_(std::move(adapters)) {}

  void pass(ServingRequest& request, const std::string& place) const {
    if (request.adapter == base_model_) request.adapter.clear();
    if (!request.adapter.empty()) require(request.adapter, place + ": model");
  }

  void pass(const AdapterOperation& o, const std::string& place) {
    const std::string key = place + ": lora_name";
    if (o.kind != OperationKind::load) {
      require(o.name, key);
    } else if (o.name == base_model_) {
      throw InputError(key, fmt::format("{} is the base model", shown(o.name)),
                       "name it otherwise");
    } else if (!adapters_.insert(o.name).second && !o.load_inplace) {
      throw InputError(key, fmt::format("{} is an adapter already", shown(o.name)),
                       "say load_inplace to replace it, or unload it first");
    }
    if (o.kind == OperationKind::unload) adapters_.erase(o.name);
  }

 private:
  void require(const std::string& name, const std::string& place) const {
    if (adapters_.contains(name)) return;
    const std::vector<std::string> known(adapters_.begin(), adapters_.end());
    throw InputError(place, fmt::format("{} is no adapter at this line", shown(name)),
                     did_you_mean(name, known, "give it with --adapter, or load it above"));
  }

  std::string base_model_;
  std::set<std::string> adapters_;
};

void check_ids(const std::vector<int32_t>& ids, int64_t vocab, const std::string& place) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw InputError(fmt::format("{}[{}]", place, i),
                     fmt::format("token {} is outside the vocabulary of {}", ids[i], vocab),
                     "token ids are those of this model's tokenizer");
  }
}

}  // namespace

void resolve_names(RequestFile& file, std::string_view base_model, std::set<std::string> adapters) {
  NamesInService names(base_model, std::move(adapters));
  for (RequestLine& line : file.lines) {
    std::visit([&](auto& what) { names.pass(what, file.place(line)); }, line.what);
  }
}

void check_vocabulary(const RequestFile& file, int64_t vocab) {
  for (const RequestLine& line : file.lines) {
    const auto* request = std::get_if<ServingRequest>(&line.what);
    if (request == nullptr) continue;
    check_ids(request->prompt, vocab, file.place(line) + ": prompt");
    check_ids(request->stop_token_ids, vocab, file.place(line) + ": stop_token_ids");
  }
}

}  // namespace loratory::sim
