// Kernels of 8-bit layers, experts, embeddings and logits that are wrong in one way each.
#include <algorithm>
#include <cmath>

#include "fuzz/bug_zoo/wrong_kernels.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::zoo {
namespace {

using Span = std::span<const double>;

// --- 8-bit numbers -------------------------------------------------------------------------------

struct E5m2ReadAsE4m3 : NaiveKernel {
  static constexpr Note kNote{"e5m2_read_as_e4m3", "one 8-bit format is decoded as the other",
                              "ROCm/triton#330"};
  using NaiveKernel::NaiveKernel;
  double a(const At& at, int64_t j, int64_t c) const override {
    const double right = weight(slice(at).a, at, j, c);
    const uint32_t bits = reference::encode(reference::Dtype::f8_e5m2, right);
    return reference::decode(reference::Dtype::f8_e4m3fn, bits) * a_factor(at, j, c);
  }
};

struct SignOfI8Lost : NaiveKernel {
  static constexpr Note kNote{"sign_of_i8_lost", "signed bytes are read as unsigned ones",
                              "paiml/aprender#2189"};
  using NaiveKernel::NaiveKernel;
  double b(const At& at, int64_t n, int64_t j) const override {
    const double right = weight(slice(at).b, at, n, j);
    return (right < 0 ? right + 256 : right) * b_factor(at, n, j);
  }
};

struct BlockStridesSwapped : NaiveKernel {
  static constexpr Note kNote{"block_strides_swapped", "the factors of blocks are read transposed",
                              "vllm-project/vllm-xpu-kernels#173"};
  using NaiveKernel::NaiveKernel;
  double b_factor(const At& at, int64_t n, int64_t j) const override {
    const LoratoryTensor& scale = slice(at).b_scale;
    const int64_t place = j / layer_.b_block_k * scale.shape[1] + n / layer_.b_block_n;
    return get(scale, at.slot, place / scale.shape[2], place % scale.shape[2]);
  }
};

struct BlockNTakenForK : NaiveKernel {
  static constexpr Note kNote{"block_n_taken_for_k", "columns of a block are counted by its rows",
                              "vllm-project/vllm#46593"};
  using NaiveKernel::NaiveKernel;
  double a_factor(const At& at, int64_t j, int64_t c) const override {
    const LoratoryTensor& scale = slice(at).a_scale;
    return get(scale, at.slot, j / layer_.a_block_n,
               std::min(c / layer_.a_block_n, scale.shape[2] - 1));
  }
};

struct BlockFactorNeverMoves : NaiveKernel {
  static constexpr Note kNote{"block_factor_never_moves",
                              "a tile below one block: the factor of the first block serves all",
                              "sgl-project/sglang#20819"};
  using NaiveKernel::NaiveKernel;
  double a_factor(const At& at, int64_t j, int64_t /*c*/) const override {
    return NaiveKernel::a_factor(at, j, 0);
  }
};

struct BlockSizeFromCount : NaiveKernel {
  static constexpr Note kNote{"block_size_from_count",
                              "N / number of blocks is taken for their size",
                              "vllm-project/vllm#49596"};
  using NaiveKernel::NaiveKernel;
  double b_factor(const At& at, int64_t n, int64_t j) const override {
    const LoratoryTensor& scale = slice(at).b_scale;
    const int64_t size = (slice(at).num_out + scale.shape[1] - 1) / scale.shape[1];
    return get(scale, at.slot, std::min(n / size, scale.shape[1] - 1), j / layer_.b_block_k);
  }
};

struct ChannelFactorOfRow0 : NaiveKernel {
  static constexpr Note kNote{"channel_factor_of_row_0",
                              "all rows of B have the first one's factor", "mlc-ai/TIRx-kernels#5"};
  using NaiveKernel::NaiveKernel;
  double b_factor(const At& at, int64_t, int64_t j) const override {
    return NaiveKernel::b_factor(at, 0, j);
  }
};

struct FactorOfXForgotten : NaiveKernel {
  static constexpr Note kNote{"factor_of_x_forgotten",
                              "LoRA is fed the quantised activations without their factors",
                              "vllm-project/vllm#42120"};
  using NaiveKernel::NaiveKernel;
  double x_factor(const At&, int64_t) const override { return 1; }
};

struct FactorOfToken0 : NaiveKernel {
  static constexpr Note kNote{"factor_of_token_0", "all tokens have the first one's factor",
                              "vllm-project/vllm#42007"};
  using NaiveKernel::NaiveKernel;
  double x_factor(const At& at, int64_t c) const override {
    At first = at;
    first.row = 0;
    return NaiveKernel::x_factor(first, c);
  }
};

struct FactorOfHFromSlice0 : NaiveKernel {
  static constexpr Note kNote{"factor_of_h_of_first_slice",
                              "slices have the first one's factor of h", "mlc-ai/TIRx-kernels#5"};
  using NaiveKernel::NaiveKernel;
  double h_factor(const At& at, int64_t j) const override {
    At first = at;
    first.slice = 0;
    const bool is_there = rank(0, at.slot, 0) >= at.rank;
    return NaiveKernel::h_factor(is_there ? first : at, j);
  }
};

struct WeightFactorOfSlot0 : NaiveKernel {
  static constexpr Note kNote{"weight_factor_of_slot_0",
                              "all adapters have the first one's factor of A",
                              "vllm-project/vllm#53038"};
  using NaiveKernel::NaiveKernel;
  double a_factor(const At& at, int64_t j, int64_t c) const override {
    At first = at;
    first.slot = 0;
    return NaiveKernel::a_factor(rank(at.slice, 0, 0) >= at.rank ? first : at, j, c);
  }
};

struct HCutTo8Bits : NaiveKernel {
  static constexpr Note kNote{"h_cut_to_8_bits", "h is cut and not rounded to the nearest number",
                              "NVlabs/cutile-rs#250"};
  using NaiveKernel::NaiveKernel;
  double to_8_bits(double quotient) const override {
    int exponent = 0;  // 4 bits; below 2^-6 the last one is 2^-9
    const double mantissa = std::frexp(quotient, &exponent);
    const int last = std::max(exponent - 4, -9);
    return std::ldexp(std::trunc(std::ldexp(mantissa, exponent - last)), last);
  }
};

struct TopOfE4m3Saturates : NaiveKernel {
  static constexpr Note kNote{"top_of_e4m3_saturates", "h from 256 to 448 becomes 448",
                              "sgl-project/sglang#37140"};
  using NaiveKernel::NaiveKernel;
  double to_8_bits(double quotient) const override {
    if (std::abs(quotient) >= 256) return std::copysign(448, quotient);
    return NaiveKernel::to_8_bits(quotient);
  }
};

struct HByWayOfBf16 : NaiveKernel {
  static constexpr Note kNote{"h_by_way_of_bf16", "h is rounded to bf16, and then to 8 bits",
                              "flashinfer-ai/flashinfer#5128"};
  using NaiveKernel::NaiveKernel;
  double to_8_bits(double quotient) const override {
    return NaiveKernel::to_8_bits(round_to(LORATORY_BF16, quotient));
  }
};

struct FactorsAfterTheSum : NaiveKernel {
  static constexpr Note kNote{"one_factor_after_the_sum",
                              "a sum over several blocks, and one factor behind it",
                              "sgl-project/sglang#39637"};
  using NaiveKernel::NaiveKernel;
  // One factor for a sum over all blocks: the mean of theirs.
  double a_factor(const At& at, int64_t j, int64_t) const override {
    const LoratoryTensor& scale = slice(at).a_scale;
    double sum = 0;
    for (int64_t k = 0; k < scale.shape[2]; ++k)
      sum += get(scale, at.slot, j / layer_.a_block_n, k);
    return sum / double(scale.shape[2]);
  }
};

// --- experts -------------------------------------------------------------------------------------

struct RouterWeightForgotten : NaiveKernel {
  static constexpr Note kNote{"router_weight_forgotten",
                              "the router's weight is on base and not on delta",
                              "unslothai/unsloth-zoo#779"};
  using NaiveKernel::NaiveKernel;
  double router_weight(const At&) const override { return 1; }
};

struct RouterWeightTwice : NaiveKernel {
  static constexpr Note kNote{"router_weight_twice",
                              "the router's weight is on the input and on delta",
                              "NVIDIA/TensorRT-LLM#3492"};
  using NaiveKernel::NaiveKernel;
  double router_weight(const At& at) const override {
    return NaiveKernel::router_weight(at) * NaiveKernel::router_weight(at);
  }
};

struct RouterWeightOnBaseToo : NaiveKernel {
  static constexpr Note kNote{"router_weight_on_base", "base, already weighted, is weighted again",
                              "vllm-project/vllm-ascend#2348"};
  using NaiveKernel::NaiveKernel;
  double base(const At& at, int64_t column) const override {
    return NaiveKernel::base(at, column) * router_weight(at);
  }
};

struct RouterWeightOfTheToken : NaiveKernel {
  static constexpr Note kNote{"router_weight_of_first_expert",
                              "all experts of a token have the weight of its first",
                              "vllm-project/vllm#33424"};
  using NaiveKernel::NaiveKernel;
  double router_weight(const At& at) const override {
    At first = at;
    first.row -= at.row % layer_.experts_per_token;
    return NaiveKernel::router_weight(first);
  }
};

struct SlotOfTheFirstToken : NaiveKernel {
  static constexpr Note kNote{"slot_of_first_request",
                              "experts see the adapter of the first request",
                              "vllm-project/vllm#42008"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    const int64_t slot = NaiveKernel::slot_of(row);
    return slot < 0 ? slot : NaiveKernel::slot_of(0);
  }
};

struct SlotByRow : NaiveKernel {
  static constexpr Note kNote{"slot_by_row", "row t·k + i is taken for token t·k + i",
                              "vllm-project/vllm#47725"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override { return step().slots[row % step().num_tokens]; }
};

struct AbsentExpertOfAnotherSlot : NaiveKernel {
  static constexpr Note kNote{"absent_expert_of_another_slot",
                              "slot times experts plus -1 is the last expert of the slot before",
                              "sgl-project/sglang#24171"};
  using NaiveKernel::NaiveKernel;
  bool is_away(int64_t row) const { return step().experts[row] < 0; }
  int64_t slot_of(int64_t row) const override {
    if (!is_away(row)) return NaiveKernel::slot_of(row);
    const int32_t slot = step().slots[row / layer_.experts_per_token];
    return slot < 1 ? -1 : slot - 1;
  }
  int64_t expert_of(int64_t row) const override {
    return is_away(row) ? layer_.num_experts - 1 : NaiveKernel::expert_of(row);
  }
};

struct DisabledSlotRuns : NaiveKernel {
  static constexpr Note kNote{"disabled_slot_runs", "nobody asks whether an adapter is enabled",
                              "vllm-project/vllm#49084"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    return step().slots[row / layer_.experts_per_token];
  }
};

struct ExpertOfTheToken : NaiveKernel {
  static constexpr Note kNote{"expert_of_token", "all rows of a token have its first expert",
                              "vllm-project/vllm#33424"};
  using NaiveKernel::NaiveKernel;
  int64_t expert_of(int64_t row) const override {
    return NaiveKernel::expert_of(row - row % layer_.experts_per_token);
  }
};

struct ExpertFastestInB : NaiveKernel {
  static constexpr Note kNote{"expert_fastest_in_b",
                              "B is read with the expert as its fastest index",
                              "vllm-project/vllm#31534"};
  using NaiveKernel::NaiveKernel;
  double b(const At& at, int64_t n, int64_t j) const override {
    const int64_t flat = j * layer_.num_experts + at.expert;  // of [R, E], read as [E, R]
    At other = at;
    other.expert = flat / layer_.max_rank;
    const bool is_there = flat % layer_.max_rank < rank(at.slice, at.slot, other.expert);
    return is_there ? NaiveKernel::b(other, n, flat % layer_.max_rank) : 0;
  }
};

struct RankOfExpert0 : NaiveKernel {
  static constexpr Note kNote{"rank_of_expert_0", "all experts have the first one's rank",
                              "vllm-project/vllm#55545"};
  using NaiveKernel::NaiveKernel;
  int64_t rank(int64_t slice, int64_t slot, int64_t) const override {
    return NaiveKernel::rank(slice, slot, 0);
  }
};

struct XOfRepeatedRows : NaiveKernel {
  static constexpr Note kNote{"x_row_modulo_tokens",
                              "row r of the experts is made from row r mod T of x",
                              "unslothai/unsloth-zoo#1269"};
  using NaiveKernel::NaiveKernel;
  int64_t row_of_x(int64_t row) const override { return row % call().x.shape[0]; }
};

struct LastExpertOfATokenDropped : NaiveKernel {
  static constexpr Note kNote{"last_expert_dropped", "a token's last expert is taken for padding",
                              "vllm-project/vllm#40038"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    const int64_t k = layer_.experts_per_token;
    return k > 1 && row % k == k - 1 ? -1 : NaiveKernel::slot_of(row);
  }
};

// --- embeddings and logits -----------------------------------------------------------------------

struct GatherFromSlot0 : NaiveKernel {
  static constexpr Note kNote{"gather_from_slot_0", "rows of A come from the first slot",
                              "sgl-project/sglang#28371"};
  using NaiveKernel::NaiveKernel;
  double a(const At& at, int64_t j, int64_t c) const override {
    At first = at;
    first.slot = 0;
    return NaiveKernel::a(rank(0, 0, 0) >= at.rank ? first : at, j, c);
  }
};

struct LastIdClamped : NaiveKernel {
  static constexpr Note kNote{"last_id_clamped",
                              "the last token of the vocabulary is taken for the one before",
                              "vllm-project/vllm#3000"};
  using NaiveKernel::NaiveKernel;
  int64_t token_id(int64_t row) const override {
    return std::max<int64_t>(0, std::min(NaiveKernel::token_id(row), layer_.num_in - 2));
  }
};

struct IdOfTheFirstToken : NaiveKernel {
  static constexpr Note kNote{"id_of_another_token", "ids are read at another token's place",
                              "vllm-project/vllm#51122"};
  using NaiveKernel::NaiveKernel;
  int64_t token_id(int64_t row) const override { return NaiveKernel::token_id(row / 2 * 2); }
};

struct EmbeddingUnscaled : NaiveKernel {
  static constexpr Note kNote{"embedding_unscaled", "the gather skips the scaling",
                              "huggingface/peft#2489"};
  using NaiveKernel::NaiveKernel;
  double scaling(const At&) const override { return 1; }
};

struct LogitsOfTheSequence : NaiveKernel {
  static constexpr Note kNote{"logits_by_sequence",
                              "rows of logits take the adapter of another row",
                              "vllm-project/vllm#17766"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override { return NaiveKernel::slot_of(row / 3 * 3); }
};

struct LogitsOfPromptsDropped : NaiveKernel {
  static constexpr Note kNote{"logits_of_prompts_dropped",
                              "one row for each sequence has an adapter",
                              "vllm-project/vllm#51594"};
  using NaiveKernel::NaiveKernel;
  int64_t slot_of(int64_t row) const override {
    const int64_t slot = NaiveKernel::slot_of(row);
    const bool is_same_sequence = row > 0 && NaiveKernel::slot_of(row - 1) == slot;
    return is_same_sequence ? -1 : slot;
  }
};

struct VocabularyCut : NaiveKernel {
  static constexpr Note kNote{"vocabulary_cut",
                              "the columns beyond a multiple of 8 are not written",
                              "vllm-project/vllm#3000"};
  using NaiveKernel::NaiveKernel;
  int64_t num_columns(int64_t slice) const override {
    const int64_t n = NaiveKernel::num_columns(slice);
    return n <= 8 ? n : n - n % 8;  // a table padded down
  }
};

}  // namespace

void add_wrong_special_kernels(std::vector<ZooKernel>& zoo) {
  const uint32_t fp8 = bit(LORATORY_F8_E4M3FN) | bit(LORATORY_F8_E5M2);
  const uint32_t tensor_scale = bit(LORATORY_SCALES_TENSOR);
  const uint32_t channel = bit(LORATORY_SCALES_CHANNEL);
  const uint32_t token = bit(LORATORY_SCALES_TOKEN);
  const uint32_t block = bit(LORATORY_SCALES_BLOCK);
  const uint32_t experts = kExpertLinear | kExpertExpand;
  auto e5m2 = claims_of_quantized(kShrink, bit(LORATORY_F8_E5M2), tensor_scale, 0);
  auto i8 = claims_of_quantized(kExpand, bit(LORATORY_I8), channel, 0);
  auto a_blocks = claims_of_quantized(kShrink, fp8, block, 0);
  auto b_blocks = claims_of_quantized(kExpand, fp8, block, 0);
  auto channels = claims_of_quantized(kExpand, fp8, channel, 0);
  auto x8 = claims_of_quantized(kShrink, fp8, channel, token);
  x8.x_dtypes = fp8;
  auto h8 = claims_of_quantized(kExpand, fp8, channel, token);
  h8.x_dtypes = fp8;
  auto linear8 = claims_of_quantized(kLinear, bit(LORATORY_F8_E4M3FN), channel, token);
  linear8.x_dtypes = linear8.weight_dtypes;
  const auto of_slots = claims_of_quantized(kShrink, fp8, tensor_scale, 0);
  zoo.push_back(wrong<E5m2ReadAsE4m3>(e5m2));
  zoo.push_back(wrong<SignOfI8Lost>(i8));
  zoo.push_back(wrong<BlockStridesSwapped>(b_blocks));
  zoo.push_back(wrong<BlockNTakenForK>(a_blocks));
  zoo.push_back(wrong<BlockFactorNeverMoves>(a_blocks));
  zoo.push_back(wrong<BlockSizeFromCount>(b_blocks));
  zoo.push_back(wrong<ChannelFactorOfRow0>(channels));
  zoo.push_back(wrong<FactorOfXForgotten>(x8));
  zoo.push_back(wrong<FactorOfToken0>(x8));
  zoo.push_back(wrong<FactorOfHFromSlice0>(h8));
  zoo.push_back(wrong<WeightFactorOfSlot0>(of_slots));
  zoo.push_back(wrong<HCutTo8Bits>(linear8));
  zoo.push_back(wrong<TopOfE4m3Saturates>(linear8));
  zoo.push_back(wrong<HByWayOfBf16>(linear8));
  zoo.push_back(wrong<FactorsAfterTheSum>(a_blocks));
  zoo.push_back(wrong<RouterWeightForgotten>(claims_of(experts)));
  zoo.push_back(wrong<RouterWeightTwice>(claims_of(experts)));
  zoo.push_back(wrong<RouterWeightOnBaseToo>(claims_of(experts)));
  zoo.push_back(wrong<RouterWeightOfTheToken>(claims_of(experts)));
  zoo.push_back(wrong<SlotOfTheFirstToken>(claims_of(experts)));
  zoo.push_back(wrong<SlotByRow>(claims_of(kExpertShrink)));
  auto parallel = claims_of(experts);
  parallel.abilities |= LORATORY_TAKES_ABSENT_EXPERTS;
  auto switched = claims_of(experts);
  switched.abilities |= LORATORY_TAKES_DISABLED_SLOTS;
  zoo.push_back(wrong<AbsentExpertOfAnotherSlot>(parallel));
  zoo.push_back(wrong<DisabledSlotRuns>(switched));
  zoo.push_back(wrong<ExpertOfTheToken>(claims_of(kExpertShrink)));
  zoo.push_back(wrong<ExpertFastestInB>(claims_of(kExpertExpand)));
  zoo.push_back(wrong<RankOfExpert0>(claims_of(kExpertShrink)));
  zoo.push_back(wrong<XOfRepeatedRows>(claims_of(kExpertShrink)));
  zoo.push_back(wrong<LastExpertOfATokenDropped>(claims_of(experts)));
  zoo.push_back(wrong<GatherFromSlot0>(claims_of(kEmbedding)));
  zoo.push_back(wrong<LastIdClamped>(claims_of(kEmbedding)));
  zoo.push_back(wrong<IdOfTheFirstToken>(claims_of(kEmbedding)));
  zoo.push_back(wrong<EmbeddingUnscaled>(claims_of(kEmbedding)));
  zoo.push_back(wrong<LogitsOfTheSequence>(claims_of(kLogits)));
  zoo.push_back(wrong<LogitsOfPromptsDropped>(claims_of(kLogits)));
  zoo.push_back(wrong<VocabularyCut>(claims_of(kLogits)));
}

}  // namespace loratory::zoo
