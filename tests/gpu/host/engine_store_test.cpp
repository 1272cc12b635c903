// Adapters on their way from disk into the images of slots, with memory of the host in place of
// page-locked memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "fuzz/support/engine_case.hpp"
#include "gpu/engine/adapter_store.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

using reference::ModelConfig;
using reference::RandomAdapter;
using sim::Uid;
using testing::HasSubstr;

std::shared_ptr<std::byte> host_memory(size_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

class Store {
 public:
  explicit Store(AdapterStore::Allocate allocate = host_memory)
      : config_(reference::tiny_model_config()),
        store_(SlotLayout(base_model_shapes(config_), {}, 8, reference::Dtype::bf16), 2, 1,
               std::move(allocate)) {}

  AdapterStore& operator*() { return store_; }
  AdapterStore* operator->() { return &store_; }
  const ModelConfig& config() const { return config_; }

  // The next load that ends.
  AdapterStore::Ended next() {
    while (!store_.has_ended()) store_.wait(std::chrono::seconds(60));
    return store_.take_ended();
  }
  AdapterStore::Ended load(Uid uid, sim::AdapterSource source) {
    store_.add(uid, std::move(source));
    store_.begin_load(uid);
    return next();
  }
  bool holds(Uid uid, const reference::Adapter& adapter) {
    const auto image = store_.image(uid);
    if (image == nullptr) return false;
    std::vector<std::byte> expected(size_t(store_.layout().bytes()));
    write_slot_image(store_.layout(), adapter, expected);
    // Between two matrices there is poison as well.
    return std::memcmp(expected.data(), image.get(), expected.size()) == 0;
  }

 private:
  ModelConfig config_;
  AdapterStore store_;
};

TEST(AdapterStore, WritesTheImageOfWhatItLoads) {
  Store store;
  const RandomAdapter a = random_adapter(store.config(), 1), b = random_adapter(store.config(), 2);
  store->add(1, sim::source_of(a));
  store->add(2, sim::source_of(b));
  store->begin_load(1);
  store->begin_load(2);
  EXPECT_EQ(store->num_loading(), 2);
  EXPECT_EQ(store.next().error, "");
  EXPECT_EQ(store.next().error, "");
  EXPECT_EQ(store->num_loading(), 0);
  EXPECT_TRUE(store.holds(1, a.adapter));
  EXPECT_TRUE(store.holds(2, b.adapter));
}

// Each in one line, and the next load is none the worse for it.
TEST(AdapterStore, AFailedLoadFailsAlone) {
  Store store;
  const RandomAdapter good = random_adapter(store.config(), 1);
  const auto gone = []() -> reference::Adapter { throw InputError("adapter", "the disk is gone"); };
  const auto worse = []() -> reference::Adapter { throw std::runtime_error("no memory"); };
  EXPECT_EQ(store.load(1, gone).error, "adapter: the disk is gone");
  EXPECT_EQ(store.load(2, worse).error, "no memory");
  const RandomAdapter wide = random_adapter(store.config(), 3, {.rank = 9});
  EXPECT_THAT(store.load(3, sim::source_of(wide)).error,
              HasSubstr("adapter 3: layers.0.self_attn.q_proj has rank 9"));
  for (Uid uid = 1; uid <= 3; ++uid) EXPECT_EQ(store->image(uid), nullptr);
  EXPECT_EQ(store.load(4, sim::source_of(good)).error, "");
  EXPECT_TRUE(store.holds(4, good.adapter));
}

// Memory is asked for on a worker: the caller neither waits for it nor meets its error.
TEST(AdapterStore, ALoadWithoutMemoryFailsAlone) {
  int num_calls = 0;
  std::thread::id last_caller;
  Store store([&](size_t bytes) {
    last_caller = std::this_thread::get_id();
    if (++num_calls == 2) throw std::runtime_error("no memory");
    return host_memory(bytes);
  });
  const RandomAdapter a = random_adapter(store.config(), 1), b = random_adapter(store.config(), 2);
  EXPECT_EQ(store.load(1, sim::source_of(a)).error, "");
  EXPECT_EQ(store.load(2, sim::source_of(b)).error, "no memory");
  EXPECT_NE(last_caller, std::this_thread::get_id());
  EXPECT_EQ(store->image(2), nullptr);
  EXPECT_EQ(store->num_images(), 1);
  EXPECT_EQ(store.load(3, sim::source_of(b)).error, "");
  EXPECT_EQ(store->num_images(), 2);
  EXPECT_TRUE(store.holds(1, a.adapter));
  EXPECT_TRUE(store.holds(3, b.adapter));
}

class Folder {
 public:
  explicit Folder(const ModelConfig& config) : path_(testing::TempDir() + "adapter") {
    write_random_adapter(path_.string(), config, 5);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  sim::AdapterSource source(const ModelConfig& config) const {
    return sim::peft_directory(path_.string(), base_model_shapes(config));
  }
  std::string weights() const { return (path_ / "adapter_model.safetensors").string(); }

 private:
  std::filesystem::path path_;
};

TEST(AdapterStore, BadFilesFailInOneLine) {
  Store store;
  const Folder folder(store.config());
  std::ifstream file(folder.weights(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  auto load = [&, uid = Uid{0}](const std::string& bytes) mutable {
    std::ofstream(folder.weights(), std::ios::binary) << bytes;
    return store.load(++uid, folder.source(store.config())).error;
  };
  EXPECT_EQ(load(whole), "");
  EXPECT_THAT(load(whole.substr(0, whole.size() / 2)), HasSubstr("E_IO"));
  std::string nan = whole;
  nan.replace(nan.size() - 4, 4, "\xFF\xFF\xFF\x7F");
  EXPECT_THAT(load(nan), HasSubstr("E_NONFINITE"));
  std::filesystem::remove(folder.weights());
  EXPECT_THAT(store.load(9, folder.source(store.config())).error, HasSubstr("E_IO"));
}

// An image that a copy still reads is not given to another load.
TEST(AdapterStore, MemoryIsUsedAgainWhenNobodyReadsIt) {
  Store store;
  const RandomAdapter a = random_adapter(store.config(), 1), b = random_adapter(store.config(), 2);
  store.load(1, sim::source_of(a));
  EXPECT_EQ(store->num_images(), 1);
  std::shared_ptr<const std::byte> copied = store->image(1);
  store->drop(1);
  EXPECT_EQ(store->image(1), nullptr);
  store.load(2, sim::source_of(b));
  EXPECT_EQ(store->num_images(), 2);
  const std::byte* const place = copied.get();
  copied.reset();
  store->begin_load(1);
  EXPECT_EQ(store.next().uid, 1u);
  EXPECT_EQ(store->image(1).get(), place);
  EXPECT_EQ(store->num_images(), 2);
  store->remove(1);
  EXPECT_EQ(store->image(1), nullptr);
}

TEST(AdapterStore, EndsWithLoadsUnderWay) {
  Store store;
  const RandomAdapter a = random_adapter(store.config(), 1);
  for (Uid uid = 1; uid <= 8; ++uid) {
    store->add(uid, sim::source_of(a));
    store->begin_load(uid);
  }
}

}  // namespace
}  // namespace loratory::gpu
