// Look: colours of the scheme in use, patterns of each kind, and the scheme itself.

const root = document.documentElement;
const DEVICES = 6;
let look = {};

function readLook() {
  const style = getComputedStyle(root);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  look = { patterns: new Map() };
  for (const name of ["ground", "raised", "ink", "faint", "line", "grid", "band", "focus",
    "critical", "warn", "host", "dim"]) look[name] = of(name);
  look.fills = [of("host")];
  look.edges = [of("host-edge")];
  for (let i = 0; i < DEVICES; i++) {
    look.fills.push(of(`fill${i}`));
    look.edges.push(of(`edge${i}`));
  }
}

/** The colours of a lane: grey of the host, then those of devices, which repeat. */
function coloursOf(lane) {
  const at = lane === 0 ? 0 : 1 + ((lane - 1) % DEVICES);
  return { fill: look.fills[at], edge: look.edges[at] };
}

const STYLES = {
  split: "plain", op: "plain", run: "open", step: "plain", copy: "stripes", transfer_queue: "stripes",
  wait: "dots", submit: "plain",
};

/** A pattern in two colours: no kind is told by its colour alone. */
function pattern(context, style, fill, edge) {
  const key = `${style}${fill}${edge}`;
  if (style === "plain") return fill;
  if (style === "open") return look.ground;
  if (look.patterns.has(key)) return look.patterns.get(key);
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const draw = tile.getContext("2d");
  draw.fillStyle = style === "hatch" || style === "dots" ? look.ground : fill;
  draw.fillRect(0, 0, 8, 8);
  draw.strokeStyle = draw.fillStyle = edge;
  draw.globalAlpha = style === "hatch" ? 0.6 : 0.5;
  draw.lineWidth = style === "stripes" ? 1.6 : 1;
  draw.beginPath();
  if (style === "dots") draw.arc(2, 2, 0.9, 0, 7), draw.moveTo(7, 6), draw.arc(6, 6, 0.9, 0, 7);
  else if (style === "stripes") for (const x of [-8, 0, 8]) draw.moveTo(x, 0), draw.lineTo(x + 8, 8);
  else for (const x of [-8, 0, 8]) draw.moveTo(x, 8), draw.lineTo(x + 8, 0);
  if (style === "dots") draw.fill(); else draw.stroke();
  const made = context.createPattern(tile, "repeat");
  look.patterns.set(key, made);
  return made;
}

const darkWanted = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;

function applyTheme() {
  const theme = chosen ?? (darkWanted.matches ? "dark" : "light");
  root.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  readLook();
}

function switchTheme() {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  applyTheme();
}
applyTheme();
