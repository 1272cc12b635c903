#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check/schedulers/messages.hpp"

namespace loratory::check {

/// One run of a scheduler under test: what the engine has room for, and which operations happen. A
/// session is a function of these fields and of the scheduler's answers.
struct Session {
  uint64_t seed = 0;
  int32_t num_ops = 120;  ///< before everything is led to its end
  int32_t max_loras = 2, max_cpu_loras = 4, num_load_workers = 1;
  int32_t num_blocks = 16, block_size = 4;
  int32_t max_num_batched_tokens = 16, max_num_seqs = 4;
  int32_t longest = 16;   ///< request, prompt and output, in tokens
  int32_t num_names = 4;  ///< adapters in use
  bool faults = true;     ///< loads fail, copies are slow, ids and names are wrong
  bool ahead = true;      ///< plans while a step is in flight, if the scheduler can
  std::vector<std::pair<int32_t, int32_t>> dropped{};  ///< operations left out, first and last

  bool is_dropped(int32_t op) const;
  /// As `hello` says them. A request could fill all blocks, so that the last one can ask for it.
  Limits limits() const;
  bool operator==(const Session&) const = default;
};

/// Everything from the seed.
Session draw_session(uint64_t seed);

/// `sched.seed7.ops120.loras2.cpu4.workers1.blocks16.bs4.tokens16.seqs4.len16.names4.faults.ahead`,
/// and `.drop3-17+40` behind it if operations are left out.
std::string label_of(const Session& session);
/// The inverse. Parts that are left out are as draw_session() has them; of `faults` and `ahead`
/// only if no other part is given but `seed`. Errors  InputError.
Session parse_session(std::string_view label);

}  // namespace loratory::check
