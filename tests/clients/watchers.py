"""NVML clients: they allocate nothing, and must show of the container's processes what the ledger says.

The process that holds memory is the C test client (tests/support/client.c).
"""
import re

from machine import MIB, CONTEXT_MIB, Machine, check, same
from sessions import CEILING_MIB, GENEROUS_MIB, vramcap_lines

HELD_MIB = 300


def holder(machine, mib):
    process = machine.start([machine.build.holder, "--by=getproc"])
    for command in ("init", "ctx create 0", "alloc %dm" % mib):
        answer = process.ask(command)
        check(answer.split()[0] == "0", "%s gave %s" % (command, answer))
    return process


def nvml(client):
    """The five parts for programs/use_nvml.py; cells of its row."""
    with client.machine() as machine:
        holder(machine, HELD_MIB)
        process, hello = client.session(machine)
        lines = client.tell(process, "work")["lines"]
        bare = client.tell(process, "figures")["figures"]
        used = (HELD_MIB + CONTEXT_MIB) * MIB
        for where, (free, total) in bare.items():
            same("bare, %s" % where, free, total - used)
    with client.machine(ceiling_mib=GENEROUS_MIB) as machine:
        holder(machine, HELD_MIB)
        process, _ = client.session(machine)
        same("bare and under a ceiling", lines, client.tell(process, "work")["lines"])
        same("slots in the ledger", len(machine.ledger()["by"]), 1)
        same("lines on standard error", vramcap_lines(process.said()), [])
    with client.machine(ceiling_mib=CEILING_MIB) as machine:
        first = holder(machine, HELD_MIB)
        second = holder(machine, HELD_MIB)
        readers = [client.session(machine)[0] for _ in range(2)]
        for count in (2, 1, 0):
            for reader in readers:
                for where, (free, total) in client.tell(reader, "figures")["figures"].items():
                    same("%s with %d holders: total" % (where, count), total, CEILING_MIB * MIB)
                    same("%s with %d holders: free" % (where, count), free,
                         (CEILING_MIB - count * HELD_MIB) * MIB)
            (first if count == 2 else second).end(kill=count == 2)
        third = holder(machine, HELD_MIB)
        answer = third.ask("fill 32m").split()
        check(answer[0] == "2" and int(answer[1]) > 0, "the holder filled up: %s" % answer)
        room = machine.ledger()["free"]
        for where, (free, _) in client.tell(readers[0], "figures")["figures"].items():
            same("%s at the ceiling: free" % where, free, room)
        check(room < 32 * MIB, "room at the ceiling")
    return hello, {"bare": "runs", "under": "same output", "at": "allocates nothing; shows nothing free",
                   "several": "2 readers of 2 processes", "figures": sorted(bare)}


def size(text):
    number, unit = re.fullmatch(r"([\d.]+)([KMGT]?i?B)", text).groups()
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": MIB << 10}[unit]


def nvitop(build, python, version):
    """What the table of nvitop says is used and there, bare and under a ceiling."""
    def shown(machine):
        done = machine.run([python, "-m", "nvitop", "-1", "--colorful"], deadline_s=60)
        check(done.returncode == 0, "nvitop: status %d\n%s" % (done.returncode, done.stderr))
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        found = re.search(r"([\d.]+[KMGT]?i?B) / ([\d.]+[KMGT]?i?B)", text)
        check(found and "Simulated GPU" in text, "nvitop shows no card:\n%s" % text)
        same("nvitop on standard error", vramcap_lines(done.stderr), [])
        return [round(size(what) / MIB) for what in found.groups()]

    with Machine(build) as machine:
        holder(machine, HELD_MIB)
        same("bare", shown(machine), [HELD_MIB + CONTEXT_MIB, 24576])
    with Machine(build, ceiling_mib=GENEROUS_MIB) as machine:
        holder(machine, HELD_MIB)
        same("under a ceiling", shown(machine), [HELD_MIB, GENEROUS_MIB])
    with Machine(build, ceiling_mib=CEILING_MIB) as machine:
        first = holder(machine, HELD_MIB)
        holder(machine, HELD_MIB)
        same("two processes", shown(machine), [2 * HELD_MIB, CEILING_MIB])
        check(first.ask("fill 2m").split()[0] == "2", "the holder was not refused")
        same("at the ceiling", shown(machine), [CEILING_MIB, CEILING_MIB])
    return {"name": "nvitop", "version": version}, {
        "bare": "runs", "under": "runs, shows the ceiling", "at": "allocates nothing; shows all as used",
        "several": "one reader of 2 processes", "figures": ["used and total of its table"]}


