"""What an implementation of the LoRA operations hands the bench."""

import dataclasses
from typing import Callable, Optional

from rows import MAX_RELATIVE_RMS


class Unsupported(Exception):
    """The implementation does not do this row; says why."""


@dataclasses.dataclass
class Op:
    launch: Callable  # launch(copy): one operation with that copy of the weights, current stream
    output: Callable  # what the last launch wrote: y [n, columns], or h [S, n, r]
    slots: Optional[list] = None  # of the tokens, if not the row's
    config: str = ""  # what it chose for this row
    rms_limit: float = MAX_RELATIVE_RMS  # of its error by its result
    close: Callable = lambda: None


@dataclasses.dataclass
class Implementation:
    name: str
    prepare: Callable  # prepare(problem) -> Op; errors are shown and do not end the run
    kind: str = "shipped"  # shipped: as it comes; yardstick: counts for "best of anything"; ours
    weights: tuple = ("bf16",)  # of the rows that it takes
