#include "scheduler_sim/report/html.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fixture.hpp"
#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/report/fleet_tables.hpp"
#include "scheduler_sim/report/html/scale.hpp"
#include "scheduler_sim/report/html/sections.hpp"
#include "scheduler_sim/report/html/slot_grid.hpp"
#include "scheduler_sim/report/html/svg.hpp"
#include "scheduler_sim/report/html/sweep.hpp"
#include "scheduler_sim/report/html/thin.hpp"
#include "scheduler_sim/report/words.hpp"

namespace loratory::sim::report {
namespace {

using testing::ElementsAre;

std::string page_of(const SizeResult& result, const std::vector<TraceAdapter>& adapters) {
  std::ostringstream out;
  write_html(out, result, adapters);
  return std::move(out).str();
}

std::string big_page() { return page_of(test::big_result(), test::big_adapters()); }

// A failure names the part, not 200 KB of page.
testing::AssertionResult holds(const std::string& page, const std::string& part) {
  const bool found = page.find(part) != std::string::npos;
  return (found ? testing::AssertionSuccess() : testing::AssertionFailure())
         << "looked for " << part;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The first tag that closes what is not open, or stays open; "" when all tags balance. A '>'
// inside an attribute is an entity, and scripts hold no tag.
std::string unbalanced_tag(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::string tag = html.substr(at + 1, html.find('>', at) - at - 1);
    if (!open.empty() && open.back() == "script" && tag != "/script") continue;
    if (tag.starts_with("!") || tag.starts_with("meta") || tag.ends_with("/")) continue;
    if (!tag.starts_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

// LORATORY_REPORT_PAGE=/path/page.html keeps the page, to look at it in a browser.
TEST(Html, PageIsWholeAndSmall) {
  const std::string page = big_page();
  if (const char* path = std::getenv("LORATORY_REPORT_PAGE")) std::ofstream(path) << page;
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_LT(page.size(), 1'500'000);
  EXPECT_TRUE(page == big_page());
}

TEST(Html, TagsBalance) {
  EXPECT_EQ(unbalanced_tag(page_of(test::small_result(), test::small_adapters())), "");
  EXPECT_EQ(unbalanced_tag(page_of(test::big_result(), {})), "");
}

TEST(Html, NothingIsFetched) {
  const std::string page = big_page();
  for (const char* reference : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch("}) {
    EXPECT_FALSE(holds(page, reference));
  }
  EXPECT_TRUE(holds(page, "default-src 'none'"));
}

TEST(Html, StringsOfTheTraceAreEscaped) {
  SizeResult result = test::big_result();
  result.provenance.inputs[0].path = "</script><script>alert(2)</script>";
  result.workload.model = "\"><img onerror=alert(3)>";
  result.configs.back().problem = "<b>bold</b>";
  const std::string page = page_of(result, test::big_adapters());
  EXPECT_FALSE(holds(page, "<script>alert"));
  EXPECT_FALSE(holds(page, "<img"));
  EXPECT_FALSE(holds(page, "<b>"));
  EXPECT_TRUE(holds(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_EQ(count(page, "</script>"), 2U);
}

TEST(Html, EveryChartHasATextAlternativeAndATable) {
  const std::string page = big_page();
  for (const char* id : {"goodput", "headroom", "ttft", "tpot", "hits", "memory", "ttft-cdf",
                         "tpot-cdf", "timeline", "miss-ratio", "popularity", "reuse"}) {
    EXPECT_TRUE(holds(page, "<figure id=\"" + std::string(id) + "\""));
  }
  EXPECT_EQ(count(page, "<svg "), 12U);
  EXPECT_EQ(count(page, "<title id="), 12U);
  EXPECT_EQ(count(page, "<desc id="), 12U);
  EXPECT_EQ(count(page, "<details>"), 12U);
}

TEST(Html, ValuesThatAreNotFiniteAreLeftOut) {
  SizeResult result = test::big_result();
  result.configs[0].ttft.p99_ms = NAN;
  result.configs[8].tpot.p50_ms = INFINITY;
  result.goodput_min[1] = NAN;
  result.miss_ratio_curves[1].miss_ratios.back() = NAN;
  result.configs[4].ttft_cdf_ms.back() = INFINITY;
  EXPECT_TRUE(holds(page_of(result, test::big_adapters()), "</html>"));
}

TEST(Html, DataIslandIsTheResult) {
  const std::string page = page_of(test::small_result(), test::small_adapters());
  const std::string open = "<script type=\"application/json\" id=\"results\">";
  const size_t begin = page.find(open) + open.size();
  const auto json =
      nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(json["schema"], "loratory.results/2");
  EXPECT_EQ(json["configs"].size(), 3U);
}

TEST(Html, ManyAdaptersAndSpansStaySmall) {
  SizeResult result = test::big_result();
  result.workload.popularity = test::zipf_shares(20'000);
  test::Wobble wobble;
  ConfigResult& config = result.configs[4];
  config.max_loras = 256;
  config.slot_spans.clear();
  for (int i = 0; i < 400'000; ++i) {
    const auto begin = int64_t(wobble.next() * 3.5e12);
    config.slot_spans.push_back({begin, begin + 4000 * test::kMs, uint32_t(wobble.next() * 20'000),
                                 uint16_t(wobble.next() * 256)});
  }
  for (MissRatioCurve& curve : result.miss_ratio_curves) {
    for (int k = 257; k <= 20'000; ++k) {
      curve.sizes.push_back(k);
      curve.miss_ratios.push_back(1.0 / k);
    }
  }
  EXPECT_LT(page_of(result, {}).size(), 1'500'000);
}

TEST(Html, ReplayPageHasNoSweep) {
  SizeResult result = test::small_result();
  result.is_replay = true;
  result.configs = {test::kept_config()};
  result.recommended = -1;
  const std::string page = page_of(result, test::small_adapters());
  EXPECT_TRUE(holds(page, "Replay at max_loras"));
  EXPECT_TRUE(holds(page, "<figure id=\"timeline\""));
  EXPECT_FALSE(holds(page, "<figure id=\"goodput\""));
}

TEST(Html, SweepOfOneConfigurationThatFailsIsNoReplay) {
  SizeResult result = test::small_result();
  result.recommended = -1;
  for (const ConfigResult& failed : {test::kept_config(), test::infeasible_config()}) {
    result.configs = {failed};
    const std::string page = page_of(result, test::small_adapters());
    EXPECT_TRUE(holds(page, "No configuration meets the SLOs"));
    EXPECT_FALSE(holds(page, "Replay at max_loras"));
    EXPECT_TRUE(holds(page, "\"recommended\":null"));
  }
}

TEST(Html, SaysWhenNothingMeetsTheSlos) {
  SizeResult result = test::small_result();
  result.recommended = -1;
  EXPECT_TRUE(holds(page_of(result, test::small_adapters()), "No configuration meets the SLOs"));
  result.configs = {test::infeasible_config(), test::infeasible_config()};
  EXPECT_TRUE(holds(page_of(result, {}), "does not fit"));
  result.configs.clear();
  EXPECT_EQ(unbalanced_tag(page_of(result, {})), "");
}

TEST(Scale, TicksAreRound) {
  EXPECT_THAT(round_ticks(Scale(0, 10, 0, 100, false), 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(round_ticks(Scale(1, 1000, 0, 100, true), 4), ElementsAre(1, 10, 100, 1000));
  EXPECT_THAT(round_ticks(Scale(10, 100, 0, 100, true), 6), ElementsAre(10, 20, 50, 100));
  EXPECT_DOUBLE_EQ(round_up(72), 80);
  EXPECT_DOUBLE_EQ(Scale(1, 100, 0, 10, true)(10), 5);
  EXPECT_DOUBLE_EQ(Scale(3, 3, 0, 10, false)(3), 5);
}

TEST(Svg, LabelsAreSpreadInOrder) {
  EXPECT_THAT(spread({10, 11, 50}, 15, 0, 100), ElementsAre(10, 25, 50));
  EXPECT_THAT(spread({95, 99}, 15, 0, 100), ElementsAre(85, 100));
}

TEST(Svg, CoordinatesHaveOneDecimal) {
  EXPECT_EQ(coordinate(3), "3");
  EXPECT_EQ(coordinate(2.25), "2.3");
  EXPECT_EQ(coordinate(-0.42), "-0.4");
}

TEST(SlotGrid, LongestSpanFillsACell) {
  const std::vector<SlotSpan> spans = {
      {0, 55, 7, 0}, {55, 60, 8, 0}, {60, 100, 9, 0}, {0, 100, 1, 5}};
  const auto runs = runs_of(spans, 2, 10, 100);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].adapter, 7U);
  EXPECT_EQ(runs[0].end, 6U);
  EXPECT_EQ(runs[1].adapter, 9U);
  EXPECT_EQ(runs[1].begin, 6U);
  EXPECT_EQ(runs[1].end, 10U);
}

TEST(Thin, KeepsFirstAndLast) {
  EXPECT_THAT(kept_indices(3), ElementsAre(0, 1, 2));
  const auto kept = kept_indices(100'000);
  EXPECT_EQ(kept.front(), 0U);
  EXPECT_EQ(kept.back(), 99'999U);
  EXPECT_LE(kept.size(), kMaxCurvePoints);
}

TEST(Sweep, OneConfigurationForEachSize) {
  SizeResult result = test::small_result();
  result.configs.push_back(test::small_config(16));
  result.configs.back().max_cpu_loras = 128;
  result.configs.back().request_goodput = 100;
  EXPECT_THAT(sweep_of(result), ElementsAre(0, 1, 2));
  result.recommended = 3;
  EXPECT_THAT(sweep_of(result), ElementsAre(0, 3, 2));
  EXPECT_THAT(neighbours_of_focus(result), ElementsAre(0, 3, 2));
  EXPECT_EQ(knee_of(result), 16);
}

// Two rows of one max_loras are told apart.
TEST(FleetTables, ShowMaxCpuLorasWhereItDiffers) {
  SizeResult result = test::small_result();
  result.configs = {test::small_config(8), test::small_config(8)};
  result.recommended = -1;
  for (ConfigResult& c : result.configs) c.fleet.usd_per_million_tokens = 0.5;
  EXPECT_FALSE(holds(fleet_console(result), "max_cpu_loras"));
  EXPECT_FALSE(holds(fleet_section(result), "max_cpu_loras"));
  result.configs[1].max_cpu_loras = 128;
  const DataTable table = fleet_cost_table(result.configs);
  EXPECT_EQ(table.head.at(1), "max_cpu_loras");
  EXPECT_EQ(table.rows.at(0).at(1), "64");
  EXPECT_EQ(table.rows.at(1).at(1), "128");
  EXPECT_EQ(table.rows.at(1).size(), table.head.size());
  EXPECT_TRUE(holds(fleet_console(result), " max_loras max_cpu_loras replicas"));
  EXPECT_TRUE(holds(fleet_section(result), "max_cpu_loras"));
}

// A fleet keeps no slots: the page draws none, counts no copies over time, and has blocks for all.
TEST(Html, OfAFleetDrawsTheLoadOfAllReplicas) {
  SizeResult result = test::small_result();
  ConfigResult& c = result.configs[size_t(result.recommended)];
  EXPECT_TRUE(holds(page_of(result, {}), "copies  "));
  c.slot_spans.clear();
  c.fleet.num_replicas = 3;
  c.fleet.router = "lora-affinity";
  const std::string page = page_of(result, {});
  EXPECT_TRUE(holds(page, "<h3>Load over time</h3><p>The replicas together.</p>"));
  EXPECT_TRUE(holds(page, "KV blocks in use, of 80,688"));  // 3 x 26,896
  EXPECT_FALSE(holds(page, "copies  "));
  EXPECT_FALSE(holds(page, "copied to the GPU, per"));
  const std::string flags = "--max-loras 16 --max-cpu-loras 64 --replicas 3 --router lora-affinity";
  EXPECT_TRUE(holds(page, "<code>" + flags + "</code>"));
  EXPECT_EQ(headline(result), "Set " + flags);
  EXPECT_TRUE(holds(page, "<h1>Set max_loras to <em>16</em> on <em>3</em> replicas</h1>"));
}

}  // namespace
}  // namespace loratory::sim::report
