#include "reference/parallel/moe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/moe/weight_layout.hpp"
#include "reference/parallel/expert_buffers.hpp"

namespace loratory::reference {
namespace {

void require_divisible(const char* what, int64_t size, int64_t tp_size) {
  if (size % tp_size == 0) return;
  throw InputError(std::string("parallel_moe: ") + what,
                   fmt::format("{} tp_ranks do not divide {}", tp_size, size));
}

void check(const MoeArgs& args, const MoeLora* lora, const MoeParallel& how) {
  check_moe(args);
  if (lora != nullptr) check_moe_lora(args, *lora);
  if (how.tp_size < 1) throw InputError("parallel_moe: tp_size", "is below 1");
  if (how.expert_parallel) {
    if (how.fully_sharded) {
      throw InputError("parallel_moe: fully_sharded", "cannot be combined with expert_parallel",
                       "use one of them");
    }
    if (!args.rows.expert_map.empty()) {
      throw InputError("parallel_moe: expert_map",
                       "is made by expert_parallel, so it cannot be given");
    }
    return require_divisible("experts", args.w2.size(0), how.tp_size);
  }
  require_divisible("inner size", args.w2.size(2), how.tp_size);
  if (!how.fully_sharded) return;
  require_divisible("hidden size", args.w2.size(1), how.tp_size);
  for (size_t i = 0; (lora != nullptr) && (i < lora->w13.size()); ++i) {
    require_divisible("rank of the buffer", lora->w13[i].a.size(2), how.tp_size);
    if (lora->w13[i].a.size(2) != lora->w13[0].a.size(2)) {
      throw InputError("parallel_moe: w13", "gate and up have buffers of different ranks");
    }
  }
}

// The part of tp_rank p along `axis`.
ConstTensorView part(const ConstTensorView& view, size_t axis, int64_t tp_size, int64_t p) {
  const int64_t size = view.size(axis) / tp_size;
  return narrow(view, axis, p * size, size);
}

// The adapters on one tp_rank: gate and up apart, then down. Where ranks and scalings are not the
// adapters' own, they are kept here; views of them stay valid when this moves.
struct LocalSlices {
  std::vector<ExpertLoraSlice> shrink, expand;
  std::vector<std::vector<int32_t>> ranks;
  std::vector<std::vector<float>> scalings;
};

// What all tp_ranks have; no slices: the base layer.
struct Adapters {
  TokenAdapters tokens;
  NumericMode mode;
  std::vector<LocalSlices> of_rank;  // [P]

