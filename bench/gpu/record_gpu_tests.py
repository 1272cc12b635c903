#!/usr/bin/env python3
"""Runs the properties of the kernels and of the engine on a GPU, then a reduced set of them under
the tools of compute-sanitizer, side by side, and writes what all said into one JSON file. The
engine's workloads wait for the GPU at every step, so several processes share them.

  bench/gpu/record_gpu_tests.py build/cuda/tests/gpu_test --commit "$(git rev-parse --short HEAD)"

Writes OUT/gpu-tests-<gpu>-<date>-<commit>.json, and beside it the logs of processes that run or
failed. Exit 0: everything passed; 1: something failed or took too long; 2: bad input. Standard
library only.
"""
import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

# The reduced set: few small cases of each property; no allocation of many GiB, no hundred repeats.
# Canaries are off so that each tensor ends where its allocation ends, and memcheck sees every step
# beyond it. A tool keeps memory for each launch in a graph, as long as its process lives: tests that
# tune plans are left out, a tuner has thousands, and the engine has a process of its own, for few
# cases.
REDUCED = {"LORATORY_GPU_WORK": "3000000", "LORATORY_GPU_CANARIES": "0"}
ENGINE = "EngineGpu."
TUNING = "BaseProductOnGpu.Plans*:ExpertsOnGpu.OneExpert*"
REDUCED_FILTER = f"-*Hundred*:LoraOffsets.*:{TUNING}:{ENGINE}*:EnginePrefill.*"
ENGINE_CASES = {"LORATORY_GPU_CASES": "1"}
# The slow tools leave out what has neither clusters nor copies that do not wait.
KERNELS_FILTER = ("*LoraBits*.*:LoraNumbers.*:ShrinkExpandOnGpu.*:LoraGraph.Overlapping*:"
                  "PagedAttention.*:ModelKernels.*:SamplerOnGpu.*:BaseProductOnGpu.*:"
                  "ExpertLoraOnGpu.*:ExpertsOnGpu.*:EmbeddingLora.*:LogitsLora.*:LoraBias.*:"
                  "QuantizedOnGpu.*:SiluMulLora*"
                  + REDUCED_FILTER)
# racecheck sees addresses and no values, and takes seconds for each launch: every kernel with a grid
# of few clusters, which each go through five segments. Not what counts thousands of draws.
RACES_FILTER = ("*P11P12OneCluster*:ShrinkExpandOnGpu.*:LoraGraph.Overlapping*:"
                "SegmentBuilderOnGpu.Takes*:GenericOnGpu.Strides*:PagedAttention.ATokens*:"
                "ModelKernels.*:SamplerOnGpu.*:ExpertsOnGpu.*:ExpertLoraOnGpu.GroupsAre*:"
                "EmbeddingLora.*:LoraBias.*:QuantizedOnGpu.P19Aligned*:QuantizedOnGpu.EveryVariant*:"
                "QuantizedOnGpu.GateAndUp*:SiluMulLora*"
                f"-{TUNING}:SamplerOnGpu.TokensCome*")


@dataclasses.dataclass(frozen=True)
class Tool:
    num_cases: int  # of a property
    num_shards: int  # processes that share its tests
    filter: str
    options: tuple = ()
    checks_engine: bool = True


