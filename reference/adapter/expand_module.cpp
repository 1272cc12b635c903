#include "reference/adapter/expand_module.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

using Code = AdapterErrorCode;

constexpr std::string_view kGateUpParameter = "gate_up_proj";
constexpr std::string_view kDownParameter = "down_proj";

// A matrix inside of a tensor; strides in elements.
ConstTensorView matrix(const StoredTensor& tensor, int64_t offset, Extents shape, Extents strides) {
  const Dtype dtype = *weight_dtype(tensor.dtype);
  const auto* data = tensor.bytes.data() + offset * int64_t(size_bytes(dtype));
  return {dtype, data, std::move(shape), std::move(strides)};
}

void require_shape(const StoredTensor& tensor, const Extents& shape, std::string_view meaning) {
  if (tensor.shape != shape) {
    throw AdapterError(Code::shape, tensor.name,
                       fmt::format("has shape {}, must have {} {}", shape_text(tensor.shape),
                                   meaning, shape_text(shape)));
  }
}

void require_axes(const StoredTensor& tensor, size_t num_axes) {
  if (tensor.shape.size() != num_axes) {
    throw AdapterError(
        Code::shape, tensor.name,
        fmt::format("has shape {}, must have {} axes", shape_text(tensor.shape), num_axes));
  }
}

WeightScale read_scale(const StoredTensor* tensor, int64_t num_rows, int64_t num_columns) {
  return tensor == nullptr ? WeightScale{} : read_weight_scale(*tensor, num_rows, num_columns);
}

// Of the tensor of all experts, or of the one matrix that they share.
WeightScale read_scale(const StoredTensor* tensor, int64_t num_matrices, int64_t expert,
                       int64_t num_rows, int64_t num_columns) {
  if (tensor == nullptr) return {};
  const int64_t index = num_matrices == 1 ? 0 : expert;
  return read_weight_scale(*tensor, num_matrices, index, num_rows, num_columns);
}

bool targets_parameter(const AdapterConfig& config, const std::string& path) {
  return std::ranges::any_of(config.target_parameters,
                             [&](const std::string& name) { return names_path(name, path); });
}

// `experts.base_layer` is the parameter that PEFT wrapped first, `experts` the last one [1.38].
std::string parameter_path(const CheckpointModule& module, const AdapterConfig& config) {
  std::string experts = module.path;
  const bool is_inner = module.ref.packing == Packing::inner_parameter;
  if (is_inner) experts.resize(experts.size() - std::string_view(".base_layer").size());
  const std::string gate_up = fmt::format("{}.{}", experts, kGateUpParameter);
  const std::string down = fmt::format("{}.{}", experts, kDownParameter);
  const bool has_gate_up = targets_parameter(config, gate_up);
  const bool has_down = targets_parameter(config, down);
  if (!has_gate_up && !has_down) {
    throw AdapterError(Code::target, module.key(),
                       "target_parameters does not name a parameter here");
  }
  if (is_inner && !(has_gate_up && has_down)) {
    throw AdapterError(Code::config, "target_parameters", module.key(),
                       "two parameters are nested in the file, the configuration targets one", "");
  }
  return is_inner || !has_down ? gate_up : down;
}

// What patterns are matched against: the path of the module, or of the parameter if PEFT's
// target_parameters made it [1.38].
std::string pattern_path(const CheckpointModule& module, const AdapterConfig& config) {
  const bool is_parameter = module.ref.packing == Packing::inner_parameter ||
                            module.ref.packing == Packing::outer_parameter;
  if (is_parameter) return parameter_path(module, config);
  return targets_router_weight(module, config) ? module.path + ".weight" : module.path;
}

// The pieces of one module, all with the same rank and scaling.
class Expander {
 public:
  Expander(const CheckpointModule& module, const AdapterConfig& config,
           const BaseModelShapes& shapes, StepBudget& budget)
      : module_(module),
        config_(config),
        shapes_(shapes),
        budget_(budget),
        path_(pattern_path(module, config)) {}

  std::vector<LoraModule> expand() {
    switch (module_.ref.packing) {
      case Packing::single:
        expand_single();
        break;
      case Packing::qkv:
        expand_rows({Projection::q, Projection::k, Projection::v});
        break;
      case Packing::gate_up:
        expand_rows({Projection::gate, Projection::up});
        break;
      case Packing::experts:
        expand_experts();
        break;
      case Packing::inner_parameter:
      case Packing::outer_parameter:
        expand_parameter();
        break;
    }
    return std::move(pieces_);
  }

