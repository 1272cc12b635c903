#include "reference/engines/grouped.hpp"

#include <algorithm>
#include <numeric>

#include "reference/base/input_error.hpp"

namespace loratory::reference {
namespace {

using Rows = std::vector<int32_t>;

// One program of a kernel; it owns its rows.
struct Program {
  SlotRows part;
  Rows rows;
};

Rows consecutive(int32_t begin, int32_t end) {
  Rows rows(size_t(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

// Rank and scaling of a slot, looked up.
SlotRows slot_part(const GroupedArgs& args, int32_t slot) {
  if (slot < 0 || size_t(slot) >= args.lora_ranks.size()) {
    throw InputError("layout", "names a slot without a rank");
  }
  return {slot, args.lora_ranks[size_t(slot)], args.scalings[size_t(slot)], {}};
}

std::vector<Program> per_request(const RequestLayout& l, const GroupedArgs& args) {
  std::vector<Program> programs;
  for (size_t r = 0; r < l.weight_indices.size(); ++r) {
    const int32_t slot = l.weight_indices[r];
    if (slot == kBaseSlot) continue;
    programs.push_back(
        {slot_part(args, slot), consecutive(l.seg_indptr[r], l.seg_indptr[r] + l.seg_lens[r])});
  }
  return programs;
}

std::vector<Program> grouped(const RequestLayout& l, const GroupedArgs& args) {
  std::vector<Program> programs;
  for (int32_t g = 0; g < l.num_groups; ++g) {
    Program program{slot_part(args, l.group_slots[g]), {}};
    for (int32_t i = 0; i < l.group_sizes[g]; ++i) {
      program.rows.push_back(l.seg_indptr[l.sort_order[l.group_starts[g] + i]]);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

std::vector<Program> single_adapter(const RequestLayout& l, const GroupedArgs& args) {
  SlotRows part = slot_part(args, l.single_lora_slot);
  part.rank = l.single_lora_rank;
  return {{part, consecutive(0, l.seg_indptr.back())}};
}

std::vector<Program> multi_adapter(const RequestLayout& l, const GroupedArgs& args) {
  const SlotRows first = slot_part(args, l.multi_lora_start_slot);
  std::vector<Program> programs;
  for (int32_t i = 0; i < l.multi_lora_count; ++i) {
    const int32_t begin = i * l.multi_lora_segment_len;
    programs.push_back({{first.slot + i, l.multi_lora_rank, first.scaling, {}},
                        consecutive(begin, begin + l.multi_lora_segment_len)});
  }
  return programs;
}

bool single_holds(const RequestLayout& l, std::span<const int32_t> lora_ranks) {
  const int32_t slot = l.single_lora_slot;
  return slot >= 0 && size_t(slot) < lora_ranks.size() &&
         lora_ranks[size_t(slot)] == l.single_lora_rank &&
         std::all_of(l.weight_indices.begin(), l.weight_indices.end(),
                     [slot](int32_t s) { return s == slot; });
}

bool multi_holds(const RequestLayout& l, std::span<const int32_t> lora_ranks,
                 std::span<const float> scalings) {
  const int64_t first = l.multi_lora_start_slot, count = l.multi_lora_count;
  const auto num_slots = int64_t(std::min(lora_ranks.size(), scalings.size()));
  if (first < 0 || count < 1 || first + count > num_slots) return false;
  if (count != int64_t(l.weight_indices.size())) return false;
  for (size_t i = 0; i < size_t(count); ++i) {
    const size_t slot = size_t(first) + i;
    if (l.weight_indices[i] != int32_t(slot) || l.seg_lens[i] != l.multi_lora_segment_len ||
        lora_ranks[slot] != l.multi_lora_rank || scalings[slot] != scalings[size_t(first)]) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool allows(const RequestLayout& layout, Dispatch dispatch, std::span<const int32_t> lora_ranks,
            std::span<const float> scalings) {
  switch (dispatch) {
    case Dispatch::per_request:
      return true;
    case Dispatch::grouped:
      return layout.max_len <= 1;
    case Dispatch::single_adapter:
      return single_holds(layout, lora_ranks);
    case Dispatch::multi_adapter:
      return multi_holds(layout, lora_ranks, scalings);
  }
  return false;
}

Dispatch choose(const RequestLayout& layout, std::span<const int32_t> lora_ranks,
                std::span<const float> scalings) {
  for (const Dispatch fast :
       {Dispatch::single_adapter, Dispatch::multi_adapter, Dispatch::grouped}) {
    if (allows(layout, fast, lora_ranks, scalings)) return fast;
  }
  return Dispatch::per_request;
}

namespace {

std::vector<Program> programs_of(const RequestLayout& layout, Dispatch dispatch,
                                 const GroupedArgs& args) {
  switch (dispatch) {
    case Dispatch::grouped:
      return grouped(layout, args);
    case Dispatch::single_adapter:
      return single_adapter(layout, args);
    case Dispatch::multi_adapter:
      return multi_adapter(layout, args);
    default:
      return per_request(layout, args);
  }
}

}  // namespace

void grouped_lora(const RequestLayout& layout, Dispatch dispatch, const GroupedArgs& args) {
  if (args.lora_ranks.size() != args.scalings.size()) {
    throw InputError("lora_ranks, scalings", "have different lengths");
  }
  if (!allows(layout, dispatch, args.lora_ranks, args.scalings)) {
    throw InputError("dispatch", "the layout does not allow this kernel", "use choose()");
  }
  Tensor h = stacked_buffer(args.x, args.weights, args.mode);
  for (Program& program : programs_of(layout, dispatch, args)) {
    if (program.part.rank == 0 || program.rows.empty()) continue;
    program.part.rows = program.rows;
    stacked_shrink(args.x, args.weights.a, args.weights.num_slices(), program.part, h.view());
    stacked_expand(h.view(), args.weights.b, args.weights.output_offset, program.part, args.mode,
                   args.y);
  }
}

void grouped_lora(const RequestLayout& layout, const GroupedArgs& args) {
  grouped_lora(layout, choose(layout, args.lora_ranks, args.scalings), args);
}

}  // namespace loratory::reference