# racecheck has threads of the CPU that check what the GPU did: two for each process, where as many
# as there are CPUs only wait for each other.
TOOLS = {
    "memcheck": Tool(4, 3, REDUCED_FILTER, ("--padding", "256")),
    "racecheck": Tool(1, 6, RACES_FILTER,
                      ("--racecheck-report", "analysis", "--racecheck-num-workers", "2"),
                      checks_engine=False),
    "initcheck": Tool(4, 3, KERNELS_FILTER),
    "synccheck": Tool(4, 3, KERNELS_FILTER),
}
SANITIZER_FAILED = 9
WORKLOADS = ENGINE + "EveryRequestHasTheBitsItHasAlone*"
NUM_FIXED = 200  # of their cases in the fixed set


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")  # one line
    parser.add_argument("binary", type=pathlib.Path, help="gpu_test")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("--commit", default=os.environ.get("LORATORY_COMMIT", "unknown"))
    parser.add_argument("--filter", default="*", help="gtest filter of the fixed set, or '' for none")
    parser.add_argument("--shares", type=int, default=8,
                        help="processes for the engine's tests, and as many for the others")
    parser.add_argument("--tools", default=",".join(TOOLS), help="of compute-sanitizer, or ''")
    parser.add_argument("--tool-filter", default="",
                        help="gtest filter for the tools, in place of each one's own")
    parser.add_argument("--tool-seconds", type=float, default=300, help="limit for each tool")
    parser.add_argument("--workloads", action="store_true",
                        help="also all random workloads of the engine: the fixed set has some")
    parser.add_argument("--soak", type=float, default=0, help="also run fresh seeds for so long")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="if it is not on PATH")
    args = parser.parse_args()
    args.tools = [tool for tool in args.tools.split(",") if tool]
    unknown = set(args.tools) - set(TOOLS)
    if unknown:
        parser.error(f"--tools: {', '.join(sorted(unknown))}: not one of {', '.join(TOOLS)}")
    if not args.binary.is_file():
        parser.error(f"{args.binary}: no such file; build the target gpu_test")
    args.sanitizer = shutil.which(args.sanitizer)
    if args.tools and args.sanitizer is None:
        parser.error("--sanitizer: no compute-sanitizer there, or on PATH; --tools \"\" runs none")
    args.binary = args.binary.resolve()  # a bare name would be looked for on PATH
    for option in ("filter", "tool_filter"):
        if getattr(args, option) and not names(args.binary, getattr(args, option)):
            parser.error(f"--{option.replace('_', '-')}: {getattr(args, option)}: no such test")
    return args


def gpu():
    fields = ["name", "driver_version", "memory.total", "clocks.max.sm", "compute_cap"]
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"nvidia-smi: {error}; a GPU is needed")
    return dict(zip(fields, (value.strip() for value in line.splitlines()[0].split(","))))


def run(command, log, seconds, **environment):
    """The exit code (None: it ran too long), its output, and how long it took."""
    begin = time.monotonic()
    env = os.environ | environment
    with open(log, "w") as out:
        # A group of its own: a tool's child would live on, and slow down the next one.
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env,
                                   start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    text = log.read_text(errors="replace")
    if code == 0:
        log.unlink()  # the record has what counts
    return code, text, round(time.monotonic() - begin, 1)