 private:
  const StoredTensor& a() const { return *module_.a; }
  const StoredTensor& b() const { return *module_.b; }

  void require_rank(int64_t rank) {
    if (rank < 1) throw AdapterError(Code::shape, a().name, "has rank 0");
    const RankAndAlpha expected = config_.rank_and_alpha_of(path_, budget_);
    if (rank != expected.rank) {
      throw AdapterError(
          Code::config, expected.rank_field, a().name,
          fmt::format("the tensor has rank {}, the configuration says {}", rank, expected.rank),
          "");
    }
    rank_ = rank;
    scaling_ = config_.scaling_of(path_, expected);
  }

  void emit(Projection projection, int64_t expert, ConstTensorView a_view, ConstTensorView b_view,
            WeightScale a_scale = {}, WeightScale b_scale = {}) {
    pieces_.push_back({.id = {module_.ref.layer, expert, projection},
                       .a = std::move(a_view),
                       .b = std::move(b_view),
                       .rank = rank_,
                       .scaling = scaling_,
                       .a_scale = std::move(a_scale),
                       .b_scale = std::move(b_scale)});
  }

  // A [r, K] and B [N, r]; sets the rank.
  void require_pair(int64_t rows, int64_t columns) {
    require_axes(a(), 2);
    require_axes(b(), 2);
    const int64_t rank = a().shape[0];
    require_shape(a(), {rank, columns}, "[r, K] =");
    require_shape(b(), {rows, rank}, "[N, r] =");
    require_rank(rank);
  }

  void expand_single() {
    const Projection projection = module_.ref.projection;
    if (projection == Projection::lm_head && module_.is_embedding) return expand_tied_head();
    expand_rows({projection});
  }

  // One A for all slices; B holds their rows one after the other [1.25].
  void expand_rows(const std::vector<Projection>& slices) {
    const bool in_expert = module_.ref.expert >= 0;
    const int64_t columns = base_shape(shapes_, slices[0], in_expert).columns;
    int64_t num_rows = 0;
    for (const Projection slice : slices) num_rows += base_shape(shapes_, slice, in_expert).rows;
    require_pair(num_rows, columns);
    const WeightScale a_scale = read_scale(module_.a_scale, rank_, columns);
    const WeightScale b_scale = read_scale(module_.b_scale, num_rows, rank_);
    int64_t row = 0;
    for (const Projection slice : slices) {
      const int64_t rows = base_shape(shapes_, slice, in_expert).rows;
      emit(slice, module_.ref.expert, matrix(a(), 0, {rank_, columns}, {columns, 1}),
           matrix(b(), row * rank_, {rows, rank_}, {rank_, 1}), a_scale,
           part_of(b_scale, {row, rows}, {0, rank_}));
      row += rows;
    }
  }

  // An lm_head trained as the embedding it is tied to: W_e + scaling·(B_e A_e)^T, so that A_e^T
  // is the B of the logits, and B_e^T their A.
  void expand_tied_head() {
    require_pair(shapes_.hidden, shapes_.vocab);
    emit(Projection::lm_head, -1, matrix(b(), 0, {rank_, shapes_.hidden}, {1, rank_}),
         matrix(a(), 0, {shapes_.vocab, rank_}, {1, shapes_.vocab}));
  }

  // A [E, r, K], B [E, N, r]; 1 in the place of E is shared by all experts.
  void expand_experts() {
    const auto [rows, columns] = base_shape(shapes_, module_.ref.projection, true);
    require_axes(a(), 3);
    require_axes(b(), 3);
    const auto num_of = [this](const StoredTensor& tensor) {
      return tensor.shape[0] == 1 ? 1 : shapes_.num_experts;
    };
    const int64_t rank = a().shape[1];
    require_shape(a(), {num_of(a()), rank, columns}, "[E, r, K] =");
    require_shape(b(), {num_of(b()), rows, rank}, "[E, N, r] =");
    require_rank(rank);
    for (int64_t e = 0; e < shapes_.num_experts; ++e) {
      const int64_t a_at = num_of(a()) == 1 ? 0 : e * rank_ * columns;
      const int64_t b_at = num_of(b()) == 1 ? 0 : e * rows * rank_;
      emit(module_.ref.projection, e, matrix(a(), a_at, {rank_, columns}, {columns, 1}),
           matrix(b(), b_at, {rows, rank_}, {rank_, 1}),
           read_scale(module_.a_scale, num_of(a()), e, rank_, columns),
           read_scale(module_.b_scale, num_of(b()), e, rows, rank_));
    }
  }

