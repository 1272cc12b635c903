// The operation sets of vLLM, SGLang and TokenSpeed are lora_linear, bit for bit, however they find
// their rows: P11, P12, P17, P23 (rows of logits), P70, P71.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/base/input_error.hpp"
#include "reference/engines/chunked_sgmv.hpp"
#include "reference/engines/grouped.hpp"
#include "reference/engines/punica_wrapper.hpp"

namespace loratory::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Dispatch kDispatches[] = {Dispatch::per_request, Dispatch::grouped,
                                    Dispatch::single_adapter, Dispatch::multi_adapter};

// A step of num_ops - 1 requests on a packed layer of 1 to 3 slices. Slot L of the weights is the
// base model's in SGLang's form. Beyond the ranks, in padding rows and in base rows of x: NaN.
struct Step {
  explicit Step(const sim::SeededCase& c) : draw(c.seed) {
    max_loras = int32_t(draw.between(1, 5));
    num_slices = draw.between(1, 3), num_in = draw.between(1, 20), max_rank = draw.between(1, 6);
    dtype = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
    mode = {IntermediateMode(draw(4)), SumMode(draw(2)), ScaleMode(draw(2))};
    output_offset = {0};
    const int64_t same = draw.between(1, 7);
    for (int64_t i = 0; i < num_slices; ++i) {
      output_offset.push_back(output_offset.back() + (num_slices == 2 ? same : draw.between(1, 7)));
    }
    draw_adapters();
    draw_requests(c.num_ops - 1);
    draw_tensors();
  }

  void draw_adapters() {
    const bool alike = draw.one_in(3);
    for (int32_t s = 0; s < max_loras; ++s) {
      ranks.push_back(alike ? int32_t(max_rank) : int32_t(draw.between(0, max_rank)));
      scalings.push_back(alike ? 0.3F : 0.1F + 0.37F * float(draw(9)));
    }
    ranks.push_back(0), scalings.push_back(1);  // of the base slot
  }

  void draw_requests(int count) {
    const int64_t kind = draw(4);  // decode, prefill, one adapter, consecutive slots
    const auto length = int32_t(draw.between(1, 40));
    const auto only = int32_t(draw(max_loras));
    if (kind == 3) count = std::min(count, max_loras);
    for (int i = 0; i < count; ++i) {
      const auto any = int32_t(draw.between(-1, max_loras - 1));
      auto tokens = kind == 0 || (kind == 2 && length > 20) ? 1 : int32_t(draw(9));
      if (kind == 0 && draw.one_in(6)) tokens = 0;
      if (kind == 3 && !draw.one_in(6)) tokens = length;
      requests.push_back({kind == 3 ? i : kind == 2 ? only : any, tokens});
    }
    slots = token_slots(requests);
    num_tokens = int64_t(slots.size()) + (draw.one_in(2) ? draw(4) : 0);
    slots.resize(size_t(num_tokens), kBaseSlot);
    RC_CLASSIFY(kind == 0, "decode");
    RC_CLASSIFY(slots.empty(), "no tokens");
  }

  Tensor random(Extents shape) {
    Tensor t(dtype, std::move(shape));
    for (int64_t i = 0; i < num_numbers(t); ++i) {
      set_number(t, i, (double(draw(1 << 20)) * 0x1p-20 - 0.5) * 3);
    }
    return t;
  }

