"use strict";
// Draws the report's pictures from the JSON in #data: no library, no network. Text goes in as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const NS = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "1 2", "12 4", "5 2 1 2 1 2", "3 6"];
  const AXES = {
    bytes_total: "total bytes, up and down", bytes_up: "bytes up", rounds: "rounds", seconds: "seconds on the network's clock",
  };
  const state = { panel: 0, axis: "bytes_total", log: true, whole: false, hidden: new Set(), at: null };
  const labels = [...new Set(data.panels.flatMap((panel) => panel.series.map((one) => one.label)))];

  const make = (parent, name, attributes = {}, text = null) => {
    const node = document.createElementNS(NS, name);
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
  const colour = (label) => `var(--s${labels.indexOf(label) % 8})`;
  const dash = (label) => DASHES[labels.indexOf(label) % DASHES.length];
  const percent = (part) => `${(100 * part).toFixed(2)} %`;
  const bytes = (count) => {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (count >= size) return `${Number((count / size).toPrecision(3))} ${unit}`;
    }
    return `${Number(count.toPrecision(3))} B`;
  };
  const seconds = (time) => (time >= 5400 ? `${Number((time / 3600).toPrecision(3))} h` : `${Number(time.toPrecision(3))} s`);
  const FORMAT = { bytes_total: bytes, bytes_up: bytes, rounds: (value) => Math.round(value).toLocaleString("en"), seconds };
  const UNITS = { bytes_total: " in total", bytes_up: " up", rounds: " rounds", seconds: "" };

  const scale = (low, high, from, to, log) => {
    const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    const span = b - a || 1;
    return (value) => from + (((log ? Math.log10(value) : value) - a) / span) * (to - from);
  };
  const ticks = (low, high, count, log) => {
    if (log) {
      const powers = [];
      for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) powers.push(10 ** p);
      const inside = powers.filter((value) => value >= low * 0.999 && value <= high * 1.001);
      const finer = powers.flatMap((p) => [p, 2 * p, 5 * p]).filter((value) => value >= low && value <= high);
      const few = inside.length >= 2 && finer.length > count ? inside : finer;
      const every = Math.max(1, Math.ceil(few.length / count));
      if (few.length >= 2) return few.filter((_, place) => place % every === 0);
    }
    const raw = (high - low) / count || 1;
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((m) => m * size >= raw) * size;
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(value);
    return found;
  };
  const canvas = (place, height, label) => {
    const holder = $(place);
    holder.querySelector("svg")?.remove();
    const width = Math.max(240, holder.clientWidth);
    return { width, svg: make(holder, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }) };
  };

  const panel = () => data.panels[state.panel];
  const visible = () => panel().series.filter((one) => !state.hidden.has(one.label) && one.curve[state.axis].length);
  let frame = null;

  const drawCurves = () => {
    const height = Math.min(420, Math.max(280, $("plot").clientWidth * 0.5));
    const shown = visible();
    const { width, svg } = canvas("plot", height, `${panel().metric} against ${AXES[state.axis]} of ${shown.map((one) => one.label).join(", ")}`);
    hideTip();
    frame = null;
    if (!shown.length) {
      make(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to show: switch a method on above.");
      return;
    }
    const box = { left: 46, right: width - 14, top: 12, bottom: height - 44 };
    const xs = shown.flatMap((one) => one.curve[state.axis]).filter((value) => value > 0);
    const low = state.log ? Math.min(...xs) : 0;
    const high = Math.max(...xs);
    const ys = shown.flatMap((one) => [...one.curve.low, ...one.curve.high]);
    const early = shown.map((one) => one.curve.mean[Math.floor(one.curve.mean.length * 0.06)]);
    const top = Math.min(1, Math.max(...ys) + 0.005);
    const bottom = state.whole ? 0 : Math.max(0, Math.min(...early, top - 0.02) - 0.005);
    const x = scale(low, high, box.left, box.right, state.log);
    const y = scale(bottom, top, box.bottom, box.top, false);
    for (const value of ticks(bottom, top, 6, false)) {
      make(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
      make(svg, "text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, `${Number((100 * value).toFixed(1))}`);
    }
    for (const value of ticks(low, high, Math.max(2, Math.floor(width / 120)), state.log)) {
      make(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom });
      const anchor = x(value) > box.right - 24 ? "end" : "middle";
      make(svg, "text", { x: x(value), y: box.bottom + 17, "text-anchor": anchor }, FORMAT[state.axis](value));
    }
    make(svg, "text", { class: "strong", x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" }, AXES[state.axis]);
    make(svg, "text", { class: "strong", x: box.left + 6, y: box.top + 12 }, `${panel().metric}, %`);
    const clip = make(make(svg, "defs"), "clipPath", { id: "clip" });
    make(clip, "rect", { x: box.left, y: box.top - 2, width: box.right - box.left + 2, height: box.bottom - box.top + 2 });
    const area = make(svg, "g", { "clip-path": "url(#clip)" });
    for (const one of shown) {
      const at = one.curve[state.axis].map((value) => x(Math.max(value, low || value)));
      const path = (values) => values.map((value, place) => `${at[place].toFixed(1)},${y(value).toFixed(1)}`);
      if (one.seeds > 1) {
        make(area, "polygon", { points: [...path(one.curve.high), ...path(one.curve.low).reverse()].join(" "), fill: colour(one.label), opacity: 0.16 });
      }
      make(area, "polyline", {
        points: path(one.curve.mean).join(" "), fill: "none", stroke: colour(one.label), "stroke-width": 2.2,
        "stroke-dasharray": dash(one.label), "stroke-linejoin": "round", "data-series": one.label,
      });
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
    const { svg, box, x, y, shown, width } = frame;
    const pixel = box.left + state.at * (box.right - box.left);
    const marks = make(svg, "g", { class: "marks" });
    make(marks, "line", { class: "cross", x1: pixel, x2: pixel, y1: box.top, y2: box.bottom });
    const tip = html($("plot"), "div", { className: "tip" });
    const value = state.log ? 10 ** (Math.log10(frame.low) + state.at * Math.log10(frame.high / frame.low)) : frame.low + state.at * (frame.high - frame.low);
    const heading = FORMAT[state.axis](value) + UNITS[state.axis];
    html(html(tip, "p"), "b", { textContent: heading });
    const words = [];
    const found = shown.map((one) => {
      const where = one.curve[state.axis].findLastIndex((position) => x(Math.max(position, frame.low || position)) <= pixel + 0.5);
      return { one, where };
    }).filter(({ where }) => where >= 0).sort((a, b) => b.one.curve.mean[b.where] - a.one.curve.mean[a.where]);
    for (const { one, where } of found) {
      const accuracy = one.curve.mean[where];
      const position = x(Math.max(one.curve[state.axis][where], frame.low || 0));
      if (y(accuracy) <= box.bottom) make(marks, "circle", { cx: position, cy: y(accuracy), r: 4, fill: colour(one.label) });
      const line = html(tip, "p");
      html(line, "span", { textContent: one.label }).style.color = colour(one.label);
      html(line, "b", { textContent: percent(accuracy) });
      words.push(`${one.label} ${percent(accuracy)}`);
    }
    if (!found.length) html(tip, "p", { textContent: "not evaluated yet" });
    tip.style.left = `${Math.max(0, Math.min(pixel + 12, width - tip.offsetWidth))}px`;
    if (pixel + 12 + tip.offsetWidth > width) tip.style.left = `${Math.max(0, pixel - tip.offsetWidth - 12)}px`;
    const below = width < 560; // on a phone it would hide the lines
    tip.style.top = `${below ? box.bottom + 42 : Math.max(0, box.bottom - tip.offsetHeight - 8)}px`;
    if (spoken) $("readout").textContent = `${heading}: ${words.join(", ") || "not evaluated yet"}`;
  };

  const drawLegend = () => {
    $("legend").replaceChildren();
    for (const one of panel().series) {
      const button = html($("legend"), "button", { type: "button" });
      button.setAttribute("aria-pressed", String(!state.hidden.has(one.label)));
      const line = make(button, "svg", { width: 26, height: 8, "aria-hidden": "true" });
      make(line, "line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour(one.label), "stroke-width": 3, "stroke-dasharray": dash(one.label) });
      html(button, "span", { textContent: one.label });
      button.addEventListener("click", () => {
        if (!state.hidden.delete(one.label)) state.hidden.add(one.label);
        button.setAttribute("aria-pressed", String(!state.hidden.has(one.label)));
        drawCurves();
      });
    }
  };

  const drawShares = () => {
    const { shares: wanted, weights, names, seed } = panel();
    const kind = wanted.some((one) => one.kind === "ratio") ? "ratio" : "threshold";
    const lines = wanted.filter((one) => one.kind === kind).map((one) => ({
      label: one.label,
      points: one.values.map((value, client) => [weights[client], value, names[client]]).filter(([p, v]) => p > 0 && v > 0),
    })).filter((one) => one.points.length);
    const height = 300;
    const { width, svg } = canvas("shares", height, `Each client's ${kind} against its share of the data`);
    const everything = wanted.every((one) => one.kind === "everything");
    $("shares-hint").textContent = lines.length
      ? `Each point is a client in the first round${seed === null ? "" : ` (seed ${seed})`}; both axes logarithmic.`
      : everything ? "Everybody sends everything." : "Not known.";
    if (!lines.length) return;
    const box = { left: 62, right: width - 14, top: 12, bottom: height - 44 };
    const points = lines.flatMap((one) => one.points);
    const wide = (values) => [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
    const [[left, right], [bottom, top]] = [wide(points.map(([p]) => p)), wide(points.map(([, v]) => v))];
    const x = scale(left, right, box.left, box.right, true);
    const y = scale(bottom, top, box.bottom, box.top, true);
    const small = (value) => `${Number((100 * value).toPrecision(2))} %`;
    for (const value of ticks(left, right, 5, true)) {
      make(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom });
      make(svg, "text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, small(value));
    }
    for (const value of ticks(bottom, top, 5, true)) {
      make(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
      make(svg, "text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, kind === "ratio" ? small(value) : `${Number(value.toPrecision(2))}`);
    }
    make(svg, "text", { class: "strong", x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" }, "share of the data");
    make(svg, "text", { class: "strong", x: box.left + 6, y: box.top + 12 }, kind === "ratio" ? "ratio of entries sent" : "threshold");
    for (const one of lines) {
      one.points.sort((a, b) => a[0] - b[0]);
      make(svg, "polyline", {
        points: one.points.map(([p, v]) => `${x(p)},${y(v)}`).join(" "), fill: "none", stroke: colour(one.label),
        "stroke-width": 1.5, "stroke-dasharray": dash(one.label),
      });
      for (const [p, v, name] of one.points) {
        const dot = make(svg, "circle", { cx: x(p), cy: y(v), r: 3.5, fill: colour(one.label) });
        make(dot, "title", {}, `${one.label}: client ${name}, ${small(p)} of the data, ${kind} ${kind === "ratio" ? `${Number((100 * v).toPrecision(3))} %` : v.toPrecision(3)}`);
      }
    }
  };

  const drawTraffic = () => {
    const rows = panel().series;
    const height = 46 * rows.length + 34;
    const { width, svg } = canvas("traffic", height, rows.map((one) => `${one.label}: ${bytes(one.up)} up, ${bytes(one.down)} down`).join("; "));
    const all = rows.flatMap((one) => [one.up, one.down]).filter((value) => value > 0);
    if (!all.length) return;
    const [low, high] = [Math.min(...all) / 1.6, Math.max(...all) * 1.6];
    const box = { left: 10, right: width - 10, bottom: height - 26 };
    const x = scale(low, high, box.left, box.right, true);
    for (const value of ticks(low, high, Math.max(2, Math.floor(width / 90)), true)) {
      make(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: 4, y2: box.bottom });
      make(svg, "text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, bytes(value));
    }
    rows.forEach((one, place) => {
      const middle = 46 * place + 32;
      const tint = colour(one.label);
      make(svg, "text", { class: "strong", x: box.left, y: middle - 13 }, `${one.label}: ${bytes(one.up)} up, ${bytes(one.down)} down`);
      if (one.down > 0 && one.up > 0) make(svg, "line", { x1: x(one.up), x2: x(one.down), y1: middle, y2: middle, stroke: tint, "stroke-width": 2, opacity: 0.5 });
      if (one.up > 0) make(svg, "circle", { cx: x(one.up), cy: middle, r: 6, fill: tint });
      if (one.down > 0) make(svg, "circle", { cx: x(one.down), cy: middle, r: 5.5, fill: "var(--card)", stroke: tint, "stroke-width": 2.2 });
    });
  };

  const hue = (place, count) => `hsl(${Math.round((360 * place) / count)} 55% ${place % 2 ? 46 : 60}%)`;
  const drawLabels = () => {
    const { sizes, names, labels } = panel();
    const counts = labels ?? sizes.map((size) => [size]);
    const classes = labels ? panel().classes : [""];
    $("h-labels").textContent = labels ? "Labels of each client" : "Examples of each client";
    const most = 30;
    const rows = [...counts.keys()].slice(0, most);
    const bar = 20;
    const { width, svg } = canvas("labels", rows.length * bar + (counts.length > most ? 22 : 4), `${$("h-labels").textContent}, ${counts.length} clients`);
    const short = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);
    const longest = Math.max(...rows.map((client) => short(names[client]).length));
    const box = { left: 12 + 7.5 * longest, right: width - 66 };
    const largest = Math.max(...sizes);
    rows.forEach((client, place) => {
      const total = (labels ? sizes[client] : largest) || 1;
      let from = box.left;
      make(make(svg, "text", { x: 0, y: place * bar + 14 }, short(names[client])), "title", {}, names[client]);
      counts[client].forEach((count, label) => {
        const wide = ((box.right - box.left) * count) / total;
        if (wide > 0) {
          const part = make(svg, "rect", { x: from, y: place * bar + 2, width: Math.max(0, wide - 0.6), height: bar - 4, fill: hue(label, classes.length) });
          make(part, "title", {}, `client ${names[client]}: ${count.toLocaleString("en")} ${labels ? `of ${classes[label]}` : "examples"}`);
        }
        from += wide;
      });
      make(svg, "text", { x: width, y: place * bar + 14, "text-anchor": "end" }, sizes[client].toLocaleString("en"));
    });
    if (counts.length > most) make(svg, "text", { x: 0, y: most * bar + 16 }, `… and ${counts.length - most} more clients`);
    $("classes").replaceChildren();
    if (!labels) return;
    classes.slice(0, 20).forEach((name, place) => {
      const item = html($("classes"), "span");
      html(item, "i").style.background = hue(place, classes.length);
      item.append(name);
    });
    if (classes.length > 20) $("classes").append(`… ${classes.length} classes`);
  };

  const drawAll = () => {
    const inSeconds = panel().series.some((one) => one.curve.seconds.length && one.curve.seconds.at(-1) > 0);
    const input = document.querySelector("input[name=axis][value=seconds]");
    input.disabled = !inSeconds;
    if (!inSeconds && state.axis === "seconds") document.querySelector("input[name=axis][value=bytes_total]").click();
    $("said").textContent = panel().paper ? `The paper: ${panel().paper}.` : "";
    drawLegend();
    drawCurves();
    drawShares();
    drawTraffic();
    drawLabels();
  };

  const setAxis = (axis) => {
    state.axis = axis;
    state.at = null;
    const ends = panel().series.map((one) => one.curve[axis].at(-1)).filter((value) => value > 0);
    const apart = ends.length > 0 && Math.max(...ends) / Math.min(...ends) > 10;
    state.log = axis.startsWith("bytes") || (axis === "seconds" && apart);
    $("log").checked = state.log;
    drawCurves();
  };
  document.querySelectorAll("input[name=axis]").forEach((input) => input.addEventListener("change", () => setAxis(input.value)));
  $("log").addEventListener("change", () => { state.log = $("log").checked; drawCurves(); });
  $("whole").addEventListener("change", () => { state.whole = $("whole").checked; drawCurves(); });
  $("pick").hidden = data.panels.length < 2;
  data.panels.forEach((one, place) => html($("panel"), "option", { value: place, textContent: one.title }));
  $("panel").addEventListener("change", () => { state.panel = Number($("panel").value); state.at = null; drawAll(); });
  $("plot").addEventListener("pointermove", (event) => {
    if (!frame) return;
    const offset = event.clientX - $("plot").getBoundingClientRect().left;
    readAt((offset - frame.box.left) / (frame.box.right - frame.box.left), false);
  });
  $("plot").addEventListener("pointerleave", () => { state.at = null; hideTip(); });
  $("plot").addEventListener("blur", () => { state.at = null; hideTip(); });
  $("plot").addEventListener("keydown", (event) => {
    const now = state.at ?? 0.5;
    const to = { ArrowLeft: now - 0.02, ArrowRight: now + 0.02, PageUp: now + 0.2, PageDown: now - 0.2, Home: 0, End: 1 }[event.key];
    if (event.key === "Escape") { state.at = null; hideTip(); }
    if (to === undefined) return;
    event.preventDefault();
    readAt(to, true);
  });
  $("copy").addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents($("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try { await navigator.clipboard.writeText($("command").textContent); $("copy").textContent = "Copied"; } catch { $("copy").textContent = "Selected"; }
  });
  let width = 0;
  new ResizeObserver(() => { if ($("plot").clientWidth !== width) { width = $("plot").clientWidth; drawAll(); } }).observe($("plot"));
  document.documentElement.dataset.drawn = "yes";
})();
