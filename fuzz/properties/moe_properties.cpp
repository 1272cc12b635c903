// LoRA on mixtures of experts: P20, P21, its part of P26, and P2, P4, P5, P7, P13 for it.
// Exact lane: small integers and identity or relu, compared bit for bit with a loop over tokens
// and experts. Bounded lane: reals, each stage against its bound given its actual input.
// Everything beyond a rank is NaN in every case.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/moe_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/moe/oracle.hpp"
#include "reference/moe/router.hpp"
#include "reference/moe/weight_layout.hpp"
#include "reference/parallel/expert_buffers.hpp"
#include "reference/parallel/wrapper_table.hpp"

namespace loratory::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t pick(const MoeCase& c, uint64_t index, int64_t count) {
  return int64_t(random_bits(c.seed, 999, index) % uint64_t(count));
}

// The worst error/bound of every stage over all cases, printed at the end.
struct Worst {
  MoeStageErrors stages;
  double weighted_delta = 0, parallel = 0, router = 0;

  void add(const MoeStageErrors& e) {
    MoeStageErrors& s = stages;
    s = {std::max(s.input, e.input),
         std::max(s.gate_up_base, e.gate_up_base),
         std::max(s.gate_up, e.gate_up),
         std::max(s.activated, e.activated),
         std::max(s.down_base, e.down_base),
         std::max(s.down, e.down),
         std::max(s.y, e.y)};
  }
  ~Worst() {
    fmt::print(
        "worst error/bound: input {:.2f}, gate_up_base {:.2f}, gate_up {:.2f}, activated {:.2f}, "
        "down_base {:.2f}, down {:.2f}, y {:.2f}; weighted delta {:.2f}, tensor parallel {:.2f}, "
        "router {:.2f}\n",
        stages.input, stages.gate_up_base, stages.gate_up, stages.activated, stages.down_base,
        stages.down, stages.y, weighted_delta, parallel, router);
  }
};
Worst& worst_of_all() {
  static Worst worst;
  return worst;
}

// A number and the sum of the absolute values that it was made of.
struct Exact {
  double value = 0, size = 0;
  Exact() = default;
  explicit Exact(double v) : value(v), size(std::fabs(v)) {}
  Exact(double v, double s) : value(v), size(s) {}
  friend Exact operator+(Exact l, Exact r) { return {l.value + r.value, l.size + r.size}; }
  friend Exact operator*(Exact l, Exact r) { return {l.value * r.value, l.size * r.size}; }
};

// One output of a linear layer of expert `e` with LoRA of slice `i`, straight from [1.34].
Exact linear(const MoeData& d, const Tensor& w, int64_t w_row, size_t i, int32_t slot, int32_t e,
             int64_t n, const std::vector<Exact>& in) {
  Exact y;
  for (size_t c = 0; c < in.size(); ++c) {
    y = y + Exact(w.get(e, w_row, int64_t(c))) * in[c];
  }
  if (slot < 0) return y;
  Exact delta;
  for (int32_t j = 0; j < d.rank(i, slot, e); ++j) {
    Exact h;
    for (size_t c = 0; c < in.size(); ++c) {
      h = h + Exact(d.a[i].get(slot, e, j, int64_t(c))) * in[c];
    }
    delta = delta + Exact(d.b[i].get(slot, e, n, j)) * h;
  }
  return y + Exact(d.scalings[i][size_t(slot * d.c.num_experts + e)]) * delta;
}

Exact act(Activation activation, Exact v) {
  return activation == Activation::relu && v.value < 0 ? Exact(0, v.size) : v;
}

