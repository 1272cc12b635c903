#include "check/schedulers/kv_executor.hpp"

#include "check/schedulers/session_draw.hpp"

namespace loratory::check {
namespace {

constexpr uint64_t kPoison = 0xbad0bad0bad0bad0;

uint64_t fold(uint64_t state, uint64_t value) { return mix(state ^ mix(value)); }

// The base model has weights of its own.
uint64_t weights_of(Uid uid) { return mix(0x3e1947 + uid); }

uint64_t kv_of(uint64_t weights, uint32_t position, int32_t token, uint64_t context) {
  return fold(fold(fold(context, weights), position), uint64_t(token));
}

}  // namespace

KvExecutor::KvExecutor(const Limits& limits)
    : block_size_(limits.block_size),
      slots_(size_t(limits.max_loras), kPoison),
      pool_(size_t{limits.num_blocks} * limits.block_size) {
  for (uint64_t& value : pool_) value = mix(kPoison + ++num_poisoned_);
}

void KvExecutor::begin_copy(int32_t slot) { slots_[size_t(slot)] = mix(kPoison + ++num_poisoned_); }

void KvExecutor::end_copy(int32_t slot, Uid uid) { slots_[size_t(slot)] = weights_of(uid); }

size_t KvExecutor::place(const Row& row, uint32_t position) const {
  return size_t{row.blocks[position / block_size_]} * block_size_ + position % block_size_;
}

std::vector<KvExecutor::Sampled> KvExecutor::run(const World::Step& step,
                                                 const std::vector<World::Request>& requests) {
  std::vector<Sampled> sampled;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const Row& row = step.rows[i];
    const bool is_left_out = row.uid != kBaseUid && row.slot == kNoSlot;
    if (is_left_out) {
      if (row.samples) sampled.push_back({i, 0, kNoToken});
      continue;
    }
    const uint64_t weights = row.slot == kNoSlot ? weights_of(kBaseUid) : slots_[size_t(row.slot)];
    const std::vector<int32_t>& tokens = requests[step.requests[i]].tokens;
    uint64_t context = 0;
    for (uint32_t p = 0; p < row.start; ++p) context = fold(context, pool_[place(row, p)]);
    for (uint32_t p = row.start; p < row.start + row.num_tokens; ++p) {
      // Behind its end: what a row ahead computes for a request that a stop token ended.
      const int32_t token = p < tokens.size() ? tokens[p] : kNoToken;
      pool_[place(row, p)] = kv_of(weights, p, token, context);
      context = fold(context, pool_[place(row, p)]);
    }
    if (row.samples) sampled.push_back({i, context, int32_t(context % kVocabulary)});
  }
  return sampled;
}

uint64_t KvExecutor::state_alone(Uid uid, const std::vector<int32_t>& tokens) {
  uint64_t context = 0;
  for (uint32_t p = 0; p < tokens.size(); ++p) {
    context = fold(context, kv_of(weights_of(uid), p, tokens[p], context));
  }
  return context;
}

int64_t KvExecutor::first_wrong_position(const Row& row, const World::Request& request) const {
  uint64_t context = 0;
  for (uint32_t p = 0; p < row.start + row.num_tokens && p < request.tokens.size(); ++p) {
    const uint64_t kv = kv_of(weights_of(request.uid), p, request.tokens[p], context);
    if (pool_[place(row, p)] != kv) return p;
    context = fold(context, kv);
  }
  return -1;
}

}  // namespace loratory::check
