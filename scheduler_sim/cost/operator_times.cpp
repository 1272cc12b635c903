#include "scheduler_sim/cost/operator_times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

namespace loratory::sim {
namespace {

constexpr double kSecondNs = 1e9;
constexpr double kKernelNs = 3000;     // least time of a kernel, of the order of the tables' least
constexpr double kBf16Bytes = 2;       // of a number in bf16
constexpr double kBeyondL2 = 1 << 28;  // no cache of a GPU of the tables has half of this
// Of the datasheet's bandwidth, what an operator's bytes get at most: with it the H100's times come
// nearest to the H200's, and the reverse (scripts/fit_gpu_scaling.py).
constexpr double kReachedBandwidth = 0.94;

// Cards of one architecture; the RTX 4090 is nearer to the RTX PRO 6000, which like it is not held
// back by its power as L40S and L4 are (docs/cost_model.md has both errors).
struct Relative {
  std::string_view preset, table;
};
constexpr Relative kRelatives[] = {
    {"A100-40", "a100_sxm"},
    {"A100-80", "a100_sxm"},
    {"A100-80-PCIe", "a100_sxm"},
    {"H100-80", "h100_sxm"},
    {"H100-PCIe", "h100_sxm"},
    {"H100-NVL", "h100_sxm"},
    {"H200", "h200_sxm"},
    {"B200", "b200_sxm"},
    {"L4", "l40s"},
    {"L40S", "l40s"},
    {"A10G", "l40s"},
    {"RTX-4090", "rtx_pro_6000_server"},
    {"RTX-PRO-6000", "rtx_pro_6000_server"},
    {"RTX-PRO-6000-WS", "rtx_pro_6000_server"},
};

// How many times one is the other, whichever is more.
double times_apart(double a, double b) { return std::max(a / b, b / a); }

// One measured key and how much it counts for a key that was not.
struct Neighbour {
  int64_t value = 0;
  double weight = 0;
};

// Of ascending values: the one itself, the two around it, or the nearest.
std::vector<Neighbour> neighbours(const std::set<int64_t>& values, int64_t wanted) {
  const auto above = values.lower_bound(wanted);
  if (above == values.end()) return {{*values.rbegin(), 1}};
  if (*above == wanted || above == values.begin()) return {{*above, 1}};
  const int64_t low = *std::prev(above), high = *above;
  const double weight = double(wanted - low) / double(high - low);
  return {{low, 1 - weight}, {high, weight}};
}

// Times where nobody measured: between two measured places linear, beyond them by `work`.
void fill_gaps(std::span<const double> axis, std::span<const double> work, std::span<double> ns) {
  size_t last = axis.size();  // none
  for (size_t i = 0; i < axis.size(); ++i) {
    if (ns[i] == 0) continue;
    for (size_t j = last == axis.size() ? 0 : last + 1; j < i; ++j) {
      const bool between = last != axis.size();
      const double weight = between ? (axis[j] - axis[last]) / (axis[i] - axis[last]) : 1;
      ns[j] = between ? ns[last] + weight * (ns[i] - ns[last]) : ns[i] * work[j] / work[i];
    }
    last = i;
  }
  if (last == axis.size()) return;
  for (size_t j = last + 1; j < axis.size(); ++j) ns[j] = ns[last] * work[j] / work[last];
}

}  // namespace

struct OperatorTimes::Work {
  double flops = 0;
  double bytes = 0;
  double least_bytes = 0;  // of them, those that come from memory and no cache
  bool fp8 = false;
};

namespace {

double peak_flops(const GpuSpec& gpu, bool fp8) {
  return fp8 && gpu.fp8_flops > 0 ? gpu.fp8_flops : gpu.flops;
}

}  // namespace

std::string_view operator_table_of(const GpuSpec& gpu) {
  for (const Relative& relative : kRelatives) {
    if (relative.preset == gpu.preset) return relative.table;
  }
  if (!gpu.preset.empty()) return {};
  std::string_view nearest;
  double least = 0;
  for (const Relative& relative : kRelatives) {
    const GpuSpec other = parse_gpu_spec(relative.preset);
    const double apart = times_apart(gpu.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s) *
                         times_apart(gpu.flops, other.flops);
    if (nearest.empty() || apart < least) nearest = relative.table, least = apart;
  }
  return nearest;
}

bool is_measured_card(const OperatorTable& table, const GpuSpec& gpu) {
  const GpuSpec card = parse_gpu_spec(table.card);
  return gpu.bandwidth_bytes_per_s == card.bandwidth_bytes_per_s && gpu.flops == card.flops &&
         gpu.fp8_flops == card.fp8_flops && gpu.link_bytes_per_s == card.link_bytes_per_s;
}

OperatorTimes::OperatorTimes(const OperatorTable& table, const GpuSpec& gpu)
    : table_(table),
      gpu_(gpu),
      card_(parse_gpu_spec(table.card)),
      is_card_(is_measured_card(table, gpu)) {}

double OperatorTimes::roofline_ns(const GpuSpec& gpu, const Work& work) const {
  return kKernelNs + kSecondNs * std::max(work.flops / peak_flops(gpu, work.fp8),
                                          work.bytes / gpu.bandwidth_bytes_per_s);
}

// Taken apart on the card, put together on the GPU: what is left of a time without its launch, its
// bytes and its FLOPs goes with the multiprocessors and their clock.
double OperatorTimes::moved_to_gpu(double ns, const Work& work) const {
  const double launch = std::min(ns, kKernelNs), whole = ns - launch;
  const double card_flops = peak_flops(card_, work.fp8);
  const double read =
      std::min(whole, kSecondNs * work.bytes / (card_.bandwidth_bytes_per_s * kReachedBandwidth));
  const double computed = std::sqrt(whole * whole - read * read);
  const double flops = std::min(computed, kSecondNs * work.flops / card_flops);
  const double rest = std::sqrt(computed * computed - flops * flops);
  const double slower_flops = card_flops / peak_flops(gpu_, work.fp8);
  const bool known = gpu_.sm_ghz > 0 && card_.sm_ghz > 0;
  const double own_read = read * (card_.bandwidth_bytes_per_s / gpu_.bandwidth_bytes_per_s);
  const double own_flops = flops * slower_flops;
  const double own_rest = rest * (known ? card_.sm_ghz / gpu_.sm_ghz : slower_flops);
  return launch + std::sqrt(own_read * own_read + own_flops * own_flops + own_rest * own_rest);
}

double OperatorTimes::on_gpu(double ns, const Work& work) const {
  const double moved = is_card_ ? ns : moved_to_gpu(ns, work);
  return std::max(moved, kSecondNs * std::max(work.flops / peak_flops(gpu_, work.fp8),
                                              work.least_bytes / gpu_.bandwidth_bytes_per_s));
}

std::optional<Curve> OperatorTimes::gemm(int64_t n, int64_t k, bool fp8) const {
  const OperatorGrid* grid = table_.find(fp8 ? "gemm_fp8" : "gemm_bf16");
  if (grid == nullptr) return std::nullopt;
  const double weight_bytes = fp8 ? 1 : kBf16Bytes;
  const auto work_of = [&](int64_t outputs, int64_t inputs, double m) {
    const double matrix = double(outputs) * double(inputs) * weight_bytes;
    return Work{2 * m * double(outputs) * double(inputs),
                matrix + m * (double(outputs) * kBf16Bytes + double(inputs) * weight_bytes), matrix,
                fp8};
  };
  std::set<int64_t> ns, ks;
  for (size_t row = 0; row < grid->num_rows(); ++row) {
    ns.insert(grid->key(row)[0]);
    ks.insert(grid->key(row)[1]);
  }
  // Beyond the largest shapes: in proportion.
  const double beyond = std::max(1.0, double(n) / double(*ns.rbegin())) *
                        std::max(1.0, double(k) / double(*ks.rbegin()));
  const size_t places = grid->axis.size();
  std::vector<double> sum(places, 0.0), work(places);
  double weights = 0;
  for (const Neighbour& a : neighbours(ns, n)) {
    for (const Neighbour& b : neighbours(ks, k)) {
      const std::span<const float> times = grid->find(std::array{a.value, b.value});
      if (times.empty()) continue;
      std::vector<double> filled(times.begin(), times.end());
      for (size_t i = 0; i < places; ++i)
        work[i] = roofline_ns(card_, work_of(a.value, b.value, grid->axis[i]));
      fill_gaps(grid->axis, work, filled);
      weights += a.weight * b.weight;
      for (size_t i = 0; i < places; ++i) sum[i] += a.weight * b.weight * filled[i];
    }
  }
  if (weights == 0) return std::nullopt;
  for (size_t i = 0; i < places; ++i) {
    sum[i] = on_gpu(sum[i] / weights * beyond, work_of(n, k, grid->axis[i]));
  }
  return Curve(grid->axis, std::move(sum));
}

OperatorTimes::Work OperatorTimes::attention_work(const AttentionShape& shape, double rows,
                                                  double tokens, bool decode) const {
  const double queries = rows * (decode ? 1 : tokens);
  const double pairs = decode ? rows * tokens : rows * tokens * (tokens + 1) / 2;
  const double dim = double(shape.head_dim), heads = double(shape.heads);
  const double cache = rows * tokens * 2 * double(shape.kv_heads) * dim * (shape.fp8_kv ? 1 : 2);
  return {4 * pairs * heads * dim, cache + 2 * queries * heads * dim * kBf16Bytes,
          decode ? cache : 0, false};
}

// Adds the times of a measured shape as multiples of its roofline.
void OperatorTimes::add_ratios(const OperatorGrid& grid, const AttentionShape& neighbour,
                               double weight, bool decode, std::span<const double> rows,
                               std::span<double> ratios) const {
  const size_t places = grid.axis.size();
  std::vector<double> work(places), ns(places), before(places);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t t = 0; t < places; ++t) {
      work[t] = roofline_ns(card_, attention_work(neighbour, rows[r], grid.axis[t], decode));
    }
    const std::array key{neighbour.heads, neighbour.kv_heads, neighbour.head_dim, int64_t(rows[r])};
    const std::span<const float> times = grid.find(key);
    if (times.empty()) {  // as fewer rows were
      for (size_t t = 0; t < places; ++t) ns[t] *= work[t] / before[t];
    } else {
      ns.assign(times.begin(), times.end());
      fill_gaps(grid.axis, work, ns);
    }
    for (size_t t = 0; t < places; ++t) ratios[r * places + t] += weight * ns[t] / work[t];
    before = work;
  }
}

