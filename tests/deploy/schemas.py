"""Deployment samples against published schemas.

    ECS          the API's own model (botocore's service-2.json): RegisterTaskDefinition
    Kubernetes   the types of the official Python client, read from its sources

Every key must be known, every required one there, every value of the right kind. Before the samples are
judged, each checker has to find a mistake that was put into a copy of one.
"""
import ast
import copy
import glob
import gzip
import json
import os
import sys

import yaml


class Ecs:
    KINDS = {"string": str, "boolean": bool, "integer": int, "long": int, "double": (int, float),
             "float": (int, float)}

    def __init__(self, packages):
        path = glob.glob(os.path.join(packages, "botocore", "data", "ecs", "*", "service-2.json.gz"))[0]
        with gzip.open(path) as f:
            model = json.load(f)
        self.shapes = model["shapes"]
        self.request = model["operations"]["RegisterTaskDefinition"]["input"]["shape"]

    def check(self, value, name=None, where="task"):
        shape = self.shapes[name or self.request]
        kind = shape["type"]
        if kind == "structure":
            if not isinstance(value, dict):
                return ["%s is not an object" % where]
            out = ["%s has no %s" % (where, key) for key in shape.get("required", []) if key not in value]
            out += ["%s: no such key: %s" % (where, key) for key in value if key not in shape["members"]]
            if shape.get("union") and len(value) != 1:
                out.append("%s takes exactly one of %s" % (where, ", ".join(shape["members"])))
            for key in value:
                if key in shape["members"]:
                    out += self.check(value[key], shape["members"][key]["shape"], "%s.%s" % (where, key))
            return out
        if kind in ("list", "map"):
            if not isinstance(value, list if kind == "list" else dict):
                return ["%s is not a %s" % (where, kind)]
            inner = shape["member" if kind == "list" else "value"]["shape"]
            items = enumerate(value) if kind == "list" else value.items()
            return [line for key, item in items for line in self.check(item, inner, "%s[%s]" % (where, key))]
        if not isinstance(value, self.KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
            return ["%s is not a %s: %r" % (where, kind, value)]
        if "enum" in shape and value not in shape["enum"]:
            return ["%s: %r is not one of %s" % (where, value, shape["enum"])]
        if kind in ("integer", "long") and not shape.get("min", value) <= value <= shape.get("max", value):
            return ["%s: %r is out of range" % (where, value)]
        return []


class Kubernetes:
    KINDS = {"StrictStr": str, "StrictBool": bool, "StrictInt": int, "StrictFloat": (int, float)}

    def __init__(self, packages):
        self.fields = {}
        for path in glob.glob(os.path.join(packages, "kubernetes", "client", "models", "v1_*.py")):
            with open(path, encoding="utf-8") as f:
                tree = ast.parse(f.read())
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self.fields[node.name] = dict(self.field(item) for item in node.body
                                                  if isinstance(item, ast.AnnAssign)
                                                  and not item.target.id.startswith("_"))

    @staticmethod
    def field(item):
        if not isinstance(item.value, ast.Call):
            return item.target.id, (item.annotation, item.value is None)
        words = {word.arg: word.value for word in item.value.keywords}
        name = words["serialization_alias"].value if "serialization_alias" in words else item.target.id
        return name, (item.annotation, "default" not in words)

    def check(self, value, kind, where):
        """kind: a class's name, or an annotation as it was parsed."""
        if isinstance(kind, ast.BinOp):  # A | B
            out = self.check(value, kind.left, where)
            return out if out and self.check(value, kind.right, where) else []
        if isinstance(kind, ast.Subscript):
            outer = kind.value.id
            if outer == "Optional":
                return self.check(value, kind.slice, where)
            if not isinstance(value, list if outer == "List" else dict):
                return ["%s is not a %s" % (where, outer)]
            inner = kind.slice if outer == "List" else kind.slice.elts[1]
            items = enumerate(value) if outer == "List" else value.items()
            return [line for key, item in items for line in self.check(item, inner, "%s[%s]" % (where, key))]
        name = kind if isinstance(kind, str) else kind.id
        if name in self.KINDS:
            right = isinstance(value, self.KINDS[name]) and (name == "StrictBool") == isinstance(value, bool)
            return [] if right else ["%s is not a %s: %r" % (where, name, value)]
        if name not in self.fields:
            return ["%s: nothing is known of %s" % (where, name)]
        if not isinstance(value, dict):
            return ["%s is not an object" % where]
        fields = self.fields[name]
        out = ["%s has no %s" % (where, key) for key, (_, needed) in fields.items() if needed and key not in value]
        for key, item in value.items():
            out += (self.check(item, fields[key][0], "%s.%s" % (where, key)) if key in fields
                    else ["%s: no such key: %s" % (where, key)])
        return out

    def document(self, value):
        return self.check(value, "V1" + value.get("kind", ""), value.get("kind", "?"))


def volumes_fit(pod):
    """Each mount names a volume, as no schema can say."""
    known = {volume["name"] for volume in pod.get("volumes", [])}
    return ["%s mounts '%s', which is no volume" % (container["name"], mount["name"])
            for container in pod.get("initContainers", []) + pod["containers"]
            for mount in container.get("volumeMounts", []) if mount["name"] not in known]


def main():
    packages, samples = sys.argv[1:]
    ecs, kubernetes = Ecs(packages), Kubernetes(packages)
    with open(os.path.join(samples, "ecs", "task-definition.json"), encoding="utf-8") as f:
        task = json.load(f)
    loaded = {}
    for path in sorted(glob.glob(os.path.join(samples, "*", "*.yaml")) +
                       glob.glob(os.path.join(samples, "..", "service", "*.yaml"))):
        with open(path, encoding="utf-8") as f:
            for i, document in enumerate(yaml.safe_load_all(f)):
                if document is not None:
                    loaded[os.path.relpath(path, samples) + ("#%d" % i if i else "")] = document

    wrong = copy.deepcopy(task)
    wrong["containerDefinitions"][0]["resourceRequirements"][0]["sharingStrategy"]["nvidiaMps"]["memory"] = "4Gi"
    assert len(ecs.check(wrong)) == 1, "the checker of ECS finds nothing"
    wrong = copy.deepcopy(loaded["kubernetes/pod.yaml"])
    wrong["spec"]["containers"][0]["volumeMount"] = []
    wrong["spec"]["containers"][0]["env"][0] = {"value": 1}
    found = kubernetes.document(wrong)
    assert len(found) == 3, "the checker of Kubernetes finds %s" % found

    findings = ["ecs/task-definition.json: " + line for line in ecs.check(task)]
    known = {volume["name"] for volume in task["volumes"]}
    findings += ["ecs/task-definition.json: no volume '%s'" % mount["sourceVolume"]
                 for container in task["containerDefinitions"]
                 for mount in container["mountPoints"] if mount["sourceVolume"] not in known]
    count = 1
    for name, value in loaded.items():
        if "kind" in value:
            count += 1
            spec = value.get("spec", {})
            pod = spec if value["kind"] == "Pod" else spec.get("template", {}).get("spec", {"containers": []})
            findings += ["%s: %s" % (name, line) for line in kubernetes.document(value) + volumes_fit(pod)]
    for line in findings:
        print(line)
    print("%d samples, %d findings" % (count, len(findings)))
    return 1 if findings else 0


sys.exit(main())
