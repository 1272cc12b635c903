#!/usr/bin/env python3
"""How many small mistakes in the sources do the tests notice? Plants N seeded ones, one at a time.

A mutant is one changed operator, comparison, constant, condition, order of arguments, or one
statement left out. libclang finds them (Debian: python3-clang-14), the parser that clang-tidy has:
it knows what is code, which type an argument has and what a macro made; tree-sitter knows neither
types nor macros. Not planted, whatever became of it: in the wording of an error, in assertions and
other macros, in reserve(), and in what must be known when compiling (constexpr variables, arguments
of types). All mutants that compile behind a switch are in one build; it reads LORATORY_MUTANT when
the test starts, so that a mutant costs a run of tests and no compiler. The few others are built
alone. Everything happens in a copy of the tracked files below the build folder: the tree itself is
never touched.

Each test runs once by itself without a mutant, which says how long it takes and which mutants it
reaches. A mutant meets the tests of its room that reach it, the quick ones of a program together
and then the others, quickest first, until one fails. Killed: a test failed, crashed, or took four
times its CPU time and four seconds. The libraries are built with the standard library's assertions,
as an index behind the end is else luck. Mutants are judged in the order in which they were drawn,
so a run that --minutes cuts short is a smaller sample, and no worse one.

A survivor that no test can tell from the original is listed with the reason in
scripts/equivalent_mutants.txt. It counts as a survivor, and a second figure leaves it out. If a
listed one is killed, the list is wrong, and the run fails.

    scripts/mutate.py --count 300 --seed 1                 everything, one mutant in ten or so
    scripts/mutate.py --only scheduler_sim/residency       one room
    scripts/mutate.py --list                               what would be planted
    scripts/mutate.py --record bench/results/mutation.json the score as a file
"""
import argparse
import collections
import concurrent.futures
import datetime
import difflib
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

try:
    from clang import cindex
except ImportError:  # an interpreter that is not the system's
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        from clang import cindex
    except ImportError:
        sys.exit("mutate: needs libclang's Python bindings: apt-get install python3-clang-14")

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Room -> tests that cover it, below the build folder, likeliest killer first.
SCHEDULER_TESTS = (
    "tests/scheduler_test", "tests/residency_test", "tests/prefix_cache_test",
    "tests/simulator_test", "tests/engine_test", "tests/schedulers_test",
    "fuzz/simulator_properties", "fuzz/residency_properties", "fuzz/block_pool_properties",
    "fuzz/order_properties", "fuzz/scheduler_properties", "fuzz/fairness_properties")
TESTS = {
    "scheduler_sim/scheduler": SCHEDULER_TESTS,
    "scheduler_sim/residency": SCHEDULER_TESTS,
    "scheduler_sim/prefix_cache": SCHEDULER_TESTS,
    "reference/lora": (
        "fuzz/lora_order_properties", "fuzz/lora_properties", "fuzz/parallel_properties",
        "tests/lora_test", "fuzz/moe_properties", "fuzz/quantized_properties",
        "fuzz/model_properties", "tests/golden_test", "tests/statistics_test"),
    "gpu/layout": (
        "fuzz/segments_properties", "fuzz/work_list_properties", "tests/host_test",
        "fuzz/moe_properties"),
}
EQUIVALENTS = ROOT / "scripts" / "equivalent_mutants.txt"
SOURCES = (".cpp", ".hpp")  # .cu and .cuh need a GPU to run
ON_DEVICE = re.compile(r"/device_\w+\.hpp$")  # and so do these

