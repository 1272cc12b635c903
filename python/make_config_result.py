"""Writes loratory/config_result.py: a dataclass with the fields of a configuration in results.json,
as the compiled module lists them (scheduler_sim/report/config_fields.hpp)."""
import pathlib
import sys

module_folder, out = sys.argv[1:]
sys.path.insert(0, module_folder)
import _loratory  # noqa: E402

HEAD = '''"""Written by make_config_result.py from the fields of results.json. Do not edit."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConfigFields:
    """Numbers of one configuration. docs/results.md says what each means; names that end in _ms,
    _s and _bytes have that unit. None: not finite, or not looked for."""

'''


def main() -> None:
    lines = [HEAD]
    for name, kind in _loratory.config_fields():
        if name != "cause":  # an object in results.json
            lines.append(f"    {name}: {kind}{' | None' if kind == 'float' else ''}\n")
    pathlib.Path(out).write_text("".join(lines))


main()
