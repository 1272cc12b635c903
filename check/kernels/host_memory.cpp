#include <cstdlib>
#include <cstring>
#include <new>

#include "check/kernels/memory.hpp"

namespace loratory::check {
namespace {

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override {
    void* const out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (out == nullptr) throw std::bad_alloc();
    return out;
  }
  void release(void* address) override { std::free(address); }
  void write(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  const std::byte* host_view(const void* address) const override {
    return static_cast<const std::byte*>(address);
  }
  void* stream() override { return nullptr; }
  void synchronize() override {}
  std::string name() const override { return "host"; }
};

}  // namespace

std::unique_ptr<Memory> make_host_memory() { return std::make_unique<HostMemory>(); }

}  // namespace loratory::check