OPERATORS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
    "==": ("!=",), "!=": ("==",), "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("/",),
    "&&": ("||",), "||": ("&&",), "&": ("|",), "|": ("&",), "<<": (">>",), ">>": ("<<",),
    "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",),
}
CALLS = {
    "lower_bound": "upper_bound", "upper_bound": "lower_bound", "front": "back", "back": "front",
    "min": "max", "max": "min", "any_of": "all_of", "all_of": "any_of",
    "floor": "ceil", "ceil": "floor", "begin": "end", "first": "last",
}
MEMORY_ALONE = ("reserve", "shrink_to_fit")
SWITCH = "mutant_switch.hpp"
SWITCH_TEXT = """#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <cstdlib>
#include <type_traits>
inline const int loratory_active_mutant =
    std::getenv("LORATORY_MUTANT") != nullptr ? std::atoi(std::getenv("LORATORY_MUTANT")) : 0;
inline constexpr int kLoratoryMutants = 1 << 14;
// A byte for each mutant: was it reached? In a file that outlives a crash, if there is one.
inline unsigned char* const loratory_reached = [] {
  const char* path = std::getenv("LORATORY_REACHED");
  const int file = path == nullptr ? -1 : open(path, O_RDWR);
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  return (unsigned char*)mmap(nullptr, kLoratoryMutants, PROT_READ | PROT_WRITE, flags, file, 0);
}();
inline bool loratory_reaches(int n) {
  loratory_reached[n] = 1;
  return loratory_active_mutant == n;
}
constexpr bool loratory_mutant(int n) {
  if (std::is_constant_evaluated()) return false;
  return loratory_reaches(n);
}
"""
MAX_MUTANTS = 1 << 14
MEMORY_KIB = 8 << 20  # a mutant that takes more is killed
K = cindex.CursorKind


class Mutant:
    """A range of a file and what stands there instead; a statement is left out, not replaced."""

    def __init__(self, path, start, end, text, kind, leaves_out=False):
        self.path, self.start, self.end, self.text = path, start, end, text
        self.kind, self.leaves_out = kind, leaves_out
        self.id, self.line, self.is_switched = 0, 0, True
        self.state, self.by, self.seconds = "", "", 0.0

    def key(self):
        return (self.path, self.start, self.end, self.kind, self.text)

    def where(self):
        return f"{self.path}:{self.line}"


# ---- finding ------------------------------------------------------------------------------------

def unwrap(cursor):
    """Below the casts and temporaries that the compiler put there."""
    while cursor.kind == K.UNEXPOSED_EXPR:
        inner = list(cursor.get_children())
        if len(inner) != 1:
            break
        cursor = inner[0]
    return cursor


