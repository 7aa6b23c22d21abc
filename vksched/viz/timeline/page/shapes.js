// Shapes: paints the view, the map above it and the legend.

const MONO = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const SANS = 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const pen = stage.getContext("2d");
let charWide = 7;

function paint() {
  const began = performance.now();
  view.drawn = 0;
  pen.fillStyle = look.ground;
  pen.fillRect(0, 0, view.width, view.height);
  pen.font = `12px ${MONO}`;
  pen.textBaseline = "middle";
  charWide = pen.measureText("MMMMMMMMMM").width / 10;
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, view.width, view.height - AXIS);
  pen.clip();
  paintBands();
  paintGrid(false);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, AXIS, view.width - GUTTER, view.height - AXIS);
  pen.clip();
  for (const track of tracks) {
    const y = yOf(track);
    if (y < view.height && y + track.high > AXIS) paintTrack(track, y);
  }
  layout.counters.forEach(paintCounter);
  paintArrows();
  for (const number of [view.hover, view.selected]) if (number >= 0) paintFrame(number);
  pen.restore();
  paintNames();
  pen.restore();
  paintGrid(true);
  paintMap();
  view.took = performance.now() - began;
}

// -- what is behind --------------------------------------------------------------------------------

function paintBands() {
  for (const { y, bottom } of layout.lanes) {
    pen.fillStyle = look.band;
    pen.fillRect(0, AXIS + y - view.top - 2, view.width, bottom - y + 4);
  }
}

function stepOf(wide, pixels) {
  const rough = wide / Math.max(1, pixels / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((k) => power * k >= rough * 0.999);
}

function paintGrid(words) {
  const step = stepOf(view.to - view.from, view.width - GUTTER);
  if (words) {
    pen.fillStyle = look.raised;
    pen.fillRect(0, 0, view.width, AXIS);
    pen.fillStyle = look.line;
    pen.fillRect(0, AXIS - 1, view.width, 1);
    pen.font = `12px ${SANS}`;
    pen.fillStyle = look.faint;
    pen.fillText(`${seconds(view.to - view.from)} in view`, 12, AXIS / 2);
  }
  const origin = FIRST[0], last = view.to - origin;
  for (let k = Math.ceil((Math.max(view.from, 0) - origin) / step); k * step <= last; k++) {
    const x = Math.round(xOf(k * step + origin)) + 0.5;
    if (!words) {
      pen.fillStyle = look.grid;
      pen.fillRect(x - 0.5, AXIS, 1, view.height);
    } else if (x >= GUTTER - 1) {
      pen.fillStyle = look.faint;
      pen.fillRect(x - 0.5, AXIS - 7, 1, 6);
      const digits = Math.max(3, Math.ceil(Math.log10(Math.max(Math.abs(k), 1))) + 1);
      pen.fillText(seconds(k * step, digits), x + 4, AXIS / 2);
    }
  }
}

function paintNames() {
  pen.fillStyle = look.raised;
  pen.fillRect(0, AXIS, GUTTER - 6, view.height);
  pen.fillStyle = look.line;
  pen.fillRect(GUTTER - 6, AXIS, 1, view.height);
  for (const { lane, y } of layout.lanes) {
    const top = AXIS + y - view.top + 9;
    const [name, label] = data.lanes[lane];
    const { fill, edge } = coloursOf(lane);
    pen.fillStyle = fill;
    pen.strokeStyle = edge;
    pen.lineWidth = 2;
    pen.fillRect(9, top - 6, 12, 12);
    pen.strokeRect(9, top - 6, 12, 12);
    pen.fillStyle = look.ink;
    pen.font = `600 13px ${SANS}`;
    pen.fillText(cutText(name, GUTTER - 40), 28, top + 0.5);
    if (label && label !== name) {
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, AXIS, view.width, view.height);
      pen.clip();
      pen.font = `12px ${SANS}`;
      pen.fillStyle = look.faint;
      pen.fillText(label, GUTTER + 4, top + 0.5);
      pen.restore();
    }
  }
  pen.font = `12px ${SANS}`;
  pen.fillStyle = look.faint;
  for (const track of tracks) {
    if (track.label) pen.fillText(track.label, 28, yOf(track) + track.high / 2 + 0.5);
  }
  for (const { name, y } of layout.counters) {
    pen.fillText(name, 28, AXIS + y - view.top + COUNTER / 2);
  }
}

function cutText(text, room) {
  if (pen.measureText(text).width <= room) return text;
  while (text && pen.measureText(`${text}…`).width > room) text = text.slice(0, -1);
  return `${text}…`;
}

// -- spans -----------------------------------------------------------------------------------------

/** Paints a track: a span of two pixels or more for itself, narrower ones together as columns whose
 * height is the part of the time in which something is there. */
