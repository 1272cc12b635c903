#!/usr/bin/env python3
"""Times lora_linear, lora_shrink and lora_expand against the kernels of other engines on one GPU,
in one run.

How      one CUDA graph of many operations chained in one stream, replayed >= 200 times; the median
         time of an operation. Warm: the same weights each time. Cold: each operation reads another
         copy, > 192 MB in rotation, as a model of many layers does. x, h and y stay in L2.
Checked  each implementation against float64 before it is timed, alone and four chained in a graph;
         one that is wrong is marked and not timed.
Floors   read node: one kernel that reads the same bytes and does nothing else. read pair: the same
         in two launches that overlap as ours do.
Peers    bench/peers/get_gpu_peers.sh DIR, then --peers-dir DIR. Needs torch and triton.
fp8      --rows fp8: weights of e4m3fn, ours beside ours on the same numbers in bf16 and beside
         vLLM's fp8 kernels.
Before   --before COMMIT=LIB: the same of another build of ours in the same run, and which rows are
         slower now.

Results go to --out after every figure: lora_bench.json, at the end lora_bench.md. What is there
already is kept and not measured again. A part that crashes, hangs or throws costs its own figure.

  bench/gpu/lora_bench.py --lib build/cuda/bench/gpu/libloratory_c.so --peers-dir /tmp/gpu-peers
"""

import argparse
import datetime
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback
import typing

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "peers")]

import torch  # noqa: E402

import report  # noqa: E402
import rows  # noqa: E402
from implementation import Unsupported  # noqa: E402

PEERS = ("gpu_vllm", "gpu_vllm_fp8", "gpu_sglang", "gpu_tokenspeed", "gpu_punica", "gpu_torch_bmm")
CHAIN = 4  # operations in the graph that is checked
HANGS_AFTER_S = 120
LOST = 3  # exit code: after an error that stays, a new process goes on


def _command(argv):
    """Without where it writes, and without folders: these are nobody else's paths."""
    kept = list(argv)
    while "--out" in kept:
        at = kept.index("--out")
        del kept[at:at + 2]
    return " ".join([kept[0]] + [re.sub(r"(^|=)[\w./+-]*/", r"\1", word) for word in kept[1:]])


def last_line(text):
    """Of a traceback: what is above it names files of this machine."""
    return text.strip().splitlines()[-1]


class Before(typing.NamedTuple):
    """Another build of ours."""
    commit: str
    lib: pathlib.Path


def checked(parser, options, patterns):
    """Bad input ends here: one line, exit 2."""
    for name in patterns:
        try:
            re.compile(getattr(options, name))
        except re.error as error:
            parser.exit(2, f"--{name}: {error}, needs a regular expression\n")
    if options.before:
        commit, _, path = options.before.partition("=")
        if not (commit and path and options.lib):
            parser.exit(2, f"--before: {options.before}: needs COMMIT=LIB, and --lib beside it\n")
        options.before = Before(commit, pathlib.Path(path))
    for name, path in [("--lib", options.lib), ("--before", options.before and options.before.lib)]:
        if path and not path.is_file():
            parser.exit(2, f"{name}: {path}: no such file; build the target loratory_c\n")
    if not options.list and getattr(options, "device", "cuda") == "cuda":
        if not torch.cuda.is_available():
            parser.exit(2, "no CUDA device: a GPU and its driver are needed\n")
    return options


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lib", type=pathlib.Path, help="libloratory_c.so")
    add("--before", metavar="COMMIT=LIB", help="libloratory_c.so of another commit")
    add("--peers-dir", type=pathlib.Path, help="made by bench/peers/get_gpu_peers.sh")
    add("--out", type=pathlib.Path, default=pathlib.Path("out/lora_bench"))
    add("--rows", default="", help="a regular expression over the names; searches the sweep too. "
        "Or a set: " + ", ".join(rows.SETS))
    add("--sweep", action="store_true", help="the rows beside the anchors too")
    add("--implementations", default="", help="a regular expression over their names")
    add("--list", action="store_true", help="print the names of the rows and stop")
    add("--quick", action="store_true", help="20 replays: to see that it runs, not to quote")
    add("--budget-s", type=float, default=1e9, help="start nothing new after so many seconds")
    add("--compile-jobs", type=int, default=min(12, os.cpu_count() or 1),
        help="processes that compile the Triton kernels ahead, 0: none")
    add("--commit", default="", help="of the library, where git is not at hand")
    add("--device", default="cuda", help="cpu: check alone, with TRITON_INTERPRET=1")
    add("--deadline", type=float, help=argparse.SUPPRESS)
    add("--child", default="", help=argparse.SUPPRESS)  # measure | compile:I/N
    return checked(parser, parser.parse_args(), ["rows", "implementations"])


