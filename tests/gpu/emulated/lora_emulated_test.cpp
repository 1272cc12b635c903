// The kernels of 16-bit weights, thread by thread on the CPU: of random layers every kernel and
// every pair of kernels gives the same bits, within the bound, also of a row alone, and writes
// nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/variant_table.hpp"
#include "reference/base/input_error.hpp"
#include "tests/gpu/emulated/emulated_gpu.hpp"
#include "tests/gpu/emulated/emulated_layer.hpp"
#include "tests/gpu/support/judge.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LayerCase;
using reference::LayerData;
using reference::Tensor;

constexpr double kUnit = 0x1p-22;

// Of a few K tiles and segments.
LayerCase small_case(uint64_t seed, bool aligned) {
  auto draw = [&, i = uint64_t{0}](std::initializer_list<int> all) mutable {
    return std::data(all)[reference::random_bits(seed, 1, i++) % all.size()];
  };
  LayerCase c;
  c.seed = seed;
  c.aligned = aligned;
  c.num_in = aligned ? draw({8, 64, 200, 520, 776}) : draw({1, 17, 130, 515});
  c.max_rank = aligned ? draw({8, 16, 24, 40, 64, 72, 136}) : draw({1, 5, 16, 33, 64, 100});
  for (int i = draw({1, 2, 3}); i > 0; --i) {
    c.num_out.push_back(aligned ? draw({8, 32, 72, 136, 280}) : draw({1, 31, 65, 130}));
  }
  c.num_tokens = draw({1, 2, 9, 17, 33, 65, 90});
  c.max_loras = draw({1, 2, 3});
  c.weight = draw({0, 1}) == 0 ? Dtype::bf16 : Dtype::f16;
  c.out = c.weight == Dtype::bf16 ? Dtype::bf16 : Dtype::f32;
  c.add_inputs = draw({0, 1, 2}) != 0;
  c.padded = draw({0, 1}) == 1;
  return c;
}

class EmulatedLayer {
 public:
  explicit EmulatedLayer(const LayerData& data)
      : data_(data), desc_(emulated::put_linear(memory_, data)) {
    x_ = memory_.put(data.batch.x);
    y_ = memory_.put(data.batch.y);
    Tensor h(Dtype::f32, {int64_t(data.slices.size()), data.shape.num_tokens, data.shape.max_rank});
    std::ranges::fill(h.bytes(), std::byte{0xFF});
    h_ = memory_.put(h);
  }

  /// The kernel before it still has to write y, and in every other call x.
  Tensor linear(const LoraVariant& v) {
    const bool x_is_ready = ++num_linears_ % 2 == 0;
    forget_h();
    std::ranges::fill(bytes_of(y_, data_.batch.y), std::byte{0xFF});
    if (!x_is_ready) std::ranges::fill(bytes_of(x_, data_.batch.x), std::byte{0xFF});
    launch(
        LoraOp::linear, v, v.segment_size(), [this] { reset(); },
        x_is_ready ? LaunchOrder::x_is_ready : LaunchOrder::overlaps_previous);
    return result();
  }
  Tensor halves(const LoraVariant& down, const LoraVariant& up) {
    reset();
    forget_h();
    launch(LoraOp::shrink, down, down.segment_size());
    launch(LoraOp::expand, up, down.segment_size());
    return result();
  }
  bool is_generic() const {
    return layer(LoraOp::linear).path_for(tensors(LoraOp::linear)) == LoraPath::generic;
  }
  /// Those that there are for these tensors.
  std::vector<LoraVariant> variants(LoraOp op) const {
    std::vector<LoraVariant> all = lora_variants(op, /*has_clusters=*/true, /*has_wgmma=*/true);
    const bool aligned = layer(op).variant_for(tensors(op)).aligned;
    std::erase_if(all, [&](const LoraVariant& v) { return v.aligned && !aligned; });
    return all;
  }

 private:
  const LayerData& data_;
  emulated::Memory memory_;
  LoraLayerDesc desc_;
  DeviceView x_, y_, h_;
  uint64_t num_linears_ = 0;

