#!/usr/bin/env python3
"""The project's own rules for its sources, those that no general tool knows.

    source_rules.py ROOT [RULE...]      all rules, or the named ones; 1 and one line per finding

RULES at the end has their names. A line that has a good reason to break one says so itself:

    fprintf(stream, ...);  /* lint: allow forbidden_calls: the line is built with no lock held */

source_rules_test.py shows that each of them goes red.
"""
import os
import re
import sys

SKIPPED_FOLDERS = {".git", "__pycache__", ".cache", ".vscode", ".idea"}
SOURCE_ENDINGS = (".c", ".h", ".S", ".def", ".in", ".inc", ".py", ".sh", ".cmake", ".awk", ".pml")
LONGEST_FILE = 650
TOOLS_ONLY = re.compile(r"enforcer/ledger_read\w*\.[ch]")  # in enforcer/, but not part of the library

# What the library must not call; the reasons are in docs/ ("never harm the process", the libc floor).
FORBIDDEN = {
    "ends or signals the process": "exit _exit _Exit quick_exit abort assert kill raise tgkill",
    "writes where the program writes": "printf puts putchar fprintf vprintf vfprintf perror fputs",
    "changes the process's state": "signal sigaction umask setlocale setenv putenv unsetenv clearenv "
    "pthread_create",
    "is newer than the libc floor in its plain form": "stat fstat lstat fstatat",
    "becomes __isoc23_* on a newer libc": "strtol strtoul strtoll strtoull strtoimax strtoumax atoi "
    "atol sscanf fscanf",
    "is newer than the libc floor, or finds our own hook": "dlsym dlopen dlvsym dladdr",
}
MARKERS = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]


def files(root):
    """Every text file of the tree, relative to root; build folders are left out."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            f for f in folders
            if f not in SKIPPED_FOLDERS
            and not os.path.exists(os.path.join(folder, f, "CMakeCache.txt"))
            and not (folder == root and f.startswith("build"))
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                yield os.path.relpath(path, root)


def read(root, path):
    with open(os.path.join(root, path), "rb") as f:
        data = f.read()
    return None if b"\0" in data else data.decode("utf-8", "replace")


def code(text):
    """C text with comments, strings and characters blanked, line by line the same."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text,
                  flags=re.S)


def calls(text):
    """(name, what stands before it, offset) of each call in C text: declarations are none."""
    text = code(text)
    depth = 0
    in_define = False
    position = 0
    for line in text.split("\n"):
        if not in_define and re.match(r"\s*#", line):
            in_define = re.match(r"\s*#\s*define\b", line) is not None
            body = re.match(r"\s*#\s*define\s+\w+(\([^)]*\))?", line) if in_define else None
            start = body.end() if body else len(line)
        else:
            start = 0
        for match in re.compile(r"[{}]|([A-Za-z_]\w*)\s*\(").finditer(line, start):
            if match.group() == "{":
                depth += not in_define
            elif match.group() == "}":
                depth -= not in_define
            elif depth > 0 or in_define:
                yield match.group(1), line[:match.start()], position + match.start()
        in_define = in_define and line.endswith("\\")
        position += len(line) + 1


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def allowed(text, line, rule):
    return re.search(r"lint: allow %s: [^\s*]" % rule, text.split("\n")[line - 1]) is not None


def library_sources(root):
    for path in files(root):
        if re.fullmatch(r"(preload|enforcer)/[^/]+\.[ch]", path) and not TOOLS_ONLY.fullmatch(path):
            yield path


def driver_only_through_real(root):
    """In preload/ the driver is called through the tables of real pointers alone: a hook's `real`,
    `vcap_own` for the few calls of our own. Any other call could find a hook."""
    for path in files(root):
        if not re.fullmatch(r"preload/[^/]+\.[ch]", path):
            continue
        text = read(root, path)
        for name, before, offset in calls(text):
            if re.match(r"(cu|nvml)[A-Z]", name) and not re.search(r"\b(real(_nvml)?|vcap_own)\.$", before):
                yield path, line_of(text, offset), "%s is called directly" % name


