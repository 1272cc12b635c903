"""The arrays that tell a kernel which tokens belong to which slot, as engines build them.

Every array is int32 but scalings (float32). Errors: InputError: a slot that does not exist, fewer
padded tokens than tokens, ranks and scalings of different lengths.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loratory import _loratory
from loratory.arrays import Floats, Ints, floats, ints

__all__ = ["RequestTokens", "SampledRequest", "BatchLayout", "ChunkedLayout", "RequestLayout",
           "SamplerMapping", "token_slots", "batch_layout", "chunked_layout", "request_layout",
           "sampler_mapping"]

Int32Array = npt.NDArray[np.int32]


class RequestTokens(NamedTuple):
    """The tokens that one request has in a step."""

    slot: int
    num_tokens: int


class SampledRequest(NamedTuple):
    """A request as the sampler sees it: `samples`, its last token is followed by a sampled one;
    `prompt_logprobs`, every token needs logits."""

    slot: int
    num_tokens: int
    samples: bool = False
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class BatchLayout:
    """vLLM's LoRAKernelMeta. T tokens with padding, L slots."""

    token_lora_mapping: Int32Array
    """[T] slot of each token, -1 for base and padding"""
    token_indices_sorted: Int32Array
    """[T] stable sort by slot, base tokens first"""
    active_lora_ids: Int32Array
    """[L+1] the distinct slots ascending, then -1; -1 stands first too if there are base tokens"""
    num_tokens_per_lora: Int32Array
    """[L+1] of each active id, then 0"""
    lora_token_start_loc: Int32Array
    """[L+2] into token_indices_sorted, then 0"""
    no_lora: bool
    """every token is a base token"""
    num_active: int
    """extent of the kernel's grid over ids: L+1"""


@dataclass(frozen=True)
class ChunkedLayout:
    """SGLang's chunked SGMV backend: tokens sorted by slot, cut into segments."""

    permutation: Int32Array
    """[T] stable sort of the tokens by slot"""
    weight_indices: Int32Array
    """[num_segments] slot of the segment"""
    seg_indptr: Int32Array
    """[num_segments + 1] into permutation"""
    lora_ranks: Int32Array
    """[L]"""
    scalings: npt.NDArray[np.float32]
    """[L]"""


@dataclass(frozen=True)
class RequestLayout:
    """TokenSpeed's: one segment a request; for decode steps the requests grouped by slot."""

    seg_lens: Int32Array
    seg_indptr: Int32Array
    weight_indices: Int32Array
    max_len: int
    sort_order: Int32Array
    group_slots: Int32Array
    group_starts: Int32Array
    group_sizes: Int32Array
    num_groups: int
    max_group_size: int
    single_lora_slot: int
    single_lora_rank: int
    multi_lora_start_slot: int
    multi_lora_count: int
    multi_lora_segment_len: int
    multi_lora_rank: int


@dataclass(frozen=True)
class SamplerMapping:
    """One entry for each row of logits: the slot of lm_head's adapter, and the token whose hidden
    state is read."""

    row_slots: Int32Array
    row_tokens: Int32Array


def token_slots(requests: Sequence[RequestTokens | tuple[int, int]]) -> Int32Array:
    """[T] slots of a flattened batch: the tokens of the requests in their order."""
    return _loratory.token_slots([(int(slot), int(n)) for slot, n in requests])


def batch_layout(slots: Ints, max_loras: int, *,
                 num_padded_tokens: int | None = None) -> BatchLayout:
    """Of slots [T]; tokens up to num_padded_tokens are base tokens."""
    listed = ints(slots, "slots")
    padded = len(listed) if num_padded_tokens is None else num_padded_tokens
    return BatchLayout(**_loratory.batch_layout(listed, max_loras, padded))


def chunked_layout(requests: Sequence[RequestTokens | tuple[int, int]], segment_size: int,
                   ranks: Ints, scalings: Floats) -> ChunkedLayout:
    """Segments of at most segment_size tokens. The base model owns a slot of rank 0 here: slots are
    never -1."""
    pairs = [(int(slot), int(n)) for slot, n in requests]
    return ChunkedLayout(**_loratory.chunked_layout(pairs, segment_size, ints(ranks, "ranks"),
                                                    floats(scalings, "scalings")))


def request_layout(requests: Sequence[RequestTokens | tuple[int, int]], ranks: Ints,
                   scalings: Floats) -> RequestLayout:
    """One segment a request; ranks and scalings [L]."""
    pairs = [(int(slot), int(n)) for slot, n in requests]
    return RequestLayout(**_loratory.request_layout(pairs, ints(ranks, "ranks"),
                                                    floats(scalings, "scalings")))


def sampler_mapping(requests: Sequence[SampledRequest]) -> SamplerMapping:
    """Which rows of logits a step has."""
    rows = [(r.slot, r.num_tokens, r.samples, r.prompt_logprobs) for r in requests]
    return SamplerMapping(**_loratory.sampler_mapping(rows))
