// The one way in which flags take numbers, lists of sizes and files of flags.
#include "cli/flags.hpp"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/outputs.hpp"
#include "cli/size_list.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::cli {
namespace {

// What the call throws as InputError, or "no error".
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

template <typename T>
std::string number_error(const std::string& text, Range<T> range) {
  return error_of([&] { parse_number("--x", text, range); });
}

TEST(Numbers, TakeTheirRange) {
  EXPECT_EQ(parse_number("--x", "1", Range<int32_t>{1, 64}), 1);
  EXPECT_EQ(parse_number("--x", "64", Range<int32_t>{1, 64}), 64);
  EXPECT_EQ(parse_number("--x", "-7", Range<int64_t>{-9, 9}), -7);
  EXPECT_EQ(parse_number("--x", "18446744073709551615", Range<uint64_t>{0, UINT64_MAX}),
            UINT64_MAX);
  EXPECT_EQ(parse_number("--x", "2.5e2", Range<double>{0, 1e9}), 250);
  EXPECT_EQ(parse_number("--x", ".5", Range<double>{0, 1}), 0.5);
  EXPECT_EQ(number_error<int32_t>("65", {1, 64}),
            "--x: '65' is not a number from 1 to 64; give a whole number");
  EXPECT_EQ(number_error<double>("1.5", {0, 1}),
            "--x: '1.5' is not a number from 0 to 1; give one, such as 0.5");
}

TEST(Numbers, AreTheSameForEveryType) {
  for (const std::string text :
       {"",     " ",        " 5",    "5 ",     "+5",  "5x",    "0x10", "nan", "NaN", "-nan", "inf",
        "-inf", "infinity", "1e400", "-1e400", "1,5", "5_000", "1e",   "--5", "\n5", "5\n"}) {
    const std::string expected = "--x: '" + text + "' is not a number from ";
    EXPECT_TRUE(number_error<int32_t>(text, {0, 64}).starts_with(expected)) << text;
    EXPECT_TRUE(number_error<uint32_t>(text, {0, 64}).starts_with(expected)) << text;
    EXPECT_TRUE(number_error<int64_t>(text, {0, 64}).starts_with(expected)) << text;
    EXPECT_TRUE(number_error<uint64_t>(text, {0, 64}).starts_with(expected)) << text;
    EXPECT_TRUE(number_error<double>(text, {0, 64}).starts_with(expected)) << text;
  }
  EXPECT_NE(number_error<uint64_t>("-1", {0, UINT64_MAX}), "no error");
  EXPECT_NE(number_error<int32_t>("1.0", {0, 64}), "no error");
}

TEST(Numbers, HaveExamplesOfTheirRange) {
  const auto remedy = [](Range<double> range) {
    const std::string error = number_error<double>("x", range);
    return error.substr(error.find("; ") + 2);
  };
  EXPECT_EQ(remedy({0, 1e6}), "give one, such as 2 or 0.5");
  EXPECT_EQ(remedy({0.01, 1}), "give one, such as 0.5");
  EXPECT_EQ(remedy({1, 100}), "give one, such as 2");
  EXPECT_EQ(remedy({10, 20}), "give one, such as 15");
  EXPECT_EQ(remedy({0.6, 0.7}), "give one, such as 0.65");
}

TEST(Numbers, OfManyDigitsAreCut) {
  const std::string error = number_error<double>(std::string(309, '9'), {0, 1e9});
  EXPECT_LT(error.size(), 150u) << error;
  EXPECT_NE(error.find("99...' (309 bytes) is not a number"), std::string::npos) << error;
}

TEST(Sizes, AreListsAndRanges) {
  EXPECT_EQ(parse_sizes("--n", "16,4,8", 64), (std::vector<int32_t>{4, 8, 16}));
  EXPECT_EQ(parse_sizes("--n", "4:12:4,1", 64), (std::vector<int32_t>{1, 4, 8, 12}));
  EXPECT_EQ(parse_sizes("--n", "3:5", 64), (std::vector<int32_t>{3, 4, 5}));
}

TEST(Sizes, ThatSayLittleOrTooMuchAreErrors) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_sizes("--n", text, 10'000); });
  };
  EXPECT_EQ(error("4,8,4"), "--n: lists 4 twice; list each size once");
  EXPECT_EQ(error("1:10,5"), "--n: lists 5 twice; list each size once");
  EXPECT_EQ(error("1:5000"),
            "--n: lists more than 4096 sizes; each is a replay: list fewer, or take wider steps");
  EXPECT_EQ(error("1:4096"), "no error");
  EXPECT_EQ(error("8:4"), "--n: '8:4' has its last size below its first; write first:last:step");
  for (const char* text : {"", ",", "4,", "4,,8", "4:", ":4", "4:8:0", "4:8:2:1", "10001", "0",
                           "-4", "4:8:-1", "auto,4", "1e3"}) {
    EXPECT_NE(error(text), "no error") << text;
  }
}

