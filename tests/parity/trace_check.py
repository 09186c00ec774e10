#!/usr/bin/env python3
"""A trace against what is known of the run: trace_check.py TRACE.json STEPS N0 N1 ... (instructions of rank 0, 1, ... in the plan)."""
import json
import sys

steps, wanted = int(sys.argv[2]), [int(n) for n in sys.argv[3:]]
trace = json.load(open(sys.argv[1]))
events = trace["traceEvents"]
assert trace["displayTimeUnit"] == "ms"
for rank, n in enumerate(wanted):
    mine = [e for e in events if e["pid"] == rank and e["ph"] == "X"]
    assert len(mine) == n * steps, f"rank {rank}: {len(mine)} events, {n} instructions in {steps} steps"
    order = [(e["args"]["step"], e["args"]["ins"]) for e in mine]
    assert order == sorted(order) and len(set(order)) == len(order), f"rank {rank}: out of order"
    for a, b in zip(mine, mine[1:]):
        assert a["dur"] >= 0 and a["ts"] + a["dur"] <= b["ts"] + 0.01, f"rank {rank}: {a['name']} and {b['name']} overlap"
    memory = [e["args"] for e in events if e["pid"] == rank and e["ph"] == "C"]
    assert memory and all(m[k] >= 0 for m in memory for k in m) and max(m["W"] for m in memory) > 0 and len({m["P"] for m in memory}) == 1
    assert any(e["name"] == "L00.moe.gate/dW mb1" or e["name"] == "L01.moe.gate/dW mb1" for e in mine), f"rank {rank}: names"
sent, received = ([e for e in events if e["ph"] == p] for p in "sf")
assert {e["id"] for e in sent} == {e["id"] for e in received} and len(sent) == len(received) > 0, "messages without their other end"
names = [e for e in events if e["name"] == "process_name"]
assert [e["pid"] for e in names] == list(range(len(wanted)))