  void draw_tensors() {
    x = random({num_tokens, num_in}), y = random({num_tokens, output_offset.back()});
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t c = 0; slots[size_t(t)] == kBaseSlot && c < num_in; ++c) x.set(kNan, t, c);
    }
    stacked_a = Tensor(dtype, {max_loras + 1, num_slices * max_rank, num_in});
    stacked_b = Tensor(dtype, {max_loras + 1, output_offset.back(), max_rank});
    for (Tensor* t : {&stacked_a, &stacked_b}) {
      for (int64_t i = 0; i < num_numbers(*t); ++i) set_number(*t, i, kNan);
    }
    for (int64_t i = 0; i < num_slices; ++i) {
      const int64_t first = output_offset[size_t(i)], end = output_offset[size_t(i) + 1];
      a.push_back(random({max_loras, max_rank, num_in}));
      b.push_back(random({max_loras, end - first, max_rank}));
      for (int64_t s = 0; s < max_loras; ++s) stack(i, s, first);
    }
  }

  // Copies a slice of a slot to where it lies when stacked, and forgets what is beyond the rank.
  void stack(int64_t i, int64_t s, int64_t first) {
    const int64_t rank = ranks[size_t(s)];
    for (int64_t j = 0; j < max_rank; ++j) {
      for (int64_t c = 0; c < num_in; ++c) {
        if (j < rank) stacked_a.set(a.back().get(s, j, c), s, i * rank + j, c);
        if (j >= rank) a.back().set(kNan, s, j, c);
      }
      for (int64_t n = 0; n < b.back().shape()[1]; ++n) {
        if (j < rank) stacked_b.set(b.back().get(s, n, j), s, first + n, j);
        if (j >= rank) b.back().set(kNan, s, n, j);
      }
    }
  }

  std::span<const int32_t> slot_ranks() const { return std::span(ranks).first(size_t(max_loras)); }
  std::span<const float> slot_scalings() const {
    return std::span(scalings).first(size_t(max_loras));
  }
  std::vector<LoraSlice> slices() const {
    std::vector<LoraSlice> all;
    for (size_t i = 0; i < a.size(); ++i) {
      all.push_back({a[i].view(), b[i].view(), slot_ranks(), slot_scalings(), std::nullopt});
    }
    return all;
  }
  StackedWeights stacked() const { return {stacked_a.view(), stacked_b.view(), output_offset}; }

  Tensor linear() const {
    Tensor out = y;
    lora_linear({.x = x.view(), .slots = slots, .slices = slices(), .mode = mode, .y = out.view()});
    return out;
  }

  ChunkedLayout chunked_layout(int32_t segment_size) const {
    ChunkedLayout layout;
    build(with_base_slot(requests, max_loras), segment_size, ranks, scalings, layout);
    return layout;
  }
  Tensor chunked(const ChunkedLayout& layout) const {
    Tensor out = y;
    run_chunked(layout, x.view(), out.view());
    return out;
  }
  void run_chunked(const ChunkedLayout& layout, const ConstTensorView& x_part,
                   const TensorView& y_part) const {
    const ChunkedSgmv engine(layout, mode);
    if (num_slices == 3) return engine.run_qkv_lora(x_part, stacked(), y_part);
    if (num_slices == 2) return engine.run_gate_up_lora(x_part, stacked(), y_part);
    Tensor h = stacked_buffer(x_part, stacked(), mode);
    engine.run_lora_a_sgemm(x_part, stacked_a.view(), 1, h.view());
    engine.run_lora_b_sgemm(h.view(), stacked_b.view(), y_part);
  }

  RequestLayout request_layout() const {
    RequestLayout layout;
    build(requests, slot_ranks(), slot_scalings(), layout);
    return layout;
  }
  GroupedArgs grouped_args(Tensor& out) const {
    return {x.view(), stacked(), slot_ranks(), slot_scalings(), mode, out.view()};
  }
  Tensor grouped(const RequestLayout& layout) const {
    Tensor out = y;
    grouped_lora(layout, grouped_args(out));
    return out;
  }

  static uint64_t uid(int32_t slot) { return 1000 + 7 * uint64_t(slot); }
  std::vector<PunicaSlot> punica_slots() const {
    std::vector<PunicaSlot> all;
    for (int32_t s = 0; s < max_loras; ++s) all.push_back({uid(s), 1});
    return all;
  }
  std::vector<PunicaRequest> punica_requests() const {
    std::vector<PunicaRequest> all;
    for (const RequestTokens& r : requests) {
      all.push_back({std::nullopt, r.num_tokens, true, false});
      if (r.slot != kBaseSlot) all.back().adapter = uid(r.slot);
    }
    return all;
  }
  PunicaWrapper punica() const {
    PunicaWrapper wrapper(max_loras);
    wrapper.update_metadata(punica_requests(), punica_slots(), int32_t(num_tokens), 10, 2);
    return wrapper;
  }

  sim::Draw draw;
  int32_t max_loras;
  int64_t num_slices, num_in, max_rank, num_tokens = 0;
  Dtype dtype;
  NumericMode mode;
  std::vector<int64_t> output_offset;
  std::vector<RequestTokens> requests;
  std::vector<int32_t> slots;  // of tokens, with padding
  std::vector<int32_t> ranks;  // [max_loras + 1]
  std::vector<float> scalings;
  Tensor x{Dtype::f32, {0}}, y = x, stacked_a = x, stacked_b = x;
  std::vector<Tensor> a, b;
};

