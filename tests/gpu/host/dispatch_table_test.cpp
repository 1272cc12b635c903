// Tables that a tuner wrote: which entry is taken, when the rules choose, what is refused.
#include "gpu/kernels/dispatch_table.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <memory>

#include "gpu/kernels/lora_expand.hpp"
#include "gpu/kernels/lora_launch.hpp"
#include "gpu/kernels/lora_shrink.hpp"
#include "tests/gpu/host/error_of.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

constexpr LoraVariant kNarrow{1, 1, 4, 3, true};
constexpr LoraVariant kPair{1, 1, 2, 3, true};
constexpr LoraVariant kBoth{2, 1, 4, 3, true, 2};
constexpr LoraVariant kWide{4, 4, 8, 3, true, 2};
constexpr LoraVariant kWgmma{4, 8, 8, 2, true, 2};
constexpr LoraVariant kExpand{1, 4, 1, 3, true};

/// As a shrink alone is cut.
constexpr LoraVariant first_of(LoraVariant variant) {
  variant.launches = 1;
  return variant;
}

DispatchEntry entry(int64_t num_slices, int64_t num_in, int64_t max_rank, int64_t num_tokens,
                    const LoraVariant& variant, LoraStage stage = LoraStage::linear) {
  return {stage, num_slices, num_in, max_rank, num_tokens, variant};
}

LaunchShape shape(int64_t num_slices, int64_t num_in, int64_t max_rank, int64_t num_tokens) {
  return {
      .num_tokens = num_tokens, .num_in = num_in, .max_rank = max_rank, .num_slices = num_slices};
}

/// Variants that choose_variant() takes for none of the shapes below, wherever that matters.
DispatchTable table() {
  return DispatchTable({entry(1, 4096, 16, 32, kNarrow), entry(1, 4096, 16, 512, kPair),
                        entry(1, 4096, 64, 64, kNarrow), entry(1, 8192, 64, 8192, kWide),
                        entry(3, 4096, 16, 8192, kNarrow),
                        entry(2, 0, 64, 32, kExpand, LoraStage::expand)});
}

// P12: each size decides, at its boundary.
TEST(DispatchTable, TakesTheFirstEntryThatCovers) {
  const DispatchTable t = table();
  EXPECT_EQ(t.choose(shape(1, 4096, 16, 32)), kNarrow);
  EXPECT_EQ(t.choose(shape(1, 4096, 16, 33)), kPair);
  EXPECT_EQ(t.choose(shape(1, 1, 1, 33)), kPair);
  EXPECT_EQ(t.choose(shape(1, 4096, 17, 64)), kNarrow);
  EXPECT_EQ(t.choose(shape(1, 4096, 17, 65)), kWide);
  EXPECT_EQ(t.choose(shape(1, 4097, 16, 1)), kWide);
  EXPECT_EQ(t.choose(shape(2, 4096, 16, 33)), kNarrow);
}

// P12: what nothing covers is left to the rules.
TEST(DispatchTable, LeavesTheRestToTheRules) {
  const DispatchTable t = table();
  for (const LaunchShape& s : {shape(1, 8193, 16, 1), shape(1, 4096, 65, 1), shape(4, 4096, 16, 1),
                               shape(1, 4096, 16, 8193), shape(2, 4096, 17, 1)}) {
    EXPECT_EQ(t.choose(s), choose_variant(s));
    EXPECT_NE(t.choose(s), kNarrow);
  }
  LaunchShape shrink = shape(1, 4096, 16, 1);
  shrink.stage = LoraStage::shrink;
  EXPECT_EQ(t.choose(shrink), choose_variant(shrink));
}

// P12: K means nothing to an expand.
TEST(DispatchTable, ExpandHasNoNumIn) {
  LaunchShape s = shape(2, 99999, 64, 32);
  s.stage = LoraStage::expand;
  EXPECT_EQ(table().choose(s), kExpand);
  s.num_tokens = 33;
  EXPECT_EQ(table().choose(s), choose_variant(s));
}

