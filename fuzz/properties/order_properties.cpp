// lora_linear against its definition (reference/lora/definition.hpp): same bits in every mode and
// dtype, at sizes around those at which the fast code changes what it does.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fuzz/support/seeded_case.hpp"
#include "reference/lora/definition.hpp"
#include "reference/numerics/matrix.hpp"

extern "C" void omp_set_num_threads(int);

namespace loratory::reference {
namespace {

// num_ops bounds the number of tokens. Each dimension is large in half of the cases.
struct Layer {
  explicit Layer(const sim::SeededCase& c) : draw(c.seed) {
    const auto size = [&](int64_t small, int64_t large) {
      return draw.one_in(2) ? draw.between(1, small) : draw.between(large / 2, large);
    };
    const int64_t num_tokens = size(5, c.num_ops);
    const int64_t num_in = size(9, 140), num_out = size(20, 400), max_rank = size(4, 20);
    const auto max_loras = int32_t(draw.between(1, 3));
    dtype = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
    mode = {IntermediateMode(draw(4)), SumMode(draw(2)), ScaleMode(draw(2))};
    const bool strided = draw.one_in(3);
    x = random({num_tokens, num_in}, strided), y = random({num_tokens, num_out}, strided);
    a = random({max_loras, max_rank, num_in}, strided);
    b = random({max_loras, num_out, max_rank}, strided);
    for (int64_t t = 0; t < num_tokens; ++t) {
      slots.push_back(int32_t(draw.one_in(4) ? draw.between(-1, max_loras - 1) : 0));
    }
    for (int32_t s = 0; s < max_loras; ++s) {
      ranks.push_back(int32_t(draw.one_in(2) ? max_rank : draw.between(0, max_rank)));
      scalings.push_back(0.1F + 0.37F * float(draw(9)));
    }
    add_inputs = !draw.one_in(4);
    const int64_t products = num_tokens * max_rank;
    RC_CLASSIFY(products * num_in >= kMinParallelProducts, "shrink in threads");
    RC_CLASSIFY(products * num_out >= kMinParallelProducts, "expand in threads");
    RC_CLASSIFY(num_tokens > 64, "more rows than an item of shrink");
    RC_CLASSIFY(num_out > 256, "more columns than an item of expand");
    RC_CLASSIFY(strided, "with gaps");
  }

  Tensor random(const Extents& shape, bool strided) {
    Extents outer = shape;
    outer.back() = strided ? 2 * shape.back() + 1 : shape.back();
    Extents strides = row_major_strides(outer);
    if (strided) strides.back() = 2;
    Tensor t(dtype, shape, strides);
    for (size_t i = 0; i < t.bytes().size(); i += size_bytes(dtype)) {
      const double v = (double(draw(1 << 20)) * 0x1p-20 - 0.5) * (draw.one_in(9) ? 0x1p-20 : 4);
      store(dtype, t.bytes().data() + i, v);
    }
    return t;
  }

  Tensor run(void (*linear)(const LinearArgs&)) const {
    Tensor out = y;
    linear({.x = x.view(),
            .slots = slots,
            .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
            .add_inputs = add_inputs,
            .mode = mode,
            .y = out.view()});
    return out;
  }

  sim::Draw draw;
  Dtype dtype;
  NumericMode mode;
  bool add_inputs;
  Tensor x{Dtype::f32, {0}}, y = x, a = x, b = x;
  std::vector<int32_t> slots, ranks;
  std::vector<float> scalings;
};

// [1.16] [1.17] [1.19] [1.20] P4, P5: c and j ascending, fp32, nothing fused, every tail computed;
// and the same bits for any number of threads.
RC_GTEST_PROP(Order, LinearIsItsDefinition, ()) {
  const Layer layer(sim::any_seeded_case(140));
  const Tensor expected = layer.run(lora_linear_definition);
  for (const int num_threads : {1, 2, 3}) {
    omp_set_num_threads(num_threads);
    RC_ASSERT(layer.run(lora_linear).bytes() == expected.bytes());
  }
}

}  // namespace
}  // namespace loratory::reference