  // A [E·r, K] is (E, r, K); B [N, r·E] is (N, r, E), the expert fastest [1.38].
  void expand_parameter() {
    const bool is_down = path_.ends_with("." + std::string(kDownParameter));
    const auto [half, columns] =
        base_shape(shapes_, is_down ? Projection::down : Projection::gate, true);
    const int64_t rows = is_down ? half : 2 * half;
    const int64_t num_experts = shapes_.num_experts;
    require_axes(a(), 2);
    require_axes(b(), 2);
    if (a().shape[0] % num_experts != 0) {
      throw AdapterError(
          Code::shape, a().name,
          fmt::format("has {} rows, not a multiple of {} experts", a().shape[0], num_experts));
    }
    require_shape(a(), {a().shape[0], columns}, "[E·r, K] =");
    require_shape(b(), {rows, a().shape[0]}, "[N, r·E] =");
    require_rank(a().shape[0] / num_experts);
    for (int64_t e = 0; e < num_experts; ++e) {
      if (is_down) {
        emit_parameter(Projection::down, e, {rows, columns}, 0, 1);
      } else if (shapes_.interleaved_gate_up) {
        emit_parameter(Projection::gate, e, {half, columns}, 0, 2);
        emit_parameter(Projection::up, e, {half, columns}, 1, 2);
      } else {
        emit_parameter(Projection::gate, e, {half, columns}, 0, 1);
        emit_parameter(Projection::up, e, {half, columns}, half, 1);
      }
    }
  }

  // Rows first_row, first_row + row_step, ... of the parameter's output.
  void emit_parameter(Projection projection, int64_t expert, BaseShape shape, int64_t first_row,
                      int64_t row_step) {
    const int64_t num_experts = shapes_.num_experts;
    const int64_t row_stride = rank_ * num_experts;
    emit(projection, expert,
         matrix(a(), expert * rank_ * shape.columns, {rank_, shape.columns}, {shape.columns, 1}),
         matrix(b(), first_row * row_stride + expert, {shape.rows, rank_},
                {row_step * row_stride, num_experts}),
         part_of(read_scale(module_.a_scale, row_stride, shape.columns), {expert * rank_, rank_},
                 {0, shape.columns}),
         part_of(read_scale(module_.b_scale, b().shape[0], row_stride),
                 {first_row, shape.rows, row_step}, {expert, rank_, num_experts}));
  }

  const CheckpointModule& module_;
  const AdapterConfig& config_;
  const BaseModelShapes& shapes_;
  StepBudget& budget_;
  std::string path_;
  int64_t rank_ = 0;
  float scaling_ = 0;
  std::vector<LoraModule> pieces_;
};

}  // namespace

bool targets_router_weight(const CheckpointModule& module, const AdapterConfig& config) {
  return module.ref.projection == Projection::router &&
         targets_parameter(config, module.path + ".weight");
}

BaseShape base_shape(const BaseModelShapes& shapes, Projection projection, bool in_expert) {
  const int64_t inner = in_expert ? shapes.expert_intermediate : shapes.intermediate;
  switch (projection) {
    case Projection::q:
      return {shapes.q_size, shapes.hidden};
    case Projection::k:
    case Projection::v:
      return {shapes.kv_size, shapes.hidden};
    case Projection::o:
      return {shapes.hidden, shapes.o_input};
    case Projection::gate:
    case Projection::up:
      return {inner, shapes.hidden};
    case Projection::down:
      return {shapes.hidden, inner};
    case Projection::router:
      return {shapes.num_experts, shapes.hidden};
    case Projection::shared_gate:
    case Projection::shared_up:
      return {shapes.shared_expert_intermediate, shapes.hidden};
    case Projection::shared_down:
      return {shapes.hidden, shapes.shared_expert_intermediate};
    case Projection::shared_router:
      return {1, shapes.hidden};
    case Projection::embed_tokens:
      return {shapes.hidden, shapes.vocab};
    case Projection::lm_head:
      return {shapes.vocab, shapes.hidden};
  }
  LORATORY_ASSERT(false, "every projection has a shape");
  return {};
}

std::vector<LoraModule> expand_module(const CheckpointModule& module, const AdapterConfig& config,
                                      const BaseModelShapes& shapes, StepBudget& budget) {
  return Expander(module, config, shapes, budget).expand();
}

}  // namespace loratory::reference