// Rows x tokens of the grid's own axes.
std::optional<std::vector<double>> OperatorTimes::attention(const AttentionShape& shape,
                                                            bool decode, std::vector<double>& rows,
                                                            std::vector<double>& tokens) const {
  const OperatorGrid* grid =
      table_.find(std::string(decode ? "decode_" : "prefill_") + (shape.fp8_kv ? "fp8" : "bf16"));
  if (grid == nullptr) return std::nullopt;
  // The values of a key's number where the numbers before it are given.
  const auto values_of = [grid](size_t number, auto... given) {
    const std::array<int64_t, sizeof...(given)> wanted{given...};
    constexpr std::array<size_t, 3> kOrder{2, 1, 0};  // head_dim, kv_heads, heads
    std::set<int64_t> values;
    for (size_t i = 0; i < grid->num_rows(); ++i) {
      bool matches = true;
      for (size_t j = 0; j < wanted.size(); ++j) {
        matches = matches && grid->key(i)[kOrder[j]] == wanted[j];
      }
      if (matches) values.insert(grid->key(i)[number]);
    }
    return values;
  };
  for (const int64_t count : values_of(3)) rows.push_back(double(count));
  tokens = grid->axis;
  std::vector<double> ns(rows.size() * tokens.size(), 0.0);
  for (const Neighbour& dim : neighbours(values_of(2), shape.head_dim)) {
    for (const Neighbour& kv : neighbours(values_of(1, dim.value), shape.kv_heads)) {
      for (const Neighbour& heads : neighbours(values_of(0, dim.value, kv.value), shape.heads)) {
        add_ratios(*grid, {heads.value, kv.value, dim.value, shape.fp8_kv},
                   dim.weight * kv.weight * heads.weight, decode, rows, ns);
      }
    }
  }
  for (size_t i = 0; i < ns.size(); ++i) {
    ns[i] *= roofline_ns(
        card_, attention_work(shape, rows[i / tokens.size()], tokens[i % tokens.size()], decode));
  }
  return ns;
}

