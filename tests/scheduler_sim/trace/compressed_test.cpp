// gzip, zstd and stdin-like sources give the same trace as the plain bytes; cut or damaged ones are
// errors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "reference/base/atomic_file.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/trace/byte_source.hpp"
#include "scheduler_sim/trace/line_reader.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "tests/scheduler_sim/trace/error_of.hpp"

namespace loratory::sim {
namespace {

std::string rows(int count) {
  std::string csv = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < count; ++i) {
    csv += std::to_string(i) + "." + std::to_string(i * 7919 % 1000) + "," +
           std::to_string(1 + i * 31 % 997) + "," + std::to_string(i % 89) + "\n";
  }
  return csv;
}

// `bytes` as AtomicFile writes them to a file of that name.
std::string packed(const std::string& bytes, const std::string& name) {
  const std::string path = testing::TempDir() + name;
  AtomicFile file(path);
  file.stream() << bytes;
  file.commit();
  std::ifstream in(path, std::ios::binary);
  std::string result{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove(path);
  return result;
}

class Compressed : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Compressed, testing::Values("t.gz", "t.zst"));

TEST_P(Compressed, ReadsAsThePlainBytes) {
  const std::string plain = rows(60'000);
  const Trace expected = read_trace_from(plain, "t");
  const std::string bytes = packed(plain, GetParam());
  ASSERT_LT(bytes.size(), plain.size());
  const Trace trace = read_trace_from(bytes, "t");
  ASSERT_EQ(trace.requests.size(), 60'000u);
  EXPECT_EQ(trace.requests.back().arrival_ns, expected.requests.back().arrival_ns);
  EXPECT_EQ(trace.requests.back().prompt_tokens, expected.requests.back().prompt_tokens);
  EXPECT_NE(trace.checksum, expected.checksum) << "the checksum is that of the stored bytes";
}

TEST_P(Compressed, SeveralMembersFollowEachOther) {
  const std::string head = rows(10), tail = "100,5,6\n";
  const Trace trace = read_trace_from(packed(head, GetParam()) + packed(tail, GetParam()), "t");
  ASSERT_EQ(trace.requests.size(), 11u);
  EXPECT_EQ(trace.requests.back().prompt_tokens, 5u);
}

TEST_P(Compressed, ACutStreamIsAnError) {
  const std::string bytes = packed(rows(60'000), GetParam());
  const std::string error = error_of(bytes.substr(0, bytes.size() / 2));
  EXPECT_NE(error.find(":1: the compressed data stops in the middle; fetch the file again"),
            std::string::npos)
      << error;
}

TEST_P(Compressed, ACutStreamCountsAsOneBadRow) {
  const std::string plain = rows(60'000);
  const Trace all = read_trace_from(plain, "t");
  const std::string bytes = packed(plain, GetParam());
  ReadOptions options;
  options.skip_bad_rows = true;
  const Trace cut = read_trace_from(bytes.substr(0, bytes.size() * 3 / 4), "t", options);
  EXPECT_EQ(cut.num_rows_skipped, 1u);
  ASSERT_LT(cut.requests.size(), all.requests.size());
  for (size_t i = 0; i < cut.requests.size(); ++i) {
    ASSERT_EQ(cut.requests[i].prompt_tokens, all.requests[i].prompt_tokens);
    ASSERT_EQ(cut.requests[i].output_tokens, all.requests[i].output_tokens);
  }
}

TEST_P(Compressed, EveryCutOfASmallFileIsAnErrorOrWhole) {
  const std::string bytes = packed(rows(3), GetParam());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(bytes.substr(0, size)), "no error") << size;
  }
  EXPECT_EQ(error_of(bytes), "no error");
}

TEST_P(Compressed, DamageIsAnErrorEvenWhenBadRowsAreSkipped) {
  std::string bytes = packed(rows(60'000), GetParam());
  bytes[bytes.size() - 6] ^= 0x55;  // in the checksum at the end
  ReadOptions options;
  options.skip_bad_rows = true;
  EXPECT_THROW(read_trace_from(bytes, "t", options), InputError);
}

TEST(ByteSources, APipeGivesItsBytesAsTheyCome) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string plain = rows(50'000);
  std::thread writer([&] {
    for (size_t at = 0; at < plain.size();) {
      const ssize_t count = ::write(ends[1], plain.data() + at, plain.size() - at);
      ASSERT_GT(count, 0);
      at += size_t(count);
    }
    ::close(ends[1]);
  });
  const Trace trace = read_trace("/dev/fd/" + std::to_string(ends[0]));
  writer.join();
  ::close(ends[0]);
  EXPECT_EQ(trace.requests.size(), 50'000u);
  EXPECT_EQ(trace.checksum, read_trace_from(plain, "t").checksum);
}

TEST(ByteSources, AMissingFileIsOneClearLine) {
  try {
    read_trace("/no/such/trace");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "/no/such/trace: cannot be opened: No such file or directory; name a readable "
                 "file, or - for stdin");
  }
}

// A few bytes may unpack to more than there is memory.
TEST_P(Compressed, UnpackingStopsAtALimit) {
  const auto read = [](const std::string& bytes, size_t largest) {
    const auto raw = open_bytes(bytes);
    return read_to_end(*decompressed(*raw, "t"), "t", largest, "name another");
  };
  const std::string plain(1 << 20, ' '), bytes = packed(plain, GetParam());
  EXPECT_EQ(read(bytes, plain.size()), plain);
  try {
    read(bytes, plain.size() - 1024);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "t: has over 1,023 KiB; name another");
  }
}

TEST(ByteSources, ChecksumIsXxh3) {
  ChecksummedSource source(open_bytes(""));
  EXPECT_EQ(source.checksum(), "xxh3:2d06800538d394c2");  // published value of XXH3 of nothing
}

// Gives one byte at a time, the worst case of a slow pipe.
class Trickle final : public ByteSource {
 public:
  explicit Trickle(std::string bytes) : bytes_(std::move(bytes)) {}
  size_t read(char* out, size_t) override {
    if (at_ == bytes_.size()) return 0;
    *out = bytes_[at_++];
    return 1;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

TEST(Lines, AreTheSameHoweverTheBytesCome) {
  Trickle source("one\r\n\ntwo\nthree");
  LineReader lines(source);
  Line line;
  const auto next = [&] { return lines.next(line) ? std::string(line.text) : "<end>"; };
  EXPECT_EQ(next(), "one");
  EXPECT_EQ(next(), "");
  EXPECT_EQ(next(), "two");
  EXPECT_TRUE(line.is_terminated);
  EXPECT_EQ(next(), "three");
  EXPECT_EQ(line.number, 4u);
  EXPECT_FALSE(line.is_terminated);
  EXPECT_EQ(next(), "<end>");
}

}  // namespace
}  // namespace loratory::sim
