"""Perfetto export: events in the format of Perfetto and chrome://tracing: lanes, arrows and
counters.

    process  host        threads  runs, work
    process  vulkan:0    threads  measured, predicted       counter  memory
    process  node1/host                                     events of another host, by this clock
             arrows: split -> copy -> split of another device, by copy queues if there are some;
             split -> wait of the host (a fence); send of one host -> take of another (a transfer)

Overlapping slices of a thread are on a second thread with an equal name. Times are microseconds.
Complexity: events, sorted. Examples: tests/trace/test_perfetto.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .event_fields import fields_of
from .events import Event
from .lane_packing import pack_lanes

Document = Mapping[str, Any]
HOST = "host"
BY_HOST = frozenset(
    (
        "plan",
        "prepare",
        "submit",
        "copy",
        "wait",
        "send",
        "recv",
        "host_op",
        "release",
        "tune",
        "calibrate",
    )
)
"""Events of the host, for a device or on its own."""
THREADS = ("runs", "work", "measured", "copies", "predicted", "copies, predicted")
MIN_US = 1e-3


@dataclass(slots=True)
class _Slice:
    """A slice of a thread. link: the key of its arrows: kind, plan, run and split."""

    process: str
    thread: str
    kind: str
    name: str
    start_s: float
    end_s: float
    args: Mapping[str, object]
    link: tuple[str, int, int, int] | None = None
    tid: int = 0


def perfetto_events(
    events: Sequence[Event], graphs: Sequence[Document], plans: Sequence[Document]
) -> list[dict[str, object]]:
    """Return the items of "traceEvents".

    graphs, plans: documents; the plan of an event is a position in `plans`, or -1.
    """
    slices = [_slice(event, graphs, plans) for event in events]
    for event in events:
        if event.name == "run" and event.plan >= 0:
            slices += _predicted(event, graphs, plans)
    holders = [event.device for event in events if event.name in ("prepare", "release")]
    names = list(dict.fromkeys([HOST, *holders, *(part.process for part in slices)]))
    pids = {name: number for number, name in enumerate(names, 1)}
    out = list(_threads(slices, pids))
    out += [_complete(part, pids) for part in slices]
    out += _arrows(slices, pids)
    out += _memory(events, pids)
    return out


# -- slices ----------------------------------------------------------------------------------------


def name_of(
    kind: str,
    split: int,
    node: int,
    plan: int,
    graphs: Sequence[Document],
    plans: Sequence[Document],
) -> str:
    """Return the display name of a split, a copy or a wait."""
    document = plans[plan] if plan >= 0 else None
    nodes = graphs[document["graph"]]["nodes"] if document is not None else ()
    if kind in ("copy", "send", "recv") and 0 <= node < len(nodes):
        return f"{kind} {nodes[node]['name']}"
    if kind == "split" and document is not None and not document["decides"] and split >= 0:
        inside = document["splits"][split]["nodes"]
        return (
            f"split {split}: {' .. '.join(nodes[n]['name'] for n in inside[:1] + inside[1:][-1:])}"
        )
    if kind == "transfer_queue":
        return f"copies of split {split}"
    if kind in ("split", "submit"):
        return f"{kind} {split}"
    if kind in ("copy", "wait") and split >= 0:
        return f"{kind} for split {split}"
    return "copy results" if kind == "copy" else kind


def _slice(event: Event, graphs: Sequence[Document], plans: Sequence[Document]) -> _Slice:
    split, node = (event.fields.get(key, -1) for key in ("split", "node"))
    split, node = (at if isinstance(at, int) else -1 for at in (split, node))
    name = name_of(event.name, split, node, event.plan, graphs, plans)
    if event.name == "run":
        name = f"run {event.run}"
    elif event.name == "split" and event.plan < 0 and "ops" in event.fields:
        name = f"{name} ({', '.join(map(str, _names(event.fields['ops'])))})"
    elif "op" in event.fields:
        name = f"{event.name} {event.fields['op']}"
    by_host = event.name in BY_HOST
    process = lane_of(event)
    thread = "runs" if event.name == "run" else "work" if by_host else "measured"
    thread = "copies" if event.name == "transfer_queue" else thread
    link = (event.name, event.plan, event.run, split) if event.run >= 0 else None
    return _Slice(
        process,
        thread,
        event.name,
        name,
        event.start_s,
        event.end_s,
        {**fields_of(event), "device": event.device, "run": event.run},
        link,
    )


def lane_of(event: Event) -> str:
    """Return the lane of an event: its device, or the host that performed it."""
    if event.name in ("run", "failed"):
        return HOST
    computer, slash, _ = event.device.rpartition("/")
    return f"{computer}{slash}{HOST}" if event.name in BY_HOST else event.device


def _names(ops: object) -> Sequence[object]:
    return list(ops) if isinstance(ops, (Mapping, list, tuple)) else [ops]


def _predicted(
    run: Event, graphs: Sequence[Document], plans: Sequence[Document]
) -> Iterator[_Slice]:
    """Yield the expected slices of a run's plan, from the start of that run."""
    plan = plans[run.plan]
    names = [device["name"] for device in plan["topology"]["devices"]]
    for kind, device, split, start_s, end_s in plan["spans"]:
        number = -1 if split is None else split
        process = names[device] if kind in ("split", "transfer_queue") else HOST
        thread = "copies, predicted" if kind == "transfer_queue" else "predicted"
        name = name_of(kind, number, -1, -1 if plan["decides"] else run.plan, graphs, plans)
        times = run.start_s + start_s, run.start_s + end_s
        yield _Slice(process, thread, "predicted", name, *times, {"run": run.run})


