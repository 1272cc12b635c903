#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler_sim/trace/bad_row.hpp"
#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::sim {

/// One request as a log tells it, in whatever order the log has them.
struct LoggedRequest {
  uint64_t line = 0;                                     ///< 1-based, where it stands
  int64_t arrival_ns = 0;                                ///< since an origin of the log's own
  std::optional<uint32_t> prompt_tokens, output_tokens;  ///< nothing: the log does not say
  std::string id, session;                               ///< "" = the log does not say
  std::string model;                                     ///< the name that the client asked for
  std::string lora;  ///< the adapter, where the engine says it; "" = the base model
};

/// Takes what a reader of logs finds.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void add(LoggedRequest request) = 0;
  /// An entry that should be a request and cannot be read. Throws InputError unless such are
  /// skipped.
  virtual void refuse(uint64_t line, const BadRow& bad) = 0;
  /// A sentence for the user about what the log could not tell, once per sentence.
  virtual void note(std::string sentence) = 0;
};

/// A log of requests that somebody else's software writes.
struct LogFormat {
  /// Whether a text that begins so (the first MiB) is one.
  bool (*recognises)(std::string_view head);
  /// Reads UTF-8 text to its end. Entries that are no requests are left out in silence.
  void (*read)(ByteSource& text, LogSink& sink);
  bool has_models;                   ///< its requests name a model
  std::string_view for_more_tokens;  ///< what to do about lengths that are missing
};

extern const LogFormat kOtelLog, kLitellmLog, kVllmLog, kSglangLog, kVllmBenchLog;

}  // namespace loratory::sim
