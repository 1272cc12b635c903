#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "check/kernels/memory.hpp"

namespace loratory::check {
namespace {

void* or_no_room(void* address, bool is_there) {
  if (!is_there) throw_no_room();
  return address;
}

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override {
    void* const out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return or_no_room(out, out != nullptr);
  }
  void* reserve(size_t bytes) override {
    void* const out = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    or_no_room(out, out != MAP_FAILED);
    reserved_[out] = bytes;
    return out;
  }
  void release(void* address) override {
    const auto found = reserved_.find(address);
    if (found == reserved_.end()) return std::free(address);
    munmap(address, found->second);
    reserved_.erase(found);
  }
  void write(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  const std::byte* host_view(const void* address) const override {
    return static_cast<const std::byte*>(address);
  }
  void* stream() override { return nullptr; }
  void synchronize() override {}
  std::string name() const override { return "host"; }

 private:
  std::map<void*, size_t> reserved_;
};

}  // namespace

void throw_no_room() {
  throw NoRoom("", "the host has no memory left for this case",
               "end what else runs, or take smaller cases (--max-products)");
}

std::unique_ptr<Memory> make_host_memory() { return std::make_unique<HostMemory>(); }

}  // namespace loratory::check
