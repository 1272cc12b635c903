// Measured operators: the tables, what stands between their points, and step times made of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/operator_model.hpp"
#include "tests/scheduler_sim/cost/cost_testing.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kText =
    "loratory.operators/1 toy\ncard H100-80\nsource package 1, vLLM 2\n"
    "grid gemm_bf16 n,k tokens 1 16 32\n"
    "1024 1024 4000 5000 0\n"
    "1024 4096 9000 10000 12000\n"
    "4096 1024 9000 10000 12000\n"
    "4096 4096 20000 21000 22000\n"
    "grid allreduce_graph gpus bytes 128 4096\n"
    "2 4000 5000\n";

OperatorTable toy() { return parse_operator_table(kText, "toy"); }

TEST(OperatorTable, ReadsGridsAndKeys) {
  const OperatorTable table = toy();
  EXPECT_EQ(table.card, "H100-80");
  ASSERT_NE(table.find("gemm_bf16"), nullptr);
  EXPECT_EQ(table.find("gemm_fp8"), nullptr);
  const OperatorGrid& grid = *table.find("gemm_bf16");
  EXPECT_EQ(grid.num_rows(), 4);
  EXPECT_EQ(grid.find(std::array<int64_t, 2>{4096, 1024})[1], 10000.0F);
  EXPECT_TRUE(grid.find(std::array<int64_t, 2>{4096, 2048}).empty());
}