class Finder:
    """The mutants of one parsed source and of the headers of the same room."""

    def __init__(self, texts):
        self.texts = texts       # path -> bytes
        self.found = {}          # key -> Mutant
        self.path = ""
        self.macros = []

    def span(self, cursor):
        return cursor.extent.start.offset, cursor.extent.end.offset

    def text(self, cursor):
        start, end = self.span(cursor)
        return self.texts[self.path][start:end].decode()

    def add(self, start, end, text, kind, leaves_out=False):
        if end <= start or any(a < end and start < b for a, b in self.macros):
            return
        mutant = Mutant(self.path, start, end, text, kind, leaves_out)
        self.found.setdefault(mutant.key(), mutant)

    def visit(self, cursor, parent=None):
        kind = cursor.kind
        if kind in (K.CXX_THROW_EXPR, K.STATIC_ASSERT, K.ENUM_DECL):
            return  # the wording of an error is no arithmetic
        if kind == K.VAR_DECL and re.search(r"\bconstexpr\b", self.text(cursor).split("=")[0]):
            return  # known when compiling: no switch
        if kind == K.CALL_EXPR and cursor.spelling in MEMORY_ALONE:
            return
        if kind == K.BINARY_OPERATOR or kind == K.COMPOUND_ASSIGNMENT_OPERATOR:
            self.binary(cursor, list(cursor.get_children()))
        elif kind == K.CALL_EXPR:
            self.call(cursor, parent)
        elif kind == K.UNARY_OPERATOR:
            self.unary(cursor)
        elif kind in (K.INTEGER_LITERAL, K.FLOATING_LITERAL):
            self.literal(cursor, kind)
        elif kind == K.CXX_BOOL_LITERAL_EXPR:
            flipped = {"true": "false", "false": "true"}.get(self.text(cursor))
            if flipped:
                self.add(*self.span(cursor), flipped, "boolean")
        elif kind == K.CONDITIONAL_OPERATOR:
            self.choice(cursor)
        self.statements(cursor, kind)
        is_declared = kind in (K.VAR_DECL, K.FIELD_DECL)
        for child in cursor.get_children():
            if is_declared and child.extent.start.offset < cursor.location.offset:
                continue  # an argument of its type: known when compiling
            self.visit(child, cursor)

    def binary(self, cursor, sides):
        if len(sides) != 2:
            return
        left, right = sides
        start, end = self.span(cursor)
        gap = self.texts[self.path][left.extent.end.offset:right.extent.start.offset].decode()
        op = re.sub(r"//[^\n]*|/\*.*?\*/|\s", "", gap, flags=re.S)
        if gap.count(op) != 1:
            return
        for other in OPERATORS.get(op, ()):
            self.add(start, end, self.text(left) + gap.replace(op, other) + self.text(right),
                     f"{op} is {other}")
        if op in ("&&", "||"):
            for kept, dropped in ((left, "right"), (right, "left")):
                self.add(start, end, self.text(kept), f"{op} without its {dropped} side")

    def unary(self, cursor):
        text = self.text(cursor)
        start, end = self.span(cursor)
        for op, other in (("++", "--"), ("--", "++")):
            if text.startswith(op):
                self.add(start, end, other + text[2:], f"{op} is {other}")
            elif text.endswith(op):
                self.add(start, end, text[:-2] + other, f"{op} is {other}")
        if re.match(r"![^=]", text):
            self.add(start, end, f"bool({text[1:]})", "without !")
        elif re.match(r"-[^-\d]", text):
            self.add(start, end, text[1:], "without the minus")

    def literal(self, cursor, kind):
        text = self.text(cursor)
        match = re.fullmatch(r"(\d[\d']*)([uUlLzZ]*)", text)
        if kind == K.INTEGER_LITERAL and match:
            value, suffix = int(match[1].replace("'", "")), match[2]
            for other in (value + 1, value - 1):
                if other >= 0:
                    self.add(*self.span(cursor), f"{other}{suffix}", f"{value} is {other}")
        elif kind == K.FLOATING_LITERAL and re.match(r"[\d.]", text):
            self.add(*self.span(cursor), f"({text} + 1)", f"{text} is 1 more")

    def choice(self, cursor):
        children = list(cursor.get_children())
        if len(children) == 3:
            start, end = self.span(cursor)
            for i, name in ((1, "always"), (2, "never")):
                self.add(start, end, self.text(children[i]), f"condition holds {name}")

    def call(self, cursor, parent):
        name, start, end = cursor.spelling, *self.span(cursor)
        children = list(cursor.get_children())
        if name.startswith("operator"):
            compares = name in ("operator==", "operator!=", "operator<", "operator>")
            if compares and len(children) == 3:
                self.binary(cursor, [children[0], children[2]])
            return
        text = self.text(cursor)
        if not text.endswith(")"):
            return
        is_declared = parent is not None and parent.kind in (K.VAR_DECL, K.FIELD_DECL)
        if is_declared and not text.startswith(parent.type.spelling.removeprefix("const ")):
            referenced = cursor.referenced
            if referenced is not None and referenced.kind == K.CONSTRUCTOR:
                return  # `T name(a, b)`: the name is part of the range
        if name in CALLS and text.count(name) == 1:
            other = CALLS[name]
            self.add(start, end, re.sub(rf"\b{name}\b", other, text), f"{name} is {other}")
        arguments = [a for a in cursor.get_arguments() if a is not None
                     and start < a.extent.start.offset and a.extent.end.offset < end]
        if name in ("min", "max") and len(arguments) == 2:
            for kept, word in ((0, "first"), (1, "second")):
                self.add(start, end, self.text(arguments[kept]), f"{name} is its {word} argument")
        for a, b in zip(arguments, arguments[1:]):
            same = plain_type(a) == plain_type(b)
            if same and self.text(a) != self.text(b) and name not in ("min", "max", "swap"):
                whole = self.texts[self.path]
                (a0, a1), (b0, b1) = self.span(a), self.span(b)
                if a1 <= b0:
                    swapped = (whole[start:a0] + whole[b0:b1] + whole[a1:b0] + whole[a0:a1]
                               + whole[b1:end]).decode()
                    self.add(start, end, swapped, "arguments swapped")

    def statements(self, cursor, kind):
        children = list(cursor.get_children())
        if kind == K.COMPOUND_STMT:
            for child in children:
                self.leave_out(child)
            return
        if kind == K.IF_STMT:
            while children and children[0].kind in (K.DECL_STMT, K.VAR_DECL):
                children = children[1:]  # `if (init; condition)`
            if len(children) > 1:
                self.condition(children[0], ("true", "false"))
            for body in children[1:]:
                self.leave_out(body)
        elif kind in (K.FOR_STMT, K.CXX_FOR_RANGE_STMT, K.WHILE_STMT) and children:
            self.leave_out(children[-1])
            if kind == K.WHILE_STMT:
                self.condition(children[0], ("false",))
        elif kind == K.RETURN_STMT and children:
            value = children[0]
            if value.type.get_canonical().spelling == "bool" and unwrap(value).kind not in (
                    K.CXX_BOOL_LITERAL_EXPR,):
                self.add(*self.span(value), f"!({self.text(value)})", "returned truth negated")

    def condition(self, cursor, values):
        if cursor.kind == K.VAR_DECL:
            return
        for value in values:
            self.add(*self.span(cursor), value, f"condition is {value}")

    def leave_out(self, cursor):
        inner = unwrap(cursor)
        kinds = (K.CALL_EXPR, K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR, K.UNARY_OPERATOR,
                 K.BREAK_STMT, K.CONTINUE_STMT)
        is_plain_return = inner.kind == K.RETURN_STMT and not list(inner.get_children())
        if inner.kind not in kinds and not is_plain_return:
            return
        if inner.kind == K.CALL_EXPR and inner.spelling in MEMORY_ALONE:
            return
        start, end = self.span(cursor)
        rest = self.texts[self.path][end:end + 80]
        match = re.match(rb"\s*;", rest)
        if match:
            self.add(start, end + match.end(), ";", "left out", leaves_out=True)


