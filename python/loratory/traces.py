"""Request traces: every format that docs/traces.md lists, plain or compressed."""
from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loratory import _loratory

__all__ = ["Trace", "TraceAdapter", "TraceSummary", "TokenStatistics", "read_trace", "parse_trace",
           "trace_formats"]


@dataclass(frozen=True)
class TraceAdapter:
    """rank 0: the trace does not say."""

    name: str
    rank: int


@dataclass(frozen=True)
class TokenStatistics:
    """Tokens of the requests. Percentiles interpolate as numpy's default does."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: int
    max: int


@dataclass(frozen=True)
class TraceSummary:
    """What `loratory trace info` prints."""

    num_requests: int
    span_s: float
    """last arrival - first arrival"""
    request_rate: float
    """requests / s; 0 when all arrive at once"""
    gap_mean_s: float
    gap_cv: float
    prompt: TokenStatistics
    output: TokenStatistics
    num_base_requests: int
    num_blocks: int
    num_distinct_blocks: int
    num_sessions: int
    num_cancelled: int


class Trace:
    """A trace in memory; one entry of each column for each request, in order of arrival."""

    def __init__(self, trace: _loratory.Trace) -> None:
        self._trace = trace
        columns = trace.columns()
        self.arrival_ns: npt.NDArray[np.int64] = columns["arrival_ns"]
        """since the start of the trace"""
        self.cancel_ns: npt.NDArray[np.int64] = columns["cancel_ns"]
        """when the client gives up; -1: never"""
        self.prompt_tokens: npt.NDArray[np.uint32] = columns["prompt_tokens"]
        self.output_tokens: npt.NDArray[np.uint32] = columns["output_tokens"]
        self.adapter: npt.NDArray[np.int64] = columns["adapter"]
        """index into adapters; -1: the base model"""
        self.priority: npt.NDArray[np.int32] = columns["priority"]
        """lower runs first"""
        self.session: npt.NDArray[np.uint32] = columns["session"]
        """0: none"""
        self.adapters: list[TraceAdapter] = [TraceAdapter(*entry) for entry in trace.adapters()]
        self.source: str = trace.source
        self.format: str = trace.format
        self.checksum: str = trace.checksum
        self.notes: list[str] = trace.notes
        """sentences: what the source left open and the reader assumed"""
        self.num_rows_skipped: int = trace.num_rows_skipped
        self.block_tokens: int = trace.block_tokens
        """tokens of a block of blocks_of(); 0: there are none"""

    def __len__(self) -> int:
        return len(self._trace)

    def id_of(self, index: int) -> str:
        """What the source calls a request; empty: nothing."""
        ids = self._trace.ids()
        return ids[index] if ids else ""

    def blocks_of(self, index: int) -> npt.NDArray[np.uint64]:
        """Prefix blocks of a request; none if the trace has no block ids."""
        return self._trace.blocks_of(range(len(self))[index])

    def tokens_of(self, index: int) -> npt.NDArray[np.int32]:
        """Prompt tokens of a request; none if the trace has no token ids."""
        return self._trace.tokens_of(range(len(self))[index])

    def summary(self) -> TraceSummary:
        """Lengths, rate, prefix blocks. O(n log n)."""
        fields = self._trace.summary()
        return TraceSummary(**{**fields, "prompt": TokenStatistics(**fields["prompt"]),
                               "output": TokenStatistics(**fields["output"])})

    def save(self, path: str | os.PathLike[str]) -> None:
        """As native JSON lines, compressed if the name ends in .gz or .zst. The file appears whole
        or not at all."""
        self._trace.save(os.fspath(path))


def trace_formats() -> list[str]:
    """Names that `format` takes."""
    return _loratory.trace_format_names().split(", ")


def read_trace(path: str | os.PathLike[str], *, format: str = "auto", skip_bad_rows: bool = False,
               block_tokens: int = 0, adapter_from_model: bool = False,
               base_models: list[str] | None = None, default_prompt_tokens: int = 0,
               default_output_tokens: int = 0) -> Trace:
    """A trace of any known format; plain, gzip or zstd by content.

    format                 "auto" tells it from the content
    skip_bad_rows          count bad rows (num_rows_skipped) instead of raising
    block_tokens           tokens of a block where the rows do not say; 0: the format's own number
    adapter_from_model     the model of a row is its adapter, unless it is one of base_models
    default_*_tokens       lengths of requests of a log that does not tell them

    Errors: InputError "file:line:column: rule; remedy". Takes Ctrl-C while it reads.
    """
    return Trace(_loratory.read_trace(os.fspath(path), format, skip_bad_rows, block_tokens,
                                      adapter_from_model, base_models or [], default_prompt_tokens,
                                      default_output_tokens))


def parse_trace(text: str | bytes, *, name: str = "trace", format: str = "auto",
                skip_bad_rows: bool = False) -> Trace:
    """The same from text; `name` stands for the file in messages."""
    data = text.encode() if isinstance(text, str) else text
    return Trace(_loratory.parse_trace(data, name, format, skip_bad_rows))
