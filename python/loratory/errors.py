"""What goes wrong, and whose fault it is."""
from __future__ import annotations


class InputError(ValueError):
    """Bad input from outside: an array, a file, a flag, a trace row. One line says where, which
    rule was broken, and what to do."""


class AdapterError(InputError):
    """Why an adapter was refused (docs/adapters.md)."""

    code: str
    """"E_SHAPE", "E_KEY", ..."""
    detail: str
    """"dora" of E_UNSUPPORTED(dora), the field of E_CONFIG(field); else empty."""
    key: str
    """The tensor, field or file that caused it."""

    def __init__(self, message: str, code: str = "", detail: str = "", key: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail
        self.key = key

    def __reduce__(self) -> tuple[type[AdapterError], tuple[str, str, str, str]]:
        return AdapterError, (str(self), self.code, self.detail, self.key)


class ProgramError(RuntimeError):
    """The program `loratory` failed for a reason that is nobody's bad input: a full disk, no
    memory."""