TEST(OperatorTable, NamesTheBadLine) {
  const auto error_of = [](std::string text) -> std::string {
    try {
      parse_operator_table(text, "toy");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string good(kText);
  const auto with = [&good](std::string_view from, std::string_view to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_EQ(error_of(good), "");
  EXPECT_THAT(error_of(with("/1", "/2")), testing::HasSubstr("toy:1"));
  EXPECT_THAT(error_of(with("card ", "cart ")), testing::HasSubstr("toy:2"));
  EXPECT_THAT(error_of(with("1 16 32", "1 16 16")), testing::HasSubstr("toy:4"));
  EXPECT_THAT(error_of(with("5000 0", "5000")), testing::HasSubstr("toy:5"));
  EXPECT_THAT(error_of(with("5000 0", "5000 0 0")), testing::HasSubstr("toy:5"));
  EXPECT_THAT(error_of(with("5000 0", "5000 -1")), testing::HasSubstr("toy:5"));
  EXPECT_THAT(error_of(with("5000 0", "5000 9999999999999999")), testing::HasSubstr("toy:5"));
  EXPECT_THAT(error_of(with("1024 4096", "1024 1024")), testing::HasSubstr("toy:6"));
}

TEST(OperatorTable, TheLibraryHoldsEveryTableAndItsCard) {
  for (const std::string_view name : operator_table_names()) {
    const OperatorTable& table = operator_table(name);
    EXPECT_EQ(table.name, name);
    EXPECT_NO_THROW(parse_gpu_spec(table.card));
    for (const char* grid : {"gemm_bf16", "decode_bf16", "prefill_bf16", "moe_bf16",
                             "allreduce_graph", "allreduce_eager"}) {
      ASSERT_NE(table.find(grid), nullptr) << name << grid;
    }
    EXPECT_EQ(operator_table_of(parse_gpu_spec(table.card)), name);
    EXPECT_TRUE(is_measured_card(table, parse_gpu_spec(table.card)));
  }
}

TEST(Curve, IsLinearBetweenPointsAndKeepsItsLastSlope) {
  const Curve curve({1, 4, 2000, 4000}, {10, 40, 50, 30});
  for (const auto& [x, y] : std::vector<std::pair<double, double>>{
           {0, 10}, {1, 10}, {2.5, 25}, {4, 40}, {1002, 45}, {3000, 40}, {4000, 30}, {9000, 30}}) {
    EXPECT_DOUBLE_EQ(curve(x), y) << x;
  }
  EXPECT_DOUBLE_EQ(Curve({8}, {3})(100), 3);
  const Surface surface({1, 2}, {10, 20}, {1, 2, 3, 8});
  EXPECT_DOUBLE_EQ(surface(1.5, 15), 3.5);
  EXPECT_DOUBLE_EQ(surface(1, 5), 1);
  EXPECT_DOUBLE_EQ(surface(2, 30), 13);
}

TEST(OperatorTimes, AMeasuredShapeHasItsTimes) {
  const OperatorTable table = toy();
  const OperatorTimes times(table, parse_gpu_spec("H100-80"));
  const Curve curve = *times.gemm(4096, 4096, false);
  EXPECT_DOUBLE_EQ(curve(1), 20000);
  EXPECT_DOUBLE_EQ(curve(16), 21000);
  EXPECT_DOUBLE_EQ(curve(24), 21500);  // linear between
  EXPECT_DOUBLE_EQ(curve(48), 23000);  // goes on beyond
  EXPECT_FALSE(times.gemm(4096, 4096, true).has_value());
}

TEST(OperatorTimes, ShapesBetweenAreLinearInBothSizes) {
  const OperatorTable table = toy();
  const OperatorTimes times(table, parse_gpu_spec("H100-80"));
  // A quarter of the way from 1024 to 4096 in n; half way in both, the mean of all four.
  EXPECT_DOUBLE_EQ((*times.gemm(1792, 4096, false))(1), 0.75 * 9000 + 0.25 * 20000);
  EXPECT_DOUBLE_EQ((*times.gemm(2560, 2560, false))(1), (4000 + 9000 + 9000 + 20000) / 4.0);
  // Twice the largest n: twice the time. Below the least: its time.
  EXPECT_DOUBLE_EQ((*times.gemm(8192, 4096, false))(1), 40000);
  EXPECT_DOUBLE_EQ((*times.gemm(512, 1024, false))(1), 4000);
}

TEST(OperatorTimes, NothingIsFasterThanTheDatasheet) {
  std::string text(kText);
  text.replace(text.find("20000 21000 22000"), 17, "1000 1000 1000");
  const OperatorTable table = parse_operator_table(text, "toy");
  const OperatorTimes times(table, parse_gpu_spec("H100-80"));
  const double bytes_ns = 2 * 4096.0 * 4096 / 3.35e12 * 1e9;
  EXPECT_DOUBLE_EQ((*times.gemm(4096, 4096, false))(1), bytes_ns);
}

TEST(OperatorTimes, ARelativesTimesArePutTogetherFromTheirParts) {
  const OperatorTable table = toy();
  const auto on = [&table](const char* gpu) {
    return (*OperatorTimes(table, parse_gpu_spec(gpu)).gemm(4096, 4096, false))(16);
  };
  // Of 21 us, 3 stay. Bytes: 2 x (n k + m n + m k), at 0.94 of the bandwidth.
  const double read = 2 * (4096.0 * 4096 + 16 * 2 * 4096) / (0.94 * 3.35e12) * 1e9;
  const double flops = 2 * 16 * 4096.0 * 4096 / 989e12 * 1e9;
  const double rest = std::sqrt(18000.0 * 18000 - read * read - flops * flops);
  EXPECT_NEAR(on("H100-80,bw=1.675TB/s"), 3000 + std::hypot(2 * read, flops, rest), 1e-6);
  EXPECT_NEAR(on("H100-80,flops=494.5T"), 3000 + std::hypot(read, 2 * flops, rest), 1e-6);
  EXPECT_NEAR(on("mem=80GiB,bw=3.35TB/s,flops=494.5T"),
              3000 + std::hypot(read, 2 * flops, 2 * rest), 1e-6);
  const double sm = 132 * 1.98 / (114 * 1.755);
  EXPECT_NEAR(on("H100-PCIe"), 3000 + std::hypot(read * 3.35 / 2.0, flops * 989 / 756, rest * sm),
              1e-6);
  EXPECT_DOUBLE_EQ(on("H100-80"), 21000);
  EXPECT_FALSE(is_measured_card(table, parse_gpu_spec("H100-80,bw=1.675TB/s")));
}

TEST(OperatorTimes, ATimeThatIsAllBytesFollowsTheBandwidthAlone) {
  std::string text(kText);
  text.replace(text.find("20000 21000 22000"), 17, "13000 13000 13000");  // 10 us beyond the launch
  const OperatorTable table = parse_operator_table(text, "toy");
  const OperatorTimes quarter(table, parse_gpu_spec("H100-80,bw=0.8375TB/s"));
  EXPECT_NEAR((*quarter.gemm(4096, 4096, false))(1), 3000 + 4 * 10000, 1e-6);
}

TEST(OperatorTimes, EveryGpuHasItsRelativeOrNone) {
  EXPECT_EQ(operator_table_of(parse_gpu_spec("H100-80,mem=64GiB,bw=2.02TB/s")), "h100_sxm");
  EXPECT_EQ(operator_table_of(parse_gpu_spec("L4")), "l40s");
  EXPECT_EQ(operator_table_of(parse_gpu_spec("MI300X")), "");
  EXPECT_EQ(operator_table_of(parse_gpu_spec("mem=80GiB,bw=3.3TB/s,flops=950T")), "h100_sxm");
  EXPECT_EQ(operator_table_of(parse_gpu_spec("mem=24GiB,bw=0.3TB/s,flops=120T")), "l40s");
}

TEST(StepOverheads, TokensArePaddedToCapturedSizes) {
  StepOverheads o;
  for (const auto& [tokens, padded] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                                               {2, 2},
                                                                               {3, 4},
                                                                               {5, 8},
                                                                               {8, 8},
                                                                               {9, 16},
                                                                               {256, 256},
                                                                               {257, 272},
                                                                               {512, 512},
                                                                               {513, 513}}) {
    EXPECT_EQ(padded_tokens(o, tokens), padded) << tokens;
  }
}

OperatorModel llama_on(const char* gpu, const StepOverheads& overheads = {}, int tp = 1) {
  const GpuSpec spec = parse_gpu_spec(gpu);
  RooflineOptions options;
  options.tp = tp;
  return OperatorModel(load_model_spec("Llama-3.1-8B"), spec,
                       operator_table(operator_table_of(spec)), options, overheads);
}

// The parts of a step from the table by hand, Llama-3.1-8B at batch 1 and context 1,024.
TEST(OperatorModel, IsTheSumOfItsOperators) {
  const OperatorModel model = llama_on("H100-80");
  EXPECT_TRUE(model.from_roofline().empty());
  const OperatorTimes times(operator_table("h100_sxm"), parse_gpu_spec("H100-80"));
  double gemms = 0;
  for (const auto& [n, k] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}})
    gemms += 32 * (*times.gemm(n, k, false))(1);
  const GpuSpec gpu = parse_gpu_spec("H100-80");
  const double activations = 32 * (4 * 4096 + 3 * 14336.0) * 2 * 1e9 / (0.9 * 3.35e12);
  const StepParts parts = model.parts(decode(1, 1024));
  EXPECT_NEAR(parts.dense, gemms + activations, 1e-3);
  EXPECT_NEAR(parts.attention, 32 * (*times.decode_attention({32, 8, 128, false}))(1, 1024), 1e-3);
  EXPECT_NEAR(parts.logits,
              (*times.gemm(128256, 4096, false))(1) + 8 * 128256 * 1e9 / (0.9 * 3.35e12), 1e-3);
  EXPECT_EQ(parts.allreduce, 0);
  EXPECT_NEAR(parts.overhead, 32 * 5 * 3000 + 25e3, 1e-3);
}

