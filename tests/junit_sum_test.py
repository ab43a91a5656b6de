#!/usr/bin/env python3
"""junit_sum.py on what the real ctest writes: a skip is red under VRAMCAP_MUST_WORK and green without."""
import os
import subprocess
import sys
import tempfile
import unittest

SUM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "junit_sum.py")
GOOD = "add_test(NAME good COMMAND true)\n"
BAD = "add_test(NAME bad COMMAND false)\n"
MISSING = "add_test(NAME missing COMMAND /nonexistent/program)\n"
SKIP = ("add_test(NAME skips COMMAND sh -c \"exit 77\")\n"
        "set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77 LABELS \"hook;%s\")\n")
DISABLED = "add_test(NAME off COMMAND true)\nset_tests_properties(off PROPERTIES DISABLED TRUE)\n"


class Sum(unittest.TestCase):
    def total(self, tests, must_work):
        """The status and the last line of the sum."""
        status, lines = self.all(tests, must_work)
        return status, lines[-1]

    def all(self, tests, must_work):
        """The status and all lines for a project with these tests, run by ctest."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as f:
                f.write("cmake_minimum_required(VERSION 3.25)\nproject(t NONE)\nenable_testing()\n" + tests)
            for command in (["cmake", "-S", folder, "-B", folder + "/b"],
                            ["ctest", "--test-dir", folder + "/b", "--output-junit",
                             folder + "/b/junit.xml"]):
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            result = subprocess.run([sys.executable, "-B", SUM, folder + "/b/junit.xml"], text=True,
                                    stdout=subprocess.PIPE, check=False,
                                    env={**os.environ, "VRAMCAP_MUST_WORK": must_work})
            return result.returncode, result.stdout.splitlines()

    def test_what_a_failed_test_said_last_is_shown(self):
        lines = self.all('add_test(NAME bad COMMAND sh -c "seq 100 && false")\n' + GOOD, "0")[1]
        self.assertEqual(lines[0], "  | 61")
        self.assertEqual(lines[39:41], ["  | 100", "failed   b: bad"])

    def test_good_and_bad(self):
        self.assertEqual(self.total(GOOD, "1"), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertEqual(self.total(GOOD + BAD, "0"), (1, "1 passed, 1 failed, 0 skipped"))

    def test_skip_is_red_where_everything_must_work(self):
        self.assertEqual(self.total(GOOD + SKIP % "x", "0"), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertEqual(self.total(GOOD + SKIP % "x", "1"), (1, "1 passed, 1 failed, 0 skipped"))

    def test_no_gpu_is_no_failure(self):
        self.assertEqual(self.total(GOOD + SKIP % "gpu", "1"), (0, "1 passed, 0 failed, 1 skipped"))

    def test_what_did_not_run_did_not_pass(self):
        self.assertEqual(self.total(GOOD + DISABLED, "1"), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.total(GOOD + MISSING, "0"), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.total("", "0"), (1, "0 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
