#!/usr/bin/env python3
"""Times LoRA on experts against vLLM's fused_moe_lora and SGLang's on one GPU, in one run.

How      as lora_bench.py: a CUDA graph of many operations chained in one stream; the median time of
         an operation, cold, and warm unless --cold-only. Replays are as many as fit in --seconds, 7
         to 200; the 10th and 90th percentile are in the JSON file, their distance at the end.
Rows     three models; gate and up (w13) and down (w2), each a shrink and an expand; 1 to 4,096
         tokens of 1, 8 or 32 adapters of rank 16. A token's experts are drawn at random. They come
         in an order in which a run that is cut short has rows of every model.
Compiled before anything is timed: --compile-jobs processes share the sizes of the rows, because
         rows of one size and other adapters have mostly the same kernels.
Checked  each implementation against float64 before it is timed, alone and chained in a graph.
Grouping of the rows is left out for everybody, as it is a kernel of its own everywhere;
         loratory_with_groups has ours in it.
Peers    bench/peers/get_gpu_peers.sh DIR, then --peers-dir DIR. Needs torch and triton.

Results go to --out after every row: moe_bench.json, at the end moe_bench.md. What is there already
is kept and not measured again.

  bench/gpu/moe_bench.py --lib build/cuda/bench/gpu/libloratory_c.so --peers-dir /tmp/gpu-peers
"""

import argparse
import importlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "peers")]

import torch  # noqa: E402

import moe_rows  # noqa: E402
import rows as dense_rows  # noqa: E402
from lora_bench import State, about, last_line  # noqa: E402

PEERS = ("gpu_moe_vllm", "gpu_moe_sglang")
OURS = ("loratory", "loratory_with_groups", "loratory_best_variant")
SHIPPED = ("vllm", "sglang")


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lib", type=pathlib.Path, help="libloratory_c.so")
    add("--peers-dir", type=pathlib.Path, help="made by bench/peers/get_gpu_peers.sh")
    add("--out", type=pathlib.Path, default=pathlib.Path("out/moe_bench"))
    add("--rows", default="", help="a regular expression over their names")
    add("--implementations", default="", help="a regular expression over their names")
    add("--list", action="store_true", help="print the names of the rows and stop")
    add("--seconds", type=float, default=0.25, help="of each figure")
    add("--cold-only", action="store_true", help="no figures of weights in L2")
    add("--budget-s", type=float, default=1e9, help="start no row after so many seconds")
    add("--compile-jobs", type=int, default=min(16, os.cpu_count() or 1),
        help="processes that compile the Triton kernels ahead, 0: none")
    add("--compile-s", type=float, default=150, help="they end after so many seconds")
    add("--commit", default="", help="of the library, where git is not at hand")
    add("--child", default="", help=argparse.SUPPRESS)  # compile:I/N
    options = parser.parse_args()
    for name in ("rows", "implementations"):
        try:
            re.compile(getattr(options, name))
        except re.error as error:
            parser.exit(2, f"--{name}: {error}, needs a regular expression\n")
    if options.lib and not options.lib.is_file():
        parser.exit(2, f"--lib: {options.lib}: no such file; build the target loratory_c\n")
    if not options.list and not torch.cuda.is_available():
        parser.exit(2, "no CUDA device: a GPU and its driver are needed\n")
    return options


def chosen_rows(options):
    return [row for name, row in moe_rows.ROWS.items() if re.search(options.rows, name)]


def chosen_implementations(options):
    """Those that can be loaded; why not, if not."""
    found, failed = [], {}
    if options.lib:
        import ours_moe
        found += ours_moe.implementations(ours_moe.MoeLibrary(str(options.lib.resolve())))
    for name in PEERS if options.peers_dir else ():
        try:
            found += importlib.import_module(name).implementations(options.peers_dir.resolve())
        except Exception:
            failed[name] = traceback.format_exc()
            print(f"--- {name} could not be loaded\n{failed[name]}", file=sys.stderr, flush=True)
    return [i for i in found
            if i.kind == "floor" or re.search(options.implementations, i.name)], failed


def checked(problem, op, timer):
    """Errors alone, and of two operations chained in a graph."""
    limit = dense_rows.MAX_RELATIVE_RMS
    want, want_of_two = problem.wanted
    problem.y.copy_(problem.y0)
    timer.eagerly(op.launch, 1)
    worst, rms = dense_rows.errors(op.output(), want)
    if not rms <= limit:
        raise ArithmeticError(f"wrong: rms {rms:.2e} of the result, worst element {worst:.2e}")
    timer.eagerly(op.launch, 2)
    problem.y.copy_(problem.y0)
    torch.cuda.synchronize()
    timer.once(op.launch, 2)
    chained = dense_rows.errors(op.output(), want_of_two)[1]
    if not chained <= math.sqrt(2) * limit:
        raise ArithmeticError(f"wrong when chained in a graph: rms {chained:.2e} of the result")
    return {"worst_error": worst, "rms_error": rms}


def timed(op, timer, seconds, copies):
    quick = timer.us(op.launch, 1, 4, 4)["median_us"]
    ops = max(copies, min(64, int(4000 / quick) + 1))
    replays = int(min(200, max(7, seconds * 1e6 / (quick * ops))))
    return timer.us(op.launch, copies, ops, replays)


def measure(problem, implementation, timer, options):
    op = implementation.prepare(problem)
    try:
        result = {"kind": implementation.kind, "config": op.config}
        if implementation.kind != "floor":
            result |= checked(problem, op, timer)
        timer.eagerly(op.launch, problem.copies)
        if not options.cold_only:
            result["warm"] = timed(op, timer, options.seconds, 1)
        result["cold"] = timed(op, timer, options.seconds, problem.copies)
        return result
    finally:
        op.close()


