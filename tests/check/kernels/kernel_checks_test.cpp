#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>

#include "check/kernels/case_run.hpp"
#include "check/kernels/kernel.hpp"
#include "check/kernels/memory.hpp"
#include "check/kernels/pattern.hpp"
#include "check/kernels/reference_call.hpp"
#include "check/kernels/run_kernel_checks.hpp"
#include "check/library/running_case.hpp"
#include "check/report/ledger.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::check {
namespace {

using testing::HasSubstr;

// --- kernels of which we know what is wrong ------------------------------------------------

// The reference, and then a fault: called with the layer and the call after every run.
using Fault = void (*)(const LoratoryLayer& layer, const LoratoryCall& call);

struct Faulty {
  const LoratoryLayer* layer;
  Fault fault;
};

// A plugin and claims of its own to change.
struct Changed {
  LoratoryClaims claims = *reference_plugin().claims;
  LoratoryPlugin plugin = reference_plugin();

  Changed() = default;
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;
  Kernel kernel() {
    plugin.claims = &claims;
    return Kernel(plugin);
  }
};

struct WithFault : Changed {
  explicit WithFault(Fault fault) {
    plugin.name = "faulty";
    claims.operations = 1U << LORATORY_OP_LINEAR;
    claims.weight_dtypes = 1U << LORATORY_F32;
    claims.layouts = 1;
    plugin.context = reinterpret_cast<void*>(fault);
    plugin.create = [](void* context, const LoratoryLayer* layer, void** state) {
      *state = new Faulty{layer, reinterpret_cast<Fault>(context)};
      return 0;
    };
    plugin.run = [](void* state, const LoratoryCall* call, void*) {
      const auto& of = *static_cast<Faulty*>(state);
      run_reference(*of.layer, *call);
      of.fault(*of.layer, *call);
      return 0;
    };
    plugin.destroy = [](void* state) { delete static_cast<Faulty*>(state); };
  }
};

float& y_at(const LoratoryCall& call, int64_t row, int64_t column) {
  return static_cast<float*>(call.y.data)[row * call.y.strides[0] + column];
}

Options quick() {
  Options options;
  options.num_cases = 60;
  options.max_products = 1 << 14;
  options.max_bytes = 0;
  return options;
}

TEST(KernelChecks, TheReferencePasses) {
  const Kernel kernel(reference_plugin());
  Options options = quick();
  options.num_cases = 160;
  options.max_bytes = Options().max_bytes;
  const Report report = run_kernel_checks(kernel, options);
  EXPECT_TRUE(report.ok()) << as_text(report);
  EXPECT_EQ(report.num_cases, 160);
  for (const char* name : {"numbers", "exact", "statistics", "storage_reuse", "rank_padding"}) {
    ASSERT_NE(report.find(name), nullptr);
    EXPECT_GT(report.find(name)->num_comparisons, 1000) << name;
  }
  EXPECT_EQ(report.find("graph_replay")->state, CheckState::skipped);
}

TEST(KernelChecks, AWrongColumnIsFoundShrunkAndSaidInWords) {
  WithFault faulty([](const LoratoryLayer& layer, const LoratoryCall& call) {
    for (int64_t n = 0; n < layer.num_columns; n += 64) {
      for (int64_t t = 0; t < call.step->num_tokens; ++t) {
        const int32_t slot = call.step->slots[t];
        const bool is_first = n < layer.offset_start + layer.slices[0].num_out;
        const bool is_covered =
            n >= layer.offset_start && is_first && slot >= 0 && layer.slices[0].ranks[slot] > 0;
        if (is_covered) y_at(call, t, n) += 1;
      }
    }
  });
  const Kernel kernel = faulty.kernel();
  Options options = quick();
  options.labels = {"linear.K40.N256+9.r8,4,2.n9.zipf.f32.seed7"};
  const Report report = run_kernel_checks(kernel, options);
  EXPECT_FALSE(report.ok());
  ASSERT_FALSE(report.findings.empty());
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.check, "numbers");
  EXPECT_EQ(finding.label, options.labels[0]);
  const Case smallest = case_named(finding.smallest);
  EXPECT_EQ(smallest.num_in, 1);
  EXPECT_EQ(smallest.num_tokens, 1);
  EXPECT_EQ(smallest.num_slots(), 1);
  EXPECT_EQ(smallest.num_out, std::vector<int64_t>{1});
  EXPECT_THAT(finding.repro, HasSubstr("--case " + finding.smallest));
  options.shrinks = false;
  EXPECT_THAT(run_kernel_checks(kernel, options).findings[0].pattern,
              HasSubstr("every 64th column from 0 on; slice 0 alone"));
  options.shrinks = true;
  options.budget_s = 1e-9;  // long past, before the first smaller case
  EXPECT_EQ(run_kernel_checks(kernel, options).findings[0].smallest, options.labels[0]);
}

TEST(KernelChecks, WritesAroundTheResultAreFound) {
  const auto checks_that_fail = [](Fault fault) {
    WithFault faulty(fault);
    std::vector<std::string> out;
    for (const Finding& f : run_kernel_checks(faulty.kernel(), quick()).findings) {
      out.push_back(f.check);
    }
    return out;
  };
  using testing::Contains;
  EXPECT_THAT(checks_that_fail([](const LoratoryLayer&, const LoratoryCall& call) {
                for (int64_t t = 0; t < call.step->num_tokens; ++t) {
                  if (call.step->slots[t] < 0) y_at(call, t, 0) = 1;
                }
              }),
              Contains("only_covered_written"));
  EXPECT_THAT(checks_that_fail([](const LoratoryLayer&, const LoratoryCall& call) {
                static_cast<float*>(call.y.data)[-1] = 0;
              }),
              Contains("guards"));
  EXPECT_THAT(checks_that_fail([](const LoratoryLayer&, const LoratoryCall& call) {
                if (call.step->num_tokens > 0) static_cast<float*>(call.x.data)[0] = 0;
              }),
              Contains("inputs_unchanged"));
}

