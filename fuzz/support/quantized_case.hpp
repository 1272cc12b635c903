#pragma once

#include "check/cases/case_data.hpp"
#include "reference/numerics/tensor.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::reference {

/// A shrink, expand or linear on 8-bit weights, of a few numbers in each direction: formats,
/// factors and ranks at random. Or the case of this operation whose label is in LORATORY_CASE.
/// Logs it as "REPRO: LORATORY_CASE=... <this binary> --gtest_filter=<this test>" and classifies
/// its corners.
check::Case any_quantized_case(LoratoryOperation operation, check::Fill fill);

/// The same layer, step and numbers with another operation; h of an expand is a tensor of its own.
check::Case with_operation(check::Case c, LoratoryOperation operation);

/// Of the case's own step. They view the tensors of `data`, and write h or y there.
QuantizedShrinkArgs shrink_args(check::CaseData& data);
QuantizedExpandArgs expand_args(check::CaseData& data);
QuantizedLinearArgs linear_args(check::CaseData& data);

BlockSize a_block(const check::CaseData& data);
BlockSize b_block(const check::CaseData& data);
/// 0 for base tokens.
int64_t rank_of(const check::CaseData& data, int64_t slice, int64_t t);

}  // namespace loratory::reference
