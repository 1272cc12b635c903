// Files that claim more than they hold [4.19]: each ends in its code, and what the reader takes
// from the heap meanwhile is bounded by what is sound in the file, not by what it says.
// Method: operator new counts the bytes in use; a test states the most that a reading may add.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <new>

#include "tests/reference/adapter/adapter_files.hpp"

namespace {

std::atomic<int64_t> bytes_in_use = 0, most_bytes = 0;

void change_bytes_in_use(int64_t bytes) {
  const int64_t held = bytes_in_use += bytes;
  if (held > most_bytes) most_bytes = held;
}

}  // namespace

// Not inlined: the compiler would take malloc and delete for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  change_bytes_in_use(int64_t(malloc_usable_size(memory)));
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  change_bytes_in_use(-int64_t(malloc_usable_size(memory)));
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace loratory::reference {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// "E_IO" or "accepted", and the most bytes that `read` added to the heap.
struct Outcome {
  std::string code = "accepted";
  int64_t bytes = 0;
};

template <typename Read>
Outcome outcome(const Read& read) {
  Outcome result;
  const int64_t before = bytes_in_use;
  most_bytes = before;
  try {
    read();
  } catch (const AdapterError& error) {
    result.code = code_word(error.code());
  }
  result.bytes = most_bytes - before;
  return result;
}

Outcome reading(const std::string& file) {
  return outcome([&] { SafetensorsFile::view(std::as_bytes(std::span(file)), "hostile"); });
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{}]}})", name, shape,
                     offsets);
}

// "{<entry of t0>,<entry of t1>,...": at least num_bytes of them.
std::string many_entries(size_t num_bytes, const std::string& shape, const std::string& offsets) {
  std::string header = "{";
  for (int i = 0; header.size() < num_bytes; ++i) {
    if (i > 0) header += ",";
    header += entry(fmt::format("t{}", i), shape, offsets);
  }
  return header + "}";
}

constexpr size_t kHeaderLimit = 100'000'000;

struct HostileHeader {
  const char* what;
  std::string (*make)();  // one at a time: some have 100 MB
  const char* code;
  int64_t most_bytes;
};

std::string one_tensor(const char* shape, const char* offsets) {
  return file_of("{" + entry("q", shape, offsets) + "}", 16);
}

std::string two_tensors(const char* name, const char* offsets) {
  return file_of("{" + entry("q", "2", "0,8") + "," + entry(name, "2", offsets) + "}", 12);
}

const HostileHeader kHostileHeaders[] = {
    {"100,000,001 bytes announced", [] { return file_of(std::string(kHeaderLimit + 1, ' '), 0); },
     "E_IO", 64 * kKiB},
    {"2^63 bytes announced", [] { return std::string(7, '\0') + "\x80{}"; }, "E_IO", 64 * kKiB},
    {"one name of 100 MB", [] { return file_of("{\"" + std::string(kHeaderLimit - 2, 'a'), 0); },
     "E_IO", 16 * kMiB},
    {"100 MB of braces", [] { return file_of(std::string(kHeaderLimit, '{'), 0); }, "E_IO",
     64 * kKiB},
    {"tensors that share 16 bytes",
     [] { return file_of(many_entries(kHeaderLimit - 200, "4", "0,16"), 16); }, "E_IO", 64 * kKiB},
    {"tensors without data",
     [] { return file_of(many_entries(kHeaderLimit - 200, "0", "0,0"), 0); }, "E_IO", kMiB},
    {"two tensors that overlap", [] { return two_tensors("k", "4,12"); }, "E_IO", 64 * kKiB},
    {"one name twice", [] { return two_tensors("q", "8,16"); }, "E_KEY", 64 * kKiB},
    {"a tensor of 4 PiB", [] { return one_tensor("1125899906842624", "0,4503599627370496"); },
     "E_IO", 64 * kKiB},
    {"a tensor of 4 PiB in 16 bytes", [] { return one_tensor("1125899906842624", "0,16"); },
     "E_SHAPE", 64 * kKiB},
    {"2^64 numbers", [] { return one_tensor("4294967296,4294967296", "0,16"); }, "E_SHAPE",
     64 * kKiB},
};