// Row 0 of y is wrong where the offset of its slot of B does not fit in 32 bits; `kStrideFits` says
// of which strides: Triton's offsets are wider where their stride is.
template <bool kStrideFits>
std::string found_offset() {
  WithFault faulty([](const LoratoryLayer& layer, const LoratoryCall& call) {
    if (call.step->num_tokens == 0 || call.step->slots[0] < 0) return;
    const int32_t slot = call.step->slots[0];
    const int64_t stride = layer.slices[0].b.strides[0], offset = slot * stride;
    const bool is_covered = layer.slices[0].ranks[slot] > 0;
    if (offset != int32_t(offset) && is_covered && (stride == int32_t(stride)) == kStrideFits) {
      y_at(call, 0, layer.offset_start) += 1;
    }
  });
  Options options = quick();
  options.num_cases = 120;
  options.checks = {"large_offsets"};
  options.shrinks = false;
  const Report report = run_kernel_checks(faulty.kernel(), options);
  EXPECT_EQ(report.findings.size(), 1u) << as_text(report);
  if (report.findings.empty()) return "";
  EXPECT_EQ(report.findings[0].check, "large_offsets");
  return report.findings[0].what;
}

TEST(KernelChecks, OffsetsOf32BitsAreFound) {
  EXPECT_THAT(
      found_offset<false>(),
      HasSubstr("slots of B lie 2^31 elements apart (2 slots, 2 tokens, stride 2147483712)"));
  EXPECT_THAT(found_offset<true>(), HasSubstr("slots of B lie 2^30 elements apart"));
}

bool wraps(int64_t offset) { return offset != int32_t(offset); }

// A kernel on stacked weights whose rows lie side by side. Where some offset of a token does not
// fit in 32 bits, `wraps_at` says so, and the first column of the token is wrong.
using WrapsAt = bool (*)(const LoratoryLayer& layer, const LoratoryCall& call, int64_t token);
Report report_on_pool(WrapsAt wraps_at, const Options& options, int64_t max_slots = 0,
                      int64_t max_tokens = 0) {
  static WrapsAt wraps_here = nullptr;
  wraps_here = wraps_at;
  WithFault faulty([](const LoratoryLayer& layer, const LoratoryCall& call) {
    for (int64_t t = 0; t < call.step->num_tokens; ++t) {
      const int32_t slot = call.step->slots[t];
      if (slot < 0 || layer.slices[0].ranks[slot] == 0 || !wraps_here(layer, call, t)) continue;
      y_at(call, t, layer.offset_start) += 1;
    }
  });
  faulty.claims.abilities = 0;
  faulty.claims.layouts = 1U << LORATORY_LAYOUT_STACKED;
  faulty.claims.max_slots = max_slots;
  faulty.claims.max_tokens = max_tokens;
  faulty.claims.max_rank = 16;
  return run_kernel_checks(faulty.kernel(), options);
}

Options pools_alone() {
  Options options = quick();
  options.checks = {"large_offsets"};
  options.labels = {"linear.K27.N14.r2,5.n9.zipf.f32.stacked.seed1638741411"};  // it looks
  options.max_bytes = Options().max_bytes;
  return options;
}

std::string found_in_pool(WrapsAt wraps_at) {
  const Report report = report_on_pool(wraps_at, pools_alone());
  EXPECT_EQ(report.findings.size(), 1u) << as_text(report);
  if (report.findings.empty()) return "";
  EXPECT_EQ(report.findings[0].check, "large_offsets");
  EXPECT_EQ(report.findings[0].smallest, report.findings[0].label);  // its sizes are its own
  EXPECT_EQ(report.findings[0].pattern, "");
  return report.findings[0].what;
}

TEST(KernelChecks, OffsetsOf32BitsAreFoundWhereNothingLiesApart) {
  const auto of_slots = [](const char* name) {
    return testing::AllOf(
        HasSubstr(std::string("slots of ") + name + " in a tensor of more than 2^31 elements ("),
        HasSubstr(" slots, 3 tokens, stride "));
  };
  EXPECT_THAT(found_in_pool([](const LoratoryLayer& l, const LoratoryCall& c, int64_t t) {
                return wraps(c.step->slots[t] * l.stacked_a.strides[0]);
              }),
              of_slots("A"));
  EXPECT_THAT(found_in_pool([](const LoratoryLayer& l, const LoratoryCall& c, int64_t t) {
                return wraps(c.step->slots[t] * l.stacked_b.strides[0]);
              }),
              of_slots("B"));
  EXPECT_THAT(found_in_pool([](const LoratoryLayer&, const LoratoryCall& c, int64_t t) {
                return wraps(t * c.x.strides[0]);
              }),
              HasSubstr("rows of x in a tensor"));
  EXPECT_THAT(found_in_pool([](const LoratoryLayer&, const LoratoryCall& c, int64_t t) {
                return wraps(t * c.y.strides[0]);
              }),
              HasSubstr("rows of y in a tensor"));
}

// A finding that leaves the memory around it alone, as of a captured graph, keeps it from nothing.
TEST(KernelChecks, OffsetsOf32BitsAreFoundBesideOtherFaults) {
  Options options = pools_alone();
  options.checks = {"dispatch", "large_offsets"};
  options.shrinks = false;
  const Report report = report_on_pool(
      [](const LoratoryLayer& layer, const LoratoryCall& call, int64_t t) {
        const int64_t count = call.step->num_tokens;
        return (count > 64 && count < 1000) || wraps(t * call.x.strides[0]) ||
               wraps(call.step->slots[t] * layer.stacked_a.strides[0]);
      },
      options);
  ASSERT_EQ(report.findings.size(), 2u) << as_text(report);
  EXPECT_EQ(report.findings[0].check, "dispatch");
  EXPECT_EQ(report.findings[1].check, "large_offsets");
}

