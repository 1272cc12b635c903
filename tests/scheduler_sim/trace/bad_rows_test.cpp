// Every rule that a row can break, with the exact line a user reads; and what skip_bad_rows does.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "tests/scheduler_sim/trace/error_of.hpp"

namespace loratory::sim {
namespace {

const std::string kMooncakeRow =
    "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 8]}\n";
const std::string kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
const std::string kVidurHeader = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
const std::string kNativeRow = "{\"arrival_ms\":5,\"prompt_tokens\":40,\"output_tokens\":1}\n";

struct BadCase {
  std::string bytes;
  std::string error;
};

void PrintTo(const BadCase& bad, std::ostream* out) {
  *out << testing::PrintToString(bad.bytes) << " -> " << bad.error;  // escapes control bytes
}

class BadRows : public testing::TestWithParam<BadCase> {};

TEST_P(BadRows, OneLineSaysWhereWhatAndWhatToDo) {
  EXPECT_EQ(error_of(GetParam().bytes), GetParam().error);
}

const std::string kJsonRemedy = "; one JSON object per line";

INSTANTIATE_TEST_SUITE_P(
    Jsonl, BadRows,
    testing::Values(
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"output_len",
                "t:2:50: invalid JSON (an unterminated string)" + kJsonRemedy},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8]",
                "t:2:77: invalid JSON (the line is cut off)" + kJsonRemedy},
        BadCase{kMooncakeRow + "{\"timestamp\": -6, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8]}",
                "t:2:15: timestamp is negative: '-6'; times count from the start of the trace"},
        BadCase{kMooncakeRow + "{\"timestamp\": NaN, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8]}",
                "t:2:15: timestamp is not a time: 'NaN'; write a decimal number"},
        BadCase{kMooncakeRow + "{\"timestamp\": 1e300, \"input_length\": 600, \"output_length\": "
                               "5, \"hash_ids\": [7, 8]}",
                "t:2:15: timestamp is out of range: '1e300'; check the unit of the times"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": -600, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8]}",
                "t:2:34: input_length is out of range: '-600'; it must be in 0..2147483647"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 99999999999999999999, "
                               "\"output_length\": 5, \"hash_ids\": [7, 8]}",
                "t:2:34: input_length is out of range: '99999999999999999999'; it must be in "
                "0..2147483647"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600.5, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8]}",
                "t:2:34: input_length is not a whole number: '600.5'; write decimal digits"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": \"600\", \"output_length\": "
                               "5, \"hash_ids\": [7, 8]}",
                "t:2:34: input_length is not a whole number: '\"600\"'; write decimal digits"},
        BadCase{kMooncakeRow + "{\"timestamp\": 4, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8]}",
                "t:2:15: this row arrives before the row above it; sort the rows by time"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7]}",
                "t:2:71: 1 block ids for 600 tokens in blocks of 512, which need 2; one id for "
                "every started block; --format or --block-tokens sets another size"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7, -8]}",
                "t:2:75: hash_ids holds no whole number >= 0 here; write ids in decimal digits"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": 7}",
                "t:2:71: invalid JSON (a value of another type)" + kJsonRemedy},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, "
                               "\"hash_ids\": [7, 8], \"tenant\": 1}",
                "t:2:79: unknown key 'tenant' in a mooncake trace; remove it, or name another "
                "format with --format"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"timestamp\": 7, \"input_length\": 600, "
                               "\"output_length\": 5, \"hash_ids\": [7, 8]}",
                "t:2:18: 'timestamp' appears twice; remove one"},
        BadCase{kMooncakeRow + "{\"timestamp\": 6, \"input_length\": 600, \"hash_ids\": [7, 8]}",
                "t:2:1: output_length is missing; a row of a mooncake trace has it"},
        BadCase{kMooncakeRow + "\n" + kMooncakeRow,
                "t:2:1: invalid JSON (an empty line)" + kJsonRemedy},
        BadCase{kMooncakeRow + "[1, 2]\n",
                "t:2:1: invalid JSON (a value of another type)" + kJsonRemedy},
        BadCase{kMooncakeRow + kMooncakeRow.substr(0, kMooncakeRow.size() - 1) + " {}\n",
                "t:2:79: something follows the object" + kJsonRemedy},
        BadCase{kMooncakeRow + std::string("{\"timestamp\": 6,\0}\n", 19),
                "t:2:17: a NUL byte; the file is damaged"},
        BadCase{kNativeRow + "{\"arrival_ms\":6,\"prompt_tokens\":40,\"output_tokens\":1,"
                             "\"adapter\":\"a\xff\"}\n",
                "t:2:66: text that is not UTF-8; convert the file to UTF-8"}));

const std::string kIdRow = "{\"arrival_ms\":6,\"prompt_tokens\":40,\"output_tokens\":1,\"id\":";
const std::string kHalf = "invalid JSON (half of a surrogate pair: '";