  LoraLayer layer(LoraOp op) const {
    LoraLayerDesc desc = desc_;
    desc.op = op;
    return LoraLayer(desc);
  }
  LoraTensors tensors(LoraOp op) const {
    if (op == LoraOp::shrink) return {.x = x_, .h = h_};
    if (op == LoraOp::expand) return {.h = h_, .y = y_};
    return {.x = x_, .y = y_};
  }
  static std::span<std::byte> bytes_of(const DeviceView& view, const Tensor& t) {
    return {static_cast<std::byte*>(view.data), t.bytes().size()};
  }
  void reset() {
    std::ranges::copy(data_.batch.x.bytes(), static_cast<std::byte*>(x_.data));
    std::ranges::copy(data_.batch.y.bytes(), static_cast<std::byte*>(y_.data));
  }
  /// What a shrink does not write is not there from another.
  void forget_h() {
    std::ranges::fill(std::span(static_cast<std::byte*>(desc_.workspace), desc_.workspace_bytes),
                      std::byte{0xFF});
    const int64_t h_bytes = h_.shape[0] * h_.strides[0] * int64_t(sizeof(float));
    std::ranges::fill(std::span(static_cast<std::byte*>(h_.data), size_t(h_bytes)),
                      std::byte{0xFF});
  }
  void launch(LoraOp op, const LoraVariant& v, int32_t segment_size,
              std::function<void()> prior_grid = {},
              LaunchOrder order = LaunchOrder::after_previous) {
    emulated::set_prior_grid(std::move(prior_grid));
    emulated::Segments segments(data_.batch.slots, data_.shape.max_loras, segment_size);
    layer(op).launch_variant(v, tensors(op), segments.view(), nullptr, order);
  }
  Tensor result() const {
    Tensor y = data_.batch.y;
    emulated::Memory::get(y_, y);
    EXPECT_TRUE(memory_.is_intact()) << "written around a tensor";
    const Tensor covered = covered_part(data_, data_.batch, y);
    EXPECT_TRUE(covered.bytes() == y.bytes()) << "written where not covered";
    return y;
  }
};

std::string kernel_name(LoraOp op, const LoraVariant& v) {
  return std::string(name(op)) + " " + describe(v);
}

// The first of a pair's sizes meets every expand, others one: they see the same h.
template <typename Check>
void with_every_kernel(EmulatedLayer& layer, const Check& check) {
  for (const LoraVariant& v : layer.variants(LoraOp::linear)) {
    check(kernel_name(LoraOp::linear, v), [&] { return layer.linear(v); });
  }
  std::set<int> sizes;
  for (const LoraVariant& down : layer.variants(LoraOp::shrink)) {
    const bool meets_all = sizes.insert(down.segment_size()).second;
    for (const LoraVariant& up : layer.variants(LoraOp::expand)) {
      if (down.segment_size() % up.segment_size() != 0) continue;
      check(kernel_name(LoraOp::shrink, down) + ", " + kernel_name(LoraOp::expand, up),
            [&] { return layer.halves(down, up); });
      if (!meets_all) break;
    }
  }
}

// A row by itself, by every fifth kernel.
void check_row_alone(const LayerData& data, const Tensor& expected) {
  const auto row = int64_t(data.shape.seed % uint64_t(data.shape.num_tokens));
  LayerData alone = data;
  alone.batch = rows_of(data.batch, {row});
  alone.shape.num_tokens = 1;
  EmulatedLayer layer(alone);
  uint64_t index = data.shape.seed;
  with_every_kernel(layer, [&](const std::string& name, const auto& run) {
    if (index++ % 5 != 0 || testing::Test::HasFailure()) return;
    try {
      EXPECT_TRUE(same_row(run(), 0, expected, row)) << "row " << row << " alone, " << name;
    } catch (const InputError&) {
    }
  });
}

void check_case(const LayerCase& c, std::set<std::string>& seen) {
  SCOPED_TRACE("REPRO: LORATORY_SEED=" + std::to_string(c.seed) + " " + describe(c));
  const LayerData data(c);
  const Bounds bounds(data, data.batch, kUnit);
  EmulatedLayer layer(data);
  std::optional<Tensor> first;
  with_every_kernel(layer, [&](const std::string& name, const auto& run) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE(name);
    try {
      const Tensor y = run();
      seen.insert(name);
      if (!first) {
        const Bounds::Verdict verdict = bounds.judge(y);
        EXPECT_LE(verdict.worst, 1) << "row " << verdict.row << " column " << verdict.column;
        first = y;
      }
      EXPECT_TRUE(y.bytes() == first->bytes()) << "other bits";
    } catch (const InputError&) {  // of a variant that has no room for this layer
    }
  });
  if (!testing::Test::HasFailure()) check_row_alone(data, *first);
}

/// The kernels that no case met.
std::vector<std::string> missing(const std::set<std::string>& seen, bool aligned) {
  std::vector<std::string> out;
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    for (const LoraVariant& v : variants_of(op)) {
      const std::string kernel = kernel_name(op, v);
      const bool is_seen = std::ranges::any_of(
          seen, [&](const std::string& way) { return way.find(kernel) != std::string::npos; });
      if (!is_seen && v.aligned <= aligned) out.push_back(kernel);
    }
  }
  return out;
}

void check_cases(bool aligned, uint64_t num_cases) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one != nullptr ? std::stoull(one) : 1;
  std::set<std::string> seen;
  for (uint64_t seed = first; seed < first + (one != nullptr ? 1 : num_cases); ++seed) {
    check_case(small_case(seed, aligned), seen);
    if (testing::Test::HasFailure()) return;
  }
  if (one != nullptr) return;
  EXPECT_THAT(missing(seen, aligned), testing::IsEmpty());
}

