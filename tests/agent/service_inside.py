#!/usr/bin/env python3
"""Inside the machine that service_in_nspawn.sh boots: the unit runs, sees containers with the
capabilities it has, loses and repeats no event when it is killed, and is restarted by its watchdog.

Every step prints a line; the first that fails ends it with status 1.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

UNIT = "vramcap-agent"
LEDGER = "/run/vramcap/web"
GREEDY = "/build/samples/greedy"
KILLS = 8
ROUNDS = 120


def check(condition, words):
    print(("ok    " if condition else "FAILED ") + words, flush=True)
    if not condition:
        sys.exit(1)


def run(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def show(field):
    return run("systemctl", "show", "-P", field, UNIT).stdout.strip()


def get(path):
    with urllib.request.urlopen("http://127.0.0.1:9478" + path, timeout=5) as answer:
        return answer.read().decode()


def wait_for(what, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def client(*arguments, memory="100", ledger=LEDGER):
    env = dict(os.environ, LD_LIBRARY_PATH="/build/sim", VRAMCAP_SIM_STATE="/run/sim-state")
    return subprocess.Popen(["vramcap", "run", "--memory", memory, "--ledger", ledger, "--", GREEDY, *arguments],
                            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def metric(name, container):
    found = re.search(r"^%s\{container=\"%s\".*\} (\d+)$" % (name, container), get("/metrics"), re.M)
    return int(found.group(1)) if found else None


def journal():
    return run("journalctl", "--no-pager", "-b", "-u", UNIT, "-o", "cat").stdout


def logged_events():
    """Sequence numbers of LEDGER's events as they were logged, and those that say they are repeated."""
    logged, again = [], []
    for line in journal().splitlines():
        found = re.search(r"container=web seq=(\d+)", line)
        if found and "event=lost" not in line:
            (again if " again=1" in line else logged).append(int(found.group(1)))
    return logged, again


def in_ledger():
    text = run("vramcap", "events", "--json", LEDGER).stdout
    return [json.loads(line)["seq"] for line in text.splitlines() if json.loads(line)["seq"]]


def the_unit_starts():
    done = run("systemctl", "start", UNIT)
    check(done.returncode == 0, "the unit starts and says that it is ready " + done.stdout)
    check(show("ActiveState") == "active" and show("SubState") == "running", "it is active")
    check(get("/healthz") is not None, "it answers on loopback")
    with open("/proc/%s/status" % show("MainPID")) as f:
        status = f.read()
    allowed = int(re.search(r"CapBnd:\s*(\w+)", status).group(1), 16)
    check(allowed & ~(1 << 2 | 1 << 19 | 1 << 40) == 0,
          "it has no capability but DAC_READ_SEARCH, SYS_PTRACE, CHECKPOINT_RESTORE (%x)" % allowed)
    check("NoNewPrivs:\t1" in status and "Seccomp:\t2" in status, "no new privileges, filtered system calls")


