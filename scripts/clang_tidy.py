#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy has the rules) over ROOMS.

Up to 50 sources of a room are one translation unit, because most of the time goes into the
standard library's headers; where they do not compile together, each half is. Give what is
file-local a name of its own in its room, and they do. A unit that passed is not checked again until
something that it includes changes. The exit status is 77 (CTest: skipped) where there is no
clang-tidy.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

from sources import ROOMS, ROOT, Build, digest, needs_cuda

MOST_SOURCES = 50  # of a unit


def in_units(sources):
    """The sources in equal parts."""
    count = -(-len(sources) // MOST_SOURCES)
    return [sources[len(sources) * i // count:len(sources) * (i + 1) // count]
            for i in range(count)]


def units_of(room, options):
    """Those that need CUDA's headers are units of their own, or none where there are no such."""
    kinds = {False: [], True: []}
    for path in sorted((ROOT / room).rglob("*.cpp")):
        if not options.folder or str(path.parent.relative_to(ROOT)) in options.folder:
            kinds[needs_cuda(path)].append(path)
    return in_units(kinds[False]) + (in_units(kinds[True]) if options.build.cuda_headers else [])


def tidy(sources, flags, options):
    """(exit status, output) of clang-tidy over the sources as one unit."""
    unit = options.work / ("_".join(sources[0].relative_to(ROOT).parts) + f"_{len(sources)}.cpp")
    unit.write_text("".join(f'#include "{path}"\n' for path in sources))
    done = subprocess.run([options.clang_tidy, "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
                           str(unit), "--", "-Wno-everything", *flags],
                          capture_output=True, text=True)
    return done.returncode, done.stdout


def check(sources, flags, options):
    """What clang-tidy has to say about the sources; nothing if they passed before."""
    passed = options.work / digest(sources, options.settings + " ".join(flags))
    if passed.exists():
        return ""
    status, output = tidy(sources, flags, options)
    if "[clang-diagnostic-error]" in output and len(sources) > 1:
        half = len(sources) // 2
        return check(sources[:half], flags, options) + check(sources[half:], flags, options)
    if status == 0:
        passed.touch()
        return ""
    return output or f"{sources[0]}: clang-tidy ended with {status}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("folder", nargs="*", help="only these, e.g. scheduler_sim/trace")
    options = parser.parse_args()
    options.clang_tidy = shutil.which("clang-tidy")
    if options.clang_tidy is None:
        print("skipped: no clang-tidy; apt-get install clang-tidy")
        return 77
    options.build = Build(options.build)
    options.work = options.build.folder / "clang_tidy"
    options.work.mkdir(parents=True, exist_ok=True)
    options.settings = (ROOT / ".clang-tidy").read_text() + pathlib.Path(__file__).read_text()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(check, sources, options.build.flags(room), options)
                   for room in ROOMS for sources in units_of(room, options)]
    findings = "".join(task.result() for task in running)
    print(findings or f"clang-tidy: {len(running)} units are clean")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