def plain_type(cursor):
    return re.sub(r"\bconst\b|&|\s", "", cursor.type.get_canonical().spelling)


def flags_of(build):
    """The definitions and include folders of the whole build; sources are parsed one by one."""
    kept = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = entry["command"].split()
        if entry["file"].endswith((".cpp", ".cxx")):
            for i, word in enumerate(words):
                flag = [word, words[i + 1]] if word == "-isystem" else [word]
                if word.startswith(("-D", "-I", "-isystem")) and flag not in kept:
                    kept.append(flag)
    return ["-std=c++20", "-xc++"] + [w.replace('\\"', '"') for flag in kept for w in flag]


def sources_of(tree, room):
    return sorted(p for p in (tree / room).rglob("*")
                  if p.suffix in SOURCES and not ON_DEVICE.search(str(p)))


def find_mutants(tree, build, rooms):
    index, flags, found = cindex.Index.create(), flags_of(build), []
    for room in rooms:
        paths = sources_of(tree, room)
        texts = {str(p.relative_to(tree)): p.read_bytes() for p in paths}
        finder, seen = Finder(texts), set()
        for path in sorted(paths, key=lambda p: p.suffix):  # .cpp before .hpp
            name = str(path.relative_to(tree))
            if name in seen:
                continue
            unit = index.parse(str(path), args=flags,
                               options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
            errors = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
            if errors:
                print(f"mutate: {name} does not parse, left out: {errors[0].spelling}",
                      file=sys.stderr)
                continue
            macros, tops = {}, {}
            for cursor in unit.cursor.get_children():
                file = cursor.location.file
                if file is None:
                    continue
                where = os.path.relpath(os.path.normpath(file.name), tree)
                if where not in texts or where in seen:
                    continue
                if cursor.kind == K.MACRO_INSTANTIATION:
                    macros.setdefault(where, []).append(finder.span(cursor))
                else:
                    tops.setdefault(where, []).append(cursor)
            for where, cursors in tops.items():
                finder.path, finder.macros = where, macros.get(where, [])
                for cursor in cursors:
                    finder.visit(cursor)
                seen.add(where)
        found += finder.found.values()
    for mutant in found:
        before = (tree / mutant.path).read_bytes()[:mutant.start]
        mutant.line = before.count(b"\n") + 1
    return sorted(found, key=Mutant.key)


# ---- planting -----------------------------------------------------------------------------------

def one_line(text):
    """The text without comments and line breaks: lines of the file keep their numbers."""
    return re.sub(r"\s*\n\s*", " ", re.sub(r"//[^\n]*", "", text))


def weave(source, mutants, always=None):
    """The source with a switch around every mutant. Ranges are nested or apart, never crossing.

    `always`, if it is one of them, is there without a switch.
    """
    mutants = sorted(mutants, key=lambda m: (m.start, -m.end, m.leaves_out is False, m.id))

    def render(start, end, inside):
        out, at, i = [], start, 0
        while i < len(inside):
            first, j = inside[i], i
            while j < len(inside) and inside[j].start < first.end:
                j += 1
            same = [m for m in inside[i:j] if (m.start, m.end) == (first.start, first.end)]
            deeper = [m for m in inside[i:j] if m not in same]
            out.append(source[at:first.start].decode())
            body = render(first.start, first.end, deeper)
            if always in same:
                out.append(";" if always.leaves_out else f"({always.text})")
            elif first.leaves_out:
                out.append(f"{{ if (!loratory_mutant({first.id})) {{ {body} }} }}")
            else:
                cases = "".join(f"loratory_mutant({m.id}) ? ({one_line(m.text)}) : " for m in same)
                out.append(f"({cases}({body}))")
            at, i = first.end, j
        out.append(source[at:end].decode())
        return "".join(out)

    return render(0, len(source), mutants)


def apply_alone(source, mutant, text=None):
    text = mutant.text if text is None else text
    return (source[:mutant.start] + text.encode() + source[mutant.end:]).decode()


def write_if_new(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


class Workshop:
    """A copy of the tracked files, its build folder and the targets that the rooms' tests are."""

    def __init__(self, folder, rooms, jobs):
        self.tree, self.build, self.jobs = folder / "tree", folder / "build", jobs
        self.binaries = sorted({binary for room in rooms for binary in TESTS[room]})
        self.originals = {}

    def copy(self):
        names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
        wanted = {n for n in names.stdout.decode().split("\0") if n and (ROOT / n).is_file()}
        for old in self.tree.rglob("*"):
            if old.is_file() and str(old.relative_to(self.tree)) not in wanted:
                old.unlink()
        for name in wanted:
            to = self.tree / name
            content = (ROOT / name).read_bytes()
            if not to.exists() or to.read_bytes() != content:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(content)
                shutil.copymode(ROOT / name, to)
        write_if_new(self.tree / SWITCH, SWITCH_TEXT)

    def configure(self):
        flags = "-O1 -Wno-narrowing -D_GLIBCXX_ASSERTIONS -w"
        run = subprocess.run(
            ["cmake", "-G", "Ninja", "-S", self.tree, "-B", self.build, "-DLORATORY_CUDA=OFF",
             "-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={flags}",
             "-DLORATORY_BUILD_BENCH=OFF"],
            capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"mutate: cmake failed:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")

    def make(self):
        """Empty, or what the compiler said."""
        targets = [pathlib.Path(b).name for b in self.binaries]
        run = subprocess.run(["ninja", "-C", self.build, f"-j{self.jobs}", "-k", "0", *targets],
                             capture_output=True, text=True, errors="replace")
        return "" if run.returncode == 0 else run.stdout + run.stderr

    def original(self, path):
        if path not in self.originals:
            self.originals[path] = (self.tree / path).read_bytes()
        return self.originals[path]

    def plant(self, mutants, always=None):
        by_path = {}
        for mutant in mutants:
            by_path.setdefault(mutant.path, []).append(mutant)
        for path in set(by_path) | set(self.originals):
            source, chosen = self.original(path), by_path.get(path)
            text = f'#include "{SWITCH}" // ' if chosen else ""
            woven = weave(source, chosen, always) if chosen else source.decode()
            # On the first line, before its comment or its pragma: no line moves.
            if chosen and not woven.startswith("//"):
                text = f'#include "{SWITCH}"\n'
            write_if_new(self.tree / path, text + woven)


def build_switched(shop, mutants):
    """Builds all mutants at once; returns those that do not compile behind a switch."""
    alone, inside = [], list(mutants)
    for _ in range(25):
        shop.plant(inside)
        said = shop.make()
        if not said:
            return inside, alone
        lines = set()
        for path, line in re.findall(r"([\w./-]+):(\d+):\d+: (?:error|note|  required)", said):
            there = os.path.normpath(shop.build / path)  # path itself, if it is absolute
            lines.add((os.path.relpath(there, shop.tree), int(line)))
        bad = [m for m in inside if any((m.path, m.line + d) in lines for d in (0, 1))]
        if not bad:
            errors = {path for path, _ in lines}
            bad = [m for m in inside if m.path in errors]
        if not bad:
            sys.exit(f"mutate: does not build:\n{said[-4000:]}")
        print(f"mutate: {len(bad)} mutants cannot be switched, built alone", flush=True)
        alone += bad
        inside = [m for m in inside if m not in bad]
    sys.exit("mutate: does not settle on what compiles")


# ---- running ------------------------------------------------------------------------------------

QUICK_S = 0.3  # tests below that share a process

Test = collections.namedtuple("Test", "binary name")


def run_tests(shop, binary, names, mutant_id, limit_s, cases, reached=None):
    """(passed, seconds of CPU time, ran past limit_s). A busy machine is no reason to time out."""
    environment = dict(os.environ, LORATORY_MUTANT=str(mutant_id), OMP_NUM_THREADS="1",
                       GTEST_BREAK_ON_FAILURE="1", GTEST_FAIL_FAST="1", GTEST_BRIEF="1",
                       RC_PARAMS=f"max_success={cases} seed=20261123 noshrink=1",
                       GTEST_FILTER=":".join(names))
    if reached is not None:
        environment["LORATORY_REACHED"] = str(reached)
    process = subprocess.Popen(
        ["bash", "-c", f'ulimit -v {MEMORY_KIB}; ulimit -t "$1" && exec "$0"', shop.build / binary,
         str(math.ceil(limit_s))],
        cwd=shop.tree, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True)
    asleep = threading.Timer(20 * limit_s + 60, os.killpg, (process.pid, signal.SIGKILL))
    asleep.start()
    _, status, usage = os.wait4(process.pid, 0)
    asleep.cancel()
    process.returncode = status  # waited for, and not by Popen
    seconds = usage.ru_utime + usage.ru_stime
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
    return status == 0, seconds, late


def tests_of(shop, binary):
    said = subprocess.run([shop.build / binary, "--gtest_list_tests"], cwd=shop.tree,
                          capture_output=True, text=True, check=True).stdout
    suite, tests = "", []
    for line in said.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            tests.append(Test(binary, suite + name.strip()))
        elif name.endswith("."):
            suite = name
    return tests


def observe(shop, test, cases):
    """Seconds of a test without a mutant, and the mutants that it reaches. It must pass."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(MAX_MUTANTS)
        passed, seconds, _ = run_tests(shop, test.binary, [test.name], 0, 1800, cases, file.name)
        if not passed:
            sys.exit(f"mutate: {test.name} of {test.binary} fails without a mutant")
        reached = pathlib.Path(file.name).read_bytes()
    return test, seconds, {i for i, byte in enumerate(reached) if byte}


def observe_all(shop, cases):
    """Test -> (seconds, mutants reached)."""
    tests = [test for binary in shop.binaries for test in tests_of(shop, binary)]
    with concurrent.futures.ThreadPoolExecutor(shop.jobs) as pool:
        observed = {test: (seconds, reached)
                    for test, seconds, reached in pool.map(
                        lambda test: observe(shop, test, cases), tests)}
    for binary in shop.binaries:
        times = [seconds for test, (seconds, _) in observed.items() if test.binary == binary]
        print(f"mutate: {binary} has {len(times)} tests, {sum(times):.1f} s", flush=True)
    return observed


def runs_for(mutant, room, observed):
    """(binary, names of tests, their seconds), the quick ones of each binary first."""
    quick, slow = {binary: [] for binary in TESTS[room]}, []
    for test, (seconds, reached) in observed.items():
        if test.binary not in quick or (mutant.is_switched and mutant.id not in reached):
            continue
        if seconds < QUICK_S:
            quick[test.binary].append(test)
        else:
            slow.append((seconds, test))
    runs = [(binary, [test.name for test in tests], sum(observed[test][0] for test in tests))
            for binary, tests in quick.items() if tests]
    return runs + [(test.binary, [test.name], seconds) for seconds, test in sorted(slow)]


def judge(shop, mutant, room, observed, cases):
    runs = runs_for(mutant, room, observed)
    for binary, names, seconds in runs:
        passed, took, late = run_tests(shop, binary, names, mutant.id, 4 * seconds + 4, cases)
        mutant.seconds += took
        if not passed:
            mutant.state, mutant.by = "timeout" if late else "killed", binary
            return
    mutant.state, mutant.by = "survived", "" if runs else "reached by no test"


def diff_of(shop, mutant):
    before = shop.original(mutant.path)
    lines = difflib.unified_diff(before.decode().splitlines(),
                                 apply_alone(before, mutant).splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


# ---- the score ----------------------------------------------------------------------------------

def read_equivalents():
    """(path, lines of the difference) -> why no test can tell."""
    reasons = {}
    for block in re.sub(r"(?m)^#.*\n", "", EQUIVALENTS.read_text()).strip().split("\n\n"):
        lines = block.splitlines()
        change = tuple(normal(line) for line in lines if line[0] in "-+")
        reasons[lines[0], change] = " ".join(line[1:].strip() for line in lines if line[0] == "=")
    return reasons


def normal(line):
    return line[0] + " ".join(line[1:].split())


def reason_of(mutant, shop, equivalents):
    return equivalents.get((mutant.path, tuple(normal(line) for line in diff_of(shop, mutant))))


def score_of(killed, left):
    return f"{100 * killed / (killed + left):.1f} %" if killed + left else "-"


def room_of(mutant, rooms):
    return next(r for r in rooms if mutant.path.startswith(r + "/"))


def print_score(mutants, rooms, shop, equivalents):
    print(f"\n{'room':28}  killed  timeout  survived  equivalent  no build   score  without")
    for name in [*rooms, "all"]:
        here = [m for m in mutants if name == "all" or room_of(m, rooms) == name]
        states = [m.state for m in here]
        killed, late, left, broken = (
            states.count(s) for s in ("killed", "timeout", "survived", "does not compile"))
        same = sum(m.state == "survived" and bool(reason_of(m, shop, equivalents)) for m in here)
        print(f"{name:28} {killed:7} {late:8} {left:9} {same:11} {broken:9} "
              f"{score_of(killed + late, left):>7} {score_of(killed + late, left - same):>8}")
    for mutant in mutants:
        if mutant.state == "survived":
            reason = reason_of(mutant, shop, equivalents)
            print(f"\nsurvived: {mutant.where()} ({mutant.kind})"
                  f"{'; ' + mutant.by if mutant.by else ''}{'; ' + reason if reason else ''}")
            print("\n".join("  " + line for line in diff_of(shop, mutant)))


def current_commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True,
                          text=True, check=True).stdout.strip()


def record(path, commit, mutants, options, shop, equivalents):
    rows = []
    for m in mutants:
        row = {"where": m.where(), "kind": m.kind, "state": m.state, "by": m.by}
        if m.state in ("survived", "does not compile"):
            row["diff"] = diff_of(shop, m)
            reason = reason_of(m, shop, equivalents)
            row.update({"equivalent": reason} if reason else {})
        rows.append(row)
    states = [m.state for m in mutants]
    killed, survived = states.count("killed") + states.count("timeout"), states.count("survived")
    same = sum("equivalent" in row for row in rows)
    document = {
        "what": "mutation score: scripts/mutate.py", "commit": commit,
        "date": datetime.date.today().isoformat(), "seed": options.seed, "cases": options.cases,
        "mutants": len(mutants), "killed": killed, "timeouts": states.count("timeout"),
        "survived": survived, "equivalent": same,
        "not_compiled": states.count("does not compile"),
        "score": round(killed / max(1, killed + survived), 4),
        "score_without_equivalent": round(killed / max(1, killed + survived - same), 4),
        "rows": rows}
    path.write_text(json.dumps(document, indent=1) + "\n")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to plant (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default 1)")
    parser.add_argument("--only", action="append", choices=sorted(TESTS), help="a room; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="compilers, tests at once (default 2)")
    parser.add_argument("--minutes", type=float, default=1e6,
                        help="judge no mutant after that time, builds apart (default: all)")
    parser.add_argument("--cases", type=int, default=1000, help="cases of a property, as CI has")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "mutate",
                        help="folder of the copy and its build (default build/mutate)")
    parser.add_argument("--record", type=pathlib.Path, help="write the score there, as JSON")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    return parser.parse_args()


def main():
    options = parse_options()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # mutants crash
    rooms = tuple(options.only or TESTS)
    shop = Workshop(options.build.resolve(), rooms, options.jobs)
    shop.tree.mkdir(parents=True, exist_ok=True)
    commit = current_commit()
    shop.copy()
    shop.configure()
    mutants = find_mutants(shop.tree, shop.build, rooms)
    print(f"mutate: {len(mutants)} mutants in {len(rooms)} rooms", flush=True)
    mutants = random.Random(options.seed).sample(mutants, min(options.count, len(mutants)))
    for i, mutant in enumerate(mutants, 1):
        mutant.id = i
    if options.list:
        for mutant in mutants:
            print(f"{mutant.where()}: {mutant.kind}\n" + "\n".join(diff_of(shop, mutant)))
        return
    equivalents = read_equivalents()
    inside, alone = build_switched(shop, mutants)
    observed = observe_all(shop, options.cases)
    done, ends = 0, time.monotonic() + 60 * options.minutes

    def judge_in_time(mutant):
        if time.monotonic() < ends:
            judge(shop, mutant, room_of(mutant, rooms), observed, options.cases)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = {pool.submit(judge_in_time, m): m for m in inside}
        for job in concurrent.futures.as_completed(jobs):
            job.result()
            m, done = jobs[job], done + 1
            if not m.state:
                continue
            print(f"[{done}/{len(mutants)}] {m.state} {m.where()} {m.kind}"
                  f"{' by ' + m.by if m.by else ''} ({m.seconds:.0f} s)", flush=True)
    for mutant in alone:  # the others stay where they are, so that little is built anew
        if time.monotonic() > ends:
            break
        mutant.is_switched = False
        shop.plant([*inside, mutant], always=mutant)
        if shop.make():
            mutant.state = "does not compile"
        else:
            judge(shop, mutant, room_of(mutant, rooms), observed, options.cases)
        done += 1
        print(f"[{done}/{len(mutants)}] {mutant.state} {mutant.where()} {mutant.kind} "
              f"{mutant.by}", flush=True)
    shop.plant([])
    mutants = sorted((m for m in mutants if m.state), key=Mutant.key)
    print_score(mutants, rooms, shop, equivalents)
    if options.record:
        record(options.record, commit, mutants, options, shop, equivalents)
    wrong = [m for m in mutants if m.state in ("killed", "timeout")
             and reason_of(m, shop, equivalents)]
    for mutant in wrong:
        print(f"mutate: {mutant.where()} ({mutant.kind}) is listed as equivalent, and was killed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
