// Raw bytes as a file: gzip, zstd or plain, with and without skipping bad rows.
#include <cstdint>

#include "fuzz/targets/trace_checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::sim;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadOptions options;
  read_and_check(bytes, options);
  options.skip_bad_rows = true;
  read_and_check(bytes, options);
  return 0;
}