def records(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"test":')]


def names(binary, which):
    """Of the tests that the filter lets through."""
    command = [str(binary), "--gtest_list_tests", f"--gtest_filter={which}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    suite, found = "", []
    for line in text.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  "):
            found.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return found


def merged(parts):
    """What processes said that each had a share of the same tests."""
    out = {}
    for record in [record for part in parts for record in part["tests"]]:
        one = out.setdefault(record["test"], record)
        if one is record:
            continue
        for key in ("cases", "results"):
            one[key] += record[key]
        for key in ("worst_error_over_bound", "seconds"):
            one[key] = max(one[key], record[key])
        one["passed"] = one["passed"] and record["passed"]
        for kind, count in record["classes"].items():
            one["classes"][kind] = one["classes"].get(kind, 0) + count
    return {
        "passed": all(part["passed"] for part in parts),
        "exit_codes": [part["exit_code"] for part in parts],
        "seconds": max(part["seconds"] for part in parts),
        "repro": [line for part in parts for line in part["repro"]],
        "tests": list(out.values()),
    }


def workloads(args, stem):
    """Random workloads of the engine against each request alone, shared out."""
    count = 2 * args.shares
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        done = [pool.submit(tests, args, stem.with_suffix(f".workloads.{i}.log"), None, WORKLOADS,
                            LORATORY_GPU_SHARE=f"{i}/{count}") for i in range(count)]
    return merged([part.result() for part in done])


def fixed_set(args, stem):
    """All tests once, several processes side by side: the engine's tests share their cases, the
    others are dealt out in parts small enough that no process is long the last."""
    all_names = names(args.binary, args.filter)
    shared = [name for name in all_names if name.startswith(ENGINE)]
    others = [name for name in all_names if name not in shared]
    num_parts = 3 * args.shares
    dealt = [(others[i::num_parts], {}) for i in range(num_parts) if others[i:]]
    shares = []
    if shared or not dealt:
        shares = [(shared, {"LORATORY_GPU_SHARE": f"{i}/{args.shares}",
                            "LORATORY_GPU_CASES": str(NUM_FIXED)}) for i in range(args.shares)]
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2 * args.shares) as pool:
        def start(kind, work):
            return [pool.submit(tests, args, stem.with_suffix(f".{kind}.{i}.log"), None,
                                ":".join(some), **environment)
                    for i, (some, environment) in enumerate(work)]
        of_engine = start("engine", shares)  # the longest go first
        done = start("fixed", dealt) + of_engine
    found = merged([part.result() for part in done])
    return found | {"seconds": round(time.monotonic() - begin, 1)}


def tests(args, log, seconds, which, **environment):
    command = [str(args.binary), f"--gtest_filter={which}"]
    code, text, took = run(command, log, seconds, LORATORY_COMMIT=args.commit, **environment)
    return {
        "passed": code == 0 and "[  PASSED  ] 0 tests" not in text,
        "exit_code": code,
        "seconds": took,
        "repro": [line for line in text.splitlines() if line.startswith("REPRO:")],
        "tests": records(text),
    }


def shard(command, log, seconds, environment):
    """One process of a tool: how it ended, and what it said."""
    code, text, took = run(command, log, seconds, **environment)
    said = [line.strip("= ") for line in text.splitlines() if line.startswith("=========")]
    first = [line for line in said if re.match("Error|Warning|Invalid|Uninit|Barrier|Diverg", line)]
    return {
        "exit_code": code,
        "seconds": took,
        "summary": [line for line in said if "SUMMARY" in line],
        "reports": {line: first.count(line) for line in dict.fromkeys(first)},
        "num_tests": len(records(text)),
    }


def checked(args, name, stem):
    """A tool, its shards side by side."""
    tool = TOOLS[name]
    reduced = REDUCED | {"LORATORY_GPU_CASES": str(tool.num_cases)}
    command = [args.sanitizer, "--tool", name, "--error-exitcode", str(SANITIZER_FAILED)]
    command += [*tool.options, str(args.binary)]
    chosen = args.tool_filter or tool.filter
    # A tool fails where a process runs no test.
    num_shards = max(1, min(tool.num_shards, len(names(args.binary, chosen))))
    work = [(chosen, {"GTEST_TOTAL_SHARDS": str(num_shards), "GTEST_SHARD_INDEX": str(i)})
            for i in range(num_shards)]
    work += [(ENGINE + "*", ENGINE_CASES)] if tool.checks_engine else []

    def one(index):
        which, environment = work[index]
        return shard([*command, f"--gtest_filter={which}"],
                     stem.with_suffix(f".{name}.{index}.log"), args.tool_seconds,
                     reduced | environment)

    with concurrent.futures.ThreadPoolExecutor(len(work)) as pool:
        shards = list(pool.map(one, range(len(work))))
    return {
        "passed": (all(part["exit_code"] == 0 for part in shards)
                   and any(part["num_tests"] > 0 for part in shards)),
        "seconds": max(part["seconds"] for part in shards),
        "command": " ".join([*command[1:], f"--gtest_filter={chosen}"])
                      .replace(str(args.binary), args.binary.name),
        "environment": reduced,
        "num_tests": sum(part["num_tests"] for part in shards),
        "shards": shards,
    }


def main():
    args = arguments()
    device = gpu()
    date = datetime.datetime.now(datetime.timezone.utc)
    slug = re.sub(r"[^a-z0-9]+", "-", device["name"].lower().replace("nvidia", "")).strip("-")
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"gpu-tests-{slug}-{date:%Y-%m-%d}-{args.commit}"

    result = {"date": f"{date:%Y-%m-%dT%H:%MZ}", "commit": args.commit, "gpu": device}
    result |= {"cpus": os.cpu_count(), "sanitizer": {}}
    passed = True

    def keep(where, name, part):
        """After each part: a run that is cut short loses only what it was doing."""
        nonlocal passed
        where[name] = part
        stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
        print(f"{name}: {'passed' if part['passed'] else 'FAILED'}, {part.get('seconds', 0)} s",
              flush=True)
        passed = passed and part["passed"]

    if args.filter:
        keep(result, "fixed_set", fixed_set(args, stem))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        parts = {pool.submit(checked, args, tool, stem): tool for tool in args.tools}
        for part in concurrent.futures.as_completed(parts):
            keep(result["sanitizer"], parts[part], part.result())
    if args.workloads:
        keep(result, "workloads", workloads(args, stem))
    if args.soak > 0:
        log = stem.with_suffix(".soak.log")
        keep(result, "soak", tests(args, log, None, args.filter, LORATORY_GPU_SOAK_S=str(int(args.soak))))
    print(stem.with_suffix(".json"))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
