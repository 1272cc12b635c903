// Two results.json side by side, made by hand from one result.
#include "scheduler_sim/report/compare.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "fixture.hpp"
#include "reference/base/atomic_file.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/report/json.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Compare : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }

  std::string path_of(const std::string& text) {
    paths_.push_back(testing::TempDir() + std::to_string(paths_.size()) + ".json");
    std::ofstream(paths_.back(), std::ios::binary) << text;
    return paths_.back();
  }
  static std::string json_of(const SizeResult& result) {
    std::ostringstream out;
    write_results_json(out, result);
    return std::move(out).str();
  }
  ResultsFile file(const std::function<void(SizeResult&)>& change) {
    SizeResult result = test::small_result();
    change(result);
    return read_results(path_of(json_of(result)));
  }
  ResultsFile original() {
    return file([](SizeResult&) {});
  }
  static std::vector<std::string> failures(const ResultsFile& a, const ResultsFile& b,
                                           std::string_view condition) {
    return compare(a, b, std::vector{parse_condition(condition)}).failures;
  }
  // The message, without the path of the file.
  std::string error_of(const std::string& text) {
    const std::string path = path_of(text);
    try {
      read_results(path);
    } catch (const InputError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.rfind(path, 0), 0U) << what;
      return what.substr(path.size() + 2);
    }
    return "no error";
  }

 private:
  std::vector<std::string> paths_;
};

TEST_F(Compare, ReadsCompressedFiles) {
  for (const char* ending : {".json", ".gz", ".zst"}) {
    const std::string path = testing::TempDir() + "results" + ending;
    AtomicFile out(path);
    write_results_json(out.stream(), test::small_result());
    out.commit();
    EXPECT_EQ(read_results(path).configs.size(), original().configs.size()) << ending;
  }
}

TEST_F(Compare, SaysWhatIsWrongWithACompressedFile) {
  for (const char* cut : {"\x1f\x8b\x08", "\x28\xb5\x2f\xfd"}) {
    EXPECT_EQ(error_of(cut), "the compressed data stops in the middle; fetch or compress it again");
  }
  EXPECT_THAT(error_of("\x1f\x8bno gzip"), HasSubstr("fetch or compress the file again"));
}

TEST_F(Compare, EqualFilesHaveNoDifference) {
  const Comparison same = compare(original(), original(), {});
  EXPECT_THAT(same.text, HasSubstr("\n\nno difference\n"));
  EXPECT_THAT(same.text, Not(HasSubstr("goodput")));
}

// 7.9 to 8.848 requests per second, 412.75 to 284.7975 ms.
TEST_F(Compare, SaysWhatChangedInOneSentence) {
  const ResultsFile b = file([](SizeResult& r) {
    r.configs[1].request_goodput *= 1.12;
    r.configs[1].ttft.p99_ms *= 0.69;
    r.provenance.settings[1].value = "128";
  });
  const std::string text = compare(original(), b, {}).text;
  EXPECT_THAT(text, HasSubstr("\nAt recommended 16/64, B serves 12 % more within the SLO; TTFT "
                              "p99 31 % lower, TPOT p99 the same.\n"));
  EXPECT_THAT(
      text, HasSubstr("  max-num-seqs                    64                               128\n"));
  EXPECT_THAT(text, HasSubstr("7.90 /s [7.75 /s, 8 /s]"));
  EXPECT_THAT(text, HasSubstr("+12 %"));
  EXPECT_THAT(text, HasSubstr("-31 %"));
  EXPECT_THAT(text, Not(HasSubstr("  tp ")));
}

TEST_F(Compare, SettingsAloneMayDiffer) {
  const ResultsFile b =
      file([](SizeResult& r) { r.provenance.inputs[0].checksum = "xxh3:0000000000000001"; });
  const std::string text = compare(original(), b, {}).text;
  EXPECT_THAT(text, HasSubstr("checksum of the native file"));
  EXPECT_THAT(text, HasSubstr("The settings differ, the results do not.\n"));
}

TEST_F(Compare, MatchesBySlotsHostPlacesAndReplicas) {
  const ResultsFile b = file([](SizeResult& r) {
    r.configs[0].max_cpu_loras = 65;
    r.configs[2].fleet.num_replicas = 2;
  });
  const std::string text = compare(original(), b, {}).text;
  EXPECT_THAT(text, HasSubstr("\nmax_loras/max_cpu_loras 16/64\n"));
  EXPECT_THAT(text, HasSubstr("Only in A: 4/64, 1024/64\n"));
  EXPECT_THAT(text, HasSubstr("Only in B: 4/65, 1024/64 x 2 replicas\n"));
  const ResultsFile other = file([](SizeResult& r) {
    for (ConfigResult& config : r.configs) config.max_cpu_loras = 77;
  });
  EXPECT_THROW(compare(original(), other, {}), InputError);
}