// y of one token; nothing in it comes from the code under test.
std::vector<Exact> naive_token(const MoeData& d, int64_t t) {
  std::vector<Exact> y(size_t(d.c.hidden));
  for (int64_t i = 0; i < d.c.k; ++i) {
    const int32_t e = d.experts[size_t(t * d.c.k + i)], slot = d.active_slot(t);
    const Exact g(d.router_weights[size_t(t * d.c.k + i)]);
    std::vector<Exact> in, a;
    for (int64_t c = 0; c < d.c.hidden; ++c) {
      in.push_back(d.weight_on_input ? g * Exact(d.x.get(t, c)) : Exact(d.x.get(t, c)));
    }
    for (int64_t n = 0; n < d.c.inner; ++n) {
      a.push_back(act(Activation(d.c.activation), linear(d, d.w13, n, 0, slot, e, n, in)));
      if (d.gated) a.back() = a.back() * linear(d, d.w13, d.c.inner + n, 1, slot, e, n, in);
    }
    for (int64_t n = 0; n < d.c.hidden; ++n) {
      const Exact z = linear(d, d.w2, n, d.gated ? 2 : 1, slot, e, n, a);
      y[size_t(n)] = y[size_t(n)] + (d.weight_on_input ? z : g * z);
    }
  }
  return y;
}

void classify(const MoeData& d) {
  const bool some_base = std::count(d.slots.begin(), d.slots.end(), -1) > 0;
  bool some_off = false;
  for (int64_t t = 0; t < d.c.num_tokens; ++t) {
    some_off |= (d.slots[size_t(t)] >= 0) && (d.active_slot(t) < 0);
  }
  RC_CLASSIFY(some_base, "base tokens");
  RC_CLASSIFY(some_off, "tokens of a slot that is off");
  RC_CLASSIFY(!d.gated, "not gated");
  RC_CLASSIFY(d.weight_on_input, "router weight on input");
}

// [1.33] [1.34] [1.36] [1.37] P20: the layer is the loop over tokens and experts, in every mode.
RC_GTEST_PROP(Moe, P20TheLayerIsTheLoopOverTokensAndExperts, ()) {
  MoeCase c = any_moe_case();
  c.dtype = 0;
  c.activation = c.activation % 2 == 0 ? int(Activation::identity) : int(Activation::relu);
  const MoeData data(c, MoeFill::integers);
  classify(data);
  const MoeLora lora = data.lora();
  const Tensor y = moe_layer(data.args(), &lora).y, base = moe_layer(data.args(), nullptr).y;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const std::vector<Exact> exact = naive_token(data, t);
    for (int64_t n = 0; n < c.hidden; ++n) {
      RC_PRE(exact[size_t(n)].size < 0x1p17);  // in units of 2^-7: nothing has been rounded
      RC_ASSERT(y.get(t, n) == exact[size_t(n)].value);
    }
  }
  RC_CLASSIFY(!same_bits(y, base), "LoRA changes something");
}

MoeData random_reals(const MoeCase& c) {
  MoeData data(c, MoeFill::reals);
  classify(data);
  if (pick(c, 1, 3) == 0) {  // every second expert lies elsewhere, the others have other numbers
    const auto odd = int32_t(pick(c, 2, 2));
    for (int32_t e = 0; e < c.num_experts; ++e) {
      data.expert_map.push_back(e % 2 == odd ? -1 : c.num_experts - 1 - e);
    }
    RC_TAG("experts elsewhere");
  }
  return data;
}

// [1.34] [1.36] P20: both kinds of base input; LoRA takes the numbers that are not quantised.
RC_GTEST_PROP(Moe, P20EveryStageLiesWithinItsBound, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data = random_reals(c);
  MoeArgs args = data.args();
  if (pick(c, 3, 2) == 0) args.quantised_base_input = Dtype::f8_e4m3fn;
  RC_CLASSIFY(args.quantised_base_input.has_value(), "quantised base input");
  const MoeLora lora = data.lora();
  const MoeStageErrors errors = judge_stages(args, &lora, moe_layer(args, &lora));
  worst_of_all().add(errors);
  RC_ASSERT(errors.input <= 1.0);
  RC_ASSERT(errors.gate_up_base <= 1.0);
  RC_ASSERT(errors.gate_up <= 1.0);
  RC_ASSERT(errors.activated <= 1.0);
  RC_ASSERT(errors.down_base <= 1.0);
  RC_ASSERT(errors.down <= 1.0);
  RC_ASSERT(errors.y <= 1.0);
  RC_CLASSIFY(errors.worst() > 0.5, "worst error/bound > 0.5");
}

