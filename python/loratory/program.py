"""The program `loratory`, which the wheel brings along."""
from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from loratory.errors import InputError, ProgramError

__all__ = ["program_path", "main", "run_program", "Output"]


def program_path() -> pathlib.Path:
    """Where the program lies."""
    return pathlib.Path(__file__).parent / "bin" / "loratory"


def main() -> None:
    """The console script `loratory`: becomes the program."""
    path = str(program_path())
    os.execv(path, [path, *sys.argv[1:]])


@dataclass(frozen=True)
class Output:
    """What a run ended with and printed."""

    exit_code: int
    stdout: str
    stderr: str


def run_program(arguments: Sequence[str]) -> Output:
    """Runs the program to its end. Ctrl-C ends it too, which leaves no half-written file.

    Errors: InputError (exit code 2) with the program's own line; ProgramError where it failed for
    another reason than what it was asked (a full disk, a signal).
    """
    with subprocess.Popen([str(program_path()), *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    line = stderr.strip().removeprefix("loratory: ")
    if process.returncode == 2:
        raise InputError(line)
    if process.returncode < 0:
        signal_number = -process.returncode
        raise ProgramError(f"loratory {arguments[0]}: ended by signal {signal_number}; {line}")
    return Output(process.returncode, stdout, stderr)