// What people compare are often two replays with other sizes.
TEST_F(Compare, OneConfigurationInEachIsAPair) {
  const auto only = [](int32_t max_loras) {
    return [max_loras](SizeResult& r) {
      r.is_replay = true;
      r.configs = {test::small_config(max_loras)};
    };
  };
  EXPECT_THAT(compare(file(only(8)), file(only(16)), {}).text, HasSubstr("8/64 against 16/64"));
}

TEST_F(Compare, ConditionsAreJudgedOnEveryPair) {
  const ResultsFile a = original();
  const ResultsFile b = file([](SizeResult& r) {
    r.configs[0].ttft.p99_ms *= 1.5;
    r.configs[1].ttft.p99_ms *= 1.2;
  });
  EXPECT_THAT(failures(a, b, "ttft_p99>+10%"),
              ElementsAre("fail-if ttft_p99>+10%: 4/64, 61.2 s -> 91.9 s +50 %, and 1 more"));
  EXPECT_THAT(failures(a, b, "ttft_p99>+50%"), IsEmpty());  // exactly 50 is not more
  EXPECT_THAT(failures(b, a, "ttft_p99<-33%"),
              ElementsAre("fail-if ttft_p99<-33%: 4/64, 91.9 s -> 61.2 s -33 %"));
  EXPECT_THAT(failures(a, b, "p99_ttft_ms>500ms").size(), 1U);
  EXPECT_THAT(failures(a, b, "tpot_p99>33.125"), IsEmpty());
  EXPECT_THAT(failures(a, b, "slo_attainment<99.2%").size(), 1U);
}

TEST_F(Compare, WhatNoLongerFitsFails) {
  const ResultsFile b = file([](SizeResult& r) { r.configs[1].feasible = false; });
  EXPECT_THAT(failures(original(), b, "goodput<-90%"),
              ElementsAre("fail-if goodput<-90%: 16/64 no longer fits in memory"));
  EXPECT_THAT(failures(b, original(), "goodput<-90%"), IsEmpty());
  const ResultsFile none = file([](SizeResult& r) { r.configs[1].ttft.p99_ms = NAN; });
  EXPECT_THAT(failures(original(), none, "ttft_p99>+10%").size(), 1U);  // nobody can judge it
}

TEST_F(Compare, OtherFilesAreRefused) {
  EXPECT_EQ(error_of("no"), "is not JSON (byte 2)");
  EXPECT_EQ(error_of("[]"), "must be a JSON object");
  EXPECT_EQ(error_of("{}"),
            "has no schema: it is not a results.json; write it with --json of this version of "
            "replay or size");
  EXPECT_EQ(error_of(R"({"schema":"loratory.results/1","configs":[]})"),
            "has the schema 'loratory.results/1', not loratory.results/2; write it with --json of "
            "this version of replay or size");
  EXPECT_EQ(error_of(R"({"schema":"loratory.results/2","configs":[]})"),
            "settings: is not a list; write it anew with --json of this version");
  EXPECT_EQ(error_of(R"({"schema":"loratory.results/2","settings":[],"configs":[{}]})"),
            "configs[0].max_loras: is missing");
  std::string text = json_of(test::small_result());
  const std::string key = "\"p99_ttft_ms\": ";
  text.insert(text.find(key, text.find("\"configs\"")) + key.size(), "\"x\", \"y\": ");
  EXPECT_EQ(error_of(text), "configs[0].p99_ttft_ms: must be a number or null");
}

TEST(Conditions, SayWhatIsWrongAndTheNearestName) {
  const auto error_of = [](std::string_view text) -> std::string {
    try {
      parse_condition(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  const std::string forms = "; write 'ttft_p99>+10%', 'goodput<-2%' or 'ttft_p99>500ms'";
  EXPECT_EQ(error_of("ttft_p99"), "--fail-if: 'ttft_p99': has no < or >" + forms);
  EXPECT_EQ(error_of("tftt_p99>1"),
            "--fail-if: 'tftt_p99>1': 'tftt_p99' is no measure; did you mean 'ttft_p99'?");
  EXPECT_EQ(error_of("ttft_p99>10%"),
            "--fail-if: 'ttft_p99>10%': a change begins with + or -" + forms);
  EXPECT_EQ(error_of("ttft_p99>+10"), "--fail-if: 'ttft_p99>+10': a change ends in %" + forms);
  for (const char* text : {"ttft_p99>", "ttft_p99>x", "ttft_p99>+nan%", "ttft_p99>inf",
                           "ttft_p99>+-1%", "ttft_p99>+%", "ttft_p99>>1", "goodput>1ms"}) {
    EXPECT_THAT(error_of(text), HasSubstr("is not a limit")) << text;
  }
  EXPECT_EQ(parse_condition(" ttft_p99 > 0.5 s ").limit, 500);
  EXPECT_EQ(parse_condition("slo_attainment<99%").limit, 0.99);
}

}  // namespace
}  // namespace loratory::sim