// What an earlier step left behind: plausible rows and experts in everything that is not in use.
void leave_stale_entries(const MoeCase& c, AlignedRows& aligned) {
  const auto num_rows = int64_t(c.num_tokens) * c.k;
  for (int64_t s = 0; s < aligned.max_loras; ++s) {
    const int64_t used = aligned.num_tokens_post_padded[size_t(s)];
    for (int64_t i = used; i < aligned.max_padded; ++i) {
      aligned.sorted_token_ids[size_t(s * aligned.max_padded + i)] = int32_t(pick(c, 50, num_rows));
      aligned.expert_ids[size_t(s * aligned.max_blocks() + i / aligned.block_size)] = 0;
    }
    for (int64_t i = 0; i < used; ++i) {
      int32_t& row = aligned.sorted_token_ids[size_t(s * aligned.max_padded + i)];
      if (row == num_rows) row += int32_t(pick(c, 60 + uint64_t(i), 3));  // any id >= T·k
    }
  }
}

// [1.37] P20: blocks of experts, with padding and what is left of an earlier step, are rows.
RC_GTEST_PROP(Moe, P20BlocksOfExpertsGiveTheBitsOfSingleRows, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data = random_reals(c);
  const MoeLora lora = data.lora();
  const int64_t block_size = pick(c, 4, 2) == 0 ? 1 + pick(c, 5, 5) : 16;
  AlignedRows aligned = align_rows(data.args().rows, lora.adapters, c.num_experts, block_size);
  leave_stale_entries(c, aligned);
  RC_CLASSIFY(
      block_tiles(aligned).size() < single_row_tiles(data.args().rows, lora.adapters).size(),
      "some block has several rows");
  const MoeStages blocks = moe_layer(data.args(), &lora, &aligned);
  const MoeStages rows = moe_layer(data.args(), &lora);
  RC_ASSERT(same_bits(blocks.gate_up, rows.gate_up));  // of experts elsewhere too
  RC_ASSERT(same_bits(blocks.down, rows.down));
  RC_ASSERT(same_bits(blocks.y, rows.y));
}

// [1.2] [1.3] [1.37] P2 P20: rows without LoRA have the bits of the layer without LoRA, at every
// stage.
RC_GTEST_PROP(Moe, P20RowsWithoutLoraKeepTheirBits, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data = random_reals(c);
  const MoeLora lora = data.lora();
  const MoeStages with = moe_layer(data.args(), &lora), without = moe_layer(data.args(), nullptr);
  RC_ASSERT(same_bits(with.gate_up_base, without.gate_up_base));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    if (data.active_slot(t) >= 0) continue;
    for (int64_t n = 0; n < c.hidden; ++n) {
      RC_ASSERT(encode(Dtype::f32, with.y.get(t, n)) == encode(Dtype::f32, without.y.get(t, n)));
    }
  }
  for (int64_t row = 0; row < int64_t(data.experts.size()); ++row) {
    const int32_t slot = data.active_slot(row / c.k), e = data.args().rows.local_expert(row);
    for (int64_t n = 0; n < with.gate_up.shape()[1]; ++n) {
      const bool covered = slot >= 0 && e >= 0 && data.rank(size_t(n / c.inner), slot, e) > 0;
      if (covered) continue;
      RC_ASSERT(encode(Dtype::f32, with.gate_up.get(row, n)) ==
                encode(Dtype::f32, without.gate_up.get(row, n)));
    }
  }
}

// [1.6] [1.37] P13: NaN in everything that the operation does not cover stays.
RC_GTEST_PROP(Moe, P20UncoveredElementsAreNeitherReadNorWritten, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data = random_reals(c);
  const MoeLora lora = data.lora();
  const auto num_slices = int64_t(lora.w13.size());
  Tensor x = data.x, y(x.dtype(), {int64_t(data.experts.size()), num_slices * c.inner});
  const Oracle oracle = expert_lora_oracle(data.lora_args(lora.w13, x, y));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; (data.active_slot(t) < 0) && n < c.hidden; ++n) x.set(kNan, t, n);
  }
  for (int64_t row = 0; row < y.shape()[0]; ++row) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      if (!oracle.at(row, n)) y.set(kNan, row, n);
    }
  }
  expert_lora(data.lora_args(lora.w13, x, y), single_row_tiles(data.args().rows, lora.adapters));
  for (int64_t row = 0; row < y.shape()[0]; ++row) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      RC_ASSERT(std::isnan(y.get(row, n)) == !oracle.at(row, n).has_value());
    }
  }
}

