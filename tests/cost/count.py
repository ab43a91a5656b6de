#!/usr/bin/env python3
"""Counts what the library costs, by callgrind, and holds it against count.json.

What is counted is everything outside the simulated driver and the benchmark program: this library and what
it calls in libc and the loader.  Two kinds of count:
    instructions   may be MARGIN above what is recorded (compilers differ that much)
    locked         instructions with a bus lock (callgrind's event Ge), exactly: no compiler changes those
Exit codes: 0 within the bounds, 1 above them, 77 without valgrind (1 when VRAMCAP_MUST_WORK=1).
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RECORD = HERE / "count.json"
REQUESTS = HERE.parent / "data/libcudart_13_0_requests.txt"
MARGIN = 1.15
FLAT = 1.05  # by how much a pair may cost more with a thousand others live


class Counter:
    def __init__(self, build, work):
        self.build, self.work = build, work

    def run(self, command, preload=True, objects=None, only=None):
        """(instructions, locked) of one run, or of one function in it; of the objects whose path matches,
        else of all but driver and program."""
        out = self.work / "out"
        for name in out, self.work / "ledger":
            name.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith(("VRAMCAP_", "LD_", "CUDA_"))}
        environment.update(LD_LIBRARY_PATH=str(self.build / "sim"), VRAMCAP_SIM_BENCH="1",
                           VRAMCAP_SIM_STATE=str(self.work / "sim"), LANG="C")
        if preload:
            environment.update(LD_PRELOAD=str(self.build / "libvramcap.so"), VRAMCAP_ENABLE="1",
                               VRAMCAP_MEMORY_MIB="20000", VRAMCAP_LEDGER=str(self.work / "ledger"),
                               VRAMCAP_LOG_FILE=str(self.work / "log"))
        done = subprocess.run(["valgrind", "--tool=callgrind", "--collect-bus=yes",
                               f"--callgrind-out-file={out}",
                               *([f"--toggle-collect={only}"] if only else []), *map(str, command)],
                              env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
        return self.add_up(out, objects)

    @staticmethod
    def add_up(out, objects):
        """Costs that functions have themselves; a line after calls= is a callee's and is left out."""
        names, current, skip = {}, "", False
        instructions = locked = 0
        order = []
        for line in out.read_text().splitlines():
            if line.startswith("events:"):
                order = line.split()[1:]
            elif line.startswith("ob="):
                number, _, name = line[3:].partition(" ")
                current = names.setdefault(number, name)
            elif line.startswith("cob="):
                number, _, name = line[4:].partition(" ")
                names.setdefault(number, name)
            elif line.startswith("calls="):
                skip = True
            elif re.match(r"[+*\-\d]", line):
                if skip:
                    skip = False
                    continue
                costs = [int(word) for word in line.split()[1:]]
                wanted = (re.search(objects, current) if objects
                          else not re.search(r"/libcuda\.so|/bench/bench$", current))
                if wanted:
                    cost = dict(zip(order, costs))
                    instructions += cost.get("Ir", 0)
                    locked += cost.get("Ge", 0)
        return instructions, locked

    def each(self, row, count):
        """(instructions, locked) of one operation of a row of the benchmark."""
        found = self.run([self.build / "bench/bench", "--count", count, *row], only="bench_counted")
        return [round(total / count) for total in found]

    def refusal(self):
        """The same, as the difference of two runs: what the others of the ledger do is not counted twice."""
        bench, few, many = self.build / "bench/bench", 4, 24
        one, two = (self.run([bench, "refusal", "1", count]) for count in (few, many))
        return [round((b - a) / (many - few)) for a, b in zip(one, two)]


def pair(counter):
    one = counter.each(["pair", "lifo", "1"], 1000)
    crowd = counter.each(["pair", "lifo", "1000"], 1000)
    if crowd[0] > one[0] * FLAT:
        print(f"a pair with 1,000 live: {crowd[0]} instructions, {one[0]} with one: something walks a list")
        return None
    return {"pair": one}


def calls(counter):
    return {row: counter.each([row], 500) for row in ("async", "info", "graph", "sync")}


def refusal(counter):
    # a line and a thorough look come once a second, by the clock: the lesser of two tries has none
    return {"refusal": min(counter.refusal(), counter.refusal())}


def start(counter):
    # what the loader does for the library is the loader's version's, so only the library's own part of the
    # look-ups, and the whole of a program without CUDA
    lookups = counter.run([counter.build / "bench/bench", "lookups", REQUESTS], objects="libvramcap")
    bare, capped = (counter.run(["/bin/true"], preload, objects=".") for preload in (False, True))
    return {"lookups": list(lookups), "start": [capped[0] - bare[0], capped[1] - bare[1]]}


def above(name, found, recorded):
    bad = []
    if found[0] > recorded[0] * MARGIN:
        bad.append(f"{found[0]} instructions where at most {recorded[0] * MARGIN:.0f} are allowed")
    if found[1] > recorded[1]:
        bad.append(f"{found[1]} locked instructions where {recorded[1]} are")
    print(f"{name:<8} {found[0]:>8} instructions ({recorded[0]} recorded), {found[1]} locked"
          f" ({recorded[1]}){': ' + '; '.join(bad) if bad else ''}")
    return bool(bad)


def main():
    parser = argparse.ArgumentParser(description="instruction counts against count.json")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--key", required=True, help="which record: architecture-compiler-build type")
    parser.add_argument("--record", action="store_true", help="write what is found into count.json")
    parser.add_argument("part", choices=["pair", "calls", "refusal", "start"])
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    must_work = os.environ.get("VRAMCAP_MUST_WORK") == "1"

    if shutil.which("valgrind") is None:
        print("SKIPPED: valgrind is not installed")
        return 1 if must_work else 77
    if options.key not in record and not options.record:
        print(f"SKIPPED: count.json has nothing for {options.key}; count.py --record makes it")
        return 1 if must_work else 77
    with tempfile.TemporaryDirectory() as work:
        found = globals()[options.part](Counter(options.build.resolve(), pathlib.Path(work)))
    if found is None:
        return 1
    if options.record:
        record.setdefault(options.key, {}).update(found)
        text = json.dumps(record, indent=1, sort_keys=True)
        RECORD.write_text(re.sub(r"\[\s+(-?\d+),\s+(-?\d+)\s+\]", r"[\1, \2]", text) + "\n")
        return 0
    return 1 if any([above(name, count, record[options.key][name]) for name, count in found.items()]) else 0


if __name__ == "__main__":
    sys.exit(main())
