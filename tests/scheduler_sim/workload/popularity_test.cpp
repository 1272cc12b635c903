#include "scheduler_sim/workload/popularity.hpp"

#include <cmath>

#include "scheduler_sim/workload/random.hpp"
#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

std::vector<uint64_t> count_picks(const AdapterMix& mix, uint64_t n, int64_t time_ns = 0) {
  const RandomStream stream(11, Purpose::adapters);
  std::vector<uint64_t> counts(mix.adapters().size(), 0);
  for (uint64_t i = 0; i < n; ++i) ++counts.at(mix.pick(stream.unit(i), time_ns));
  return counts;
}

TEST(Popularity, ParsesEveryForm) {
  for (const char* text : {"uniform", "zipf:1.2", "power:0.3", "weights:a:b.txt",
                           "servegen:clients.csv", "servegen:clients.csv#m-large"}) {
    EXPECT_EQ(parse_popularity(text).text(), text);
  }
  EXPECT_EQ(parse_popularity("servegen:clients.csv#m-large").model, "m-large");
}

TEST(Popularity, ErrorsNameTheFlag) {
  const auto error = [](const char* text) {
    return error_of([&] { (void)parse_popularity(text); });
  };
  constexpr const char* kForms =
      "give uniform, zipf:A, power:A, weights:FILE or servegen:FILE[#MODEL]";
  EXPECT_EQ(error("zipf"), std::string("--popularity: unknown law 'zipf'; ") + kForms);
  EXPECT_EQ(error("pareto:2"), std::string("--popularity: unknown law 'pareto:2'; ") + kForms);
  EXPECT_EQ(error("zipf:-1"),
            "--popularity: exponent '-1' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("zipf:1x"),
            "--popularity: exponent '1x' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("zipf:nan"),
            "--popularity: exponent 'nan' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("power:0"), "--popularity: power:0 has no law; give an exponent > 0");
}

TEST(Popularity, ZipfSharesFallWithTheRank) {
  const AdapterMix mix = make_adapter_mix(parse_popularity("zipf:1"), 4, {});
  const double sum = 1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0;
  for (AdapterIndex i = 0; i < 4; ++i) EXPECT_NEAR(mix.share(i), 1 / (i + 1.0) / sum, 1e-15);
}

TEST(Popularity, PowerOneIsUniform) {
  const AdapterMix mix = make_adapter_mix(parse_popularity("power:1"), 10, {});
  for (AdapterIndex i = 0; i < 10; ++i) EXPECT_NEAR(mix.share(i), 0.1, 1e-15);
}

// S-LoRA draws floor(N * numpy.random.power(A)), and numpy's power(A) is U^(1/A).
TEST(Popularity, PowerDrawsTheAdapterThatSloraDraws) {
  constexpr uint32_t kAdapters = 200;
  const AdapterMix mix = make_adapter_mix(parse_popularity("power:0.3"), kAdapters, {});
  const RandomStream stream(1, Purpose::adapters);
  for (uint64_t i = 0; i < 20'000; ++i) {
    const double u = stream.unit(i);
    ASSERT_EQ(mix.pick(u, 0), uint32_t(kAdapters * std::pow(u, 1 / 0.3))) << u;
  }
}

TEST(Popularity, PicksFollowTheShares) {
  for (const char* law : {"uniform", "zipf:0.9", "zipf:0", "power:0.3", "power:2"}) {
    const AdapterMix mix = make_adapter_mix(parse_popularity(law), 50, {});
    std::vector<double> shares;
    for (AdapterIndex i = 0; i < 50; ++i) shares.push_back(mix.share(i));
    EXPECT_LT(std::abs(chi_square_z(count_picks(mix, 100'000), shares)), 4) << law;
  }
}

TEST(Popularity, AdaptersAreNumberedAndRanksAreDealtInTurn) {
  const AdapterMix mix = make_adapter_mix(parse_popularity("uniform"), 5, {8, 16});
  EXPECT_EQ(mix.adapters()[0].name, "adapter-000");
  EXPECT_EQ(mix.adapters()[4].name, "adapter-004");
  std::vector<uint32_t> ranks;
  for (const TraceAdapter& adapter : mix.adapters()) ranks.push_back(adapter.rank);
  EXPECT_EQ(ranks, (std::vector<uint32_t>{8, 16, 8, 16, 8}));
  EXPECT_EQ(make_adapter_mix({}, 1001, {}).adapters()[7].name, "adapter-0007");
}

TEST(Popularity, NumberOfAdaptersIsNeeded) {
  EXPECT_EQ(error_of([] { (void)make_adapter_mix({}, 0, {}); }),
            "--adapters: the number of adapters is missing; give --adapters N");
}

TEST(WeightsFile, TakesTextOrCsvWithOptionalRanks) {
  for (const char* text :
       {"a 1\nb\t3  64 # big\n\n# nobody\nc 0\n", "name,weight,rank\r\na,1\r\nb,3,64\r\nc,0\r\n"}) {
    const TempFile file(text);
    const AdapterMix mix = make_adapter_mix(parse_popularity("weights:" + file.path()), 0, {8});
    ASSERT_EQ(mix.adapters().size(), 3u);
    EXPECT_EQ(mix.adapters()[1].name, "b");
    EXPECT_EQ(mix.adapters()[1].rank, 64u);
    EXPECT_EQ(mix.adapters()[0].rank, 8u);
    EXPECT_DOUBLE_EQ(mix.share(1), 0.75);
    EXPECT_LT(std::abs(chi_square_z(count_picks(mix, 40'000), {0.25, 0.75, 0})), 4);
  }
}

TEST(WeightsFile, ErrorsNameLineAndColumn) {
  const auto error = [](const std::string& text) {
    const TempFile file(text);
    std::string line = error_of(
        [&] { (void)make_adapter_mix(parse_popularity("weights:" + file.path()), 0, {}); });
    const size_t at = line.find(file.path());
    return at == line.npos ? line : line.replace(at, file.path().size(), "F");
  };
  EXPECT_EQ(error("a 1\n  b"),
            "F:2:3: a row of 1 fields; write `name weight` or `name weight rank`");
  EXPECT_EQ(error("a 1 8 9"),
            "F:1:7: a row of 4 fields; write `name weight` or `name weight rank`");
  EXPECT_EQ(error("a,1\nb,two\n"),
            "F:2:3: weight 'two' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("a,-1"), "F:1:3: weight '-1' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("a,inf"), "F:1:3: weight 'inf' is not a number >= 0; write it like 12 or 0.25");
  EXPECT_EQ(error("a 1\nb 1\na 2"), "F:3:1: adapter 'a' appears twice; name every adapter once");
  EXPECT_EQ(error("a 1\ncaf\xe9 1"), "F:2:1: text that is not UTF-8; convert the file to UTF-8");
  EXPECT_EQ(error("a 1 0"), "F:1:5: rank '0' is not an integer; it must lie in 1 .. 65536");
  EXPECT_EQ(error("a 0\n"), "F: no weight is above 0; write rows `name weight`");
  EXPECT_EQ(error("a 1e308\nb 1e308"), "F: the weights add up to infinity; scale them");
  EXPECT_EQ(error(""), "F: no weight is above 0; write rows `name weight`");
}

TEST(WeightsFile, MustAgreeWithTheNumberOfAdapters) {
  const TempFile file("a 1\nb 1\n");
  const std::string error =
      error_of([&] { (void)make_adapter_mix(parse_popularity("weights:" + file.path()), 3, {}); });
  EXPECT_EQ(error, "--adapters: 3 adapters requested, but " + file.path() +
                       " has 2; leave out --adapters to take all of the file");
}

TEST(WeightsFile, MissingFileIsAnError) {
  EXPECT_EQ(error_of([] { (void)make_adapter_mix(parse_popularity("weights:/nowhere/w"), 0, {}); }),
            "/nowhere/w: cannot be read; check the path and its permissions");
}

ClientLoad two_windows() {
  ClientLoad load;
  load.names = {"x", "y"};
  load.windows = {{{3.0}, {1.0}}, {{0.0}, {4.0}}, {{0.0}, {0.0}}};
  return load;
}

TEST(AdapterMix, SharesFollowTheWindowsOfClients) {
  const AdapterMix mix({{"x", 8}, {"y", 8}}, two_windows());
  EXPECT_EQ(mix.pick(0.7, 0), 0u);
  EXPECT_EQ(mix.pick(0.8, kClientWindowNs - 1), 1u);
  EXPECT_EQ(mix.pick(0.1, kClientWindowNs), 1u);
  EXPECT_DOUBLE_EQ(mix.share(0), 3.0 / 8);
  EXPECT_EQ(mix.pick(0.37, 2 * kClientWindowNs), 0u) << "an empty window takes the mean shares";
  EXPECT_EQ(mix.pick(0.38, 2 * kClientWindowNs), 1u);
  EXPECT_EQ(mix.pick(0.7, 3 * kClientWindowNs), 0u) << "the windows come round again";
}

TEST(AdapterMix, NeverPicksAnAdapterWithoutShare) {
  for (const double share : {1.0, 0.7, 1e300, 5e-324}) {  // the last one: u * sum rounds to the sum
    const AdapterMix mix({{"a", 0}, {"b", 0}, {"c", 0}}, std::vector<double>{0, share, 0});
    for (const double u : {0x1p-53, 0.5, 1 - 0x1p-53}) EXPECT_EQ(mix.pick(u, 0), 1u) << share;
  }
}

}  // namespace
}  // namespace loratory::sim
