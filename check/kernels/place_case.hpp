#pragma once

#include <vector>

#include "check/cases/case_data.hpp"
#include "check/loratory_plugin.h"

namespace loratory::check {

/// Where a part of a case lies for a plugin.
struct Part {
  const char* name;
  size_t slice;      ///< of those that a layer has several of
  const void* host;  ///< null: a workspace
  size_t bytes;
  bool is_input;
  size_t element_bytes = 0;  ///< of a tensor whose place the case's alignment says; 0: of others
};

/// Says where the part lies: in host memory `part.host` itself, else its place in an arena.
class Placing {
 public:
  virtual ~Placing() = default;
  virtual void* operator()(const Part& part) = 0;
};

/// In host memory, where the tensors of the case are.
class InPlace final : public Placing {
 public:
  void* operator()(const Part& part) override { return const_cast<void*>(part.host); }
};

/// A layer as a plugin sees it. `slices` is what layer.slices points to.
struct PlacedLayer {
  LoratoryLayer layer;
  std::vector<LoratorySlice> slices;
};
PlacedLayer place_layer(const CaseData& data, int64_t max_tokens, Placing& place);

/// A step as a plugin sees it; call.step is to be set by its owner, as is the workspace.
struct PlacedCall {
  LoratoryStep step;
  LoratoryCall call;
};
PlacedCall place_call(const CaseData& data, const StepData& step, Placing& place);

}  // namespace loratory::check