void OperatorTimes::keep_caches_cold(const AttentionShape& shape, std::span<const double> rows,
                                     std::span<const double> tokens,
                                     std::vector<double>& ns) const {
  const auto bytes = [&](size_t i) {
    return attention_work(shape, rows[i / tokens.size()], tokens[i % tokens.size()], true)
        .least_bytes;
  };
  double byte_ns = kSecondNs / (card_.bandwidth_bytes_per_s * card_.bandwidth_fraction);
  double best = 0;
  for (size_t i = 0; i < ns.size(); ++i) {
    if (bytes(i) >= kBeyondL2) best = std::max(best, bytes(i) / ns[i]);
  }
  if (best > 0) byte_ns = 1 / best;
  const double first = ns.front();
  for (size_t i = 0; i < ns.size(); ++i) ns[i] = std::max(ns[i], first + bytes(i) * byte_ns);
}

std::optional<Surface> OperatorTimes::decode_attention(const AttentionShape& shape,
                                                       double tile_ns) const {
  std::vector<double> rows, tokens;
  std::optional<std::vector<double>> ns = attention(shape, true, rows, tokens);
  if (!ns) return std::nullopt;
  keep_caches_cold(shape, rows, tokens, *ns);
  for (size_t i = 0; i < ns->size(); ++i) {
    const double count = rows[i / tokens.size()], context = tokens[i % tokens.size()];
    const double tiles_ns = count * double(shape.kv_heads) * tile_ns;
    (*ns)[i] = on_gpu((*ns)[i] + tiles_ns, attention_work(shape, count, context, true));
  }
  return Surface(std::move(rows), std::move(tokens), std::move(*ns));
}