TEST(OperatorModel, TheHostIsBesideTheGpuOrBeforeIt) {
  StepOverheads o;
  o.host_ns = 1e6;
  o.host_row_ns = 10e3;
  const double alone = llama_on("H100-80").parts(decode(8, 1024)).total();
  EXPECT_NEAR(llama_on("H100-80", o).parts(decode(8, 1024)).total(), alone, 1e-3);
  o.host_overlaps = false;
  EXPECT_NEAR(llama_on("H100-80", o).parts(decode(8, 1024)).total(), alone + 1.08e6, 1e-3);
  o.host_overlaps = true;
  o.host_ns = 100e6;
  EXPECT_NEAR(llama_on("H100-80", o).parts(decode(8, 1024)).total(), 100.08e6, 1e-3);
  o.host_waiting_ns = 500;
  BatchShape behind = decode(8, 1024);
  behind.num_waiting_seen = 1000;
  EXPECT_NEAR(llama_on("H100-80", o).parts(behind).total(), 100.58e6, 1e-3);
}

TEST(OperatorModel, PenaltiesMoveTheLogitsAFewTimes) {
  StepOverheads o;
  const double plain = llama_on("H100-80", o).parts(decode(8, 1024)).logits;
  o.penalty_bytes_per_logit = 129;
  const double bytes = 8 * 128256.0 * 129;
  EXPECT_NEAR(llama_on("H100-80", o).parts(decode(8, 1024)).logits - plain,
              bytes * 1e9 / (0.9 * 3.35e12), 1e-3);
}