INSTANTIATE_TEST_SUITE_P(
    Escapes, BadRows,
    testing::Values(
        BadCase{kIdRow + "\"a\\ud800\"}",
                "t:1:61: " + kHalf + "\\ud800'); write both halves, or leave it out"},
        BadCase{kIdRow + "\"a\\ud83d\\u0041\"}",
                "t:1:61: " + kHalf + "\\ud83d'); write both halves, or leave it out"},
        BadCase{kIdRow + "\"\\ud83d\\ude00 \\uDE00\"}",
                "t:1:73: " + kHalf + "\\uDE00'); write both halves, or leave it out"},
        BadCase{kIdRow + "\"\\\\ud800\\t\\u12G4\"}",
                "t:1:69: invalid JSON (no escape of JSON: '\\u12G4'); write \\\\ for a backslash"},
        BadCase{kIdRow + "\"C:\\loras\"}",
                "t:1:62: invalid JSON (no escape of JSON: '\\l'); write \\\\ for a backslash"},
        BadCase{kIdRow + "\"\\u00",
                "t:1:64: invalid JSON (an unterminated string)" + kJsonRemedy}));

INSTANTIATE_TEST_SUITE_P(
    Native, BadRows,
    testing::Values(
        BadCase{"{\"arrival_ms\":5,\"output_tokens\":1}",
                "t:1:1: prompt_tokens and token_ids are both missing; give one of them"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":0,\"output_tokens\":1}",
                "t:1:33: a prompt of 0 tokens; a request has at least 1 prompt token"},
        BadCase{"{\"arrival_ms\":5,\"token_ids\":[],\"output_tokens\":1}",
                "t:1:29: a prompt of 0 tokens; a request has at least 1 prompt token"},
        BadCase{"{\"arrival_ms\":5,\"token_ids\":[1,2],\"prompt_tokens\":3,\"output_tokens\":1}",
                "t:1:29: 2 token_ids for 3 prompt_tokens; leave prompt_tokens out, or make them "
                "agree"},
        BadCase{"{\"arrival_ms\":5,\"token_ids\":[2147483648],\"output_tokens\":1}",
                "t:1:29: token_ids holds 2147483648; ids go up to 2147483647"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"block_ids\":[1]}",
                "t:1:65: block_ids without block_tokens; say how many tokens one block has"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"block_tokens\":4}",
                "t:1:68: block_tokens without block_ids; leave it out"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"block_tokens\":4,"
                "\"block_ids\":[1]}\n"
                "{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"block_tokens\":8,"
                "\"block_ids\":[1]}\n",
                "t:2:68: block_tokens 8 after 4; use one block size throughout"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"block_tokens\":4,"
                "\"block_ids\":[1]}\n{\"arrival_ms\":5,\"token_ids\":[3],\"output_tokens\":1}\n",
                "t:2:29: token_ids in a trace of block_ids; use one of them throughout"},
        BadCase{"{\"arrival_ms\":5,\"token_ids\":[3],\"output_tokens\":1}\n"
                "{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"block_tokens\":4,"
                "\"block_ids\":[1]}\n",
                "t:2:82: block_ids in a trace of token_ids; use one of them throughout"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"adapter\":\"a\","
                "\"rank\":65537}",
                "t:1:74: rank is out of range: '65537'; it must be in 1..65536"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"rank\":8}",
                "t:1:60: a rank without an adapter; name the adapter"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"adapter\":\"\"}",
                "t:1:63: adapter is empty; leave it out for the base model"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"id\":\"\"}",
                "t:1:58: id is empty; leave it out"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"id\":7}",
                "t:1:58: invalid JSON (a value of another type); one JSON object per line"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"adapter\":\"x\","
                "\"rank\":8}\n{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,"
                "\"adapter\":\"x\",\"rank\":16}\n",
                "t:2:74: adapter 'x' had rank 8 before; an adapter has one rank"},
        BadCase{"{\"arrival_ms\":5,\"prompt_tokens\":3,\"output_tokens\":1,\"cancel_ms\":4.5}",
                "t:1:65: cancelled before it arrives; give cancel_ms on the clock of "
                "arrival_ms"}));