function paintTrack(track, y) {
  const pixels = scale(), { fill, edge } = coloursOf(track.lane);
  if (track.row === "mark") return paintMarks(track, y);
  let at = firstAfter(track, view.from);
  while (at < track.last && span.start[at] <= view.to) {
    const left = xOf(span.start[at]);
    if ((span.end[at] - span.start[at]) * pixels >= 2) {
      paintSpan(track, at, left, y, fill, edge);
      at += 1;
      continue;
    }
    const until = timeAt(Math.floor(left) + 1);
    let next = Math.max(firstFrom(track, until, at + 1), at + 1);
    if (next > at + 1 && (span.end[next - 1] - span.start[next - 1]) * pixels >= 2) next -= 1;
    paintColumn(track, at, next, Math.floor(left), y, edge);
    at = next;
  }
}

function paintColumn(track, first, last, x, y, edge) {
  view.drawn += 1;
  const filled = track.sums[last - track.first] - track.sums[first - track.first];
  const part = Math.max(0.25, Math.min(1, filled * scale()));
  let faded = view.matches !== null;
  if (faded) for (let i = first; i < last && faded; i++) faded = !view.matches.has(i);
  pen.globalAlpha = faded ? look.dim : 1;
  pen.fillStyle = edge;
  pen.fillRect(x, y + track.high * (1 - part), 1, track.high * part);
  if (span.critical[first] || span.critical[last - 1]) {
    pen.fillStyle = look.critical;
    pen.fillRect(x, y, 1, 4);
  }
  pen.globalAlpha = 1;
}

function paintSpan(track, number, start, y, fill, edge) {
  view.drawn += 1;
  const kind = texts[span.kind[number]];
  const x = Math.max(start, GUTTER - 20), right = Math.min(xOf(span.end[number]), view.width + 20);
  const wide = Math.max(right - x, 1), high = track.high;
  pen.globalAlpha = view.matches !== null && !view.matches.has(number) ? Number(look.dim) : 1;
  const style = track.row === "predicted" ? (kind === "split" ? "hatch" : STYLES[kind] ?? "hatch")
    : STYLES[kind] ?? "plain";
  pen.fillStyle = pattern(pen, style, fill, edge);
  pen.fillRect(x, y, wide, high);
  pen.strokeStyle = edge;
  pen.lineWidth = 1;
  if (wide > 3) {
    pen.setLineDash(track.foreseen && wide > 9 ? [4, 3] : []);
    pen.strokeRect(x + 0.5, y + 0.5, wide - 1, high - 1);
    pen.setLineDash([]);
  }
  if (span.critical[number]) paintCritical(x, y, wide);
  const inset = span.critical[number] && wide > 18 ? 15 : 4;
  const from = Math.max(x, GUTTER) + inset;
  paintLabel(texts[span.name[number]], from, y + high / 2 + (span.critical[number] ? 1.5 : 0.5),
    right - from - 3, style === "plain" || style === "open" ? null : fillUnder(style, fill));
  pen.globalAlpha = 1;
}

const fillUnder = (style, fill) => (style === "stripes" ? fill : look.ground);

/** A band with a diamond: the critical path is told by its shape, too. */
function paintCritical(x, y, wide) {
  pen.fillStyle = look.critical;
  pen.fillRect(x, y, wide, 4);
  if (wide <= 18) return;
  const left = Math.max(x, GUTTER) + 8, middle = y + 11;
  pen.beginPath();
  pen.moveTo(left, middle - 5);
  pen.lineTo(left + 5, middle);
  pen.lineTo(left, middle + 5);
  pen.lineTo(left - 5, middle);
  pen.fill();
}

/** A text that fits a room; on a pattern it stands on a plain ground. */
function paintLabel(text, x, y, room, under) {
  const many = Math.floor(room / charWide);
  if (many < 2) return;
  const shown = text.length <= many ? text : many < 4 ? "" : `${text.slice(0, many - 1)}…`;
  if (!shown) return;
  if (under) {
    pen.fillStyle = under;
    pen.fillRect(x - 2, y - 7, shown.length * charWide + 4, 14);
  }
  pen.fillStyle = look.ink;
  pen.font = `12px ${MONO}`;
  pen.fillText(shown, x, y);
}

function paintMarks(track, y) {
  for (let at = firstAfter(track, view.from - 1 / scale()); at < track.last; at++) {
    const x = xOf(span.start[at]), middle = y + track.high / 2;
    if (x > view.width) break;
    view.drawn += 1;
    const bad = ["fault", "failed"].includes(texts[span.kind[at]]);
    pen.fillStyle = bad ? look.warn : look.ink;
    pen.beginPath();
    if (bad) pen.moveTo(x, y + 2), pen.lineTo(x + 8, y + 16), pen.lineTo(x - 8, y + 16);
    else pen.arc(x, middle, 5, 0, 7);
    pen.fill();
    const next = at + 1 < track.last ? xOf(span.start[at + 1]) : view.width;
    paintLabel(texts[span.name[at]], x + 10, middle + 0.5, next - x - 20, null);
  }
}

