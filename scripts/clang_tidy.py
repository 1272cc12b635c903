#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy has the rules) over ROOMS.

The sources of a folder are one translation unit, because most of the time goes into the standard
library's headers; where they do not compile together, each half is. A unit that passed is not
checked again until something that it includes changes. The exit status is 77 (CTest: skipped)
where there is no clang-tidy.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("reference", "scheduler_sim", "check", "gpu", "cli")
NEEDS_CUDA = re.compile(r"'cuda_runtime(_api)?\.h' file not found")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def folders():
    """{folder: its sources} below ROOMS. A CUDA build's sources need a CUDA compiler's headers."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.cpp")):
            if "cuda_runtime" not in path.read_text():
                found.setdefault(path.parent, []).append(path)
    return found


def flags(build):
    """What every unit is compiled with: the definitions and include folders of the whole build."""
    kept = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not entry["file"].endswith((".cpp", ".cxx")):
            continue  # an assembler has the system's own headers as a flag
        words = shlex.split(entry["command"])
        for i, word in enumerate(words):
            flag = [word, words[i + 1]] if word == "-isystem" else [word]
            if word.startswith(("-D", "-I", "-isystem")) and flag not in kept:
                kept.append(flag)
    return ["-std=c++20", "-Wno-everything"] + [word for flag in kept for word in flag]


def closure(sources):
    """The sources and every file of the project that they include, directly or not."""
    seen, todo = set(), list(sources)
    while todo:
        path = todo.pop()
        if path not in seen and path.is_file():
            seen.add(path)
            todo += [ROOT / name for name in INCLUDE.findall(path.read_text())]
    return sorted(seen)


def digest(sources, settings):
    text = hashlib.sha256(settings.encode())
    for path in closure(sources):
        text.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return text.hexdigest()


def tidy(sources, options):
    """(exit status, output) of clang-tidy over the sources as one unit."""
    unit = options.work / ("_".join(sources[0].relative_to(ROOT).parts) + f"_{len(sources)}.cpp")
    unit.write_text("".join(f'#include "{path}"\n' for path in sources))
    done = subprocess.run([options.clang_tidy, "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
                           str(unit), "--", *options.flags], capture_output=True, text=True)
    return done.returncode, done.stdout


def check(sources, options):
    """What clang-tidy has to say about the sources; nothing if they passed before."""
    passed = options.work / digest(sources, options.settings)
    if passed.exists():
        return ""
    status, output = tidy(sources, options)
    if "[clang-diagnostic-error]" in output and len(sources) > 1:
        half = len(sources) // 2
        return check(sources[:half], options) + check(sources[half:], options)
    if NEEDS_CUDA.search(output):  # and this machine has none: what follows is said of half a class
        return ""
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
    options.work = options.build / "clang_tidy"
    options.work.mkdir(parents=True, exist_ok=True)
    rules = (ROOT / ".clang-tidy").read_text()
    options.flags = flags(options.build)
    options.settings = rules + pathlib.Path(__file__).read_text() + " ".join(options.flags)
    units = [sources for folder, sources in folders().items()
             if not options.folder or str(folder.relative_to(ROOT)) in options.folder]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        findings = "".join(pool.map(lambda sources: check(sources, options), units))
    print(findings or f"clang-tidy: {len(units)} folders are clean")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
