#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loratory::sim {

/// Statements [6.1]-[6.19] with a list of pages. A page is published under the whole text of what
/// it holds (namespace and every block before it), so a wrong hit can not hide behind an identity.
class NaiveBlockPool {
 public:
  struct Page {
    int refs = 0;
    std::string key;  // empty = not published
    uint64_t uid = 0;
  };

  explicit NaiveBlockPool(uint32_t num_blocks) : pages(num_blocks) {}

  uint32_t find(const std::string& key) const;
  void acquire(uint32_t page);
  uint32_t allocate();
  void publish(uint32_t page, const std::string& key, uint64_t uid);
  void release(const std::vector<uint32_t>& table, const std::vector<std::string>& keys,
               uint64_t uid);
  uint32_t evict_namespace(uint64_t uid);

  bool plain_free(uint32_t page) const {
    return page != 0 && !pages[page].refs && pages[page].key.empty();
  }
  uint32_t num_plain_free() const;
  uint32_t num_allocatable() const { return num_plain_free() + uint32_t(queue.size()); }

  std::vector<Page> pages;
  std::vector<uint32_t> queue;  // cached and free, next victim first
  std::vector<uint64_t> dead;   // namespaces that were evicted

 private:
  void unpublish(uint32_t page);
};

}  // namespace loratory::sim