function paintFrame(number) {
  const track = tracks[span.track[number]];
  const y = yOf(track);
  const x = Math.max(xOf(span.start[number]), GUTTER - 20);
  const right = Math.min(xOf(span.end[number]), view.width + 20);
  pen.strokeStyle = look.ink;
  pen.lineWidth = number === view.selected ? 3 : 1.5;
  pen.strokeRect(x - 1, y - 1, Math.max(right - x, 2) + 2, track.high + 2);
}

function paintCounter({ lane, y, most, high, times, values }) {
  const top = AXIS + y - view.top, room = COUNTER - 8, bottom = top + COUNTER - 3;
  if (bottom < AXIS || top > view.height) return;
  const { fill, edge } = coloursOf(lane);
  pen.beginPath();
  let x = xOf(0);
  pen.moveTo(x, bottom);
  let before = values[0] ?? 0, drawnAt = -Infinity;
  pen.lineTo(x, bottom - (before / high) * room);
  for (let i = 0; i < times.length; i++) {
    x = xOf(times[i]);
    if (x - drawnAt < 0.5 && values[i] <= before) continue;
    pen.lineTo(x, bottom - (before / high) * room);
    before = values[i];
    pen.lineTo(x, bottom - (before / high) * room);
    drawnAt = x;
  }
  const end = xOf(SPAN_S);
  pen.lineTo(end, bottom - (before / high) * room);
  pen.lineTo(end, bottom);
  pen.fillStyle = fill;
  pen.fill();
  pen.strokeStyle = edge;
  pen.lineWidth = 1.2;
  pen.stroke();
  const told = `peak ${bytes(high)}${most ? ` of ${bytes(most)}` : ""}`;
  paintLabel(told, GUTTER + 6, bottom - 10, view.width, fill);
}

// -- arrows ----------------------------------------------------------------------------------------

const MOST_ARROWS = 300, ARROW_PIXELS = 12;
const hasMeasured = tracks.some((track) => track.row === "work" && track.last > track.first);

function paintArrows() {
  let shown = [];
  if (view.selected >= 0) {
    const { into, from } = linksOf(view.selected);
    shown = [...into, ...from];
  }
  if (view.arrows) {
    for (let i = 0; i < LINKS && shown.length < MOST_ARROWS; i++) if (isClear(i)) shown.push(i);
  }
  const labels = new Set();
  for (const i of shown) paintArrow(i, labels);
}

/** Whether an arrow is in view and between spans that are wide enough to be told apart. */
function isClear(i) {
  const source = link.source[i], target = link.target[i], least = ARROW_PIXELS / scale();
  if (span.end[source] < view.from || span.start[target] > view.to) return false;
  if (tracks[span.track[source]].foreseen && hasMeasured) return false;
  return span.end[source] - span.start[source] > least || span.end[target] - span.start[target] > least;
}

function paintArrow(i, labels) {
  const source = link.source[i], target = link.target[i];
  const a = tracks[span.track[source]], b = tracks[span.track[target]];
  const kind = texts[link.kind[i]], down = b.y > a.y;
  // A fence tells the end of a split to a wait that has begun long before.
  const x1 = kind === "submit" ? xOf(span.start[source]) : xOf(span.end[source]);
  const x2 = kind === "fence" ? xOf(span.end[target]) : xOf(span.start[target]);
  const y1 = yOf(a) + (a === b ? a.high / 2 : down ? a.high : 0);
  const y2 = yOf(b) + (a === b ? b.high / 2 : down ? 0 : b.high);
  if (Math.max(x1, x2) < GUTTER || Math.min(x1, x2) > view.width) return;
  const bend = Math.max(14, Math.min(70, Math.abs(x2 - x1) / 2));
  pen.strokeStyle = pen.fillStyle = look.ink;
  pen.lineWidth = 1.6;
  pen.setLineDash(kind === "fence" ? [2, 3] : kind === "copy" ? [] : [7, 4]);
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.bezierCurveTo(x1 + bend, y1 + (y2 - y1) * 0.2, x2 - bend, y2 - (y2 - y1) * 0.2, x2, y2);
  pen.stroke();
  pen.setLineDash([]);
  const turn = Math.atan2((y2 - y1) * 0.2 || 0, bend);
  pen.beginPath();
  pen.moveTo(x2, y2);
  for (const side of [0.45, -0.45]) {
    pen.lineTo(x2 - 9 * Math.cos(turn + side), y2 - 9 * Math.sin(turn + side));
  }
  pen.fill();
  const x = (x1 + x2) / 2 + 6, y = (y1 + y2) / 2, place = `${Math.round(x / 70)} ${Math.round(y / 14)}`;
  if (link.bytes[i] > 0 && Math.abs(y2 - y1) > 30 && !labels.has(place)) {
    labels.add(place);
    paintLabel(bytes(link.bytes[i]), x, y, 200, look.ground);
  }
}