// What the claims, or the memory, leave no room for is said.
TEST(KernelChecks, PoolsThatCannotBeAreLeftOutAndSaidSo) {
  const auto note = [](const Options& options, int64_t max_slots, int64_t max_tokens) {
    const Report report =
        report_on_pool([](const LoratoryLayer&, const LoratoryCall&, int64_t) { return false; },
                       options, max_slots, max_tokens);
    EXPECT_TRUE(report.ok()) << as_text(report);
    return report.find("large_offsets")->note;
  };
  const Options options = pools_alone();
  EXPECT_EQ(note(options, 0, 0), "");
  EXPECT_EQ(note(options, 100, 0),
            "left out: slots of A (the claims allow too few), slots of B (the claims allow too "
            "few)");
  EXPECT_THAT(note(options, 0, 1000), HasSubstr("rows of x (the claims allow too few)"));
  EXPECT_EQ(note(options, 100, 1000),
            "few slots and tokens are claimed, and no rows that lie apart");
  Options small = options;
  small.max_bytes = 0;
  EXPECT_EQ(note(small, 0, 0), "left out: many slots and rows (--max-bytes 0)");
  small.max_bytes = int64_t(1) << 30;
  EXPECT_THAT(note(small, 0, 0), HasSubstr("bytes, beyond --max-bytes)"));
}

// A kernel that sizes itself for its first step.
TEST(KernelChecks, AStepLargerThanTheFirstIsTried) {
  static int64_t room = 0;
  WithFault faulty([](const LoratoryLayer& layer, const LoratoryCall& call) {
    if (room == 0) room = call.step->num_tokens;
    for (int64_t t = room; t < call.step->num_tokens; ++t) {
      const int32_t slot = call.step->slots[t];
      if (slot >= 0 && layer.slices[0].ranks[slot] > 0) y_at(call, t, layer.offset_start) += 1;
    }
  });
  const auto create = faulty.plugin.create;
  static decltype(faulty.plugin.create) create_layer = create;
  faulty.plugin.create = [](void* context, const LoratoryLayer* layer, void** state) {
    room = 0;
    return create_layer(context, layer, state);
  };
  Options options = quick();
  options.shrinks = false;
  const Report report = run_kernel_checks(faulty.kernel(), options);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].check, "dispatch");
}

// The claim is kept to the byte: by the first number and by every row, and by no more.
TEST(KernelChecks, TensorsAreAlignedAsClaimedAndNoFurther) {
  static int64_t alignment = 0, num_exact = 0, num_odd_rows = 0;
  WithFault observer([](const LoratoryLayer& layer, const LoratoryCall& call) {
    for (const LoratoryTensor& t : {layer.slices[0].a, layer.slices[0].b, call.x, call.y}) {
      const auto address = int64_t(reinterpret_cast<uintptr_t>(t.data));
      const int64_t row = t.strides[t.num_axes - 2] * 2;
      EXPECT_EQ(address % alignment, 0);
      EXPECT_EQ(row % alignment, 0);
      num_exact += address % (2 * alignment) != 0;
      num_odd_rows += row % (2 * alignment) != 0;
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(call.step->slots) % 256, 0u);
  });
  observer.claims.weight_dtypes = 1U << LORATORY_BF16;
  observer.claims.y_dtypes = 0;
  Options options = quick();
  options.num_cases = 12;
  options.checks = {"numbers", "permutation"};
  for (const int64_t claimed : {2, 16}) {
    alignment = observer.claims.alignment = claimed;
    num_exact = num_odd_rows = 0;
    const Report report = run_kernel_checks(observer.kernel(), options);
    EXPECT_TRUE(report.ok()) << as_text(report);
    EXPECT_GT(num_exact, 30);
    EXPECT_GT(num_odd_rows, 30);
  }
}

