"""One simulated machine in a folder of its own, programs on it with and without vramcap, and both books:
what the card says (simctl) and what the ledger says (vramcap dump)."""
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time

MIB = 1 << 20
CARD_MIB, CONTEXT_MIB = 24576, 64
DEADLINE_S = 120


class Failed(Exception):
    """A check that did not hold."""


def check(condition, text):
    if not condition:
        raise Failed(text)


def same(what, here, there):
    check(here == there, "%s differ:\n  %s\n  %s" % (what, here, there))


class Build:
    """Where the things under test are."""

    def __init__(self, library, tool, sim, holder, bytecode):
        """bytecode: a folder for Python's; packages are installed without it and imported often."""
        self.library, self.tool, self.sim, self.holder, self.bytecode = library, tool, sim, holder, bytecode


class Machine:
    """with Machine(build, card_mib=..., ceiling_mib=...): ceiling_mib None means without vramcap."""

    def __init__(self, build, card_mib=CARD_MIB, ceiling_mib=None):
        self.build, self.ceiling_mib = build, ceiling_mib
        self.folder = tempfile.mkdtemp(prefix="vramcap-clients-")
        self.ledger_path = os.path.join(self.folder, "ledger")
        self.running = []
        keep = ("PATH", "HOME", "LANG", "TERM", "TMPDIR")
        self.environment = {name: os.environ[name] for name in keep if name in os.environ}
        self.environment.update(
            LC_ALL="C.UTF-8", LD_LIBRARY_PATH=build.sim, PYTHONPYCACHEPREFIX=build.bytecode,
            VRAMCAP_SIM_STATE=os.path.join(self.folder, "card"), VRAMCAP_SIM_CARDS=str(card_mib),
            VRAMCAP_SIM_CONTEXT_MIB=str(CONTEXT_MIB), PYTHONUNBUFFERED="1",
            NUMBA_CACHE_DIR=os.path.join(self.folder, "numba"), CUDA_CACHE_PATH=self.folder)
        if ceiling_mib is not None:
            self.environment.update(LD_PRELOAD=build.library, VRAMCAP_ENABLE="1",
                                    VRAMCAP_MEMORY_MIB=str(ceiling_mib), VRAMCAP_LEDGER=self.ledger_path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.end()
        shutil.rmtree(self.folder)

    def run(self, command, deadline_s=DEADLINE_S, **more):
        """Ends by itself; output as text."""
        return subprocess.run(command, env=self.environment, stdin=more.pop("stdin", subprocess.DEVNULL),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              timeout=deadline_s, **more)

    def start(self, command):
        process = Process(self, command)
        self.running.append(process)
        return process

    # ---- the books ----

    def _plain(self, command):
        environment = {name: value for name, value in self.environment.items() if name != "LD_PRELOAD"}
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, timeout=DEADLINE_S, check=True)
        return done.stdout

    def card(self):
        """total, used, alloc, alloc_peak, ... of the card in bytes."""
        line = self._plain([os.path.join(self.build.sim, "simctl"), "show"]).split("\n")[0]
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}

    def ledger(self):
        """charged, ceiling and free bytes, refusals, and charged bytes by process."""
        told = json.loads(self._plain([self.build.tool, "dump", self.ledger_path, "--json"]))
        gpu = told["gpus"][0]
        return {"charged": gpu["charged_bytes"], "free": gpu["free_bytes"], "refusals": gpu["refusals"],
                "ceiling": gpu["ceiling_bytes"],
                "by": {p["pid"]: sum(g["charged_bytes"] for g in p["gpus"])
                       for p in told["processes"] if p["state"] == "alive"}}


class Process:
    """A program that is spoken to line by line."""

    def __init__(self, machine, command):
        self.errors = open(os.path.join(machine.folder, "errors-%d" % len(machine.running)), "w+b")
        self.process = subprocess.Popen(command, env=machine.environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors)
        self.pid, self.rest = self.process.pid, b""

    def send(self, line):
        self.process.stdin.write((line + "\n").encode())
        self.process.stdin.flush()

    def line(self, deadline_s=DEADLINE_S):
        until = time.monotonic() + deadline_s
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            more = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            check(more, "no answer from %s\n%s" % (self.process.args, self.said()))
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def ask(self, line):
        self.send(line)
        return self.line()

    def said(self):
        """All of standard error so far."""
        with open(self.errors.name, "rb") as file:
            return file.read().decode(errors="replace")

    def end(self, kill=False):
        """Its exit status; -signal."""
        if self.process.poll() is None:
            if kill:
                self.process.kill()
            self.process.stdin.close()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        return self.process.returncode
