// The request log of a vLLM server (--enable-log-requests; on by default before 0.10). Lines of
// vllm-project/vllm, vllm/entrypoints/logger.py (later entrypoints/serve/utils/request_logger.py):
//   to 0.10  Received request ID: prompt: '...', params: SamplingParams(...), prompt_token_ids:
//   [...],
//            [prompt_embeds shape: None, ]lora_request: None | LoRARequest(lora_name='...', ...)
//            [, prompt_adapter_request: None].
//   later    Received request ID: params: SamplingParams(...), lora_request: ....
//            and, at level DEBUG, before it: Request ID details: prompt: '...', prompt_token_ids:
//            [...]
//   outputs  Generated response ID[ (streaming delta | streaming complete)]: output: '...',
//            output_token_ids: [...] | None, finish_reason: ...      (with --enable-log-outputs)
// Times are those of the logger, "MM-DD HH:MM:SS" and no year.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/logs/log_sink.hpp"
#include "scheduler_sim/trace/logs/log_time.hpp"
#include "scheduler_sim/trace/logs/python_text.hpp"
#include "scheduler_sim/trace/row_fields.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kReceived = "Received request ";
constexpr std::string_view kDetails = " details: ";
constexpr std::string_view kRequest = "Request ";
constexpr std::string_view kGenerated = "Generated response ";

struct Received {
  LoggedRequest request;
  LogTime time;
};

class VllmLog {
 public:
  explicit VllmLog(LogSink& sink) : sink_(sink) {}

  void read(const Line& line) {
    const std::string_view text = line.text;
    if (const size_t at = text.find(kReceived); at != std::string_view::npos) {
      receive(line, text.substr(0, at), text.substr(at + kReceived.size()));
    } else if (const size_t details = text.find(kDetails); details != std::string_view::npos) {
      read_details(text, details);
    } else if (const size_t out = text.find(kGenerated); out != std::string_view::npos) {
      read_output(text.substr(out + kGenerated.size()));
    }
  }

  // A log may go over the end of a year, and February may have had 29 days.
  void finish() {
    const bool is_leap = std::ranges::any_of(received_, [](const Received& r) {
      return !r.time.has_year && r.time.month == 2 && r.time.day == 29;
    });
    int64_t year_ns = 0, previous_ns = 0;
    for (Received& r : received_) {
      if (r.time.has_year) {
        r.request.arrival_ns = r.time.unix_ns;
      } else {
        const int64_t ns = ns_of_year(r.time, is_leap);
        if (previous_ns - ns > 180 * kNsPerDay) year_ns += (is_leap ? 366 : 365) * kNsPerDay;
        previous_ns = ns;
        r.request.arrival_ns = year_ns + ns;
      }
      sink_.add(std::move(r.request));
    }
  }

 private:
  void receive(const Line& line, std::string_view prefix, std::string_view message) {
    const size_t colon = message.find(": ");
    if (colon == std::string_view::npos) return;  // another message
    std::string_view fields = message.substr(colon + 2);
    if (!fields.starts_with("prompt") && !fields.starts_with("params")) return;
    check_utf8(line.text);
    if (fields.ends_with('.')) fields.remove_suffix(1);
    const auto column = size_t(fields.data() - line.text.data()) + 1;
    const auto lora = python_field(fields, "lora_request");
    if (!lora) bad_python(column);
    const auto time = log_time(prefix);
    if (!time) bad_row(1, "a line without its time", "give the log as vLLM writes it");
    if (!received_.empty() && received_.back().time.has_year != time->has_year) {
      bad_row(1, "times with a year and without", "give the logs one by one");
    }
    Received r{.request = {}, .time = *time};
    r.request.line = line.number;
    r.request.id = message.substr(0, colon);
    if (*lora != "None") r.request.lora = lora_name(*lora, column);
    r.request.prompt_tokens = prompt_tokens(fields, r.request.id);
    place_of_[r.request.id] = received_.size();
    received_.push_back(std::move(r));
  }

  static std::string lora_name(std::string_view lora, size_t column) {
    const auto inside = python_inside(lora);
    const auto name = inside ? python_field(*inside, "lora_name") : std::nullopt;
    const auto text = name ? python_string(*name) : std::nullopt;
    if (!text) bad_python(column);
    return *text;
  }

  std::optional<uint32_t> prompt_tokens(std::string_view fields, const std::string& id) {
    const auto ids = python_field(fields, "prompt_token_ids");
    if (ids) return python_length(*ids);
    const auto known = prompt_tokens_of_.find(id);
    return known == prompt_tokens_of_.end() ? std::nullopt : std::optional(known->second);
  }

  void read_details(std::string_view text, size_t details) {
    const size_t begin = text.substr(0, details).rfind(kRequest);
    if (begin == std::string_view::npos) return;
    const std::string_view id =
        text.substr(begin + kRequest.size(), details - begin - kRequest.size());
    std::string_view fields = text.substr(details + kDetails.size());
    if (fields.ends_with('.')) fields.remove_suffix(1);
    const auto ids = python_field(fields, "prompt_token_ids");
    const auto length = ids ? python_length(*ids) : std::nullopt;
    if (length) prompt_tokens_of_[std::string(id)] = *length;
  }

  // A stream logs each of its parts, and at its end, without ids, the whole text.
  void read_output(std::string_view message) {
    const size_t colon = message.find(": ");
    if (colon == std::string_view::npos) return;
    std::string_view id = message.substr(0, colon);
    id = id.substr(0, id.find(" (streaming"));
    const auto place = place_of_.find(std::string(id));
    if (place == place_of_.end()) return;
    const auto ids = python_field(message.substr(colon + 2), "output_token_ids");
    const auto length = ids ? python_length(*ids) : std::nullopt;
    if (!length) return;
    std::optional<uint32_t>& total = received_[place->second].request.output_tokens;
    total = uint32_t(std::min<uint64_t>(uint64_t{total.value_or(0)} + *length, kMaxCount));
  }

  LogSink& sink_;
  std::vector<Received> received_;
  std::unordered_map<std::string, size_t> place_of_;            // of a request, by its id
  std::unordered_map<std::string, uint32_t> prompt_tokens_of_;  // told before the request
};

void read_vllm_log(ByteSource& text, LogSink& sink) {
  LineReader lines(text);
  VllmLog log(sink);
  Line line;
  while (lines.next(line)) {
    try {
      if (line.is_too_long) bad_row(1, "a line of over 16 MiB", "log with --max-log-len");
      log.read(line);
    } catch (const BadRow& bad) {
      sink.refuse(line.number, bad);
    }
  }
  log.finish();
}

bool is_vllm_log(std::string_view head) {
  const size_t at = head.find(kReceived);
  return at != std::string_view::npos && head.find("lora_request: ", at) != std::string_view::npos;
}

}  // namespace

const LogFormat kVllmLog = {is_vllm_log, read_vllm_log, false,
                            "log them (VLLM_LOGGING_LEVEL=DEBUG for prompts, --enable-log-outputs "
                            "for outputs), or give --default-prompt and --default-output"};

}  // namespace loratory::sim
