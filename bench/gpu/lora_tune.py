#!/usr/bin/env python3
"""Measures every variant of the LoRA kernels on this GPU and writes the table that
gpu/kernels/dispatch_table.hpp reads.

Cells    stage, slices, K, rank, tokens: what a captured graph keeps. Each is measured for several
         layers' N and for 1, 4 and as many adapters as tokens (at most 128), which it does not
         keep.
Checked  before it is timed, each variant against float64, alone and chained in a graph, and for
         the bits of the first that was right. One that is wrong, refused or crashes is named, makes
         the exit status 1 and is chosen for nothing of its stage.
Timed    as lora_bench.py does: a graph of chained operations, cold.
Chosen   for a cell, the variant whose worst ratio to the fastest is the smallest (to a hundredth:
         more does not repeat), of equal ones that of the smallest geometric mean.

Results go to --out after every variant: lora_tune.json; dispatch_table.json when it ends. Rows that
are there already are kept, so a run that was cut short goes on. Cells come in the table's order,
and only whole ones enter it: what is missing is left to the rules. An entry reaches down to the
next smaller one, so --rows should pick whole stages, layers or ranks, not some numbers of tokens.

  bench/gpu/lora_tune.py --lib build/cuda/bench/gpu/libloratory_c.so --out tuned --budget-s 1200
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import sys
import time
import traceback

import torch

import lora_bench
import ours
import rows

RANKS = (8, 16, 32, 64, 128, 256)
TOKENS = (1, 8, 32, 64, 128, 256, 512, 2048, 8192)
DECODE_TOKENS = 256  # above: runs of tokens, as prefill has them
MOST_ADAPTERS = 128
LAYERS = [  # (K, N_i) of the 8B and 70B models
    (4096, (4096,)), (14336, (4096,)), (4096, (14336, 14336)), (4096, (4096, 1024, 1024)),
    (8192, (8192,)), (28672, (8192,)), (8192, (28672, 28672)), (8192, (8192, 1024, 1024))]
STAGES = {"pair": "linear", "shrink": "shrink", "expand": "expand"}  # in the table's order


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lib", type=pathlib.Path, help="libloratory_c.so")
    add("--out", type=pathlib.Path, default=pathlib.Path("out/lora_tune"))
    add("--rows", default="", help="a regular expression over the names")
    add("--list", action="store_true", help="print the names of the rows and stop")
    add("--replays", type=int, default=60)
    add("--budget-s", type=float, default=1e9, help="start nothing new after so many seconds")
    add("--commit", default="", help="of the library, where git is not at hand")
    add("--deadline", type=float, help=argparse.SUPPRESS)
    add("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.lib and not options.list:
        parser.exit(2, "--lib: is missing; build the target loratory_c\n")
    return lora_bench.checked(parser, options, ["rows"])


def cell_of(row):
    """As the entries of a table are ordered."""
    num_in = 0 if row.op == "expand" else row.num_in
    return (list(STAGES).index(row.op), len(row.widths), num_in, row.rank, row.tokens)


def grid():
    """name: row, a cell after the other. A shrink knows no N and an expand no K: once each."""
    found = {}
    for op in STAGES:
        for num_in, widths in LAYERS:
            for rank in RANKS:
                for n in TOKENS:
                    for u in sorted({1, min(4, n), min(MOST_ADAPTERS, n)}):
                        kind = "D" if n <= DECODE_TOKENS else "P"
                        row = rows.Row(kind, op, num_in, widths, rank, n, u)
                        found.setdefault(row.name, row)
    return dict(sorted(found.items(), key=lambda item: cell_of(item[1])))


def chosen_rows(options):
    return [row for name, row in grid().items() if re.search(options.rows, name)]


# --- measuring: a child, which a variant may take down with it --------------------------------


def keep_references(problem):
    """Float64 results are the same for all variants of a row."""
    compute, known = problem.reference, {}

    def reference(slots, copy=0):
        if copy not in known:
            known[copy] = compute(slots, copy)
        return known[copy].clone()

    problem.reference = reference


def bits(tensor):
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def measured(problem, library, variant, first, timer, replays):
    """The variant's errors and time, or an exception. `first`: [(name, output)] of the first
    that was right; filled by it."""
    op = ours.prepare(library, problem, variant)
    try:
        result = lora_bench.checked_errors(problem, op, timer)
        if not first:
            first.append((str(variant), op.output().clone()))
        elif not torch.equal(bits(op.output()), bits(first[0][1])):
            raise ArithmeticError(f"wrong: other bits than {first[0][0]}")
        ops = 64 if problem.row.is_decode else 24
        replays = max(10, replays * ops // max(ops, problem.copies))  # a graph of all copies
        return result | timer.us(op.launch, problem.copies, ops, replays)
    finally:
        op.close()


def rules_choice(problem, library):
    op = ours.prepare(library, problem)
    op.close()
    return op.config


def tune(row, library, timer, state, options):
    """Fills the row's results; only then is it finished."""
    entry = state.data["rows"].setdefault(row.name, {"row": dataclasses.asdict(row)})
    # Of a run that ended inside the row only crashes stay: the others are needed for their bits.
    old = entry.get("variants", {})
    results = entry["variants"] = {k: v for k, v in old.items() if v.get("crashed")}
    problem, first = rows.Problem(row, options.device), []
    keep_references(problem)
    entry["rules"] = rules_choice(problem, library)
    for variant in library.variants(row.op):
        if not variant.aligned or str(variant) in results:
            continue
        state.data["current"] = [row.name, str(variant)]
        state.save()
        cut = {k: getattr(variant, k)
               for k in ("rank_tiles", "token_tiles", "cluster", "stages", "launches")}
        try:
            results[str(variant)] = {"variant": cut} | measured(
                problem, library, variant, first, timer, options.replays)
        except Exception as error:
            results[str(variant)] = {"variant": cut, "error": f"{type(error).__name__}: {error}"}
            print(f"--- {variant}, {row.name}\n{traceback.format_exc()}", file=sys.stderr,
                  flush=True)
            if lora_bench.context_is_lost():
                results[str(variant)]["crashed"] = True
                state.save()
                sys.exit(lora_bench.LOST)
    entry["finished"] = True
    state.data["current"] = None
    state.save()