// P12: no table makes a launch that could not be.
TEST(DispatchTable, YieldsWhereItsVariantCouldNotBeLaunched) {
  LaunchShape s = shape(1, 4096, 64, 100);
  EXPECT_EQ(table().choose(s), kWide);
  s.has_workspace = false;
  EXPECT_FALSE(table().choose(s).is_wide());
  s = shape(1, 4096, 16, 32);
  s.has_workspace = false;  // one launch needs none
  EXPECT_EQ(table().choose(s), kNarrow);
  s.aligned = false;
  EXPECT_EQ(table().choose(s), choose_variant(s));
  s.aligned = true;
  s.has_clusters = false;
  EXPECT_EQ(table().choose(s), choose_variant(s));
}

// P12: two launches of few tokens need it as those of many do.
TEST(DispatchTable, TwoNarrowLaunchesNeedAWorkspace) {
  const DispatchTable t({entry(1, 4096, 64, 128, kBoth)});
  LaunchShape s = shape(1, 4096, 64, 100);
  EXPECT_EQ(t.choose(s), kBoth);
  s.has_workspace = false;
  EXPECT_EQ(t.choose(s), choose_variant(s));
  EXPECT_EQ(t.choose(s).launches, 1);
}

// P12: the h of a shrink is the caller's.
TEST(DispatchTable, WideShrinkNeedsNoWorkspace) {
  LaunchShape s = shape(1, 4096, 64, 100);
  s.stage = LoraStage::shrink;
  s.has_workspace = false;
  const DispatchTable t({entry(1, 4096, 64, 128, first_of(kWide), LoraStage::shrink)});
  EXPECT_EQ(t.choose(s), first_of(kWide));
}

// P12: of a table from an sm_90, the rules choose what another GPU has not.
TEST(DispatchTable, YieldsWithoutWgmma) {
  for (const LoraStage stage : {LoraStage::linear, LoraStage::shrink}) {
    const LoraVariant wgmma = stage == LoraStage::linear ? kWgmma : first_of(kWgmma);
    const LoraVariant wide = stage == LoraStage::linear ? kWide : first_of(kWide);
    const DispatchTable t(
        {entry(1, 4096, 64, 512, wide, stage), entry(1, 4096, 64, 1024, wgmma, stage)});
    LaunchShape s = shape(1, 4096, 64, 1024);
    s.stage = stage;
    EXPECT_EQ(t.choose(s), wgmma);
    s.has_wgmma = false;
    EXPECT_EQ(t.choose(s), choose_variant(s));
    EXPECT_FALSE(t.choose(s).needs_wgmma());
    s.num_tokens = 512;
    EXPECT_EQ(t.choose(s), wide);
  }
}

std::string error_of_entries(const std::vector<DispatchEntry>& entries) {
  return error_of([&] { const DispatchTable t(entries); });
}

TEST(DispatchTable, NamesEntriesOutOfOrder) {
  const DispatchEntry one = entry(1, 4096, 16, 32, kNarrow);
  EXPECT_EQ(error_of_entries({one, one}), "entries[1]: repeats the entry before it");
  for (const DispatchEntry& before :
       {entry(1, 4096, 16, 33, kPair), entry(1, 4096, 17, 1, kPair), entry(1, 4097, 1, 1, kPair),
        entry(2, 1, 1, 1, kPair), entry(1, 1, 1, 1, kPair, LoraStage::shrink)}) {
    EXPECT_THAT(error_of_entries({before, one}),
                HasSubstr("entries[1]: is not in order: by stage"));
    EXPECT_EQ(error_of_entries({one, before}), "");
  }
}

TEST(DispatchTable, NamesSizesOutOfRange) {
  EXPECT_EQ(error_of_entries({entry(9, 1, 1, 1, kPair)}),
            "entries[0].num_slices: is 9, needs 1 to 8");
  EXPECT_EQ(error_of_entries({entry(1, 0, 1, 1, kPair)}),
            "entries[0].num_in: is 0, needs 1 to 2147483647");
  EXPECT_EQ(error_of_entries({entry(1, 1, 513, 1, kPair)}),
            "entries[0].max_rank: is 513, needs 1 to 512");
  EXPECT_EQ(error_of_entries({entry(1, 1, 1, 0, kPair)}),
            "entries[0].num_tokens: is 0, needs 1 to 2147483647");
  EXPECT_EQ(error_of_entries({entry(1, 7, 1, 1, kExpand, LoraStage::expand)}),
            "entries[0].num_in: has no meaning in an expand");
}

