// The safetensors reader and writer: the format to the letter, hostile files cheaply.
#include "reference/adapter/safetensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "reference/adapter/adapter_error.hpp"
#include "tests/reference/adapter/adapter_files.hpp"

namespace loratory::reference {
namespace {

using testing::HasSubstr;
using Code = AdapterErrorCode;

SafetensorsFile view(const std::string& file) {
  return SafetensorsFile::view(std::as_bytes(std::span(file)), "test.safetensors");
}

struct Refusal {
  Code code = Code::empty;
  std::string key;
  std::string line;
};

Refusal view_refusal(const std::string& file) {
  try {
    view(file);
  } catch (const AdapterError& error) {
    return {error.code(), error.key(), error.what()};
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

std::string entry(const std::string& name, const std::string& shape, size_t begin, size_t end,
                  const std::string& dtype = "F32") {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                     shape, begin, end);
}

// [4.2]
TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string header = "{" + entry("b", "2", 8, 16) + "," + entry("a", "1,2", 0, 8) +
                             R"(,"__metadata__":{"format":"pt"}}  )";
  const std::string file = file_of(header, 16);
  const SafetensorsFile read = view(file);
  ASSERT_EQ(read.tensors().size(), 2);
  EXPECT_EQ(read.tensors()[0].name, "a");
  EXPECT_EQ(read.tensors()[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(read.find("b")->bytes.size(), 8);
  EXPECT_EQ(read.find("__metadata__"), nullptr);
}

// [4.2]
TEST(Safetensors, ZeroSizeAndRankZeroTensorsArePartOfTheFormat) {
  const std::string header = "{" + entry("empty", "0,7", 4, 4) + "," + entry("scalar", "", 0, 4) +
                             "," + entry("first", "0", 0, 0) + "}";
  const std::string file = file_of(header, 4);
  EXPECT_EQ(view(file).tensors().size(), 3);
  EXPECT_TRUE(view(file).find("scalar")->shape.empty());
}

TEST(Safetensors, SubByteTypesEndOnAByte) {
  EXPECT_EQ(view(file_of("{" + entry("x", "2", 0, 1, "F4") + "}", 1)).tensors().size(), 1);
  EXPECT_EQ(view_refusal(file_of("{" + entry("x", "3", 0, 1, "F4") + "}", 1)).code, Code::shape);
}

// The bytes that safetensors 0.8.0 (Python, numpy) writes for the same tensors.
TEST(Safetensors, WritesWhatTheOfficialWriterWrites) {
  const int64_t seven = 7;
  const float one_and_half = 1.5F;
  const float two = 2;
  const std::array<uint16_t, 3> halves{0, 0x3c00, 0x4000};
  const std::array<uint8_t, 2> bytes{1, 2};
  using enum StorageDtype;
  const std::string written =
      write_safetensors({{"b", f16, {3}, std::as_bytes(std::span(halves))},
                         {"a", f32, {1}, std::as_bytes(std::span(&one_and_half, 1))},
                         {"c", i64, {1}, std::as_bytes(std::span(&seven, 1))},
                         {"z", f32, {0, 2}, {}},
                         {"s", f32, {}, std::as_bytes(std::span(&two, 1))},
                         {"a\"\u00e9", u8, {2}, std::as_bytes(std::span(bytes))}},
                        {{"format", "pt"}});
  std::string golden("\x70\x01\x00\x00\x00\x00\x00\x00", 8);
  golden += R"#({"__metadata__":{"format":"pt"},)#";
  golden += R"#("c":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)#";
  golden += R"#("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)#";
  golden += R"#("s":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)#";
  golden += R"#("z":{"dtype":"F32","shape":[0,2],"data_offsets":[16,16]},)#";
  golden += R"#("b":{"dtype":"F16","shape":[3],"data_offsets":[16,22]},)#";
  golden += R"#("a\"é":{"dtype":"U8","shape":[2],"data_offsets":[22,24]}}     )#";
  golden.append(
      "\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc0\x3f\x00\x00\x00\x40\x00\x00\x00\x3c\x00\x40\x01"
      "\x02",
      24);
  EXPECT_EQ(written, golden);
}

// [4.2]
TEST(Safetensors, NamesTheTensorThatBreaksARule) {
  const auto overlap =
      view_refusal(file_of("{" + entry("a", "2", 0, 8) + "," + entry("b", "2", 4, 12) + "}", 16));
  EXPECT_EQ(overlap.code, Code::io);
  EXPECT_EQ(overlap.key, "b");
  EXPECT_THAT(overlap.line, HasSubstr("an overlap"));

  const auto hole =
      view_refusal(file_of("{" + entry("a", "1", 0, 4) + "," + entry("b", "2", 8, 16) + "}", 16));
  EXPECT_EQ(hole.key, "b");
  EXPECT_THAT(hole.line, HasSubstr("a hole"));

  EXPECT_THAT(view_refusal(file_of("{" + entry("a", "1", 0, 4) + "}", 5)).line,
              HasSubstr("1 bytes of data belong to no tensor"));
  EXPECT_EQ(view_refusal(file_of("{" + entry("a", "1", 4, 0) + "}", 4)).code, Code::io);
  EXPECT_EQ(view_refusal(file_of("{" + entry("a", "1", 0, 8) + "}", 4)).code, Code::io);
  EXPECT_EQ(view_refusal(file_of("{" + entry("a", "1", 0, 8) + "}", 8)).code, Code::shape);
  EXPECT_EQ(view_refusal(file_of("{" + entry("a", "1", 0, 4, "F33") + "}", 4)).code, Code::dtype);
  EXPECT_EQ(view_refusal(file_of("{" + entry("a", "-1", 0, 4) + "}", 4)).code, Code::io);
  EXPECT_EQ(view_refusal(file_of("{" + entry("a", "1.0", 0, 4) + "}", 4)).code, Code::io);
}

// [4.2]
TEST(Safetensors, DuplicateNamesAndFieldsAreErrors) {
  const auto twice =
      view_refusal(file_of("{" + entry("a", "0", 0, 0) + "," + entry("a", "0", 0, 0) + "}", 0));
  EXPECT_EQ(twice.code, Code::key);
  EXPECT_EQ(twice.key, "a");
  // The same name, once with an escape.
  EXPECT_EQ(view_refusal(
                file_of("{" + entry("a", "0", 0, 0) + "," + entry("\\u0061", "0", 0, 0) + "}", 0))
                .code,
            Code::key);
  const char* field = R"({"a":{"dtype":"F32","dtype":"F16","shape":[0],"data_offsets":[0,0]}})";
  EXPECT_EQ(view_refusal(file_of(field, 0)).code, Code::key);
}

// [4.2] [4.19]
TEST(Safetensors, ShapesThatOverflow) {
  for (const char* shape : {"4294967296,4294967296", "9223372036854775807,2", "9223372036854775808",
                            "18446744073709551616", "3037000500,3037000500,3037000500"}) {
    const auto refused = view_refusal(file_of("{" + entry("a", shape, 0, 4) + "}", 4));
    EXPECT_TRUE(refused.code == Code::shape || refused.code == Code::io) << refused.line;
    EXPECT_EQ(refused.key, "a") << shape;
  }
}

// [4.2] [4.19]
TEST(Safetensors, DamagedFiles) {
  EXPECT_EQ(view_refusal("").code, Code::io);
  EXPECT_EQ(view_refusal("1234567").code, Code::io);
  EXPECT_THAT(view_refusal(file_of("{}", 0).substr(0, 9)).line, HasSubstr("truncated"));
  EXPECT_THAT(view_refusal(std::string(8, '\xff')).line, HasSubstr("100000000 are allowed"));
  for (const char* header : {"", " {}", "[]", "{", "{}x", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}",
                             "{\"__metadata__\":{\"a\":1}}", "{\"__metadata__\":[]}",
                             "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0]}}",
                             "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0,0]}}",
                             "{\"a\":{\"dtype\":\"F32\",\"shape\":[[0]],\"data_offsets\":[0,0]}}",
                             "{\"a\":{\"more\":1}}", "{\"\xff\":1}"}) {
    EXPECT_EQ(view_refusal(file_of(header, 0)).code, Code::io) << header;
  }
}