def is_finished(state, row):
    return state.data["rows"].get(row.name, {}).get("finished", False)


def run_child(options):
    import timing

    state, timer = lora_bench.State(options.out / "lora_tune.json"), timing.Timer()
    library = ours.Library(str(options.lib.resolve()))
    timing.spin(0.5)
    for row in chosen_rows(options):
        if is_finished(state, row):
            continue
        if time.time() > options.deadline:
            print("the time budget is spent", file=sys.stderr)
            return
        tune(row, library, timer, state, options)
        print(f"{row.name}: {us_of_best(state.data['rows'][row.name])}", file=sys.stderr,
              flush=True)
        torch.cuda.empty_cache()


def us_of_best(entry):
    times = sorted((v["median_us"], name) for name, v in entry["variants"].items()
                   if "median_us" in v)
    return f"{times[0][0]:.2f} us, {times[0][1]}" if times else "no variant is right"


# --- choosing ---------------------------------------------------------------------------------


def wrong_variants(data):
    """{(op, variant): [(row, why)]}"""
    found = {}
    for name, entry in data["rows"].items():
        for variant, result in entry.get("variants", {}).items():
            if "error" in result:
                found.setdefault((entry["row"]["op"], variant), []).append((name, result["error"]))
    return found


def row_of(entry):
    return rows.Row(**(entry["row"] | {"widths": tuple(entry["row"]["widths"])}))


def cells_of(data, wanted):
    """{cell: its rows' results}, without cells of which a wanted row is missing."""
    found, missing = {}, {cell_of(row) for row in wanted
                          if not data["rows"].get(row.name, {}).get("finished")}
    for entry in data["rows"].values():
        cell = cell_of(row_of(entry))
        if cell not in missing and entry.get("finished"):
            found.setdefault(cell, []).append(entry)
    return dict(sorted(found.items()))


def choose(entries, is_wrong):
    """The name of the variant for the rows of a cell; None: none was right in all of them."""
    times = [{name: v["median_us"] for name, v in entry["variants"].items()
              if "median_us" in v and not is_wrong(name)} for entry in entries]
    common = [name for name in times[0] if all(name in one for one in times)]

    def ratios(name):
        return [one[name] / min(one.values()) for one in times]

    def score(name):
        return round(max(ratios(name)), 2), statistics.geometric_mean(ratios(name))

    return min(common, key=score, default=None)