// Products of a case's numbers are exact in fp32, and so a fused multiply-add would not be noticed.
// Of these they are not.
void use_all_bits(Tensor& t) {
  for (int64_t i = 0; i < t.shape()[0]; ++i) {
    for (int64_t j = 0; j < t.shape()[1]; ++j) t.set(t.get(i, j) * 1.1, i, j);
  }
}

// Numbers of f16 between 2^-8 and 2^4, of all bits: sums of their products round.
void fill_with_all_bits(Tensor& t, uint64_t seed) {
  auto* const numbers = reinterpret_cast<uint16_t*>(t.bytes().data());
  for (size_t i = 0; i < t.bytes().size() / sizeof(uint16_t); ++i) {
    const uint64_t bits = reference::random_bits(seed, 0, i);
    numbers[i] = uint16_t((bits & 0x83FF) | (7 + (bits >> 16) % 12) << 10);
  }
}

// K of eight splits.
TEST(LoraEmulated, EveryShrinkAddsSplitsInOneOrder) {
  LayerCase c = small_case(1, /*aligned=*/true);
  c.num_in = 2048, c.num_out = {64}, c.max_rank = 16, c.num_tokens = 3, c.max_loras = 1;
  c.weight = Dtype::f16, c.out = Dtype::f32, c.add_inputs = false;
  LayerData data(c);
  std::ranges::fill(data.batch.slots, 0);
  data.slices[0].ranks = {16}, data.slices[0].scalings = {0.3F};
  fill_with_all_bits(data.batch.x, 1);
  fill_with_all_bits(data.slices[0].a, 2);
  fill_with_all_bits(data.slices[0].b, 3);
  EmulatedLayer layer(data);
  std::optional<Tensor> first;
  for (const LoraVariant& v : layer.variants(LoraOp::shrink)) {
    const Tensor y = layer.halves(v, layer.variants(LoraOp::expand)[0]);
    if (!first) first = y;
    EXPECT_TRUE(y.bytes() == first->bytes()) << v;
  }
}

// In any mode and mix of dtypes that tensor cores do not take.
LayerCase generic_case(uint64_t seed) {
  using namespace reference;
  LayerCase c = small_case(seed, seed % 2 == 0);
  const auto draw = [&](uint64_t stream, auto... all) {
    const std::array values{all...};
    return values[random_bits(seed, stream, 0) % values.size()];
  };
  c.weight = draw(2, Dtype::f32, Dtype::bf16, Dtype::f16);
  c.out = draw(3, Dtype::f32, c.weight);
  c.mode.h = draw(4, IntermediateMode::fp32, IntermediateMode::store_as_x,
                  IntermediateMode::cast_to_weight, IntermediateMode::split2);
  c.mode.sum = draw(5, SumMode::one_round, SumMode::two_round);
  c.mode.scale = draw(6, ScaleMode::accumulator, ScaleMode::folded_b);
  return c;
}

TEST(LoraEmulated, TheGenericPathHasTheBitsOfTheReference) {
  int num_generic = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    const LayerCase c = generic_case(seed);
    SCOPED_TRACE(describe(c));
    LayerData data(c);
    if (c.weight == Dtype::f32) use_all_bits(data.batch.x);
    EmulatedLayer layer(data);
    if (!layer.is_generic()) continue;
    ++num_generic;
    const Exact exact(data, data.batch);
    const LoraVariant any = layer.variants(LoraOp::linear).front();
    ASSERT_EQ(exact.first_wrong_row(layer.linear(any)), -1);
    // h lies in fp32 between the halves; tensor cores take those of 16 bits.
    if (c.weight != Dtype::f32 || c.mode.h == reference::IntermediateMode::store_as_x) continue;
    ASSERT_EQ(exact.first_wrong_row(layer.halves(any, any)), -1);
  }
  EXPECT_GE(num_generic, 80);
}

TEST(LoraEmulated, EveryKernelGivesTheSameBitsWithinTheBound) { check_cases(true, 4); }
TEST(LoraEmulated, OfAnyAlignmentToo) { check_cases(false, 6); }

// A warp of a narrow expand takes every eighth tile of 64 columns: the first in one slice, the next
// in the other.
TEST(LoraEmulated, AWarpGoesFromSliceToSlice) {
  LayerCase c = small_case(1, true);
  c.num_in = 64;
  c.max_rank = 40;
  c.num_out = {448, 640};
  c.num_tokens = 17;
  c.max_loras = 2;
  std::set<std::string> seen;
  check_case(c, seen);
}

}  // namespace
}  // namespace loratory::gpu
