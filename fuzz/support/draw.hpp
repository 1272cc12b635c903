#pragma once

#include <rapidcheck.h>

#include <cstdint>

#include "check/cases/draw.hpp"

namespace loratory::sim {

/// A type of this namespace, so that functions which take it are found by it.
class Draw : public check::Draw {
 public:
  using check::Draw::Draw;
};

/// A seed is drawn at full size from the first case on, and is not shrunk.
inline rc::Gen<uint64_t> seeds() {
  return rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>()));
}

}  // namespace loratory::sim
