// Canvas: where time and tracks are on the screen, and what is at a place.

const stage = document.getElementById("view");
const map = document.getElementById("map");
const GUTTER = 190, AXIS = 28, LANE_GAP = 14, COUNTER = 40;
const HIGH = { run: 20, host: 22, mark: 20, work: 28, transfer_queue: 20, predicted: 20,
  "transfer_queue predicted": 20, ops: 20 };
const LEAST_S = SPAN_S * 1e-9;
const view = { from: 0, to: -1, top: 0, width: 0, height: 0, selected: -1, hover: -1,
  arrows: false, matches: null, drawn: 0, took: 0 };

/** Tracks, counters and lanes from top to bottom. */
const layout = { height: 0, counters: [], lanes: [] };

function placeTracks() {
  let y = 4;
  let lane = -1;
  const close = () => {
    if (lane < 0) return;
    for (const [of, name, most, times, values] of data.counters) {
      if (of !== lane) continue;
      layout.counters.push({ lane, name, most, y, times: times.map((t) => t / data.ticks), values,
        high: values.reduce((a, b) => Math.max(a, b), 1) }); // arguments would be too many
      y += COUNTER;
    }
    layout.lanes[layout.lanes.length - 1].bottom = y;
    y += LANE_GAP;
  };
  for (const track of tracks) {
    if (track.lane !== lane) {
      close();
      lane = track.lane;
      layout.lanes.push({ lane, y });
      y += 20;
    }
    track.y = y;
    track.high = HIGH[track.row];
    y += track.high + (track.row === "predicted" || track.row === "work" ? 1 : 3);
  }
  close();
  layout.height = y;
}
placeTracks();

const scale = () => (view.width - GUTTER - 10) / (view.to - view.from);
const xOf = (time) => GUTTER + (time - view.from) * scale();
const timeAt = (x) => view.from + (x - GUTTER) / scale();
const yOf = (track) => AXIS + track.y - view.top;

function limit() {
  const most = Math.max(SPAN_S * 1.02, LEAST_S);
  let wide = Math.min(Math.max(view.to - view.from, LEAST_S), most);
  const middle = (view.from + view.to) / 2;
  view.from = middle - wide / 2;
  const margin = Math.min(wide * 0.04, SPAN_S * 0.02);
  view.from = Math.max(-margin, Math.min(view.from, SPAN_S + margin - wide));
  view.to = view.from + wide;
  view.top = Math.max(0, Math.min(view.top, layout.height + AXIS - view.height));
}

/** Shows less or more time around a place that stays where it is. factor: below 1 zooms in. */
function zoom(factor, x = GUTTER + (view.width - GUTTER) / 2) {
  const time = timeAt(x);
  const wide = Math.min(Math.max((view.to - view.from) * factor, LEAST_S), SPAN_S * 1.02);
  const part = (time - view.from) / (view.to - view.from);
  view.from = time - part * wide;
  view.to = view.from + wide;
  changed();
}

function pan(pixels, down = 0) {
  const time = pixels / scale();
  view.from += time;
  view.to += time;
  view.top += down;
  changed();
}

/** Shows all runs; when they are shown, what was before and after them, too. */
function showAll() {
  const room = (FIRST[1] - FIRST[0]) * 0.005;
  const shown = Math.abs(view.from - FIRST[0]) < 3 * room && Math.abs(view.to - FIRST[1]) < 3 * room;
  view.from = shown ? -SPAN_S * 0.005 : FIRST[0] - room;
  view.to = shown ? SPAN_S * 1.005 : FIRST[1] + room;
  view.top = 0;
  changed();
}

/** Moves as little as needed for a span to be seen; zooms in where it would be a speck. */
function reveal(number, close = false) {
  const start = span.start[number], end = span.end[number];
  const took = Math.max(end - start, LEAST_S * 10);
  const wide = view.to - view.from;
  if (close || took * scale() < 6) {
    const room = close ? took * 1.3 : took * 40;
    const middle = (start + end) / 2;
    view.from = middle - Math.min(room, wide) / 2;
    view.to = middle + Math.min(room, wide) / 2;
    if (close) { view.from = middle - room / 2; view.to = middle + room / 2; }
  } else if (start < view.from || end > view.to) {
    const middle = took < wide ? (start + end) / 2 : start + wide * 0.4;
    view.from = middle - wide / 2;
    view.to = middle + wide / 2;
  }
  const track = tracks[span.track[number]];
  if (track.y < view.top + 20) view.top = track.y - 40;
  if (track.y + track.high + 30 > view.top + view.height - AXIS) {
    view.top = track.y + track.high + 60 - view.height + AXIS;
  }
  changed();
}

/** The span at a place of the canvas, or -1; narrow ones are found within two pixels. */
function spanAt(x, y) {
  if (x < GUTTER || y < AXIS) return -1;
  const track = tracks.find((t) => y >= yOf(t) && y < yOf(t) + t.high + 1);
  if (!track) return -1;
  const number = nearest(track, timeAt(x));
  if (number < 0) return -1;
  const reach = track.row === "mark" ? 7 : 2;
  return x >= xOf(span.start[number]) - reach && x <= xOf(span.end[number]) + reach ? number : -1;
}

/** The middle of the visible part of a span, in pixels of the page. */
function placeOf(number) {
  const box = stage.getBoundingClientRect();
  const track = tracks[span.track[number]];
  const left = Math.max(xOf(span.start[number]), GUTTER);
  const right = Math.min(xOf(span.end[number]), view.width);
  return { x: box.left + (left + right) / 2, y: box.top + yOf(track) + track.high / 2 };
}

let waiting = false;
function changed() {
  limit();
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; paint(); });
}

function resize() {
  const dense = devicePixelRatio || 1;
  for (const canvas of [stage, map]) {
    const box = canvas.getBoundingClientRect();
    canvas.width = Math.max(1, Math.round(box.width * dense));
    canvas.height = Math.max(1, Math.round(box.height * dense));
    canvas.getContext("2d").setTransform(dense, 0, 0, dense, 0, 0);
  }
  const box = stage.getBoundingClientRect();
  view.width = box.width;
  view.height = box.height;
  look.patterns.clear();
  limit();
  paint();
}
