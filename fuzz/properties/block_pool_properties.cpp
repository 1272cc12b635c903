// The block pool alone against a list of pages whose keys are the whole text of their content
// (fuzz/models/naive_block_pool.hpp): P45, P47, P48, P50, P52. Random sequences take what
// matches, compute and publish blocks as a scheduler does, and give their tables back.
#include <algorithm>
#include <map>
#include <set>

#include "fuzz/models/naive_block_pool.hpp"
#include "fuzz/support/handed_out.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "scheduler_sim/prefix_cache/block_pool.hpp"

namespace loratory::sim {
namespace {

// One content, its identity in the product and its text in the model.
struct Name {
  BlockKey key;
  std::string text;
};

struct Sequence {
  uint64_t uid;
  std::vector<Name> names;  // of all its blocks, known or its own
  std::vector<BlockId> table;
  size_t num_full = 0;  // blocks whose tokens all have KV
};

class PoolPair {
 public:
  explicit PoolPair(uint64_t seed)
      : draw_(seed), num_blocks_(uint32_t(draw_.between(2, 30))), sut_(num_blocks_) {}

  void operate() {
    switch (draw_(8)) {
      case 0:
      case 1:
      case 2:
        admit();
        break;
      case 3:
      case 4:
      case 5:
        compute_a_block();
        break;
      case 6:
        give_back();
        break;
      default:
        draw_.one_in(12) ? evict_namespace() : give_back();
        break;
    }
    check();
  }

  // P56 for this design: idle, every block can be had.
  void end_all() {
    while (!live_.empty()) give_back();
    check();
    RC_ASSERT(sut_.num_allocatable() == num_blocks_ - 1);
    for (uint32_t i = 1; i < num_blocks_; ++i) RC_ASSERT(sut_.allocate() == model_.allocate());
    check_every_name();
  }

  bool hit = false, reused = false, twins = false, evicted = false;

 private:
  // Few contents and few namespaces, so that sequences meet; some blocks are nobody else's.
  void admit() {
    Sequence s{.uid = uint64_t(draw_(3)), .names = {}, .table = {}, .num_full = 0};
    const int64_t length = draw_.between(1, 6), num_known = draw_(length + 1);
    std::string text = fmt::format("{}", s.uid);
    BlockKey key = kNoKey;
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t content = uint64_t(draw_(2));
      const bool known = i < num_known;
      key = known ? keys_.key(key, s.uid, content)
                  : BlockKeyInterner::unique(next_sequence_, uint32_t(i));
      text += known ? fmt::format("|{}", content) : fmt::format("|own {} {}", next_sequence_, i);
      s.names.push_back({key, text});
    }
    ++next_sequence_;
    take_prefix(s);
    live_.push_back(s);
  }

  // Longest run from the start, the last block left to compute [6.3].
  void take_prefix(Sequence& s) {
    while (s.table.size() + 1 < s.names.size()) {
      const Name& name = s.names[s.table.size()];
      const BlockId block = sut_.find(name.key);
      RC_ASSERT(block == model_.find(name.text));
      if (block == kNullBlock) break;
      hit = true;
      sut_.acquire(block), model_.acquire(block);
      s.table.push_back(block);
    }
    s.num_full = s.table.size();
  }

  void compute_a_block() {
    if (live_.empty()) return;
    Sequence& s = live_[size_t(draw_(int64_t(live_.size())))];
    if (s.table.size() == s.num_full) {
      if (s.table.size() == s.names.size()) return;
      RC_ASSERT(sut_.num_allocatable() == model_.num_allocatable());
      if (sut_.num_allocatable() == 0) return give_back();
      reused |= model_.num_plain_free() == 0;
      const BlockId block = sut_.allocate();
      RC_ASSERT(block == model_.allocate());
      s.table.push_back(block);
      if (draw_.one_in(2)) return;  // not all of its tokens yet
    }
    const Name& name = s.names[s.num_full];
    twins |= sut_.find(name.key) != kNullBlock;
    sut_.publish(s.table[s.num_full], name.key, s.uid);
    model_.publish(s.table[s.num_full], name.text, s.uid);
    ++s.num_full;
  }