std::string error_of_variant(const LoraVariant& variant, LoraStage stage = LoraStage::linear) {
  return error_of_entries({entry(1, stage == LoraStage::expand ? 0 : 1, 1, 1, variant, stage)});
}

TEST(DispatchTable, NamesVariantsThatNoKernelCanHave) {
  const std::string at = "entries[0].variant.";
  EXPECT_EQ(error_of_variant({3, 1, 8, 2, true}), at + "rank_tiles: is 3, needs one of 1, 2, 4, 8");
  EXPECT_EQ(error_of_variant({1, 2, 8, 2, true}), at + "token_tiles: is 2, needs one of 1, 4, 8");
  EXPECT_EQ(error_of_variant({1, 1, 3, 2, true}), at + "cluster: is 3, needs one of 1, 2, 4, 8");
  EXPECT_EQ(error_of_variant({1, 1, 8, 5, true}), at + "stages: is 5, needs one of 1, 2, 3, 4");
  EXPECT_EQ(error_of_variant({1, 1, 8, 0, true}), at + "stages: is 0, needs one of 1, 2, 3, 4");
  EXPECT_EQ(error_of_variant({1, 1, 8, 1, true}), "");
  EXPECT_THAT(error_of_variant({1, 1, 8, 2, false}), HasSubstr(at + "aligned: is false"));
}

TEST(DispatchTable, NamesWideVariantsThatNoKernelCanHave) {
  const std::string at = "entries[0].variant.";
  for (const int token_tiles : {4, 8}) {
    EXPECT_EQ(error_of_variant({4, token_tiles, 8, 3, true, 2}), "");
    EXPECT_EQ(error_of_variant({4, token_tiles, 8, 3, true, 1}, LoraStage::shrink), "");
    EXPECT_EQ(error_of_variant({2, token_tiles, 8, 3, true, 2}),
              at + "rank_tiles: must be 4 where token_tiles is above 1, or 8 where it is 8");
    EXPECT_EQ(error_of_variant({4, token_tiles, 1, 3, true}, LoraStage::shrink),
              at + "cluster: must be above 1 where token_tiles is");
  }
  EXPECT_EQ(error_of_variant({8, 8, 4, 3, true, 2}), "");
  EXPECT_EQ(error_of_variant({8, 4, 8, 3, true, 2}),
            at + "rank_tiles: must be 4 where token_tiles is above 1, or 8 where it is 8");
  EXPECT_EQ(error_of_variant({8, 1, 8, 3, true}),
            at + "rank_tiles: is 8, needs a token_tiles of 8");
}

TEST(DispatchTable, NamesExpandVariantsThatNoKernelCanHave) {
  const std::string at = "entries[0].variant.";
  const auto error = [](const LoraVariant& v) { return error_of_variant(v, LoraStage::expand); };
  EXPECT_EQ(error({2, 4, 1, 3, true}), "");
  EXPECT_EQ(error({1, 1, 8, 3, true}), at + "cluster: must be 1: an expand takes no clusters");
  EXPECT_EQ(error({4, 1, 1, 2, true}), "");
  EXPECT_EQ(error({4, 8, 1, 3, true}), "");
  EXPECT_EQ(error({8, 8, 1, 3, true}), at + "rank_tiles: must be 1, 2 or 4 in an expand");
  EXPECT_EQ(error({1, 8, 1, 3, true}), "");
}

