"use strict";
// Computes the plan from the tables in #data, which the real plan has made. Text goes in as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const state = Object.fromEntries(data.sliders.map((one) => [one.id, one.at]));
  const stops = Object.fromEntries(data.sliders.map((one) => [one.id, one.stops]));
  const value = (id) => stops[id]?.[state[id]];

  const three = (number) => Number(number.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
  const unit = (number, units) => {
    const [name, size] = units.find(([, least]) => number >= least) ?? units[units.length - 1];
    return `${three(number / size)} ${name}`;
  };
  const bytes = (count) => unit(count, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
  const time = (seconds) => unit(seconds, [["days", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]]);
  const rate = (bits) => unit(bits, [["Gb/s", 1e9], ["Mb/s", 1e6], ["kb/s", 1e3]]);
  const count = (number) => number.toLocaleString("en");
  const chosen = () => data.methods.find((method) => method.budget === "bytes").cells[state.parameters][0][0];
  const FORMAT = {
    parameters: (size) => unit(size, [["billion", 1e9], ["million", 1e6], ["thousand", 1e3]]),
    clients: count, rounds: count, up: rate, down: rate, compute: (seconds) => (seconds ? time(seconds) : "0 s"),
    participation: (part) => `${three(100 * part)} %`, ratio: (part) => `${three(100 * part)} %`,
    bytes: (number) => (number === null ? `${count(chosen())}, chosen` : count(number)),
    price: (each) => (each ? count(each) : "not given"),
  };

  // The bytes of a lossless download with this many entries, between those in the table on logarithmic axes.
  const lossless = (kind, place, entries) => {
    const at = data.entries[place], taken = data.lossless[kind][place];
    const most = at[at.length - 1];
    if (entries >= most) return Math.min(data.dense[place], taken[taken.length - 1]);
    if (entries <= at[0]) return entries > 0 ? taken[0] : 0;
    const next = at.findIndex((one) => one > entries);
    const part = Math.log(entries / at[next - 1]) / Math.log(at[next] / at[next - 1]);
    return Math.exp(Math.log(taken[next - 1]) * (1 - part) + Math.log(taken[next]) * part);
  };

  const plan = (method) => {
    const place = state.parameters, dense = data.dense[place];
    const cell = data.methods[method].cells[place][data.methods[method].budget ? state[data.methods[method].budget] : 0];
    if (!cell) return null;
    const { rounds: factor, drawn, lossless: kind, least } = data.methods[method];
    const [up, largest, entries, budgeted] = cell;
    const clients = value("clients"), rounds = Math.max(1, Math.round(value("rounds") * factor));
    const asked = Math.max(1, Math.ceil(value("participation") * clients - 1e-9)), absent = 1 - asked / clients;
    const visits = asked * rounds, came = clients * (1 - absent ** rounds);
    const changed = (absence) => Math.min(
      dense,
      kind
        ? lossless(kind, place, Math.min(data.sizes[place], absence * asked * entries))
        : absence * Math.max(asked / clients, least) * budgeted,
    );
    let change = 0, left = 1, gap = 0; // a client comes back after one round, or two, …; these chances are left
    while (left > 1e-4 && gap < rounds) {
      gap += 1;
      change += left * (1 - absent) * changed(gap);
      left *= absent;
    }
    change += left * changed(gap);
    let longest = 0, firsts = 0; // the slowest client's absence, and rounds that wait for a first download
    for (let round = 0; round < 5000; round += 1) {
      const some = 1 - (1 - absent ** round) ** asked;
      longest += some;
      if (round < rounds && !drawn) firsts += some;
    }
    const slowest = changed(longest);
    const sent = visits * up, received = (drawn ? 0 : came * dense) + (visits - came) * change;
    const usual = value("compute") + (8 * largest) / value("up") + (8 * slowest) / value("down");
    const seconds = rounds * usual + (firsts * 8 * (dense - slowest)) / value("down");
    const total = sent + received;
    return { up: sent, down: received, total, seconds, cost: (total / 1e9) * value("price"), rounds, clients, usual };
  };

  const worth = (first, dense) => {
    const gain = dense.usual / first.usual, [low, high] = data.more;
    const words = gain > high ? "Worth it for time" : gain > low ? "May be worth it for time" : "Not worth it for time";
    const rounds = `${time(first.usual)} a round instead of ${time(dense.usual)}`;
    return `${words}: ${rounds}${gain < 1.05 ? "." : `, so it may take ${three(gain)} times the rounds before it takes longer.`}`;
  };
  const cell = (row, text, best = false) => {
    const node = document.createElement("td");
    node.textContent = text;
    if (best) node.className = "best";
    row.append(node);
  };
  const draw = () => {
    const found = data.methods.map((method, place) => ({ label: method.label, ...plan(place) }));
    const there = found.filter((one) => one.total !== undefined);
    const fewest = Math.min(...there.map((one) => one.total)), least = Math.min(...there.map((one) => one.seconds));
    const rows = $("rows"), priced = value("price") > 0;
    rows.replaceChildren();
    $("h-cost").hidden = !priced;
    for (const one of found) {
      const row = rows.insertRow();
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = one.label;
      row.append(head);
      if (one.total === undefined) {
        cell(row, "not possible");
        continue;
      }
      cell(row, bytes(one.total), one.total === fewest);
      cell(row, time(one.seconds), one.seconds === least);
      if (priced) cell(row, one.cost.toLocaleString("en", { maximumFractionDigits: 2 }));
      cell(row, bytes(one.up / one.clients));
      cell(row, bytes(one.down / one.clients));
      cell(row, count(one.rounds));
    }
    const first = found[0], dense = found[data.methods.findIndex((method) => !method.budget)];
    $("summary").textContent = first.total === undefined ? "" : `${first.label}: ${bytes(first.total)} in ${time(first.seconds)}`
      + (dense && dense !== first ? `; no compression: ${bytes(dense.total)} in ${time(dense.seconds)}. ${worth(first, dense)}` : ".");
    for (const one of data.sliders) {
      const text = FORMAT[one.id](value(one.id));
      $(`${one.id}-value`).textContent = text;
      $(one.id).setAttribute("aria-valuetext", text);
    }
  };

  for (const one of data.sliders) {
    const holder = document.createElement("div");
    const label = Object.assign(document.createElement("label"), { htmlFor: one.id, textContent: one.label });
    const output = Object.assign(document.createElement("output"), { id: `${one.id}-value` });
    output.htmlFor = one.id;
    const input = Object.assign(document.createElement("input"), { type: "range", id: one.id, min: 0, max: one.stops.length - 1 });
    input.value = one.at;
    input.addEventListener("input", () => {
      state[one.id] = Number(input.value);
      draw();
    });
    label.append(output);
    holder.append(label, input);
    $("sliders").append(holder);
  }
  draw();
  window.planned = () => data.methods.map((_, place) => plan(place)); // for tests
})();
