#!/usr/bin/env python3
"""The table of bench/run.sh: the bare simulated driver against vramcap in front of it.

Each row is measured alternately without and with the library, in processes of their own; the figure is
the median of the runs, the spread their least and greatest.  What a row's bar is set on:
    added     difference of the two columns
    times     ratio of the two columns
    own       ratio of the vramcap column to that of another row
    value     the vramcap column itself
    none      for information
The bars are those of the project's issue list; docs/performance.md explains them.  All times are of this
machine: a row says something about vramcap only by its two columns together.  Exit code 0 when every bar
is met, 1 when not, 2 when a row could not be measured.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUESTS = ROOT / "tests/data/libcudart_13_0_requests.txt"
BUDGET_S = 235  # rows that are left then are reported as not measured


class Row:
    def __init__(self, text, command, bar=None, on="none", unit="ns", runs=None, figure=0, of=None):
        self.text, self.command, self.bar, self.on = text, command, bar, on
        self.unit, self.runs, self.figure, self.of = unit, runs, figure, of


def pair(order, live, bar=None, runs=None):
    return Row(f"alloc+free, {live:,} live, {order}", ["pair", order, str(live)], bar,
               "added" if bar else "none", runs=runs)


def rows():
    yield pair("lifo", 1, 120)
    for order in "lifo", "fifo", "random":
        yield pair(order, 100, 120)
        yield pair(order, 10000, 160)
        yield pair(order, 100000, 250)
        yield pair(order, 1000000, runs=3)
    for threads in 1, 2, 4, 8:
        yield Row(f"alloc+free, {threads} threads, core ns", ["threads", str(threads)], runs=3)
    for processes in 1, 2, 3, 4:
        yield Row(f"alloc+free, {processes} processes, core ns", ["processes", str(processes)],
                  1.5 if processes > 1 else None, "own" if processes > 1 else "none", runs=3,
                  of="alloc+free, 1 processes, core ns")
    for word, text in ("floor", "one word moved twice"), ("floor-recorded", "moved and recorded twice"):
        yield Row(f"floor: {text}, 4 processes", [word, "4"], runs=3)
    yield Row("async alloc+free", ["async"], 250, "added")
    yield Row("VMM create+map+unmap+release", ["vmm"])
    yield Row("array create+destroy", ["array"])
    yield Row("cuMemGetInfo", ["info"], 60, "added")
    yield Row("kernel launch (not hooked)", ["launch"], 2, "added")
    yield Row("graph launch, no memory nodes", ["graph"], 15, "added")
    yield Row("stream synchronize, nothing to settle", ["sync"], 5, "added")
    yield Row("dlsym of a name that is not CUDA's", ["dlsym"], 5, "added")
    yield Row("439 look-ups of libcudart", ["lookups", str(REQUESTS)], 100, "added", "us", runs=9)
    for count, times in (1, 2000), (8, 1000), (64, 300), (256, 100):
        yield Row(f"refusal, {count} processes", ["refusal", str(count), str(times)], unit="us", runs=3)
    for count in 1, 256:
        yield Row(f"first allocation, {count} processes", ["attach", str(count)], unit="us", runs=3)
    yield Row("start of /bin/true", ["start", "400", "/bin/true"], 45, "added", "us")
    python = shutil.which("python3") or sys.executable
    yield Row("start of python3 -c pass", ["start", "15", python, "-S", "-c", "pass"], unit="us", runs=3)
    yield Row("300 processes at once, p50", ["burst", "300"], unit="us", runs=3)
    yield Row("300 processes at once, p99", ["burst", "300"], 2, "times", "us", runs=3, figure=1)
    yield Row("host memory per live allocation, bytes", ["memory", "100000"], 80, "added", "B", runs=3,
              figure=1)
    yield Row("host memory per process, KiB", ["memory", "100000"], 64, "added", "KiB", runs=3)
    yield Row("ledger file, KiB", ["ledger"], 512, "value", "KiB", runs=1)
    few = "agent processor time, 200 ledgers x 8"
    yield Row("agent scrape, 200 ledgers x 8", ["agent"], 20, "value", "ms", runs=1, figure=0)
    yield Row(few, ["agent"], unit="ms", runs=1, figure=1)
    yield Row("agent memory, 200 ledgers x 8", ["agent"], 20, "value", "MiB", runs=1, figure=2)
    yield Row("agent scrape, 1,000 ledgers x 8", ["agent"], unit="ms", runs=1, figure=3)
    yield Row("agent processor time, 1,000 ledgers x 8", ["agent"], 6, "own", "ms", runs=1, figure=4,
              of=few)  # linear: five times
    yield Row("agent memory, 1,000 ledgers x 8", ["agent"], unit="MiB", runs=1, figure=5)


SCALE = {"ns": 1, "us": 1000, "ms": 1000000, "B": 1, "KiB": 1024, "MiB": 1048576}


class Bench:
    def __init__(self, build, work):
        self.build, self.work, self.cache = build, work, {}
        self.bench = build / "bench/bench"

    def environment(self, capped):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("VRAMCAP_", "LD_", "CUDA_"))}
        clean.update(LD_LIBRARY_PATH=str(self.build / "sim"), VRAMCAP_SIM_BENCH="1",
                     VRAMCAP_SIM_STATE=str(self.work / "sim"))
        if capped:
            clean.update(VRAMCAP_ENABLE="1", VRAMCAP_MEMORY_MIB="20000",
                         VRAMCAP_LEDGER=str(self.work / "ledger"),
                         VRAMCAP_LOG_FILE=str(self.work / "log"),
                         LD_PRELOAD=str(self.build / "libvramcap.so"))
        return clean

    def call(self, command, capped):
        """The figures that one run prints, or None for a failed one, after a line."""
        (self.work / "ledger").unlink(missing_ok=True)
        (self.work / "log").unlink(missing_ok=True)
        if capped and (command[0] == "burst" or command[:2] == ["attach", "256"]):
            self.make_ledger(512)
        try:
            run = subprocess.run([self.bench, *command], env=self.environment(capped), text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        except subprocess.TimeoutExpired:
            print(f"bench {' '.join(command)}: not done after 60 s", file=sys.stderr)
            return None
        if run.returncode != 0:
            print(f"bench {' '.join(command)}: {run.stderr.strip()}", file=sys.stderr)
            return None
        return [float(word) for word in run.stdout.split()]

    def make_ledger(self, slots):
        """More slots than a ledger that the first process makes would have."""
        subprocess.run([self.build / "bench/make_ledger", self.work / "ledger", str(slots)], check=True)

    def start(self, command):
        """Bare and preloaded, alternately in one process."""
        clean = self.environment(False)
        clean.update(BENCH_PRELOAD=str(self.build / "libvramcap.so"), VRAMCAP_ENABLE="1")
        run = subprocess.run([self.bench, *command], env=clean, text=True, stdout=subprocess.PIPE, timeout=60)
        return [[float(word)] for word in run.stdout.split()] if run.returncode == 0 else [None, None]

    def ledger_size(self):
        (self.work / "ledger").unlink(missing_ok=True)
        self.call(["attach-once"], True)
        return (self.work / "ledger").stat().st_blocks * 512.0

    def agent(self):
        """For 200 ledgers, then for 1,000: ns of the answer, ns of processor time, bytes; medians of 40."""
        program = self.build / "tests/agent/test_agent_cost"
        if not program.exists():
            print(f"{program} is missing: the agent and its tests are not built", file=sys.stderr)
            return None
        run = subprocess.run([program, "--figures", "40"], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, timeout=120)
        lines = [line.split() for line in run.stdout.splitlines()]
        figures = [float(word) for line in lines if len(line) == 3 and all(w.isdigit() for w in line)
                   for word in line]
        if run.returncode != 0 or len(figures) != 6:
            print(f"{program.name}: {run.stdout}{run.stderr}", file=sys.stderr)
            return None
        return figures

    def measure(self, row, runs):
        """Two lists of figures, in the row's unit."""
        key = tuple(row.command)
        if row.command[0] == "ledger":
            return [0.0], [self.ledger_size() / SCALE[row.unit]]
        if key not in self.cache:
            bare, capped = [], []
            for _ in range(row.runs or runs):
                if row.command[0] == "start":
                    one, two = self.start(row.command)
                elif row.command[0] == "agent":
                    one, two = [0.0] * 6, self.agent()
                else:
                    one, two = self.call(row.command, False), self.call(row.command, True)
                bare.append(one)
                capped.append(two)
            self.cache[key] = bare, capped
        return [[figures[row.figure] / SCALE[row.unit] for figures in side if figures]
                for side in self.cache[key]]


