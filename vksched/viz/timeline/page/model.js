// Model: the data of the page as typed columns, and questions about it. It draws nothing.

const data = JSON.parse(document.getElementById("data").textContent);
const texts = data.texts;
const COUNT = data.counts[0];
const LINKS = data.counts[1];
const FORESEEN = new Set(["predicted", "transfer_queue predicted", "ops"]);

/** A column of numbers; all alike where the file has one number for it. */
function column(given, count) {
  return Array.isArray(given) ? Int32Array.from(given) : new Int32Array(count).fill(given);
}

const span = {
  start: new Float64Array(COUNT), end: new Float64Array(COUNT), track: new Int32Array(COUNT),
  bytes: Array.isArray(data.spans.bytes)
    ? Float64Array.from(data.spans.bytes) : new Float64Array(COUNT).fill(data.spans.bytes || 0),
  expected: Array.isArray(data.spans.expected)
    ? Float64Array.from(data.spans.expected) : new Float64Array(COUNT).fill(data.spans.expected),
};
for (const name of ["name", "kind", "run", "plan", "split", "node", "told", "critical"]) {
  span[name] = column(data.spans[name], COUNT);
}
const link = {};
for (const name of ["source", "target", "kind", "name"]) {
  link[name] = column(data.links[name], LINKS);
}
link.bytes = Array.isArray(data.links.bytes)
  ? data.links.bytes : new Array(LINKS).fill(data.links.bytes);

/** Lines of spans that do not overlap: spans first .. last - 1, with the sums of their times. */
const tracks = [];
let endTime = 0;
{
  let at = 0, time = 0;
  for (const [lane, row, label, count] of data.tracks) {
    const sums = new Float64Array(count + 1);
    const first = at;
    for (; at < first + count; at++) {
      time += data.spans.step[at];
      span.start[at] = time / data.ticks;
      span.end[at] = (time + data.spans.took[at]) / data.ticks;
      span.track[at] = tracks.length;
      sums[at - first + 1] = sums[at - first] + span.end[at] - span.start[at];
      endTime = Math.max(endTime, span.end[at]);
    }
    tracks.push({ lane, row, label, first, last: at, sums, foreseen: FORESEEN.has(row) });
  }
}
const SPAN_S = endTime > 0 ? endTime : 1;
/** What is seen at first, from when to when: the runs. Times are told from its start. */
const FIRST = data.shown[1] > data.shown[0] ? data.shown : [0, SPAN_S];