INSTANTIATE_TEST_SUITE_P(
    Csv, BadRows,
    testing::Values(
        BadCase{kAzureHeader + "2023-11-16 18:15:46.68,374\n",
                "t:2:27: 2 cells, but the header has 3; one cell for every column, with "
                "',' between them"},
        BadCase{kAzureHeader + "2023-11-16 18:15:46.68,374,44,5\n",
                "t:2:32: 4 cells, but the header has 3; one cell for every column, with "
                "',' between them"},
        BadCase{kAzureHeader + "1700158546,374,44\n",
                "t:2:1: TIMESTAMP is not a time: '1700158546'; write YYYY-MM-DD HH:MM:SS.fff, with "
                "a zone or without"},
        BadCase{kAzureHeader + "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:46.67,374,44\n",
                "t:3:1: this row arrives before the row above it; sort the rows by time"},
        BadCase{kAzureHeader + "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:47,374,4",
                "t:3:26: the last row has no newline and may be cut off; append a newline if the "
                "file is whole"},
        BadCase{kVidurHeader + "inf,374,44\n",
                "t:2:1: arrived_at is not a time: 'inf'; write a decimal number"},
        BadCase{kVidurHeader + "1.5,,44\n",
                "t:2:5: num_prefill_tokens is not a whole number: ''; write decimal digits"},
        BadCase{kVidurHeader + "1.5,0,44\n",
                "t:2:5: a prompt of 0 tokens; a request has at least 1 prompt token"},
        BadCase{kVidurHeader + "1.5,1\xc3\x28,44\n",
                "t:2:6: text that is not UTF-8; convert the file to UTF-8"},
        BadCase{"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                "5,ChatGPT,472,0,472,Conversation log\n",
                "t:2:15: a failed request (0 response tokens); use the file without_fails, or "
                "leave failures out with --skip-bad-rows"},
        BadCase{"arrival_timestamp,prompt_size,token_size,batch_size\n1,2,3,2\n",
                "t:2:7: batch_size is out of range: '2'; it must be in 1..1"},
        BadCase{"arrived_at,num_prefill_tokens,num_decode_tokens,pd_ratio\n1,2,3,4\n",
                "t:1:49: unknown column 'pd_ratio' in a vidur trace; remove it, or name another "
                "format with --format"},
        BadCase{"arrived_at,num_prefill_tokens,arrived_at\n1,2,3\n",
                "t:1:31: column 'arrived_at' appears twice; remove one"},
        BadCase{"arrived_at,num_prefill_tokens\n1,2\n",
                "t:1:30: column 'num_decode_tokens' of a vidur trace is missing; add it, or name "
                "another format with --format"}));

// A date and time of the right form that no clock ever shows.
BadCase no_time(const std::string& stamp, const std::string& limit) {
  return {kAzureHeader + stamp + ",374,44\n",
          "t:2:1: TIMESTAMP is out of range: '" + stamp + "'; " + limit};
}

INSTANTIATE_TEST_SUITE_P(
    Calendar, BadRows,
    testing::Values(no_time("2024-02-30 18:15:46.68", "days of 2024-02 go from 01 to 29"),
                    no_time("2023-02-29 18:15:46.68", "days of 2023-02 go from 01 to 28"),
                    no_time("2023-11-00 18:15:46.68", "days of 2023-11 go from 01 to 30"),
                    no_time("2023-13-16 18:15:46.68", "months go from 01 to 12"),
                    no_time("2023-00-16 18:15:46.68", "months go from 01 to 12"),
                    no_time("1969-12-31 18:15:46.68", "years go from 1970 to 2199"),
                    no_time("2023-11-16 25:15:46.68", "hours go from 00 to 23"),
                    no_time("2023-11-16 24:00:00", "hours go from 00 to 23"),
                    no_time("2023-11-16 18:60:46.68", "minutes go from 00 to 59"),
                    no_time("2023-11-16 18:15:60", "seconds go from 00 to 59"),
                    no_time("2023-11-16 18:15:46+15:00", "zones go from -14:59 to +14:59"),
                    no_time("2023-11-16 18:15:46+01:60", "zones go from -14:59 to +14:59")));

// Numbers as spreadsheets show them; half of them say 1000 and a half.
const std::string kSemicolons = "arrived_at;num_prefill_tokens;num_decode_tokens\n";

BadCase grouped(const std::string& header, const std::string& cell, const std::string& remedy) {
  const char separator = header[std::string("arrived_at").size()];
  const bool is_quoted = cell.find(separator) != std::string::npos;
  const std::string text = is_quoted ? '"' + cell + '"' : cell;
  return {header + text + separator + "374" + separator + "44\n",
          "t:2:1: arrived_at is not a time: '" + cell + "'; " + remedy};
}

INSTANTIATE_TEST_SUITE_P(
    GroupedDigits, BadRows,
    testing::Values(
        grouped(kSemicolons, "1.000,5", "write it without marks for thousands: 1000.5"),
        grouped(kSemicolons, "1,000.5", "write it without marks for thousands: 1000.5"),
        grouped(kSemicolons, "-1.000,5", "write it without marks for thousands: -1000.5"),
        grouped(kSemicolons, "1.000.000,25", "write it without marks for thousands: 1000000.25"),
        grouped(kSemicolons, "1.000.000", "write it without marks for thousands: 1000000"),
        grouped(kSemicolons, "1,000,000", "write it without marks for thousands: 1000000"),
        grouped(kVidurHeader, "1,000.5", "write it without marks for thousands: 1000.5"),
        grouped(kVidurHeader, "1.000,5", "write it without marks for thousands: 1000.5"),
        grouped(kVidurHeader, "1,5", "write a decimal number"),
        grouped(kSemicolons, "1.2.3,4,5", "write a decimal number"),
        grouped(kSemicolons, "1.000,5 s", "write a decimal number")));

