#!/usr/bin/env python3
"""Compiles every header of the rooms as if it were included alone.

What a header includes may be included before it: that changes nothing for it. So a translation unit
has several headers, each of which the next one includes, and half as many are compiled. A unit that
passed is not compiled again until something that it includes changes.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

from sources import ROOMS, ROOT, Build, digest, needs_cuda

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def included(header, known):
    """The names of all that it includes, directly or not, and its own; `known` keeps them."""
    if header not in known:
        path = ROOT / header
        names = INCLUDE.findall(path.read_text()) if path.is_file() else []
        known[header] = {header}.union(*(included(name, known) for name in names))
    return known[header]


def chains(headers):
    """The headers in lists, in which each one includes all that the one before it includes."""
    known, found = {}, []
    for header in sorted(headers, key=lambda header: (len(included(header, known)), header)):
        fits = [chain for chain in found if chain[-1] in included(header, known)]
        if fits:
            max(fits, key=lambda chain: len(included(chain[-1], known))).append(header)
        else:
            found.append([header])
    return found


def headers_of(room, build):
    """Those that need CUDA's headers only where there are such."""
    return [str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.hpp")
            if build.cuda_headers or not needs_cuda(path)]


def check(chain, command, work):
    """What the compiler has to say; nothing if they passed before."""
    passed = work / digest([ROOT / header for header in chain], " ".join(command))
    if passed.exists():
        return ""
    text = "".join(f'#include "{header}"\n' for header in chain)
    done = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], input=text,
                          capture_output=True, text=True)
    if done.returncode == 0:
        passed.touch()
        return ""
    return done.stderr or f"{chain[-1]}: {command[0]} ended with {done.returncode}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    build = Build(options.build)
    work = build.folder / "lone_headers"
    work.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(check, chain, [options.compiler, *build.flags(room)], work)
                   for room in ROOMS for chain in chains(headers_of(room, build))]
    findings = "".join(task.result() for task in running)
    print(findings or f"headers: all compile alone, in {len(running)} units")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
