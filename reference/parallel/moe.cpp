#include "reference/parallel/moe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/moe/weight_layout.hpp"

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

// What one tp_rank keeps. args.w13 is left empty: the rows of gate and up are not one part.
struct Shard {
  Tensor w13;
  MoeArgs args;
  MoeLora lora;
};

// The part of tp_rank p along `axis`.
ConstTensorView part(const ConstTensorView& view, size_t axis, int64_t tp_size, int64_t p) {
  const int64_t size = view.size(axis) / tp_size;
  return narrow(view, axis, p * size, size);
}

// The base layer's cut, and that of default LoRA: A of gate and up and B of down stay whole.
Shard inner_shard(const MoeArgs& args, const MoeLora* lora, int64_t tp_size, int64_t p) {
  const auto halves = GateUpLayout::halves;
  Shard shard{args.gated ? shard_gate_up(args.w13, halves, tp_size, p)
                         : copy_of(part(args.w13, 1, tp_size, p)),
              args, lora == nullptr ? MoeLora{} : *lora};
  shard.args.w13 = {};
  shard.args.w2 = part(args.w2, 2, tp_size, p);
  if (lora == nullptr) return shard;
  for (ExpertLoraSlice& slice : shard.lora.w13) slice.b = part(slice.b, 2, tp_size, p);
  shard.lora.w2.a = part(lora->w2.a, 3, tp_size, p);
  return shard;
}

std::vector<Tensor> run_default(const MoeArgs& args, const MoeLora* lora, int64_t tp_size) {
  std::vector<Tensor> y;
  for (int64_t p = 0; p < tp_size; ++p) {
    Shard shard = inner_shard(args, lora, tp_size, p);
    shard.args.w13 = shard.w13.view();
    y.push_back(moe_layer(shard.args, lora == nullptr ? nullptr : &shard.lora).y);
  }
  return all_reduce(y);
}

// The experts of one tp_rank and the adapters' parts of them.
class ExpertShard {
 public:
  ExpertShard(const MoeArgs& args, const MoeLora* lora, int64_t tp_size, int64_t p)
      : args_(args), first_(p * args.w2.size(0) / tp_size), count_(args.w2.size(0) / tp_size) {
    for (int64_t e = 0; e < args.w2.size(0); ++e) {
      const bool here = e >= first_ && e < first_ + count_;
      expert_map_.push_back(here ? int32_t(e - first_) : -1);
    }
    args_.rows.expert_map = expert_map_;
    args_.w13 = narrow(args.w13, 0, first_, count_);
    args_.w2 = narrow(args.w2, 0, first_, count_);
    if (lora == nullptr) return;
    lora_ = *lora;
    ranks_.reserve(lora->w13.size() + 1), scalings_.reserve(lora->w13.size() + 1);
    for (ExpertLoraSlice& slice : lora_.w13) keep_experts(slice);
    keep_experts(lora_.w2);
  }
  ExpertShard(const ExpertShard&) = delete;

  const MoeArgs& args() const { return args_; }
  const MoeLora& lora() const { return lora_; }

 private:
  void keep_experts(ExpertLoraSlice& slice) {
    const int64_t max_loras = slice.a.size(0), num_experts = slice.a.size(1);
    check_ranks("parallel_moe: ranks", slice.ranks, max_loras * num_experts, slice.a.size(2));
    check_scalings("parallel_moe: scalings", slice.scalings, max_loras * num_experts);
    ranks_.emplace_back(), scalings_.emplace_back();
    for (int64_t s = 0; s < max_loras; ++s) {
      for (int64_t e = first_; e < first_ + count_; ++e) {
        ranks_.back().push_back(slice.ranks[size_t(s * num_experts + e)]);
        scalings_.back().push_back(slice.scalings[size_t(s * num_experts + e)]);
      }
    }
    slice = {narrow(slice.a, 1, first_, count_), narrow(slice.b, 1, first_, count_), ranks_.back(),
             scalings_.back()};
  }

  MoeArgs args_;
  MoeLora lora_;
  int64_t first_, count_;
  std::vector<int32_t> expert_map_;
  std::vector<std::vector<int32_t>> ranks_;
  std::vector<std::vector<float>> scalings_;
};

