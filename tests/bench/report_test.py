#!/usr/bin/env python3
"""The tables of bench/gpu/report.py."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "gpu"))
import report  # noqa: E402


def row(weights="bf16", **cold_us):
    return {"kind": "D", "op": "pair", "min_bytes": 1, "weights": weights,
            "implementations": {name: {"kind": "ours", "cold": {"median_us": us}}
                                for name, us in cold_us.items()}}


class Before(unittest.TestCase):
    def test_what_is_slower_by_more_than_noise_is_named_worst_first(self):
        line = report.before_line({"rows": {
            "a": row(before=10, loratory=10.1), "b": row(before=10, loratory=10.3),
            "c": row("fp8", before=10, loratory=9, before_fp8=10, loratory_fp8=11)}})
        self.assertEqual(line, "geometric mean, now / before 1.007; slower by more than 2%: "
                               "c loratory_fp8 1.100, b loratory 1.030")

    def test_only_what_both_builds_were_timed_with_is_in_the_table(self):
        data = {"rows": {"a": row(before=10, loratory=8), "b": row(loratory=10),
                         "c": row(before=10), "d": row(before=10, loratory_fp8=10)}}
        self.assertEqual(report.before_table(data).splitlines()[2:],
                         ["| a | loratory | 10.00 | 8.00 | 0.800 |"])
        self.assertIn("2%: none", report.summary(data))

    def test_one_build_alone_has_none(self):
        data = {"rows": {"a": row(loratory=10)}}
        self.assertEqual((report.before_line(data), report.before_table(data)), ("", ""))


if __name__ == "__main__":
    unittest.main()