def containers_are_seen():
    holder = client("--block", "10", "--hold", "200")
    check(wait_for(lambda: metric("vramcap_refusals_total", "web") == 1), "a ledger in the folder is seen")
    inside = subprocess.Popen(
        ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/dev/shm", "--chmod", "1777", "/dev/shm",
         "--unshare-pid", "--unshare-ipc", "--die-with-parent",
         # another user's: without DAC_READ_SEARCH its files in /proc stay closed
         "setpriv", "--reuid=1234", "--regid=1234", "--clear-groups",
         "env", "LD_LIBRARY_PATH=/build/sim", "VRAMCAP_SIM_STATE=/dev/shm/sim-state", "VRAMCAP_ENABLE=1",
         "VRAMCAP_MEMORY_MIB=50", "LD_PRELOAD=/usr/lib/libvramcap.so", GREEDY, "--block", "5", "--hold", "200"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def found():
        for container in json.loads(get("/v1/containers"))["containers"]:
            if container["container"] == "web":
                continue
            for gpu in container["gpus"]:
                if gpu["ceiling_bytes"] == 50 << 20:
                    return all(p["host_pid"] for p in container["processes"])
        return False
    check(wait_for(found, 30), "a container without any mount is seen through /proc, with its host pids")
    inside.kill()
    inside.wait()
    return holder


def killed_agents_lose_and_repeat_nothing():
    before = int(show("NRestarts"))
    start = metric("vramcap_refusals_total", "web")
    kills = 0
    for number in range(ROUNDS):
        client("--block", "10").wait()
        if number % (ROUNDS // KILLS) == 5 and wait_for(lambda: int(show("MainPID")) > 0):
            pid = int(show("MainPID"))
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                kills += 1
    check(kills == KILLS, "killed %d times while %d processes came and went" % (kills, ROUNDS))
    check(wait_for(lambda: show("ActiveState") == "active" and int(show("NRestarts")) == before + kills),
          "it was started again each time")
    wanted = in_ledger()
    check(len(wanted) >= 2 * ROUNDS and wanted == list(range(1, len(wanted) + 1)),
          "the ledger has all its %d events" % len(wanted))
    check(wait_for(lambda: max(logged_events()[0], default=0) >= wanted[-1]), "the last one is in the journal")
    logged, again = logged_events()
    check(sorted(set(logged) | set(again)) == wanted, "no event is missing")
    check(len(logged) == len(set(logged)), "none is there twice")
    check(all(number in logged or again.count(number) >= 1 for number in wanted) and len(again) <= kills,
          "of those interrupted in their line %d were written again and say so" % len(again))
    check(metric("vramcap_refusals_total", "web") == start + ROUNDS, "the counter went on: every refusal once")


def the_watchdog_works():
    restarts = int(show("NRestarts"))
    time.sleep(7)
    check(int(show("NRestarts")) == restarts, "an agent at work is left alone for more than two periods")
    pid = int(show("MainPID"))
    os.kill(pid, signal.SIGSTOP)
    check(wait_for(lambda: int(show("NRestarts")) == restarts + 1, 30), "one that stands still is restarted")
    check("atchdog timeout" in run("journalctl", "--no-pager", "-b", "-u", UNIT).stdout,
          "systemd says that it was the watchdog")
    check(wait_for(lambda: show("ActiveState") == "active" and metric("vramcap_refusals_total", "web")),
          "and it is back")


# What /v1/containers calls a field of `vramcap dump --json`, and what it has only in the metrics or not at all.
NAMES = {"index": "index_in_container", "own_ceiling_bytes": "limit_bytes", "container": "name_in_ledger",
         "gaps": "unaccounted_calls"}
NOT_THERE = {
    "ledger": {"version", "audit", "pass_through", "default_ceiling_bytes", "near_percent", "host_changes"},
    "gpus": {"refused_bytes", "over_peak_bytes", "near", "sources"},
    "processes": {"anomalies", "fault"},
}


def differences(want, have, at="ledger"):
    """Fields of the golden document that the agent's has not, or not with that value."""
    for key, value in want.items():
        name = NAMES.get(key, key)
        if key in NOT_THERE.get(at, ()):
            continue
        if name not in have:
            yield "%s.%s is missing" % (at, name)
        elif not isinstance(value, list):
            if have[name] != value:
                yield "%s.%s is %r, not %r" % (at, name, have[name], value)
        elif len(value) != len(have[name]):
            yield "%d of %s, not %d" % (len(have[name]), name, len(value))
        else:
            for one, other in zip(value, have[name]):
                # a process's own list of GPUs is another kind of object than the ledger's
                yield from differences(one, other, key if at == "ledger" else "charges")


def events_not_logged(label, path):
    """Numbers and kinds of the golden events that are not in the journal exactly once."""
    with open(path) as f:
        wanted = [json.loads(line) for line in f]
    lines = [line for line in journal().splitlines() if "container=%s " % label in line]
    for event in wanted:
        if event["seq"] is None:
            continue
        found = [line for line in lines if " event=%s container=%s seq=%d " % (event["kind"], label, event["seq"]) in line
                 and " bytes=%d " % event["bytes"] in line + " "]
        if len(found) != 1:
            yield "seq %d (%s): %d lines" % (event["seq"], event["kind"], len(found))


def every_released_ledger_is_read():
    folder = "/source/tests/golden"
    newest = int(re.search(r"ledger format (\d+)", run("vramcap-agent", "--version").stdout).group(1))
    missing = [n for n in range(1, newest + 1) if not os.path.exists("%s/ledger-%d.bin" % (folder, n))]
    check(newest >= 1 and not missing,
          "there is an image of each of the %d released formats %s" % (newest, missing or ""))
    for number in range(1, newest + 1):
        label, golden = "old-%d" % number, "%s/ledger-%d" % (folder, number)
        with open(golden + ".bin", "rb") as image, open("/run/vramcap/" + label, "wb") as copy:
            copy.write(image.read())
        with open(golden + ".json") as f:
            wanted = json.load(f)

        def container():
            for one in json.loads(get("/v1/containers"))["containers"]:
                if one["container"] == label and one["state"] == "ok":
                    return one
            return {}
        # the last number of its ring was never written: that it is lost is known after a while
        wait_for(lambda: not list(differences(wanted, container())))
        problems = list(differences(wanted, container()))
        check(not problems, "format %d is read, with the figures it was released with %s"
              % (number, "; ".join(problems)))
        for name in "ceiling", "charged", "peak", "overhead":
            figures = {}
            for uuid, value in re.findall(r'^vramcap_%s_bytes\{container="%s",gpu_uuid="([^"]+)".*\} (\d+)$'
                                          % (name, label), get("/metrics"), re.M):
                figures[uuid] = int(value)
            expected = {gpu["uuid"]: gpu[name + "_bytes"] for gpu in wanted["gpus"]
                        if gpu[name + "_bytes"] is not None}
            check(figures == expected, "the metric vramcap_%s_bytes has them too %s"
                  % (name, "" if figures == expected else figures))
        refused = {gpu["uuid"]: gpu["refusals"] for gpu in wanted["gpus"]}
        counted = dict(re.findall(r'^vramcap_refusals_total\{container="%s",gpu_uuid="([^"]+)".*\} (\d+)$' % label,
                                  get("/metrics"), re.M))
        check(counted == {uuid: str(n) for uuid, n in refused.items()}, "and so has the counter of refusals")
        wait_for(lambda: not list(events_not_logged(label, golden + ".events")))
        problems = list(events_not_logged(label, golden + ".events"))
        check(not problems, "its events are in the journal, each once %s" % "; ".join(problems))


def it_stops():
    done = run("systemctl", "stop", UNIT)
    check(done.returncode == 0 and show("Result") == "success", "it stops cleanly")


def main():
    the_unit_starts()
    holder = containers_are_seen()
    killed_agents_lose_and_repeat_nothing()
    every_released_ledger_is_read()
    the_watchdog_works()
    it_stops()
    holder.kill()


if __name__ == "__main__":
    main()