def gains(entries, name):
    """Time of the rules' choice over that of `name`, of the rows where both were right."""
    return [entry["variants"][entry["rules"]]["median_us"] / entry["variants"][name]["median_us"]
            for entry in entries if "median_us" in entry["variants"].get(entry["rules"], {})]


def entry_of(cell, variant):
    stage, slices, num_in, rank, tokens = cell
    return {"stage": list(STAGES.values())[stage], "num_slices": slices,
            **({"num_in": num_in} if num_in else {}), "max_rank": rank, "num_tokens": tokens,
            "variant": variant}


def merged(entries):
    """Without entries whose shapes the next would give the same variant."""
    def but_tokens(entry):
        return {key: value for key, value in entry.items() if key != "num_tokens"}

    return [entry for entry, after in zip(entries, entries[1:] + [None])
            if after is None or but_tokens(entry) != but_tokens(after)]


def table(data, wanted):
    """(the entries of the dispatch table, the lines of what was gained)"""
    wrong, entries = wrong_variants(data), []
    head = f"{'stage':<7}{'slices':>7}{'K':>7}{'rank':>6}{'tokens':>8}  "
    lines = [head + f"{'rules':<18}{'chosen':<18}{'gain':>6}{'least':>7}{'most':>7}"]
    for cell, results in cells_of(data, wanted).items():
        op = list(STAGES)[cell[0]]
        name = choose(results, lambda variant, op=op: (op, variant) in wrong)
        place = f"{STAGES[op]:<7}{cell[1]:>7}{cell[2] or '-':>7}{cell[3]:>6}{cell[4]:>8}  "
        place += f"{results[0]['rules']:<18}{name or '-':<18}"
        gain = gains(results, name) if name else []
        if gain:
            place += f"{statistics.geometric_mean(gain):6.2f}{min(gain):7.2f}{max(gain):7.2f}"
        lines.append(place.rstrip())
        if name:
            entries.append(entry_of(cell, results[0]["variants"][name]["variant"]))
    return merged(entries), lines


def write(path, data, entries):
    about = data["about"]
    gpu, driver, _ = (about["gpu"].split(", ") + ["", "", ""])[:3]
    whole = {"gpu": gpu, "driver": driver, "commit": about["commit"], "date": about["date"],
             "command": about["command"], "entries": entries, "times": data["rows"]}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(whole, indent=1) + "\n")
    temporary.replace(path)


def finish(state, options):
    """Writes and prints the table; the exit status."""
    entries, lines = table(state.data, chosen_rows(options))
    write(options.out / "dispatch_table.json", state.data, entries)
    print("\n".join(lines))
    wrong = wrong_variants(state.data)
    for (op, variant), places in wrong.items():
        print(f"EXCLUDED {STAGES[op]} {variant}: {places[0][1]} ({places[0][0]}; "
              f"{len(places)} rows)")
    return 1 if wrong else 0


def run_parent(options):
    deadline = time.time() + options.budget_s
    options.out.mkdir(parents=True, exist_ok=True)
    state = lora_bench.State(options.out / "lora_tune.json")
    options.peers_dir = None
    state.data["about"] = lora_bench.about(options)
    state.save()
    for _ in range(20):  # as many variants may crash
        os.utime(state.path)
        ended = lora_bench.watch(lora_bench.child(options, "measure", deadline), state.path)
        state = lora_bench.State(state.path)
        if ended == 0:
            return finish(state, options)
        if ended != lora_bench.LOST:
            if not state.data.get("current"):
                print(f"the measuring child ended with {ended} before it began", file=sys.stderr)
                break
            row_name, variant = state.data["current"]
            state.data["rows"][row_name]["variants"][variant] = {
                "error": f"the process ended with {ended}", "crashed": True}
            state.save()
    finish(state, options)
    return 1


def main():
    options = parse()
    options.device = "cuda"
    if options.list:
        print("\n".join(row.name for row in chosen_rows(options)))
    elif options.child:
        run_child(options)
    else:
        sys.exit(run_parent(options))


if __name__ == "__main__":
    main()
