#include "gpu/model/embedding_lora.hpp"

#include <fmt/format.h>

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

void check_stack(const DeviceView& a) {
  const std::string place = "shrink_embedding: a";
  require(a.num_axes == 3, place, fmt::format("has {} axes, not 3", a.num_axes));
  // A matrix of 8 bits is laid out as any other.
  const bool is_fp8 = a.dtype == Dtype::f8_e4m3fn;
  const DeviceView slot{.dtype = is_fp8 ? Dtype::bf16 : a.dtype,
                        .data = a.data,
                        .num_axes = 2,
                        .shape = {a.shape[1], a.shape[2]},
                        .strides = {a.strides[1], a.strides[2]}};
  check_matrix(slot, place);
  require(a.shape[0] >= 1 && a.shape[0] <= INT32_MAX, place,
          fmt::format("has {} slots", a.shape[0]));
  require(a.strides[0] >= 0, place, "has a negative stride");
}

void check_h(const DeviceView& h, int64_t max_rank) {
  const std::string place = "shrink_embedding: h";
  require(h.dtype == Dtype::f32, place, fmt::format("has dtype {}, not f32", name(h.dtype)));
  const bool fits = h.num_axes == 3 && h.shape[0] == 1 && h.shape[1] >= 0 &&
                    h.shape[1] <= INT32_MAX && h.shape[2] >= max_rank;
  require(fits, place, fmt::format("is not [1, tokens, at least {}]", max_rank));
  require(h.shape[2] <= 1 || h.strides[2] == 1, place, "its columns do not lie side by side");
  require(h.shape[1] <= 1 || h.strides[1] >= max_rank, place, "its rows overlap");
  require(h.shape[1] == 0 || h.data != nullptr, place, "is null");
}

}  // namespace

void shrink_embedding(const EmbeddingShrinkArgs& args, CUstream_st* stream, LaunchOrder order) {
  check_stack(args.a);
  check_h(args.h, args.a.shape[1]);
  if (args.h.shape[1] == 0 || args.a.shape[1] == 0) return;
  require(args.ranks != nullptr, "shrink_embedding: ranks", "is null");
  require(args.slots != nullptr, "shrink_embedding: slots", "is null");
  require(args.ids != nullptr, "shrink_embedding: ids", "is null");
  require((args.factors != nullptr) == (args.a.dtype == Dtype::f8_e4m3fn),
          "shrink_embedding: factors", "belong to a of f8_e4m3fn, and to no other");
  launch_embedding_shrink({.a = args.a.data,
                           .factors = args.factors,
                           .h = static_cast<float*>(args.h.data),
                           .ranks = args.ranks,
                           .slots = args.slots,
                           .ids = args.ids,
                           .slot_stride = args.a.strides[0],
                           .rank_stride = args.a.strides[1],
                           .h_stride = args.h.strides[1],
                           .num_tokens = int32_t(args.h.shape[1]),
                           .num_slots = int32_t(args.a.shape[0]),
                           .vocab = int32_t(args.a.shape[2]),
                           .dtype = args.a.dtype},
                          stream, order);
}

}  // namespace loratory::gpu