// What expert_lora gives, and its oracle, with the router weights in the expand or without.
struct Judged {
  Tensor y;
  Oracle oracle;
  Arithmetic arithmetic;
};

Judged judged_down(const MoeData& data, MoeFill fill, bool weighted) {
  const MoeCase& c = data.c;
  const auto num_rows = int64_t(data.experts.size());
  Tensor a(Dtype(c.dtype), {num_rows, c.inner}), y(Dtype(c.dtype), {num_rows, c.hidden});
  for (Tensor* t : {&a, &y}) {
    for (int64_t i = 0; i < num_numbers(*t); ++i) {
      const auto bits = random_bits(c.seed, t == &a ? 700 : 701, uint64_t(i));
      set_number(
          *t, i,
          fill == MoeFill::integers ? double(bits % 3) - 1 : double(bits >> 12) * 0x1p-51 - 1);
    }
  }
  const MoeLora lora = data.lora();
  ExpertLoraArgs args = data.lora_args({lora.w2}, a, y);
  if (weighted) args.router_weights = data.router_weights;
  const Oracle oracle = expert_lora_oracle(args);
  const Arithmetic arithmetic = arithmetic_of(args);
  expert_lora(args, block_tiles(align_rows(args.rows, args.adapters, c.num_experts, 4)));
  return {y, oracle, arithmetic};
}

// [1.33] [1.34] P4 P20: 16-bit dtypes too; the router weight counts once, on the delta.
RC_GTEST_PROP(Moe, P20IntegersGiveTheExactDeltaInEveryMode, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data(c, MoeFill::integers);
  const bool weighted = pick(c, 6, 2) == 0;
  RC_CLASSIFY(weighted, "router weight in the expand");
  const Judged judged = judged_down(data, MoeFill::integers, weighted);
  for (int64_t row = 0; row < judged.y.shape()[0]; ++row) {
    for (int64_t n = 0; n < c.hidden; ++n) {
      const auto& facts = judged.oracle.at(row, n);
      // Units of 2^-3: -1 to 1, plus |scaling·weight| <= 2 times inner·rank <= 35. In bf16 what
      // does not fit in 8 bits is left out.
      if (!facts || round_to(judged.y.dtype(), facts->result()) != facts->result()) continue;
      if (round_to(judged.y.dtype(), facts->delta) != facts->delta) continue;
      RC_ASSERT(judged.y.get(row, n) == facts->result());
    }
  }
}

// [1.17] [1.18] P5 P20: with the router weight in the expand, as vLLM's down projection has it.
RC_GTEST_PROP(Moe, P20WeightedDeltasLieWithinTheBound, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data = random_reals(c);
  const Judged judged = judged_down(data, MoeFill::reals, pick(c, 6, 4) != 0);
  double worst = 0;
  for (int64_t row = 0; row < judged.y.shape()[0]; ++row) {
    for (int64_t n = 0; n < c.hidden; ++n) {
      const auto& facts = judged.oracle.at(row, n);
      if (!facts) continue;
      worst = std::max(worst, error_over_bound(judged.y.get(row, n), *facts, judged.arithmetic));
      RC_ASSERT(worst <= 1.0);
    }
  }
  worst_of_all().weighted_delta = std::max(worst_of_all().weighted_delta, worst);
  RC_CLASSIFY(worst > 0.5, "worst error/bound > 0.5");
}