// One launch or two of a narrow linear, two of a wide one, one of anything else.
TEST(DispatchTable, NamesLaunchesThatCannotBe) {
  const std::string at = "entries[0].variant.launches: ";
  EXPECT_EQ(error_of_variant({1, 1, 8, 2, true, 0}), at + "is 0, needs one of 1, 2");
  EXPECT_EQ(error_of_variant({1, 1, 8, 2, true, 3}), at + "is 3, needs one of 1, 2");
  EXPECT_EQ(error_of_variant({1, 1, 8, 2, true, 1}), "");
  EXPECT_EQ(error_of_variant({1, 1, 8, 2, true, 2}), "");
  for (const int token_tiles : {4, 8}) {
    EXPECT_EQ(error_of_variant({4, token_tiles, 8, 3, true, 1}),
              at + "must be 2 where token_tiles is above 1");
  }
  EXPECT_EQ(error_of_variant({1, 1, 8, 2, true, 2}, LoraStage::shrink),
            at + "must be 1 but in a linear");
  EXPECT_EQ(error_of_variant({4, 4, 8, 3, true, 2}, LoraStage::shrink),
            at + "must be 1 but in a linear");
  EXPECT_EQ(error_of_variant({1, 1, 1, 2, true, 2}, LoraStage::expand),
            at + "must be 1 but in a linear");
}

// --- the file ---------------------------------------------------------------------------------

std::string file_with(const std::string& entries, const std::string& more = "") {
  return R"({"gpu": "G", "driver": "D", "commit": "C", "date": "", "command": "", "entries": [)" +
         entries + "]" + more + "}";
}

std::string entry_text(const std::string& stage, const std::string& sizes,
                       const std::string& variant) {
  return fmt::format(R"({{"stage": {}, {}, "variant": {}}})", stage, sizes, variant);
}

const std::string kSizes = R"("num_slices": 1, "num_in": 4096, "max_rank": 16, "num_tokens": 32)";
const std::string kCut =
    R"({"rank_tiles": 1, "token_tiles": 1, "cluster": 4, "stages": 3, "launches": 1})";

std::string error_of_text(const std::string& text) {
  return error_of([&] { parse_dispatch_table(text, "t.json"); });
}

std::string error_of_entry(const std::string& stage, const std::string& sizes,
                           const std::string& variant) {
  return error_of_text(file_with(entry_text(stage, sizes, variant)));
}

TEST(ParseDispatchTable, ReadsWhatTheTunerWrites) {
  const std::string path = LORATORY_SOURCE_DIR "/fuzz/corpora/dispatch_table/full.json";
  const DispatchTable t = read_dispatch_table(path);
  ASSERT_EQ(t.entries().size(), 4u);
  EXPECT_EQ(t.choose(shape(1, 4096, 16, 64)), (LoraVariant{1, 1, 8, 2, true, 1}));
  EXPECT_EQ(t.choose(shape(1, 4096, 16, 65)), kWide);
  const DispatchEntry& expand = t.entries().back();
  EXPECT_EQ(expand.stage, LoraStage::expand);
  EXPECT_EQ(expand.num_slices, 3);
  EXPECT_EQ(expand.num_in, 0);
  EXPECT_EQ(expand.max_rank, 64);
  EXPECT_EQ(expand.num_tokens, 64);
  EXPECT_EQ(expand.variant, (LoraVariant{1, 1, 1, 3, true}));
}

TEST(ParseDispatchTable, NamesWhatIsWrongWithTheFile) {
  EXPECT_THAT(error_of([] { read_dispatch_table("/nowhere.json"); }),
              HasSubstr("/nowhere.json: cannot be read"));
  EXPECT_EQ(error_of_text("[]"), "t.json: must be a JSON object");
  EXPECT_THAT(error_of_text("{"), HasSubstr("t.json: is not JSON (byte "));
  EXPECT_EQ(error_of_text("{}"), "t.json: gpu: is missing");
  EXPECT_EQ(error_of_text(R"({"gpu": 1})"), "t.json: gpu: must be a string");
  EXPECT_EQ(error_of_text(R"({"a\nb": 1})"), R"(t.json: "a\nb": is not a key here; remove it)");
  EXPECT_EQ(error_of_text(file_with("", R"(, "times": {"any": [1.5]})")), "");
  EXPECT_EQ(error_of_text(file_with("3")), "t.json: entries[0]: must be an object");
}

