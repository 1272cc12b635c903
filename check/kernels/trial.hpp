#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check/cases/case_data.hpp"
#include "check/kernels/arena.hpp"
#include "check/kernels/kernel.hpp"
#include "check/kernels/place_case.hpp"
#include "check/kernels/plugin_calls.hpp"

namespace loratory::check {

/// Something was written that must not be.
struct Trespass {
  const char* check;  ///< only_covered_written, guards or inputs_unchanged
  std::string what;
};

struct Outcome {
  reference::Tensor output;  ///< h of a shrink, else y
  std::vector<Trespass> trespasses;
};

/// A kernel with the weights of a case in its memory.
class Trial {
 public:
  /// Errors   KernelFailed: create() says no. DeviceError.
  Trial(const Kernel& kernel, Memory& memory, CaseData data, int64_t max_tokens);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  const CaseData& data() const { return data_; }
  /// prepare() and run() on a step; everything around the result is looked at.
  Outcome run(const StepData& step);
  /// Another adapter comes into `slot`, in place; `to` has it, and the sizes of the case.
  void change(const CaseData& to, int64_t slot);
  /// Another layer where this one lay: destroyed, then created anew in the same memory.
  void rebuild(CaseData data);

  /// run() into a graph on `step`; then, for each of `others` (as many tokens as `step` has), the
  /// graph on what lies at the same addresses by then.
  /// Needs     Memory::can_capture().
  std::vector<Outcome> capture_and_replay(const StepData& step,
                                          const std::vector<StepData>& others);

 private:
  class InArena;
  void create();
  void destroy();
  void place_step(const StepData& step);
  void prepare();
  void launch();
  Outcome finish(const StepData& step);

  const Kernel* kernel_;
  Memory* memory_;
  CaseData data_;
  int64_t max_tokens_;
  Arena weights_, tensors_;
  PlacedLayer layer_;
  PlacedCall call_{};
  size_t output_ = 0;  // region of tensors_
  void* state_ = nullptr;
};

}  // namespace loratory::check
