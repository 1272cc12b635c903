#!/usr/bin/env python3
"""What each CUDA kernel may use: writes tests/tidy/kernel_budgets.txt.

    scripts/kernel_budgets.py           write the file
    scripts/kernel_budgets.py --check   fail if a kernel uses more, spills, lost its HMMA, or waits
                                        more often for fragments. Compiles nothing where compiler
                                        and sources are, byte for byte, those of the file
    scripts/kernel_budgets.py --arch sm_80   what the kernels use elsewhere; writes nothing

Compiles every .cu of gpu/, for sm_90a unless told otherwise. No kernel may have a stack frame or
spill: local memory is DRAM traffic that no profile of ours would explain. No kernel may use more
registers than its line says: an occupancy lost by accident is found here and not in a benchmark. A
kernel that multiplied matrices on the tensor cores goes on doing so: its machine code has HMMA or
HGMMA. Turns are how often HMMA follows LDSM, which loads its fragments from shared memory: a kernel
with more of them waits for each fragment, because ptxas moved its loads behind the products of
others.

Registers and turns depend on the compiler: another nvcc than the file's is judged by the other
rules alone. Without nvcc (on PATH or in /usr/local/cuda/bin) the exit status is 77: skipped.
Standard library only; c++filt, where there is one, makes the names readable.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile

from sources import ROOT, digest

BUDGETS = ROOT / "tests" / "tidy" / "kernel_budgets.txt"
SKIPPED = 77
# As in gpu/CMakeLists.txt.
FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "-O3"]
# The low 12 bits of an instruction (16 bytes each since Volta).
HMMA, LDSM = 0x23C, 0x83B
MATRIX = {HMMA: "HMMA", 0x9F0: "HGMMA"}

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FUNCTION = re.compile(r"Function properties for (\w+)")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def find_nvcc():
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    return shutil.which("nvcc", path=path)


def version_of(nvcc):
    """("13.0", all that it says of itself)."""
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"release (\S+),", text).group(1), text


def kernels():
    return sorted((ROOT / "gpu").rglob("*.cu"))


def readable(names):
    """{mangled name: name without namespace and arguments}."""
    plain = list(names)
    if shutil.which("c++filt"):
        plain = subprocess.run(["c++filt"], input="\n".join(names), check=True,
                               capture_output=True, text=True).stdout.splitlines()
    short = [re.sub(r"\([^()]*\)$|^void |loratory::gpu::", "", name) for name in plain]
    return dict(zip(names, short))


def number_of_turns(codes):
    kinds = [code & 0xFFF for code in codes if code & 0xFFF in (LDSM, HMMA)]
    return sum(pair == (LDSM, HMMA) for pair in zip(kinds, kinds[1:]))


def machine_code(cubin):
    """{kernel: ("HMMA", "HGMMA" or "-", turns)}, from the sections .text.<kernel> of an ELF."""
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<II4Q", cubin, table + i * size) for i in range(count)]
    found = {}
    for name, _, _, _, offset, num_bytes in headers:
        start = headers[names][4] + name
        label = cubin[start:cubin.index(b"\0", start)].decode()
        if label.startswith(".text."):
            codes = struct.unpack_from(f"<{num_bytes // 8}Q", cubin, offset)[::2]
            kinds = {MATRIX[code & 0xFFF] for code in codes if code & 0xFFF in MATRIX}
            found[label[len(".text."):]] = ("+".join(sorted(kinds)) or "-", number_of_turns(codes))
    return found


def usage_of(nvcc, arch, source, folder):
    """({kernel: (registers, matrix instructions, turns)}, [what is in local memory]) of a file."""
    cubin = pathlib.Path(folder) / f"{source.stem}.cubin"
    run = subprocess.run([nvcc, *FLAGS, f"-I{ROOT}", f"-arch={arch}", "-cubin", "-Xptxas=-v", "-o",
                          cubin, source], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{source.relative_to(ROOT)}: does not compile\n{run.stderr}")
    registers, local, entry, function = {}, [], None, None
    for line in run.stderr.splitlines():
        if match := ENTRY.search(line):
            entry = match.group(1)
        elif match := FUNCTION.search(line):
            function = match.group(1)
        elif match := MEMORY.search(line):
            if any(int(n) > 0 for n in match.groups()):
                local.append(f"{readable([function])[function]}: {match.group()}")
        elif match := REGISTERS.search(line):
            registers[entry] = int(match.group(1))
    code = machine_code(cubin.read_bytes())
    return {name: (used, *code[name]) for name, used in registers.items()}, local


def measure(nvcc, arch, jobs):
    usage, local = {}, []
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for used, spilled in pool.map(lambda s: usage_of(nvcc, arch, s, folder), kernels()):
            usage |= used
            local += spilled
    names = readable(list(usage))
    return {names[name]: figures for name, figures in usage.items()}, local


def rows_of(usage):
    return "".join(f"{registers:3} {matrix:4} {turns:3} {name}\n"
                   for name, (registers, matrix, turns) in sorted(usage.items()))


def made_from(compiler, rows):
    """Of what decides the machine code, and of the rows: who edits one of them has to measure."""
    return digest(kernels(), f"{compiler}{FLAGS}{rows}")


def page(version, made_from, rows):
    lines = ["# Registers a thread, matrix instructions, turns, kernel; sm_90a. Not edited by hand:",
             "# scripts/kernel_budgets.py writes it, --check (a test) holds the kernels to it.",
             "# Config: weights, y, LoraOp (0 linear, 1 shrink, 2 expand, 3 gated_expand),",
             "# LoraVariant{rank_tiles, token_tiles, cluster, stages, aligned, launches, through_memory,",
             "# warps}.",
             f"nvcc {version}",
             f"made from {made_from}"]
    return "\n".join(lines) + "\n" + rows


def read_page():
    """(nvcc's version, digest, {kernel: (registers, matrix instructions, turns)})."""
    lines = [line for line in BUDGETS.read_text().splitlines() if not line.startswith("#")]
    rows = [line.split(maxsplit=3) for line in lines[2:]]
    budgets = {name: (int(registers), matrix, int(turns))
               for registers, matrix, turns, name in rows}
    return lines[0].split()[-1], lines[1].split()[-1], budgets


def violations(version, usage):
    budget_version, _, budgets = read_page()
    if version != budget_version:
        print(f"kernel_budgets: nvcc {version}, the budgets are of {budget_version}: registers and "
              "turns are not compared")
    for name, (registers, matrix, turns) in usage.items():
        if name not in budgets:
            yield f"{name}: has no budget"
            continue
        allowed, wanted, most_turns = budgets[name]
        if version == budget_version and registers > allowed:
            yield f"{name}: uses {registers} registers, its budget is {allowed}"
        if version == budget_version and turns > most_turns:
            yield f"{name}: waits for fragments {turns} times, its budget is {most_turns}"
        if matrix != wanted:
            yield f"{name}: has {matrix} in its machine code, its budget says {wanted}"
    yield from (f"{name}: is gone" for name in budgets if name not in usage)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--arch", help="compile for this one: print, compare and write nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time")
    args = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        print("kernel_budgets: skipped, no nvcc on PATH or in /usr/local/cuda/bin")
        return SKIPPED
    version, compiler = version_of(nvcc)
    if args.check:
        _, recorded, budgets = read_page()
        if recorded == made_from(compiler, rows_of(budgets)):
            print(f"kernel_budgets: {len(budgets)} kernels, measured from these sources")
            return 0
    usage, wrong = measure(nvcc, args.arch or "sm_90a", args.jobs)
    if args.arch:
        print(rows_of(usage) + "\n".join(wrong))
        return 0
    if args.check:
        wrong += violations(version, usage)
    else:
        rows = rows_of(usage)
        BUDGETS.write_text(page(version, "none" if wrong else made_from(compiler, rows), rows))
    if wrong:
        print("\n".join(wrong))
        print("kernel_budgets: if this is meant, run scripts/kernel_budgets.py and defend the diff"
              if args.check else "kernel_budgets: written, but there must be no local memory")
        return 1
    print(f"kernel_budgets: {len(usage)} kernels, no spills")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
