#include "scheduler_sim/serving/trace_prompts.hpp"

#include <algorithm>

#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

constexpr uint32_t kBlocks = 0, kRequests = 1;  // substreams

}  // namespace

std::vector<int32_t> TracePrompts::prompt_of(size_t request) const {
  const TraceRequest& r = trace_.requests[request];
  std::vector<int32_t> prompt;
  prompt.reserve(r.prompt_tokens);
  for (const int32_t token : trace_.tokens_of(r)) {
    prompt.push_back(int32_t(uint32_t(token) % vocab_));
  }
  const RandomStream blocks(seed_, Purpose::prompt_contents, kBlocks);
  for (const uint64_t block : trace_.blocks_of(r)) {
    const uint64_t left = r.prompt_tokens - prompt.size();
    for (uint64_t i = 0; i < std::min<uint64_t>(trace_.block_tokens, left); ++i) {
      prompt.push_back(int32_t(blocks.bits(block, i) % vocab_));
    }
  }
  const RandomStream own(seed_, Purpose::prompt_contents, kRequests);
  for (uint64_t i = prompt.size(); i < r.prompt_tokens; ++i) {
    prompt.push_back(int32_t(own.bits(request, i) % vocab_));
  }
  return prompt;
}

}  // namespace loratory::sim
