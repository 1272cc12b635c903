#include "fuzz/bug_zoo/naive_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "reference/numerics/dtype.hpp"

namespace loratory::zoo {
namespace {

using reference::Dtype;

std::byte* address(const LoratoryTensor& t, int64_t i, int64_t j, int64_t k, int64_t l) {
  const int64_t indices[4] = {i, j, k, l};
  int64_t offset = 0;
  for (int axis = 0; axis < t.num_axes; ++axis) offset += indices[axis] * t.strides[axis];
  return static_cast<std::byte*>(t.data) + offset * int64_t(size_bytes(Dtype(t.dtype)));
}

// The line that error() gives; one kernel runs at a time.
std::string& last_error() {
  static std::string text;
  return text;
}

template <typename Function>
int guarded(const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return 1;
  }
}

NaiveKernel& kernel(void* state) { return *static_cast<NaiveKernel*>(state); }

}  // namespace

double round_to(int32_t dtype, double value) { return reference::round_to(Dtype(dtype), value); }

double get(const LoratoryTensor& t, int64_t i, int64_t j, int64_t k, int64_t l) {
  const std::byte* from = address(t, i, j, k, l);
  uint32_t bits = 0;
  std::memcpy(&bits, from, size_bytes(Dtype(t.dtype)));
  if (t.dtype == LORATORY_BF16) bits <<= 16;
  if (t.dtype != LORATORY_F32 && t.dtype != LORATORY_BF16) {
    return reference::decode(Dtype(t.dtype), bits);
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return double(value);
}

void set(const LoratoryTensor& t, double value, int64_t i, int64_t j, int64_t k) {
  const uint32_t bits = reference::encode(Dtype(t.dtype), value);
  std::memcpy(address(t, i, j, k, 0), &bits, size_bytes(Dtype(t.dtype)));
}

// --- which ---------------------------------------------------------------------------------------

bool NaiveKernel::is_shrink() const {
  return layer_.operation == LORATORY_OP_SHRINK || layer_.operation == LORATORY_OP_EXPERT_SHRINK;
}

bool NaiveKernel::is_expand() const {
  return layer_.operation == LORATORY_OP_EXPAND || layer_.operation == LORATORY_OP_EXPERT_EXPAND;
}

int64_t NaiveKernel::slot_of(int64_t row) const {
  const int32_t slot = step().slots[row / layer_.experts_per_token];
  const bool is_off = slot >= 0 && step().enabled != nullptr && step().enabled[slot] == 0;
  const bool is_away = has_experts() && step().experts[row] < 0;
  return is_off || is_away ? -1 : slot;
}

int64_t NaiveKernel::expert_of(int64_t row) const {
  return has_experts() ? step().experts[row] : 0;
}

int64_t NaiveKernel::rank(int64_t slice, int64_t slot, int64_t expert) const {
  return layer_.slices[slice].ranks[slot * layer_.num_experts + expert];
}

double NaiveKernel::scaling(const At& at) const {
  return double(slice(at).scalings[at.slot * layer_.num_experts + at.expert]);
}

double NaiveKernel::router_weight(const At& at) const {
  return layer_.has_router_weights != 0 ? double(step().router_weights[at.row]) : 1;
}

int64_t NaiveKernel::first_column(int64_t slice) const {
  int64_t first = layer_.offset_start;
  for (int64_t i = 0; i < slice; ++i) first += layer_.slices[i].num_out;
  return first;
}

// --- numbers -------------------------------------------------------------------------------------

double NaiveKernel::weight(const LoratoryTensor& tensor, const At& at, int64_t i, int64_t j) const {
  if (has_experts()) return get(tensor, at.slot, at.expert, i, j);
  return get(tensor, at.slot, i, j);
}

double NaiveKernel::weight_factor(const LoratoryTensor& scale, const At& at, int64_t i, int64_t j,
                                  int64_t n, int64_t k) const {
  switch (layer_.weight_scales) {
    case LORATORY_SCALES_TENSOR:
      return get(scale, at.slot);
    case LORATORY_SCALES_CHANNEL:
      return get(scale, at.slot, i);
    case LORATORY_SCALES_BLOCK:
      return get(scale, at.slot, i / n, j / k);
    default:
      return 1;
  }
}

double NaiveKernel::a_factor(const At& at, int64_t j, int64_t c) const {
  return weight_factor(slice(at).a_scale, at, j, c, layer_.a_block_n, layer_.a_block_k);
}

double NaiveKernel::b_factor(const At& at, int64_t n, int64_t j) const {
  return weight_factor(slice(at).b_scale, at, n, j, layer_.b_block_n, layer_.b_block_k);
}

double NaiveKernel::x_factor(const At& at, int64_t c) const {
  const LoratoryTensor& scale = call().x_scale;
  switch (layer_.activation_scales) {
    case LORATORY_SCALES_TENSOR:
      return get(scale);
    case LORATORY_SCALES_TOKEN:
      return get(scale, row_of_x(at.row), 0);
    case LORATORY_SCALES_BLOCK:
      return get(scale, row_of_x(at.row), c / layer_.a_block_k);
    default:
      return 1;
  }
}

double NaiveKernel::h_factor(const At& at, int64_t j) const {
  const LoratoryTensor& scale = call().h_scale;
  switch (layer_.activation_scales) {
    case LORATORY_SCALES_TENSOR:
      return get(scale, at.slice);
    case LORATORY_SCALES_TOKEN:
      return get(scale, at.slice, at.row, 0);
    case LORATORY_SCALES_BLOCK:
      return get(scale, at.slice, at.row, j / layer_.b_block_k);
    default:
      return 1;
  }
}

double NaiveKernel::x(const At& at, int64_t c) const {
  return get(call().x, row_of_x(at.row), c) * x_factor(at, c);
}

double NaiveKernel::a(const At& at, int64_t j, int64_t c) const {
  if (layer_.layout == LORATORY_LAYOUT_STACKED) {
    return get(layer_.stacked_a, at.slot, at.slice * at.rank + j, c);
  }
  return weight(slice(at).a, at, j, c) * a_factor(at, j, c);
}

double NaiveKernel::b(const At& at, int64_t n, int64_t j) const {
  if (layer_.layout == LORATORY_LAYOUT_STACKED) {
    const int64_t before = NaiveKernel::first_column(at.slice) - layer_.offset_start;
    return get(layer_.stacked_b, at.slot, before + n, j);
  }
  return weight(slice(at).b, at, n, j) * b_factor(at, n, j);
}

double NaiveKernel::h(const At& at, int64_t j) const {
  return get(call().h, at.slice, at.row, j) * h_factor(at, j);
}

double NaiveKernel::base(const At& at, int64_t column) const {
  return layer_.add_inputs != 0 ? get(call().y, at.row, column) : 0;
}

// --- arithmetic ----------------------------------------------------------------------------------

double NaiveKernel::dot(std::span<const double> p, std::span<const double> q) const {
  if (is_quantized()) {
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum += p[i] * q[i];
    return sum;
  }
  float sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += float(p[i]) * float(q[i]);
  return double(sum);
}

std::vector<double> NaiveKernel::shrink(const At& at) const {
  std::vector<double> result(static_cast<size_t>(at.rank));
  if (is_embedding()) {
    const int64_t id = token_id(at.row);
    for (int64_t j = 0; j < at.rank; ++j) result[size_t(j)] = a(at, j, id);
    return result;
  }
  const auto depth = static_cast<size_t>(layer_.num_in);
  std::vector<double> row(depth);
  std::vector<double> weights(depth);
  for (size_t c = 0; c < depth; ++c) row[c] = x(at, int64_t(c));
  for (int64_t j = 0; j < at.rank; ++j) {
    for (size_t c = 0; c < depth; ++c) weights[c] = a(at, j, int64_t(c));
    result[size_t(j)] = dot(weights, row);
  }
  return result;
}

double NaiveKernel::to_8_bits(double quotient) const {
  return reference::round_to(Dtype(layer_.x_dtype), quotient, reference::Overflow::saturate);
}

double NaiveKernel::factor_of(const At& /*at*/, std::span<const double> h) const {
  double absmax = 0;
  for (const double v : h) absmax = std::max(absmax, std::abs(v));
  return absmax == 0 ? 1 : std::max(absmax / largest_finite(Dtype(layer_.x_dtype)), 0x1p-126);
}

std::vector<double> NaiveKernel::quantised(const At& at, std::vector<double> h) const {
  const bool is_block = layer_.activation_scales == LORATORY_SCALES_BLOCK;
  const size_t width = is_block ? size_t(layer_.b_block_k) : std::max<size_t>(1, h.size());
  for (size_t begin = 0; begin < h.size(); begin += width) {
    const std::span<double> group = std::span(h).subspan(begin, std::min(width, h.size() - begin));
    const double factor = factor_of(at, group);
    for (double& v : group) v = to_8_bits(v / factor) * factor;
  }
  return h;
}

std::vector<double> NaiveKernel::between(const At& at, std::vector<double> h) const {
  if (layer_.activation_scales != LORATORY_SCALES_NONE) return quantised(at, std::move(h));
  const int32_t dtype = layer_.weight_dtype;
  for (double& v : h) {
    if (layer_.mode.h == LORATORY_H_FP32 || is_embedding()) break;
    const double high = round_to(dtype, v);
    v = layer_.mode.h == LORATORY_H_SPLIT2 ? high + round_to(dtype, v - high) : high;
  }
  return h;
}

double NaiveKernel::delta(const At& at, std::span<const double> h, int64_t n) const {
  const bool is_folded = layer_.mode.scale == LORATORY_SCALE_FOLDED_B;
  const double scale = scaling(at);
  std::vector<double> weights(h.size());
  for (size_t j = 0; j < h.size(); ++j) {
    weights[j] = b(at, n, int64_t(j));
    if (is_folded) weights[j] = round_to(layer_.weight_dtype, scale * weights[j]);
  }
  const double sum = dot(h, weights);
  const float d = is_folded ? float(sum) : float(scale) * float(sum);
  return double(d * float(router_weight(at)));
}

double NaiveKernel::finish(const At& at, int64_t column, double d) const {
  if (layer_.mode.sum == LORATORY_SUM_TWO_ROUND) d = round_to(layer_.y_dtype, d);
  if (layer_.add_inputs == 0) return d;
  return double(float(base(at, column)) + float(d));
}

void NaiveKernel::store(const At& at, int64_t column, double value) const {
  set(call().y, value, at.row, column);
}

void NaiveKernel::run_slice(const At& at) {
  std::vector<double> between_stages(static_cast<size_t>(at.rank));
  if (is_expand()) {
    for (int64_t j = 0; j < at.rank; ++j) between_stages[size_t(j)] = h(at, j);
  } else {
    between_stages = shrink(at);
  }
  if (is_shrink()) {
    for (int64_t j = 0; j < at.rank; ++j) {
      set(call().h, between_stages[size_t(j)], at.slice, at.row, j);
    }
    return;
  }
  if (!is_expand()) between_stages = between(at, std::move(between_stages));
  for (int64_t n = 0; n < num_columns(at.slice); ++n) {
    const int64_t column = first_column(at.slice) + n;
    store(at, column, finish(at, column, delta(at, between_stages, n)));
  }
}

void NaiveKernel::run(const LoratoryCall& call) {
  call_ = &call;
  step_ = call.step;
  for (int64_t row = 0; row < num_rows(); ++row) {
    const int64_t slot = slot_of(row);
    if (slot < 0) continue;
    for (int64_t i = 0; i < layer_.num_slices; ++i) {
      const int64_t expert = expert_of(row);
      const int64_t r = rank(i, slot, expert);
      if (r > 0) run_slice({.row = row, .slice = i, .slot = slot, .expert = expert, .rank = r});
    }
  }
}

// --- the plugin ----------------------------------------------------------------------------------

LoratoryPlugin ZooKernel::plugin() const {
  LoratoryPlugin p{};
  p.version = LORATORY_PLUGIN_VERSION;
  p.struct_bytes = sizeof p;
  p.name = note.name.data();
  p.memory = LORATORY_MEMORY_HOST;
  p.claims = &claims;
  p.context = const_cast<ZooKernel*>(this);
  p.create = [](void* context, const LoratoryLayer* layer, void** state) {
    return guarded([&] { *state = static_cast<ZooKernel*>(context)->make(*layer).release(); });
  };
  p.workspace_bytes = [](void* state, int64_t max_tokens) {
    return kernel(state).workspace_bytes(max_tokens);
  };
  p.prepare = [](void* state, const LoratoryStep* step, void*) {
    return guarded([&] { kernel(state).prepare(*step); });
  };
  p.run = [](void* state, const LoratoryCall* call, void*) {
    return guarded([&] { kernel(state).run(*call); });
  };
  p.weights_changed = [](void* state, int32_t slot) {
    return guarded([&] { kernel(state).weights_changed(slot); });
  };
  p.destroy = [](void* state) { delete &kernel(state); };
  p.error = [](void*) { return last_error().c_str(); };
  return p;
}

LoratoryClaims claims_of(uint32_t operations, uint32_t weight_dtypes) {
  LoratoryClaims c{};
  c.struct_bytes = sizeof c;
  c.operations = operations;
  c.weight_dtypes = weight_dtypes;
  c.layouts = bit(LORATORY_LAYOUT_SLICES) | bit(LORATORY_LAYOUT_DENSE);
  c.promises = LORATORY_REPEATABLE | LORATORY_BATCH_INVARIANT;
  c.abilities = LORATORY_TAKES_OFFSET | LORATORY_TAKES_NO_INPUTS | LORATORY_TAKES_GAPS |
                LORATORY_TAKES_ABSENT_SLICES | LORATORY_TAKES_ROUTER_WEIGHTS |
                LORATORY_TAKES_ROWS_OF_X;
  return c;
}

LoratoryClaims claims_of_quantized(uint32_t operations, uint32_t dtypes, uint32_t weight_scales,
                                   uint32_t activation_scales) {
  LoratoryClaims c = claims_of(operations, dtypes);
  c.x_dtypes = kFloats | (activation_scales != 0 ? dtypes : 0);
  c.weight_scales = weight_scales;
  c.activation_scales = activation_scales;
  return c;
}

}  // namespace loratory::zoo