class Flags : public ::testing::Test {
 protected:
  Flags() {
    CLI::App* size = program_.add_subcommand("size");
    add_number(*size, "--max-loras", max_loras_, {1, 64}, "");
    add_number(*size, "--max-lora-rank", max_loras_, {1, 64}, "");
    add_choice(*size, "--load-mode", load_mode_, {"overlap", "blocking"}, "");
    add_numbers(*size, "--ranks", ranks_, {1, 64}, "");
    add_names(*size, "--pin", names_, "");
    size->add_option("--json", json_);
    size->add_flag("--pack", pack_);
    size->fallthrough();
    program_.add_subcommand("replay");
    program_.add_option("--config", config_);
    program_.require_subcommand(1);
    refuse_missing_values(program_);
  }

  // What the program would say; empty if nothing is wrong.
  std::string parse(std::vector<const char*> words) {
    words.insert(words.begin(), "loratory");
    std::vector<std::string> given = arguments(int(words.size()), words.data());
    std::reverse(given.begin(), given.end());
    try {
      program_.parse(std::move(given));
    } catch (const CLI::ParseError& error) {
      return explain(program_, error);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  CLI::App program_{"", "loratory"};
  int32_t max_loras_ = 8;
  bool pack_ = false;
  std::string load_mode_ = "overlap", json_, config_;
  std::vector<uint32_t> ranks_;
  std::vector<std::string> names_;
};

TEST_F(Flags, FillTheirValues) {
  EXPECT_EQ(parse({"size", "--max-loras", "3", "--ranks", "8,16", "--load-mode=blocking"}), "");
  EXPECT_EQ(max_loras_, 3);
  EXPECT_EQ(ranks_, (std::vector<uint32_t>{8, 16}));
  EXPECT_EQ(load_mode_, "blocking");
}

TEST_F(Flags, NamesAreCellsOfCsv) {
  const auto names = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "size");
    EXPECT_EQ(parse(words), "");
    return names_;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"--pin", "a,b", "--pin", "c"}), (Names{"a", "b", "c"}));
  EXPECT_EQ(names({"--pin", "\"a,b\",c"}), (Names{"a,b", "c"}));
  EXPECT_EQ(names({"--pin", "c,\"a \"\"b\"\",\""}), (Names{"c", "a \"b\","}));
  EXPECT_EQ(names({"--pin", "a\"\"b\""}), (Names{"a\"\"b\""}));
  EXPECT_EQ(parse({"size", "--pin", "a,"}),
            "--pin: 'a,' has an empty name; write names with one comma between two");
  EXPECT_EQ(parse({"size", "--pin", "\"\""}),
            "--pin: '\"\"' has an empty name; write names with one comma between two");
  EXPECT_EQ(parse({"size", "--pin", "c,\"a,b"}),
            "--pin: 'c,\"a,b' has a quote that is not closed; quote a whole name: --pin "
            "'\"a,b\",c'");
  EXPECT_EQ(parse({"size", "--pin", "\"a\"b"}),
            "--pin: '\"a\"b' has text after a closing quote; quote a whole name: --pin "
            "'\"a,b\",c'");
}

