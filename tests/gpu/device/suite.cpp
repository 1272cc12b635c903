#include "suite.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <random>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string test_name() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}", test->test_suite_name(), test->name());
}

uint64_t seed_of_name(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char letter : name) hash = (hash ^ uint64_t(letter)) * 0x100000001B3ULL;
  return hash;
}

void print_repro(uint64_t seed) {
  const std::string work = environment("LORATORY_GPU_WORK");
  fmt::print("REPRO: {}LORATORY_GPU_SEED={} <this binary> --gtest_filter={}\n",
             work.empty() ? "" : "LORATORY_GPU_WORK=" + work + " ", seed, test_name());
}

struct GpuName {
  std::string name, driver;
};
GpuName gpu_name() {
  cudaDeviceProp device{};
  int driver = 0;
  LORATORY_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  LORATORY_CUDA_CHECK(cudaDriverGetVersion(&driver));
  return {device.name, fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10)};
}

bool has_gpu() {
  int count = 0;
  const bool ok = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return ok;
}

bool has_printed = false;  // the line of the test that runs

void print_record(const Record& record, uint64_t first_seed, double seconds) {
  std::string classes;
  for (const auto& [kind, count] : record.classes) {
    classes += fmt::format("{}\"{}\": {}", classes.empty() ? "" : ", ", kind, count);
  }
  const GpuName gpu = gpu_name();
  fmt::print(
      "{{\"test\": \"{}\", \"gpu\": \"{}\", \"driver\": \"{}\", \"commit\": \"{}\", \"seed\": {}, "
      "\"cases\": {}, \"results\": {}, \"worst_error_over_bound\": {:.4f}, \"seconds\": {:.2f}, "
      "\"passed\": {}, \"classes\": {{{}}}}}\n",
      test_name(), gpu.name, gpu.driver, environment("LORATORY_COMMIT"), first_seed,
      record.num_cases, record.num_results, record.worst_error_over_bound, seconds,
      !testing::Test::HasFailure(), classes);
  std::fflush(stdout);
  has_printed = true;
}

/// "1/4": cases 1, 5, 9, ... of the fixed set.
struct Share {
  int64_t index = 0, count = 1;
};
Share share() {
  const std::string text = environment("LORATORY_GPU_SHARE");
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return {};
  return {std::stoll(text), std::stoll(text.substr(slash + 1))};
}

/// True if the case passed.
bool run_case(uint64_t seed, Record& record, const std::function<void(Trial&)>& property) {
  Trial trial(seed, record);
  ++record.num_cases;
  try {
    property(trial);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  if (testing::Test::HasFailure()) print_repro(seed);
  return !testing::Test::HasFailure();
}

/// Each of the tests that run gets its share of the time.
double soak_seconds() {
  const auto all = double(environment_or("LORATORY_GPU_SOAK_S", 0));
  return all / std::max(1, testing::UnitTest::GetInstance()->test_to_run_count());
}

uint64_t fresh_seed() {
  std::random_device device;
  return (uint64_t(device()) << 32) | device();
}

}  // namespace

void for_all_seeds(int64_t num_cases, const std::function<void(Trial&)>& property) {
  Record record;
  const auto begin = Clock::now();
  const double soak = soak_seconds();
  const std::string one = environment("LORATORY_GPU_SEED");
  uint64_t first = soak > 0 ? fresh_seed() : seed_of_name(test_name());
  if (!one.empty()) first = std::stoull(one), num_cases = 1;
  num_cases = std::min(num_cases, environment_or("LORATORY_GPU_CASES", num_cases));
  const bool soaks = soak > 0 && one.empty();
  if (soaks) fmt::print("soak: {} from seed {} for {:.0f} s\n", test_name(), first, soak);
  const Share own = soaks || !one.empty() ? Share{} : share();
  for (int64_t i = own.index; soaks ? seconds_since(begin) < soak : i < num_cases; i += own.count) {
    if (!run_case(first + uint64_t(i), record, property)) break;
  }
  print_record(record, first, seconds_since(begin));
}

void OnGpu::SetUp() {
  begin_ = Clock::now();
  has_printed = false;
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
}
void OnGpu::TearDown() {
  if (!IsSkipped() && !has_printed) print_record(record_, 0, seconds_since(begin_));
}

}  // namespace loratory::gpu
