#include <gtest/gtest.h>

#include "check/kernels/run_kernel_checks.hpp"
#include "gpu/plugin/cuda_plugin.hpp"
#include "suite.hpp"

// Our kernels through the door that everybody's come through.

namespace loratory::gpu {
namespace {

class CudaPluginOnGpu : public OnGpu {
 protected:
  void expect_pass(std::vector<std::string> operations, int64_t num_cases) {
    check::Options options;
    options.operations = std::move(operations);
    options.num_cases = Trial::size(num_cases, num_cases / 10);
    options.max_products = Trial::size(1 << 22, 1 << 16);
    options.max_bytes = Trial::size(options.max_bytes, 0);
    options.command = "loratory check --impl cuda";
    const check::Report report = check::run_kernel_checks(check::Kernel(*cuda_plugin()), options);
    EXPECT_TRUE(report.ok()) << check::as_text(report);
    record_.num_cases = report.num_cases;
    for (const check::CheckResult& result : report.checks) {
      record_.num_results += result.num_comparisons;
    }
    record_.worst_error_over_bound = report.find("numbers")->worst;
    EXPECT_GT(report.find("graph_replay")->num_comparisons, 0);
  }
};

TEST_F(CudaPluginOnGpu, Linear) { expect_pass({"linear", "logits"}, 120); }
TEST_F(CudaPluginOnGpu, Halves) { expect_pass({"shrink", "expand"}, 120); }
TEST_F(CudaPluginOnGpu, Embedding) { expect_pass({"embedding"}, 40); }
TEST_F(CudaPluginOnGpu, Experts) {
  expect_pass({"expert_linear", "expert_shrink", "expert_expand"}, 90);
}

}  // namespace
}  // namespace loratory::gpu