/** The first span of a track that ends after a time. */
function firstAfter(track, time) {
  let low = track.first, high = track.last;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (span.end[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

/** The first span of a track that starts at a time or later. */
function firstFrom(track, time, low = track.first) {
  let high = track.last;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (span.start[middle] >= time) high = middle; else low = middle + 1;
  }
  return low;
}

/** The span of a track nearest to a time, or -1. */
function nearest(track, time) {
  const after = Math.min(firstAfter(track, time), track.last - 1);
  if (after < track.first) return -1;
  const away = (i) => Math.max(span.start[i] - time, time - span.end[i], 0);
  return after > track.first && away(after - 1) < away(after) ? after - 1 : after;
}

const linksOf = (() => {
  let into = null, from = null;
  const group = (ends) => {
    const found = new Map();
    for (let i = 0; i < LINKS; i++) {
      if (!found.has(ends[i])) found.set(ends[i], []);
      found.get(ends[i]).push(i);
    }
    return found;
  };
  return (number) => {
    into ??= group(link.target);
    from ??= group(link.source);
    return { into: into.get(number) ?? [], from: from.get(number) ?? [] };
  };
})();

const runCount = new Set(span.run).size;

const criticalPath = [];
for (let i = 0; i < COUNT; i++) if (span.critical[i]) criticalPath.push(i);
criticalPath.sort((a, b) => tracks[span.track[a]].foreseen - tracks[span.track[b]].foreseen
  || span.start[a] - span.start[b]);

/** What a plan says of a node: name, op, type, reads, seconds, explain. */
function nodeOf(plan, node) {
  const [name, op, type, reads, seconds, explain] = data.plans[plan].nodes[node];
  return { name: texts[name], op: texts[op], type: texts[type],
    reads: reads.map((i) => texts[i]), seconds, explain };
}

function nodesOf(number) {
  const plan = span.plan[number], split = span.split[number];
  if (plan < 0 || split < 0) return [];
  return span.node[number] >= 0 ? [span.node[number]] : data.plans[plan].splits[split][1];
}

/** The numbers of the spans whose name, kind, op or shape holds a text, in the order of time. */
function search(wanted) {
  const text = wanted.toLowerCase();
  const hit = texts.map((each) => each.toLowerCase().includes(text));
  const nodes = data.plans.map((plan) => plan.nodes.map((n) => hit[n[0]] || hit[n[1]] || hit[n[2]]));
  const splits = data.plans.map((plan, p) =>
    plan.splits.map(([, members]) => members.some((n) => nodes[p][n])));
  const found = [];
  for (let i = 0; i < COUNT; i++) {
    const plan = span.plan[i];
    const inside = plan >= 0 && (span.node[i] >= 0 ? nodes[plan][span.node[i]]
      : span.split[i] >= 0 && texts[span.kind[i]] === "split" && splits[plan][span.split[i]]);
    if (inside || hit[span.name[i]] || hit[span.kind[i]] || hit[span.told[i]]) found.push(i);
  }
  return found.sort((a, b) => span.start[a] - span.start[b]);
}

// -- words ---------------------------------------------------------------------------------------

function seconds(value, digits = 3) {
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  for (const [unit, one] of [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]]) {
    if (size >= 0.9995 * one || unit === "ns") {
      const number = value / one;
      return `${Math.abs(number) >= 999.5 ? number.toFixed(0) : Number(number.toPrecision(digits))} ${unit}`;
    }
  }
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  for (const [unit, one] of [["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]) {
    if (count / one < 1023.95 || unit === "GiB") return `${(count / one).toFixed(1)} ${unit}`;
  }
}

/** What is known of a span: a name and pairs of a word and its value. */
function facts(number) {
  const track = tracks[span.track[number]];
  const kind = texts[span.kind[number]];
  const took = span.end[number] - span.start[number];
  const expected = span.expected[number];
  const out = [["what", `${kind} on ${data.lanes[track.lane][0]}`]];
  if (span.node[number] >= 0) {
    const node = nodeOf(span.plan[number], span.node[number]);
    out.push(["op", node.op], ["shape", node.type]);
    if (node.reads.length) out.push(["reads", node.reads.slice(0, 6).join("; ")]);
  } else if (kind === "split") {
    const nodes = nodesOf(number).map((n) => nodeOf(span.plan[number], n));
    if (nodes.length) {
      out.push(["ops", opsText(nodes)]);
      out.push(["shapes", shapesText(nodes)]);
    }
  }
  if (track.foreseen) out.push(["predicted", seconds(took)]);
  else {
    out.push(["measured", took ? seconds(took) : "no time"]);
    if (expected >= 0) {
      const told = expected / data.ticks;
      const ratio = told ? `, took ${Number((took / told).toPrecision(3))} times as long` : "";
      out.push(["predicted", `${seconds(told)}${ratio}`]);
    }
  }
  out.push(["starts at", seconds(span.start[number] - FIRST[0], 6)]);
  if (span.run[number] >= 0 && runCount > 1) out.push(["run", `${span.run[number]}`]);
  if (texts[span.told[number]]) out.push(["more", texts[span.told[number]]]);
  if (span.critical[number]) out.push(["path", "on the critical path"]);
  return { name: texts[span.name[number]], pairs: out };
}

function opsText(nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(node.op, (counts.get(node.op) ?? 0) + 1);
  const told = [...counts].map(([op, many]) => (many > 1 ? `${op} x${many}` : op));
  return told.slice(0, 8).join(", ") + (told.length > 8 ? `, ${told.length - 8} more` : "");
}

function shapesText(nodes) {
  const kinds = [...new Set(nodes.map((node) => node.type))];
  return kinds.slice(0, 4).join(", ") + (kinds.length > 4 ? `, ${kinds.length - 4} more` : "");
}
