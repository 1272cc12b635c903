#!/usr/bin/env python3
"""What bench/gpu/lora_bench.py is told: bad input ends in one line before anything is timed."""
import contextlib
import io
import pathlib
import re
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "gpu"))
sys.modules["torch"] = mock.MagicMock()  # not installed where tests run
import lora_bench  # noqa: E402
import rows  # noqa: E402

LIB = __file__  # any file: nothing is loaded here


def parsed(*flags, has_gpu=True):
    lora_bench.torch.cuda.is_available.return_value = has_gpu
    with mock.patch.object(sys, "argv", ["lora_bench.py", *flags]):
        return lora_bench.parse()


class Flags(unittest.TestCase):
    def refused(self, *flags, **machine):
        said = io.StringIO()
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(said):
            parsed(*flags, **machine)
        self.assertEqual(ended.exception.code, 2)
        self.assertEqual(said.getvalue().count("\n"), 1, said.getvalue())
        return said.getvalue()

    def test_another_build_needs_a_commit_a_file_and_ours_beside_it(self):
        for before in (LIB, f"={LIB}", "a="):
            self.assertIn("needs COMMIT=LIB", self.refused("--lib", LIB, "--before", before))
        self.assertIn("--lib beside it", self.refused("--before", f"a={LIB}"))
        self.assertIn("--before: /none: no such file",
                      self.refused("--lib", LIB, "--before", "a=/none"))
        options = parsed("--lib", LIB, "--before", f"a={LIB}")
        self.assertEqual(options.before, ("a", pathlib.Path(LIB)))

    def test_a_library_that_is_not_there_names_its_target(self):
        self.assertIn("build the target loratory_c", self.refused("--lib", "/none"))

    def test_patterns_are_regular_expressions(self):
        for flag in ("--rows", "--implementations"):
            self.assertIn(f"{flag}: ", self.refused(flag, "("))

    def test_no_gpu_is_said_but_where_rows_are_listed(self):
        self.assertIn("no CUDA device", self.refused("--lib", LIB, has_gpu=False))
        self.assertTrue(parsed("--list", has_gpu=False).list)


class Rows(unittest.TestCase):
    def test_names_tell_rows_apart_and_can_be_searched(self):
        every = rows.ANCHORS + rows.SWEEP + rows.FP8 + rows.FP8_DECODE + rows.BEHIND
        self.assertEqual(set(rows.ROWS), {row.name for row in every})
        for name, row in rows.ROWS.items():
            self.assertEqual(name, row.name)
            self.assertEqual(len(row.slots), row.tokens)
            self.assertEqual(len(set(row.slots)), row.adapters, name)
        self.assertEqual(lora_bench.chosen_rows(parsed("--rows", "fp8")), rows.FP8)
        found = lora_bench.chosen_rows(parsed("--rows", "r64 s512 u1$"))
        self.assertEqual(len(found), 3)

    def test_a_command_is_kept_without_folders(self):
        kept = lora_bench._command(["/x/lora_bench.py", "--out", "/y/z", "--peers-dir", "p/peers",
                                    "--rows", "^(a|b)$", "--before", "a=/p/q.so"])
        self.assertFalse(re.search(r"/[pyz]/", kept), kept)
        self.assertTrue(kept.endswith("--peers-dir peers --rows ^(a|b)$ --before a=q.so"), kept)


if __name__ == "__main__":
    unittest.main()
