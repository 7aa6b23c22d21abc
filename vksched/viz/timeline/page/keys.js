// Keys: what each key does, and the table of help that is made of the same list.

const field = document.getElementById("search");
const foundOut = document.getElementById("found");
const helpBox = document.getElementById("keys");
let foundList = [], foundAt = -1;

function runSearch() {
  const wanted = field.value.trim();
  foundList = wanted ? search(wanted) : [];
  foundAt = -1;
  view.matches = wanted ? new Set(foundList) : null;
  foundOut.textContent = wanted ? `${foundList.length} found` : "";
  changed();
}

function nextFound(step) {
  if (!foundList.length) return;
  const start = foundAt < 0 && step < 0 ? 0 : foundAt;
  foundAt = (start + step + foundList.length) % foundList.length;
  foundOut.textContent = `${foundAt + 1} of ${foundList.length}`;
  select(foundList[foundAt]);
}

function nextCritical(step) {
  if (!criticalPath.length) return;
  const at = criticalPath.indexOf(view.selected);
  const next = at < 0 ? (step > 0 ? 0 : criticalPath.length - 1) : at + step;
  select(criticalPath[(next + criticalPath.length) % criticalPath.length]);
}

/** The span in the middle of the view, on the first device. */
function middleSpan() {
  const time = (view.from + view.to) / 2;
  const shown = tracks.filter((t) => t.last > t.first && t.row !== "mark");
  const seen = shown.filter((t) => yOf(t) >= AXIS && yOf(t) < view.height);
  const some = seen.length ? seen : shown;
  const best = some.find((t) => t.row === "work")
    ?? some.find((t) => t.row === "predicted" && t.lane > 0) ?? some[0];
  return best ? nearest(best, time) : -1;
}

function alongTrack(step) {
  if (view.selected < 0) return select(middleSpan());
  const track = tracks[span.track[view.selected]];
  const next = view.selected + step;
  if (next >= track.first && next < track.last) select(next);
}

function acrossTracks(step) {
  if (view.selected < 0) return select(middleSpan());
  const time = (span.start[view.selected] + span.end[view.selected]) / 2;
  for (let t = span.track[view.selected] + step; t >= 0 && t < tracks.length; t += step) {
    if (tracks[t].last > tracks[t].first) return select(nearest(tracks[t], time));
  }
}

function showDetails() {
  if (view.selected < 0) select(middleSpan());
  if (view.selected < 0) return;
  hideTip();
  openPanel();
  panel.focus();
}

/** Escape: closes the last thing that was opened. */
function back() {
  if (!panel.hidden || view.selected >= 0) {
    select(-1);
    if (document.activeElement !== field) stage.focus();
  } else if (field.value) {
    field.value = "";
    runSearch();
  }
  hideTip();
}

function toggleArrows() {
  view.arrows = !view.arrows;
  document.getElementById("arrows").setAttribute("aria-pressed", view.arrows);
  changed();
}

function newTheme() {
  switchTheme();
  paintLegend();
  changed();
}

const PAN = 120;
const ACTIONS = [
  [["+", "="], "zoom in", () => zoom(1 / 1.5)],
  [["-", "_"], "zoom out", () => zoom(1.5)],
  [["ArrowLeft"], "go to earlier times", () => pan(-PAN)],
  [["ArrowRight"], "go to later times", () => pan(PAN)],
  [["ArrowUp"], "go up", () => pan(0, -60)],
  [["ArrowDown"], "go down", () => pan(0, 60)],
  [["0", "Home"], "show everything", showAll],
  [["Shift+ArrowLeft"], "select the span before", () => alongTrack(-1)],
  [["Shift+ArrowRight"], "select the span after", () => alongTrack(1)],
  [["Shift+ArrowUp"], "select on the row above", () => acrossTracks(-1)],
  [["Shift+ArrowDown"], "select on the row below", () => acrossTracks(1)],
  [["Enter"], "details of the span: what it waited for, and explain()", showDetails],
  [["f"], "zoom to the selected span", () => view.selected >= 0 && select(view.selected, "close")],
  [["c"], "go along the critical path", () => nextCritical(1)],
  [["C"], "go back along the critical path", () => nextCritical(-1)],
  [["a"], "show arrows of wide spans: copies solid, fences dotted, others dashed", toggleArrows],
  [["/"], "search by name, op, shape or kind", () => { field.focus(); field.select(); }],
  [["n"], "next match, as Enter in the search field", () => nextFound(1)],
  [["N"], "match before", () => nextFound(-1)],
  [["t"], "dark or light", newTheme],
  [["Escape"], "close details, then end the search", back],
  [["?"], "these keys", () => helpBox.showModal()],
];
const byKey = new Map(ACTIONS.flatMap(([keys, , act]) => keys.map((key) => [key, act])));
const WORDS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

function fillHelp() {
  const table = document.getElementById("keys-table");
  for (const [keys, told] of ACTIONS) {
    const row = element("tr"), cell = element("td");
    keys.filter((key) => key !== "_").forEach((key) => {
      cell.append(element("kbd", key.replace(/Arrow\w+/, (word) => WORDS[word])), " ");
    });
    row.append(cell, element("td", told));
    table.append(row);
  }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || helpBox.open) return;
  const inField = event.target === field;
  if (inField && event.key === "Enter") {
    event.preventDefault();
    return nextFound(event.shiftKey ? -1 : 1);
  }
  if (inField && event.key === "Escape") {
    field.value = "";
    runSearch();
    return stage.focus();
  }
  if (inField) return;
  const inPanel = panel.contains(event.target);
  if (inPanel && /^Arrow|^Home$/.test(event.key)) return; // it scrolls
  const onButton = event.target.closest?.("button, summary, a");
  if (onButton && ["Enter", " "].includes(event.key)) return;
  const arrow = event.shiftKey && event.key.startsWith("Arrow");
  const act = byKey.get(arrow ? `Shift+${event.key}` : event.key);
  if (!act) return;
  event.preventDefault();
  act();
}
