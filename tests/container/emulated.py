"""Runs tests of a cross-compiled build in a root of its architecture, emulated:

    emulated.py ROOT PRELOADED <commands        commands: `ctest --show-only=json-v1`

ROOT is where the kernel knows the emulator (aarch64.sh); PRELOADED is put in front of each test program
(tests/support/emulated.c). What the emulator cannot carry is named in CANNOT and must fail: a test that
passes, or is gone, has no business there. A skipped test counts as a failure.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys

PROGRAM_SECONDS = 300
# An emulator keeps a note of each page of address space.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "VRAMCAP_MUST_WORK": "1", "VRAMCAP_SIM_ADDRESSES_MIB": "6144"}
THREAD = "qemu has a thread of its own, and a process with two may not make a user namespace"
NO_ADVICE = "qemu 7 takes %s and does nothing: "
CANNOT = {
    ("test_ledger_reap", "no_child_of_a_fork_storm_inherits_a_lock"):
        NO_ADVICE % "MADV_DONTFORK" + "a child keeps the mapping that holds its parent's lock",
    ("hook_kinds", "cloned"):
        NO_ADVICE % "MADV_WIPEONFORK" + "a child that no handler of fork was told of takes itself for its parent",
    ("hook_kinds", "a_process_of_another_user_namespace_shares_the_ceiling"): THREAD,
    ("hook_kinds", "processes_number_1_of_two_pid_namespaces_share_the_ceiling"): THREAD,
    ("test_ledger_namespace", "nobody_waits_for_a_process_in_the_freezer"):
        "the user namespace in which the emulator is registered may mount no cgroup with a freezer",
}


def commands(text):
    """[(name, argv)]: without the emulator, which the kernel finds by itself."""
    out = []
    for test in json.loads(text)["tests"]:
        argv = test["command"]
        if "qemu" in argv[0]:
            argv = argv[3:]  # qemu -L SYSROOT
        out.append((test["name"], argv))
    return out


def run(root, preloaded, argv):
    try:
        done = subprocess.run(["chroot", root, "/usr/bin/env", "LD_PRELOAD=" + preloaded] + argv, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=PROGRAM_SECONDS, errors="replace", env=ENVIRONMENT)
    except subprocess.TimeoutExpired:
        return -1, "nothing within %d s" % PROGRAM_SECONDS
    return done.returncode, done.stdout + done.stderr


def named(kind, said):
    return set(re.findall(r"^\[ *%s *\] ([a-z]\w*)$" % kind, said, re.M))


def judge(name, status, said):
    """(tests that passed, what is wrong)"""
    bad = named("FAILED", said) | named("ERROR", said) | named("SKIPPED", said)
    passed = named("OK", said) - bad
    cannot = {test for program, test in CANNOT if program == name}
    wrong = ["%s: %s fails" % (name, test) for test in sorted(bad - cannot)]
    wrong += ["%s: %s passes: it is in the list of what cannot" % (name, test) for test in sorted(cannot & passed)]
    wrong += ["%s: there is no %s" % (name, test) for test in sorted(cannot - passed - bad)]
    if not wrong and (status != 0) != bool(bad):
        wrong.append("%s ended with %d" % (name, status))
    return passed, wrong


def main():
    root, preloaded = sys.argv[1:]
    tests = commands(sys.stdin.read())
    wrong, passed, seen = [], 0, set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {name: pool.submit(run, root, preloaded, argv) for name, argv in tests}
        for name, job in jobs.items():
            status, said = job.result()
            good, bad = judge(name, status, said)
            if bad:
                print("\n".join(said.splitlines()[-40:]))
            wrong += bad
            passed += len(good)
            seen.add(name)
    wrong += ["there is no %s" % program for program, _ in CANNOT if program not in seen]
    if passed < 100:
        wrong.append("only %d tests were found" % passed)
    print("%d tests of %d programs pass under the emulator; what it cannot carry:" % (passed, len(tests)))
    for (name, test), reason in CANNOT.items():
        print("  %s, %s: %s" % (name, test, reason))
    for line in wrong:
        print("FAILED: %s" % line)
    sys.exit(1 if wrong else 0)


main()