  // One that moe_layer() takes.
  std::optional<MoeLora> lora(int64_t p) const {
    if (of_rank.empty()) return std::nullopt;
    std::vector<ExpertLoraSlice> w13 = of_rank[size_t(p)].expand;
    const ExpertLoraSlice w2 = w13.back();
    w13.pop_back();
    return MoeLora{tokens, w13, w2, mode};
  }
};

// Gate and up apart, then down.
std::vector<ExpertLoraSlice> slices_of(const MoeLora& lora, bool gated) {
  std::vector<ExpertLoraSlice> out = gate_and_up(lora, gated);
  out.push_back(lora.w2);
  return out;
}

// A of gate and up and B of down stay whole.
LocalSlices cut_inner(std::vector<ExpertLoraSlice> slices, int64_t tp_size, int64_t p) {
  for (size_t i = 0; i + 1 < slices.size(); ++i) slices[i].b = part(slices[i].b, 2, tp_size, p);
  slices.back().a = part(slices.back().a, 3, tp_size, p);
  return {slices, slices, {}, {}};
}

// Also the rows of gate's and up's A, with the ranks that are left there, and the rows of down's B.
LocalSlices cut_fully(const std::vector<ExpertLoraSlice>& whole, int64_t tp_size, int64_t p) {
  LocalSlices out = cut_inner(whole, tp_size, p);
  for (size_t i = 0; i + 1 < whole.size(); ++i) {
    out.shrink[i].a = part(whole[i].a, 2, tp_size, p);
    const int64_t rank_shard = out.shrink[i].a.size(2);
    out.ranks.emplace_back();
    for (const int32_t rank : whole[i].ranks) {
      out.ranks.back().push_back(
          int32_t(std::clamp<int64_t>(rank - p * rank_shard, 0, rank_shard)));
    }
    out.shrink[i].ranks = out.ranks.back();
  }
  out.expand.back().b = part(whole.back().b, 2, tp_size, p);
  return out;
}

// The experts [p·E/P, (p+1)·E/P) of each slice.
LocalSlices cut_experts(const std::vector<ExpertLoraSlice>& whole, int64_t tp_size, int64_t p) {
  LocalSlices out;
  for (const ExpertLoraSlice& slice : whole) {
    const int64_t max_loras = slice.a.size(0), num_experts = slice.a.size(1);
    const int64_t count = num_experts / tp_size;
    check_ranks("parallel_moe: ranks", slice.ranks, max_loras * num_experts, slice.a.size(2));
    check_scalings("parallel_moe: scalings", slice.scalings, max_loras * num_experts);
    out.ranks.emplace_back(), out.scalings.emplace_back();
    for (int64_t s = 0; s < max_loras; ++s) {
      for (int64_t e = p * count; e < (p + 1) * count; ++e) {
        out.ranks.back().push_back(slice.ranks[size_t(s * num_experts + e)]);
        out.scalings.back().push_back(slice.scalings[size_t(s * num_experts + e)]);
      }
    }
    out.expand.push_back({part(slice.a, 1, tp_size, p), part(slice.b, 1, tp_size, p),
                          out.ranks.back(), out.scalings.back()});
  }
  out.shrink = out.expand;
  return out;
}

Adapters cut(const MoeArgs& args, const MoeLora* lora, const MoeParallel& how) {
  if (lora == nullptr) return {};
  Adapters out{lora->adapters, lora->mode, {}};
  const std::vector<ExpertLoraSlice> whole = slices_of(*lora, args.gated);
  for (int64_t p = 0; p < how.tp_size; ++p) {
    out.of_rank.push_back(how.expert_parallel ? cut_experts(whole, how.tp_size, p)
                          : how.fully_sharded ? cut_fully(whole, how.tp_size, p)
                                              : cut_inner(whole, how.tp_size, p));
  }
  return out;
}

// The base layer's part of one tp_rank that cuts inside of experts. args.w13 is left empty: the
// rows of gate and up are not one part.
struct Shard {
  Tensor w13;
  MoeArgs args;
};

Shard inner_shard(const MoeArgs& args, int64_t tp_size, int64_t p) {
  const auto halves = GateUpLayout::halves;
  Shard shard{args.gated ? shard_gate_up(args.w13, halves, tp_size, p)
                         : copy_of(part(args.w13, 1, tp_size, p)),
              args};
  shard.args.w13 = {};
  shard.args.w2 = part(args.w2, 2, tp_size, p);
  return shard;
}

Tensor run_layer(const MoeArgs& args, const Adapters& adapters, int64_t p) {
  const std::optional<MoeLora> lora = adapters.lora(p);
  if (lora) check_moe_lora(args, *lora);
  return moe_layer(args, lora ? &*lora : nullptr).y;
}

std::vector<Tensor> run_default(const MoeArgs& args, const Adapters& adapters, int64_t tp_size) {
  std::vector<Tensor> y;
  for (int64_t p = 0; p < tp_size; ++p) {
    Shard shard = inner_shard(args, tp_size, p);
    shard.args.w13 = shard.w13.view();
    y.push_back(run_layer(shard.args, adapters, p));
  }
  return all_reduce(y);
}

std::vector<Tensor> run_expert_parallel(const MoeArgs& args, const Adapters& adapters,
                                        int64_t tp_size) {
  std::vector<Tensor> y;
  for (int64_t p = 0; p < tp_size; ++p) {
    const int64_t count = args.w2.size(0) / tp_size;
    std::vector<int32_t> expert_map(size_t(args.w2.size(0)), -1);
    for (int64_t e = 0; e < count; ++e) expert_map[size_t(p * count + e)] = int32_t(e);
    MoeArgs here = args;
    here.rows.expert_map = expert_map;
    here.w13 = part(args.w13, 0, tp_size, p);
    here.w2 = part(args.w2, 0, tp_size, p);
    y.push_back(run_layer(here, adapters, p));
  }
  return all_reduce(y);
}

// All tp_ranks of the fully sharded layer, one step after the other.
class FullySharded {
 public:
  FullySharded(const MoeArgs& args, const Adapters& adapters, int64_t tp_size)
      : adapters_(adapters),
        tp_size_(tp_size),
        tiles_(single_row_tiles(args.rows, adapters.tokens)),
        x_(moe_input(args)) {
    for (int64_t p = 0; p < tp_size; ++p) shards_.push_back(inner_shard(args, tp_size, p));
  }

  std::vector<Tensor> run() {
    const std::vector<Tensor> h = all_gather(each([&](int64_t p) { return gate_up_h(p); }), 2);
    const std::vector<Tensor> a =
        each([&](int64_t p) { return activate_rows(gate_up(p, h[size_t(p)]).view(), args(p)); });
    const std::vector<Tensor> h_down =
        all_reduce(each([&](int64_t p) { return down_h(p, a[size_t(p)]); }));
    return all_reduce(each([&](int64_t p) {
      return combine_experts(down(p, a[size_t(p)], h_down[size_t(p)]).view(), args(p));
    }));
  }

 private:
  template <typename Step>
  std::vector<Tensor> each(Step step) const {
    std::vector<Tensor> out;
    for (int64_t p = 0; p < tp_size_; ++p) out.push_back(step(p));
    return out;
  }
  const MoeArgs& args(int64_t p) const { return shards_[size_t(p)].args; }
  BaseInput base(const Tensor& x, int64_t p) const {
    return base_input(x.view(), args(p).quantised_base_input);
  }

  const LocalSlices& slices(int64_t p) const { return adapters_.of_rank[size_t(p)]; }
  // Gate and up, or down.
  static std::vector<ExpertLoraSlice> w13(std::vector<ExpertLoraSlice> all) {
    all.pop_back();
    return all;
  }

