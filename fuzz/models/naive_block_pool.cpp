#include "fuzz/models/naive_block_pool.hpp"

#include <algorithm>

namespace loratory::sim {

uint32_t NaiveBlockPool::find(const std::string& key) const {
  for (uint32_t page = 1; page < pages.size(); ++page) {
    if (pages[page].key == key) return page;
  }
  return 0;
}

void NaiveBlockPool::acquire(uint32_t page) {
  std::erase(queue, page);
  ++pages[page].refs;
}

// Plain free pages first, lowest index first; then the head of the queue, which is forgotten.
uint32_t NaiveBlockPool::allocate() {
  uint32_t page = 1;
  while (page < pages.size() && !plain_free(page)) ++page;
  if (page == pages.size()) {
    page = queue.front();
    queue.erase(queue.begin());
    unpublish(page);
  }
  pages[page].refs = 1;
  return page;
}

void NaiveBlockPool::publish(uint32_t page, const std::string& key, uint64_t uid) {
  const bool is_dead = std::ranges::find(dead, uid) != dead.end();
  if (is_dead || !pages[page].key.empty() || find(key) != 0) return;
  pages[page].key = key;
  pages[page].uid = uid;
}

void NaiveBlockPool::unpublish(uint32_t page) { pages[page].key.clear(); }

// [6.18]: tail first; an own unpublished full page is published, or makes its twin recent.
void NaiveBlockPool::release(const std::vector<uint32_t>& table,
                             const std::vector<std::string>& keys, uint64_t uid) {
  for (size_t i = table.size(); i-- > 0;) {
    const uint32_t page = table[i];
    if (i < keys.size() && !keys[i].empty() && pages[page].key.empty()) {
      const uint32_t twin = find(keys[i]);
      if (twin == 0) {
        publish(page, keys[i], uid);
      } else if (pages[twin].refs == 0) {
        std::erase(queue, twin);
        queue.push_back(twin);
      }
    }
    if (--pages[page].refs == 0 && !pages[page].key.empty()) queue.push_back(page);
  }
}

uint32_t NaiveBlockPool::evict_namespace(uint64_t uid) {
  if (uid == 0) return 0;
  dead.push_back(uid);
  uint32_t num_freed = 0;
  for (uint32_t page = 1; page < pages.size(); ++page) {
    if (pages[page].key.empty() || pages[page].uid != uid) continue;
    num_freed += pages[page].refs == 0;
    std::erase(queue, page);
    unpublish(page);
  }
  return num_freed;
}

uint32_t NaiveBlockPool::num_plain_free() const {
  uint32_t count = 0;
  for (uint32_t page = 1; page < pages.size(); ++page) count += plain_free(page);
  return count;
}

}  // namespace loratory::sim
