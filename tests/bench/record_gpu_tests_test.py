#!/usr/bin/env python3
"""bench/gpu/record_gpu_tests.py with programs that stand in for a GPU and for its tests."""
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest

RECORDER = pathlib.Path(__file__).parents[2] / "bench" / "gpu" / "record_gpu_tests.py"
NVIDIA_SMI = 'echo "Some GPU, 1.2, 80 MiB, 1980 MHz, 9.0"'
# Two tests, whatever the filter but for "None": two shards at most, of one each.
GPU_TEST = """case "$*" in
  *list_tests*None*) exit;;
  *list_tests*) printf 'A.\\n  B\\nEngineGpu.\\n  C  # a comment\\n'; exit;;
  *=EngineGpu.\*) echo '{"test": "EngineGpu.C", "most": "'$LORATORY_GPU_CASES'"}'; exit;;
  *EngineGpu.C*|*EngineGpu.EveryRequest*)
    echo '{"test": "EngineGpu.C", "cases": '${LORATORY_GPU_SHARE%/*}', "results": 10, "seconds": 1,' \\
      '"worst_error_over_bound": 0.'${LORATORY_GPU_SHARE%/*}', "passed": true,' \\
      '"classes": {"long": 1}}'; exit;;
esac
[ ${GTEST_SHARD_INDEX:-0} -ge 2 ] && exit 1
echo '{"test": "A.B", "most": "'$LORATORY_GPU_CASES'"}'"""
SANITIZER = """shift $(($# - 2)); "$@"
echo "========= ERROR SUMMARY: 0 errors in $LORATORY_GPU_CASES cases\""""


class RecordGpuTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program("nvidia-smi", NVIDIA_SMI)
        self.program("compute-sanitizer", SANITIZER)
        self.program("gpu_test", GPU_TEST)

    def program(self, name, script):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def record(self, *options):
        """What it exits with, and the record if there is one."""
        command = [sys.executable, RECORDER, self.folder / "gpu_test", "--out", self.folder,
                   "--commit", "abc", *options]
        env = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        self.done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found = list(self.folder.glob("gpu-tests-some-gpu-*-abc.json"))
        return self.done.returncode, json.loads(found[0].read_text()) if found else None

    def test_keeps_what_the_tests_and_every_tool_said(self):
        code, record = self.record("--soak", "1", "--shares", "4")
        self.assertEqual(code, 0, self.done.stderr)
        self.assertEqual(record["gpu"]["name"], "Some GPU")
        alone, shared = record["fixed_set"]["tests"]
        self.assertEqual(alone, {"test": "A.B", "most": ""})
        self.assertEqual(shared, {
            "test": "EngineGpu.C", "cases": 6, "results": 40, "seconds": 1,
            "worst_error_over_bound": 0.3, "passed": True, "classes": {"long": 4}})
        self.assertEqual(record["fixed_set"]["exit_codes"], [0] * 5)
        self.assertEqual(sorted(record["sanitizer"]),
                         ["initcheck", "memcheck", "racecheck", "synccheck"])
        for name, tool in record["sanitizer"].items():
            has_engine = name != "racecheck"
            self.assertEqual((tool["passed"], tool["num_tests"]), (True, 2 + has_engine))
            self.assertNotIn(str(self.folder), tool["command"])
            most = [tool["environment"]["LORATORY_GPU_CASES"]] * len(tool["shards"])
            if has_engine:
                most[-1] = "1"
            self.assertEqual([shard["summary"] for shard in tool["shards"]],
                             [[f"ERROR SUMMARY: 0 errors in {count} cases"] for count in most])
        self.assertTrue(record["soak"]["passed"])
        self.assertEqual(list(self.folder.glob("*.log")), [])

    def test_deals_out_what_is_not_shared(self):
        self.program("gpu_test", """case "$*" in
          *list_tests*) printf 'A.\n  B\n  C\n  D\n  E\n'; exit;;
        esac
        for name in ${1#--gtest_filter=}; do
          for one in ${name//:/ }; do echo '{"test": "'$one'"}'; done
        done""")
        code, record = self.record("--tools", "", "--shares", "1")  # three parts
        self.assertEqual(code, 0, self.done.stderr)
        self.assertEqual(record["fixed_set"]["exit_codes"], [0, 0, 0])
        self.assertEqual([test["test"] for test in record["fixed_set"]["tests"]],
                         ["A.B", "A.E", "A.C", "A.D"])

    def test_workloads_are_shared_out_too(self):
        code, record = self.record("--tools", "", "--shares", "2", "--workloads")
        self.assertEqual((code, record["workloads"]["exit_codes"]), (0, [0] * 4), self.done.stderr)
        self.assertEqual(record["workloads"]["tests"][0]["cases"], 0 + 1 + 2 + 3)

    def test_a_failed_test_fails_it_and_keeps_its_repro(self):
        self.program("gpu_test", f'{GPU_TEST}; echo "REPRO: LORATORY_GPU_SEED=7"; exit 1')
        code, record = self.record("--tools", "", "--shares", "4")
        self.assertEqual(code, 1)
        self.assertEqual(record["fixed_set"]["exit_codes"], [1, 0, 0, 0, 0])
        self.assertEqual(record["fixed_set"]["repro"], ["REPRO: LORATORY_GPU_SEED=7"])
        log, = self.folder.glob("*.log")  # of that process alone
        self.assertIn("LORATORY_GPU_SEED=7", log.read_text())

    def test_a_report_of_a_tool_fails_it(self):
        self.program("compute-sanitizer", 'echo "{\\"test\\": \\"A.B\\"}"; '
                     'echo "========= Error: race reported"; exit 9')
        code, record = self.record("--tools", "racecheck")
        self.assertEqual(code, 1)
        for shard in record["sanitizer"]["racecheck"]["shards"]:
            self.assertEqual(shard["reports"], {"Error: race reported": 1})

    def test_a_filter_for_the_tools(self):
        code, record = self.record("--tools", "racecheck", "--tool-filter", "A.*")
        self.assertEqual(code, 0, self.done.stderr)
        self.assertIn("--gtest_filter=A.*", record["sanitizer"]["racecheck"]["command"])

    def test_the_tools_alone(self):
        code, record = self.record("--filter", "", "--tools", "racecheck")
        self.assertEqual((code, sorted(record["sanitizer"])), (0, ["racecheck"]), self.done.stderr)
        self.assertNotIn("fixed_set", record)

    def test_one_shard_that_fails_fails_its_tool(self):
        self.program("compute-sanitizer", f"{SANITIZER}; exit $((GTEST_SHARD_INDEX == 1))")
        code, record = self.record("--tools", "memcheck")
        codes = [shard["exit_code"] for shard in record["sanitizer"]["memcheck"]["shards"]]
        self.assertEqual((code, codes), (1, [0, 1, 0]))

    def test_a_tool_that_ran_no_test_has_not_passed(self):
        self.program("compute-sanitizer", "true")
        code, record = self.record("--tools", "memcheck")
        self.assertEqual((code, record["sanitizer"]["memcheck"]["passed"]), (1, False))

    def test_a_tool_that_never_ends_is_ended_with_its_children(self):
        child = self.folder / "child"
        self.program("compute-sanitizer", '[ "$GTEST_SHARD_INDEX" = 1 ] || exit 0; '
                     f"tail -f /dev/null & echo $! > {child}; wait")
        code, record = self.record("--tools", "memcheck", "--tool-seconds", "1")
        codes = [shard["exit_code"] for shard in record["sanitizer"]["memcheck"]["shards"]]
        self.assertEqual((code, codes), (1, [0, None, 0]))
        try:
            ended = select.poll()
            ended.register(os.pidfd_open(int(child.read_text())), select.POLLIN)
            self.assertTrue(ended.poll(10_000), "it lives on")
        except ProcessLookupError:
            pass  # long gone

    def test_bad_input_is_one_line_and_no_record(self):
        for options in (["--tools", "lint"], ["--soak", "long"], ["--sanitizer", "/no/such"],
                        ["--filter", "None.*"], ["--tool-filter", "None.*"]):
            code, record = self.record(*options)
            self.assertEqual((code, record), (2, None))
            line, = self.done.stderr.splitlines()
            self.assertIn(options[0], line)


if __name__ == "__main__":
    unittest.main()