std::vector<Tensor> run_expert_parallel(const MoeArgs& args, const MoeLora* lora, int64_t tp_size) {
  std::vector<Tensor> y;
  for (int64_t p = 0; p < tp_size; ++p) {
    const ExpertShard shard(args, lora, tp_size, p);
    y.push_back(moe_layer(shard.args(), lora == nullptr ? nullptr : &shard.lora()).y);
  }
  return all_reduce(y);
}

// All tp_ranks of the fully sharded layer, one step after the other.
class FullySharded {
 public:
  FullySharded(const MoeArgs& args, const MoeLora& lora, int64_t tp_size)
      : lora_(lora),
        tp_size_(tp_size),
        tiles_(single_row_tiles(args.rows, lora.adapters)),
        x_(moe_input(args)) {
    for (int64_t p = 0; p < tp_size; ++p) shards_.push_back(inner_shard(args, &lora, tp_size, p));
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

  // h of tp_rank p's rows of A, [S, T·k, Rs]; zeros where the adapter has none.
  Tensor gate_up_h(int64_t p) const {
    std::vector<ExpertLoraSlice> slices = lora_.w13;
    std::vector<std::vector<int32_t>> local_ranks;
    for (ExpertLoraSlice& slice : slices) {
      slice.a = part(slice.a, 2, tp_size_, p);
      const int64_t rank_shard = slice.a.size(2);
      local_ranks.emplace_back();
      for (const int32_t rank : slice.ranks) {
        local_ranks.back().push_back(
            int32_t(std::clamp<int64_t>(rank - p * rank_shard, 0, rank_shard)));
      }
    }
    for (size_t i = 0; i < slices.size(); ++i) slices[i].ranks = local_ranks[i];
    Tensor h = expert_h_buffer(x_.view(), args(p).rows, slices, lora_.mode);
    expert_shrink({x_.view(), args(p).rows, lora_.adapters, slices, h.view()}, tiles_);
    return h;
  }

  Tensor gate_up(int64_t p, const Tensor& h) const {
    const Shard& shard = shards_[size_t(p)];
    Tensor y =
        expert_linear(shard.args.rows, base(x_, p), shard.w13.view(), shard.args.intermediate);
    expand_into(y, h, shard.lora.w13, 0);
    return y;
  }

  Tensor down_h(int64_t p, const Tensor& a) const {
    const std::vector<ExpertLoraSlice> slices{shards_[size_t(p)].lora.w2};
    Tensor h = expert_h_buffer(a.view(), args(p).rows, slices, lora_.mode);
    expert_shrink({a.view(), args(p).rows, lora_.adapters, slices, h.view()}, tiles_);
    return h;
  }

  Tensor down(int64_t p, const Tensor& a, const Tensor& h) const {
    Tensor z = expert_linear(args(p).rows, base(a, p), args(p).w2, args(p).intermediate);
    ExpertLoraSlice slice = lora_.w2;
    slice.b = part(slice.b, 2, tp_size_, p);
    expand_into(z, h, {slice}, p * slice.b.size(2));
    return z;
  }

  void expand_into(Tensor& y, const Tensor& h, const std::vector<ExpertLoraSlice>& slices,
                   int64_t offset) const {
    expert_expand({.h = h.view(),
                   .rows = args(0).rows,
                   .adapters = lora_.adapters,
                   .slices = slices,
                   .router_weights = {},
                   .offset_start = offset,
                   .mode = lora_.mode,
                   .y = y.view()},
                  tiles_);
  }

  const MoeLora& lora_;
  int64_t tp_size_;
  std::vector<ExpertTile> tiles_;
  Tensor x_;
  std::vector<Shard> shards_;
};

}  // namespace

std::vector<Tensor> parallel_moe(const MoeArgs& args, const MoeLora* lora, const MoeParallel& how) {
  check(args, lora, how);
  if (how.expert_parallel) return run_expert_parallel(args, lora, how.tp_size);
  if (how.fully_sharded && lora != nullptr) return FullySharded(args, *lora, how.tp_size).run();
  return run_default(args, lora, how.tp_size);
}

}  // namespace loratory::reference