// Host memory of which some is gone: of `reserve()`, or of all.
class LittleMemory final : public Memory {
 public:
  LittleMemory(bool reserves, int allocations) : reserves_(reserves), left_(allocations) {}
  void* allocate(size_t bytes) override {
    if (left_-- == 0) throw NoRoom("", "nothing is left");
    return host_->allocate(bytes);
  }
  void* reserve(size_t bytes) override {
    ++num_reserved;
    if (!reserves_) throw NoRoom("", "gigabytes are not left");
    return host_->reserve(bytes);
  }
  void release(void* address) override { host_->release(address); }
  void write(void* to, const void* from, size_t bytes) override { host_->write(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { host_->read(to, from, bytes); }
  const std::byte* host_view(const void* address) const override {
    return host_->host_view(address);
  }
  void* stream() override { return nullptr; }
  void synchronize() override {}
  std::string name() const override { return "little"; }

  int num_reserved = 0;

 private:
  std::unique_ptr<Memory> host_ = make_host_memory();
  bool reserves_;
  int left_;
};

// Memory that others hold is no finding: large_offsets goes without, a case cannot.
TEST(KernelChecks, NoRoomIsNotTheKernelsFault) {
  const Kernel kernel(reference_plugin());
  const Case c = case_named("linear.K9.N8.r2,3.n3.zipf.f32.seed7");
  LittleMemory no_gigabytes(false, 1 << 20);
  EXPECT_TRUE(run_case(kernel, no_gigabytes, c, {}).findings.empty());
  EXPECT_EQ(no_gigabytes.num_reserved, 1);
  for (int allocations = 0; allocations < 3; ++allocations) {
    LittleMemory little(true, allocations);
    EXPECT_THROW(run_case(kernel, little, c, {}), InputError);
  }
}

// The reference behind a device that is none: host memory, and a graph that is the last call.
class GraphMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override { return host_->allocate(bytes); }
  void release(void* address) override { host_->release(address); }
  void write(void* to, const void* from, size_t bytes) override { host_->write(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { host_->read(to, from, bytes); }
  const std::byte* host_view(const void*) const override { return nullptr; }
  void* stream() override { return this; }
  void synchronize() override {}
  bool can_capture() const override { return true; }
  void begin_capture() override { is_capturing = true; }
  void end_capture() override { is_capturing = false; }
  void replay() override { graph(); }
  std::string name() const override { return "a device"; }

  bool is_capturing = false;
  std::function<void()> graph = [] {};

 private:
  std::unique_ptr<Memory> host_ = make_host_memory();
};

std::vector<int32_t> slots_with_adapters(const LoratoryStep& step) {
  std::vector<int32_t> out(step.slots, step.slots + step.num_tokens);
  std::erase(out, -1);
  return out;
}

// What is launched is what the captured step needed: nothing where it had no adapter, as vLLM does,
// and, if `bakes`, no slot but those it had.
struct CapturedAsItWas : Changed {
  explicit CapturedAsItWas(bool bakes) {
    plugin.memory = LORATORY_MEMORY_CUDA;
    plugin.context = bakes ? this : nullptr;
    claims.promises |= LORATORY_CAPTURABLE;
    plugin.create = [](void* context, const LoratoryLayer* layer, void** state) {
      *state = new State{layer, context != nullptr};
      return 0;
    };
    plugin.destroy = [](void* state) { delete static_cast<State*>(state); };
    plugin.run = [](void* state, const LoratoryCall* call, void* stream) {
      auto& memory = *static_cast<GraphMemory*>(stream);
      const State of = *static_cast<State*>(state);
      const std::vector<int32_t> slots = slots_with_adapters(*call->step);
      const auto launch = [of, call, slots] {
        std::vector<int32_t> known(call->step->slots, call->step->slots + call->step->num_tokens);
        for (int32_t& slot : known) {
          if (of.bakes && std::ranges::find(slots, slot) == slots.end()) slot = -1;
        }
        LoratoryStep step = *call->step;
        step.slots = step.host_slots = known.data();
        LoratoryCall now = *call;
        now.step = &step;
        if (!slots.empty()) run_reference(*of.layer, now);
      };
      if (memory.is_capturing) return memory.graph = launch, 0;
      return launch(), 0;
    };
  }
  struct State {
    const LoratoryLayer* layer;
    bool bakes;
  };
};

TEST(KernelChecks, AGraphIsCapturedOnOneAdapterAndReplayedOnAll) {
  const Case c = case_named("linear.K9.N8.r2,3,1.n7.s0,b,1,2,b,0,1.f32.seed7");
  for (const bool bakes : {false, true}) {
    CapturedAsItWas changed(bakes);
    GraphMemory memory;
    CaseVerdict verdict = run_case(changed.kernel(), memory, c, {"graph_replay"}, 0);
    EXPECT_GT(verdict.tallies["graph_replay"].num_comparisons, 50);
    EXPECT_EQ(verdict.has("graph_replay"), bakes);
    EXPECT_EQ(verdict.findings.size(), bakes ? 1u : 0u);
  }
}

// On a device as on the host; there it is looked for less often, in this case by both ways.
TEST(KernelChecks, NoRoomOnADeviceIsNotTheKernelsFault) {
  const Case c = case_named("linear.K9.N8.r2,3.n3.zipf.f32.seed6");
  Changed changed;
  changed.plugin.memory = LORATORY_MEMORY_CUDA;
  LittleMemory no_gigabytes(false, 1 << 20);
  CaseVerdict verdict = run_case(changed.kernel(), no_gigabytes, c, {"large_offsets"});
  EXPECT_TRUE(verdict.findings.empty());
  EXPECT_EQ(no_gigabytes.num_reserved, 5);
  EXPECT_THAT(verdict.tallies["large_offsets"].left_out,
              testing::ElementsAre("rows of x (no memory)", "rows of y (no memory)",
                                   "slots of A (no memory)", "slots of B (no memory)"));
  EXPECT_FALSE(verdict.device_is_lost);
}

TEST(KernelChecks, APromiseNotMadeIsObserved) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) {});
  faulty.claims.promises = 0;
  const Report report = run_kernel_checks(faulty.kernel(), quick());
  EXPECT_TRUE(report.ok()) << as_text(report);
  EXPECT_EQ(report.find("repeatable")->state, CheckState::observed);
  EXPECT_THAT(report.find("batch_invariant")->note, HasSubstr("not promised"));
}

TEST(KernelChecks, AFailureOfTheKernelIsAFindingWithItsText) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) {});
  faulty.plugin.run = [](void*, const LoratoryCall*, void*) { return 3; };
  faulty.plugin.error = [](void*) { return "no kernel for this shape"; };
  const Report report = run_kernel_checks(faulty.kernel(), quick());
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].check, "accepted");
  EXPECT_THAT(report.findings[0].what, HasSubstr("run() returned 3: no kernel for this shape"));
  // One that fails behind the case's own run: for which check that was.
  WithFault later([](const LoratoryLayer&, const LoratoryCall&) {
    static int num_runs = 0;
    if (++num_runs > 1) throw std::runtime_error("no luck");
  });
  Options as_drawn = quick();
  as_drawn.shrinks = false;
  const Report second = run_kernel_checks(later.kernel(), as_drawn);
  ASSERT_EQ(second.findings.size(), 1u);
  EXPECT_THAT(second.findings[0].what, HasSubstr("run() threw: no luck, in a run for "));
  Options numbers_alone = quick();
  numbers_alone.checks = {"numbers"};
  EXPECT_FALSE(run_kernel_checks(faulty.kernel(), numbers_alone).ok());
}