  // h [slices, T·k, rows of A here]; zeros where the adapter has none.
  Tensor shrink(int64_t p, const Tensor& x, const std::vector<ExpertLoraSlice>& slices) const {
    Tensor h = expert_h_buffer(x.view(), args(p).rows, slices, adapters_.mode);
    expert_shrink({x.view(), args(p).rows, adapters_.tokens, slices, h.view()}, tiles_);
    return h;
  }
  Tensor gate_up_h(int64_t p) const { return shrink(p, x_, w13(slices(p).shrink)); }
  Tensor down_h(int64_t p, const Tensor& a) const {
    return shrink(p, a, {slices(p).shrink.back()});
  }

  Tensor gate_up(int64_t p, const Tensor& h) const {
    const Shard& shard = shards_[size_t(p)];
    Tensor y =
        expert_linear(shard.args.rows, base(x_, p), shard.w13.view(), shard.args.intermediate);
    expand_into(y, h, w13(slices(p).expand), 0);
    return y;
  }

  Tensor down(int64_t p, const Tensor& a, const Tensor& h) const {
    Tensor z = expert_linear(args(p).rows, base(a, p), args(p).w2, args(p).intermediate);
    const ExpertLoraSlice& slice = slices(p).expand.back();
    expand_into(z, h, {slice}, p * slice.b.size(2));
    return z;
  }

  void expand_into(Tensor& y, const Tensor& h, const std::vector<ExpertLoraSlice>& slices,
                   int64_t offset) const {
    expert_expand({.h = h.view(),
                   .rows = args(0).rows,
                   .adapters = adapters_.tokens,
                   .slices = slices,
                   .router_weights = {},
                   .offset_start = offset,
                   .mode = adapters_.mode,
                   .y = y.view()},
                  tiles_);
  }

  const Adapters& adapters_;
  int64_t tp_size_;
  std::vector<ExpertTile> tiles_;
  Tensor x_;
  std::vector<Shard> shards_;
};

std::vector<Tensor> run(const MoeArgs& args, const Adapters& adapters, const MoeParallel& how) {
  if (how.expert_parallel) return run_expert_parallel(args, adapters, how.tp_size);
  if (how.fully_sharded && !adapters.of_rank.empty()) {
    return FullySharded(args, adapters, how.tp_size).run();
  }
  return run_default(args, adapters, how.tp_size);
}

// Each tp_rank's own buffers, which must be those of this cut.
Adapters local_adapters(const MoeArgs& args, const LocalMoeLora& lora, const MoeParallel& how) {
  if (int64_t(lora.buffers.size()) != how.tp_size) {
    throw InputError("parallel_moe: buffers",
                     fmt::format("{} for {} tp_ranks", lora.buffers.size(), how.tp_size));
  }
  Adapters out{lora.adapters, lora.mode, {}};
  for (const LocalExpertBuffers& buffers : lora.buffers) {
    const auto apart = [&](std::vector<ExpertLoraSlice> all) {
      const ExpertLoraSlice w2 = all.back();
      all.pop_back();
      return slices_of({lora.adapters, all, w2, lora.mode, buffers.fused_rows()}, args.gated);
    };
    out.of_rank.push_back({apart(buffers.shrink_slices()), apart(buffers.expand_slices()), {}, {}});
  }
  return out;
}

// What moe_layer() would check of adapters whose h comes from elsewhere.
void check_fully_sharded(const MoeArgs& args, const Adapters& adapters, int64_t tp_size) {
  check_adapters(adapters.tokens, args.rows);
  const int64_t experts = args.w2.size(0), hidden = args.w2.size(1), inner = args.w2.size(2);
  for (const LocalSlices& slices : adapters.of_rank) {
    const ExpertLoraSlice &gate = slices.expand[0], &down = slices.expand.back();
    const int64_t rank = gate.b.size(3);
    check_shape("parallel_moe: w13.a", slices.shrink[0].a,
                {kAnySize, experts, rank / tp_size, hidden});
    check_shape("parallel_moe: w13.b", gate.b, {kAnySize, experts, inner / tp_size, rank});
    check_shape("parallel_moe: w2.a", slices.shrink.back().a,
                {kAnySize, experts, rank, inner / tp_size});
    check_shape("parallel_moe: w2.b", down.b, {kAnySize, experts, hidden / tp_size, rank});
  }
}

}  // namespace

std::vector<Tensor> parallel_moe(const MoeArgs& args, const MoeLora* lora, const MoeParallel& how) {
  check(args, lora, how);
  return run(args, cut(args, lora, how), how);
}

std::vector<Tensor> parallel_moe(const MoeArgs& args, const LocalMoeLora& lora,
                                 const MoeParallel& how) {
  check(args, nullptr, how);
  const Adapters adapters = local_adapters(args, lora, how);
  if (how.fully_sharded) check_fully_sharded(args, adapters, how.tp_size);
  return run(args, adapters, how);
}

}  // namespace loratory::reference
