"""Containers by four runtimes, all from one description.

A Box says what the container is made of (root folder, environment, mounts, program); each runtime turns it
into the command that starts it with standard input and output connected. Nothing here knows what is
tested. Everything a runtime stores is below the work folder, and processes end with their container.
Run as a program it is the inner half of `unshare`: mounts, chroot, execve.
"""
import itertools
import json
import os
import shutil
import subprocess
import sys

PODMAN_LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


class Box:
    def __init__(self, root, argv, env=None, mounts=None, uid=0, read_only=False, podman=None,
                 first_uid=0):
        self.root = root
        self.argv = list(argv)
        self.env = {"PATH": "/usr/bin:/bin", **(env or {})}
        # [(path on the host, path in the container, options)]; options: subset of ro noexec nosuid nodev
        self.mounts = list(mounts or [])
        self.uid = uid
        self.read_only = read_only
        self.first_uid = first_uid  # runc: root in there is this user outside
        self.podman = list(podman or [])  # further options of `podman run`


class Runtime:
    """name; tools that must be there; why not (or None) where it cannot run at all."""
    name = ""
    tools = ()

    def __init__(self, work):
        self.work = os.path.join(work, self.name)
        os.makedirs(self.work, exist_ok=True)
        self.numbers = itertools.count(1)  # next() is one step, whatever threads ask

    def missing(self):
        for tool in self.tools:
            if shutil.which(tool) is None:
                return "no " + tool
        return None

    def folder(self):
        path = os.path.join(self.work, "%d" % next(self.numbers))
        os.makedirs(path)
        return path


class Bwrap(Runtime):
    name = "bwrap"
    tools = ("bwrap",)

    def command(self, box):
        argv = ["bwrap", "--ro-bind" if box.read_only else "--bind", box.root, "/",
                "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm",
                "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--clearenv"]
        if box.uid:
            argv += ["--unshare-user", "--uid", str(box.uid)]
        for host, inside, options in box.mounts:
            argv += ["--ro-bind" if "ro" in options else "--bind", host, inside]
        for name, value in box.env.items():
            argv += ["--setenv", name, value]
        return argv + ["--"] + box.argv


class Unshare(Runtime):
    name = "unshare"  # a user namespace of its own, root mapped to the caller
    tools = ("unshare",)

    def command(self, box):
        spec = os.path.join(self.folder(), "spec.json")
        with open(spec, "w", encoding="utf-8") as f:
            json.dump(vars(box), f)
        return ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--fork",
                "--kill-child", sys.executable, "-B", os.path.abspath(__file__), spec]


class Runc(Runtime):
    name = "runc"
    tools = ("runc",)

    def command(self, box):
        folder = self.folder()
        subprocess.run(["runc", "spec", "--bundle", folder], check=True)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        config["root"] = {"path": box.root, "readonly": box.read_only}
        config["process"].update(terminal=False, args=box.argv, cwd="/",
                                 user={"uid": box.uid, "gid": box.uid},
                                 env=["%s=%s" % pair for pair in box.env.items()])
        config["mounts"] += [{"source": host, "destination": inside, "type": "bind",
                              "options": ["rbind"] + (list(options) or ["rw"])}
                             for host, inside, options in box.mounts]
        if box.first_uid:
            ids = [{"containerID": 0, "hostID": box.first_uid, "size": 65536}]
            config["linux"].update(uidMappings=ids, gidMappings=ids)
            config["linux"]["namespaces"].append({"type": "user"})
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        return ["runc", "--root", os.path.join(self.work, "state"), "run", "--bundle", folder,
                "vramcap-test-%d-%s" % (os.getpid(), os.path.basename(folder))]


class Podman(Runtime):
    name = "podman"
    tools = ("podman", "runc", "conmon")

    def base(self):
        return ["podman", "--root", os.path.join(self.work, "storage"), "--runroot",
                os.path.join(self.work, "run"), "--runtime", "runc", "--cgroup-manager", "cgroupfs",
                "--events-backend", "none", "--log-level", "error"]

    def command(self, box):
        argv = self.base() + ["run", "--rm", "--interactive", "--network=none"] + PODMAN_LIMITS
        argv += ["--read-only"] if box.read_only else []
        argv += ["--user", str(box.uid)] if box.uid else []
        for host, inside, options in box.mounts:
            argv += ["--volume", ":".join([host, inside] + ([",".join(options)] if options else []))]
        for name, value in box.env.items():
            argv += ["--env", "%s=%s" % (name, value)]
        return argv + box.podman + ["--rootfs", box.root + ":O"] + box.argv

    def missing(self):
        why = super().missing()
        if why is None:
            tried = subprocess.run(self.base() + ["info"], capture_output=True, text=True, check=False)
            if tried.returncode != 0:
                why = "podman does not work here: " + tried.stderr.strip().splitlines()[-1]
        return why


ALL = (Bwrap, Unshare, Runc, Podman)


def inside(spec):
    """The inner half of `unshare`."""
    with open(spec, encoding="utf-8") as f:
        box = json.load(f)
    root = box["root"]

    def mount(*arguments):
        subprocess.run(("mount",) + arguments, check=True)

    mount("--rbind", root, root)
    mount("-t", "proc", "proc", root + "/proc")
    mount("--rbind", "/dev", root + "/dev")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root + "/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root + "/tmp")
    for host, target, options in box["mounts"]:
        mount("--bind", host, root + target)
        if options:
            mount("-o", "remount,bind," + ",".join(options), root + target)
    os.chroot(root)
    os.chdir("/")
    os.execve(box["argv"][0], box["argv"], box["env"])


if __name__ == "__main__":
    inside(sys.argv[1])
