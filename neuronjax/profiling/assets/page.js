"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const RESOURCES = ["tensor", "vector", "scalar", "gpsimd", "sync", "dma", "collective", "host"];
const TITLES = { tensor: "Tensor", vector: "Vector", scalar: "Scalar", gpsimd: "GpSimd", sync: "Sync", dma: "DMA", collective: "Collectives", host: "Host" };

// Small helpers

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((each) => each !== undefined && each !== null));
  return node;
}
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}
function scaled(value, units, digits = 3) {
  for (const [unit, size] of units) if (Math.abs(value) >= size) return `${shown(value / size, digits)} ${unit}`;
  const [unit, size] = units[units.length - 1];
  return `${shown(value / size, digits)} ${unit}`;
}
function shown(value, digits = 3) {
  if (!value) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(places, 6) });
}
const time = (ns) => scaled(ns, [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]);
function tick(at, step) { // a time on an axis: as many digits as tell it from its neighbours
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, each]) => at >= each) ?? ["ns", 1];
  return `${(at / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
}
const bytes = (n) => scaled(n, [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
const flops = (n) => scaled(n, [["TFLOP", 1e12], ["GFLOP", 1e9], ["MFLOP", 1e6], ["kFLOP", 1e3], ["FLOP", 1]]);
const counted = (n, name) => `${shown(n, 9)} ${name}${n === 1 ? "" : "s"}`;
const percent = (x) => `${shown(100 * x, 3)} %`;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const kindOf = (lane) => ({ queue: "dma", stream: "collective" })[lane.split(" ")[0]] ?? lane;
const file = (source) => (source ? source.split("/").slice(-2).join("/") : "–");
const sum = (list, of) => list.reduce((total, each) => total + of(each), 0);

const tip = make("div", { id: "tip", role: "tooltip" });
function showTip(event, title, lines) {
  tip.replaceChildren(make("b", {}, title), ...lines.filter(Boolean).map((line) => make("div", {}, line)));
  tip.style.display = "block";
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  const below = event.clientY + 24; // the row under the pointer stays in sight
  tip.style.top = `${Math.max(4, below + height + 8 < innerHeight ? below : event.clientY - height - 24)}px`;
}
const hideTip = () => { tip.style.display = "none"; };

function section(id, title, note, ...children) {
  return make("section", { id }, make("h2", {}, title), note && make("p", { class: "note" }, note), ...children);
}
function legend(names) {
  return make("div", { class: "legend" }, names.map((name) =>
    make("span", {}, make("i", { style: `background:var(--${name})` }), TITLES[name])));
}

// Tables whose columns sort: {title, of, show, text}

function sortable(columns, rows, { by = 0, most = 200 } = {}) { // by null: as they come
  let order = by, down = by !== null && !columns[by].text;
  const head = make("tr"), body = make("tbody");
  function fill() {
    const of = columns[order]?.of;
    const sorted = !of ? rows : [...rows].sort((a, b) => {
      const [x, y] = [of(a) ?? -Infinity, of(b) ?? -Infinity];
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    body.replaceChildren(...sorted.slice(0, most).map((row) => make("tr", {}, columns.map((column) => {
      const value = (column.show ?? column.of)(row);
      return make("td", { class: column.text ? "text" : undefined, title: column.title_of?.(row) }, value ?? "");
    }))));
    [...head.children].forEach((cell, at) => cell.setAttribute("aria-sort", at === order ? (down ? "descending" : "ascending") : "none"));
  }
  head.append(...columns.map((column, at) => make("th", { class: column.text ? "text" : undefined, scope: "col" },
    make("button", { type: "button", onclick: () => { down = at === order ? !down : !column.text; order = at; fill(); } }, column.title))));
  fill();
  return make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, head), body));
}
function share(value, most, name = "accent") {
  return [make("span", { class: "bar", style: `width:${Math.max(1, 70 * value / (most || 1))}px;background:var(--${name})` }), percent(value)];
}
const dot = (name) => [make("span", { class: "dot", style: `background:var(--${name})` }), TITLES[name] ?? name];

// The timeline: lanes on a canvas. The wheel zooms, dragging moves, dragging with Shift selects a
// range, a click selects what is under the pointer; keys are those of Perfetto.

const KEYS = "w s zoom, a d move, f zoom to what is selected, m mark it as a range, / search, Esc clear";
const MOST_DRAWN = 200; // runs of a kernel
const MOST_CAUSES = 12; // arrows from a wait to what it waited for, and so on

class Timeline {
  constructor(program) {
    this.program = program;
    this.row = 24; this.top = 26;
    this.folded = true; this.selected = null; this.range = null; this.wanted = ""; this.matches = []; this.pointer = 0.5;
    this.canvas = make("canvas", { id: "timeline-canvas", tabindex: "0", "aria-label": `Timeline of one run. Keys: ${KEYS}` });
    this.panel = make("div", { id: "selection", "aria-live": "polite" });
    this.items = this.collect();
    this.layOut();
    this.fit();
    this.listen();
    this.describe();
  }
  layOut() { // the queues of DMA are one row until they are unfolded
    const names = [...new Set(this.items.map((each) => each.lane))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const queues = names.filter((name) => name.startsWith("queue "));
    this.queues = queues.length;
    const rows = this.folded && queues.length > 1 ? ["queues", ...names.filter((name) => !queues.includes(name))] : names;
    this.lanes = [...new Set(["kernels", ...RESOURCES.filter((name) => names.includes(name)), ...rows])];
    this.places = new Map(this.lanes.map((lane, at) => [lane, at]));
    for (const queue of queues) if (!this.places.has(queue)) this.places.set(queue, this.places.get("queues"));
    this.height = this.top + this.lanes.length * this.row + 6;
    this.canvas.style.height = `${this.height}px`;
  }
  fold() { this.folded = !this.folded; this.layOut(); this.draw(); }
  collect() {
    const found = [];
    for (const kernel of this.program.kernels) {
      const shownRuns = Math.min(kernel.runs, MOST_DRAWN);
      const step = kernel.runs > 1 ? Math.max(0, kernel.end - kernel.start - kernel.time) / (kernel.runs - 1) : 0;
      for (let run = 0; run < shownRuns; run++) {
        const start = kernel.start + run * step, end = start + kernel.time;
        found.push({ lane: kernel.critical === "collective" ? "collective" : "kernels", start, end, kernel, name: kernel.name, color: kernel.critical, full: true });
        // What instructions are shown of; the rest of the kernel shows how busy engines are.
        const known = run === 0 ? start + Math.min(kernel.time, Math.max(0, ...kernel.spans.map((span) => span[3]))) : start;
        for (const [name, busy] of Object.entries(kernel.busy)) {
          if (name === "collective") continue;
          found.push({ lane: name, start, end, known, kernel, name: "", color: name, share: Math.min(1, busy / (kernel.time || 1)) });
        }
      }
      kernel.instructions = kernel.spans.map(([lane, name, start, end, after]) => ({
        lane, start: kernel.start + start, end: kernel.start + end, kernel, name, color: kindOf(lane), span: true, queue: kindOf(lane) !== lane, after,
      }));
      found.push(...kernel.instructions);
    }
    return found.sort((a, b) => a.start - b.start);
  }
  fit() { this.begin = 0; this.end = this.program.total || 1; this.draw(); }
  zoom(factor, at = 0.5) {
    const width = this.end - this.begin, middle = this.begin + at * width;
    const next = Math.min(Math.max(width * factor, 20), this.program.total * 1.05);
    this.begin = middle - at * next; this.end = this.begin + next; this.clamp(); this.draw();
  }
  move(part) { const step = part * (this.end - this.begin); this.begin += step; this.end += step; this.clamp(); this.draw(); }
  clamp() {
    const width = this.end - this.begin, low = -0.02 * width, high = this.program.total + 0.02 * width;
    if (this.begin < low) { this.begin = low; this.end = low + width; }
    if (this.end > high && width < high - low) { this.end = high; this.begin = high - width; }
  }
  focus(start, end) {
    const spare = 0.1 * (end - start) + 1;
    this.begin = start - spare; this.end = end + spare; this.draw();
  }
  show(kernel) {
    this.focus(kernel.start, kernel.start + kernel.time);
    this.canvas.scrollIntoView({ block: "center" });
  }
  select(item) { this.selected = item; if (item) this.range = null; this.describe(); this.draw(); }
  goTo(item) { this.select(item); this.focus(item.start, item.end); }
  cause(item) { return item.after >= 0 ? item.kernel.instructions[item.after] : undefined; }
  causes() { // what the selected instruction waited for, what that waited for, and so on
    const chain = [];
    for (let item = this.selected; item && chain.length < MOST_CAUSES; item = this.cause(item)) {
      if (chain.includes(item)) break;
      chain.push(item);
    }
    return chain;
  }
  search(words) {
    this.wanted = words.trim().toLowerCase();
    const has = (text) => Boolean(text) && text.toLowerCase().includes(this.wanted);
    const kernels = new Set(this.program.kernels.filter((each) => [each.name, each.path, each.source, each.ops].some(has)));
    for (const item of this.items) item.matching = kernels.has(item.kernel) || has(item.name);
    this.matches = this.wanted ? this.items.filter((each) => each.matching && (each.full || !kernels.has(each.kernel))) : [];
    this.match = -1; this.range = null; this.selected = null;
    this.describe(); this.draw();
  }
  next(step) {
    if (!this.matches.length) return;
    this.match = (this.match + step + this.matches.length) % this.matches.length;
    this.goTo(this.matches[this.match]);
  }
  mark() { if (this.selected) { this.range = [this.selected.start, this.selected.end]; this.describe(); this.draw(); } }
  clear() { this.selected = this.range = null; this.describe(); this.draw(); }
  sums([from, to]) { // of the kernels within a range, each with the part of it that lies there
    const part = (start, end) => Math.max(0, Math.min(end, to) - Math.max(start, from)) / (end - start || 1);
    const rows = this.program.kernels.map((kernel) => {
      const step = kernel.runs > 1 ? Math.max(0, kernel.end - kernel.start - kernel.time) / (kernel.runs - 1) : 0;
      let runs = kernel.runs * part(kernel.start, kernel.end);
      if (kernel.runs <= MOST_DRAWN) {
        runs = 0;
        for (let run = 0; run < kernel.runs; run++) runs += part(kernel.start + run * step, kernel.start + run * step + kernel.time);
      }
      return { kernel, runs, time: runs * kernel.time };
    }).filter((each) => each.runs > 0).sort((a, b) => b.time - a.time);
    const busy = Object.fromEntries(RESOURCES.map((name) => [name, sum(rows, (each) => each.runs * (each.kernel.busy[name] ?? 0))]));
    return { rows, busy, flops: sum(rows, (each) => each.runs * each.kernel.flops), hbm: sum(rows, (each) => each.runs * each.kernel.hbm) };
  }
  describe() { // the line under the timeline
    const said = (...parts) => this.panel.replaceChildren(...parts);
    if (this.range) {
      const wide = this.range[1] - this.range[0], { rows, busy, flops: work, hbm } = this.sums(this.range);
      const engines = RESOURCES.filter((name) => busy[name] > 0).map((name) => `${TITLES[name]} ${percent(busy[name] / (wide || 1))}`).join(", ");
      said(make("b", {}, `${time(wide)} selected`), make("div", {}, `${counted(rows.length, "kernel")} · ${flops(work)} · ${bytes(hbm)} of HBM traffic`),
        make("div", {}, engines || "nothing is busy"), make("div", {}, rows.slice(0, 5).map((each) => `${each.kernel.name} ${time(each.time)}`).join(", ")));
    } else if (this.selected) {
      const item = this.selected, cause = this.cause(item);
      said(make("b", {}, item.name || item.kernel.name), make("div", {}, `${time(item.end - item.start)} on ${this.title(item.lane)}, from ${time(item.start)}`),
        make("div", {}, `kernel ${item.kernel.name}, ${file(item.kernel.source)}`),
        cause ? make("div", {}, "waited for ", make("button", { type: "button", class: "link", onclick: () => this.goTo(cause) }, `${cause.name} on ${this.title(cause.lane)}`), `, which ended at ${time(cause.end)}`) : "");
    } else if (this.wanted) {
      const kernels = [...new Set(this.matches.filter((each) => each.full).map((each) => each.kernel))];
      const whole = sum(this.program.kernels, (each) => each.time * each.runs) || 1;
      const found = sum(kernels, (each) => each.time * each.runs);
      said(make("b", {}, this.matches.length ? `${shown(this.matches.length, 9)} found` : "Nothing found"),
        make("div", {}, this.matches.length ? `${counted(kernels.length, "kernel")}, ${time(found)}, ${percent(found / whole)} of the kernels' time. Enter shows the next, Shift and Enter the one before.` : "Names of kernels, operations and instructions are searched, and source lines such as train.py:12."));
    } else said(make("div", { class: "note" }, `Click to select, drag with Shift for the sums of a range. Keys: ${KEYS}.`));
  }
  x(time) { return this.left + (time - this.begin) / (this.end - this.begin) * (this.width - this.left); }
  draw() {
    const canvas = this.canvas, ratio = window.devicePixelRatio || 1;
    this.width = canvas.clientWidth || 1200;
    this.left = this.width < 600 ? 84 : 132;
    canvas.width = this.width * ratio; canvas.height = this.height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.colors = Object.fromEntries([...RESOURCES, "ink", "soft", "line", "grid", "card"].map((name) => [name, color(name)]));
    pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    this.axis(pen);
    const close = (this.width - this.left) / (this.end - this.begin);
    pen.save(); pen.beginPath(); pen.rect(this.left, 0, this.width - this.left, this.height); pen.clip();
    const reached = new Map();
    for (const item of this.items) {
      if (item.end < this.begin || item.start > this.end) continue;
      this.item(pen, item, close, reached);
    }
    if (this.range) this.shade(pen);
    if (this.selected) this.arrows(pen, close);
    pen.restore();
  }
  shade(pen) {
    const [from, to] = this.range.map((at) => this.x(at));
    pen.globalAlpha = 0.14; pen.fillStyle = this.colors.ink; pen.fillRect(from, this.top - 4, Math.max(1, to - from), this.height); pen.globalAlpha = 1;
    for (const x of [from, to]) pen.fillRect(x, this.top - 4, 1, this.height);
  }
  middle(item) { return this.top + this.places.get(item.lane) * this.row + this.row / 2 - 1; }
  arrows(pen, close) {
    const item = this.selected, high = this.row - 5;
    pen.strokeStyle = pen.fillStyle = this.colors.ink; pen.lineWidth = 2;
    pen.strokeRect(this.x(item.start), this.middle(item) - high / 2, Math.max(2, (item.end - item.start) * close), high);
    pen.lineWidth = 1.5;
    const chain = this.causes();
    for (let at = 1; at < chain.length; at++) {
      const from = { x: this.x(chain[at].end), y: this.middle(chain[at]) }, to = { x: this.x(chain[at - 1].start), y: this.middle(chain[at - 1]) };
      const bend = Math.max(14, Math.abs(to.x - from.x) / 2);
      pen.beginPath(); pen.moveTo(from.x, from.y); pen.bezierCurveTo(from.x + bend, from.y, to.x - bend, to.y, to.x - 5, to.y); pen.stroke();
      pen.beginPath(); pen.moveTo(to.x, to.y); pen.lineTo(to.x - 7, to.y - 4); pen.lineTo(to.x - 7, to.y + 4); pen.fill();
    }
    pen.lineWidth = 1;
  }
  axis(pen) {
    const width = this.end - this.begin, rough = width / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    pen.textAlign = "center";
    for (let at = Math.ceil(this.begin / step) * step; at <= this.end; at += step) {
      const x = this.x(at);
      if (x < this.left) continue;
      pen.fillStyle = this.colors.grid; pen.fillRect(x, this.top - 4, 1, this.height);
      pen.fillStyle = this.colors.soft;
      if (x > this.left + 20 && x < this.width - 30) pen.fillText(tick(at, step), x, 10);
    }
    this.lanes.forEach((lane, at) => {
      const y = this.top + at * this.row;
      pen.fillStyle = this.colors.grid; pen.fillRect(0, y - 1, this.width, 1);
      pen.fillStyle = this.colors.soft; pen.textAlign = "left";
      pen.fillText(this.title(lane), 0, y + this.row / 2);
    });
  }
  title(lane) {
    const [kind, number] = lane.split(" ");
    return { kernels: "Kernels", queues: `▸ ${this.queues} DMA queues`, queue: `${this.queues > 1 ? "▾ " : ""}DMA queue ${number}`, stream: `CC stream ${number}` }[kind] ?? TITLES[lane] ?? lane;
  }
  item(pen, item, close, reached) {
    const lane = this.places.get(item.lane), x = this.x(item.start), wide = (item.end - item.start) * close;
    const y = this.top + lane * this.row + 2, high = this.row - 5, faint = this.wanted && !item.matching ? 0.15 : 1;
    if (item.span) {
      const overview = !item.queue && (item.kernel.time * close) < 240;
      if (overview || (wide < 0.4 && x - (reached.get(lane) ?? -9) < 0.7)) return;
      reached.set(lane, x);
      pen.globalAlpha = faint; pen.fillStyle = this.colors[item.color];
      pen.fillRect(x, y, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.7), high);
    } else if (item.full) {
      pen.globalAlpha = faint; pen.fillStyle = this.colors[item.color];
      pen.fillRect(x, y, Math.max(wide - (wide > 3 ? 1 : 0), 0.7), high);
      if (wide > 12) { pen.fillStyle = this.colors.card; pen.fillRect(x - 1, y, 1, high); }
    } else {
      if (wide < 0.3 && x - (reached.get(lane) ?? -9) < 0.5) return;
      reached.set(lane, x);
      const shown = item.kernel.time * close >= 240 ? (item.known - item.start) * close : 0;
      pen.fillStyle = this.colors[item.color];
      if (shown > 0) { pen.globalAlpha = 0.13 * faint; pen.fillRect(x, y, shown, high); }
      pen.globalAlpha = 0.8 * faint;
      const rest = Math.max(wide - shown - (wide > 3 ? 1 : 0), shown ? 0 : 0.7);
      pen.fillRect(x + shown, y + high * (1 - item.share), rest, high * item.share);
    }
    pen.globalAlpha = 1;
    const from = Math.max(x, this.left), room = Math.min(x + wide, this.width) - from;
    if (item.name && room > 26 && !(item.queue && this.places.has("queues"))) { // in a folded row names would overlap
      pen.fillStyle = "#fff"; pen.textAlign = "left";
      const letters = Math.floor((room - 8) / 6.6);
      if (letters > 2) pen.fillText(item.name.length > letters ? `${item.name.slice(0, letters - 1)}…` : item.name, from + 4, y + high / 2 + 0.5);
    }
  }
  hit(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const row = Math.floor((y - this.top) / this.row);
    const at = this.begin + (x - this.left) / (this.width - this.left) * (this.end - this.begin);
    const near = 1.5 * (this.end - this.begin) / (this.width - this.left);
    const found = this.items.filter((each) => this.places.get(each.lane) === row && each.start - near <= at && at <= each.end + near);
    return x < this.left ? undefined : found.find((each) => each.span) ?? found[0];
  }
  listen() {
    const canvas = this.canvas;
    let held = null;
    const at = (event) => this.begin + (event.clientX - canvas.getBoundingClientRect().left - this.left) / (this.width - this.left) * (this.end - this.begin);
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { this.move(event.deltaX / this.width); return; }
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, Math.max(0, (event.offsetX - this.left) / (this.width - this.left)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: at(event), moved: false, range: event.shiftKey };
      if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.click(event);
      held = null;
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = Math.min(1, Math.max(0, (event.offsetX - this.left) / (this.width - this.left)));
      if (held !== null) {
        held.moved ||= Math.abs(event.clientX - held.x) > 2;
        if (!held.moved) return;
        if (held.range) { this.range = [held.from, at(event)].sort((a, b) => a - b); this.selected = null; this.describe(); this.draw(); }
        else { this.move((held.x - event.clientX) / (this.width - this.left)); held.x = event.clientX; }
        hideTip();
        return;
      }
      const item = this.hit(event);
      if (item) this.tell(event, item); else hideTip();
    });
    canvas.addEventListener("dblclick", (event) => { const item = this.hit(event); if (item) this.show(item.kernel); });
    canvas.addEventListener("keydown", (event) => this.act(event, { "+": () => this.zoom(0.7), "-": () => this.zoom(1.4), ArrowLeft: () => this.move(-0.1), ArrowRight: () => this.move(0.1) }));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
  click(event) {
    const box = this.canvas.getBoundingClientRect(), lane = this.lanes[Math.floor((event.clientY - box.top - this.top) / this.row)];
    if (event.clientX - box.left >= this.left) this.select(this.hit(event) ?? null);
    else if (lane && lane.startsWith("queue") && this.queues > 1) this.fold();
  }
  act(event, actions) {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (action) { event.preventDefault(); action(); }
  }
  press(event) { // a key anywhere on the page
    const chosen = this.range ?? (this.selected && [this.selected.start, this.selected.end]);
    this.act(event, {
      w: () => this.zoom(0.7, this.pointer), s: () => this.zoom(1.4, this.pointer), a: () => this.move(-0.1), d: () => this.move(0.1),
      f: () => (chosen ? this.focus(...chosen) : this.fit()), m: () => this.mark(), 0: () => this.fit(), Escape: () => this.clear(),
      "/": () => document.getElementById("search").focus(),
    });
  }
  tell(event, item) {
    const kernel = item.kernel, span = item.span ? `${time(item.end - item.start)} on ${this.title(item.lane)}` : undefined;
    const cause = item.span ? this.cause(item) : undefined;
    const busy = Object.entries(kernel.busy).map(([name, value]) => `${TITLES[name]} ${percent(value / (kernel.time || 1))}`).join(", ");
    showTip(event, item.span ? item.name : kernel.name, [
      span, cause && `waited for ${cause.name} on ${this.title(cause.lane)}`, item.span ? `kernel ${kernel.name}` : `${time(kernel.time)} per run, ${counted(kernel.runs, "run")}, limited by ${TITLES[kernel.critical] ?? kernel.critical}`,
      kernel.source && file(kernel.source), !item.span && kernel.ops, !item.span && busy,
      !item.span && `${bytes(kernel.hbm)} HBM, ${flops(kernel.flops)}`,
    ]);
  }
}

