// Files as spreadsheets and editors write them, and files that are no text or never end.
#include <gtest/gtest.h>
#include <unistd.h>
#include <zstd.h>

#include <string>
#include <string_view>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/client_windows.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "tests/scheduler_sim/trace/error_of.hpp"

namespace loratory::sim {
namespace {

using namespace std::string_literals;

const std::string kVidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.5,30,4\n";
const std::string kNative =
    "{\"arrival_ms\":1,\"prompt_tokens\":2,\"output_tokens\":3,\"adapter\":"
    "\"\xc3\xa9\xf0\x9f\x90\xa6\"}\n";

// Each unit in two bytes.
std::string units(const std::u16string& text, bool is_big_endian) {
  std::string bytes;
  for (const char16_t unit : text) {
    const char low = char(unit & 0xff), high = char(unit >> 8);
    bytes += is_big_endian ? high : low;
    bytes += is_big_endian ? low : high;
  }
  return bytes;
}

std::u16string wide(const std::string& ascii) { return {ascii.begin(), ascii.end()}; }

TEST(Encodings, Utf8WithAMark) {
  EXPECT_EQ(read_trace_from("\xef\xbb\xbf" + kVidur, "t").requests.size(), 2u);
  EXPECT_EQ(read_trace_from("\xef\xbb\xbf" + kNative, "t").adapters[0].name,
            "\xc3\xa9\xf0\x9f\x90\xa6");
}

TEST(Encodings, Utf16WithAndWithoutAMark) {
  const std::u16string rows =
      u"{\"arrival_ms\":1,\"prompt_tokens\":2,\"output_tokens\":3,\"adapter\":\"\u00e9\U0001f426\"}"
      u"\n";
  for (const bool is_big_endian : {false, true}) {
    for (const std::u16string& mark : {u"\ufeff"s, u""s}) {
      const Trace trace = read_trace_from(units(mark + rows, is_big_endian), "t");
      ASSERT_EQ(trace.adapters.size(), 1u) << is_big_endian;
      EXPECT_EQ(trace.adapters[0].name, "\xc3\xa9\xf0\x9f\x90\xa6");
      EXPECT_EQ(read_trace_from(units(mark + wide(kVidur), is_big_endian), "t").requests.size(),
                2u);
    }
  }
  EXPECT_EQ(read_client_windows_from(
                units(u"\ufeffcategory,model,client_id,window_start_s,rate_rps,cv,pattern,shape,"
                      u"scale\nlanguage,m,1,0,2,,,,\n",
                      false),
                "w")
                .size(),
            1u);
}

TEST(Encodings, HalfASurrogatePairIsAnErrorAtItsLine) {
  const std::u16string row =
      u"{\"arrival_ms\":1,\"prompt_tokens\":2,\"output_tokens\":3,\"adapter\":\"";
  const std::u16string good = row + u"a\"}\n";
  const std::string rule = "text that is not UTF-8; convert the file to UTF-8";
  for (const char16_t half : {u'\xd83d', u'\xdc26'}) {
    const std::u16string bad = row + half + u"x\"}\n";
    EXPECT_EQ(error_of(units(u"\ufeff" + good + bad + good, false)), "t:2:64: " + rule);
    ReadOptions options;
    options.skip_bad_rows = true;
    EXPECT_EQ(read_trace_from(units(good + bad + good, true), "t", options).requests.size(), 2u);
  }
  EXPECT_EQ(error_of(units(good + row + u'\xd83d' + u"\"}", false)), "t:2:64: " + rule);
  EXPECT_EQ(error_of(units(good, false) + "{"), "t:2:1: " + rule);  // half a unit
}

TEST(Encodings, WhatIsNoTextIsNamed) {
  const std::string rule = "; give UTF-8 text, plain, gzip or zstd";
  EXPECT_EQ(error_of("\xff\xfe\0\0a\0\0\0"s), "t: is binary or UTF-32, not text" + rule);
  EXPECT_EQ(error_of("a\0\0\0"s), "t: is binary or UTF-32, not text" + rule);
  EXPECT_EQ(error_of("PK\x03\x04 \0x\n"s).substr(0, 19), "t:1:6: a NUL byte: ");
  EXPECT_THROW(read_trace("/dev/zero"), InputError);
}

TEST(SpreadsheetCsv, SemicolonsTabsQuotesAndDecimalCommas) {
  for (const std::string& csv :
       {"arrived_at;num_prefill_tokens;num_decode_tokens\r\n0,5;10;2\r\n1,5;30;4\r\n"s,
        "arrived_at\tnum_prefill_tokens\tnum_decode_tokens\n0.5\t10\t2\n1,5\t30\t4\n"s,
        "\"arrived_at\",\"num_prefill_tokens\",\"num_decode_tokens\"\n"
        "\"0.5\",\"10\",2\n1.5,30,\"4\"\n"s}) {
    const Trace trace = read_trace_from(csv, "t");
    ASSERT_EQ(trace.requests.size(), 2u) << csv;
    EXPECT_EQ(trace.format, "vidur");
    EXPECT_EQ(trace.requests[0].arrival_ns, 500'000'000);
    EXPECT_EQ(trace.requests[1].arrival_ns, 1'500'000'000);
    EXPECT_EQ(trace.requests[1].output_tokens, 4u);
  }
}

TEST(SpreadsheetCsv, BadQuotesAndNumbersAreNamed) {
  const std::string header = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  EXPECT_EQ(error_of(header + "0.5,\"10,2\n"), "t:2:5: a quote that is not closed; close it");
  EXPECT_EQ(error_of(header + "0.5,\"10\"0,2\n"),
            "t:2:9: text after a closing quote; quote the whole cell");
  EXPECT_EQ(error_of("arrived_at;num_prefill_tokens;num_decode_tokens\n1.234,5;10;2\n"),
            "t:2:1: arrived_at is not a time: '1.234,5'; write it without marks for thousands: "
            "1234.5");
  EXPECT_EQ(
      error_of("arrived_at;num_prefill_tokens;num_decode_tokens\n1;10\n"),
      "t:2:5: 2 cells, but the header has 3; one cell for every column, with ';' between them");
}

// 1 GiB of one character in 33 kB.
std::string bomb(const std::string& before, char filling, size_t size) {
  std::string packed(1 << 20, '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  const std::string block(1 << 20, filling);
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  ZSTD_inBuffer head{before.data(), before.size(), 0};
  ZSTD_compressStream2(context, &out, &head, ZSTD_e_continue);
  for (size_t done = 0; done < size; done += block.size()) {
    ZSTD_inBuffer in{block.data(), block.size(), 0};
    ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue);
  }
  ZSTD_inBuffer none{nullptr, 0, 0};
  ZSTD_compressStream2(context, &out, &none, ZSTD_e_end);
  ZSTD_freeCCtx(context);
  packed.resize(out.pos);
  return packed;
}

TEST(EndlessLines, StopAtTheLimit) {
  const std::string bytes = bomb(kNative, ' ', LineReader::kMaxDroppedBytes + (32u << 20));
  EXPECT_EQ(error_of(bytes),
            "t:2:16777217: a line of over 16 MiB; split the file into one row per line");
  EXPECT_EQ(error_of(bomb("", 'x', 32u << 20)),
            "t:1:16777217: a line of over 16 MiB; split the file into one row per line");
  ReadOptions options;
  options.skip_bad_rows = true;
  EXPECT_EQ(error_of(bytes, options), "t:3:1: a line without end; give a file of one row per line");
}

}  // namespace
}  // namespace loratory::sim
