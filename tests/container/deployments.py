"""Deployment samples, run in real podman: their mounts, environment and ceilings, as they are written.

The image is a Debian root, the program samples/pair, the card simulated; paths on the host are those of this
run. What a sample's own platform adds (ECS: the MPS variables) is added as it does. Nothing is judged here
that only that platform could judge; tests/deploy holds the files to published schemas.
"""
import json
import os
import re
import subprocess

from matrix import Failure, Talk, words
from runtimes import Box

CARD_MIB = 24576


def mapped(bench, folder, host, mib):
    """A path of a sample's host on this one; the ledger is made if it is one."""
    known = {"/usr/lib/libvramcap.so": os.path.join(bench.prefix, "lib", "libvramcap.so"),
             "/usr/lib/vramcap/ld.so.preload": os.path.join(bench.prefix, "lib", "vramcap", "ld.so.preload")}
    if host in known:
        return known[host]
    if os.path.dirname(host) == "/run/vramcap" and host.endswith(".ledger"):
        path = os.path.join(folder, os.path.basename(host))
        if not os.path.exists(path):
            bench.host_ledger(path, mib if bench.can_create else None)
        return path
    raise Failure("a path that no package makes: %s" % host)


def start(bench, podman, root, folder, mib, env, mounts):
    cards = os.path.join(folder, "cards")
    os.makedirs(cards, exist_ok=True)
    os.chmod(cards, 0o1777)
    env = dict(bench.base_env(), VRAMCAP_SIM_STATE="/cards/state", VRAMCAP_SIM_CARDS=str(CARD_MIB), **env)
    mounts = bench.base_mounts() + [(cards, "/cards", ())] + [(mapped(bench, folder, host, mib), inside, options)
                                                              for host, inside, options in mounts]
    return Talk(podman.command(Box(root, ["/opt/test/bin/pair"], env, mounts)))


def held(talks):
    """{name: (talk, MIB, ledger)}: all at once; each by its own ceiling, as its ledger says too."""
    try:
        for name, (talk, mib, ledger, bench) in talks.items():
            said = words(talk.line())
            if said.get("total") != str(mib) or said.get("second") != "CUDA_ERROR_OUT_OF_MEMORY" or \
                    said.get("then") != "CUDA_SUCCESS":
                raise Failure("%s: %s" % (name, said))
            gpu = bench.dump(ledger)["gpus"][0]
            if gpu["ceiling_bytes"] != mib << 20 or gpu["refusals"] < 1:
                raise Failure("%s: the ledger says %s" % (name, gpu))
    finally:
        for talk, _, _, _ in talks.values():
            talk.end()
    return "held"


def ecs(bench, podman, root, samples):
    with open(os.path.join(samples, "ecs", "task-definition.json"), encoding="utf-8") as f:
        task = json.load(f)
    folder, talks = bench.folder(), {}
    sources = {volume["name"]: volume["host"]["sourcePath"] for volume in task["volumes"]}
    for container in task["containerDefinitions"]:
        mib = container["resourceRequirements"][0]["sharingStrategy"]["nvidiaMps"]["memory"]
        env = {pair["name"]: pair["value"] for pair in container["environment"]}
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=%dM" % mib  # what the ECS agent sets
        mounts = [(sources[m["sourceVolume"]], m["containerPath"], ("ro",) if m.get("readOnly") else ())
                  for m in container["mountPoints"]]
        ledger = [mapped(bench, folder, host, mib) for host, _, _ in mounts if host.endswith(".ledger")][0]
        talks[container["name"]] = (start(bench, podman, root, folder, mib, env, mounts), mib, ledger, bench)
    return held(talks)


def tool(name, path, *argv, **environment):
    """Output of the sample's own tool, which run.sh has fetched; the environment says where to."""
    folder = os.environ.get("VRAMCAP_" + name)
    if not folder:
        raise ImportError(name.lower())
    done = subprocess.run([folder + path, *argv], capture_output=True, text=True, check=False,
                          env=dict(environment, PATH="/usr/bin:/bin", HOME="/nonexistent"))
    if done.returncode != 0:
        raise Failure("%s: %s" % (name.lower(), done.stderr[-600:]))
    return done.stdout


def compose(bench, podman, root, samples):
    """As Docker Compose understands it (which refuses what its schema does not know)."""
    services = json.loads(tool("COMPOSE", "/usr/libexec/docker/cli-plugins/docker-compose", "--file",
                               os.path.join(samples, "compose", "compose.yaml"), "config", "--format",
                               "json"))["services"]
    folder, talks = bench.folder(), {}
    for name, service in services.items():
        mounts, mib = [], int(service["environment"]["VRAMCAP_MEMORY_MIB"])
        for volume in service["volumes"]:
            if volume["type"] != "bind":
                raise Failure("%s: %s" % (name, volume))
            if volume["source"].endswith(".ledger") and volume["bind"].get("create_host_path"):
                raise Failure("%s: a folder would be made for a ledger: %s" % (name, volume))
            mounts.append((volume["source"], volume["target"], ("ro",) if volume.get("read_only") else ()))
        if service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] != ["gpu"]:
            raise Failure("%s has no GPU: %s" % (name, service["deploy"]))
        ledger = [mapped(bench, folder, host, mib) for host, _, _ in mounts if host.endswith(".ledger")][0]
        talks[name] = (start(bench, podman, root, folder, mib, service["environment"], mounts), mib, ledger, bench)
    return held(talks)


