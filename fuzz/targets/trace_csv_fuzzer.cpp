// CSV and text logs in every format; the first byte chooses as in trace_jsonl_fuzzer.
#include <array>
#include <cstdint>

#include "fuzz/targets/trace_checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loratory::sim;
  constexpr std::array kFormats = {TraceFormat::detect,    TraceFormat::azure,
                                   TraceFormat::burst_gpt, TraceFormat::vidur,
                                   TraceFormat::splitwise, TraceFormat::litellm,
                                   TraceFormat::vllm_log,  TraceFormat::sglang_log};
  if (size == 0) return 0;
  ReadOptions options;
  options.format = kFormats[(data[0] & 7) % kFormats.size()];
  options.skip_bad_rows = (data[0] & 8) != 0;
  if ((data[0] & 64) != 0) give_what_logs_lack(options);
  read_and_check({reinterpret_cast<const char*>(data) + 1, size - 1}, options);
  return 0;
}
