// The timeline: lanes on a canvas. The wheel zooms, dragging moves, dragging with Shift selects a
// range, a click selects what is under the pointer; keys are those of Perfetto.

const KEYS = "w/s zoom, a/d move, f zoom to the selection, m mark it as a range, / search, Esc clear";
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
        make("div", {}, this.matches.length ? `${counted(kernels.length, "kernel")}, ${time(found)}, ${percent(found / whole)} of the kernels' time. Enter shows the next one, Shift+Enter the previous one.` : "Names of kernels, operations and instructions are searched, and source lines such as train.py:12."));
    } else said(make("div", { class: "note" }, `Click to select; drag with Shift to add up a range. Keys: ${KEYS}.`));
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
