#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "scheduler_sim/serving/model_executor.hpp"

// The request file of `loratory run`: JSON lines, one request or one operation each, in the order
// in which they happen. docs/serving.md has the keys. Where vLLM's API has one (CompletionRequest,
// LoadLoRAAdapterRequest; vllm/entrypoints), the name and the default are those.

namespace loratory::sim {

/// A completion that somebody asks for.
struct ServingRequest {
  std::string id;       ///< "request_id"; "line-7" if the line has none. Unique in the file
  std::string adapter;  ///< "model"; "" = the base model
  std::optional<std::string> text;  ///< "prompt", if it is text; tokenizing it fills `prompt`
  std::vector<int32_t> prompt;      ///< "prompt", if it is token ids
  uint32_t max_tokens = 16;
  TokenParams params{.sampling = {.temperature = 1}};
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t priority = 0;  ///< lower runs first
};

/// "operation": load_lora_adapter, unload_lora_adapter, pin_lora, unpin_lora.
enum class OperationKind : uint8_t { load, unload, pin, unpin };

/// What an operator does to adapters between requests.
struct AdapterOperation {
  OperationKind kind = OperationKind::load;
  std::string name;             ///< "lora_name"
  std::string path;             ///< "lora_path" of a load
  bool load_inplace = false;    ///< a name that is taken gets new weights for new requests
  bool abort_requests = false;  ///< an unload ends the requests of the adapter
};

struct RequestLine {
  uint64_t number = 0;     ///< of the line in the file, from 1
  int64_t arrival_ns = 0;  ///< since the start of the run; never less than that of the line before
  std::variant<ServingRequest, AdapterOperation> what;
};

struct RequestFile {
  std::string path;  ///< for messages
  std::vector<RequestLine> lines;

  /// "requests.jsonl:7"
  std::string place(const RequestLine& line) const;
};

/// Reads a file, or stdin if `path` is "-"; plain, gzip or zstd.
/// Errors  InputError "file:line:column: rule" if a line is not JSON, "file:line: key: rule" for
///         what it says: an unknown key, one that is missing or twice, a value outside its limits,
///         a request_id that is taken, an arrival before that of the line above. A line of more
///         than 16 MiB, a file without a request.
RequestFile read_request_file(const std::string& path);
/// The same for what such a file holds, unpacked.
RequestFile parse_request_file(std::string_view text, const std::string& path);

/// Makes the name of the base model the empty name, and follows the lines: which names are adapters
/// when? `adapters` are at the start.
/// Errors  InputError at the line: a request, an unload or a pin of a name that nobody has then, a
///         load of one that is taken without load_inplace.
void resolve_names(RequestFile& file, std::string_view base_model, std::set<std::string> adapters);

/// Every token of every prompt, and every stop token, must be in the vocabulary.
/// Errors  InputError at the line.
void check_vocabulary(const RequestFile& file, int64_t vocab);

}  // namespace loratory::sim
