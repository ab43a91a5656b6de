#!/usr/bin/env python3
"""named_tests.py goes red where a document names what is not there, and stays green beside it."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import named_tests  # noqa: E402

TESTS = {"hook_pool": ("tests/hook/test_pool.c",
                       "static int a_pool_is_charged(void)\n{\n    return 0;\n}\n"
                       "static int nobody_runs_this(void)\n{\n    return 0;\n}\n"
                       "SCENARIO(a_pool_is_charged, NULL),\n{\"under_a_second_name\", f},\n"),
         "test_share": ("tests/multi/test_share.c",
                        "static void two_share(void **state)\n{\n}\ncmocka_unit_test(two_share),\n"),
         "containers": ("tests/container/situations.py", "def other_uids(place):\n    return 1\n")}
ROW = "| %s | report | right | %s |\n"


def found(row, document=""):
    with tempfile.TemporaryDirectory() as root:
        for path, text in list(TESTS.values()) + [(named_tests.CASES, row), ("docs/x.md", document)]:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        cases = list(named_tests.cases(root, set(TESTS) | {"lint_short_files"}))
        return [words for _, _, words in cases + list(named_tests.documents(root))]


class Rows(unittest.TestCase):
    def test_good_rows_are_silent(self):
        for cell in ("`hook_pool: a_pool_is_charged`", "`hook_pool`, `test_share: two_share`", "`lint_short_files`",
                     "`hook_pool: under_a_second_name`", "`containers: other_uids`", "not covered: it is no matter"):
            self.assertEqual(found(ROW % (1, cell)), [], cell)

    def test_bad_rows_are_named(self):
        for cell in ("`hook_pools: a_pool_is_charged`", "`hook_pool: a_pool_is_charged_twice`",
                     "`hook_pool: nobody_runs_this`", "`lint_none`", "`containers: nobody`", "", "not covered",
                     "not covered:", "a test", "`hook_pool: two words`", "`hook_pool` and more"):
            self.assertEqual(len(found(ROW % (1, cell))), 1, cell)

    def test_numbers_have_no_gap(self):
        self.assertEqual(found(ROW % (1, "`hook_pool`") + ROW % (2, "`hook_pool`")), [])
        self.assertEqual(len(found(ROW % (1, "`hook_pool`") + ROW % (3, "`hook_pool`"))), 1)
        self.assertEqual(found(""), ["has no rows"])


class Documents(unittest.TestCase):
    def test_names_that_are_there_are_silent(self):
        for text in ("`test_pool.c: a_pool_is_charged`", "`test_share.c`", "`tests/multi/test_share.c`",
                     "`test_pool.c:\na_pool_is_charged`", "`a_pool_is_charged`", "`vramcap_test`"):
            self.assertEqual(found(ROW % (1, "`hook_pool`"), text), [], text)

    def test_names_that_are_not_there_are_said(self):
        for text in ("`test_pool.c: a_pool`", "`test_pools.c`", "`nothing_has_this_name`",
                     "`test_pool.c:\nnobody_runs_this`"):
            self.assertEqual(len(found(ROW % (1, "`hook_pool`"), text)), 1, text)


if __name__ == "__main__":
    unittest.main()