def cdi(bench, podman, root, samples, device=None):
    """The template, installed where podman reads it, with this run's paths in it."""
    with open(os.path.join(samples, "cdi", "vramcap-web.json"), encoding="utf-8") as f:
        spec = json.load(f)
    folder = bench.folder()
    edits = spec["devices"][0]["containerEdits"]
    mib = int(dict(pair.split("=", 1) for pair in edits["env"])["VRAMCAP_MEMORY_MIB"])
    for mount in edits["mounts"]:
        mount["hostPath"] = mapped(bench, folder, mount["hostPath"], mib)
    with open("/run/cdi/vramcap-web.json", "w", encoding="utf-8") as f:
        json.dump(spec, f)
    env = dict(bench.base_env(), VRAMCAP_SIM_CARDS=str(CARD_MIB))
    device = device or "%s=%s" % (spec["kind"], spec["devices"][0]["name"])
    box = Box(root, ["/opt/test/bin/pair"], env, bench.base_mounts(), podman=["--device", device])
    return held({"web": (Talk(podman.command(box)), mib, os.path.join(folder, "web.ledger"), bench)})


def hook(bench, podman, root, samples):
    """The hook's template, in a folder of hooks, with this run's paths in it."""
    folder = bench.folder()
    ledgers = os.path.join(folder, "ledgers")
    os.mkdir(ledgers)
    with open(os.path.join(samples, "hooks", "vramcap.json"), encoding="utf-8") as f:
        spec = json.load(f)
    program = os.path.basename(spec["hook"]["path"])
    prefix = bench.prefix
    spec["hook"].update(path=os.path.join(samples, "hooks", program), args=[
        program, "--tool", bench.tool, "--library", os.path.join(prefix, "lib", "libvramcap.so"), "--preload",
        os.path.join(prefix, "lib", "vramcap", "ld.so.preload"), "--ledgers", ledgers])
    with open(os.path.join(folder, "vramcap.json"), "w", encoding="utf-8") as f:
        json.dump(spec, f)

    def started(*annotation):
        env = dict(bench.base_env(), VRAMCAP_SIM_CARDS=str(CARD_MIB), VRAMCAP_MEMORY_MIB="1")
        box = Box(root, ["/opt/test/bin/pair"], env, bench.base_mounts(),
                  podman=[word for text in annotation for word in ("--annotation", text)])
        return Talk(podman.command(box, "--hooks-dir", folder))

    free = started()
    said = words(free.line())
    free.end()
    if said.get("total") != str(CARD_MIB) or os.listdir(ledgers):
        raise Failure("without an annotation: %s, %s" % (said, os.listdir(ledgers)))
    _, err = started("vramcap.memory_mib=4G").end()
    if "vramcap.memory_mib=4G is no number of MiB" not in err and "exit status 1" not in err:
        raise Failure("an annotation that says nothing: %s" % err)
    capped = started("vramcap.memory_mib=4096")
    capped.line()
    made = os.listdir(ledgers)
    verdict = held({"hook": (capped, 4096, os.path.join(ledgers, made[0]), bench)})
    if os.listdir(ledgers):
        raise Failure("a ledger outlives its container: %s" % os.listdir(ledgers))
    return verdict


def quadlet(bench, podman, root, samples):
    """What podman's generator makes of the unit: its device, with the template of `vramcap cdi`."""
    unit = tool("QUADLET", "/usr/libexec/podman/quadlet", "--dryrun", QUADLET_UNIT_DIRS=os.path.join(samples, "quadlet"))
    if "[X-Container]" not in unit:
        raise Failure("the generator made no unit: %s" % unit)
    run = re.search(r"^ExecStart=.*/podman run (.*)$", unit, re.M).group(1)
    devices = re.findall(r"--device[= ](vramcap/\S+)", run)
    with open(os.path.join(samples, "cdi", "vramcap-web.json"), encoding="utf-8") as f:
        ledger = json.load(f)["devices"][0]["containerEdits"]["mounts"][-1]["hostPath"]
    if len(devices) != 1 or not re.search("^ExecStartPre=.*vramcap create %s " % re.escape(ledger), unit, re.M):
        raise Failure("quadlet: %s" % unit)
    return cdi(bench, podman, root, samples, devices[0])


DEPLOYMENTS = (("`cdi/vramcap-web.json`", cdi), ("`hooks/vramcap.json`, ledger made and removed by it", hook),
               ("`ecs/task-definition.json`", ecs),
               ("`compose/compose.yaml`, both services at once", compose),
               ("`quadlet/vramcap-web.container`", quadlet))


def run(bench, runtimes, roots, samples):
    """(table lines, failures, what was left out)."""
    engines = ("podman", "podman, crun")
    out, failures, left = ["| sample | %s |" % " | ".join(engines), "| --- | --- | --- |"], [], []
    for title, function in DEPLOYMENTS:
        cells = []
        for engine in engines:
            try:
                if engine not in runtimes or "bookworm" not in roots:
                    raise ImportError("%s, or a root of bookworm" % engine)
                cells.append(function(bench, runtimes[engine], roots["bookworm"], samples))
            except ImportError as why:
                cells.append("not run")
                left.append("%s, %s: not here: %s" % (title, engine, why))
            except (Failure, OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as why:
                cells.append("FAILED")
                failures.append("%s, %s: %s" % (title, engine, why))
        out.append("| %s | %s |" % (title, " | ".join(cells)))
    return out, failures, left
