#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scheduler_sim/trace/logs/log_sink.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/schema.hpp"
#include "scheduler_sim/trace/trace_builder.hpp"

namespace loratory::sim {

/// Keeps what a log's reader finds until the end, puts it in order of arrival (equal times keep the
/// order of the log) and fills in the lengths that the options give.
class LogRows final : public LogSink {
 public:
  using Refuse = std::function<void(uint64_t line, const BadRow&)>;
  /// `refuse` throws, or counts. Lifetime: that of the references.
  LogRows(const Schema& schema, const ReadOptions& options, Refuse refuse)
      : schema_(schema), options_(options), refuse_(std::move(refuse)) {}

  void add(LoggedRequest request) override { requests_.push_back(std::move(request)); }
  void refuse(uint64_t line, const BadRow& bad) override { refuse_(line, bad); }
  void note(std::string sentence) override;

  /// Adds all rows to the builder and the notes to the trace.
  void build(TraceBuilder& builder, Trace& trace);

 private:
  void add_row(const LoggedRequest& request, TraceBuilder& builder);
  uint32_t length(std::optional<uint32_t> known, uint32_t fallback, const char* what,
                  uint64_t& num_assumed) const;

  const Schema& schema_;
  const ReadOptions& options_;
  Refuse refuse_;
  std::vector<LoggedRequest> requests_;
  std::vector<std::string> notes_;
  uint64_t num_prompts_assumed_ = 0, num_outputs_assumed_ = 0;
};

}  // namespace loratory::sim