// [1.19] [1.26] [2.7] [2.18] [2.21] [2.22] [2.25] P11, P12: every form, any segment size.
RC_GTEST_PROP(Engines, P12EveryFormIsLoraLinear, ()) {
  const Step step(sim::any_seeded_case(12));
  const Tensor expected = step.linear();
  for (const int32_t size : {1, 3, 16, 128}) {
    RC_ASSERT(same_bits(step.chunked(step.chunked_layout(size)), expected));
  }
  const RequestLayout layout = step.request_layout();
  for (const Dispatch dispatch : kDispatches) {
    Tensor out = step.y;
    const bool allowed = allows(layout, dispatch, step.slot_ranks(), step.slot_scalings());
    RC_CLASSIFY(allowed && dispatch == Dispatch::single_adapter, "single adapter");
    RC_CLASSIFY(allowed && dispatch == Dispatch::multi_adapter, "multi adapter");
    if (allowed) {
      grouped_lora(layout, dispatch, step.grouped_args(out));
      RC_ASSERT(same_bits(out, expected));
    } else {
      RC_ASSERT_THROWS_AS(grouped_lora(layout, dispatch, step.grouped_args(out)), InputError);
      RC_ASSERT(same_bits(out, step.y));
    }
  }
  RC_ASSERT(same_bits(step.grouped(layout), expected));
  Tensor out = step.y;
  step.punica().add_lora_linear(step.x.view(), step.slices(), 0, true, step.mode, out.view());
  RC_ASSERT(same_bits(out, expected));
}

// [1.4] [1.5] [1.6] [1.7] [1.9] [1.26]: vLLM's operations one by one: a rank and a scaling for each
// slice, absent slices, offset, both ways of add_inputs, biases of some slices, rows of h that
// belong to base tokens NaN.
RC_GTEST_PROP(Engines, PunicaOperationsAreThoseOfTheReference, ()) {
  Step step(sim::any_seeded_case(12));
  const bool add_inputs = !step.draw.one_in(3);
  const int64_t offset = step.draw(3);
  std::vector<Tensor> bias_tensors;
  LinearArgs args{.x = step.x.view(), .slots = step.slots, .slices = step.slices(), .y = {}};
  PunicaWrapper::Biases biases;
  std::vector<ShrinkSlice> down;
  std::vector<ExpandSlice> up;
  std::vector<std::vector<int32_t>> ranks(args.slices.size(), step.ranks);
  std::vector<std::vector<float>> scalings(args.slices.size(), step.scalings);
  for (size_t i = 0; i < args.slices.size(); ++i) {
    LoraSlice& s = args.slices[i];
    for (int32_t& rank : ranks[i]) rank = int32_t(step.draw.between(0, rank));
    for (float& scaling : scalings[i]) scaling *= float(step.draw.between(1, 3));
    s.ranks = std::span(ranks[i]).first(s.ranks.size());
    s.scalings = std::span(scalings[i]).first(s.ranks.size());
    down.push_back({s.a, s.ranks}), up.push_back({s.b, s.ranks, s.scalings});
    bias_tensors.push_back(step.random({step.max_loras, s.b.size(1)}));
  }
  for (size_t i = 0; i < bias_tensors.size(); ++i) {
    if (add_inputs && step.draw.one_in(2)) args.slices[i].bias = bias_tensors[i].view();
    biases.push_back(args.slices[i].bias);
  }
  const bool as_x = step.mode.h == IntermediateMode::store_as_x;
  Tensor h(as_x ? step.dtype : Dtype::f32, {step.num_slices, step.num_tokens, step.max_rank});
  for (int64_t i = 0; i < num_numbers(h); ++i) set_number(h, i, kNan);
  Tensor expected = step.random({step.num_tokens, step.output_offset.back() + offset});
  Tensor out = expected, whole = expected;
  args.offset_start = offset, args.add_inputs = add_inputs, args.mode = step.mode;
  args.y = expected.view();
  lora_linear(args);
  const PunicaWrapper wrapper = step.punica();
  wrapper.add_shrink(step.x.view(), down, h.view());
  wrapper.add_expand(h.view(), up, offset, add_inputs, step.mode, out.view(), biases);
  RC_ASSERT(same_bits(out, expected));
  wrapper.add_lora_linear(step.x.view(), args.slices, offset, add_inputs, step.mode, whole.view());
  RC_ASSERT(same_bits(whole, expected));
}

