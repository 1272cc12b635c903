#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "scheduler_sim/serving/serving_run.hpp"

namespace loratory::sim {

/// What `loratory run` shows of a run; docs/serving.md has every field.
struct ServingReport {
  RequestFile file;  ///< as it was served
  ServedFile served;
  std::string base_model;          ///< what the base model is called
  std::string engine;              ///< a line: executor and sizes
  std::vector<std::string> texts;  ///< of each request's tokens; empty: nobody made them
};

/// One JSON object per request, a line each, in the order of the file.
void write_served_requests(std::ostream& out, const ServingReport& report);

/// A table on stdout: throughput and latencies of each adapter and of all, what failed and why.
/// At most 100 columns.
std::string serving_console(const ServingReport& report);

/// What the host takes for steps, and how long the GPU waited for it; a line without a break.
std::string host_text(const StepTimes& times);

/// How many requests ended in an error, and how many operations were refused.
int64_t num_failures(const ServingReport& report);

}  // namespace loratory::sim