def no_cuda_in_enforcer(root):
    """enforcer/ includes no CUDA header; in preload/ only cuda_abi.h includes the toolkit's."""
    for path in files(root):
        if not path.endswith((".c", ".h", ".S", ".in", ".inc")):
            continue
        text = read(root, path)
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', text, re.M):
            header = os.path.basename(match.group(1))
            toolkit = re.fullmatch(r"(cu|cuda\w*|cupti\w*|nvml)\.h", header) is not None
            ours = header.startswith("cuda_") or match.group(1).startswith("preload/")
            where = line_of(text, match.start())
            if path.startswith("enforcer/") and (toolkit or ours):
                yield path, where, "enforcer/ must not include %s" % match.group(1)
            if (path.startswith("preload/") and toolkit and not ours
                    and path != "preload/cuda_abi.h"):
                yield path, where, "only preload/cuda_abi.h includes %s" % match.group(1)


def forbidden_calls(root):
    """What goes into the library calls nothing that could harm the process it lives in."""
    reasons = {name: why for why, names in FORBIDDEN.items() for name in names.split()}
    for path in library_sources(root):
        text = read(root, path)
        for name, before, offset in calls(text):
            if name in reasons and not re.search(r"(\.|->)\s*$", before):
                yield path, line_of(text, offset), "%s %s" % (name, reasons[name])


def short_files(root):
    """Files stay short enough to be read."""
    for path in files(root):
        text = read(root, path) if path.endswith(SOURCE_ENDINGS) else None
        if text and text.count("\n") > LONGEST_FILE:
            yield path, LONGEST_FILE + 1, "has %d lines, %d are allowed" % (
                text.count("\n"), LONGEST_FILE)


def no_leftovers(root):
    """No marker of unfinished work: an issue says it better."""
    pattern = re.compile(r"\b(%s)\b" % "|".join(MARKERS))
    for path in files(root):
        text = read(root, path) or ""
        for match in pattern.finditer(text):
            yield path, line_of(text, match.start()), "left-over marker " + match.group()


def no_private_paths(root):
    """No path of one developer's machine."""
    pattern = re.compile(r"(?<![\w.$}/])/(wo" r"rk|ho" r"me|Us" r"ers)/[A-Za-z]")
    for path in files(root):
        text = read(root, path) or ""
        for match in pattern.finditer(text):
            yield path, line_of(text, match.start()), "path of a private machine: " + match.group()


def scripts_are_executable(root):
    """A file with an interpreter line can be run, and a shell script has one."""
    for path in files(root):
        text = read(root, path) or ""
        is_script = text.startswith("#!")
        if path.endswith(".sh") and not is_script:
            yield path, 1, "has no interpreter line"
        if is_script and not os.access(os.path.join(root, path), os.X_OK):
            yield path, 1, "has an interpreter line but is not executable"


RULES = [driver_only_through_real, no_cuda_in_enforcer, forbidden_calls, short_files, no_leftovers,
         no_private_paths, scripts_are_executable]


def check(root, rules):
    """All findings as (path, line, rule, words), those that their line allows left out."""
    for rule in rules:
        for path, line, words in rule(root):
            if not allowed(read(root, path) + "\n" * line, line, rule.__name__):
                yield path, line, rule.__name__, words


def main():
    by_name = {rule.__name__: rule for rule in RULES}
    unknown = [name for name in sys.argv[2:] if name not in by_name]
    if len(sys.argv) < 2 or unknown or not os.path.isdir(sys.argv[1]):
        print("usage: source_rules.py ROOT [RULE...]; rules: " + " ".join(by_name), file=sys.stderr)
        return 2
    findings = list(check(sys.argv[1], [by_name[n] for n in sys.argv[2:]] or RULES))
    for path, line, rule, words in findings:
        print("%s:%d: %s: %s" % (path, line, rule, words))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