// -- the map and the legend ------------------------------------------------------------------------

/** Which part of the devices works, over the time that is seen at first. */
const busyParts = (() => {
  const BINS = 2000, bins = new Float64Array(BINS);
  const rows = tracks.some((t) => t.row === "work" && t.last > t.first) ? ["work"] : ["predicted"];
  const shown = tracks.filter((t) => rows.includes(t.row) && t.lane > 0 && t.last > t.first);
  for (const track of shown) {
    for (let i = track.first; i < track.last; i++) {
      const bin = (time) => ((time - FIRST[0]) / (FIRST[1] - FIRST[0])) * BINS;
      const from = Math.max(0, bin(span.start[i])), to = bin(span.end[i]);
      for (let k = Math.floor(from); k < Math.min(BINS, Math.ceil(to)); k++) {
        bins[k] += Math.max(0, Math.min(to, k + 1) - Math.max(from, k));
      }
    }
  }
  const most = Math.max(1, shown.length);
  return bins.map((value) => value / most);
})();

const mapX = (time) =>
  GUTTER + ((time - FIRST[0]) / (FIRST[1] - FIRST[0])) * (view.width - GUTTER - 10);

function paintMap() {
  const draw = map.getContext("2d"), high = 33;
  draw.fillStyle = look.ground;
  draw.fillRect(0, 0, view.width, high + 2);
  draw.font = `12px ${SANS}`;
  draw.textBaseline = "middle";
  draw.fillStyle = look.faint;
  draw.fillText("devices busy", 12, high / 2);
  const wide = view.width - GUTTER - 10;
  draw.fillStyle = look.edges[0];
  for (let x = 0; x < wide; x++) {
    const from = Math.floor((x / wide) * busyParts.length);
    const parts = busyParts.subarray(from, Math.max(from + 1, ((x + 1) / wide) * busyParts.length));
    const tall = Math.min(1, parts.reduce((a, b) => a + b, 0) / parts.length) * (high - 8);
    if (tall > 0) draw.fillRect(GUTTER + x, high - 3 - tall, 1, tall);
  }
  const left = Math.min(Math.max(GUTTER, mapX(view.from)), view.width - 13);
  const right = Math.min(view.width - 10, mapX(view.to));
  draw.strokeStyle = look.focus;
  draw.lineWidth = 2;
  draw.strokeRect(left, 2, Math.max(right - left, 3), high - 3);
  draw.globalAlpha = 0.12;
  draw.fillStyle = look.focus;
  draw.fillRect(left, 2, Math.max(right - left, 3), high - 3);
  draw.globalAlpha = 1;
}

function paintLegend() {
  const legend = document.getElementById("legend");
  legend.textContent = "";
  const kinds = new Set(Array.from(new Set(span.kind), (k) => texts[k]));
  const samples = [
    ["measured", "plain", 1, tracks.some((t) => !t.foreseen && t.last > t.first)],
    ["predicted", "hatch", 1, true],
    ["copy", "stripes", 0, kinds.has("copy") || kinds.has("transfer_queue")],
    ["wait", "dots", 0, kinds.has("wait")],
    ["critical path", "critical", 1, criticalPath.length > 0],
    ["many spans in a pixel", "columns", 1, COUNT > 300],
  ];
  const dense = devicePixelRatio || 1;
  for (const [word, style, lane, there] of samples) {
    if (!there) continue;
    const item = document.createElement("span");
    const canvas = element("canvas", "", { ariaHidden: "true" });
    canvas.width = 34 * dense;
    canvas.height = 16 * dense;
    const draw = canvas.getContext("2d");
    draw.setTransform(dense, 0, 0, dense, 0, 0);
    const { fill, edge } = coloursOf(lane);
    draw.fillStyle = style === "critical" || style === "columns" ? fill
      : pattern(draw, style, fill, edge);
    draw.fillRect(0, 0, 34, 16);
    draw.strokeStyle = edge;
    if (style === "hatch") draw.setLineDash([4, 3]);
    draw.strokeRect(0.5, 0.5, 33, 15);
    if (style === "critical") {
      draw.fillStyle = look.critical;
      draw.fillRect(0, 0, 34, 4);
      draw.fill(new Path2D("M8 5l5 5l-5 5l-5 -5z"));
    } else if (style === "columns") {
      draw.fillStyle = edge;
      for (let k = 0; k < 34; k++) {
        const tall = 6 + 9 * Math.abs(Math.sin(k * 1.7));
        draw.fillRect(k, 16 - tall, 1, tall);
      }
    }
    item.append(canvas, word);
    legend.append(item);
  }
}