def chosen_rows(options):
    if options.rows in rows.SETS:
        return rows.SETS[options.rows]
    if options.rows:
        return [row for name, row in rows.ROWS.items() if re.search(options.rows, name)]
    return rows.ANCHORS + (rows.SWEEP if options.sweep else [])


def chosen_implementations(options):
    """Those that can be loaded; why not, if not."""
    found, failed = [], {}
    if options.lib:
        import ours
        library = ours.Library(str(options.lib.resolve()))
        found += ours.implementations(library)
        if options.before:
            before = ours.Library(str(options.before.lib.resolve()))
            found += [i for i in ours.implementations(before, report.BEFORE) if i.kind == "ours"]
    for name in PEERS if options.peers_dir else ("gpu_torch_bmm",):
        try:
            peers_dir = options.peers_dir and options.peers_dir.resolve()
            found += importlib.import_module(name).implementations(peers_dir)
        except Exception:
            failed[name] = traceback.format_exc()
    return [i for i in found
            if i.kind == "floor" or re.search(options.implementations, i.name)], failed


class State:
    """The results so far, in a file that is whole at any time."""

    def __init__(self, path):
        self.path = path
        self.data = json.loads(self.path.read_text()) if self.path.exists() else {"rows": {}}

    def save(self):
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.data, indent=1) + "\n")
        temporary.replace(self.path)

    def row(self, row):
        return self.data["rows"].setdefault(
            row.name, {"kind": row.kind, "op": row.op, "min_bytes": row.min_bytes,
                       "weights": getattr(row, "weights", "bf16"), "implementations": {}}
            )["implementations"]


def checked_errors(problem, op, timer):
    """Checks the operation alone and chained; its errors, or an exception."""
    slots = op.slots or problem.slots
    problem.y.copy_(problem.y0)
    timer.eagerly(op.launch, 1)
    worst, rms = rows.errors(op.output(), problem.reference(slots))
    if not rms <= op.rms_limit:
        raise ArithmeticError(f"wrong: rms {rms:.2e} of the result, worst element {worst:.2e}")
    chain = min(CHAIN, problem.copies)
    timer.eagerly(op.launch, problem.copies)
    problem.y.copy_(problem.y0)
    torch.cuda.synchronize()
    timer.once(op.launch, chain)
    want = problem.reference(slots, chain - 1)
    if problem.row.op != "shrink":
        for copy in range(chain - 1):
            want += problem.reference(slots, copy) - problem.y0.double()
    chained = rows.errors(op.output(), want)[1]
    if not chained <= chain**0.5 * op.rms_limit:
        raise ArithmeticError(f"wrong when chained in a graph: rms {chained:.2e} of the result")
    return {"worst_error": worst, "rms_error": rms}


def measure(problem, implementation, timer, options):
    replays = 20 if options.quick else 200
    ops = 64 if problem.row.is_decode else 24
    op = implementation.prepare(problem)
    try:
        result = {"kind": implementation.kind, "config": op.config}
        if implementation.kind != "floor":
            result |= checked_errors(problem, op, timer)
        else:
            timer.eagerly(op.launch, problem.copies)
        result["warm"] = timer.us(op.launch, 1, ops, replays)
        result["cold"] = timer.us(op.launch, problem.copies, ops, replays)
        return result
    finally:
        op.close()


def attempt(problem, implementation, timer, options):
    try:
        return measure(problem, implementation, timer, options)
    except Unsupported as why:
        return {"kind": implementation.kind, "skipped": str(why)}
    except Exception:
        text = traceback.format_exc()
        print(f"--- {implementation.name}, {problem.row.name}\n{text}", file=sys.stderr, flush=True)
        return {"kind": implementation.kind, "error": last_line(text)}


def context_is_lost():
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def problem_of(row, timer, options, copies=None):
    problem = rows.Problem(row, options.device, copies)

    def quick_us(launch):
        few = min(problem.copies, 64)
        timer.eagerly(launch, few)
        return timer.us(launch, few, 32, 12)["median_us"]

    problem.quick_us = quick_us
    return problem


def run_measure(options):
    """The child that measures: rows and implementations that have no result yet."""
    import timing

    state, timer = State(options.out / "lora_bench.json"), timing.Timer()
    implementations, failed = chosen_implementations(options)
    state.data["not_loaded"] = {name: last_line(text) for name, text in failed.items()}
    for name, text in failed.items():
        print(f"--- {name} could not be loaded\n{text}", file=sys.stderr, flush=True)
    timing.spin(0.5)
    for row in chosen_rows(options):
        problem, results = None, state.row(row)
        for implementation in implementations:
            if implementation.name in results or row.weights not in implementation.weights:
                continue
            if time.time() > options.deadline:
                print("the time budget is spent", file=sys.stderr)
                return
            problem = problem or problem_of(row, timer, options)
            state.data["current"] = [row.name, implementation.name]
            state.save()
            results[implementation.name] = attempt(problem, implementation, timer, options)
            state.data["current"] = None
            state.save()
            if context_is_lost():
                sys.exit(LOST)
        if problem is not None:
            del problem
            torch.cuda.empty_cache()
            print(report.line(row.name, state.data["rows"][row.name]), file=sys.stderr, flush=True)