TEST(KernelChecks, WhatAKernelThrowsIsAFinding) {
  const auto what = [](auto change) -> std::string {
    WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) {});
    change(faulty.plugin);
    const Report report = run_kernel_checks(faulty.kernel(), quick());
    EXPECT_EQ(report.findings.size(), 1u);
    if (report.findings.empty()) return "";
    EXPECT_EQ(report.findings[0].check, "accepted");
    return report.findings[0].what;
  };
  EXPECT_EQ(what([](LoratoryPlugin& p) {
              p.run = [](void*, const LoratoryCall*, void*) -> int {
                throw std::runtime_error("no luck");
              };
            }),
            "run() threw: no luck");
  EXPECT_EQ(what([](LoratoryPlugin& p) {
              p.prepare = [](void*, const LoratoryStep*, void*) -> int { throw 7; };
            }),
            "prepare() threw what is no std::exception");
  EXPECT_EQ(what([](LoratoryPlugin& p) {
              p.workspace_bytes = [](void*, int64_t) { return int64_t(1) << 62; };
            }),
            "workspace_bytes() returned 4611686018427387904, which is not within [0, 2^40]");
}

// Nothing was compared, so nothing passed.
TEST(KernelChecks, AKernelThatTakesNoLayerPassesNoCheck) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) {});
  faulty.plugin.create = [](void*, const LoratoryLayer*, void**) { return 1; };
  const Report report = run_kernel_checks(faulty.kernel(), quick());
  for (const CheckResult& result : report.checks) {
    EXPECT_NE(result.state, CheckState::passed) << result.name;
  }
}

// A kernel that reads beyond the rank finds NaN there. The room is that of the check: the case
// itself has none. One that is wrong anyway is not blamed for it, but for that, asked for or not.
TEST(KernelChecks, RankPaddingSaysWhatLiesThereAndBlamesNothingElse) {
  const auto report_of = [](Fault fault) {
    WithFault faulty(fault);
    faulty.claims.promises = 0;
    Options options = quick();
    options.labels = {"linear.K4.N4.r2.n1.f32.seed3"};
    options.checks = {"rank_padding"};
    return run_kernel_checks(faulty.kernel(), options);
  };
  const Report reads = report_of([](const LoratoryLayer& layer, const LoratoryCall& call) {
    const LoratorySlice& slice = layer.slices[0];
    for (int64_t j = slice.ranks[0]; j < layer.max_rank; ++j) {
      y_at(call, 0, 0) += static_cast<const float*>(slice.a.data)[j * slice.a.strides[1]];
    }
  });
  ASSERT_EQ(reads.findings.size(), 1u);
  EXPECT_THAT(
      reads.findings[0].what,
      testing::ContainsRegex("^buffers with room for rank [3-9], NaN beyond each adapter's: "
                             "1 of 1 elements differ, first y, row 0, .*nan, should be "));
  const Report wrong =
      report_of([](const LoratoryLayer&, const LoratoryCall& call) { y_at(call, 0, 0) = 1e9F; });
  ASSERT_EQ(wrong.findings.size(), 1u);
  EXPECT_EQ(wrong.findings[0].check, "numbers");
  EXPECT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.find("rank_padding")->state, CheckState::skipped);
  EXPECT_EQ(wrong.find("rank_padding")->note, "left out: cases whose plain run is wrong");
}

// Whoever promises equal bits is not blamed twice either.
TEST(KernelChecks, RelationsOfAWrongRunAreLeftOutUnderAnyPromise) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall& call) { y_at(call, 0, 0) = 1e9F; });
  faulty.claims.promises = LORATORY_BATCH_INVARIANT;
  Options options = quick();
  options.labels = {"linear.K8.N8.r4.s0,0.f32.seed3"};
  options.checks = {"permutation"};
  const Report report = run_kernel_checks(faulty.kernel(), options);
  EXPECT_EQ(report.find("permutation")->note, "left out: cases whose plain run is wrong");
}

// What is looked for in every run is found in any of them, whatever is asked for.
TEST(KernelChecks, EveryRunOfACaseIsGuarded) {
  static int num_runs = 0;
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall& call) {
    if (++num_runs > 1) y_at(call, 0, -1) = 1;
  });
  const Kernel kernel = faulty.kernel();
  Options options = quick();
  options.labels = {"linear.K4.N4.r2.n1.f32.seed3"};
  options.checks = {"guards"};
  const Report report = run_kernel_checks(kernel, options);
  EXPECT_EQ(report.find("guards")->state, CheckState::failed);
  EXPECT_GT(report.find("guards")->num_comparisons, 1);
}

// A kernel that ends the process: the last line is the case that ran.
void run_and_die(const std::function<void()>& end) {
  static std::function<void()> end_now;
  end_now = end;
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) { end_now(); });
  const Kernel kernel = faulty.kernel();
  Options options = quick();
  options.labels = {"linear.K4.N4.r2.n1.f32.seed3"};
  RunningCase running("kernel");
  options.on_run = [&](std::string_view label, const Report&) {
    running.begin("again " + std::string(label));
  };
  run_kernel_checks(kernel, options);
}