// [1.19] P7: a token alone has the bits that it has among others.
RC_GTEST_PROP(Moe, P7TokensDoNotDependOnTheBatch, ()) {
  const MoeCase c = any_moe_case();
  RC_PRE(c.num_tokens > 0);
  const MoeData data = random_reals(c);
  const MoeLora lora = data.lora();
  const auto t = pick(c, 7, c.num_tokens);
  MoeData alone = data;
  alone.c.num_tokens = 1;
  alone.x = Tensor(data.x.dtype(), {1, c.hidden});
  for (int64_t n = 0; n < c.hidden; ++n) alone.x.set(data.x.get(t, n), 0, n);
  alone.slots = {data.slots[size_t(t)]};
  alone.experts.assign(data.experts.begin() + t * c.k, data.experts.begin() + (t + 1) * c.k);
  alone.router_weights.assign(data.router_weights.begin() + t * c.k,
                              data.router_weights.begin() + (t + 1) * c.k);
  const MoeLora its = alone.lora();
  const Tensor y = moe_layer(data.args(), &lora).y, y_alone = moe_layer(alone.args(), &its).y;
  for (int64_t n = 0; n < c.hidden; ++n) {
    RC_ASSERT(encode(Dtype::f32, y.get(t, n)) == encode(Dtype::f32, y_alone.get(0, n)));
  }
}

// The weights of local expert 0 for all experts: as a view, and copied in place.
ConstTensorView shared(const Tensor& weights) {
  ConstTensorView view = weights.view();
  view.shape[1] = 1;
  return share_experts(view, 1, weights.shape()[1]);
}

void copy_first_expert(Tensor& t) {
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    const int64_t of_expert = t.strides()[1], of_slot = t.strides()[0];
    set_number(t, i, number(t, i / of_slot * of_slot + i % of_expert));
  }
}

// [1.38] P21: an adapter shared by all experts is the adapter copied E times.
RC_GTEST_PROP(Moe, P21ASharedAdapterIsItsCopies, ()) {
  const MoeCase c = any_moe_case();
  MoeData data = random_reals(c);
  for (size_t i = 0; i < data.a.size(); ++i) {
    for (int64_t s = 0; s < c.max_loras; ++s) {
      for (int64_t e = 0; e < c.num_experts; ++e) {
        const auto index = size_t(s * c.num_experts);
        data.ranks[i][index + size_t(e)] = data.ranks[i][index];
        data.scalings[i][index + size_t(e)] = data.scalings[i][index];
      }
    }
  }
  MoeLora lora = data.lora();
  const auto share = [](ExpertLoraSlice& slice, const Tensor& a, const Tensor& b) {
    slice.a = shared(a), slice.b = shared(b);
  };
  for (size_t i = 0; i < lora.w13.size(); ++i) share(lora.w13[i], data.a[i], data.b[i]);
  share(lora.w2, data.a.back(), data.b.back());
  const Tensor y_shared = moe_layer(data.args(), &lora).y;
  for (std::vector<Tensor>* weights : {&data.a, &data.b}) {
    for (Tensor& t : *weights) copy_first_expert(t);
  }
  const MoeLora copied = data.lora();
  RC_ASSERT(same_bits(moe_layer(data.args(), &copied).y, y_shared));
}

MoeParallel any_parallel(const MoeCase& c, int64_t most_tp_ranks = 8) {
  const int64_t how = pick(c, 8, 3);
  const int64_t tp_size = std::min(int64_t(1) << pick(c, 9, 4), most_tp_ranks);
  RC_TAG(fmt::format("{}, P = {}",
                     how == 0   ? "default"
                     : how == 1 ? "fully sharded"
                                : "experts",
                     tp_size));
  return {tp_size, how == 1, how == 2};
}

// [1.41] [3.16] [3.17] [3.18] [3.20] P26: cut over tp_ranks in each way, the layer is the layer.
RC_GTEST_PROP(Moe, P26TensorParallelGivesTheSameNumbers, ()) {
  MoeCase c = any_moe_case(8);
  c.dtype = 0;
  c.activation = c.activation % 2 == 0 ? int(Activation::identity) : int(Activation::relu);
  const MoeData data(c, MoeFill::integers);
  classify(data);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (const Exact& y : naive_token(data, t)) RC_PRE(y.size < 0x1p17);  // as above
  }
  const MoeLora lora = data.lora();
  const Tensor y = moe_layer(data.args(), &lora).y;
  const MoeParallel parallel = any_parallel(c);
  const int64_t tp_size = parallel.tp_size;
  const std::vector<Tensor> of_ranks = parallel_moe(data.args(), &lora, parallel);
  RC_ASSERT(int64_t(of_ranks.size()) == tp_size);
  for (const Tensor& of_rank : of_ranks) {
    for (int64_t i = 0; i < num_numbers(y); ++i) RC_ASSERT(number(of_rank, i) == number(y, i));
  }
}

