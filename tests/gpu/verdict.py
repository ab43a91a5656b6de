"""What a report must have, and what in it is wrong: the shape is checked before anybody reads it, and a ceiling that
did not hold is not left for a reader to find. shape(), rules() and ceiling() give a list of lines each."""

import re

NUMBER = (int, float)
RULE, SLACK = "_rule_charges", 2 << 20
PARTS = ("facts", "cost", "frameworks", "hooks")
FRAMEWORKS = ("torch", "torch-expandable", "torch-async", "cupy", "jax", "numba", "runtime_static", "runtime_shared")
TOP = {"date": str, "machine": str, "kernel": str, "simulated": bool, "ceiling_mib": int, "mps": str,
       "seconds": dict, "facts": dict, "cost": dict, "frameworks": dict, "hooks": dict, "wrong": list}
FOUND = {"total_mib": (int, type(None)), "free_mib": (int, type(None)), "model": bool, "block_mib": int, "blocks": int,
         "blocks_again": int, "model_afterwards": bool}
COST = {"bare_ns": NUMBER, "vramcap_ns": NUMBER, "ratio": (int, float, type(None))}


NO_TIME = "not run: no time left"


def broke(row):
    """It ran, and did not come to its end."""
    return "failed" in row and row["failed"] != NO_TIME


def is_empty(part):
    """A part or a step that has no result says so in one of these ways."""
    return "failed" in part or "absent" in part


def has(what, row, wanted):
    for name, kind in wanted.items():
        if name not in row:
            yield "%s has no %s" % (what, name)
        elif not isinstance(row[name], kind) or (isinstance(row[name], bool) and kind is not bool
                                                 and bool not in (kind if isinstance(kind, tuple) else ())):
            yield "%s: %s is %r" % (what, name, row[name])


def shape(report):
    wrong = list(has("the report", report, TOP))
    if wrong:
        return wrong
    wrong += ["the report has an unknown %s" % name for name in set(report) - set(TOP)]
    for part in PARTS:
        if part in report["seconds"] and not isinstance(report["seconds"][part], NUMBER):
            wrong.append("seconds of %s: %r" % (part, report["seconds"][part]))
    for name, row in report["facts"].items():
        if name != "failed" and (not isinstance(row, dict) or not is_empty(row) and not isinstance(
                row.get("mem_info_total"), int)):
            wrong.append("facts: %s is %r" % (name, row))
    if not is_empty(report["cost"]):
        for name, row in report["cost"].items():
            wrong += has("cost of %s" % name, row, COST)
    if not is_empty(report["frameworks"]):
        wrong += ["frameworks: no %s" % name for name in FRAMEWORKS if name not in report["frameworks"]]
        for name, row in report["frameworks"].items():
            if not is_empty(row):
                wrong += has(name, row, FOUND)
    if not is_empty(report["hooks"]):
        wrong += ["hooks: no %s" % name for name in ("preloaded", "bare") if name not in report["hooks"]]
    return wrong


def rules(report):
    """What the card takes more of than vramcap charges: a container could hold more than its ceiling. Small allocations
    share blocks of 2 MiB; what of the last one is unused is nobody's."""
    wrong = []
    for what, row in report["facts"].items():
        for name, charged in row.items() if isinstance(row, dict) else ():
            taken = row.get(name[:-len(RULE)]) if name.endswith(RULE) else None
            if taken is not None:
                many = re.search(r"_each_of_(\d+)", name)
                count = int(many.group(1)) if many else 1
                if (taken - charged) * count > (SLACK if many else 0):
                    wrong.append("facts: %s: %s: the card lost %d, vramcap charges %d" % (
                        what, name[:-len(RULE)], taken, charged))
    return wrong


def ceiling(report):
    mib, wrong = report["ceiling_mib"], []
    bare = report["facts"].get("bare", {})
    for name, most in (("under_a_ceiling", mib << 20), ("mps_limit_1g_under_a_ceiling", min(mib << 20, 1 << 30))):
        total = min(most, bare.get("mem_info_total", most))
        row = report["facts"].get(name, {"failed": True})
        if not is_empty(row) and (row["mem_info_total"] != total or row.get("device_total") != total
                                  or row.get("mem_info_free", 0) > total):
            wrong.append("%s: total %s, of the device %s, free %s where %d bytes are the ceiling" % (
                name, row["mem_info_total"], row.get("device_total"), row.get("mem_info_free"), total))
    for name, row in report["frameworks"].items():
        if name == "failed":
            continue
        for what, part in ((name, row), (name + ", two processes", row.get("two_processes", {}))):
            if broke(part):
                wrong.append("%s: %s %s" % (what, part["failed"], part.get("said", "").strip()[-200:]))
        if is_empty(row):
            continue
        if not row["model"] or not row["model_afterwards"]:
            wrong.append("%s: its model does not work under the ceiling" % name)
        if row["blocks"] * row["block_mib"] > mib:
            wrong.append("%s: %d blocks of %d MiB under %d" % (name, row["blocks"], row["block_mib"], mib))
        if row["blocks_again"] < row["blocks"]:
            wrong.append("%s: %d blocks, and then only %d" % (name, row["blocks"], row["blocks_again"]))
        error = row.get("error")
        if isinstance(error, dict) and not error["out_of_memory"]:
            wrong.append("%s: at the ceiling it says %s: %s" % (name, error["type"], error["text"]))
        if isinstance(error, str) and error != "cudaErrorMemoryAllocation":
            wrong.append("%s: at the ceiling it says %s" % (name, error))
        two = row.get("two_processes", {"failed": True})
        if not is_empty(two) and two["blocks"] * two["block_mib"] + mib // 2 > mib:
            wrong.append("%s: %d blocks of %d MiB beside %d MiB under %d" % (
                name, two["blocks"], two["block_mib"], mib // 2, mib))
    for name, row in report["hooks"].get("preloaded", {}).items():
        wrong += ["%s: %s fails" % (name, test) for test in row.get("failed", [])]
        if not row.get("failed") and row["status"] not in (0, 77, NO_TIME):
            wrong.append("%s: %s" % (name, row["status"]))
    return wrong
