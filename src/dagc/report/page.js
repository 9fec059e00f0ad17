"use strict";
// Draws the report's pictures from the JSON in #data: no library, no network. Text goes in as text, never as markup.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const AXES = { // what a score can be drawn against
  bytes_total: "total bytes, up and down", bytes_up: "bytes up", rounds: "rounds", seconds: "seconds on the network's clock",
};
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "1 2", "12 4", "5 2 1 2 1 2", "3 6"];
const state = { panel: 0, axis: "bytes_total", log: true, hidden: new Set(), at: null };
const labels = [...new Set(data.panels.flatMap((each) => each.series.map((line) => line.label)))];
let frame = null; // the curves as drawn, for reading values

const make = (parent, name, attributes = {}, text = null) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.append(node);
  return node;
};
const html = (parent, name, properties = {}) => {
  const node = Object.assign(document.createElement(name), properties);
  parent.append(node);
  return node;
};
const panel = () => data.panels[state.panel];
const color = (label) => `var(--s${labels.indexOf(label) % 8})`;
const dash = (label) => DASHES[labels.indexOf(label) % DASHES.length];
const key = (parent, label) => { // a piece of a line, and its name
  const line = make(parent, "svg", { width: 26, height: 8, "aria-hidden": "true" });
  make(line, "line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: color(label), "stroke-width": 3, "stroke-dasharray": dash(label) });
  html(parent, "span", { textContent: label });
};

const digits = (value, most = 3) => Number(value.toPrecision(most)).toLocaleString("en", { maximumSignificantDigits: 21 });
const percent = (part) => `${(100 * part).toFixed(2)} %`;
const inUnits = (amount, kind) => {
  const rounded = Number(amount.toPrecision(3));
  const [size, unit] = data.units[kind].find(([least]) => rounded >= least) ?? data.units[kind].at(-1);
  return `${digits(rounded / size)} ${unit}`;
};
const inAxis = (value, axis) =>
  axis === "rounds" ? Math.round(value).toLocaleString("en") : inUnits(value, axis === "seconds" ? axis : "bytes");

const scale = (low, high, from, to, log) => {
  const at = log ? Math.log10 : Number;
  const span = at(high) - at(low) || 1;
  return (value) => from + ((at(value) - at(low)) / span) * (to - from);
};
const ticks = (low, high, most, log) => {
  if (log) {
    const powers = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) powers.push(10 ** p);
    const inside = powers.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    const finer = powers.flatMap((p) => [p, 2 * p, 5 * p]).filter((value) => value >= low && value <= high);
    const few = inside.length >= 2 && finer.length > most ? inside : finer;
    if (few.length >= 2) return few.filter((_, place) => place % Math.ceil(few.length / most) === 0);
  }
  const raw = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * size >= raw * 0.999) * size;
  const steps = [];
  for (let n = Math.ceil(low / step - 1e-6); n * step <= high + step * 1e-6; n += 1) steps.push(n * step);
  return steps;
};
const canvas = (id, height, label) => {
  const holder = $(id);
  holder.querySelector("svg")?.remove();
  const width = Math.max(240, holder.clientWidth);
  const box = { left: 50, right: width - 14, top: 24, bottom: height - 44 };
  return { width, box, svg: make(holder, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }) };
};
const grid = (svg, box, x, y, xs, ys, words) => { // lines and numbers, and the names of the axes
  for (const [value, text] of ys) {
    make(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
    make(svg, "text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, text);
  }
  for (const [value, text] of xs) {
    make(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom });
    const anchor = x(value) > box.right - 24 ? "end" : "middle";
    make(svg, "text", { x: x(value), y: box.bottom + 17, "text-anchor": anchor }, text);
  }
  make(svg, "text", { class: "strong", x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, words[0]);
  make(svg, "text", { class: "strong", x: 0, y: 12 }, words[1]);
};
const polyline = (parent, points, label, more = {}) => make(parent, "polyline", {
  points: points.map((point) => point.map((at) => at.toFixed(1)).join(",")).join(" "), fill: "none", stroke: color(label),
  "stroke-width": 2.2, "stroke-dasharray": dash(label), "stroke-linejoin": "round", ...more,
});

const drawCurves = () => {
  const shown = panel().series.filter((line) => !state.hidden.has(line.label) && line.curve[state.axis].length);
  const height = Math.min(420, Math.max(280, $("plot").clientWidth * 0.5));
  const words = `${panel().metric} against ${AXES[state.axis]} of ${shown.map((line) => line.label).join(", ")}`;
  const { width, svg, box } = canvas("plot", height, words);
  hideTip();
  frame = null;
  if (!shown.length) {
    make(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to show: switch a method on above.");
    return;
  }
  const amounts = shown.flatMap((line) => line.curve[state.axis]).filter((value) => value > 0);
  const low = state.log ? Math.min(...amounts) : 0, high = Math.max(...amounts);
  const scores = shown.flatMap((line) => [...line.curve.low, ...line.curve.high]);
  const top = Math.max(...scores), bottom = Math.max(Math.min(...scores), top - 1); // R² may begin far below zero
  const room = 0.03 * (top - bottom || 0.1);
  const x = scale(low, high, box.left + (state.log ? 8 : 0), box.right, state.log);
  const y = scale(bottom - room, top + room, box.bottom, box.top, false);
  const xs = ticks(low, high, Math.max(2, Math.floor(width / 120)), state.log).map((at) => [at, inAxis(at, state.axis)]);
  const ys = ticks(bottom - room, top + room, 6, false).map((at) => [at, `${Number((100 * at).toFixed(2))}`]);
  grid(svg, box, x, y, xs, ys, [AXES[state.axis], `${panel().metric}, %`]);
  const clip = make(make(svg, "defs"), "clipPath", { id: "clip" });
  make(clip, "rect", { x: box.left, y: box.top, width: box.right - box.left + 1.5, height: box.bottom - box.top });
  const area = make(svg, "g", { "clip-path": "url(#clip)" });
  for (const { label, seeds, curve } of shown) {
    const path = (values) => values.map((value, place) => [x(Math.max(curve[state.axis][place], low)), y(value)]);
    if (seeds > 1) {
      make(area, "polygon", { points: [...path(curve.high), ...path(curve.low).reverse()].join(" "), fill: color(label), opacity: 0.16 });
    }
    polyline(area, path(curve.mean), label, { "data-series": label });
  }
  frame = { svg, box, x, y, low, high, shown, width };
  if (state.at !== null) readAt(state.at, true);
};

const hideTip = () => {
  $("plot").querySelector(".tip")?.remove();
  frame?.svg.querySelector(".marks")?.remove();
};
// `part` runs from 0 to 1 along the axis; each line is read at its last evaluation up to there.
const readAt = (part, spoken) => {
  hideTip();
  if (!frame) return;
  state.at = Math.min(1, Math.max(0, part));
  const { svg, box, x, y, low, high, shown, width } = frame;
  const pixel = x(low) + state.at * (box.right - x(low));
  const marks = make(svg, "g", { class: "marks" });
  make(marks, "line", { class: "cross", x1: pixel, x2: pixel, y1: box.top, y2: box.bottom });
  const tip = html($("plot"), "div", { className: "tip" });
  const value = state.log ? low * (high / low) ** state.at : low + state.at * (high - low);
  const unit = { bytes_total: " in total", bytes_up: " up", rounds: " rounds" }[state.axis] ?? "";
  const heading = inAxis(value, state.axis) + unit;
  html(html(tip, "p"), "b", { textContent: heading });
  const readings = shown.map(({ label, curve }) => {
    const across = curve[state.axis].map((amount) => x(Math.max(amount, low)));
    const place = across.findLastIndex((at) => at <= pixel + 0.5);
    return { label, at: across[place], score: curve.mean[place] };
  }).filter((reading) => reading.at !== undefined).sort((a, b) => b.score - a.score);
  for (const { label, at, score } of readings) {
    if (y(score) <= box.bottom) make(marks, "circle", { cx: at, cy: y(score), r: 4, fill: color(label) });
    const line = html(tip, "p");
    html(line, "span", { textContent: label }).style.color = color(label);
    html(line, "b", { textContent: percent(score) });
  }
  if (!readings.length) html(tip, "p", { textContent: "not evaluated yet" });
  const right = pixel + 12 + tip.offsetWidth <= width;
  tip.style.left = `${Math.max(0, right ? pixel + 12 : pixel - tip.offsetWidth - 12)}px`;
  const below = width < 560; // on a phone it would hide the lines
  tip.style.top = `${below ? box.bottom + 42 : Math.max(0, box.bottom - tip.offsetHeight - 8)}px`;
  const said = readings.map(({ label, score }) => `${label} ${percent(score)}`).join(", ") || "not evaluated yet";
  if (spoken) $("readout").textContent = `${heading}: ${said}`;
};

const drawLegend = () => {
  $("legend").replaceChildren();
  for (const { label } of panel().series) {
    const button = html($("legend"), "button", { type: "button" });
    const press = () => button.setAttribute("aria-pressed", String(!state.hidden.has(label)));
    key(button, label);
    press();
    button.addEventListener("click", () => {
      if (!state.hidden.delete(label)) state.hidden.add(label);
      press();
      drawCurves();
    });
  }
};

const mixed = (lines) => { // whose ratio is of what, where it differs
  const who = (of) => lines.filter((line) => line.of === of).map((line) => line.label).join(", ");
  return who("bytes") && who("entries") ? `The ratio is of bytes for ${who("bytes")}, of entries for ${who("entries")}. ` : "";
};
const drawShares = () => {
  const { series, weights, names, seed } = panel();
  const kind = series.some(({ shares }) => shares.kind === "ratio") ? "ratio" : "threshold";
  const lines = series.filter(({ shares }) => shares.kind === kind).map(({ label, shares }) => ({
    label,
    of: shares.of,
    points: shares.values.map((value, client) => [weights[client], value, names[client]])
      .filter(([weight, value]) => weight > 0 && value > 0).sort((a, b) => a[0] - b[0]),
  })).filter((line) => line.points.length);
  const { width, svg, box } = canvas("shares", 320, `Each client's ${kind} against its share of the data`);
  const everything = series.every(({ shares }) => shares.kind === "everything");
  $("shares-legend").replaceChildren();
  $("shares-hint").textContent = lines.length
    ? `Each ring is a client in the first round${seed === null ? "" : ` (seed ${seed})`}; both axes are logarithmic. ${mixed(lines)}Clients that may send nothing are not shown.`
    : everything ? "Every client sends everything." : "Not known.";
  svg.style.display = lines.length ? "" : "none";
  if (!lines.length) return;
  const points = lines.flatMap((line) => line.points);
  const range = (place) => [Math.min(...points.map((at) => at[place])) / 1.3, Math.max(...points.map((at) => at[place])) * 1.3];
  const [[left, right], [bottom, top]] = [range(0), range(1)];
  const x = scale(left, right, box.left + 8, box.right, true), y = scale(bottom, top, box.bottom - 8, box.top + 8, true);
  const part = (value) => `${digits(100 * value, 2)} %`;
  const parts = [...new Set(lines.map((line) => line.of))];
  const ratio = parts.length > 1 ? "ratio of the model's bytes or entries sent" : `ratio of the model's ${parts[0]} sent`;
  const amount = kind === "ratio" ? part : (value) => digits(value, 2);
  const xs = ticks(left, right, Math.floor(width / 90), true).map((at) => [at, part(at)]);
  grid(svg, box, x, y, xs, ticks(bottom, top, 5, true).map((at) => [at, amount(at)]), ["share of the data", kind === "ratio" ? ratio : "threshold"]);
  lines.forEach(({ label, of, points: own }, place) => {
    key(html($("shares-legend"), "span"), label);
    polyline(svg, own.map(([weight, value]) => [x(weight), y(value)]), label, { "stroke-width": 1.5 });
    for (const [weight, value, name] of own) { // rings of different sizes do not hide each other
      const ring = make(svg, "circle", { cx: x(weight), cy: y(value), r: 3 + 2 * place, fill: "transparent", stroke: color(label), "stroke-width": 1.8 });
      make(ring, "title", {}, `${label}: client ${name}, ${part(weight)} of the data, ${kind === "ratio" ? `${part(value)} of the ${of}` : `threshold ${digits(value)}`}`);
    }
  });
};

const setAxis = (axis) => {
  Object.assign(state, { axis, at: null });
  const ends = panel().series.map((line) => line.curve[axis].at(-1)).filter((value) => value > 0);
  state.log = axis.startsWith("bytes") || (axis === "seconds" && Math.max(...ends) > 10 * Math.min(...ends));
  $("log").checked = state.log;
  drawCurves();
};
const drawAll = () => {
  const input = document.querySelector("input[name=axis][value=seconds]");
  input.disabled = !panel().series.some((line) => line.curve.seconds.at(-1) > 0);
  if (input.disabled && state.axis === "seconds") document.querySelector("input[name=axis][value=bytes_total]").click();
  for (const draw of [drawLegend, drawCurves, drawShares]) draw();
};

document.querySelectorAll("input[name=axis]").forEach((input) => input.addEventListener("change", () => setAxis(input.value)));
$("log").addEventListener("change", () => { state.log = $("log").checked; drawCurves(); });
$("pick").hidden = data.panels.length < 2;
data.panels.forEach((each, place) => html($("panel"), "option", { value: place, textContent: each.title }));
$("panel").addEventListener("change", () => { state.panel = Number($("panel").value); state.at = null; drawAll(); });
$("plot").addEventListener("pointermove", (event) => {
  if (!frame) return;
  const offset = event.clientX - $("plot").getBoundingClientRect().left;
  const start = frame.x(frame.low);
  readAt((offset - start) / (frame.box.right - start), false);
});
for (const leave of ["pointerleave", "blur"]) $("plot").addEventListener(leave, () => { state.at = null; hideTip(); });
$("plot").addEventListener("keydown", (event) => {
  const now = state.at ?? 0.5;
  const to = { ArrowLeft: now - 0.02, ArrowRight: now + 0.02, PageUp: now + 0.2, PageDown: now - 0.2, Home: 0, End: 1 }[event.key];
  if (event.key === "Escape") { state.at = null; hideTip(); }
  if (to === undefined) return;
  event.preventDefault();
  readAt(to, true);
});
$("copy").addEventListener("click", async () => {
  getSelection().selectAllChildren($("command"));
  try { await navigator.clipboard.writeText($("command").textContent); $("copy").textContent = "Copied"; } catch { $("copy").textContent = "Selected"; }
});
let drawnWidth = 0;
new ResizeObserver(() => {
  if ($("plot").clientWidth !== drawnWidth) { drawnWidth = $("plot").clientWidth; drawAll(); }
}).observe($("plot"));
document.documentElement.dataset.drawn = "yes";