INSTANTIATE_TEST_SUITE_P(
    Whole, BadRows,
    testing::Values(BadCase{"",
                            "t:1:1: the trace has no rows; give a trace with at least one request"},
                    BadCase{kVidurHeader,
                            "t:2:1: the trace has no rows; give a trace with at least one request"},
                    BadCase{"a,b,c\n1,2,3\n",
                            "t:1:1: not a known trace format; name one with --format: native, "
                            "qwen-bailian, mooncake, vllm, azure, burstgpt, vidur, splitwise, "
                            "otel, litellm, vllm-log, sglang-log, vllm-bench"}));

TEST(SkipBadRows, CountsThemAndKeepsTheRest) {
  ReadOptions options;
  options.skip_bad_rows = true;
  const Trace trace = read_trace_from(
      kMooncakeRow +
          "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, x]}\n"
          "{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1]}\n"
          "{\"timestamp\": 4, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [3, "
          "4]}\n" +
          kMooncakeRow + "{\"timestamp\": 9, \"inp",
      "t", options);
  EXPECT_EQ(trace.num_rows_skipped, 4u);
  ASSERT_EQ(trace.requests.size(), 2u);
  // What the bad rows held is gone, so the good rows still find their own blocks.
  EXPECT_EQ(trace.block_ids, (std::vector<uint64_t>{7, 8, 7, 8}));
  EXPECT_EQ(trace.blocks_of(trace.requests[1])[1], 8u);
}

TEST(SkipBadRows, DoesNotHelpWhenNothingIsGood) {
  ReadOptions options;
  options.skip_bad_rows = true;
  EXPECT_EQ(error_of(kVidurHeader + "1,2\n", options),
            "t:3:1: every row of the trace is bad; give a trace with at least one request");
  EXPECT_EQ(error_of("arrived_at,x\n1,2\n", options).substr(0, 6), "t:1:12");
}

TEST(SkipBadRows, AnAdapterOfABadRowIsNotKept) {
  ReadOptions options;
  options.skip_bad_rows = true;
  const Trace trace = read_trace_from(
      kNativeRow + "{\"arrival_ms\":1,\"prompt_tokens\":1,\"output_tokens\":1,\"adapter\":\"a\"}\n",
      "t", options);
  EXPECT_EQ(trace.num_rows_skipped, 1u);
  EXPECT_TRUE(trace.adapters.empty());
}

TEST(LongLines, AreAnErrorAndCanBeSkipped) {
  const std::string bytes =
      kNativeRow + std::string(2 * LineReader::kMaxBytes, ' ') + "\n" + kNativeRow;
  EXPECT_EQ(error_of(bytes),
            "t:2:16777217: a line of over 16 MiB; split the file into one row per line");
  ReadOptions options;
  options.skip_bad_rows = true;
  const Trace trace = read_trace_from(bytes, "t", options);
  EXPECT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.num_rows_skipped, 1u);
}

// The rule "a cut file never yields a wrong request", over every possible cut.
TEST(CutFiles, NeverYieldAWrongRequest) {
  ReadOptions options;
  options.skip_bad_rows = true;
  const std::string csv = kVidurHeader + "0.0,374,44\n4.314579,396,109\n4.5,879,1234\n";
  const std::string jsonl = kMooncakeRow + kMooncakeRow + kNativeRow.substr(0, 0) + kMooncakeRow;
  for (const std::string& whole : {csv, jsonl}) {
    const Trace all = read_trace_from(whole, "t");
    for (size_t size = 0; size < whole.size(); ++size) {
      Trace cut;
      try {
        cut = read_trace_from(whole.substr(0, size), "t", options);
      } catch (const InputError&) {
        continue;
      }
      ASSERT_LE(cut.requests.size(), all.requests.size()) << size;
      for (size_t i = 0; i < cut.requests.size(); ++i) {
        EXPECT_EQ(cut.requests[i].arrival_ns, all.requests[i].arrival_ns) << size;
        EXPECT_EQ(cut.requests[i].prompt_tokens, all.requests[i].prompt_tokens) << size;
        EXPECT_EQ(cut.requests[i].output_tokens, all.requests[i].output_tokens) << size;
      }
    }
  }
}

}  // namespace
}  // namespace loratory::sim
