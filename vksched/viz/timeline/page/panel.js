// Panel: the tooltip, and what is told of a span beside the timeline.

const panel = document.getElementById("panel");
const tip = document.getElementById("tip");
const status = document.getElementById("status");
const MOST_NODES = 100, MOST_LINKS = 12;

function element(name, text = "", more = {}) {
  const made = Object.assign(document.createElement(name), more);
  if (text) made.textContent = text;
  return made;
}

function showTip(number, x, y) {
  const { name, pairs } = facts(number);
  tip.textContent = "";
  tip.append(element("b", name));
  const table = element("table");
  for (const pair of pairs) {
    const row = element("tr");
    row.append(...pair.map((text) => element("td", text)));
    table.append(row);
  }
  tip.append(table);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16;
  const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** Selects a span, or none with -1. how: "close" zooms to it; "mouse" leaves the view alone. */
function select(number, how = "") {
  view.selected = number;
  if (number < 0) {
    status.textContent = "nothing is selected";
    closePanel();
    hideTip();
    return changed();
  }
  const { name, pairs } = facts(number);
  status.textContent = [name, ...pairs.map((pair) => pair.join(" "))].join(", ");
  if (!panel.hidden || how === "mouse") openPanel();
  if (how === "mouse") return changed();
  reveal(number, how === "close");
  const place = placeOf(number);
  showTip(number, place.x, place.y);
}

function openPanel() {
  const was = panel.hidden;
  panel.hidden = false;
  fillPanel();
  if (was) resize();
}

function closePanel() {
  if (panel.hidden) return;
  const inside = panel.contains(document.activeElement);
  panel.hidden = true;
  if (inside) stage.focus();
  resize();
}

function fillPanel() {
  const number = view.selected;
  panel.textContent = "";
  panel.scrollTop = 0;
  const close = element("button", "×", { className: "close", title: "Close (Escape)" });
  close.setAttribute("aria-label", "Close the details");
  close.onclick = () => select(-1);
  panel.append(close);
  if (number < 0) return;
  const { name, pairs } = facts(number);
  panel.append(element("h2", name), list(pairs));
  const { into, from } = linksOf(number);
  addLinks("Waited for", into, (i) => link.source[i]);
  addLinks("Waited for this", from, (i) => link.target[i]);
  const plan = span.plan[number];
  if (plan < 0) return;
  addNodes(plan, nodesOf(number));
  addText(`All of the ${data.plans[plan].name}`, data.plans[plan].about);
}

function list(pairs) {
  const made = element("dl");
  for (const [word, text] of pairs) made.append(element("dt", word), element("dd", text));
  return made;
}

function addLinks(title, found, end) {
  if (!found.length) return;
  const items = element("ul");
  for (const i of found.slice(0, MOST_LINKS)) {
    const other = end(i), kind = texts[link.kind[i]];
    const size = link.bytes[i] > 0 ? `, ${bytes(link.bytes[i])}` : "";
    const button = element("button", `${kind}: ${texts[span.name[other]]}${size}`);
    button.onclick = () => { select(other); openPanel(); panel.focus(); };
    const item = element("li");
    item.append(button);
    items.append(item);
  }
  panel.append(element("h3", title), items);
  if (found.length > MOST_LINKS) panel.append(element("p", `${found.length - MOST_LINKS} more`));
}

function addNodes(plan, numbers) {
  if (!numbers.length) return;
  const nodes = numbers.map((n) => nodeOf(plan, n));
  const byOp = new Map();
  for (const { op, seconds: taken } of nodes) {
    const [many, sum] = byOp.get(op) ?? [0, 0];
    byOp.set(op, [many + 1, sum + taken]);
  }
  if (nodes.length > 1) {
    const table = element("table");
    const head = element("tr");
    head.append(...["op", "nodes", "predicted"].map((word) => element("th", word)));
    table.append(head);
    for (const [op, [many, sum]] of [...byOp].sort((a, b) => b[1][1] - a[1][1])) {
      const row = element("tr");
      row.append(...[op, `${many}`, seconds(sum)].map((text) => element("td", text)));
      table.append(row);
    }
    panel.append(element("h3", "Ops"), table);
  }
  const explain = element("section");
  explain.id = "explain";
  panel.append(element("h3", nodes.length > 1 ? "explain() of its nodes" : "explain()"), explain);
  const show = (first) => {
    for (const node of nodes.slice(first, first + MOST_NODES)) {
      const details = element("details", "", { open: nodes.length === 1 });
      details.append(element("summary", `${node.name}: ${node.op}, ${seconds(node.seconds)}`));
      details.append(element("pre", node.explain));
      explain.append(details);
    }
    const left = nodes.length - first - MOST_NODES;
    if (left <= 0) return;
    const more = element("button", `${left} more nodes`);
    more.onclick = () => { more.remove(); show(first + MOST_NODES); };
    explain.append(more);
  };
  show(0);
  const first = explain.querySelector("details");
  if (first) first.open = true;
}

function addText(title, text) {
  const details = element("details");
  details.append(element("summary", title), element("pre", text));
  panel.append(element("h3", "Plan"), details);
}
