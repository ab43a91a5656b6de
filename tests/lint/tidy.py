#!/usr/bin/env python3
"""clang-tidy over the files of a build:  tidy.py ROOT BUILD [JOBS]

What was clean stays clean: a file is looked at again only if its preprocessed text, its flags, the
checks or clang-tidy itself have changed since (BUILD/lint-cache holds an empty file per clean one).
Each release of clang-tidy has new checks; those of release 14 decide, another one's findings are shown
and the test skips.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys


def arguments(entry):
    """The compiler's arguments, without those that only gcc knows or that write files."""
    words = shlex.split(entry["command"])[1:] if "command" in entry else entry["arguments"][1:]
    kept = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT", "-MQ"):
            skip = True
        elif word in ("-c", "-MD", "-MMD", entry["file"]):
            continue
        elif word.startswith(("-fsanitize", "-fno-sanitize", "-mno-outline")):
            continue
        else:
            kept.append(word)
    return kept


@functools.lru_cache(maxsize=None)
def settings(folder):
    """The text of every .clang-tidy that holds for a folder's files."""
    path = os.path.join(folder, ".clang-tidy")
    above = os.path.dirname(folder)
    text = settings(above) if above != folder else b""
    if os.path.exists(path):
        with open(path, "rb") as f:
            text += f.read()
    return text


def look(tidy, version, cache, entry):
    """Returns the findings in one file, "" if there are none."""
    flags = arguments(entry)
    expanded = subprocess.run([os.environ.get("CC", "cc"), *flags, "-E", "-P", entry["file"]],
                              cwd=entry["directory"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False).stdout
    checks = settings(os.path.dirname(entry["file"]))
    with open(entry["file"], "rb") as f:
        text = f.read()  # with the comments, for NOLINT is one
    key = hashlib.sha256(b"\0".join([version, checks, text, repr(flags).encode(), expanded]))
    clean = os.path.join(cache, key.hexdigest())
    if os.path.exists(clean):
        return ""
    result = subprocess.run([tidy, "-quiet", entry["file"], "--", *flags, "-Wno-unknown-warning-option"],
                            cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, check=False)
    if result.returncode == 0:
        with open(clean, "w", encoding="utf-8"):
            pass
        return ""
    return result.stdout or result.stderr


def main():
    root, build = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    jobs = int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count()
    tidy = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    commands = os.path.join(build, "compile_commands.json")
    if not tidy or not os.path.exists(commands):
        print("skipped: no clang-tidy" if not tidy else "skipped: no compile_commands.json")
        return 77
    version = subprocess.run([tidy, "--version"], stdout=subprocess.PIPE, check=True).stdout
    cache = os.path.join(build, "lint-cache")
    os.makedirs(cache, exist_ok=True)
    with open(commands, encoding="utf-8") as f:
        entries = {e["file"]: e for e in json.load(f)
                   if e["file"].endswith(".c") and e["file"].startswith(root + os.sep)
                   and not e["file"].startswith(build + os.sep)}
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for findings in pool.map(lambda e: look(tidy, version, cache, e), entries.values()):
            if findings:
                failed += 1
                print(findings.strip(), flush=True)
    print("clang-tidy: %d files, %d with findings" % (len(entries), failed))
    if failed and b"version 14." not in version:
        print("skipped: these are not the findings of clang-tidy 14")
        return 77
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
