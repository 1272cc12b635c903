"""results.json (schema loratory.results/2) as dataclasses. docs/results.md says what each field
means; the fields of a configuration are the program's own list."""
from __future__ import annotations

import json
import os
import pathlib
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from loratory.config_result import ConfigFields
from loratory.errors import InputError

__all__ = ["Results", "ConfigResult", "Workload", "Slo", "Cause", "Limit", "InputFile", "Setting",
           "Remedy", "Replica", "Yardsticks", "MissRatioCurve", "load_results"]

SCHEMA = "loratory.results/2"


@dataclass(frozen=True)
class InputFile:
    """A file that was read."""

    path: str
    checksum: str
    format: str


@dataclass(frozen=True)
class Setting:
    """A flag; given False: a default."""

    name: str
    value: str
    given: bool


@dataclass(frozen=True)
class Workload:
    """The workload and the system."""

    num_requests: int
    duration_s: float
    request_rate: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    num_adapters: int
    adapters: str
    model: str
    gpu: str
    cost_model: str
    kv_block_tokens: int
    num_rows_skipped: int
    popularity: list[float]
    reuse_distance: list[tuple[float, float]]
    engine: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Slo:
    """Limits in ms, None: no limit; judged at a percentile."""

    ttft_ms: float | None
    tpot_ms: float | None
    percentile: float


@dataclass(frozen=True)
class Cause:
    """Why a configuration misses the SLO."""

    kind: str
    measure: str
    miss: float | None
    miss_without: float | None
    miss_of_base: float | None
    figure: float | None


@dataclass(frozen=True)
class Limit(Cause):
    """What stops the recommended configuration, at rate_factor times the traffic."""

    rate_factor: float | None


@dataclass(frozen=True)
class Replica:
    """One engine of a fleet."""

    num_requests: int
    num_adapters: int
    slo_attainment: float
    p50_ttft_ms: float
    slo_ttft_ms: float
    slo_tpot_ms: float
    adapter_gpu_hit_ratio: float
    adapter_copies: int
    prefix_hit_ratio_tokens: float
    num_preemptions: int
    max_waiting: int
    gpu_busy_s: float
    event_log_hash: str


@dataclass(frozen=True)
class ConfigResult(ConfigFields):
    """One configuration, replayed."""

    cause: Cause | None
    vllm: dict[str, Any]
    """the same as `vllm bench serve --save-result` would have written it"""
    replicas: list[Replica] = field(default_factory=list)
    ttft_cdf_ms: list[float] = field(default_factory=list)
    """101 quantiles, 0 % to 100 %; of those that a report draws"""
    tpot_cdf_ms: list[float] = field(default_factory=list)
    goodput_min: float | None = None
    """of a sweep: the band over seeds"""
    goodput_max: float | None = None
    ttft_min_ms: float | None = None
    ttft_max_ms: float | None = None


@dataclass(frozen=True)
class Remedy:
    """What would meet the SLO if nothing that was tried does."""

    flags: str
    feasible: bool
    meets_slo: bool
    max_loras: int
    verdict: str


@dataclass(frozen=True)
class Yardsticks:
    """The base model alone, and all adapters resident for free."""

    base: ConfigResult
    resident: ConfigResult


@dataclass(frozen=True)
class MissRatioCurve:
    """Miss ratio of adapter slots by their number."""

    policy: str
    sizes: list[int]
    miss_ratios: list[float]


@dataclass(frozen=True)
class Results:
    """What `replay` and `size` found; of `replay` only the fields down to configs say anything."""

    schema: str
    command: str
    commit: str
    version: str
    seed: int
    inputs: list[InputFile]
    settings: list[Setting]
    workload: Workload
    slo: Slo
    configs: list[ConfigResult]
    num_seeds: int = 1
    recommended: int | None = None
    """index into configs; None: none meets the SLO"""
    choice: str = ""
    smallest: int | None = None
    reason: str = ""
    next_limit: str = ""
    limit: Limit | None = None
    yardsticks: Yardsticks | None = None
    remedies: list[Remedy] = field(default_factory=list)
    fleets: list[ConfigResult] = field(default_factory=list)
    miss_ratio_curves: list[MissRatioCurve] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """fields of a newer program that this package does not know, by their path"""
    table: str = field(default="", repr=False, compare=False)
    """what the program printed for people; empty if the results were loaded from a file"""

    @property
    def best(self) -> ConfigResult | None:
        """The recommended configuration; of a replay its only one."""
        if self.recommended is not None:
            return self.configs[self.recommended]
        return self.configs[0] if not self.choice and self.configs else None


T = TypeVar("T")


class _Reader:
    """Makes dataclasses of JSON objects, and keeps what they have no field for."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.extra: dict[str, Any] = {}

    def make(self, cls: type[T], value: dict[str, Any], path: str, **parsed: Any) -> T:
        names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        for key in value.keys() - names:
            self.extra[f"{path}{key}"] = value[key]
        known = {key: value[key] for key in value.keys() & names}
        try:
            return cls(**{**known, **parsed})
        except TypeError as error:
            raise InputError(f"{self.file}: {path or 'document'}: {error}") from error

    def config(self, value: dict[str, Any], path: str) -> ConfigResult:
        cause = value["cause"]
        replicas = [self.make(Replica, r, f"{path}replicas.") for r in value.get("replicas", [])]
        return self.make(ConfigResult, value, path, replicas=replicas,
                         cause=cause and self.make(Cause, cause, f"{path}cause."))

    def configs(self, value: dict[str, Any], key: str) -> list[ConfigResult]:
        return [self.config(config, f"{key}.") for config in value.get(key, [])]

    def list_of(self, cls: type[T], value: dict[str, Any], key: str) -> list[T]:
        return [self.make(cls, item, f"{key}.") for item in value.get(key, [])]

    def document(self, value: dict[str, Any]) -> Results:
        yardsticks, limit = value.get("yardsticks"), value.get("limit")
        workload = dict(value["workload"])
        workload["reuse_distance"] = [(d, share) for d, share in workload["reuse_distance"]]
        return self.make(
            Results, value, "", extra=self.extra,
            inputs=self.list_of(InputFile, value, "inputs"),
            settings=self.list_of(Setting, value, "settings"),
            workload=self.make(Workload, workload, "workload."),
            slo=self.make(Slo, value["slo"], "slo."), configs=self.configs(value, "configs"),
            limit=limit and self.make(Limit, limit, "limit."),
            yardsticks=yardsticks and Yardsticks(
                self.config(yardsticks["base"], "yardsticks.base."),
                self.config(yardsticks["resident"], "yardsticks.resident.")),
            remedies=self.list_of(Remedy, value, "remedies"), fleets=self.configs(value, "fleets"),
            miss_ratio_curves=self.list_of(MissRatioCurve, value, "miss_ratio_curves"))


def load_results(path: str | os.PathLike[str]) -> Results:
    """Reads a results.json. Errors: InputError naming the file: not JSON, another schema, a field
    that is missing."""
    name = os.fspath(path)
    try:
        value = json.loads(pathlib.Path(name).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read as JSON: {error}") from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{name}: schema {schema!r} is not {SCHEMA}; "
                         "use the loratory that wrote it")
    try:
        return _Reader(name).document(value)
    except KeyError as error:
        raise InputError(f"{name}: {error} is missing") from error
