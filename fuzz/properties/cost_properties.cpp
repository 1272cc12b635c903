// Properties of the cost models: transfers against a fluid simulation, monotone memory and time.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <map>
#include <random>
#include <vector>

#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/cost/operator_model.hpp"
#include "scheduler_sim/cost/step_profile.hpp"
#include "scheduler_sim/cost/transfer.hpp"

namespace loratory::sim {

// Everything else follows from the seed.
struct DiskCase {
  int num_workers;
  int num_jobs;
  int64_t bytes_per_s;
  int64_t latency_ns;
  bool share;
  uint64_t seed;
};

std::ostream& operator<<(std::ostream& out, const DiskCase& c) {
  return out << fmt::format("REPRO: DiskCase{{{}, {}, {}, {}, {}, {}u}}", c.num_workers, c.num_jobs,
                            c.bytes_per_s, c.latency_ns, c.share, c.seed);
}

namespace {

// Numbers in [0, below): mt19937_64 is the same on every machine, its distributions are not.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int64_t operator()(int64_t below) { return int64_t(engine_() % uint64_t(below)); }

 private:
  std::mt19937_64 engine_;
};

rc::Gen<uint64_t> seeds() {
  return rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>()));
}

DiskCase any_disk_case() {
  const auto bytes_per_s =
      rc::gen::element<int64_t>(1'000'000, 999'999'937, 1'100'000'000, 7'000'000'000);
  return *rc::gen::build<DiskCase>(
      rc::gen::set(&DiskCase::num_workers, rc::gen::inRange(1, 9)),
      rc::gen::set(&DiskCase::num_jobs, rc::gen::inRange(1, 40)),
      rc::gen::set(&DiskCase::bytes_per_s, bytes_per_s),
      rc::gen::set(&DiskCase::latency_ns, rc::gen::element<int64_t>(0, 1, 1000, 2'000'000)),
      rc::gen::set(&DiskCase::share, rc::gen::arbitrary<bool>()),
      rc::gen::set(&DiskCase::seed, seeds()));
}

struct FluidRead {
  uint64_t job;
  long double ready_ns;
  long double left;  // bytes
};

// The fluid model as one would write it on paper: real numbers, one event after the other.
class FluidDisk {
 public:
  explicit FluidDisk(const DiskCase& c) : case_(c) {}

  void start(uint64_t job, int64_t bytes, int64_t now_ns) {
    run_until(static_cast<long double>(now_ns));
    reads_.push_back({job, static_cast<long double>(now_ns + case_.latency_ns),
                      static_cast<long double>(bytes)});
  }

  // Reads end at their own real-valued times.
  void run_until(long double until_ns) {
    while (now_ns_ < until_ns && !reads_.empty()) {
      const long double rate = rate_per_ns();
      const long double next_ns = next_change(rate, until_ns);
      for (FluidRead& read : reads_) {
        if (read.ready_ns <= now_ns_) read.left -= rate * (next_ns - now_ns_);
      }
      now_ns_ = next_ns;
      std::erase_if(reads_, [this](const FluidRead& read) {
        const bool done = read.ready_ns <= now_ns_ && read.left <= 1e-6L;
        if (done) ends_[read.job] = now_ns_;
        return done;
      });
    }
    now_ns_ = std::max(now_ns_, until_ns);
  }

  const std::map<uint64_t, long double>& ends() const { return ends_; }

 private:
  long double rate_per_ns() const {
    const auto flowing = std::ranges::count_if(
        reads_, [this](const FluidRead& read) { return read.ready_ns <= now_ns_; });
    const long double bytes_per_ns = static_cast<long double>(case_.bytes_per_s) / 1e9L;
    return case_.share ? bytes_per_ns / std::max<long double>(flowing, 1) : bytes_per_ns;
  }

  long double next_change(long double rate, long double until_ns) const {
    long double next_ns = until_ns;
    for (const FluidRead& read : reads_) {
      const bool flows = read.ready_ns <= now_ns_;
      next_ns = std::min(next_ns, flows ? now_ns_ + read.left / rate : read.ready_ns);
    }
    return next_ns;
  }

