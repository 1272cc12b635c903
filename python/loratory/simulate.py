"""`loratory replay` and `loratory size` from Python."""
from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from loratory.errors import ProgramError
from loratory.program import run_program
from loratory.results import Results, load_results
from loratory.traces import Trace

__all__ = ["replay", "size"]

FlagValue: TypeAlias = "str | int | float | bool | os.PathLike[str] | Iterable[str | int] | None"


def _words(flags: Mapping[str, FlagValue]) -> list[str]:
    words = []
    for name, value in flags.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, Iterable) and not isinstance(value, str):
            words.append(f"{flag}={','.join(str(item) for item in value)}")
        else:
            words.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def _run(command: str, trace: Trace | str | os.PathLike[str],
         flags: Mapping[str, FlagValue]) -> Results:
    with tempfile.TemporaryDirectory(prefix="loratory-") as folder:
        if isinstance(trace, Trace):
            path = os.path.join(folder, "trace.jsonl")
            trace.save(path)
        else:
            path = os.fspath(trace)
        out = pathlib.Path(folder) / "results.json"
        done = run_program([command, f"--trace={path}", f"--json={out}", *_words(flags)])
        if not out.exists():
            raise ProgramError(done.stderr.strip().removeprefix("loratory: "))
        return dataclasses.replace(load_results(out), table=done.stdout)


def replay(trace: Trace | str | os.PathLike[str], *, max_loras: int | None = None,
           model: str | os.PathLike[str] | None = None, gpu: str | None = None,
           engine: str | None = None, seed: int | None = None, **flags: FlagValue) -> Results:
    """Replays a trace on one configuration, in virtual time.

    trace      a file of any format that read_trace takes, or a Trace
    max_loras  slots on the GPU
    model      a name of model_names(), or the path of a config.json
    gpu        "H100-80", "L40S", ...
    engine     "vllm", "sglang", "ideal", ...: whose defaults, memory and loads
    flags      any other flag of `loratory replay --help`, with underscores: rate_scale=2,
               stepwise=True, pin=["a", "b"], profile=path. None and False: left out

    Times are ms of virtual time (docs/results.md). Runs as a process of its own: other threads go
    on, and Ctrl-C ends it. Errors: InputError with the program's line; ProgramError.
    """
    return _run("replay", trace, {"max_loras": max_loras, "model": model, "gpu": gpu,
                                  "engine": engine, "seed": seed, **flags})


def size(trace: Trace | str | os.PathLike[str], *, max_loras: str | Iterable[int] | None = None,
         model: str | os.PathLike[str] | None = None, gpu: str | None = None,
         engine: str | None = None, slo_ttft_ms: float | None = None,
         slo_tpot_ms: float | None = None, seed: int | None = None, **flags: FlagValue) -> Results:
    """Replays a trace on many configurations and recommends max_loras and max_cpu_loras.

    max_loras    sizes to try: [8, 16, 32], "4:64:4", or None for what the trace suggests
    slo_ttft_ms  limits at slo_percentile (99 unless given); the others as in replay()

    `result.best` is the recommended configuration, None if none meets the SLO; `result.reason` says
    why; print(result.table) is what the program prints.
    """
    return _run("size", trace, {"max_loras": max_loras, "model": model, "gpu": gpu,
                                "engine": engine, "slo_ttft_ms": slo_ttft_ms,
                                "slo_tpot_ms": slo_tpot_ms, "seed": seed, **flags})