def attempt(problem, implementation, timer, options):
    try:
        return measure(problem, implementation, timer, options)
    except Exception:
        text = traceback.format_exc()
        print(f"--- {implementation.name}, {problem.row.name}\n{text}", file=sys.stderr, flush=True)
        return {"kind": implementation.kind, "error": last_line(text)}


def problem_of(row, timer, copies=None):
    problem = moe_rows.Problem(row, "cuda", copies)

    def quick_us(launch):
        few = min(problem.copies, 16)
        timer.eagerly(launch, few)
        return timer.us(launch, few, 16, 12)["median_us"]

    problem.quick_us = quick_us
    return problem


def run_compile(options):
    """A share of the peers' kernels once, for Triton's cache on disk: some sizes of each part of a
    model, with all their adapters."""
    import timing

    index, count = map(int, options.child.split(":")[1].split("/"))
    timer = timing.Timer()
    implementations, _ = chosen_implementations(options)
    peers = [i for i in implementations if i.kind == "shipped"]
    chosen = chosen_rows(options)
    sizes = list(dict.fromkeys((row.model.name, row.part, row.tokens) for row in chosen))
    mine = sizes[index::count]
    for row in chosen:
        if (row.model.name, row.part, row.tokens) not in mine:
            continue
        problem = problem_of(row, timer, copies=1)
        for implementation in peers:
            try:
                timer.eagerly(implementation.prepare(problem).launch, 1)
            except Exception:  # the run shows it
                pass
        del problem
        torch.cuda.empty_cache()


def compile_ahead(options):
    begin = time.time()
    count = options.compile_jobs
    jobs = [subprocess.Popen([sys.executable, *sys.argv, "--child", f"compile:{i}/{count}"],
                             stderr=subprocess.DEVNULL) for i in range(count)]
    for job in jobs:
        try:
            job.wait(timeout=max(1, begin + options.compile_s - time.time()))
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
    if jobs:
        print(f"compiled ahead in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)


def us(results, name, how="cold"):
    return results.get(name, {}).get(how, {}).get("median_us")


def line(name, results):
    ours, floor = us(results, "loratory"), us(results, "read_node")
    text = f"{name:42}"
    for other in (*OURS, *SHIPPED, "read_node"):
        value = us(results, other)
        text += f" {'-' if value is None else f'{value:.1f}':>9}"
    peers = [us(results, peer) for peer in SHIPPED if us(results, peer)]
    if ours and peers:
        text += f"  x{min(peers) / ours:.2f}"
    if ours and floor:
        text += f"  {ours / floor:.2f} floors"
    return text


HEADER = (f"{'cold, us':42} {'ours':>9} {'+groups':>9} {'best':>9} {'vllm':>9} {'sglang':>9} "
          f"{'floor':>9}  fastest peer / ours, ours / floor")


def spread(data):
    """The 90th percentile over all figures of (p90 - p10) / median."""
    figures = [i["cold"] for row in data["rows"].values()
               for i in row["implementations"].values() if "cold" in i]
    ratios = sorted((f["p90_us"] - f["p10_us"]) / f["median_us"] for f in figures)
    return f"p10 to p90 within {100 * ratios[len(ratios) * 9 // 10]:.1f} % in 9 figures of 10"


def summary(data):
    """The geometric mean of fastest peer / ours, and the rows that a peer wins."""
    ratios, lost = [], []
    for name, row in data["rows"].items():
        results = row["implementations"]
        peers = [us(results, peer) for peer in SHIPPED if us(results, peer)]
        if not us(results, "loratory") or not peers:
            continue
        ratios.append(min(peers) / us(results, "loratory"))
        if ratios[-1] < 1:
            lost.append(name)
    if not ratios:
        return "no row was measured by a peer and by us"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (f"{len(ratios)} rows, fastest peer / ours: geometric mean {mean:.2f}, least "
            f"{min(ratios):.2f}; slower than a peer: {', '.join(lost) or 'none'}; {spread(data)}")


def run(options):
    import timing

    options.out.mkdir(parents=True, exist_ok=True)
    state = State(options.out / "moe_bench.json")
    state.data["about"] = about(options)
    state.save()
    deadline = time.time() + options.budget_s
    if options.peers_dir:
        compile_ahead(options)
    timer = timing.Timer()
    implementations, failed = chosen_implementations(options)
    state.data["not_loaded"] = {name: last_line(text) for name, text in failed.items()}
    timing.spin(0.5)
    print(HEADER, flush=True)
    for row in chosen_rows(options):
        if time.time() > deadline:
            print("the time budget is spent", file=sys.stderr)
            break
        results = state.row(row)
        missing = [i for i in implementations if i.name not in results]
        problem = problem_of(row, timer) if missing else None
        for implementation in missing:
            results[implementation.name] = attempt(problem, implementation, timer, options)
        del problem
        torch.cuda.empty_cache()
        state.save()
        print(line(row.name, results), flush=True)
    lines = [HEADER, *(line(name, row["implementations"])
                       for name, row in state.data["rows"].items()), "", summary(state.data)]
    print(lines[-1])
    (options.out / "moe_bench.md").write_text(
        "```\n" + "\n".join(lines) + "\n```\n\n" + json.dumps(state.data["about"], indent=1) + "\n")


def main():
    options = parse()
    if options.peers_dir:
        sys.path.append(str(options.peers_dir / "site"))
    if options.list:
        print("\n".join(row.name for row in chosen_rows(options)))
    elif options.child:
        run_compile(options)
    else:
        run(options)


if __name__ == "__main__":
    main()