TEST(KernelChecksDeathTest, TheCaseThatRanIsSaid) {
  const auto says = [](const std::string& what) {
    return "the kernel " + what + " in this case\n  REPRO: again linear.K4.N4.r2.n1.*seed3";
  };
  EXPECT_EXIT(run_and_die([] { std::exit(0); }), testing::ExitedWithCode(1),
              says("called exit\\(\\)"));
  EXPECT_EXIT(run_and_die([] { std::abort(); }), testing::ExitedWithCode(1), says("was aborted"));
#if !defined(__SANITIZE_ADDRESS__)  // which says more of a crash
  EXPECT_EXIT(run_and_die([] { std::raise(SIGSEGV); }), testing::ExitedWithCode(1),
              says("crashed"));
#endif
  EXPECT_EXIT(run_and_die([] { std::quick_exit(0); }), testing::ExitedWithCode(1),
              says("called exit\\(\\)"));
  // What a kernel forks, as to run a compiler, ends as it likes.
  const auto fork_one = [] {
    int status = 0;
    if (fork() == 0) std::exit(0);
    wait(&status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) std::abort();
    if (fork() == 0) std::abort();
    wait(&status);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) std::abort();
  };
  EXPECT_EXIT((run_and_die(fork_one), std::exit(3)), testing::ExitedWithCode(3),
              testing::Not(testing::HasSubstr("REPRO")));
  // After the last case the process is the harness's again.
  EXPECT_EXIT((run_and_die([] {}), std::exit(3)), testing::ExitedWithCode(3), "");
}

// A library that is linked with -ffast-math flushes subnormals from its first line on.
TEST(KernelChecks, ALibraryDoesNotChangeTheArithmeticOfTheHarness) {
#if defined(__x86_64__)
  const std::string path = testing::TempDir() + "flushes.so";
  const std::string command =
      "echo '__attribute__((constructor)) void f(void) {"
      " __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }' |"
      " cc -x c -shared -fPIC -o '" +
      path + "' - 2>/dev/null";
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no C compiler";
  EXPECT_THROW(Kernel::load(path), InputError);  // it has no kernel, but has been loaded
  volatile float smallest = std::numeric_limits<float>::min();
  EXPECT_NE(smallest / 2, 0);
#else
  GTEST_SKIP() << "no x86";
#endif
}

// Nor does a kernel that rounds otherwise, and leaves it so.
TEST(KernelChecks, AKernelDoesNotChangeHowItsJudgeRounds) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) { std::fesetround(FE_UPWARD); });
  EXPECT_TRUE(run_kernel_checks(faulty.kernel(), quick()).ok());
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

TEST(KernelChecks, ALibraryInThisFolderIsNamedAsOne) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(testing::TempDir());
  std::ofstream("mine.so") << "no library";
  try {
    Kernel::load("mine.so");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("; name it ./mine.so"));
  }
  std::filesystem::current_path(before);
}

// What numbers and exact see of elements is told whichever of the four was asked for.
TEST(KernelChecks, NothingWrittenIsFoundWhateverWasAskedFor) {
  const auto found = [](Fault fault, const std::vector<std::string>& checks) {
    WithFault faulty(fault);
    Options options = quick();
    options.labels = {"linear.K8.N8.r4.s0,0.f32.seed3"};
    options.checks = checks;
    options.shrinks = false;
    std::vector<std::string> out;
    for (const Finding& f : run_kernel_checks(faulty.kernel(), options).findings) {
      out.push_back(f.check);
    }
    return out;
  };
  using testing::ElementsAre;
  const Fault nan = [](const LoratoryLayer&, const LoratoryCall& call) {
    y_at(call, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  };
  EXPECT_THAT(found(nan, {"numbers"}), ElementsAre("nan_containment"));
  EXPECT_THAT(found(nan, {"exact"}), ElementsAre("nan_containment"));
  EXPECT_THAT(found(nan, {"nan_containment"}), ElementsAre("nan_containment"));
  EXPECT_THAT(found(nan, {"covered_written"}), ElementsAre());
  WithFault idle([](const LoratoryLayer&, const LoratoryCall&) {});
  idle.plugin.run = [](void*, const LoratoryCall*, void*) { return 0; };
  for (const char* check : {"numbers", "covered_written"}) {
    Options options = quick();
    options.checks = {check};
    options.shrinks = false;
    const Report report = run_kernel_checks(idle.kernel(), options);
    ASSERT_EQ(report.findings.size(), 1u) << check;
    EXPECT_EQ(report.findings[0].check, "covered_written");
  }
}

// What is not promised need not be the same bits, but right it must be.
TEST(KernelChecks, ARaceIsFoundWithoutAPromise) {
  static int64_t num_runs = 0;
  num_runs = 0;
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall& call) {
    if (++num_runs % 5 == 3) y_at(call, 0, 0) += 100;
  });
  faulty.claims.promises = 0;
  Options options = quick();
  options.labels = {"linear.K8.N8.r4.s0,0.f32.seed3"};
  options.checks = {"repeatable"};
  options.shrinks = false;
  const Report report = run_kernel_checks(faulty.kernel(), options);
  ASSERT_EQ(report.findings.size(), 1u) << as_text(report);
  EXPECT_EQ(report.findings[0].check, "repeatable");
  EXPECT_THAT(report.findings[0].what,
              HasSubstr("1 of 16 elements are off by more than the bound"));
}

// A kernel that adds to y whatever it was told writes NaN; one that reads what lies beyond the rank
// as well.
TEST(KernelChecks, NanOfWhatNobodyMayReadIsCalledSo) {
  WithFault adds([](const LoratoryLayer&, const LoratoryCall&) {});
  adds.plugin.run = [](void* state, const LoratoryCall* call, void*) {
    LoratoryLayer layer = *static_cast<Faulty*>(state)->layer;
    layer.add_inputs = 1;
    run_reference(layer, *call);
    return 0;
  };
  WithFault reads([](const LoratoryLayer&, const LoratoryCall&) {});
  reads.plugin.run = [](void* state, const LoratoryCall* call, void*) {
    LoratoryLayer layer = *static_cast<Faulty*>(state)->layer;
    std::vector<LoratorySlice> slices(layer.slices, layer.slices + layer.num_slices);
    const std::vector<int32_t> all(size_t(layer.num_slots), int32_t(layer.max_rank));
    for (LoratorySlice& slice : slices) slice.ranks = all.data();
    layer.slices = slices.data();
    run_reference(layer, *call);
    return 0;
  };
  const auto found = [](Changed& changed, const std::string& label) {
    Options options = quick();
    options.labels = {label};
    std::vector<std::string> out;
    for (const Finding& f : run_kernel_checks(changed.kernel(), options).findings) {
      out.push_back(f.check);
    }
    return out;
  };
  // NaN is no error that has a distribution.
  const auto is_nan_alone = testing::UnorderedElementsAre("nan_containment", "statistics");
  EXPECT_THAT(found(adds, "linear.K8.N8.r4.s0,0.f32.noadd.seed3"), is_nan_alone);
  EXPECT_THAT(found(reads, "linear.K8.N8.r2,3.R4.s0,0,1.f32.seed3"), is_nan_alone);
}