// P11: a step cut into consecutive chunks of requests, or of parts of requests.
RC_GTEST_PROP(Engines, P11ChunkedPrefillGivesTheSameRows, ()) {
  Step step(sim::any_seeded_case(12));
  const Tensor expected = step.linear();
  Tensor out = step.y;
  const auto num_real = int64_t(token_slots(step.requests).size());
  for (int64_t begin = 0; begin < num_real;) {
    const int64_t end = step.draw.between(begin + 1, num_real);
    std::vector<RequestTokens> part;
    for (int64_t t = begin; t < end; ++t) part.push_back({step.slots[size_t(t)], 1});
    ChunkedLayout layout;
    build(with_base_slot(part, step.max_loras), int32_t(step.draw.between(1, 20)), step.ranks,
          step.scalings, layout);
    step.run_chunked(layout, step.x.view().part(0, begin, end), out.view().part(0, begin, end));
    begin = end;
  }
  RC_ASSERT(same_bits(out, expected));
}

// [2.26] P12: hints that an earlier step left, or that are plainly wrong, do not show.
RC_GTEST_PROP(Engines, WrongHintsCannotBeObserved, ()) {
  Step step(sim::any_seeded_case(12));
  sim::Draw& draw = step.draw;
  const Tensor expected = step.linear();
  RequestLayout layout = step.request_layout();
  const RequestLayout right = layout;
  const auto any = [&] { return int32_t(draw.between(-1, step.max_loras)); };
  if (!step.requests.empty() && step.requests[0].slot != kBaseSlot) {
    // What a step like the first segment alone would leave.
    const int32_t slot = step.requests[0].slot;
    layout.single_lora_slot = layout.multi_lora_start_slot = slot;
    layout.single_lora_rank = layout.multi_lora_rank = step.ranks[size_t(slot)];
    layout.multi_lora_segment_len = step.requests[0].num_tokens;
    layout.multi_lora_count = int32_t(step.requests.size());
  }
  switch (draw(8)) {  // and one of them plainly wrong
    case 0:
      layout.single_lora_slot = any();
      break;
    case 1:
      layout.single_lora_rank = int32_t(draw(step.max_rank + 1));
      break;
    case 2:
      layout.multi_lora_start_slot = any();
      break;
    case 3:
      layout.multi_lora_count = any();
      break;
    case 4:
      layout.multi_lora_segment_len = int32_t(draw(41));
      break;
    case 5:
      layout.multi_lora_rank = int32_t(draw(step.max_rank + 1));
      break;
    default:
      break;
  }
  RC_CLASSIFY(layout == right, "no hint changed");
  RC_ASSERT(same_bits(step.grouped(layout), expected));
  for (const Dispatch dispatch : kDispatches) {
    if (!allows(layout, dispatch, step.slot_ranks(), step.slot_scalings())) continue;
    Tensor out = step.y;
    grouped_lora(layout, dispatch, step.grouped_args(out));
    RC_ASSERT(same_bits(out, expected));
  }
}

// [2.23] P70: a step in the arrays of a graph that was captured for more, whatever they held.
RC_GTEST_PROP(Engines, ReplayOfACapturedLayoutIsEager, ()) {
  Step step(sim::any_seeded_case(12));
  sim::Draw& draw = step.draw;
  const ChunkedLayout eager = step.chunked_layout(int32_t(draw.between(1, 20)));
  const auto max_tokens = int32_t(eager.permutation.size()) + int32_t(draw(9));
  const auto max_segments = int32_t(eager.weight_indices.size()) + int32_t(draw(9));
  ChunkedLayout captured;
  for (auto* array : {&captured.permutation, &captured.weight_indices, &captured.seg_indptr}) {
    for (int64_t i = draw(40); i > 0; --i) array->push_back(int32_t(draw.between(-99, 99)));
  }
  refresh_for_replay(eager, max_tokens, max_segments, step.max_loras, captured);
  RC_ASSERT(int32_t(captured.permutation.size()) == max_tokens);
  RC_ASSERT(int32_t(captured.weight_indices.size()) == max_segments);
  RC_ASSERT(int32_t(captured.seg_indptr.size()) == max_segments + 1);
  RC_ASSERT(same_bits(step.chunked(captured), step.linear()));
}

