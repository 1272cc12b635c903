#include <gtest/gtest.h>

#include "check/kernels/run_kernel_checks.hpp"

namespace loratory::check {
namespace {

TEST(ReferencePasses, EveryOperation) {
  const Kernel kernel(reference_plugin());
  Options options;
  options.num_cases = 160;
  options.max_products = 1 << 16;
  const Report report = run_kernel_checks(kernel, options);
  EXPECT_TRUE(report.ok()) << as_text(report);
  EXPECT_EQ(report.num_cases, 160);
  for (const char* name : {"numbers", "exact", "statistics", "storage_reuse", "rank_padding"}) {
    ASSERT_NE(report.find(name), nullptr);
    EXPECT_GT(report.find(name)->num_comparisons, 1000) << name;
  }
}

}  // namespace
}  // namespace loratory::check
