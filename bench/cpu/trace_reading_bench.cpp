// Reading a trace of 1 M requests from the page cache, on one core; bytes/s are those of the file.
// Target: 0.5 GB/s for JSON lines. Lengths are drawn around those of the Mooncake conversation
// trace's rows (226 bytes a row: 20 block ids), so that the ids weigh as much as there.
//
//   cmake --preset release && cmake --build --preset release --target trace_reading_bench
//   build/release/bench/trace_reading_bench
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>

#include "reference/base/atomic_file.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/reuse.hpp"

namespace {

using namespace loratory::sim;

constexpr int kNumRows = 1'000'000;

// splitmix64.
uint64_t draw(uint64_t& state, uint64_t bound) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) % bound;
}

void append_mooncake_row(std::string& row, uint64_t& state, uint64_t time_ms) {
  const uint64_t num_blocks = 1 + draw(state, 39);
  const uint64_t first_block = draw(state, 182'790);
  fmt::format_to(std::back_inserter(row),
                 "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, "
                 "\"hash_ids\": [",
                 time_ms, num_blocks * 512 - draw(state, 512), 1 + draw(state, 700));
  for (uint64_t i = 0; i < num_blocks; ++i) {
    fmt::format_to(std::back_inserter(row), "{}{}", i == 0 ? "" : ", ", first_block + i);
  }
  row += "]}\n";
}

void append_vidur_row(std::string& row, uint64_t& state, uint64_t time_ms) {
  fmt::format_to(std::back_inserter(row), "{}.{:03}{:03},{},{}\n", time_ms / 1000, time_ms % 1000,
                 draw(state, 1000), 1 + draw(state, 4000), draw(state, 1000));
}

// A file of kNumRows that lives as long as the program.
class BenchTrace {
 public:
  template <typename AppendRow>
  BenchTrace(const char* name, const char* header, AppendRow append_row)
      : path_(std::filesystem::temp_directory_path() /
              (std::to_string(::getpid()) + "_loratory_bench_" + name)) {
    loratory::AtomicFile file(path_.string());
    file.stream() << header;
    uint64_t state = 1, time_ms = 0;
    std::string row;
    for (int i = 0; i < kNumRows; ++i) {
      row.clear();
      append_row(row, state, time_ms += 1 + draw(state, 500));
      file.stream() << row;
    }
    file.commit();
  }
  ~BenchTrace() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void read(benchmark::State& state, const std::filesystem::path& path) {
  size_t num_requests = 0;
  for (auto _ : state) num_requests += read_trace(path.string()).requests.size();
  state.SetItemsProcessed(int64_t(num_requests));
  state.SetBytesProcessed(int64_t(state.iterations()) * int64_t(std::filesystem::file_size(path)));
}

void BM_ReadMooncakeJsonl(benchmark::State& state) {
  static const BenchTrace trace("mooncake.jsonl", "", append_mooncake_row);
  read(state, trace.path());
}
BENCHMARK(BM_ReadMooncakeJsonl)->Unit(benchmark::kMillisecond);

void BM_ReadVidurCsv(benchmark::State& state) {
  static const BenchTrace trace("vidur.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n",
                                append_vidur_row);
  read(state, trace.path());
}
BENCHMARK(BM_ReadVidurCsv)->Unit(benchmark::kMillisecond);

void BM_PrefixReuse(benchmark::State& state) {
  static const BenchTrace file("reuse.jsonl", "", append_mooncake_row);
  const Trace trace = read_trace(file.path().string());
  const std::vector<uint64_t> capacities = {30'000};
  for (auto _ : state) benchmark::DoNotOptimize(prefix_reuse(trace, capacities));
  state.SetItemsProcessed(int64_t(state.iterations() * trace.block_ids.size()));
}
BENCHMARK(BM_PrefixReuse)->Unit(benchmark::kMillisecond);

}  // namespace