// [4.2] [4.19]
TEST(HostileFiles, HeadersEndInTheirCodeWithoutTheMemoryTheyClaim) {
  for (const HostileHeader& h : kHostileHeaders) {
    const Outcome o = reading(h.make());
    EXPECT_EQ(o.code, h.code) << h.what;
    EXPECT_LE(o.bytes, h.most_bytes) << h.what;
    std::printf("%-32s %-14s heap %lld bytes\n", h.what, o.code.c_str(), (long long)o.bytes);
  }
}

// [4.16] [4.19] 64 MiB of weights, the last one NaN: they are looked at where they lie.
TEST(HostileFiles, NanIsFoundWithoutACopyOfTheWeights) {
  BaseModelShapes shapes = small_model();
  shapes.vocab = 1 << 22;
  std::vector<float> b(size_t(4) << 22, 0);
  b.back() = std::numeric_limits<float>::quiet_NaN();
  TestTensors tensors;
  tensors.add("base_model.model.lm_head.lora_A.weight", {4, 8})
      .add_numbers("base_model.model.lm_head.lora_B.weight", {shapes.vocab, 4}, std::move(b));
  const SafetensorsFile file = tensors.file();
  const AdapterConfig config = config_of(R"("r": 4, "lora_alpha": 1)");
  const Outcome o = outcome([&] { load_adapter(config, file, shapes); });
  EXPECT_EQ(o.code, "E_NONFINITE");
  EXPECT_LE(o.bytes, 64 * kKiB);
}

// [4.19] 64 GiB on a disk that holds none of them: mapped, not read, refused for its shape.
TEST(HostileFiles, AFileLargerThanMemoryIsMapped) {
  const std::string path = testing::TempDir() + "64_gib.safetensors";
  const uint64_t num_bytes = uint64_t(64) << 30;
  const std::string key = "base_model.model.model.layers.0.self_attn.q_proj.";
  const std::string header =
      "{" + entry(key + "lora_A.weight", "2,8589934588", "0,68719476704") + "," +
      entry(key + "lora_B.weight", "4,2", fmt::format("68719476704,{}", num_bytes)) + "}";
  std::ofstream(path, std::ios::binary) << file_of(header, 0);
  std::error_code error;
  std::filesystem::resize_file(path, 8 + header.size() + num_bytes, error);
  if (error) {
    std::filesystem::remove(path);
    GTEST_SKIP() << "no room for a sparse file: " << error.message();
  }
  const Outcome o =
      outcome([&] { load_adapter(config_of(), SafetensorsFile::open(path), small_model()); });
  std::filesystem::remove(path);
  EXPECT_EQ(o.code, "E_SHAPE");
  EXPECT_LE(o.bytes, 64 * kKiB);
}

// To open a pipe that nobody writes to would wait for ever.
TEST(HostileFiles, APipeIsNoFileOfWeights) {
  const std::string path = testing::TempDir() + "pipe.safetensors";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto opening = std::async(std::launch::async,
                            [&] { return outcome([&] { SafetensorsFile::open(path); }).code; });
  const bool has_ended = opening.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  EXPECT_TRUE(has_ended) << "waits for a writer";
  if (!has_ended) std::ofstream(path, std::ios::app);  // it goes on, and the test ends
  EXPECT_EQ(opening.get(), "E_IO");
  std::filesystem::remove(path);
}

Outcome parsing(const std::string& text) {
  return outcome([&] { parse_adapter_config(text); });
}

std::string config_with(const std::string& fields) {
  return "{" + fields + R"("r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]})";
}

std::string repeated(size_t num_bytes, const std::string& part) {
  std::string text;
  while (text.size() < num_bytes) text += part;
  return text;
}