// [4.2] [4.19]
// What they take from the heap: hostile_files_test.cpp.
TEST(Safetensors, HeadersOfAHundredMegabytes) {
  const size_t size = 100'000'000;
  std::string name = "{\"" + std::string(size - 2, 'a');
  EXPECT_THAT(view_refusal(file_of(name, 0)).line, HasSubstr("longer than 1 MiB"));
  std::string braces(size, '{');
  EXPECT_THAT(view_refusal(file_of(braces, 0)).line, HasSubstr("is not JSON"));
  EXPECT_THAT(view_refusal(file_of("{" + std::string(size - 2, ' ') + "}", 0)).line,
              HasSubstr("longer than 1 MiB"));
  EXPECT_EQ(view(file_of("{}" + std::string(size - 2, ' '), 0)).tensors().size(), 0);
  EXPECT_EQ(view_refusal(file_of("{}" + std::string(size - 1, ' '), 0)).code, Code::io);
}

TEST(Safetensors, TensorsWithoutDataAreFew) {
  std::string header = "{" + entry("t", "0", 0, 0);
  for (int i = 0; i < 1023; ++i) header += "," + entry(fmt::format("t{}", i), "0", 0, 0);
  EXPECT_EQ(view(file_of(header + "}", 0)).tensors().size(), 1024);
  EXPECT_EQ(view_refusal(file_of(header + "," + entry("last", "0", 0, 0) + "}", 0)).key, "last");
}

// [4.2] [4.19]
TEST(Safetensors, EntriesThatClaimMoreThanThereIsEndTheParse) {
  std::string header = "{";
  for (int i = 0; i < 100; ++i) header += entry(fmt::format("t{}", i), "4", 0, 16) + ",";
  const auto refused = view_refusal(file_of(header + "never parsed", 16));
  EXPECT_EQ(refused.code, Code::io);
  EXPECT_EQ(refused.key, "t1");
}

// [4.1]
TEST(Safetensors, AMissingFileIsNamed) {
  try {
    SafetensorsFile::open("/nowhere/adapter_model.safetensors");
    FAIL();
  } catch (const AdapterError& error) {
    EXPECT_STREQ(
        error.what(),
        "E_IO: /nowhere/adapter_model.safetensors: cannot be opened: No such file or directory");
  }
}

TEST(Safetensors, AFolderIsNoFile) {
  EXPECT_THROW(SafetensorsFile::open(testing::TempDir()), AdapterError);
}

TEST(Safetensors, TheWriterRefusesWhatTheReaderWould) {
  const std::array<float, 2> data{};
  const auto bytes = std::as_bytes(std::span(data));
  const auto f32 = StorageDtype::f32;
  EXPECT_THROW(write_safetensors({{"a", f32, {3}, bytes}}), AdapterError);
  EXPECT_THROW(write_safetensors({{"a", f32, {2}, bytes}, {"a", f32, {2}, bytes}}), AdapterError);
  EXPECT_THROW(write_safetensors({{"\xff", f32, {2}, bytes}}), AdapterError);
  EXPECT_THROW(write_safetensors({{"__metadata__", f32, {2}, bytes}}), AdapterError);
}

}  // namespace
}  // namespace loratory::reference