def judge(row, bare, capped, done):
    """The figure that the bar is on, and what is printed for the bar."""
    if row.on == "added":
        return capped - bare, f"+{row.bar:g}"
    if row.on == "times":
        return capped / bare, f"x{row.bar:g}"
    if row.on == "own":
        return (capped / done[row.of]["vramcap"], f"x{row.bar:g} own") if row.of in done else (None, "")
    if row.on == "value":
        return capped, f"{row.bar:g}"
    return None, ""


def main():
    parser = argparse.ArgumentParser(description="bare simulated driver against vramcap")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="rows whose text has this in it")
    parser.add_argument("--runs", type=int, default=5, help="of each row, each way")
    parser.add_argument("--json", type=pathlib.Path, help="default BUILD/bench/table.json")
    options = parser.parse_args()
    build = options.build.resolve()
    begin, done, bad, unmet = time.monotonic(), {}, 0, 0

    print(f"{'median of ' + str(options.runs) + ' (fewer for slow rows)':<42}{'unit':>4} {'bare':>10}"
          f" {'vramcap':>10} {'added':>9} {'bar':>9}            spread bare / vramcap")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as work:
        bench = Bench(build, pathlib.Path(work))
        for row in rows():
            if options.only not in row.text:
                continue
            if time.monotonic() - begin > BUDGET_S:
                print(f"{row.text:<42} not measured: {BUDGET_S} s are over")
                bad += 1
                continue
            bare, capped = bench.measure(row, options.runs)
            if not bare or not capped:
                print(f"{row.text:<42} not measured")
                bad += 1
                continue
            one, two = statistics.median(bare), statistics.median(capped)
            done[row.text] = {"unit": row.unit, "bare": one, "vramcap": two, "added": two - one,
                              "bare_spread": [min(bare), max(bare)],
                              "vramcap_spread": [min(capped), max(capped)]}
            figure, bar = judge(row, one, two, done)
            met = figure is None or figure <= row.bar
            unmet += not met
            if figure is not None:
                done[row.text].update(bar=row.bar, bar_on=row.on, figure=figure, met=met)
            word = "" if figure is None else "met" if met else "NOT met"
            print(f"{row.text:<42}{row.unit:>4} {one:10.1f} {two:10.1f} {two - one:9.1f} {bar:>9} {word:<8}"
                  f"  {min(bare):.1f}..{max(bare):.1f} / {min(capped):.1f}..{max(capped):.1f}", flush=True)
    report = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
              "kernel": platform.release(), "runs": options.runs, "load": os.getloadavg(),
              "seconds": round(time.monotonic() - begin), "rows": done}
    target = options.json or build / "bench/table.json"
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{unmet} of {sum('bar' in row for row in done.values())} bars not met, {bad} rows not measured, "
          f"{report['seconds']} s, load {report['load'][0]:.1f} on {report['cores']} cores; {target}")
    return 2 if bad else 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