def run_compile(options):
    """A child that runs a share of everything once, for Triton's cache on disk."""
    import timing

    index, count = map(int, options.child.split(":")[1].split("/"))
    timer, at = timing.Timer(), 0
    implementations, _ = chosen_implementations(options)
    for row in chosen_rows(options):
        mine = []
        for implementation in implementations:
            at += 1
            if implementation.kind == "ours" or implementation.kind == "floor":
                continue
            if row.weights not in implementation.weights:
                continue
            if at % count == index:
                mine.append(implementation)
        problem = problem_of(row, timer, options, copies=2) if mine else None
        for implementation in mine:
            try:
                timer.eagerly(implementation.prepare(problem).launch, 1)
            except Exception:  # the child that measures shows it
                pass
            if time.time() > options.deadline:
                return


def child(options, what, deadline):
    return subprocess.Popen([sys.executable, *sys.argv, "--child", what,
                             "--deadline", str(deadline)])


def compile_ahead(options, deadline):
    begin = time.time()
    limit = min(deadline, begin + 150)
    jobs = [child(options, f"compile:{i}/{options.compile_jobs}", limit)
            for i in range(options.compile_jobs)]
    for job in jobs:
        try:
            job.wait(timeout=max(1, limit + 20 - time.time()))
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
    if jobs:
        print(f"compiled ahead in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)


def watch(job, path):
    """Waits for the child, not longer than it writes results; its exit code."""
    while True:
        try:
            return job.wait(timeout=5)
        except subprocess.TimeoutExpired:
            if time.time() - path.stat().st_mtime > HANGS_AFTER_S:
                job.kill()
                job.wait()
                return "no result for two minutes"


def about(options):
    def said(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True,
                                  cwd=HERE).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    import triton

    versions = options.peers_dir and options.peers_dir / "versions.json"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": _command(sys.argv), "torch": torch.__version__, "triton": triton.__version__,
        "commit": options.commit or said("git", "rev-parse", "--short", "HEAD"),
        "before": options.before.commit if options.before else "",
        "gpu": said("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm",
                    "--format=csv,noheader"),
        "peers": json.loads(versions.read_text()) if versions and versions.exists() else {},
    }


def run_parent(options):
    deadline = time.time() + options.budget_s
    options.out.mkdir(parents=True, exist_ok=True)
    state = State(options.out / "lora_bench.json")
    state.data["about"] = about(options)
    state.save()
    compile_ahead(options, deadline)
    print(report.header(), file=sys.stderr, flush=True)
    for _ in range(20):  # as many parts may crash
        os.utime(state.path)
        ended = watch(child(options, "measure", deadline), state.path)
        state = State(options.out / "lora_bench.json")
        if ended == 0 or time.time() > deadline:
            break
        if ended == LOST:
            continue
        if not state.data.get("current"):
            sys.exit(f"the measuring child ended with {ended} before it began")
        row_name, name = state.data["current"]
        state.data["rows"][row_name]["implementations"][name] = {
            "kind": "crashed", "error": f"the process ended with {ended}"}
        state.save()
    print("\n".join([report.header(), *(report.line(*item) for item in state.data["rows"].items()),
                     report.summary(state.data)]))
    (options.out / "lora_bench.md").write_text(report.markdown(state.data))


def run_check(options):
    """Without a GPU: the adapters of the peers, against float64."""
    implementations, failed = chosen_implementations(options)
    for name, text in failed.items():
        print(f"--- {name}\n{text}")
    for row in chosen_rows(options):
        for implementation in implementations:
            if row.weights not in implementation.weights:
                continue
            problem = rows.Problem(row, options.device, 2, torch.float16)
            try:
                op = implementation.prepare(problem)
                op.launch(1)
                worst, rms = rows.errors(op.output(), problem.reference(op.slots or row.slots, 1))
                print(f"{row.name}  {implementation.name}: rms {rms:.2e}, worst {worst:.2e}")
            except Exception as error:
                print(f"{row.name}  {implementation.name}: {error!r}")


def main():
    options = parse()
    if options.peers_dir:
        sys.path.append(str(options.peers_dir / "site"))
    if options.list:
        print("\n".join(row.name for row in chosen_rows(options)))
    elif options.device == "cpu":
        run_check(options)
    elif options.child.startswith("compile"):
        run_compile(options)
    elif options.child:
        run_measure(options)
    else:
        run_parent(options)


if __name__ == "__main__":
    main()