// A kernel that takes rows for dense: gaps are too much for it, whatever their size.
TEST(KernelChecks, GapsOfAnySizeAreNoLargeOffsets) {
  WithFault faulty([](const LoratoryLayer& layer, const LoratoryCall& call) {
    const bool has_gaps = layer.slices[0].a.strides[0] > layer.max_rank * layer.num_in;
    const int32_t slot = call.step->num_tokens == 0 ? -1 : call.step->slots[0];
    if (has_gaps && slot >= 0 && layer.slices[0].ranks[slot] > 0) {
      y_at(call, 0, layer.offset_start) += 1;
    }
  });
  Options options = quick();
  options.num_cases = 120;
  options.checks = {"large_offsets"};
  const Report report = run_kernel_checks(faulty.kernel(), options);
  EXPECT_TRUE(report.ok()) << as_text(report);
  EXPECT_GT(report.find("large_offsets")->num_comparisons, 0);
}

TEST(KernelChecks, WhatLargeOffsetsLeavesOutIsSaid) {
  Changed changed;
  changed.claims.operations = 1U << LORATORY_OP_SHRINK | 1U << LORATORY_OP_EMBEDDING;
  Options options = quick();
  options.checks = {"large_offsets"};
  options.labels = {"embedding.K9.N8.r2.n1.f32.seed1", "shrink.K9.N8.r2.n1.i8.wtensor.seed1"};
  const Report report = run_kernel_checks(changed.kernel(), options);
  EXPECT_EQ(report.find("large_offsets")->note, "left out: 8-bit weights, embeddings");
}

TEST(KernelChecks, ClaimsAndOptionsThatCannotBeAreErrors) {
  const auto is_refused = [](auto change) {
    Changed changed;
    change(changed);
    EXPECT_THROW(changed.kernel(), InputError);
  };
  is_refused([](Changed& c) { c.plugin.version = 2; });
  is_refused([](Changed& c) { c.plugin.struct_bytes = 40; });
  is_refused([](Changed& c) { c.claims.struct_bytes = 8; });
  is_refused([](Changed& c) { c.claims.layouts = 0; });
  is_refused([](Changed& c) { c.claims.alignment = 24; });
  is_refused([](Changed& c) { c.claims.promises |= LORATORY_CAPTURABLE; });
  is_refused([](Changed& c) { c.claims.rank_multiple = int64_t(1) << 40; });
  is_refused([](Changed& c) { c.claims.num_in_multiple = int64_t(1) << 62; });
  is_refused([](Changed& c) { c.claims.num_out_multiple = -1; });
  is_refused([](Changed& c) { c.claims.max_tokens = -1; });
  is_refused([](Changed& c) { c.claims.max_rank = 7, c.claims.rank_multiple = 8; });
  is_refused([](Changed& c) { c.claims.promises |= 8; });
  is_refused([](Changed& c) { c.claims.abilities |= 1U << 11; });
  is_refused([](Changed& c) { c.claims.layouts = 1U << LORATORY_LAYOUT_STACKED; });
  EXPECT_THROW(Kernel(LoratoryPlugin{}), InputError);
  EXPECT_THROW(Kernel::load("/nowhere/libnothing.so"), InputError);
  Options options = quick();
  options.checks = {"number"};
  EXPECT_THROW(run_kernel_checks(Kernel(reference_plugin()), options), InputError);
}

TEST(KernelChecks, ClaimsOf8BitsThatNoCaseMeetsAreErrors) {
  constexpr uint32_t kFp8 = 1U << LORATORY_F8_E4M3FN, kI8 = 1U << LORATORY_I8;
  constexpr uint32_t kBlock = 1U << LORATORY_SCALES_BLOCK, kToken = 1U << LORATORY_SCALES_TOKEN;
  const auto error = [](auto change) -> std::string {
    Changed changed;
    changed.claims.operations = 1U << LORATORY_OP_LINEAR;
    changed.claims.weight_dtypes = 1U << LORATORY_BF16 | kFp8;
    changed.claims.x_dtypes = 1U << LORATORY_BF16 | kFp8;
    change(changed.claims);
    try {
      changed.kernel();
    } catch (const InputError& refused) {
      return refused.what();
    }
    return "";
  };
  EXPECT_EQ(error([](LoratoryClaims&) {}), "");
  EXPECT_EQ(error([](LoratoryClaims& c) { c.operations |= 1U << LORATORY_OP_LOGITS; }), "");
  EXPECT_THAT(error([](LoratoryClaims& c) { c.weight_scales = 0; }),
              HasSubstr("claims.weight_scales: is empty"));
  EXPECT_THAT(error([](LoratoryClaims& c) { c.weight_scales |= kToken; }),
              HasSubstr("others than tensor, channel and block"));
  EXPECT_THAT(error([](LoratoryClaims& c) { c.weight_scales |= 1; }), HasSubstr("weight_scales"));
  EXPECT_THAT(error([](LoratoryClaims& c) { c.activation_scales = 0; }),
              HasSubstr("claims.activation_scales: has none that goes with weight_scales"));
  EXPECT_THAT(
      error([](LoratoryClaims& c) { c.weight_scales = kBlock, c.activation_scales = kToken; }),
      HasSubstr("claims.activation_scales: has none"));
  EXPECT_THAT(
      error([](LoratoryClaims& c) { c.activation_scales |= 1U << LORATORY_SCALES_CHANNEL; }),
      HasSubstr("others than tensor, token and block"));
  EXPECT_THAT(error([](LoratoryClaims& c) {
                c.weight_dtypes = kFp8, c.operations |= 1U << LORATORY_OP_LOGITS;
              }),
              HasSubstr("the others need f32"));
  EXPECT_THAT(error([](LoratoryClaims& c) { c.operations = 1U << LORATORY_OP_LOGITS; }),
              HasSubstr("for linear, shrink and expand"));
  EXPECT_THAT(error([](LoratoryClaims& c) { c.x_dtypes = kI8; }), HasSubstr("claims.x_dtypes"));
  EXPECT_THAT(error([](LoratoryClaims& c) { c.x_dtypes = kFp8, c.activation_scales = kBlock; }),
              HasSubstr("block with block"));
}