// A step as vLLM is told of it, small enough to come back unchanged now and then.
struct PunicaStep {
  std::vector<PunicaRequest> requests;
  std::vector<PunicaSlot> slots;
  int32_t num_padded;
};

void change(PunicaStep& step, sim::Draw& draw) {
  switch (draw(4)) {
    case 0: {  // other requests
      step.requests.clear();
      for (int64_t i = draw(5); i > 0; --i) {
        const PunicaSlot& slot = step.slots[size_t(draw(int64_t(step.slots.size())))];
        const bool base = !slot.adapter || draw.one_in(4);
        step.requests.push_back(
            {base ? std::nullopt : slot.adapter, int32_t(draw(4)), draw.one_in(2), draw.one_in(4)});
      }
      break;
    }
    case 1: {  // two slots exchange their adapters
      const auto num_slots = int64_t(step.slots.size());
      PunicaSlot &left = step.slots[size_t(draw(num_slots))],
                 &right = step.slots[size_t(draw(num_slots))];
      if (&left == &right) break;
      std::swap(left.adapter, right.adapter), ++left.generation, ++right.generation;
      break;
    }
    case 2:  // the same adapter is loaded anew where it is
      ++step.slots[size_t(draw(int64_t(step.slots.size())))].generation;
      break;
    default:
      break;
  }
  int32_t num_tokens = 0;
  for (const PunicaRequest& r : step.requests) num_tokens += r.num_tokens;
  if (draw.one_in(3)) step.num_padded = num_tokens + int32_t(draw(3));
  step.num_padded = std::max(step.num_padded, num_tokens);
}

bool same_metadata(const PunicaWrapper& left, const PunicaWrapper& right) {
  return left.token_layout() == right.token_layout() &&
         left.logits_layout() == right.logits_layout() &&
         left.logits_tokens() == right.logits_tokens() &&
         left.sampler_indices() == right.sampler_indices() &&
         left.sampler_indices_padded() == right.sampler_indices_padded() &&
         left.embedding_indices(0) == right.embedding_indices(0) &&
         left.embedding_indices(1) == right.embedding_indices(1) &&
         left.generations() == right.generations();
}

// [2.10] [2.11] [2.12] [2.16] P70, P71: a wrapper that has seen many steps knows what a fresh one
// does, and its memo hits exactly when nothing changed; a step that names an adapter without a slot
// fails and changes nothing.
RC_GTEST_PROP(Engines, MetadataFollowsTheSlots, ()) {
  const sim::SeededCase c = sim::any_seeded_case(30);
  sim::Draw draw(c.seed);
  const auto max_loras = int32_t(draw.between(1, 4));
  PunicaStep step{{}, {}, 0};
  for (int32_t s = 0; s < max_loras; ++s) step.slots.push_back({uint64_t(50 + s), 1});
  if (draw.one_in(2)) step.slots.back().adapter.reset();
  PunicaWrapper wrapper(max_loras);
  wrapper.update_metadata(step.requests, step.slots, 0, 7, 1);
  for (int i = 0; i < c.num_ops; ++i) {
    const PunicaStep last = step;
    change(step, draw);
    std::vector<uint64_t> generations;
    for (const PunicaSlot& s : step.slots) generations.push_back(s.generation);
    const bool unchanged = step.requests == last.requests && step.num_padded == last.num_padded &&
                           generations == wrapper.generations();
    RC_CLASSIFY(unchanged, "a memo hit");
    const bool built = wrapper.update_metadata(step.requests, step.slots, step.num_padded, 7, 1);
    RC_ASSERT(built != unchanged);
    PunicaWrapper fresh(max_loras);
    fresh.update_metadata(step.requests, step.slots, step.num_padded, 7, 1);
    RC_ASSERT(same_metadata(wrapper, fresh));
    auto unknown = step.requests;
    unknown.push_back({99, 1, true, false});
    RC_ASSERT_THROWS_AS(wrapper.update_metadata(unknown, step.slots, step.num_padded + 1, 7, 1),
                        InputError);
    RC_ASSERT(same_metadata(wrapper, fresh));
  }
}

