#pragma once

#include <cstdint>
#include <vector>

#include "check/schedulers/world.hpp"

namespace loratory::check {

/// A model that is no model: it has the data flow of one. Each slot holds a number that stands for
/// the weights in it, each position of a KV block a number that stands for its key and value:
///
///   kv(p)    = mix(weights of the slot, p, token p, kv(0), ..., kv(p-1))
///   state(p) = mix(kv(0), ..., kv(p)),   the token sampled at p = state(p) mod kVocabulary
///
/// all read through the row's block table when the step ends. So a wrong block, a slot overwritten
/// under a step, weights of another adapter or a position that was never computed change the state.
/// Repeats  a function of what was copied, run, and in which order.
/// Cost     O(context^2) of a request's tokens, tiny for tiny requests.
class KvExecutor {
 public:
  static constexpr int32_t kVocabulary = 4;

  explicit KvExecutor(const Limits& limits);

  /// From here to the end of the copy the slot holds nothing that could be read.
  void begin_copy(int32_t slot);
  void end_copy(int32_t slot, Uid uid);

  struct Sampled {
    size_t row;  ///< index in the step's rows
    uint64_t state;
    int32_t token;
  };
  /// One for each row that samples; rows without a slot of their own are left out (kNoToken).
  /// `requests` are those of the world, whose tokens the rows compute.
  std::vector<Sampled> run(const World::Step& step, const std::vector<World::Request>& requests);

  /// What state a request alone, on an engine of its own, has behind its last token.
  static uint64_t state_alone(Uid uid, const std::vector<int32_t>& tokens);
  /// The first position of the row whose KV is not what the request alone has there; -1 = none.
  int64_t first_wrong_position(const Row& row, const World::Request& request) const;

 private:
  size_t place(const Row& row, uint32_t position) const;

  uint32_t block_size_;
  std::vector<uint64_t> slots_;
  std::vector<uint64_t> pool_;  // [blocks][block_size]
  uint64_t num_poisoned_ = 0;
};

}  // namespace loratory::check
