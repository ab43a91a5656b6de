#!/usr/bin/env python3
"""Real containers (bubblewrap: mount, PID and IPC namespaces of their own) run samples on the simulated
card, a real agent reads their ledgers and asks the simulated driver, a real Prometheus scrapes it.

    containers.py BUILD [--quick]      --quick: without Prometheus

What the queries say is compared with what was done: containers are started, killed, restarted and
resized; one runs without the library, one with it but switched off. Prints a line per step; ends with 0, 1
at the first step that fails, or 77 where there is no bubblewrap, no root or no Prometheus (1 where
VRAMCAP_MUST_WORK=1).
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

MIB = 1 << 20
CONTEXT_MIB = 64
BUILD = os.path.abspath(sys.argv[1])
QUICK = "--quick" in sys.argv
WORK = tempfile.mkdtemp(prefix="vramcap-containers-", dir="/dev/shm")
LEDGERS = WORK + "/ledgers"
AGENT = BUILD + "/enforcer/agent/vramcap-agent"
TOOL = BUILD + "/enforcer/cli/vramcap"
LIBRARY = BUILD + "/libvramcap.so"
children = []


def skip(words):
    print("skipped: " + words)
    sys.exit(1 if os.environ.get("VRAMCAP_MUST_WORK") == "1" else 77)


def check(condition, words):
    print(("ok    " if condition else "FAILED ") + words, flush=True)
    if not condition:
        with open(WORK + "/agent.log") as log:
            print(log.read()[-4000:])
        sys.exit(1)


def start(arguments, **more):
    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, **more)
    children.append(child)
    return child


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path):
    with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=10) as answer:
        return answer.read().decode()


def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return True
        except (OSError, ValueError, KeyError, IndexError):
            pass
        time.sleep(0.2)
    return False


def container(ledger, *command, library=True, variables=(), new_pids=True):
    """A container with the host's ledger at /run/vramcap/ledger (None: no mount)."""
    arguments = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
                 "--bind", WORK, WORK, "--tmpfs", "/run", "--unshare-ipc", "--die-with-parent",
                 "--setenv", "LD_LIBRARY_PATH", BUILD + "/sim", "--setenv", "VRAMCAP_SIM_STATE", WORK + "/sim",
                 "--setenv", "VRAMCAP_SIM_CONTEXT_MIB", str(CONTEXT_MIB)]
    if ledger:
        arguments += ["--bind", LEDGERS + "/" + ledger, "/run/vramcap/ledger"]
    if library:
        arguments += ["--setenv", "LD_PRELOAD", LIBRARY]
    for variable in variables:
        arguments += ["--setenv"] + variable.split("=", 1)
    if new_pids:
        # the simulated driver says the number inside, and that would be 3 in each: let them differ
        shell = "for i in $(seq %d); do /bin/true; done; \"$@\" & wait" % (7 * len(children) + 1)
        arguments += ["--unshare-pid", "/bin/bash", "-c", shell, "sh"]
    return start(arguments + list(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def greedy(block, hold=600):
    return [BUILD + "/samples/greedy", "--block", str(block), "--hold", str(hold)]


def server(weights):
    return [BUILD + "/samples/server", "--weights", str(weights), "--activation", "16", "--cache", "0",
            "--seconds", "600"]


class Agent:
    def __init__(self):
        self.port = free_port()
        self.start()

    def start(self):
        log = open(WORK + "/agent.log", "a")
        self.child = start([AGENT, "--listen", "127.0.0.1:%d" % self.port, "--ledger-dir", LEDGERS,
                            "--scan-interval", "1", "--interval", "0.2", "--nvml-interval", "0.2", "--no-mps",
                            "--nvml", BUILD + "/sim/libnvidia-ml.so.1", "--state", WORK + "/state"],
                           stderr=log, stdout=log,
                           env=dict(os.environ, VRAMCAP_SIM_STATE=WORK + "/sim"))

    def containers(self):
        document = json.loads(get(self.port, "/v1/containers"))
        return {c["container"]: c for c in document["containers"]}, document["passive"]

    def gpu(self, name):
        return self.containers()[0][name]["gpus"][0]


class Prometheus:
    def __init__(self, agent_port):
        self.port = free_port()
        with open(WORK + "/prometheus.yml", "w") as f:
            f.write("global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
                    "scrape_configs:\n"
                    "  - job_name: vramcap\n"
                    "    static_configs: [{targets: ['127.0.0.1:%d']}]\n" % agent_port)
        log = open(WORK + "/prometheus.log", "w")
        self.child = start([shutil.which("prometheus"), "--config.file=" + WORK + "/prometheus.yml",
                            "--storage.tsdb.path=" + WORK + "/tsdb",
                            "--web.listen-address=127.0.0.1:%d" % self.port], stdout=log, stderr=log)

    def query(self, expression):
        """The values by their container label; one value without labels under ''."""
        answer = json.loads(get(self.port, "/api/v1/query?query=" + urllib.parse.quote(expression)))
        return {one["metric"].get("container", ""): float(one["value"][1])
                for one in answer["data"]["result"]}

    def becomes(self, expression, wanted, words):
        last = [None]

        def is_so():
            last[0] = self.query(expression)
            return last[0] == wanted
        good = wait_for(is_so)
        check(good, "%s: %s = %s" % (words, expression, last[0]))


def create(name, mib):
    done = subprocess.run([TOOL, "create", "--memory", str(mib), LEDGERS + "/" + name])
    check(done.returncode == 0, "vramcap create %s with %d MiB" % (name, mib))


def what_the_agent_alone_says(agent):
    """Returns the containers that go on running."""
    web = container("web", *server(300))
    batch = container("batch", *greedy(100))
    check(wait_for(lambda: agent.gpu("web")["charged_bytes"] >= 300 * MIB), "web holds its weights")
    check(wait_for(lambda: agent.gpu("batch")["charged_bytes"] == 500 * MIB), "batch took what it got")
    gpu = agent.gpu("batch")
    check(gpu["ceiling_bytes"] == 500 * MIB and gpu["ceiling_source"] == "host", "under the host's ceiling")
    check(gpu["refusals_total"] == 1, "and was refused once")
    check(wait_for(lambda: agent.gpu("batch")["unaccounted_bytes"] == CONTEXT_MIB * MIB),
          "the driver sees its context besides")
    check(wait_for(lambda: all(p["host_pid"] for p in agent.containers()[0]["batch"]["processes"])),
          "its processes have their numbers on the host")
    found = agent.containers()[0]["batch"]
    check(found["tampered"] in (False, None) and found["host_made"] is True, "and its ceilings are the host's")

    naked = container("naked", *greedy(1000, 600), library=False, new_pids=False)
    check(wait_for(lambda: agent.gpu("naked")["unprotected_processes"] == 1),
          "a process without the library in a capped container is unprotected")
    check(agent.gpu("naked")["unaccounted_bytes"] > 10000 * MIB, "and all that it took is unaccounted")
    naked.kill()
    naked.wait()
    check(wait_for(lambda: agent.containers()[0]["naked"]["gpus"] == []
                   or agent.gpu("naked")["unprotected_processes"] == 0), "until it ends")

    idle = container(None, *greedy(50), variables=["VRAMCAP_ENABLE=0"])
    reason = "VRAMCAP_ENABLE is 0"
    check(wait_for(lambda: any(p["reason"] == reason for p in agent.containers()[1])),
          "a process with the library switched off is passive, with the reason")
    idle.kill()
    idle.wait()

    private = container(None, *greedy(30), variables=["VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=90"])

    def by_process():
        return [c for c in agent.containers()[0].values()
                if c["gpus"] and c["gpus"][0]["ceiling_bytes"] == 90 * MIB and c["state"] == "ok"]
    check(wait_for(lambda: by_process()[0]["gpus"][0]["charged_bytes"] == 90 * MIB),
          "a ledger without any mount is found through its process")
    private.kill()
    private.wait()
    check(wait_for(lambda: not by_process()), "and is gone when that is gone")
    return web, batch


def what_prometheus_says(agent, web, batch):
    prometheus = Prometheus(agent.port)
    check(wait_for(lambda: prometheus.query("up") == {"": 1}), "Prometheus scrapes the agent")
    only = 'container=~"web|batch"'
    prometheus.becomes("sum by (container) (vramcap_ceiling_bytes{%s}) / 1048576" % only,
                       {"web": 1000, "batch": 500}, "ceilings")
    prometheus.becomes('sum by (container) (vramcap_charged_bytes{container="batch"}) / 1048576',
                       {"batch": 500}, "charge")
    prometheus.becomes("sum by (container) (vramcap_processes{%s})" % only, {"web": 1, "batch": 1}, "processes")
    prometheus.becomes("vramcap_unaccounted_bytes{container=\"batch\"} / 1048576", {"batch": CONTEXT_MIB},
                       "unaccounted")
    prometheus.becomes("vramcap_refusals_total{container=\"batch\"}", {"batch": 1}, "refusals")

    done = subprocess.run([TOOL, "resize", "--memory", "2000", LEDGERS + "/web"])
    check(done.returncode == 0, "vramcap resize web to 2000 MiB")
    prometheus.becomes('vramcap_ceiling_bytes{container="web"} / 1048576', {"web": 2000}, "a resized ceiling")
    check(agent.containers()[0]["web"]["tampered"] in (False, None), "which is no tampering")

    batch.kill()
    batch.wait()
    prometheus.becomes('vramcap_charged_bytes{container="batch"}', {"batch": 0}, "a killed container holds nothing")
    prometheus.becomes('vramcap_processes{container="batch"}', {"batch": 0}, "and has no process")
    again = container("batch", *greedy(100))
    prometheus.becomes('vramcap_charged_bytes{container="batch"} / 1048576', {"batch": 500}, "a restarted one")
    prometheus.becomes('vramcap_refusals_total{container="batch"}', {"batch": 2}, "goes on counting")

    agent.child.send_signal(signal.SIGKILL)
    agent.child.wait()
    os.unlink(LEDGERS + "/batch")  # a new ledger of the same name, while nobody looks
    again.kill()
    again.wait()
    create("batch", 400)
    third = container("batch", *greedy(100))
    agent.start()
    prometheus.becomes('vramcap_ceiling_bytes{container="batch"} / 1048576', {"batch": 400}, "a new ledger")
    prometheus.becomes('vramcap_refusals_total{container="batch"}', {"batch": 3},
                       "the counter goes on after a killed agent and with a new ledger")
    prometheus.becomes('resets(vramcap_refusals_total{container="batch"}[10m])', {"batch": 0}, "and never went back")

    web.terminate()
    web.wait()
    os.unlink(LEDGERS + "/web")
    prometheus.becomes('vramcap_ceiling_bytes{container="web"}', {}, "what is gone has no ceiling")
    check("web" in agent.containers()[0] and agent.containers()[0]["web"]["state"] == "gone",
          "and is shown as gone")
    metrics = get(agent.port, "/metrics")
    lint = subprocess.run(["promtool", "check", "metrics"], input=metrics, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(lint.returncode == 0 and not lint.stdout.strip(), "promtool check metrics is content " + lint.stdout)
    doubles = [line for line in metrics.splitlines() if not line.startswith("#")]
    check(len({re.sub(r" \S+$", "", line) for line in doubles}) == len(doubles), "no series is there twice")
    events = [line for line in open(WORK + "/agent.log") if "event=refusal container=batch" in line]
    check(len(events) == 3, "each refusal is one line in the log")
    third.kill()
    third.wait()


def main():
    if os.getuid() != 0 or not shutil.which("bwrap"):
        skip("root and bubblewrap are needed")
    if subprocess.run(["bwrap", "--bind", "/", "/", "--unshare-pid", "true"], stderr=subprocess.DEVNULL).returncode:
        skip("bubblewrap may make no namespaces here")
    if not QUICK and not (shutil.which("prometheus") and shutil.which("promtool")):
        skip("no Prometheus")
    os.mkdir(LEDGERS)
    os.chmod(WORK, 0o755)
    create("web", 1000)
    create("batch", 500)
    create("naked", 500)
    agent = Agent()
    try:
        check(wait_for(lambda: get(agent.port, "/healthz") == "ok\n"), "the agent is well")
        web, batch = what_the_agent_alone_says(agent)
        if not QUICK:
            what_prometheus_says(agent, web, batch)
        agent.child.terminate()
        check(agent.child.wait(10) == 0, "the agent ends when it is asked to")
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