// The same step with another y and other scalings.
Tensor with_scalings(const Step& step, const Tensor& y, std::span<const float> scalings) {
  Step copy = step;
  copy.y = y;
  std::copy(scalings.begin(), scalings.end(), copy.scalings.begin());
  return copy.linear();
}

// [1.14] P17: y keeps its dtype, and a scaling is one fp32 factor of the fp32 sum: not rounded to
// the dtype of the weights, and no reason to round the sum later. The sum itself comes from a run
// with scaling 1 into y of fp32 zeros.
RC_GTEST_PROP(Engines, P17ScalingsAreFp32Factors, ()) {
  Step step(sim::any_seeded_case(12));
  step.mode.sum = SumMode::one_round, step.mode.scale = ScaleMode::accumulator;
  const Dtype out_dtype = step.draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
  const Extents shape = step.y.shape();
  Tensor base(out_dtype, shape), zeros(Dtype::f32, shape);
  for (int64_t i = 0; i < num_numbers(base); ++i) set_number(base, i, number(step.y, i));
  const Tensor sums = with_scalings(step, zeros, std::vector<float>(step.scalings.size(), 1));
  std::vector<float> rounded = step.scalings;
  for (float& s : rounded) s = float(round_to(Dtype::bf16, s));
  step.y = base;
  const Tensor y = step.linear();
  RC_CLASSIFY(!same_bits(y, with_scalings(step, base, rounded)), "a rounded scaling would show");
  RC_ASSERT(y.dtype() == out_dtype && y.bytes().size() == base.bytes().size());
  for (int64_t t = 0; t < step.num_tokens; ++t) {
    const int32_t slot = step.slots[size_t(t)];
    const bool covered = slot != kBaseSlot && step.ranks[size_t(slot)] > 0;
    for (int64_t n = 0; n < shape[1]; ++n) {
      const float d = covered ? step.scalings[size_t(slot)] * float(sums.get(t, n)) : 0;
      RC_ASSERT(y.get(t, n) == round_to(out_dtype, float(base.get(t, n)) + d));
    }
  }
  RC_ASSERT(same_bits(step.chunked(step.chunked_layout(16)), y));
  RC_ASSERT(same_bits(step.grouped(step.request_layout()), y));
  Tensor punica = base;
  step.punica().add_lora_linear(step.x.view(), step.slices(), 0, true, step.mode, punica.view());
  RC_ASSERT(same_bits(punica, y));
}

// [1.28] [1.29] [2.15]: vLLM's gather from A transposed is lora_embedding, with extra vocabulary
// that nobody reads.
RC_GTEST_PROP(Engines, PunicaEmbeddingIsLoraEmbedding, ()) {
  Step step(sim::any_seeded_case(12));
  const int64_t vocab = step.num_in, extra = step.draw(3);
  Tensor transposed(step.dtype, {step.max_loras, vocab + extra, step.max_rank});
  for (int64_t i = 0; i < num_numbers(transposed); ++i) set_number(transposed, i, kNan);
  for (int64_t s = 0; s < step.max_loras; ++s) {
    for (int64_t j = 0; j < step.ranks[size_t(s)]; ++j) {
      for (int64_t v = 0; v < vocab; ++v) transposed.set(step.a[0].get(s, j, v), s, v, j);
    }
  }
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < step.num_tokens; ++t) ids.push_back(step.draw(vocab));
  Tensor expected = step.random({step.num_tokens, step.output_offset[1]}), out = expected;
  const LoraSlice slice = step.slices()[0];
  const bool add_inputs = !step.draw.one_in(3);
  Tensor one_hot(step.dtype, {step.num_tokens, vocab}), looked_up = expected;
  for (int64_t t = 0; t < step.num_tokens; ++t) one_hot.set(1, t, ids[size_t(t)]);
  lora_linear({.x = one_hot.view(),
               .slots = step.slots,
               .slices = {slice},
               .add_inputs = add_inputs,
               .mode = step.mode,
               .y = expected.view()});
  lora_embedding({ids, step.slots, slice, step.mode, looked_up.view()});
  if (add_inputs) RC_ASSERT(same_bits(looked_up, expected));
  PunicaWrapper wrapper(step.max_loras);
  wrapper.update_metadata(step.punica_requests(), step.punica_slots(), int32_t(step.num_tokens),
                          vocab, extra);
  const ExpandSlice up{slice.b, slice.ranks, slice.scalings};
  const auto run = [&] {
    wrapper.add_lora_embedding(ids, transposed.view(), up, add_inputs, step.mode, out.view());
  };
  run();
  RC_ASSERT(same_bits(out, expected));
  if (ids.empty()) return;
  for (const int64_t bad : {int64_t(-1), vocab}) {
    ids[size_t(step.draw(step.num_tokens))] = bad;
    RC_ASSERT_THROWS_AS(run(), InputError);
  }
}

