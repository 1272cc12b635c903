#include "cli/write_trace.hpp"

#include <unistd.h>

#include <optional>

#include "cli/progress.hpp"
#include "scheduler_sim/trace/writer.hpp"

namespace loratory::cli {

void write_trace(OutputFiles& files, const std::string& flag, const sim::Trace& trace) {
  const bool rows_are_seen = files.table() != stdout && isatty(STDOUT_FILENO) == 1;
  std::optional<Progress> progress;
  if (!rows_are_seen) progress.emplace("writing");
  sim::write_native(*files.find(flag), trace, [&](uint64_t done) {
    if (progress) progress->show(int64_t(done), std::ssize(trace.requests), "requests");
  });
  files.commit();
}

}  // namespace loratory::cli
