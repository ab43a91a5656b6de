#!/usr/bin/env python3
"""What the documents say is shown by a test must be shown by one that exists.

    named_tests.py ROOT BUILD      1 and one line per finding

docs/field-cases.md has one row per report, numbered without a gap; each names tests, as `ctest name` or
`ctest name: function`, or says "not covered: " and why. In every document `test_x.c: function` names a test
function, which has to be in that file's list of tests, and a name in backticks of four words and more
(a_name_like_this_one) has to be in some source.
"""
import glob
import os
import re
import subprocess
import sys

CASES = "docs/field-cases.md"
# names of other projects' sources
FOREIGN = {"ggml_cuda_pool_vmm", "ggml_cuda_pool_leg", "ggml_backend_cuda_buffer_type_alloc_buffer"}
# ctest names that are the file's name with something in front
FILES = {"hook_": "tests/hook/test_%s.c", "sim_": "tests/sim/test_sim_%s.c"}
SOURCES = (".c", ".h", ".def", ".in", ".inc", ".py", ".sh", ".txt", ".cmake", ".yml", ".json", ".pml", ".S")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def c_file(root, name):
    """The source of a test program by the name that ctest has for it; None: no such program."""
    candidates = [form % name[len(prefix):] for prefix, form in FILES.items() if name.startswith(prefix)]
    candidates += ["tests/*/test_%s.c" % name] + (["tests/*/%s.c" % name] if name.startswith("test_") else [])
    for candidate in candidates:
        for path in glob.glob(os.path.join(root, candidate)):
            return path
    return None


def in_ctest(build):
    """The names of all tests of a build folder; None where it leaves out some that others have."""
    cache = read(os.path.join(build, "CMakeCache.txt"))
    if not re.search(r"^VRAMCAP_SANITIZE:\w+=$", cache, re.M):
        return None
    listed = subprocess.run(["ctest", "--test-dir", build, "-N", "-C", "full"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True, check=True).stdout
    names = set(re.findall(r"^ *Test +#\d+: (\w+)", listed, re.M))
    return names if {"test_agent_run", "contract_coverage"} <= names else None  # without what they need


def is_listed(text, function):
    """In C: defined, and in a list of tests besides. A scenario that runs under a second name has it as a string."""
    definition = re.search(r"^(static )?(void|int) %s\(" % function, text, re.M)
    uses = len(re.findall(r"\b%s\b" % function, text))
    return (definition is not None and uses >= 2) or '"%s"' % function in text


def wrong_reference(root, tests, name, function):
    path = c_file(root, name)
    if tests is not None and name not in tests:
        return "there is no test %s" % name
    if not function:
        return None
    if path:
        return None if is_listed(read(path), function) else "%s has no test %s" % (
            os.path.relpath(path, root), function)
    scripts = glob.glob(os.path.join(root, "tests", "*", "*.py"))
    if any(re.search(r"^def %s\(" % function, read(p), re.M) for p in scripts):
        return None
    return "no script of %s has %s" % (name, function)


def cases(root, tests):
    expected = 1
    for number, line in enumerate(read(os.path.join(root, CASES)).split("\n"), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        if int(cells[0]) != expected:
            yield CASES, number, "row %s comes after row %d" % (cells[0], expected - 1)
        expected = int(cells[0]) + 1
        if re.match(r"not covered: \S", cells[3]):
            continue
        named = re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cells[3])
        if not named or not cells[1] or not cells[2]:
            yield CASES, number, "row %s names no test and does not say why" % cells[0]
            continue
        for name, function in re.findall(r"`(\w+)(?:: (\w+))?`", cells[3]):
            fault = wrong_reference(root, tests, name, function)
            if fault:
                yield CASES, number, fault
        if len(re.findall(r"`\w+(?:: \w+)?`", cells[3])) != cells[3].count("`") // 2:
            yield CASES, number, "a reference is `test` or `test: function`"
    if expected == 1:
        yield CASES, 1, "has no rows"


def words_of_sources(root):
    words = set()
    for folder in ("bench", "docs", "enforcer", "packaging", "preload", "samples", "tests"):
        for path in glob.glob(os.path.join(root, folder, "**", "*"), recursive=True):
            if os.path.isfile(path) and path.endswith(SOURCES):
                words.update(re.findall(r"\w{8,}", read(path)))
    return words


def documents(root):
    words = words_of_sources(root)
    for path in sorted(glob.glob(os.path.join(root, "docs", "*.md")) + glob.glob(os.path.join(root, "*.md"))):
        text, shown = read(path), os.path.relpath(path, root)
        # inside backticks a line may end anywhere
        for match in re.finditer(r"`([^`\n]*(?:\n[^`\n]+)?)`", text):
            quoted, line = re.sub(r"\s+", " ", match.group(1)), text.count("\n", 0, match.start()) + 1
            program = re.fullmatch(r"(?:tests/\w+/)?(test_\w+\.c)(?:: (\w+))?", quoted)
            if program:
                found = glob.glob(os.path.join(root, "tests", "*", program.group(1)))
                if not found:
                    yield shown, line, "there is no %s" % program.group(1)
                elif program.group(2) and not is_listed(read(found[0]), program.group(2)):
                    yield shown, line, "%s has no test %s" % (program.group(1), program.group(2))
            elif re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){3,}", quoted) and quoted not in words | FOREIGN:
                yield shown, line, "nothing is called %s" % quoted


def main():
    if len(sys.argv) != 3 or not os.path.isfile(os.path.join(sys.argv[1], CASES)):
        print("usage: named_tests.py ROOT BUILD", file=sys.stderr)
        return 2
    root, tests = sys.argv[1], in_ctest(sys.argv[2])
    findings = list(cases(root, tests)) + list(documents(root))
    for path, line, words in findings:
        print("%s:%d: %s" % (path, line, words))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