TEST(OperatorModel, PenaltiesMakeTheHostsPromptsAnewWhenRowsChange) {
  StepOverheads o;
  o.host_overlaps = false;
  o.penalty_host_row_ns = 2000;
  BatchShape shape = decode(8, 1024);
  const double same = llama_on("H100-80", o).parts(shape).overhead;
  shape.rows_changed = true;
  EXPECT_NEAR(llama_on("H100-80", o).parts(shape).overhead - same, 8 * 2000, 1e-3);
}

TEST(OperatorModel, SaysWhatTheRooflineGives) {
  const auto description = [](const char* name, const char* card, const char* dtype) {
    const GpuSpec gpu = parse_gpu_spec(card);
    ModelSpec model = load_model_spec(name);
    apply_dtypes(model, dtype, "auto");
    return OperatorModel(model, gpu, operator_table(operator_table_of(gpu)), {}, {}).description();
  };
  EXPECT_EQ(description("Llama-3.1-8B", "H100-80", "auto"),
            "operators measured on H100-80 (vLLM 0.24.0)");
  EXPECT_EQ(description("Llama-3.1-8B", "L4", "auto"),
            "operators measured on L40S (vLLM 0.24.0, all-reduce 0.22.0), scaled to L4");
  EXPECT_EQ(description("Llama-3.1-8B", "A100-80", "fp8"),
            "operators measured on A100-80 (vLLM 0.14.0); roofline for FP8 products");
}

// Mixtral's experts were measured; a model between takes those of the most similar shape.
TEST(OperatorModel, ExpertsAreMeasuredOrOfASimilarModel) {
  const OperatorTable& table = operator_table("h100_sxm");
  const GpuSpec gpu = parse_gpu_spec("H100-80");
  const OperatorTimes times(table, gpu);
  const ExpertShape mixtral{4096, 14336, 2, 8};
  const std::array<int64_t, 5> key{4096, 14336, 2, 8, 2};
  const OperatorGrid& grid = *table.find("moe_bf16");
  ASSERT_TRUE(times.has_experts(mixtral, 2));
  EXPECT_DOUBLE_EQ((*times.experts(mixtral, 2))(grid.axis[5]), grid.find(key)[5]);
  const ExpertShape larger{4096, 2 * 14336, 2, 8};
  EXPECT_FALSE(times.has_experts(larger, 2));
  // At 16,384 tokens FLOPs decide: twice as many, twice the time (the 3 us of a kernel aside).
  EXPECT_NEAR((*times.experts(larger, 1))(16384) / (*times.experts(mixtral, 1))(16384), 2, 0.01);

  ModelSpec spec = load_model_spec("Mistral-7B");
  spec.num_experts = 8;
  spec.experts_per_token = 2;
  const OperatorModel model(spec, gpu, table, {}, {});
  EXPECT_EQ(model.description(), "operators measured on H100-80 (vLLM 0.24.0)");
  EXPECT_GT(model.parts(decode(64, 1024)).dense, 32 * (*times.experts(mixtral, 1))(64));
}

