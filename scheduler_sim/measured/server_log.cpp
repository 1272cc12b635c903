// Lines of vLLM 0.8 to 0.25 (vllm-project/vllm: entrypoints/openai/api_server.py, entrypoints/
// utils.py, v1/engine/core.py, v1/worker/gpu_model_runner.py, v1/core/kv_cache_utils.py):
//   vLLM API server version 0.8.5
//   args: Namespace(subparser='serve', model='...', max_loras=16, ...)         up to 0.8
//   non-default args: {'model': '...', 'enable_lora': True, 'max_loras': 16}   from 0.9
//   Initializing a V1 LLM engine (v0.8.5) with config: model='...', max_seq_len=131072, ...
//   Chunked prefill is enabled with max_num_batched_tokens=2048.
//   Model loading took 15.2500 GiB and 4.1 seconds
//   GPU KV cache size: 331,840 tokens
// and the ends of a start that fails.
#include "scheduler_sim/measured/server_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/logs/python_text.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kVersion = "vLLM API server version ";
constexpr std::string_view kEngine = "LLM engine (v";
constexpr std::string_view kKvTokens = "GPU KV cache size: ";
constexpr std::string_view kWeights = "Model loading took ";
constexpr std::string_view kStepTokens = "Chunked prefill is enabled with max_num_batched_tokens=";
constexpr std::string_view kNoStart[] = {"No available memory for the cache blocks",
                                         "larger than the available KV cache memory",
                                         "CUDA out of memory"};

// An argument, or a field of the engine's configuration, and our column.
struct Argument {
  std::string_view name, column;
};
constexpr Argument kArguments[] = {{"model", "model"},
                                   {"tensor_parallel_size", "tp"},
                                   {"max_loras", "max_loras"},
                                   {"max_cpu_loras", "max_cpu_loras"},
                                   {"max_lora_rank", "max_lora_rank"},
                                   {"max_num_seqs", "max_num_seqs"},
                                   {"max_num_batched_tokens", "max_num_batched_tokens"},
                                   {"max_model_len", "max_model_len"},
                                   {"max_seq_len", "max_model_len"},
                                   {"enable_prefix_caching", "prefix_cache"}};

std::optional<std::string_view> behind(std::string_view line, std::string_view words) {
  const size_t at = line.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  return line.substr(at + words.size());
}

std::string_view word_of(std::string_view text) {
  return text.substr(0, std::min(text.find_first_of(" )\t\r"), text.size()));
}

// "331,840" or "2048." without what is no digit in it.
std::string digits_of(std::string_view text) {
  std::string digits(word_of(text));
  std::erase_if(digits, [](char c) { return c == ',' || c == '.'; });
  return digits;
}

// The fields of "Namespace(...)", "{...}", or of a list without brackets.
std::optional<std::string_view> fields_of(std::string_view line) {
  for (const std::string_view words : {"non-default args: ", " args: "}) {
    if (const auto value = behind(line, words)) return python_inside(*value);
  }
  return behind(line, ") with config: ");
}

class LogReading {
 public:
  void read(std::string_view line, uint64_t number) {
    number_ = number;
    for (const std::string_view words : {kVersion, kEngine}) {
      if (const auto rest = behind(line, words)) set("engine", vllm_preset(word_of(*rest)));
    }
    if (const auto fields = fields_of(line)) read_fields(*fields);
    if (const auto rest = behind(line, kStepTokens)) {
      set("max_num_batched_tokens", digits_of(*rest));
    }
    if (const auto rest = behind(line, kKvTokens)) set("kv_tokens", digits_of(*rest));
    if (const auto rest = behind(line, kWeights)) set("weights_gib", std::string(word_of(*rest)));
    const bool has_started = cells_.contains("kv_tokens");
    for (const std::string_view words : kNoStart) {
      if (!has_started && behind(line, words)) set("kv_tokens", "0");
    }
  }

  // vLLM's defaults: one slot, rank 16, as many adapters in host memory as slots.
  std::map<std::string, std::pair<std::string, uint64_t>> finish() {
    const bool has_lora = cells_.contains("enable_lora");
    cells_.erase("enable_lora");
    if (has_lora) {
      cells_.try_emplace("max_loras", "1", number_);
      cells_.try_emplace("max_lora_rank", "16", number_);
      cells_.try_emplace("max_cpu_loras", cells_["max_loras"]);
    } else {
      for (const char* column : {"max_loras", "max_lora_rank", "max_cpu_loras"}) {
        cells_.erase(column);
      }
    }
    return std::move(cells_);
  }

 private:
  void set(std::string_view column, std::string text) {
    cells_[std::string(column)] = {std::move(text), number_};
  }

  void read_fields(std::string_view fields) {
    if (python_field(fields, "enable_lora") == "True") set("enable_lora", "on");
    for (const Argument& argument : kArguments) {
      const auto value = python_field(fields, argument.name);
      if (!value || value->empty() || *value == "None") continue;
      std::string text = python_string(*value).value_or(std::string(*value));
      if (argument.column == "prefix_cache") text = text == "True" ? "on" : "off";
      if (!text.empty()) set(argument.column, std::move(text));
    }
    const auto modules = python_field(fields, "lora_modules");
    const auto count = modules ? python_length(*modules) : std::nullopt;
    if (count.value_or(0) > 0) set("rate_counts", std::to_string(*count));
  }

  std::map<std::string, std::pair<std::string, uint64_t>> cells_;  // by column: text, line
  uint64_t number_ = 0;
};

}  // namespace

bool is_server_log(std::string_view head) {
  return head.find(kVersion) != std::string_view::npos ||
         head.find(kEngine) != std::string_view::npos;
}

std::vector<DescribedCell> read_server_log(ByteSource& text, std::string_view name) {
  LineReader lines(text);
  LogReading reading;
  Line line;
  while (lines.next(line)) {
    if (!line.is_too_long) reading.read(line.text, line.number);
  }
  std::vector<DescribedCell> cells;
  for (const auto& [column, cell] : reading.finish()) {
    cells.push_back({column, cell.first, fmt::format("{}:{}", name, cell.second)});
  }
  if (!cells.empty()) return cells;
  throw InputError(name, "no line of a vLLM server that starts",
                   "give its log from the first line on");
}

}  // namespace loratory::sim
