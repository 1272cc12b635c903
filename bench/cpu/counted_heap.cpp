// Counts every byte in use: memory_per_request reads the peak. In a file of its own, so that the
// compiler does not inline the replaced operators into their callers.
#include "bench/cpu/counted_heap.hpp"

#include <malloc.h>

#include <cstdlib>
#include <new>

namespace loratory {

CountedHeap heap;

}  // namespace loratory

void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  loratory::heap.change(int64_t(malloc_usable_size(memory)));
  return memory;
}
void operator delete(void* memory) noexcept {
  loratory::heap.change(-int64_t(malloc_usable_size(memory)));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
