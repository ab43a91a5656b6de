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


def compose(bench, podman, root, samples):
    import yaml  # of tests/deploy's pinned packages
    with open(os.path.join(samples, "compose", "compose.yaml"), encoding="utf-8") as f:
        services = yaml.safe_load(f)["services"]
    folder, talks = bench.folder(), {}
    for name, service in services.items():
        mounts, mib = [], int(service["environment"]["VRAMCAP_MEMORY_MIB"])
        for volume in service["volumes"]:
            host, inside, *options = volume.split(":")
            mounts.append((host, inside, tuple(options)))
        ledger = [mapped(bench, folder, host, mib) for host, _, _ in mounts if host.endswith(".ledger")][0]
        talks[name] = (start(bench, podman, root, folder, mib, service["environment"], mounts), mib, ledger, bench)
    return held(talks)


def cdi(bench, podman, root, samples):
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
    box = Box(root, ["/opt/test/bin/pair"], env, bench.base_mounts(),
              podman=["--device", "%s=%s" % (spec["kind"], spec["devices"][0]["name"])])
    return held({"web": (Talk(podman.command(box)), mib, os.path.join(folder, "web.ledger"), bench)})


def quadlet(_bench, _podman, _root, samples):
    generator = "/usr/lib/systemd/system-generators/podman-system-generator"
    if not os.path.exists(generator):
        return "not run: podman before 4.4"
    done = subprocess.run([generator, "--dryrun"], capture_output=True, text=True, check=False,
                          env={"QUADLET_UNIT_DIRS": os.path.join(samples, "quadlet"), "PATH": "/usr/bin:/bin"})
    if done.returncode != 0 or not re.search(r"ExecStart=.*--device[= ]vramcap/ceiling=web", done.stdout):
        raise Failure("quadlet: %s%s" % (done.stdout[-600:], done.stderr[-600:]))
    return "understood by podman's generator"


DEPLOYMENTS = (("`cdi/vramcap-web.json`", cdi), ("`ecs/task-definition.json`", ecs),
               ("`compose/compose.yaml`, both services at once", compose),
               ("`quadlet/vramcap-web.container`", quadlet))


def run(bench, runtimes, roots, samples):
    """(table lines, failures, what was left out)."""
    out, failures, left = ["| sample | in podman |", "| --- | --- |"], [], []
    for title, function in DEPLOYMENTS:
        try:
            if "podman" not in runtimes or "bookworm" not in roots:
                raise ImportError("podman, or a root of bookworm")
            seen = function(bench, runtimes["podman"], roots["bookworm"], samples)
        except ImportError as why:
            seen = "not run"
            left.append("%s: not here: %s" % (title, why))
        except (Failure, OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as why:
            seen = "FAILED"
            failures.append("%s: %s" % (title, why))
        out.append("| %s | %s |" % (title, seen))
    return out, failures, left
