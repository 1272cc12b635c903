// JSON in every format. The first byte chooses: its low 3 bits the format, bit 3 whether bad rows
// are skipped, bit 6 whether logs get what they lack; so a corpus file starts with a digit or a
// letter, then the trace.
#include <array>
#include <cstdint>

#include "fuzz/targets/trace_checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::sim;
  constexpr std::array kFormats = {
      TraceFormat::detect, TraceFormat::native, TraceFormat::mooncake, TraceFormat::qwen_bailian,
      TraceFormat::vllm,   TraceFormat::otel,   TraceFormat::litellm,  TraceFormat::vllm_bench};
  if (size == 0) return 0;
  ReadOptions options;
  options.format = kFormats[(data[0] & 7) % kFormats.size()];
  options.skip_bad_rows = (data[0] & 8) != 0;
  if ((data[0] & 64) != 0) give_what_logs_lack(options);
  read_and_check({reinterpret_cast<const char*>(data) + 1, size - 1}, options);
  return 0;
}