// Gate and up of `data` as one pair: A of gate for both, B row under row or in turns.
struct FusedW13 {
  FusedW13(MoeData& data, GateUpLayout rows) : layout(rows) {
    const Tensor &gate = data.b[0], &up = data.b[1];
    Extents shape = gate.shape();
    const int64_t inner = shape[2];
    shape[2] *= 2;
    b = Tensor(gate.dtype(), shape);
    data.a[1] = data.a[0], data.ranks[1] = data.ranks[0], data.scalings[1] = data.scalings[0];
    const bool halves = rows == GateUpLayout::halves;
    for (int64_t s = 0; s < shape[0]; ++s) {
      for (int64_t e = 0; e < shape[1]; ++e) {
        const int32_t rank = data.rank(0, int32_t(s), int32_t(e));
        for (int64_t n = 0; n < inner; ++n) {
          for (int64_t j = 0; j < shape[3]; ++j) {
            // Both slices are as wide as gate now: numbers in, NaN beyond.
            if (j < rank && std::isnan(data.b[1].get(s, e, n, j))) data.b[1].set(1, s, e, n, j);
            if (j >= rank) data.b[1].set(kNan, s, e, n, j);
            b.set(gate.get(s, e, n, j), s, e, halves ? n : 2 * n, j);
            b.set(up.get(s, e, n, j), s, e, halves ? inner + n : 2 * n + 1, j);
          }
        }
      }
    }
  }
  MoeLora lora(const MoeData& data) const {
    MoeLora out = data.lora();
    out.w13 = {out.w13[0]};
    out.w13[0].b = b.view();
    out.fused_rows = layout;
    return out;
  }

  GateUpLayout layout;
  Tensor b{Dtype::f32, {0}};
};

GateUpLayout any_rows(const MoeCase& c) {
  const bool halves = pick(c, 10, 2) == 0;
  RC_CLASSIFY(!halves, "rows in turns");
  return halves ? GateUpLayout::halves : GateUpLayout::interleaved;
}

// [1.25] [1.39] [3.18] P15: gate and up in one pair are the two slices, in the layer and on
// several tp_ranks, in both orders of rows.
RC_GTEST_PROP(Moe, P15AFusedW13IsItsSlices, ()) {
  const MoeCase c = any_moe_case(8);
  MoeData data(c, MoeFill::reals);
  RC_PRE(data.gated);
  classify(data);
  const FusedW13 fused(data, any_rows(c));
  const MoeLora apart = data.lora(), together = fused.lora(data);
  const MoeStages stages = moe_layer(data.args(), &together);
  RC_ASSERT(same_bits(stages.gate_up, moe_layer(data.args(), &apart).gate_up));
  // With so many numbers those of f16 overflow, of which a bound says nothing.
  const bool may_overflow = Dtype(c.dtype) == Dtype::f16;
  RC_ASSERT(may_overflow || judge_stages(data.args(), &together, stages).worst() <= 1.0);
  const MoeParallel how = any_parallel(c, 4);
  const auto y = parallel_moe(data.args(), &together, how);
  const auto expected = parallel_moe(data.args(), &apart, how);
  for (size_t p = 0; p < y.size(); ++p) RC_ASSERT(same_bits(y[p], expected[p]));
}

// The adapter of a slot as a checkpoint has it, unsharded.
ExpertPairs pairs_of(const MoeCase& c, const MoeLora& lora, int64_t slot) {
  ExpertPairs out{size_t(c.num_experts)};
  std::vector<ExpertLoraSlice> slices = lora.w13;
  slices.push_back(lora.w2);
  for (int64_t e = 0; e < c.num_experts; ++e) {
    for (const ExpertLoraSlice& slice : slices) {
      const auto at = size_t(slot * c.num_experts + e);
      const int64_t rank = slice.ranks[at];
      auto& pair = out[size_t(e)].emplace_back();
      if (rank == 0) continue;
      pair = LoraPair{slice.a[slot][e].part(0, 0, rank), slice.b[slot][e].part(1, 0, rank),
                      slice.scalings[at]};
    }
  }
  return out;
}

