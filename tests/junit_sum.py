#!/usr/bin/env python3
"""Adds up what ctest wrote with --output-junit:  junit_sum.py FILE...

FILE lies in the build folder that it is about. Prints the end of what each failed test said, the names of
the failed and of the skipped tests, then `N passed, N failed, N skipped`. With VRAMCAP_MUST_WORK=1 a
skipped (or disabled) test counts as failed, unless it carries the label gpu: what a machine made for
testing cannot run is tested nowhere. A file without a test, or none at all, is a failure too. Ends with
1 if anything failed.
"""
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

SAID_LINES = 40


def gpu_tests(build):
    """The names of the build folder's tests with the label gpu (JUnit files carry no labels)."""
    shown = subprocess.run(["ctest", "--test-dir", build, "-C", "full", "--show-only=json-v1"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    names = set()
    for test in json.loads(shown or b"{}").get("tests", []):
        for item in test.get("properties", []):
            if item["name"] == "LABELS" and "gpu" in item["value"]:
                names.add(test["name"])
    return names


def chose_not_to_run(case):
    """True for a skip by status 77 and for a disabled test; a missing executable is neither."""
    reason = case.find("skipped")
    return case.get("status") == "disabled" or (
        reason is not None and "SKIP" in (reason.get("message") or ""))


def last_words(case):
    """The end of what a failed test said: the log of a long run is cut where it is of use."""
    said = (case.findtext("system-out") or "").rstrip().splitlines()
    return "".join("  | %s\n" % line for line in said[-SAID_LINES:])


def main():
    must_work = os.environ.get("VRAMCAP_MUST_WORK") == "1"
    passed = failed = skipped = 0
    for path in sys.argv[1:]:
        build = os.path.dirname(os.path.abspath(path))
        tree = os.path.basename(build)
        try:
            cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        except (OSError, ElementTree.ParseError) as error:
            cases = []
            print("%s: no result: %s" % (tree, error))
        if not cases:
            print("%s: no test was run" % tree)
            failed += 1
        for case in cases:
            name = "%s: %s" % (tree, case.get("name"))
            if case.get("status") == "run":
                passed += 1
            elif case.get("status") == "fail":
                failed += 1
                print("%sfailed   %s" % (last_words(case), name))
            elif not chose_not_to_run(case):
                failed += 1
                print("failed   %s (could not be run)" % name)
            elif must_work and case.get("name") not in gpu_tests(build):
                failed += 1
                print("failed   %s (skipped, and VRAMCAP_MUST_WORK is set)" % name)
            else:
                skipped += 1
                print("skipped  " + name)
    if len(sys.argv) < 2:
        failed += 1
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