# -- in the format ---------------------------------------------------------------------------------


def _threads(slices: Sequence[_Slice], pids: Mapping[str, int]) -> Iterator[dict[str, object]]:
    """Assign each slice to a thread, and yield the names and the order of processes and threads."""
    groups: dict[tuple[str, str], list[_Slice]] = defaultdict(list)
    for part in slices:
        groups[part.process, part.thread].append(part)
    for process, pid in pids.items():
        yield _metadata("process_name", pid, 0, name=process)
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        tid = 0
        for thread in THREADS:
            group = groups.get((process, thread), [])
            for line in pack_lanes([(part.start_s, part.end_s) for part in group]) if group else ():
                tid += 1
                for at in line:
                    group[at].tid = tid
                yield _metadata("thread_name", pid, tid, name=thread)
                yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(what: str, pid: int, tid: int, **args: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _complete(part: _Slice, pids: Mapping[str, int]) -> dict[str, object]:
    return {
        "ph": "X",
        "name": part.name,
        "cat": part.kind,
        "ts": part.start_s * 1e6,
        "dur": max((part.end_s - part.start_s) * 1e6, MIN_US),
        "pid": pids[part.process],
        "tid": part.tid,
        "args": part.args,
    }


def _arrows(slices: Sequence[_Slice], pids: Mapping[str, int]) -> Iterator[dict[str, object]]:
    """Yield two events for each arrow, inside its source and its target slice."""
    ends = [*_inside(slices), *_transfers(slices)]
    for number, (kind, source, target) in enumerate(ends, 1):
        begins = _end("s", number, kind, source, 0.01 if kind == "transfer" else 0.99, pids)
        # a wait begins before its split ends, and a receive before its send: the arrow goes to its
        # end
        target_end = _end("f", number, kind, target, 0.01 if kind == "copy" else 0.99, pids)
        yield begins
        yield {**target_end, "ts": max(begins["ts"], target_end["ts"]), "bp": "e"}


def _inside(slices: Sequence[_Slice]) -> Iterator[tuple[str, _Slice, _Slice]]:
    """Yield the arrows of copies and waits: kind, source and target."""
    splits = {part.link[1:]: part for part in slices if part.link and part.kind == "split"}
    asides = {
        (*part.link[1:], part.args.get("way") != "out"): part
        for part in slices
        if part.link and part.kind == "transfer_queue"
    }
    for part in slices:
        if part.link is None or part.kind not in ("copy", "wait", "transfer_queue"):
            continue
        _, plan, run, split = part.link
        enters = part.kind != "wait" and part.args.get("way") != "out"
        needed_by = part.args.get("needed_by", -1)
        if enters and isinstance(needed_by, int) and needed_by >= 0:
            split = needed_by
        other = splits.get((plan, run, split))
        if part.kind == "copy":
            other = asides.get((plan, run, split, enters), other)
        if other is not None:
            ends = (part, other) if enters else (other, part)
            yield "fence" if part.kind == "wait" else "copy", *ends


def _transfers(slices: Sequence[_Slice]) -> Iterator[tuple[str, _Slice, _Slice]]:
    """Yield the arrows of values that go from host to host."""
    sends = {_transfer_key(p, "device", "to"): p for p in slices if p.link and p.kind == "send"}
    for part in slices:
        if part.link and part.kind == "recv":
            send = sends.get(_transfer_key(part, "of", "device"))
            if send is not None:
                yield "transfer", send, part


def _transfer_key(part: _Slice, source: str, target: str) -> tuple[object, ...]:
    """Return the key that a send and its receive share."""
    assert part.link is not None
    plan, run = part.link[1:3]
    return plan, run, part.args.get("node"), part.args.get(source), part.args.get(target)


def _end(
    ph: str, number: int, kind: str, part: _Slice, where: float, pids: Mapping[str, int]
) -> dict[str, Any]:
    at_s = part.start_s + where * (part.end_s - part.start_s)
    about = {"ph": ph, "id": number, "name": kind, "cat": kind, "ts": at_s * 1e6}
    return {**about, "pid": pids[part.process], "tid": part.tid}


def _memory(events: Sequence[Event], pids: Mapping[str, int]) -> Iterator[dict[str, object]]:
    """Yield the bytes that plans hold on each device, at each change."""
    held: dict[str, int] = defaultdict(int)
    for event in sorted(events, key=lambda event: event.end_s):
        if event.name not in ("prepare", "release"):
            continue
        sizes_by_key = {key: event.fields.get(key) for key in _HELD}
        sizes = {key: size if isinstance(size, int) else 0 for key, size in sizes_by_key.items()}
        change = sum(sizes.values()) - 2 * sizes["resident_bytes"]
        held[event.device] += change if event.name == "prepare" else -change
        held[event.device] = max(held[event.device], 0)
        yield {
            "ph": "C",
            "name": "memory",
            "cat": "memory",
            "ts": event.end_s * 1e6,
            "pid": pids[event.device],
            "args": {"bytes": held[event.device]},
        }


_HELD = ("bytes", "weight_bytes", "state_bytes", "resident_bytes")