// [4.19] adapter_config.json: at most 4 MiB and 32 levels, so at most what 4 MiB of numbers take.
TEST(HostileFiles, ConfigurationsEndInTheirCode) {
  const size_t size = 4'000'000;
  struct Row {
    const char* what;
    std::string text;
    const char* code;
    int64_t most_bytes;
  };
  for (const auto& [what, text, code, most] : std::initializer_list<Row>{
           {"nested lists", std::string(size, '['), "E_CONFIG", 64 * kKiB},
           {"nested objects", repeated(size, "{\"a\":"), "E_CONFIG", 64 * kKiB},
           {"larger than 4 MiB", std::string(size * 25, ' '), "E_CONFIG", 64 * kKiB},
           {"one text", config_with("\"bias\": \"" + std::string(size, 'x') + "\","),
            "E_UNSUPPORTED", 32 * kMiB},
           {"a list of 2,000,000 numbers",
            config_with("\"eva_config\": [" + repeated(size, "1,") + "1],"), "accepted",
            128 * kMiB},
           {"a field twice", config_with(R"("r": 8,)"), "E_CONFIG", 64 * kKiB},
           {"a pattern twice", config_with(R"("alpha_pattern": {"q": 1, "q": 1},)"), "E_CONFIG",
            64 * kKiB},
       }) {
    const Outcome o = parsing(text);
    EXPECT_EQ(o.code, code) << what;
    EXPECT_LE(o.bytes, most) << what;
    std::printf("%-32s %-14s heap %lld bytes\n", what, o.code.c_str(), (long long)o.bytes);
  }
}

// [4.4] [4.19]
TEST(HostileFiles, HugeNumbersInConfigurations) {
  const char* valid = R"({{"r": {}, "lora_alpha": {}, "target_modules": ["q"]{}}})";
  const auto code = [&](const char* rank, const char* alpha, const std::string& more = "") {
    return parsing(fmt::format(fmt::runtime(valid), rank, alpha, more)).code;
  };
  EXPECT_EQ(code("8", "16"), "accepted");
  for (const char* rank : {"1048577", "2147483648", "9223372036854775808", "18446744073709551616",
                           "-9223372036854775809", "1e308", "1e999", "8.0"}) {
    EXPECT_EQ(code(rank, "16"), "E_CONFIG") << rank;
    EXPECT_EQ(code("8", "16", fmt::format(R"(, "rank_pattern": {{"q": {}}})", rank)), "E_CONFIG");
  }
  EXPECT_EQ(code("8", "1e309"), "E_CONFIG");
  EXPECT_EQ(code("8", "1", R"(, "layers_to_transform": [9223372036854775808])"), "E_CONFIG");
  // A number of its own right that no module can use: found when a module asks.
  const auto config = parse_adapter_config(fmt::format(fmt::runtime(valid), "1", "1e308", ""));
  EXPECT_THROW(config.scaling_of("q", {.rank = config.rank, .alpha = config.alpha}), AdapterError);
}

// [4.7] [4.19] 50 patterns that backtrack, each of which a module passes through: refused for the
// work of all together, with the pattern that ended it.
TEST(HostileFiles, PatternsThatBacktrack) {
  std::string patterns;
  for (int i = 0; i < 50; ++i) {
    patterns += fmt::format(R"({}"(.*.*)*x{}": 3)", i == 0 ? "" : ", ", i);
  }
  const AdapterConfig config =
      config_of(R"("r": 2, "lora_alpha": 3, "rank_pattern": {)" + patterns + "}");
  TestTensors tensors;
  for (int layer = 0; layer < 20; ++layer) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const std::string path = fmt::format("model.layers.{}.self_attn.{}", layer, name);
      const int64_t rows = name[0] == 'q' ? 12 : name[0] == 'o' ? 8 : 6;
      tensors.add_pair(path, rows, name[0] == 'o' ? 11 : 8);
    }
    tensors.add_pair(fmt::format("model.layers.{}.mlp.gate_proj", layer), 14, 8)
        .add_pair(fmt::format("model.layers.{}.mlp.up_proj", layer), 14, 8)
        .add_pair(fmt::format("model.layers.{}.mlp.down_proj", layer), 8, 14);
  }
  EXPECT_EQ(tensors.refusal(), "accepted");
  EXPECT_EQ(tensors.refusal(config), "E_CONFIG(rank_pattern)");
  EXPECT_THAT(tensors.last_error(), testing::HasSubstr("takes too many steps"));
}

}  // namespace
}  // namespace loratory::reference