// [1.30] [1.31] [2.14] P23: a row of logits is that of its token and its request's adapter, alone;
// prompt_logprobs adds rows and changes none; a middle chunk has a row only through them.
RC_GTEST_PROP(Engines, P23RowsOfLogitsFollowTheirRequests, ()) {
  Step step(sim::any_seeded_case(12));
  auto requests = step.punica_requests();
  for (PunicaRequest& r : requests) r.samples = step.draw.one_in(2);
  const Tensor base = step.random({step.num_tokens, step.output_offset[1]});
  PunicaWrapper wrapper(step.max_loras);
  const auto logits_of = [&] {
    wrapper.update_metadata(requests, step.punica_slots(), int32_t(step.num_tokens), 10, 0);
    const std::vector<int32_t>& tokens = wrapper.logits_tokens();
    Tensor hidden(step.dtype, {int64_t(tokens.size()), step.num_in});
    Tensor logits(step.dtype, {int64_t(tokens.size()), step.output_offset[1]});
    for (size_t row = 0; row < tokens.size(); ++row) {
      for (int64_t c = 0; c < step.num_in; ++c) {
        hidden.set(step.x.get(tokens[row], c), int64_t(row), c);
      }
      for (int64_t n = 0; n < logits.shape()[1]; ++n) {
        logits.set(base.get(tokens[row], n), int64_t(row), n);
      }
    }
    wrapper.add_lora_logits(hidden.view(), step.slices()[0], step.mode, logits.view());
    return logits;
  };
  const Tensor sampled = logits_of();
  const std::vector<int32_t> sampled_tokens = wrapper.logits_tokens();
  size_t row = 0, first = 0;
  for (const PunicaRequest& r : requests) {
    first += size_t(r.num_tokens);
    if (!r.samples || r.num_tokens == 0) continue;
    RC_ASSERT(sampled_tokens[row] == int32_t(first - 1));
    const int32_t slot = step.slots[first - 1];
    RC_ASSERT(wrapper.sampler_indices()[row] == slot);
    Tensor alone(step.dtype, {1, step.output_offset[1]});
    const auto t = int64_t(first - 1);
    for (int64_t n = 0; n < alone.shape()[1]; ++n) alone.set(base.get(t, n), 0, n);
    lora_logits(step.x.view().part(0, t, t + 1), std::span(&slot, 1), step.slices()[0], step.mode,
                alone.view());
    for (int64_t n = 0; n < alone.shape()[1]; ++n) {
      RC_ASSERT(sampled.get(int64_t(row), n) == alone.get(0, n));
    }
    ++row;
  }
  RC_ASSERT(row == sampled_tokens.size());
  for (PunicaRequest& r : requests) r.prompt_logprobs = step.draw.one_in(2);
  const Tensor more = logits_of();
  const std::vector<int32_t>& tokens = wrapper.logits_tokens();
  RC_CLASSIFY(tokens.size() > sampled_tokens.size(), "prompt_logprobs added rows");
  for (size_t i = 0; i < sampled_tokens.size(); ++i) {
    const auto found = std::find(tokens.begin(), tokens.end(), sampled_tokens[i]);
    RC_ASSERT(found != tokens.end());
    for (int64_t n = 0; n < more.shape()[1]; ++n) {
      RC_ASSERT(more.get(found - tokens.begin(), n) == sampled.get(int64_t(i), n));
    }
  }
}

}  // namespace
}  // namespace loratory::reference
