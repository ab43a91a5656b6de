#!/usr/bin/env python3
"""The samples of samples/observability: what can be checked of them without Grafana and Prometheus.

    check_observability.py FOLDER DESIGN         names, coverage, layout
    check_observability.py FOLDER --promtool     every expression parses; configuration and rules are
                                                 accepted; the rules' own tests pass, and each alert has one

DESIGN is docs/observability.md, whose table has every metric's name. 0, 1 with one line per finding, or 77
without promtool (1 where VRAMCAP_MUST_WORK=1).
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

LABELS = {"container", "gpu_uuid", "gpu", "pid", "instance", "version"}


def panels(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def expressions(dashboard):
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def metrics_of(text):
    return set(re.findall(r"\bvramcap_[a-z_]+\b", text))


def alerts_of(folder):
    with open(os.path.join(folder, "alerts.yml")) as f:
        return re.findall(r"- alert: (\w+)", f.read())


def overlaps(a, b):
    return (a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"]
            and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"])


def check_names(folder, design, dashboard):
    with open(design) as f:
        known = set(re.findall(r"^\| `(vramcap_[a-z_]+)` ", f.read(), re.M))
    if len(known) < 10:
        yield "%s has no table of metrics" % design
    shown = set()
    for title, expr in expressions(dashboard):
        shown |= metrics_of(expr)
        for name in metrics_of(expr) - known:
            yield "dashboard, '%s': unknown metric %s" % (title, name)
        for label in re.findall(r"(\w+)\s*=~?\"", expr):
            if label not in LABELS:
                yield "dashboard, '%s': unknown label %s" % (title, label)
        for variable in re.findall(r"\$(\w+)", expr):
            names = {v["name"] for v in dashboard["templating"]["list"]} | {"__rate_interval"}
            if variable not in names:
                yield "dashboard, '%s': unknown variable $%s" % (title, variable)
    for name in sorted(known - shown):
        yield "dashboard: %s is shown nowhere" % name
    for name in ("alerts.yml", "alerts_test.yml"):
        with open(os.path.join(folder, name)) as f:
            for metric in metrics_of(f.read()) - known:
                yield "%s: unknown metric %s" % (name, metric)


def check_layout(dashboard):
    seen = []
    for panel in dashboard["panels"]:
        for other in seen:
            if other["id"] == panel["id"]:
                yield "dashboard: two panels have id %d" % panel["id"]
            if overlaps(panel["gridPos"], other["gridPos"]):
                yield "dashboard: '%s' lies on '%s'" % (panel["title"], other["title"])
        seen.append(panel)
        if panel["gridPos"]["x"] + panel["gridPos"]["w"] > 24:
            yield "dashboard: '%s' is wider than the grid" % panel["title"]
    stacked = [p for p in seen if p.get("repeat") == "gpu_uuid"
               and p["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"]
    if not any("vramcap_card_bytes" in t["expr"] for p in stacked for t in p["targets"]):
        yield "dashboard: no stacked panel per GPU against the card"


def check_alert_tests(folder):
    with open(os.path.join(folder, "alerts_test.yml")) as f:
        text = f.read()
    for alert in alerts_of(folder):
        cases = re.findall(r"alertname: %s\n\s+exp_alerts:(.*)" % alert, text)
        if "" not in cases or " []" not in cases:
            yield "alerts_test.yml: %s needs a case that fires and one that does not" % alert


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [] if done.returncode == 0 else [" ".join(command) + ":\n" + done.stdout]


def check_by_promtool(folder, dashboard):
    rules = "groups:\n  - name: dashboard\n    rules:\n"
    for number, (_, expr) in enumerate(expressions(dashboard)):
        expr = expr.replace("$__rate_interval", "5m")
        rules += "      - record: x:panel%d\n        expr: %s\n" % (number, json.dumps(expr))
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
        f.write(rules)
        f.flush()
        yield from run("promtool", "check", "rules", f.name)
    yield from run("promtool", "check", "config", os.path.join(folder, "prometheus.yml"))
    yield from run("promtool", "test", "rules", os.path.join(folder, "alerts_test.yml"))


def main():
    folder, second = sys.argv[1], sys.argv[2]
    with open(os.path.join(folder, "grafana-dashboard.json")) as f:
        dashboard = json.load(f)
    if second == "--promtool":
        if shutil.which("promtool") is None:
            print("SKIPPED: promtool (Debian: prometheus) is missing")
            return 1 if os.environ.get("VRAMCAP_MUST_WORK") == "1" else 77
        findings = list(check_by_promtool(folder, dashboard))
    else:
        findings = [*check_names(folder, second, dashboard), *check_layout(dashboard),
                    *check_alert_tests(folder)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
