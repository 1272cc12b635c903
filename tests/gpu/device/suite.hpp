#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "tests/gpu/support/trial.hpp"

// How a property meets its cases. A case is a seed; the same seed gives the same case everywhere.
//   LORATORY_GPU_SEED=S     the case S alone: what a REPRO line says
//   LORATORY_GPU_SOAK_S=N   fresh seeds for N seconds, shared among the tests that run
//   LORATORY_GPU_CASES=N    at most N cases of each property
//   LORATORY_GPU_SHARE=I/N  every Nth case of the fixed set, from case I on: for N processes
//   LORATORY_GPU_WORK=N     at most N products a case (and N / 4 bytes of weights), for
//                           compute-sanitizer
//   LORATORY_GPU_CANARIES=0 tensors end where their allocations end, for compute-sanitizer
// Without any of them: a fixed set, the same in every run.
// Each test prints one line of JSON for machines, a property one REPRO line if it fails.

namespace loratory::gpu {

/// Runs the property on `num_cases` seeds that follow from its name, or as the environment says;
/// stops at the first that fails.
void for_all_seeds(int64_t num_cases, const std::function<void(Trial&)>& property);

/// Skipped where there is no GPU. A test that has no seeds prints its line too, of one case unless
/// it says more.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  Record record_{.num_cases = 1};

 private:
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace loratory::gpu