// What the table of wrappers says of these buffers; whole experts are those of one process.
std::vector<BufferShape> table_shapes(const MoeCase& c, const ExpertLayer& layer,
                                      const MoeParallel& how) {
  BaseLayer base;
  base.type = BaseLayerType::moe;
  const int64_t share = how.expert_parallel ? how.tp_size : 1;
  base.moe = {c.num_experts / share, c.hidden, c.inner, layer.gated, how.expert_parallel};
  return make_wrapper(base, layer.fused_w13 ? 1 : 2,
                      {how.tp_size / share, how.fully_sharded, c.max_rank}, c.max_loras)
      .buffers;
}

// [3.16]-[3.18] [3.24] P26: what each tp_rank has cut into buffers of its own gives the bits of the
// cut of whole ones; what a slot held before shows nowhere.
RC_GTEST_PROP(Moe, P26BuffersOfATpRankAreItsPart, ()) {
  const MoeCase c = any_moe_case(8);
  MoeData data(c, MoeFill::reals);
  classify(data);
  const bool is_fused = !data.gated || pick(c, 11, 2) == 0;
  const GateUpLayout rows = any_rows(c);
  std::optional<FusedW13> fused;
  if (is_fused && data.gated) fused.emplace(data, rows);
  const MoeLora lora = fused ? fused->lora(data) : data.lora();
  const MoeParallel how = any_parallel(c, 4);
  const ExpertLayer layer{.num_experts = c.num_experts,
                          .hidden = c.hidden,
                          .intermediate = c.inner,
                          .gated = data.gated,
                          .fused_w13 = is_fused,
                          .fused_rows = rows};
  RC_CLASSIFY(is_fused, "one pair for w13");
  std::vector<LocalExpertBuffers> buffers;
  for (int64_t p = 0; p < how.tp_size; ++p) {
    buffers.emplace_back(layer, how, c.max_rank, p, c.max_loras, data.x.dtype());
    buffers.back().write_slot(0, pairs_of(c, lora, c.max_loras - 1));
    if (pick(c, 12, 2) == 0) buffers.back().clear_slot(0);
    for (int32_t s = 0; s < c.max_loras; ++s) {
      buffers.back().write_slot(s, pairs_of(c, lora, s));
    }
    const auto shrink = buffers.back().shrink_slices(), expand = buffers.back().expand_slices();
    const std::vector<BufferShape> shapes = table_shapes(c, layer, how);
    RC_ASSERT(shapes.size() == shrink.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      RC_ASSERT(shrink[i].a.shape == shapes[i].a);
      RC_ASSERT(expand[i].b.shape == shapes[i].b);
    }
  }
  const auto y = parallel_moe(data.args(), {lora.adapters, buffers, lora.mode}, how);
  const auto expected = parallel_moe(data.args(), &lora, how);
  RC_ASSERT(y.size() == expected.size());
  for (size_t p = 0; p < y.size(); ++p) RC_ASSERT(same_bits(y[p], expected[p]));
}

// P26: one tp_rank does what the layer does, in every cut, bit for bit.
RC_GTEST_PROP(Moe, P26OneTpRankGivesTheBitsOfTheLayer, ()) {
  const MoeCase c = any_moe_case();
  const MoeData data(c, MoeFill::reals);
  const MoeLora lora = data.lora();
  const Tensor y = moe_layer(data.args(), &lora).y;
  for (const MoeParallel& how :
       {MoeParallel{1, false, false}, MoeParallel{1, true, false}, MoeParallel{1, false, true}}) {
    RC_ASSERT(same_bits(parallel_moe(data.args(), &lora, how).at(0), y));
  }
}