TEST_F(Flags, SlipsGetTheNearestName) {
  EXPECT_EQ(parse({"sise"}), "'sise' is no command of loratory; did you mean 'size'?");
  EXPECT_EQ(parse({"export"}), "'export' is no command of loratory; size, replay");
  EXPECT_EQ(parse({"size", "--max-lora=8"}),
            "'--max-lora' is no flag of loratory size; did you mean '--max-loras'?");
  EXPECT_EQ(parse({"size", "--colour", "red"}),
            "'--colour' is no flag of loratory size; see loratory size --help");
  EXPECT_EQ(parse({"size", "--load-mode", "blokcing"}),
            "--load-mode: 'blokcing' is not one of overlap, blocking; did you mean 'blocking'?");
}

TEST_F(Flags, WhatIsMissingIsSaid) {
  EXPECT_EQ(parse({}), "loratory: the command is missing; give one of size, replay");
  EXPECT_EQ(parse({"size", "--json"}), "--json: its value is missing; see loratory size --help");
  EXPECT_EQ(parse({"size", "--config"}),
            "--config: its value is missing; see loratory size --help");
  EXPECT_EQ(parse({"size", "--json", "--ranks", "4"}),
            "--json: its value is missing, '--ranks' is a flag");
  EXPECT_EQ(parse({"size", "--max-loras=", "--ranks", "4"}), "--max-loras: its value is empty");
  EXPECT_EQ(parse({"size", "4"}),
            "'4' belongs to no flag of loratory size; leave it out, or see loratory size --help");
}

TEST_F(Flags, SwitchesTakeNoValue) {
  EXPECT_EQ(parse({"size", "--pack"}), "");
  EXPECT_EQ(parse({"size", "--pack=maybe"}),
            "--pack: takes no value; leave out '=' and what follows");
}

TEST_F(Flags, ThatChangeNothingAreRefused) {
  EXPECT_EQ(parse({"size", "--pack", "--json", "x"}), "");
  const CLI::App& size = *program_.get_subcommand("size");
  EXPECT_EQ(error_of([&] {
              refuse_ignored(size, {"--ranks", "--none"}, "of a rule");
            }),
            "no error");
  EXPECT_EQ(error_of([&] {
              refuse_ignored(size, {"--ranks", "--pack"}, "of a rule");
            }),
            "--pack: changes nothing: of a rule; leave it out");
}

// Whoever has the flags has their rule: no command need ask.
TEST(SloFlags, RefuseLimitsOfNearlyNothing) {
  CLI::App app;
  sim::Slo slo;
  add_slo_options(app, slo);
  const auto parse = [&](const std::string& words) { return error_of([&] { app.parse(words); }); };
  EXPECT_EQ(parse("--slo-ttft-ms 0.0009"),
            "--slo-ttft-ms: 0.0009 ms is less than a microsecond; give 0.001 or more, or 0 for no "
            "limit");
  EXPECT_EQ(parse("--slo-tpot-ms x"),
            "--slo-tpot-ms: 'x' is not a number from 0 to 1000000000; give one, such as 2 or 0.5");
  EXPECT_EQ(parse("--slo-ttft-ms 0 --slo-tpot-ms 0.001"), "no error");
  EXPECT_EQ(slo.ttft_ms, 0);
  EXPECT_EQ(slo.tpot_ms, 0.001);
}

TEST_F(Flags, AreGivenOnce) {
  EXPECT_EQ(parse({"size", "--max-loras", "4", "--max-loras", "4"}),
            "--max-loras: is given 2 times; give it once");
  EXPECT_EQ(parse({"size", "--config", "a", "--config", "b"}),
            "--config: is given 2 times; give it once");
}

}  // namespace
}  // namespace loratory::cli