// Charts

function engineBars(program) {
  const rows = RESOURCES.filter((name) => name !== "host" || program.busy[name]);
  const width = 560, left = 96, right = 74, row = 30;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${rows.length * row + 22}`, role: "img", "aria-label": "Share of time that each engine is busy" });
  const room = width - left - right;
  for (const at of [0, 0.25, 0.5, 0.75, 1]) {
    const x = left + at * room;
    picture.append(svg("line", { class: "grid", x1: x, x2: x, y1: 0, y2: rows.length * row }), svg("text", { x, y: rows.length * row + 16, "text-anchor": "middle" }, `${100 * at} %`));
  }
  rows.forEach((name, at) => {
    const part = (program.busy[name] ?? 0) / program.total, y = at * row, bound = (program.bounds[name] ?? 0) / program.total;
    const bar = svg("rect", { x: left, y: y + 5, width: Math.max(1, Math.min(1, part) * room), height: row - 11, rx: 4, fill: `var(--${name})` });
    bar.addEventListener("pointermove", (event) => showTip(event, TITLES[name], [`busy for ${time(program.busy[name])} of ${time(program.total)}`, bound > 0 && `at peak rate its work takes ${time(program.bounds[name])}`]));
    bar.addEventListener("pointerleave", hideTip);
    picture.append(svg("text", { x: left - 10, y: y + row / 2 + 4, "text-anchor": "end" }, TITLES[name]), bar,
      svg("text", { class: "value", x: left + Math.min(1, Math.max(part, bound)) * room + 8, y: y + row / 2 + 4 }, percent(part)));
    if (bound > 0.004) picture.append(svg("line", { x1: left + Math.min(1, bound) * room, x2: left + Math.min(1, bound) * room, y1: y + 2, y2: y + row - 3, stroke: "var(--ink)", "stroke-width": 2 }));
  });
  return picture;
}

function roofline(program, machine) {
  const width = 560, height = 330, left = 62, bottom = 40, top = 12;
  const points = program.kernels.filter((each) => each.flops > 0 && each.hbm > 0 && each.time > 0)
    .map((each) => ({ kernel: each, x: each.flops / each.hbm, y: each.flops / each.time * 1e9, size: each.time * each.runs }));
  const ridge = machine.max_flops / machine.max_hbm_bandwidth;
  const logs = (list) => list.map(Math.log10);
  const x0 = Math.floor(Math.min(0, ...logs(points.map((each) => each.x)))), x1 = Math.ceil(Math.max(Math.log10(ridge) + 0.8, ...logs(points.map((each) => each.x))));
  const y1 = Math.log10(machine.max_flops) + 0.25, y0 = Math.floor(Math.min(y1 - 3, ...logs(points.map((each) => each.y))));
  const x = (value) => left + (Math.log10(value) - x0) / (x1 - x0) * (width - left - 12);
  const y = (value) => height - bottom - (Math.log10(value) - y0) / (y1 - y0) * (height - bottom - top);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Roofline of kernels" });
  for (let power = x0; power <= x1; power++) picture.append(svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: height - bottom }),
    svg("text", { x: x(10 ** power), y: height - bottom + 17, "text-anchor": "middle" }, shown(10 ** power)));
  for (let power = y0; power <= y1; power++) picture.append(svg("line", { class: "grid", x1: left, x2: width - 12, y1: y(10 ** power), y2: y(10 ** power) }),
    svg("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, scaled(10 ** power, [["PF/s", 1e15], ["TF/s", 1e12], ["GF/s", 1e9], ["MF/s", 1e6]])));
  const low = Math.max(10 ** x0, 10 ** y0 / machine.max_hbm_bandwidth);
  picture.append(svg("polyline", { points: [[low, low * machine.max_hbm_bandwidth], [ridge, machine.max_flops], [10 ** x1, machine.max_flops]].map(([a, b]) => `${x(a)},${y(b)}`).join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 2, "stroke-linejoin": "round" }),
    svg("text", { x: width - 14, y: y(machine.max_flops) - 8, "text-anchor": "end" }, `BF16 peak ${shown(machine.max_flops / 1e12)} TFLOP/s`),
    svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "FLOP per byte of HBM"));
  const most = Math.max(...points.map((each) => each.size), 1);
  for (const point of points.sort((a, b) => b.size - a.size)) {
    const spot = svg("circle", { cx: x(point.x), cy: y(point.y), r: 4 + 12 * Math.sqrt(point.size / most), fill: `var(--${point.kernel.critical})`, "fill-opacity": 0.72, stroke: "var(--card)", "stroke-width": 1.5 });
    spot.addEventListener("pointermove", (event) => showTip(event, point.kernel.name, [`${shown(point.y / 1e12)} TFLOP/s at ${shown(point.x)} FLOP/byte`, `${time(point.size)} in ${counted(point.kernel.runs, "run")}`, file(point.kernel.source), `limited by ${TITLES[point.kernel.critical]}`]));
    spot.addEventListener("pointerleave", hideTip);
    picture.append(spot);
  }
  if (!points.length) picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no kernel uses the Tensor engine and HBM"));
  return picture;
}

function memoryChart(program, machine) {
  const width = 1240, height = 250, left = 84, bottom = 34, top = 10;
  const fixed = [["weights & inputs", (program.hbm.argument ?? 0) + (program.hbm.constant ?? 0), "accent"], ["results", program.hbm.result ?? 0, "vector"]];
  const base = sum(fixed, (each) => each[1]);
  const steps = program.kernels.map((each) => ({ at: each.start, scratch: each.scratch, kernel: each })).sort((a, b) => a.at - b.at);
  const most = Math.max(base + Math.max(0, ...steps.map((each) => each.scratch)), 1);
  const x = (at) => left + at / program.total * (width - left - 12), y = (value) => height - bottom - value / most * (height - bottom - top);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "HBM in use over one run" });
  for (let part = 0; part <= 4; part++) picture.append(svg("line", { class: "grid", x1: left, x2: width - 12, y1: y(most * part / 4), y2: y(most * part / 4) }),
    svg("text", { x: left - 8, y: y(most * part / 4) + 4, "text-anchor": "end" }, bytes(most * part / 4)));
  for (let part = 0; part <= 6; part++) picture.append(svg("text", { x: x(program.total * part / 6), y: height - 12, "text-anchor": part === 6 ? "end" : part ? "middle" : "start" }, time(program.total * part / 6)));
  let below = 0;
  for (const [, value, name] of fixed) {
    picture.append(svg("rect", { x: left, width: width - left - 12, y: y(below + value), height: Math.max(0, y(below) - y(below + value)), fill: `var(--${name})`, "fill-opacity": name === "accent" ? 0.55 : 0.6 }));
    below += value;
  }
  const corners = [[0, 0]];
  for (const step of steps) corners.push([step.at, corners[corners.length - 1][1]], [step.at, step.scratch]);
  corners.push([program.total, corners[corners.length - 1][1]]);
  const outline = corners.map(([at, value]) => `${x(at).toFixed(1)},${y(base + value).toFixed(1)}`);
  picture.append(svg("polygon", { points: [...outline, `${x(program.total)},${y(base)}`, `${x(0)},${y(base)}`].join(" "), fill: "var(--dma)", "fill-opacity": 0.65 }));
  const cover = svg("rect", { x: left, y: top, width: width - left - 12, height: height - top - bottom, fill: "transparent" });
  cover.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width * width - left) / (width - left - 12) * program.total;
    const step = steps.findLast((each) => each.at <= at) ?? steps[0];
    if (step) showTip(event, bytes(base + step.scratch), [`${bytes(base)} arguments, constants and results`, `${bytes(step.scratch)} scratch`, `SBUF ${bytes(step.kernel.sbuf)} of ${bytes(machine.sbuf_partition_bytes)} per partition`, `PSUM ${bytes(step.kernel.psum)} of ${bytes(machine.psum_partition_bytes)} per partition`, `kernel ${step.kernel.name}`]);
  });
  cover.addEventListener("pointerleave", hideTip);
  picture.append(cover);
  const key = make("div", { class: "legend" }, [["accent", "arguments and constants"], ["vector", "results"], ["dma", "scratch between kernels"]].map(([name, title]) => make("span", {}, make("i", { style: `background:var(--${name})` }), title)));
  return [picture, key];
}

function runsChart() {
  const cores = [...new Set(data.runs.flatMap((run) => run[1]))].sort((a, b) => a - b).slice(0, 16);
  const width = 1240, left = 84, row = 22, height = cores.length * row + 28;
  const last = Math.max(...data.runs.map((run) => run[2] + data.programs[run[0]].total), 1);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Runs of programs by core" });
  const palette = ["tensor", "vector", "scalar", "dma", "gpsimd", "collective", "sync"];
  const x = (at) => left + at / last * (width - left - 12);
  cores.forEach((core, at) => picture.append(svg("text", { x: left - 10, y: at * row + row / 2 + 4, "text-anchor": "end" }, `core ${core}`)));
  for (const [number, on, start] of data.runs) {
    const program = data.programs[number];
    for (const core of on) {
      const at = cores.indexOf(core);
      if (at < 0) continue;
      const bar = svg("rect", { x: x(start), y: at * row + 3, width: Math.max(0.6, x(start + program.total) - x(start) - 0.5), height: row - 6, fill: `var(--${palette[number % palette.length]})`, "fill-opacity": 0.85 });
      bar.addEventListener("pointermove", (event) => showTip(event, program.name, [`${time(program.total)} at ${time(start)}`, `on ${counted(on.length, "core")}`]));
      bar.addEventListener("pointerleave", hideTip);
      picture.append(bar);
    }
  }
  for (let part = 0; part <= 6; part++) picture.append(svg("text", { x: x(last * part / 6), y: height - 6, "text-anchor": part === 6 ? "end" : part ? "middle" : "start" }, time(last * part / 6)));
  return picture;
}

// The page of a profile

let current; // the timeline on the page

function tile(title, value, more) {
  return make("div", { class: "tile" }, make("span", {}, title), make("b", {}, value), more && make("small", {}, more));
}
function tiles(program, machine) {
  const busiest = RESOURCES.reduce((best, name) => ((program.busy[name] ?? 0) > (program.busy[best] ?? 0) ? name : best));
  const fixed = (program.hbm.argument ?? 0) + (program.hbm.constant ?? 0) + (program.hbm.result ?? 0);
  const peak = fixed + Math.max(0, ...program.kernels.map((each) => each.scratch));
  return make("div", { class: "tiles", id: "tiles" },
    tile("Time per run", time(program.total), `${counted(program.count, "run")} on ${counted(program.ranks, "core")}`),
    tile("MFU", percent(program.share.mfu_estimated_percent), `HBM traffic allows ${percent(program.share.mfu_max_achievable_estimated_percent)}`),
    tile("HBM bandwidth used", percent(program.share.mbu_estimated_percent), `${shown(machine.max_hbm_bandwidth / 1e9)} GB/s per core`),
    tile("Busiest", TITLES[busiest], `${percent(program.busy[busiest] / program.total)} of the run`),
    tile("HBM", bytes(peak), `of ${bytes(machine.hbm_bytes)} per core`),
    tile("Kernels", shown(program.kernels.length, 6), counted(sum(program.kernels, (each) => each.runs), "run")));
}
function findingsList(program) {
  const own = data.findings.filter((each) => each.program === program.name.replace(/\.\d+$/, ""));
  if (!own.length) return make("p", { class: "empty" }, "Nothing stands out.");
  return make("div", { class: "findings" }, own.map((each) => make("div", { class: "finding", "data-rule": each.rule },
    make("div", { class: "cost" }, percent(each.cost_ns / data.total), make("small", {}, "at most")),
    make("p", { class: "what" }, each.what, each.kernel && make("span", { class: "note" }, ` Most of it: ${each.kernel}${each.source ? `, ${file(each.source)}` : ""}.`)),
    make("p", { class: "remedy" }, each.remedy))));
}
function kernelTable(program, timeline) {
  const whole = sum(program.kernels, (each) => each.time * each.runs) || 1;
  const most = Math.max(...program.kernels.map((each) => each.time * each.runs), 1) / whole;
  return sortable([
    { title: "Kernel", text: true, of: (k) => k.name, title_of: (k) => k.path, show: (k) => make("button", { type: "button", class: "link", onclick: () => timeline.show(k) }, k.name) },
    { title: "Share", of: (k) => k.time * k.runs, show: (k) => share(k.time * k.runs / whole, most) },
    { title: "Time", of: (k) => k.time * k.runs, show: (k) => time(k.time * k.runs) },
    { title: "Runs", of: (k) => k.runs, show: (k) => shown(k.runs, 9) },
    { title: "Limited by", text: true, of: (k) => k.critical, show: (k) => dot(k.critical) },
    { title: "Tensor", of: (k) => (k.busy.tensor ?? 0) / k.time, show: (k) => percent((k.busy.tensor ?? 0) / (k.time || 1)) },
    { title: "TFLOP/s", of: (k) => k.flops / k.time, show: (k) => shown(k.flops / (k.time || 1) / 1e3) },
    { title: "HBM", of: (k) => k.hbm * k.runs, show: (k) => bytes(k.hbm * k.runs) },
    { title: "DMA size", of: (k) => k.dma[1] / (k.dma[0] || 1), show: (k) => (k.dma[0] ? bytes(k.dma[1] / k.dma[0]) : "–") },
    { title: "Line", text: true, of: (k) => k.source, show: (k) => make("code", {}, file(k.source)), title_of: (k) => k.source },
    { title: "Operations", text: true, of: (k) => k.ops, title_of: (k) => k.ops },
  ], program.kernels, { by: 1 });
}
function costTable(program, rows, first, by) {
  const whole = sum(program.kernels, (each) => each.time * each.runs) || 1, most = Math.max(...rows.map((each) => each.time), 1) / whole;
  const top = (row) => Object.entries(row.busy).sort((a, b) => b[1] - a[1])[0]?.[0] ?? "host";
  return sortable([
    first,
    { title: "Share", of: (r) => r.time, show: (r) => share(r.time / whole, most) },
    { title: "Time", of: (r) => r.time, show: (r) => time(r.time) },
    { title: "Busiest", text: true, of: top, show: (r) => dot(top(r)) },
    { title: "Kernels", of: (r) => r.kernels },
    { title: "FLOP", of: (r) => r.flops, show: (r) => flops(r.flops) },
    { title: "HBM", of: (r) => r.hbm, show: (r) => bytes(r.hbm) },
  ], rows, { by });
}
function lineTable(program) {
  return costTable(program, program.lines, { title: "Line", text: true, of: (r) => r.name, show: (r) => make("code", {}, r.name ? file(r.name) : "(no line)"), title_of: (r) => r.name }, 1);
}
function layerTable(program) { // layers within layers follow them, indented
  const show = (row) => make("code", { style: `padding-left:${row.name.split("/").length - 1}em` }, row.name.split("/").at(-1) || "(no scope)");
  return costTable(program, program.layers, { title: "Layer", text: true, of: (r) => r.name, show, title_of: (r) => r.name }, null);
}
function opcodeTable(program) {
  return sortable([
    { title: "Instruction", text: true, of: (r) => r[1], show: (r) => make("code", {}, r[1]) },
    { title: "On", text: true, of: (r) => r[0], show: (r) => dot(r[0]) },
    { title: "Count", of: (r) => r[2], show: (r) => shown(r[2], 12) },
    { title: "Time", of: (r) => r[3], show: (r) => time(r[3]) },
    { title: "Each", of: (r) => r[3] / r[2], show: (r) => time(r[3] / (r[2] || 1)) },
  ], program.opcodes, { by: 3 });
}
function renderProgram(program) {
  const machine = data.machine;
  if (program.error) return [section("error", program.name, "This program could not be timed:", make("pre", { class: "mono" }, program.error))];
  const timeline = current = new Timeline(program);
  const search = make("input", { type: "search", id: "search", placeholder: "Search kernels, lines, instructions", "aria-label": "Search kernels, lines, instructions",
    oninput: () => timeline.search(search.value),
    onkeydown: (event) => {
      if (event.key === "Enter") timeline.next(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { search.value = ""; timeline.search(""); search.blur(); }
    } });
  const actions = [["+", () => timeline.zoom(0.6)], ["−", () => timeline.zoom(1.7)], ["Whole run", () => timeline.fit()]];
  if (timeline.queues > 1) actions.push(["Fold or unfold DMA queues", () => timeline.fold()]);
  const tools = make("div", { class: "tools" }, search, actions.map(([title, action]) => make("button", { type: "button", onclick: action }, title)),
    make("span", { class: "space" }), legend(RESOURCES.filter((name) => program.busy[name])));
  return [
    tiles(program, machine),
    section("findings", "Findings", "What costs time, what it would save at most of the whole recording, and what to do.", findingsList(program)),
    section("timeline", "Timeline of one run", "Kernels are coloured by what limits them; engines show how busy they are. Zoom in (wheel, double click on a kernel) for instructions, DMA transfers and what they waited for; they are shown for the beginning of each kernel.", tools, timeline.canvas, timeline.panel),
    make("div", { class: "pair" },
      section("engines", "Engines", "Share of the run that each is busy. The mark is what its work would take at peak rate.", engineBars(program)),
      section("roofline", "Roofline", "Kernels with products: area is time, colour is what limits them.", roofline(program, machine))),
    section("memory", "HBM over one run", `Of ${bytes(machine.hbm_bytes)} per core; what other programs hold is not in it.`, memoryChart(program, machine)),
    section("kernels", "Cost by kernel", "Click a kernel to see it in the timeline; click a head to sort.", kernelTable(program, timeline)),
    section("layers", "Cost by layer", "Name scopes and modules, or else functions, with what lies within them; backward and recomputation included.", layerTable(program)),
    make("div", { class: "pair" },
      section("lines", "Cost by source line", null, lineTable(program)),
      section("opcodes", "Cost by instruction", "DMA counts the time of each transfer; transfers overlap.", opcodeTable(program))),
    program.assumed.length ? section("assumed", "Assumed", program.assumed.join("; ")) : make("span"),
  ];
}
function renderProfile(page) {
  const { machine } = data, body = make("div", { id: "program" });
  page.append(make("header", {}, make("h1", {}, "Where the time goes"),
    make("p", {}, `${machine.target}, LNC ${machine.lnc} · ${counted(data.executions, "run")} of ${counted(data.programs.length, "program")} · ${time(data.total)} on the device, simulated`)));
  if (!data.programs.length) { page.append(section("empty", "No program ran", "Nothing was executed on the platform neuron while the recording was on.")); return; }
  const whole = sum(data.programs, (each) => each.total * each.count) || 1;
  const shownTabs = Math.min(6, data.programs.filter((each) => !each.once).length); // what only prepares is folded
  const option = (program, at) => make("option", { value: at + shownTabs }, `${program.name} · ${program.error ? "not timed" : percent(program.total * program.count / whole)}`);
  const buttons = data.programs.slice(0, shownTabs).map((program, at) => make("button", { type: "button", "aria-pressed": "false", onclick: () => choose(at) }, program.name, " ", make("small", {}, program.error ? "not timed" : percent(program.total * program.count / whole))));
  const rest = data.programs.slice(shownTabs);
  const more = make("select", { "aria-label": "More programs", onchange: () => more.value && choose(Number(more.value)) },
    make("option", { value: "" }, `${rest.length} more program${rest.length > 1 ? "s" : ""}…`),
    ["", "Once, to prepare"].map((label) => {
      const options = rest.map((program, at) => Boolean(program.once) === Boolean(label) ? option(program, at) : null).filter(Boolean);
      return label && options.length ? make("optgroup", { label }, options) : options;
    }).flat());
  function choose(at) {
    more.value = at < shownTabs ? "" : String(at);
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(number === at)));
    body.replaceChildren(...renderProgram(data.programs[at]));
  }
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => { if (!/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName ?? "")) current?.press(event); });
  function follow() { // #kernel=NAME shows a kernel of the program in the timeline
    const name = decodeURIComponent(location.hash.match(/^#kernel=(.*)/)?.[1] ?? "");
    const found = current?.program.kernels.find((each) => each.name === name);
    if (found) current.show(found);
  }
  page.append(make("div", { class: "tabs", id: "programs" }, buttons, rest.length ? more : null), body);
  if (data.runs.length > 1) page.append(section("runs", "All runs by core", "Simulated time without pauses of the host; colours are programs.", runsChart()));
  choose(0);
  follow();
}

// The page of a comparison

function change(row) {
  if (!row.before || row.after === null) return row.after && !row.before ? "new" : row.before ? "gone" : "";
  const part = row.after / row.before - 1, better = /_percent$/.test(row.name) ? part > 0 : part < 0;
  const neutral = Math.abs(part) < 0.001 || /mbu|hfu/.test(row.name);
  return make("span", { class: neutral ? "" : better ? "down" : "up" }, `${part > 0 ? "+" : ""}${shown(100 * part, 3)} %`);
}
function metric(name, value) {
  if (value === null) return "–";
  if (/_percent$/.test(name)) return percent(value);
  if (/_time$/.test(name)) return time(value * 1e9);
  return /_bytes$/.test(name) ? bytes(value) : shown(value, 6);
}
function pairBars(row, most) {
  const bar = (value, name) => make("div", { style: `height:6px;margin:2px 0;border-radius:3px;width:${Math.max(1, 160 * (value ?? 0) / (most || 1))}px;background:var(--${name})` });
  return make("div", { style: "width:160px", title: "before above, after below" }, bar(row.before, "sync"), bar(row.after, "accent"));
}
function renderComparison(page) {
  const [before, after] = data.titles, names = [...new Set(data.metrics.map((row) => row.program))];
  page.append(make("header", {}, make("h1", {}, "Before and after"), make("p", {}, `before: ${before} · after: ${after} · simulated`)));
  const columns = (show) => [
    { title: "Before", of: (r) => r.before, show: (r) => show(r, r.before) }, { title: "After", of: (r) => r.after, show: (r) => show(r, r.after) },
    { title: "Change", of: (r) => (r.before && r.after !== null ? r.after / r.before - 1 : null), show: change },
  ];
  const totals = data.metrics.filter((row) => row.name === "total_time");
  const weight = (name) => { const row = totals.find((each) => each.program === name); return Math.max(row?.before ?? 0, row?.after ?? 0); };
  names.sort((a, b) => weight(b) - weight(a));
  page.append(section("programs", "Time of one run", null, sortable([
    { title: "Program", text: true, of: (r) => r.program }, ...columns((r, value) => metric(r.name, value)),
    { title: "", of: (r) => Math.max(r.before ?? 0, r.after ?? 0), show: (r) => pairBars(r, weight(names[0])) },
  ], totals, { by: 4 })));
  for (const name of names.slice(0, 8)) {
    const rows = data.metrics.filter((row) => row.program === name), total = rows.find((row) => row.name === "total_time");
    page.append(section(`metrics-${name}`, name, total && total.before && total.after !== null ? `${metric("total_time", total.before)} before, ${metric("total_time", total.after)} after.` : null,
      sortable([{ title: "Metric", text: true, of: (r) => r.name }, ...columns((r, value) => metric(r.name, value))], rows, { by: null })));
  }
  page.append(section("lines", "Cost by source line", "Of one run; what changed most first.", sortable([
    { title: "Line", text: true, of: (r) => r.name, show: (r) => make("code", {}, file(r.name)), title_of: (r) => r.name },
    { title: "Program", text: true, of: (r) => r.program }, ...columns((r, value) => (value === null ? "–" : time(value))),
    { title: "Difference", of: (r) => Math.abs((r.after ?? 0) - (r.before ?? 0)), show: (r) => time((r.after ?? 0) - (r.before ?? 0)) },
  ], data.lines, { by: 5 })));
}

const page = document.getElementById("page");
document.body.append(tip);
(data.kind === "comparison" ? renderComparison : renderProfile)(page);
document.body.dataset.rendered = "yes";