TEST(ParseDispatchTable, NamesWhatIsWrongWithAnEntry) {
  EXPECT_EQ(error_of_entry("\"linear\"", kSizes, kCut), "");
  EXPECT_EQ(error_of_entry("\"pair\"", kSizes, kCut),
            "t.json: entries[0].stage: must be \"linear\", \"shrink\" or \"expand\"");
  EXPECT_EQ(error_of_entry("\"linear\"", R"("num_slices": 1, "max_rank": 1)", kCut),
            "t.json: entries[0].num_in: is missing");
  EXPECT_EQ(error_of_entry("\"linear\"", kSizes + R"(, "rank": 1)", kCut),
            "t.json: entries[0].\"rank\": is not a key here; remove it");
  EXPECT_EQ(error_of_entry("\"linear\"", kSizes, "[]"),
            "t.json: entries[0].variant: must be an object");
  EXPECT_EQ(error_of_entry("\"linear\"", kSizes, R"({"rank_tiles": 1})"),
            "t.json: entries[0].variant.token_tiles: is missing");
  EXPECT_EQ(error_of_entry("\"linear\"", kSizes,
                           R"({"rank_tiles": 1, "token_tiles": 1, "cluster": 4, "stages": 3})"),
            "t.json: entries[0].variant.launches: is missing");
  EXPECT_EQ(error_of_entry("\"linear\"", kSizes, R"({"rank_tiles": 1, "aligned": 1})"),
            "t.json: entries[0].variant.\"aligned\": is not a key here; remove it");
  EXPECT_EQ(error_of_entry("\"expand\"", kSizes, kCut),
            "t.json: entries[0].num_in: has no meaning in an expand");
}

// --- layers -----------------------------------------------------------------------------------

/// Addresses that nobody reads.
void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

const int32_t* ranks() { return static_cast<const int32_t*>(at(0x3000)); }
const float* scalings() { return static_cast<const float*>(at(0x4000)); }
const DeviceView kA = device_view(Dtype::bf16, at(0x1000), {4, 16, 64});
const DeviceView kB = device_view(Dtype::bf16, at(0x2000), {4, 64, 16});
const DeviceView kX = device_view(Dtype::bf16, at(0x10000), {8, 64});
const DeviceView kH = device_view(Dtype::f32, at(0x20000), {1, 8, 16});

std::shared_ptr<const DispatchTable> for_all_stages(const LoraVariant& variant,
                                                    const LoraVariant& of_expand) {
  return std::make_shared<const DispatchTable>(
      std::vector{entry(1, 64, 16, 8, variant), entry(1, 64, 16, 8, variant, LoraStage::shrink),
                  entry(1, 0, 16, 8, of_expand, LoraStage::expand)});
}

// P12: with kernels that exist and that the rules do not choose here.
TEST(LayerWithATable, AsksIt) {
  const LoraVariant variant{2, 1, 8, 2, true}, of_expand{2, 4, 1, 2, true};
  const auto dispatch = for_all_stages(variant, of_expand);
  const LoraLinear linear(
      LoraLinearDesc{.slices = {{.a = kA, .b = kB, .ranks = ranks(), .scalings = scalings()}},
                     .dispatch = dispatch});
  EXPECT_EQ(linear.variant_for(kX, kX), variant);
  const LoraShrink shrink({.slices = {{.a = kA, .ranks = ranks()}}, .dispatch = dispatch});
  EXPECT_EQ(shrink.variant_for(kX, kH), variant);
  const LoraExpand expand(
      {.slices = {{.b = kB, .ranks = ranks(), .scalings = scalings()}}, .dispatch = dispatch});
  EXPECT_EQ(expand.variant_for(kH, kX), of_expand);
}

TEST(LayerWithATable, NamesAVariantWithoutAKernel) {
  const LoraDtypes dtypes{Dtype::bf16, Dtype::bf16, Dtype::f32, Dtype::bf16};
  if (lora_variants(LoraStage::shrink, dtypes).empty()) GTEST_SKIP() << "a build without CUDA";
  const auto dispatch = for_all_stages({4, 1, 2, 4, true}, kExpand);
  EXPECT_EQ(
      error_of([&] {
        const LoraShrink layer({.slices = {{.a = kA, .ranks = ranks()}}, .dispatch = dispatch});
      }),
      "lora_shrink: dispatch: has variant r64 t8 c2 s4, which has no kernel");
}

}  // namespace
}  // namespace loratory::gpu
