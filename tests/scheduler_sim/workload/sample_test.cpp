// The bundled sample: its recipe on traces/README.md still makes it, and it is what the page says.

#include <cmath>
#include <cstdlib>
#include <set>

#include "scheduler_sim/sizing/miss_ratio_curve.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

const std::string kTraces = std::string(LORATORY_SOURCE_DIR) + "/traces/";

std::string unpacked(const std::string& path) {
  const auto raw = open_file(path);
  const auto source = decompressed(*raw, path);
  std::string text;
  char buffer[65'536];
  while (const size_t count = source->read(buffer, sizeof buffer)) text.append(buffer, count);
  return text;
}

// The first `loratory trace generate` of the page, its lines joined.
std::string recipe() {
  const std::string page = unpacked(kTraces + "README.md");
  const size_t begin = page.find("loratory trace generate");
  std::string command = page.substr(begin, page.find("```", begin) - begin);
  for (char& c : command) {
    if (c == '\\' || c == '\n') c = ' ';
  }
  return command;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Sample, ItsRecipeMakesTheSameBytes) {
  const std::string program = LORATORY_CLI;
  if (program.empty()) GTEST_SKIP() << "built without the program";
  const TempFile out("");
  std::string command = replaced(recipe(), "traces/sample.jsonl.gz", "'" + out.path() + "'");
  command = replaced(command, "loratory", "'" + program + "'");
  ASSERT_EQ(std::system((command + " 2>/dev/null").c_str()), 0) << command;
  const std::string made = unpacked(out.path()), kept = unpacked(kTraces + "sample.jsonl.gz");
  EXPECT_TRUE(made == kept) << "traces/sample.jsonl.gz is not what traces/README.md says: "
                            << command;
}

TEST(Sample, IsWhatItsPageSays) {
  const Trace trace = read_trace(kTraces + "sample.jsonl.gz");
  EXPECT_EQ(trace.requests.size(), 3588u);
  EXPECT_EQ(trace.adapters.size(), 64u);
  std::set<uint32_t> ranks;
  for (const TraceAdapter& adapter : trace.adapters) ranks.insert(adapter.rank);
  EXPECT_EQ(ranks, (std::set<uint32_t>{8, 16, 32, 64}));
  double prompt = 0, output = 0;
  for (const TraceRequest& r : trace.requests) prompt += r.prompt_tokens, output += r.output_tokens;
  EXPECT_EQ(std::llround(prompt / 3588), 1184);
  EXPECT_EQ(std::llround(output / 3588), 200);
}

// Share of blocks that hit an unbounded cache, keyed by adapter or not.
double block_hit_ratio(const Trace& trace, bool by_adapter) {
  std::set<std::pair<AdapterIndex, uint64_t>> cache;
  uint64_t hits = 0, blocks = 0;
  for (const TraceRequest& request : trace.requests) {
    const AdapterIndex space = by_adapter ? request.adapter : 0;
    bool all_before = true;
    for (const uint64_t id : trace.blocks_of(request)) {
      all_before = all_before && cache.contains({space, id});
      hits += all_before;
      ++blocks;
    }
    for (const uint64_t id : trace.blocks_of(request)) cache.emplace(space, id);
  }
  return double(hits) / double(blocks);
}

TEST(Sample, PromptsRepeatWithinAdaptersAndAcrossThem) {
  const Trace trace = read_trace(kTraces + "sample.jsonl.gz");
  EXPECT_NEAR(block_hit_ratio(trace, true), .626, .0005);
  EXPECT_NEAR(block_hit_ratio(trace, false), .631, .0005);
}

TEST(Sample, FewSlotsMissOftenAndManyHardlyEver) {
  const auto references = adapter_references(read_trace(kTraces + "sample.jsonl.gz"));
  const auto lru = lru_curve(references, std::vector<int32_t>{4, 16, 64}).miss_ratios;
  EXPECT_NEAR(lru[0], .491, .0005);
  EXPECT_NEAR(lru[1], .252, .0005);
  EXPECT_NEAR(lru[2], .018, .0005);
}

}  // namespace
}  // namespace loratory::sim