// Every case named is looked at before the first is run.
TEST(KernelChecks, ACaseThatIsNotClaimedIsRefused) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) {});
  Options options = quick();
  options.labels = {"linear.K4.N4.r2.n1.f32", "linear.K4.N4.r2.n1.f32.stacked"};
  bool has_run = false;
  options.on_case = [&](std::string_view) { has_run = true; };
  try {
    run_kernel_checks(faulty.kernel(), options);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "case: 'stacked': the kernel does not claim this layout");
  }
  EXPECT_FALSE(has_run);
}

// 14-bit accumulators: docs/error_bounds.md has them declare this.
TEST(KernelChecks, CoarseAccumulatorsAreJudged) {
  Changed coarse;
  coarse.claims.unit = 0x1p-12;
  Options options = quick();
  options.num_cases = 40;
  EXPECT_TRUE(run_kernel_checks(coarse.kernel(), options).ok());
  options.labels = {"linear.K4097.N4.r2.n2.uniform.f32.seed3"};  // without bound, and no crash
  EXPECT_TRUE(run_kernel_checks(coarse.kernel(), options).ok());
}

// Memory that ends while a case is prepared or judged is no finding either.
TEST(KernelChecks, NoMemoryForACaseIsNoRoom) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall&) { throw std::bad_alloc(); });
  EXPECT_THROW(run_kernel_checks(faulty.kernel(), quick()), NoRoom);
}

TEST(KernelChecks, AKnownFindingHidesNoOther) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall& call) {
    static_cast<float*>(call.y.data)[-1] = 0;
  });
  Options options = quick();
  options.shrinks = false;
  std::string first;
  options.knows = [&](std::string_view, std::string_view label) {
    if (first.empty()) first = label;
    return label == first ? std::vector<size_t>{1} : std::vector<size_t>();
  };
  const Report report = run_kernel_checks(faulty.kernel(), options);
  ASSERT_EQ(report.findings.size(), 2u);
  EXPECT_EQ(report.findings[0].label, first);
  EXPECT_NE(report.findings[1].label, first);
}

// Every line has its finding, although the check has one already; a line none of whose cases was
// judged says nothing.
TEST(KernelChecks, EveryLineOfTheLedgerHasItsFinding) {
  WithFault faulty([](const LoratoryLayer&, const LoratoryCall& call) {
    static_cast<float*>(call.y.data)[-1] = 0;
  });
  Options options = quick();
  options.labels = {"linear.K3.N2.r1.n1.f32.seed1", "linear.K4.N2.r1.n1.f32.seed1"};
  const std::string text =
      "guards linear.K3.* a\nguards linear.K4.* b\nguards linear.K5.* c\nnumbers linear.K4.* d\n";
  std::vector<LedgerLine> ledger = parse_ledger(text, "l", kernel_check_names());
  options.knows = [&](auto check, auto label) { return lines_for(ledger, check, label); };
  options.on_case = [&](auto label) { note_case(ledger, label); };
  Report report = run_kernel_checks(faulty.kernel(), options);
  apply_ledger(ledger, report);
  ASSERT_EQ(report.findings.size(), 2u) << as_text(report);
  EXPECT_EQ(report.findings[0].reference, "a");
  EXPECT_EQ(report.findings[1].reference, "b");
  EXPECT_EQ(report.stale, std::vector<std::string>{"line 4: numbers linear.K4.* d"});
}

TEST(Report, JsonHasWhatTheTextHas) {
  Report report{.subject = "mine",
                .seed = 3,
                .num_cases = 5,
                .seconds = 0.5,
                .checks = {},
                .findings = {},
                .stale = {}};
  report.checks.push_back({.name = "numbers",
                           .state = CheckState::failed,
                           .num_cases = 5,
                           .num_comparisons = 10,
                           .worst = 2,
                           .note = ""});
  report.findings.push_back({.check = "numbers",
                             .label = "linear.a",
                             .smallest = "linear.b",
                             .what = "y < 1 & more",
                             .pattern = "column 3 alone",
                             .repro = "loratory check --case linear.b",
                             .reference = ""});
  EXPECT_THAT(as_json(report), HasSubstr("\"pattern\": \"column 3 alone\""));
  EXPECT_THAT(as_text(report), HasSubstr("REPRO: loratory check --case linear.b"));
  EXPECT_THAT(as_junit(report), HasSubstr("y &lt; 1 &amp; more"));
  EXPECT_FALSE(report.ok());
}

}  // namespace
}  // namespace loratory::check
