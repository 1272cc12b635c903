#pragma once

#include "check/kernels/case_run.hpp"

/// The named checks, a function each; docs/check.md says what each can see. A function looks at one
/// case and tells the run.
namespace loratory::check {

/// Every covered element within the derived bound of the declared mode; also finds elements that
/// were not written (covered_written) and NaN from what must not be read (nan_containment).
void look_at_numbers(CaseRun& run);
/// Small integers: the bits of the reference.
void look_at_exact(CaseRun& run);
/// The distribution of errors.
void look_at_statistics(CaseRun& run);
/// NaN in one token, and in one slot, stays there.
void look_at_nan_containment(CaseRun& run);
void look_at_repeatable(CaseRun& run);
/// A row alone has the bits of the row in its batch.
void look_at_batch_invariant(CaseRun& run);
void look_at_permutation(CaseRun& run);
/// Adapters in other slots.
void look_at_slot_relabelling(CaseRun& run);
/// More room for ranks in every buffer.
void look_at_rank_padding(CaseRun& run);
/// A step in two.
void look_at_chunk_independence(CaseRun& run);
/// Other numbers of tokens, where kernels switch paths.
void look_at_dispatch(CaseRun& run);
/// Another adapter in a slot, in place; another layer where one lay.
void look_at_storage_reuse(CaseRun& run);
/// A captured graph on other mappings, with more adapters than at its capture.
void look_at_graph_replay(CaseRun& run);
/// Weights and rows that lie more than 2^31 elements apart.
void look_at_large_offsets(CaseRun& run);

}  // namespace loratory::check
