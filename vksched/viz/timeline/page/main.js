// Main: the mouse, the buttons, and the first picture.

document.getElementById("title").textContent = data.title;
const noted = [data.summary, ...data.notes].filter(Boolean).join("; ");
document.getElementById("summary").textContent = noted;
document.getElementById("summary").title = noted;

const buttons = {
  in: () => zoom(1 / 1.5), out: () => zoom(1.5), all: showAll, arrows: toggleArrows,
  critical: () => nextCritical(1), theme: newTheme, help: () => helpBox.showModal(),
  "keys-close": () => helpBox.close(),
};
for (const [id, act] of Object.entries(buttons)) document.getElementById(id).onclick = act;
field.oninput = runSearch;
document.addEventListener("keydown", onKey);
darkWanted.addEventListener("change", () => { applyTheme(); paintLegend(); changed(); });

const placeIn = (event) => {
  const box = stage.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
let drag = null, dragged = false;

stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (event.shiftKey) return pan(event.deltaX || event.deltaY);
  if (event.altKey) return pan(0, event.deltaY);
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return pan(event.deltaX);
  const [x] = placeIn(event);
  zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 400), Math.max(x, GUTTER));
}, { passive: false });

stage.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  drag = { x: event.clientX, y: event.clientY, far: false };
  stage.setPointerCapture(event.pointerId);
});

stage.addEventListener("pointermove", (event) => {
  if (drag) {
    const x = event.clientX - drag.x, y = event.clientY - drag.y;
    if (!drag.far && Math.hypot(x, y) < 4) return;
    Object.assign(drag, { x: event.clientX, y: event.clientY, far: true });
    stage.classList.add("dragged");
    hideTip();
    return pan(-x, -y);
  }
  const number = spanAt(...placeIn(event));
  if (number >= 0) showTip(number, event.clientX, event.clientY);
  else hideTip();
  if (number !== view.hover) {
    view.hover = number;
    changed();
  }
});

stage.addEventListener("pointerup", () => {
  dragged = drag?.far ?? false;
  drag = null;
  stage.classList.remove("dragged");
});

// The first click may open the panel, so that the second one of two is elsewhere in time.
stage.addEventListener("click", (event) => {
  if (!dragged && event.detail < 2) select(spanAt(...placeIn(event)), "mouse");
});

stage.addEventListener("pointercancel", () => { drag = null; });
stage.addEventListener("pointerleave", () => {
  hideTip();
  view.hover = -1;
  changed();
});
stage.addEventListener("dblclick", () => {
  if (view.selected < 0) return;
  select(view.selected, "close");
  hideTip();
});
stage.addEventListener("blur", hideTip);

const moveMap = (event) => {
  if (!(event.buttons & 1)) return;
  const box = map.getBoundingClientRect();
  const part = (event.clientX - box.left - GUTTER) / (box.width - GUTTER - 10);
  const wide = view.to - view.from;
  view.from = FIRST[0] + part * (FIRST[1] - FIRST[0]) - wide / 2;
  view.to = view.from + wide;
  changed();
};
map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); moveMap(event); });
map.addEventListener("pointermove", moveMap);

fillHelp();
paintLegend();
new ResizeObserver(resize).observe(stage);
showAll();
resize();

// For tests and for whoever wants to script the page.
window.vksched = { view, data, span, tracks, texts, facts, select, zoom, pan, showAll, search,
  placeOf, spanAt, linksOf, criticalPath, paint };