  void give_back() {
    if (live_.empty()) return;
    const auto s = live_.begin() + draw_(int64_t(live_.size()));
    std::vector<BlockKey> keys;
    std::vector<std::string> texts;
    for (size_t i = 0; i < s->num_full; ++i) {
      keys.push_back(s->names[i].key), texts.push_back(s->names[i].text);
    }
    sut_.release(s->table, keys, s->uid);
    model_.release(s->table, texts, s->uid);
    remember(*s);
    live_.erase(s);
  }

  // P52: at once, the base model and others untouched, a second time nothing.
  void evict_namespace() {
    const uint64_t uid = uint64_t(draw_(4));
    evicted = true;
    RC_ASSERT(sut_.evict_namespace(uid) == model_.evict_namespace(uid));
    check();
    RC_ASSERT(sut_.evict_namespace(uid) == 0U);
    model_.evict_namespace(uid);
    check_every_name();
  }

  void check() {
    std::vector<uint32_t> refs(num_blocks_, 0);  // P47: from the live tables
    for (const Sequence& s : live_) {
      for (const BlockId block : s.table) ++refs[block];
      remember(s);
    }
    for (BlockId id = 1; id < num_blocks_; ++id) {
      RC_ASSERT(sut_.ref_count(id) == refs[id]);
      RC_ASSERT(refs[id] == uint32_t(model_.pages[id].refs));
      const std::string& text = model_.pages[id].key;
      if (!text.empty()) RC_ASSERT(sut_.find(keys_of_text_.at(text)) == id);
    }
    std::vector<uint32_t> free;
    for (uint32_t id = 1; id < num_blocks_; ++id) {
      if (model_.plain_free(id)) free.push_back(id);
    }
    free.insert(free.end(), model_.queue.begin(), model_.queue.end());
    RC_ASSERT(handed_out(sut_) == free);
    RC_ASSERT(sut_.num_allocatable() + sut_.num_referenced() + 1 == num_blocks_);
    check_parents();
  }

  // P50, [6.19]: a cached-free block can be reached through published parents.
  void check_parents() {
    std::set<std::string> texts;
    for (const auto& page : model_.pages) texts.insert(page.key);
    for (const uint32_t page : model_.queue) {
      const std::string& text = model_.pages[page].key;
      const std::string parent = text.substr(0, text.rfind('|'));
      const bool is_first = parent.find('|') == std::string::npos;
      RC_ASSERT(is_first || texts.contains(parent));
    }
  }

  // What can be found, of all that there ever was.
  void check_every_name() const {
    for (const auto& [text, key] : keys_of_text_) RC_ASSERT(sut_.find(key) == model_.find(text));
  }
  void remember(const Sequence& s) {
    for (const Name& name : s.names) keys_of_text_[name.text] = name.key;
  }

  Draw draw_;
  uint32_t num_blocks_;
  BlockPool sut_;
  NaiveBlockPool model_{num_blocks_};
  BlockKeyInterner keys_;
  std::vector<Sequence> live_;
  std::map<std::string, BlockKey> keys_of_text_;
  uint64_t next_sequence_ = 0;
};

RC_GTEST_PROP(BlockPool, EqualsTheListModel, ()) {
  const SeededCase c = any_seeded_case(300);
  PoolPair pair(c.seed);
  for (int i = 0; i < c.num_ops; ++i) pair.operate();
  pair.end_all();
  RC_CLASSIFY(pair.hit, "hits");
  RC_CLASSIFY(pair.reused, "reuses cached blocks");
  RC_CLASSIFY(pair.twins, "computes a published block again");
  RC_CLASSIFY(pair.evicted, "evicts a namespace");
}

}  // namespace
}  // namespace loratory::sim