// A step grows with everything that it does.
TEST(OperatorModel, MoreWorkTakesMoreTime) {
  for (const char* gpu : {"H100-80", "A100-80", "L40S", "B200", "RTX-PRO-6000", "H200"}) {
    const OperatorModel model = llama_on(gpu);
    EXPECT_LT(model.step_ns(decode(1, 1024)), model.step_ns(decode(64, 1024))) << gpu;
    EXPECT_LT(model.step_ns(decode(64, 1024)), model.step_ns(decode(256, 1024))) << gpu;
    EXPECT_LT(model.step_ns(decode(64, 1024)), model.step_ns(decode(64, 8192))) << gpu;
    EXPECT_LT(model.step_ns(decode(64, 8192)), model.step_ns(decode(64, 200000))) << gpu;
  }
}

struct Error {
  double median = 0, p95 = 0;
};

Error error_of(std::vector<double> sizes) {
  std::ranges::sort(sizes);
  return {sizes[sizes.size() / 2], sizes[sizes.size() * 95 / 100]};
}

// What interpolation does to shapes that the table has, without their rows. The grid is then half
// as dense as it is: an upper bound of the error between its points. docs/cost_model.md quotes it.
OperatorTable without(const OperatorTable& table, std::string_view name, size_t number,
                      int64_t value) {
  OperatorTable fewer = table;
  for (OperatorGrid& grid : fewer.grids) {
    if (grid.name != name) continue;
    OperatorGrid kept = grid;
    kept.keys.clear();
    kept.ns.clear();
    for (size_t row = 0; row < grid.num_rows(); ++row) {
      if (grid.key(row)[number] == value) continue;
      kept.keys.insert(kept.keys.end(), grid.key(row).begin(), grid.key(row).end());
      kept.ns.insert(kept.ns.end(), grid.times(row).begin(), grid.times(row).end());
    }
    grid = kept;
  }
  return fewer;
}

Error gemm_error(const OperatorTable& table) {
  const GpuSpec gpu = parse_gpu_spec(table.card);
  std::vector<double> sizes;
  for (const int64_t held : {1024, 2560, 4096, 6144, 10240}) {
    for (const size_t number : {0, 1}) {
      const OperatorTable fewer = without(table, "gemm_bf16", number, held);
      const OperatorTimes times(fewer, gpu);
      for (const int64_t other : {1024, 3584, 5120, 8192, 12288}) {
        const std::array<int64_t, 2> key{number == 0 ? held : other, number == 0 ? other : held};
        const Curve curve = *times.gemm(key[0], key[1], false);
        const OperatorGrid& grid = *table.find("gemm_bf16");
        for (size_t i = 0; i < grid.axis.size(); ++i) {
          const double measured = grid.find(key).empty() ? 0 : grid.find(key)[i];
          if (measured > 0) sizes.push_back(std::fabs(curve(grid.axis[i]) / measured - 1));
        }
      }
    }
  }
  return error_of(sizes);
}

Error heads_error(const OperatorTable& table) {
  const OperatorGrid& grid = *table.find("prefill_bf16");
  std::vector<double> sizes;
  for (const int64_t heads : {4, 8, 24, 32, 40}) {
    const OperatorTable fewer = without(table, "prefill_bf16", 0, heads);
    const OperatorTimes times(fewer, parse_gpu_spec(table.card));
    const PrefillTimes prefill = *times.prefill_attention({heads, 4, 128, false});
    for (const int64_t rows : {1, 4, 16}) {
      const std::span<const float> measured =
          grid.find(std::array<int64_t, 4>{heads, 4, 128, rows});
      for (size_t i = 0; i < measured.size(); ++i) {
        if (measured[i] > 0)
          sizes.push_back(std::fabs(prefill(double(rows), grid.axis[i]) / measured[i] - 1));
      }
    }
  }
  return error_of(sizes);
}

TEST(OperatorTimes, HeldOutShapes) {
  for (const std::string_view name : operator_table_names()) {
    const Error gemm = gemm_error(operator_table(name));
    const Error heads = heads_error(operator_table(name));
    fmt::print(
        "{}: held-out GEMMs |error| median {:.1f} %, p95 {:.0f} %; heads {:.1f} %, {:.0f} %\n",
        name, 100 * gemm.median, 100 * gemm.p95, 100 * heads.median, 100 * heads.p95);
    EXPECT_LT(gemm.median, 0.07);
    EXPECT_LT(heads.median, 0.07);
  }
}

}  // namespace
}  // namespace loratory::sim