std::optional<PrefillTimes> OperatorTimes::prefill_attention(const AttentionShape& shape) const {
  std::vector<double> rows, tokens;
  std::optional<std::vector<double>> ns = attention(shape, false, rows, tokens);
  if (!ns) return std::nullopt;
  for (size_t i = 0; i < ns->size(); ++i) {
    (*ns)[i] = on_gpu(
        (*ns)[i], attention_work(shape, rows[i / tokens.size()], tokens[i % tokens.size()], false));
  }
  for (double& t : tokens) t = PrefillTimes::scaled(t);
  return PrefillTimes(Surface(std::move(rows), std::move(tokens), std::move(*ns)));
}

const OperatorGrid* OperatorTimes::expert_grid(const ExpertShape& shape) const {
  using enum ExpertShape::Type;
  return table_.find(shape.type == bf16  ? "moe_bf16"
                     : shape.type == fp8 ? "moe_fp8"
                                         : "moe_fp8_block");
}

bool OperatorTimes::has_experts(const ExpertShape& shape, int tp) const {
  const OperatorGrid* grid = expert_grid(shape);
  const std::array key{shape.hidden, shape.intermediate, shape.k, shape.experts, int64_t{tp}};
  return grid != nullptr && !grid->find(key).empty();
}

// Of the experts, those that some token goes through.
OperatorTimes::Work OperatorTimes::expert_work(const ExpertShape& shape, int tp,
                                               double tokens) const {
  const double matrices = 3 * double(shape.hidden) * double(shape.intermediate) / tp;
  const double used = std::min(double(shape.experts), tokens * double(shape.k));
  const bool fp8 = shape.type != ExpertShape::Type::bf16;
  const double weights = used * matrices * (fp8 ? 1 : kBf16Bytes);
  return {2 * tokens * double(shape.k) * matrices,
          weights + 2 * tokens * double(shape.hidden) * kBf16Bytes, 0, fp8};
}

std::optional<Curve> OperatorTimes::experts(const ExpertShape& shape, int tp) const {
  const OperatorGrid* grid = expert_grid(shape);
  if (grid == nullptr) return std::nullopt;
  size_t nearest = 0;
  double least = 0;
  ExpertShape other = shape;
  int other_tp = tp;
  for (size_t row = 0; row < grid->num_rows(); ++row) {
    const std::span<const int64_t> key = grid->key(row);
    const double apart = times_apart(double(shape.hidden), double(key[0])) *
                         times_apart(double(shape.intermediate) / tp, double(key[1] / key[4])) *
                         times_apart(double(shape.k), double(key[2])) *
                         times_apart(double(shape.experts), double(key[3])) *
                         (key[4] == tp ? 1 : 1.01);
    if (row == 0 || apart < least) nearest = row, least = apart;
  }
  const std::span<const int64_t> key = grid->key(nearest);
  other.hidden = key[0], other.intermediate = key[1], other.k = key[2], other.experts = key[3];
  other_tp = int(key[4]);
  const std::span<const float> times = grid->times(nearest);
  std::vector<double> ns(times.begin(), times.end()), work;
  for (const double tokens : grid->axis) {
    work.push_back(roofline_ns(card_, expert_work(other, other_tp, tokens)));
  }
  fill_gaps(grid->axis, work, ns);
  for (size_t i = 0; i < ns.size(); ++i) {
    const Work own = expert_work(shape, tp, grid->axis[i]);
    ns[i] = on_gpu(ns[i] * roofline_ns(card_, own) / work[i], own);
  }
  return Curve(grid->axis, std::move(ns));
}

std::optional<Curve> OperatorTimes::allreduce(int gpus) const {
  const OperatorGrid* grid = table_.find("allreduce_graph");
  const std::span<const float> times =
      grid == nullptr ? std::span<const float>{} : grid->find(std::array{int64_t{gpus}});
  if (times.empty()) return std::nullopt;
  std::vector<double> ns(times.begin(), times.end());
  for (size_t i = 0; i < ns.size(); ++i) {
    // Ring: every GPU sends its tensor nearly twice.
    const auto wire_ns = [&](const GpuSpec& gpu) {
      return kKernelNs + kSecondNs * grid->axis[i] * 2 * (gpus - 1) / gpus / gpu.link_bytes_per_s;
    };
    ns[i] *= wire_ns(gpu_) / wire_ns(card_);
  }
  return Curve(grid->axis, std::move(ns));
}

}  // namespace loratory::sim