  DiskCase case_;
  std::vector<FluidRead> reads_;
  std::map<uint64_t, long double> ends_;
  long double now_ns_ = 0;
};

struct DiskRun {
  std::map<uint64_t, int64_t> starts, ends, bytes;
  std::vector<uint64_t> order;
  int most_active = 0;
};

LoadCosts costs_of(const DiskCase& c) {
  LoadCosts costs;
  costs.num_workers = c.num_workers;
  costs.share_disk = c.share;
  costs.disk_bytes_per_s = c.bytes_per_s;
  costs.disk_latency_ns = c.latency_ns;
  return costs;
}

int64_t complete_next(DiskChannel& disk, int num_asks, DiskRun& run) {
  for (int i = 0; i < num_asks; ++i) static_cast<void>(disk.next_completion());
  const TransferDone next = disk.next_completion();
  RC_ASSERT(disk.complete(next.time_ns) == next.job);
  run.ends[next.job] = next.time_ns;
  run.order.push_back(next.job);
  return next.time_ns;
}

// Drives the channel, and the fluid model with the same starts, through the case's jobs: each
// starts at its time, or when a worker is free. `num_asks` = how often next_completion is asked.
DiskRun drive(const DiskCase& c, int num_asks, FluidDisk& fluid) {
  DiskChannel disk(costs_of(c));
  DiskRun run;
  Draw draw(c.seed);
  int64_t now_ns = 0;
  for (uint64_t job = 0; job < uint64_t(c.num_jobs); ++job) {
    now_ns += draw(4) == 0 ? draw(30'000'000) : draw(1000);
    const int64_t bytes = draw(5) == 0 ? draw(3) : draw(20'000'000);
    while (disk.next_completion().time_ns < now_ns) complete_next(disk, num_asks, run);
    while (!disk.has_free_worker()) now_ns = std::max(now_ns, complete_next(disk, num_asks, run));
    disk.start(job, bytes, now_ns);
    fluid.start(job, bytes, now_ns);
    run.starts[job] = now_ns;
    run.bytes[job] = bytes;
    run.most_active = std::max(run.most_active, disk.num_active());
  }
  while (disk.num_active() > 0) complete_next(disk, num_asks, run);
  fluid.run_until(1e30L);
  return run;
}

RC_GTEST_PROP(DiskChannel, EqualsAFluidSimulation, ()) {
  const DiskCase c = any_disk_case();
  FluidDisk fluid(c);
  const DiskRun run = drive(c, 1, fluid);
  RC_CLASSIFY(run.most_active > 1, "shared");
  RC_CLASSIFY(run.most_active == c.num_workers, "all workers busy");
  RC_ASSERT(fluid.ends().size() == run.ends.size());
  for (const auto& [job, end_ns] : run.ends) {
    const long double error = static_cast<long double>(end_ns) - fluid.ends().at(job);
    RC_LOG() << c << " job " << job << " error " << double(error) << '\n';
    RC_ASSERT(error > -0.01L);  // the fluid model's own tolerance
    RC_ASSERT(error < 1.01L);   // a completion is a whole nanosecond
  }
}

RC_GTEST_PROP(DiskChannel, SameResultHoweverOftenAsked, ()) {
  const DiskCase c = any_disk_case();
  FluidDisk unused(c), unused_too(c);
  const DiskRun once = drive(c, 0, unused);
  const DiskRun often = drive(c, 5, unused_too);
  RC_LOG() << c << '\n';
  RC_ASSERT(once.ends == often.ends);
  RC_ASSERT(once.order == often.order);
}

