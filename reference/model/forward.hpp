#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/model/model.hpp"
#include "reference/model/packed_linear.hpp"
#include "reference/numerics/bounded.hpp"
#include "reference/numerics/dtype.hpp"
#include "reference/numerics/matrix.hpp"

// One forward pass of a decoder-only model, with two seams: where keys and values live, and what
// LoRA adds. The naive oracle fills them in the obvious way (oracle.hpp), an engine with blocks
// and slots. The walk itself is the same, and every column of every product is computed alone and
// in one order, so that a token's bits do not depend on how a batch was put together.
//
// Real is float (the reference), double (the oracle in float64), or Traced (float64 with a trace
// from which follows how far any float32 implementation may be; numerics/bounded.hpp).

namespace loratory::reference {

/// Keys (after RoPE) and values of earlier tokens.
template <typename Real>
class KvCache {
 public:
  virtual ~KvCache() = default;
  /// Of one token in one layer: kv heads x head_dim numbers, head after head. The pass writes
  /// those of its own tokens before it reads any of the sequence. Called by several threads at
  /// once; must not throw then.
  virtual std::span<Real> key(int64_t layer, int64_t sequence, int64_t position) = 0;
  virtual std::span<Real> value(int64_t layer, int64_t sequence, int64_t position) = 0;
};

/// What LoRA adds to the layers of a pass. `tokens[i]` is the token of the batch that column i
/// belongs to (a layer may see few of them: an expert, lm_head).
template <typename Real>
class LoraTerms {
 public:
  virtual ~LoraTerms() = default;
  /// y.col(i) += delta(x.col(i)); x [K, n], y [N_0 + ... + N_{S-1}, n] holds base. Columns of
  /// base tokens and rows of absent slices keep their bits.
  virtual void add(const LinearRef& linear, std::span<const int64_t> tokens, const Matrix<Real>& x,
                   Matrix<Real>& y) const = 0;
  /// y.col(t) += delta of the embedding of ids[t], for all tokens of the batch.
  virtual void add_embedding(std::span<const int32_t> ids, Matrix<Real>& y) const = 0;
};

/// The tokens of a pass. Those of one sequence stand in order of position; sequences may be mixed.
struct TokenBatch {
  std::vector<int32_t> ids;        ///< [T], each in [0, vocab)
  std::vector<int64_t> positions;  ///< [T]
  std::vector<int64_t> sequences;  ///< [T] what KvCache is asked with
  std::vector<int64_t> logits_of;  ///< tokens whose logits are wanted, indices into the above
};

/// Logits [vocab, logits_of.size()]. `lora` may be null: the base model. `stored` is what numbers
/// have in memory between two kernels of an engine on a GPU, at whose rounding points they are
/// rounded (docs/error_bounds.md, "A whole model in 16 bits"); f32: nowhere.
/// Errors   InputError: an id outside the vocabulary, arrays of different lengths, a position past
///          the sliding window.
/// Repeats  bitwise, for any number of threads and any batch.
/// Cost     O(T · weights + T · context · heads · head_dim).
template <typename Real>
Matrix<Real> forward(const Model& model, const TokenBatch& batch, KvCache<Real>& kv,
                     const LoraTerms<Real>* lora, Dtype stored = Dtype::f32);

extern template Matrix<float> forward(const Model&, const TokenBatch&, KvCache<float>&,
                                      const LoraTerms<float>*, Dtype);
extern template Matrix<double> forward(const Model&, const TokenBatch&, KvCache<double>&,
                                       const LoraTerms<double>*, Dtype);
extern template Matrix<Traced> forward(const Model&, const TokenBatch&, KvCache<Traced>&,
                                       const LoraTerms<Traced>*, Dtype);

}  // namespace loratory::reference