// sum_i g_i · (W2 a + scaling · B2 A2 a) of one element from the actual a, and its size.
Exact down_and_combine(const MoeData& d, const Tensor& activated, int64_t t, int64_t n) {
  Exact y;
  for (int64_t row = t * d.c.k; row < (t + 1) * d.c.k; ++row) {
    std::vector<Exact> a;
    for (int64_t m = 0; m < d.c.inner; ++m) a.emplace_back(activated.get(row, m));
    const Exact z =
        linear(d, d.w2, n, d.gated ? 2 : 1, d.active_slot(t), d.experts[size_t(row)], n, a);
    y = y + (d.weight_on_input ? z : Exact(d.router_weights[size_t(row)]) * z);
  }
  return y;
}

// [3.16] [3.17] P26 on reals. Up to a, every tp_rank has the bits of P = 1: rows of gate, up and h
// are whole. From there each product passes at most this many fp32 roundings: 1 of its own, inner
// and P - 1 of sums of h or z, 2R + 1 of the expand (split2 doubles R), scaling or folding 2, base
// + delta 1, weight 1, k and P - 1 of the last sums; each of these at most 2^-149 below the normal
// range, times weights that are at most 8.
RC_GTEST_PROP(Moe, P26TensorParallelLiesWithinItsBound, ()) {
  MoeCase c = any_moe_case(8);
  c.dtype = 0;
  const MoeData data(c, MoeFill::reals);
  const MoeLora lora = data.lora();
  const Tensor a = moe_layer(data.args(), &lora).activated;
  const int64_t how = pick(c, 8, 3), tp_size = int64_t(1) << pick(c, 9, 4);
  const Tensor y = parallel_moe(data.args(), &lora, {tp_size, how == 1, how == 2}).back();
  const double num_roundings = double(c.inner + 2 * c.max_rank + c.k + 2 * tp_size + 6);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < c.hidden; ++n) {
      const Exact exact = down_and_combine(data, a, t, n);
      const double bound = gamma(num_roundings, 0x1p-24) * exact.size + 0x1p-120;
      worst_of_all().parallel =
          std::max(worst_of_all().parallel, std::fabs(y.get(t, n) - exact.value) / bound);
      RC_ASSERT(std::fabs(y.get(t, n) - exact.value) <= bound);
    }
  }
}

// Weights in float against float64 for the same experts. D the largest distance of a logit from
// the largest: the difference is rounded, which exp turns into D roundings, and exp itself is one;
// so for numerator and denominator, with E sums and a quotient; likewise once more with
// norm_topk_prob.
RC_GTEST_PROP(Router, WeightsLieWithinTheirBound, ()) {
  const sim::SeededCase c = sim::any_seeded_case(65);
  const int64_t num_experts = c.num_ops, k = 1 + int64_t(c.seed % uint64_t(num_experts));
  const bool norm = c.seed / 64 % 2 == 0;
  Vector<float> logits(num_experts);
  for (int64_t e = 0; e < num_experts; ++e) {
    logits(e) = float(double(random_bits(c.seed, 1, uint64_t(e)) >> 40) * 0x1p-20 - 8);
  }
  const Routing<float> got = route(logits, k, norm);
  const std::vector<double> exact =
      router_weights<double>(logits.cast<double>(), got.experts, norm);
  const double distance = logits.maxCoeff() - logits.minCoeff();
  double num_roundings = 2 * (1.01 * distance + 1.01) + double(num_experts) + 1;
  if (norm) num_roundings = 2 * num_roundings + double(k) + 1;
  RC_CLASSIFY(norm, "renormalised");
  std::vector<bool> chosen(size_t(num_experts), false);
  for (size_t i = 0; i < size_t(k); ++i) {
    const double ratio =
        std::fabs(got.weights[i] - exact[i]) / (gamma(num_roundings, 0x1p-24) * exact[i]);
    worst_of_all().router = std::max(worst_of_all().router, ratio);
    RC_ASSERT(ratio <= 1.0);
    RC_ASSERT(!chosen[size_t(got.experts[i])]);
    chosen[size_t(got.experts[i])] = true;
    RC_ASSERT((i == 0) | (got.weights[i] <= got.weights[i > 0 ? i - 1 : 0]));
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    RC_ASSERT(chosen[size_t(e)] | (logits(e) <= logits(got.experts.back())));
  }
}

}  // namespace
}  // namespace loratory::reference
