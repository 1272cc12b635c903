#include "scheduler_sim/workload/client_load.hpp"

#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

ClientWindow row(const char* model, uint32_t client, int64_t start_s, double rate_rps,
                 GapLaw law = GapLaw::gamma, double shape = 0.5) {
  return {"language", model, client, start_s, rate_rps, 1, law, shape, 1};
}

TEST(ClientLoad, OrdersClientsByRateAndKeepsTheirWindows) {
  const ClientLoad load =
      make_client_load({row("large", 0, 600, 1), row("large", 1, 600, 2),
                        row("large", 1, 1800, 3, GapLaw::weibull, 0.7), row("small", 0, 600, 9)},
                       "large", 0, "F");
  EXPECT_EQ(load.names, (std::vector<std::string>{"large-1", "large-0"}));
  ASSERT_EQ(load.windows.size(), 3u);  // 600, 1200, 1800: the first one is time 0
  EXPECT_EQ(load.windows[0][1].rate_rps, 1);
  EXPECT_EQ(load.windows[1][0].rate_rps, 0);
  EXPECT_EQ(load.windows[2][0].rate_rps, 3);
  EXPECT_EQ(load.windows[2][0].law, GapLaw::weibull);
  EXPECT_EQ(load.windows[2][0].shape, 0.7);
}

TEST(ClientLoad, KeepsTheBusiestAndLeavesOutTheIdle) {
  const std::vector<ClientWindow> table = {row("a", 0, 0, 1), row("b", 0, 0, 5), row("b", 1, 0, 0)};
  EXPECT_EQ(make_client_load(table, "", 0, "F").names, (std::vector<std::string>{"b-0", "a-0"}));
  EXPECT_EQ(make_client_load(table, "", 1, "F").names, (std::vector<std::string>{"b-0"}));
}

TEST(ClientLoad, ErrorsNameThePlace) {
  EXPECT_EQ(error_of([] { (void)make_client_load({row("a", 0, 0, 1)}, "b", 0, "F"); }),
            "F: no client of model 'b' has a rate > 0; "
            "name a model of the table after '#', or leave it out for all");
  EXPECT_EQ(
      error_of([] {
        (void)make_client_load({row("a", 0, 0, 1), row("a", 0, int64_t{1} << 60, 1)}, "", 0, "F");
      }),
      "F: the windows span more than a year; cut the table to what is needed");
}

}  // namespace
}  // namespace loratory::sim