RC_GTEST_PROP(DiskChannel, EveryByteIsReadAndNoneFasterThanTheBandwidth, ()) {
  DiskCase c = any_disk_case();
  c.share = true;
  FluidDisk unused(c);
  const DiskRun run = drive(c, 1, unused);
  RC_CLASSIFY(run.most_active > 1, "shared");
  RC_LOG() << c << '\n';
  RC_ASSERT(run.ends.size() == size_t(c.num_jobs));
  RC_ASSERT(std::ranges::is_sorted(run.order, {}, [&](uint64_t job) { return run.ends.at(job); }));
  // Reads that start and end within an interval went through the disk in that interval.
  for (const auto& [first, begin_ns] : run.starts) {
    for (const auto& [last, end_ns] : run.ends) {
      __int128 bytes = 0;
      for (const auto& [job, size] : run.bytes) {
        if (run.starts.at(job) >= begin_ns && run.ends.at(job) <= end_ns) bytes += size;
      }
      const __int128 capacity = static_cast<__int128>(end_ns - begin_ns) * c.bytes_per_s;
      RC_ASSERT(bytes == 0 || bytes * 1'000'000'000 <= capacity);
    }
  }
}

RC_GTEST_PROP(MemoryLaw, MoreSlotsOrRankNeverGiveMoreKv, ()) {
  const ModelSpec model = load_model_spec(*rc::gen::elementOf(model_preset_names()));
  const GpuSpec gpu = parse_gpu_spec(*rc::gen::elementOf(gpu_preset_names()));
  MemoryOptions options;
  options.max_lora_rank = *rc::gen::inRange<int64_t>(1, 513);
  const auto max_loras = *rc::gen::inRange<int64_t>(1, 300);
  const MemoryPlan small = plan_memory(model, gpu, options, max_loras, max_loras);
  const MemoryPlan more = plan_memory(model, gpu, options, max_loras + 1, max_loras + 1);
  options.max_lora_rank += 1;
  const MemoryPlan larger = plan_memory(model, gpu, options, max_loras, max_loras);
  RC_CLASSIFY(small.fits(), "fits");
  RC_LOG() << fmt::format("REPRO: {} on {}, max_loras {}, rank {}\n", model.name, gpu.name,
                          max_loras, options.max_lora_rank - 1);
  for (const MemoryPlan& plan : {small, more, larger}) {
    const MemorySplit& s = plan.split;
    RC_ASSERT(plan.fits() == (s.kv_blocks > 0));
    RC_ASSERT(!plan.fits() ||
              s.weights_bytes + s.slot_bytes + s.kv_bytes + s.reserve_bytes <= s.hbm_bytes);
  }
  options.max_lora_rank -= 1;
  options.lora_dtype = LoraDtype::fp8;
  const MemoryPlan fp8 = plan_memory(model, gpu, options, max_loras, max_loras);
  RC_ASSERT(fp8.split.kv_blocks >= small.split.kv_blocks);
  RC_ASSERT(2 * fp8.split.slot_bytes == small.split.slot_bytes);
  RC_ASSERT(more.split.kv_blocks <= small.split.kv_blocks);
  RC_ASSERT(larger.split.kv_blocks <= small.split.kv_blocks);
}

constexpr std::array<int64_t BatchShape::*, 12> kFields{&BatchShape::num_seqs,
                                                        &BatchShape::num_tokens,
                                                        &BatchShape::num_prefill_tokens,
                                                        &BatchShape::num_sampled,
                                                        &BatchShape::decode_context_tokens,
                                                        &BatchShape::prefill_context_tokens,
                                                        &BatchShape::prefill_pairs,
                                                        &BatchShape::num_lora_tokens,
                                                        &BatchShape::lora_rank_tokens,
                                                        &BatchShape::num_adapters,
                                                        &BatchShape::sum_rank,
                                                        &BatchShape::max_rank};

BatchShape random_shape(Draw& draw) {
  BatchShape shape;
  for (const auto field : kFields) shape.*field = draw(3) == 0 ? 0 : draw(1 << 20);
  return shape;
}

RC_GTEST_PROP(Roofline, MoreWorkNeverTakesLess, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  RooflineOptions options;
  options.tp = *rc::gen::element(1, 2, 4, 8);
  options.lora_padded_rank = *rc::gen::element<int64_t>(0, 16, 64);
  options.lora_grid_max_loras = *rc::gen::element<int64_t>(0, 8);
  options.lora_dtype = *rc::gen::element(LoraDtype::of_model, LoraDtype::fp8);
  options.lora_graphs = *rc::gen::element(LoraGraphs::both, LoraGraphs::with_lora_only);
  const RooflineModel model(load_model_spec("Llama-3.1-8B"), parse_gpu_spec("H100-80"), options);
  const BatchShape shape = random_shape(draw);
  RC_CLASSIFY(shape.num_adapters > 0, "has adapters");
  const int64_t before = model.step_ns(shape);
  RC_ASSERT(before >= 1);
  for (const auto field : kFields) {
    BatchShape more = shape;
    more.*field += 1 + draw(1000);
    RC_LOG() << "REPRO: roofline seed " << seed << " tp " << options.tp << '\n';
    RC_ASSERT(model.step_ns(more) >= before);
  }
}

// What an option adds or saves: smaller adapters never cost more, fewer graphs never less, and a
// step with adapters is the same with one graph as with both.
RC_GTEST_PROP(Roofline, AdapterDtypeAndGraphsCostWhatTheySay, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  RC_LOG() << "REPRO: roofline options seed " << seed << '\n';
  const ModelSpec spec = load_model_spec(*rc::gen::elementOf(model_preset_names()));
  const GpuSpec gpu = parse_gpu_spec(*rc::gen::elementOf(gpu_preset_names()));
  RooflineOptions fp8, one_graph;
  fp8.lora_dtype = LoraDtype::fp8;
  one_graph.lora_graphs = LoraGraphs::with_lora_only;
  const BatchShape shape = random_shape(draw);
  const int64_t plain_ns = RooflineModel(spec, gpu, {}).step_ns(shape);
  const int64_t one_graph_ns = RooflineModel(spec, gpu, one_graph).step_ns(shape);
  RC_CLASSIFY(shape.num_adapters > 0, "has adapters");
  RC_ASSERT(RooflineModel(spec, gpu, fp8).step_ns(shape) <= plain_ns);
  RC_ASSERT((one_graph_ns == plain_ns) == (shape.num_adapters > 0));
  RC_ASSERT(one_graph_ns >= plain_ns);
}

// With less bandwidth a product takes longer, but never in proportion to all of its time.
RC_GTEST_PROP(OperatorTimes, LessBandwidthCostsNoMoreThanItsShare, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  const std::string_view name =
      *rc::gen::element<std::string_view>("h100_sxm", "a100_sxm", "l40s", "rtx_pro_6000_server");
  const OperatorTable& table = operator_table(name);
  const GpuSpec card = parse_gpu_spec(table.card);
  GpuSpec slower = card;
  const double share = 0.25 + 0.75 * double(draw(1000)) / 1000;
  slower.bandwidth_bytes_per_s *= share;
  const int64_t n = 128 * (1 + draw(200)), k = 128 * (1 + draw(100)), tokens = 1 + draw(4096);
  RC_LOG() << "REPRO: " << name << " n " << n << " k " << k << " tokens " << tokens
           << " bandwidth x " << share << '\n';
  const double before = (*OperatorTimes(table, card).gemm(n, k, false))(double(tokens));
  const double after = (*OperatorTimes(table, slower).gemm(n, k, false))(double(tokens));
  RC_CLASSIFY(after > 1.01 * before, "reads a good part of its time");
  RC_CLASSIFY(share < 0.5, "less than half of the bandwidth");
  RC_ASSERT(after >= before * (1 - 1e-12));
  RC_ASSERT(after <= before / share * (1 + 1e-12));
}

// From measured operators too, no step is faster than the datasheet: its weights come from memory.
RC_GTEST_PROP(OperatorModel, NoStepIsFasterThanItsWeights, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  const ModelSpec spec = load_model_spec(*rc::gen::elementOf(model_preset_names()));
  const GpuSpec gpu = parse_gpu_spec(*rc::gen::elementOf(gpu_preset_names()));
  RooflineOptions options;
  options.tp = *rc::gen::element(1, 2, 4);
  StepOverheads overheads;
  overheads.host_ns = double(draw(2) * 1000000);
  overheads.host_overlaps = draw(2) == 0;
  RC_LOG() << "REPRO: operators " << spec.name << " on " << gpu.name << " tp " << options.tp
           << " seed " << seed << '\n';
  const std::string_view table = operator_table_of(gpu);
  RC_PRE(!table.empty());
  const OperatorModel model(spec, gpu, operator_table(table), options, overheads);
  RC_CLASSIFY(is_measured_card(operator_table(table), gpu), "measured card");
  RC_CLASSIFY(!model.from_roofline().empty(), "something from the roofline");
  const BatchShape shape = random_shape(draw);
  const StepParts parts = model.parts(shape);
  const double weights = double(part_bytes(spec, ModulePart::attention, options.tp) +
                                part_bytes(spec, ModulePart::mlp, options.tp));
  RC_ASSERT(parts.dense >= weights / gpu.bandwidth_bytes_per_s * 1e9 * (1 - 1e-12));
  for (const double ns :
       {parts.attention, parts.logits, parts.lora, parts.allreduce, parts.overhead}) {
    RC_ASSERT(ns >= 0);
    RC_ASSERT(std::isfinite(ns));
  }
  RC_ASSERT(model.step_ns(shape) == model.step_ns(shape));
}

BatchShape attention_step(int64_t rows, int64_t context, int64_t prompts, int64_t prompt) {
  BatchShape shape;
  shape.num_seqs = shape.num_sampled = rows + prompts;
  shape.num_prefill_tokens = shape.prefill_context_tokens = prompts * prompt;
  shape.num_tokens = rows + shape.num_prefill_tokens;
  shape.prefill_pairs = prompts * prompt * (prompt + 1) / 2;
  shape.decode_context_tokens = rows * context;
  shape.longest_decode_context = rows > 0 ? context : 0;
  shape.longest_prefill = prompts > 0 ? prompt : 0;
  return shape;
}

// Decoding rows and prompts in one call take at least as long as either alone, no longer than both
// and the wider tiles, and with one row more no less than the table says. Where memory is slower,
// tiles add less.
RC_GTEST_PROP(OperatorModel, OneCallOfAttentionHasItsParts, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  const ModelSpec spec = load_model_spec(*rc::gen::elementOf(model_preset_names()));
  RC_PRE(spec.latent.kv_rank == 0);
  const GpuSpec gpu = parse_gpu_spec(*rc::gen::element<std::string>("H100-80", "H200"));
  GpuSpec slower = gpu;
  slower.bandwidth_bytes_per_s *= 0.25 + 0.75 * double(draw(1000)) / 1000;
  RooflineOptions options;
  options.tp = *rc::gen::element(1, 2, 4);
  StepOverheads apart, tiles, call;
  call.wide_tile_ns = tiles.wide_tile_ns = double(draw(40)) / 2;
  call.shared_call_ns = double(draw(30)) * 1e3;
  const int64_t rows = 1 + draw(1200), context = 1 + draw(4000);
  const int64_t prompts = 1 + draw(4), prompt = 1 + draw(600);
  RC_LOG() << "REPRO: one call of attention, " << spec.name << " on " << gpu.name << " tp "
           << options.tp << " seed " << seed << '\n';
  const OperatorTable& table = operator_table(operator_table_of(gpu));
  const auto ns = [&](const GpuSpec& g, const StepOverheads& o, const BatchShape& shape) {
    return OperatorModel(spec, g, table, options, o).parts(shape).attention;
  };
  const BatchShape both = attention_step(rows, context, prompts, prompt);
  const double decoding = ns(gpu, call, attention_step(rows, context, 0, 0));
  const double prompted = ns(gpu, call, attention_step(0, 0, prompts, prompt));
  const double whole = ns(gpu, call, both), two_calls = ns(gpu, apart, both);
  const double extra = ns(gpu, tiles, both) - two_calls, eps = 1e-9 * whole;
  const auto kv_heads = double(spec.kv_size(options.tp) / spec.head_dim);
  const double most = double(spec.num_layers) * double(rows) * kv_heads * tiles.wide_tile_ns;
  RC_CLASSIFY(extra > 0, "wide tiles");
  RC_CLASSIFY(whole < two_calls, "shorter than two calls");
  RC_CLASSIFY(two_calls > 1.5 * std::max(decoding, prompted), "both count");
  RC_ASSERT(std::abs(two_calls - decoding - prompted) <= eps);
  RC_ASSERT(whole >= std::max(decoding, prompted) - eps);
  RC_ASSERT(extra >= -eps && extra <= most + eps);
  RC_ASSERT(whole <= two_calls + extra + eps);
  const BatchShape more = attention_step(rows + 1, context, prompts, prompt);
  const double apart_more = ns(gpu, apart, more);
  const double fewer_ns = std::max(0.0, two_calls - apart_more);  // the table's scatter
  // Above 992 rows no row is cut, and tiles that were wide for that alone are narrow.
  const double narrower_ns = std::max(0.0, extra - (ns(gpu, tiles, more) - apart_more));
  RC_CLASSIFY(narrower_ns > eps, "one row more has narrow tiles");
  RC_ASSERT(ns(gpu, call, more) >= whole - fewer_ns - narrower_ns - eps);
  RC_ASSERT(ns(slower, tiles, both) - ns(slower, apart, both) <= extra + eps);
}

// Whoever does not ask for the waiting requests that a plan looks at gets no count of them.
RC_GTEST_PROP(StepTime, DependsOnWaitingRequestsOnlyIfItAsks, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  RC_LOG() << "REPRO: waiting requests seed " << seed << '\n';
  const ModelSpec spec = load_model_spec("Llama-3.1-8B");
  const GpuSpec gpu = parse_gpu_spec("H100-80");
  StepOverheads overheads;
  overheads.host_waiting_ns = double(draw(2) * 300);
  overheads.host_overlaps = draw(2) == 0;
  StepProfile profile;
  profile.ns_per[step_term("num_waiting_seen")] = double(draw(2) * 300);
  const OperatorTable& table = operator_table(operator_table_of(gpu));
  const RooflineModel roofline(spec, gpu, {});
  const OperatorModel operators(spec, gpu, table, {}, overheads);
  const ProfileModel fitted(profile);
  const BatchShape shape = random_shape(draw);
  BatchShape more = shape;
  more.num_waiting_seen += 1 + draw(100'000);
  for (const StepTimeModel* model :
       std::initializer_list<const StepTimeModel*>{&roofline, &operators, &fitted}) {
    RC_CLASSIFY(model->asks_waiting_seen(), "asks");
    RC_ASSERT(model->asks_waiting_seen() || model->step_ns(more) == model->step_ns(shape));
  }
}

RC_GTEST_PROP(StepProfile, TextRoundTrips, ()) {
  const uint64_t seed = *seeds();
  Draw draw(seed);
  RC_LOG() << "REPRO: step profile seed " << seed << '\n';
  StepProfile profile;
  profile.model = *rc::gen::element<std::string>("", "Llama-3.1-8B", "\xC3\xA9\t\"\\");
  profile.source = std::to_string(draw(1000));
  profile.constant_ns = double(draw(1 << 30)) / 977;
  for (double& ns : profile.ns_per) ns = double(draw(1 << 20) - (1 << 19)) / 313;
  RC_ASSERT(parse_step_profile(format_step_profile(profile), "p") == profile);
  RC_ASSERT(ProfileModel(profile).step_ns(random_shape(draw)) >= 1);
}

}  // namespace
}  // namespace loratory::sim
