// A gated expand that shrinks for the next layer too, thread by thread on the CPU: the activation
// and y of that layer have the bits of all launches one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/variant_table.hpp"
#include "tests/gpu/emulated/emulated_gpu.hpp"
#include "tests/gpu/emulated/emulated_layer.hpp"
#include "tests/gpu/support/gate_and_up.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::LayerData;
using reference::Tensor;

constexpr GateAndUpLimits kMlpLimits{.num_tokens = 90, .num_in = 64, .size = 6080};
constexpr LoraVariant kShrink{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3};

struct Results {
  Tensor activation, y;
};

class EmulatedMlp {
 public:
  explicit EmulatedMlp(const DenseMlp& mlp)
      : mlp_(mlp),
        num_tokens_(mlp.gate_up.shape.num_tokens),
        size_(mlp.down.shape.num_in),
        x_(memory_.put(mlp.gate_up.batch.x)),
        gate_up_y_(memory_.put(mlp.gate_up.batch.y)),
        y_(memory_.put(mlp.down.batch.y)),
        activation_(memory_.put(nothing())),
        segments_(mlp.gate_up.batch.slots, mlp.gate_up.shape.max_loras, 64),
        gate_up_(emulated::put_linear(memory_, mlp.gate_up)),
        down_(emulated::put_linear(memory_, mlp.down)) {
    gate_up_y_.shape[1] = 2 * size_;
  }

  Results one_after_the_other() {
    launch({kShrink, kGatedVariants[0]});
    LoraVariant v = kShrink;
    v.launches = 2;
    down_.launch_variant(v, of_down(), segments_.view(), nullptr);
    return results();
  }
  Results at_once() {
    reset();
    launch({kShrink, kGatedShrinkVariants[0], /*shrinks_next=*/true});
    down_.launch_behind_splits(of_down(), gate_up_y_, segments_.view(), nullptr);
    return results();
  }

 private:
  const DenseMlp& mlp_;
  int64_t num_tokens_, size_;
  emulated::Memory memory_;
  DeviceView x_, gate_up_y_, y_, activation_;
  emulated::Segments segments_;
  LoraLayer gate_up_, down_;

  Tensor nothing() const {
    Tensor out(Dtype::bf16, {num_tokens_, size_});
    std::ranges::fill(out.bytes(), std::byte{0xFF});
    return out;
  }
  LoraTensors of_down() const {
    DeviceView y = y_;
    y.shape[1] = down_.num_columns();
    return {.x = activation_, .h = {}, .y = y};
  }
  void launch(const SiluMulVariants& variants) {
    const LoraTensors tensors{.x = x_, .h = {}, .y = gate_up_y_};
    gate_up_.launch_silu_mul(variants, tensors, activation_, segments_.view(), nullptr,
                             LaunchOrder::after_previous, &down_);
  }
  Results results() const {
    EXPECT_TRUE(memory_.is_intact()) << "written around a tensor";
    Results out{nothing(), mlp_.down.batch.y};
    emulated::Memory::get(activation_, out.activation);
    emulated::Memory::get(y_, out.y);
    return out;
  }
  void reset() {
    const auto write = [](const DeviceView& to, const Tensor& from) {
      std::ranges::copy(from.bytes(), static_cast<std::byte*>(to.data));
    };
    write(gate_up_y_, mlp_.gate_up.batch.y);
    write(y_, mlp_.down.batch.y);
    write(activation_, nothing());
  }
};

void check_case(uint64_t seed) {
  const DenseMlp mlp = dense_mlp(seed, Dtype::bf16, kMlpLimits);
  SCOPED_TRACE("REPRO: LORATORY_SEED=" + std::to_string(seed) + " " + describe(mlp.down.shape));
  EmulatedMlp emulated(mlp);
  const Results expected = emulated.one_after_the_other(), got = emulated.at_once();
  for (int64_t t = 0; t < mlp.down.shape.num_tokens; ++t) {
    const int32_t slot = mlp.down.batch.slots[size_t(t)];
    ASSERT_TRUE(same_row(got.activation, t, expected.activation, t)) << t << " of slot " << slot;
    ASSERT_TRUE(same_row(got.y, t, expected.y, t)) << t << " of slot " << slot;
  }
}

TEST(NextShrinkEmulated, HasTheBitsOfAllKernels) {
  const char* const one = std::getenv("LORATORY_SEED");
  const uint64_t first = one != nullptr ? std::stoull(one) : 1;
  for (uint64_t seed = first; seed < first + (one != nullptr ? 1 : 10); ++seed) {
    check_case(seed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace loratory::gpu
