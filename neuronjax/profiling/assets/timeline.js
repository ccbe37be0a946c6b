// The timeline of one run. Dragging with Shift selects a range, a click selects what is under the
// pointer; keys are those of Perfetto.

const KEYS = "w/s zoom, a/d move, f zoom to the selection, m mark it as a range, / search, Esc clear";
const MOST_CAUSES = 12; // arrows from a wait to what it waited for, and so on

class Timeline extends Lanes {
  constructor(program) {
    super("timeline-canvas", `Timeline of one run. Keys: ${KEYS}`);
    this.program = program; this.total = program.total;
    this.folded = true; this.selected = null; this.wanted = ""; this.matches = [];
    this.panel = make("div", { id: "selection", "aria-live": "polite" });
    this.items = this.collect();
    this.arrange();
    this.fit();
    this.listen();
    this.describe();
  }
  arrange() { // the queues of DMA are one row until they are unfolded
    const names = [...new Set(this.items.map((each) => each.lane))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const queues = names.filter((name) => name.startsWith("queue ")), rowsOf = (name) => names.filter((each) => each.split(" ")[0] === name);
    this.queues = queues.length;
    const rows = this.folded && queues.length > 1 ? ["queues", ...names.filter((name) => !queues.includes(name))] : names;
    this.layOut([...new Set(["kernels", ...["kernels", ...RESOURCES].flatMap(rowsOf), ...rows])]);
    for (const queue of queues) if (!this.places.has(queue)) this.places.set(queue, this.places.get("queues"));
  }
  fold() { this.folded = !this.folded; this.arrange(); this.draw(); }
  collect() {
    const { kernels, launches, busy } = this.program;
    const around = launches.map(([name, start, end]) => ({ start, end, name, color: "sync", full: true, launch: true, kernel: { name, start, drawn: [[start, end]], busy: {}, span: end - start } }));
    const runs = kernels.flatMap((kernel) => kernel.drawn.map(([start, end]) => ({ start, end, kernel, name: kernel.name, color: kernel.critical, full: true })));
    const [apart, computing] = [true, false].map((is) => runs.filter((each) => (each.kernel.critical === "collective") === is));
    for (const kernel of kernels) {
      kernel.instructions = kernel.spans.map(([lane, name, start, end, after]) => ({
        lane, start: kernel.start + start, end: kernel.start + end, kernel, name, color: kindOf(lane), span: true, queue: kindOf(lane) !== lane, after,
      }));
    }
    const loads = Object.keys(busy).filter((name) => name !== "collective").flatMap((name) => this.loads(name));
    const found = [...inRows([...around, ...computing], "kernels"), ...inRows(apart, "collective"), ...loads, ...kernels.flatMap((each) => each.instructions)];
    return found.sort((a, b) => a.start - b.start);
  }
  loads(name) { // how busy an engine is: the shares of all kernels that run at a time
    const edges = [];
    const during = (start, end, share, kernel, seen) => { if (end > start) edges.push([start, share, kernel, seen], [end, -share, kernel, seen]); };
    for (const kernel of this.program.kernels.filter((each) => each.busy[name])) {
      const known = Math.max(0, ...kernel.spans.map((span) => span[3])); // from there on no instructions are known
      const mean = kernel.busy[name] * kernel.runs / (kernel.end - kernel.start || 1);
      if (kernel.runs > kernel.drawn.length) during(kernel.start, kernel.end, mean, kernel, false);
      else kernel.drawn.forEach(([start, end], run) => {
        const seen = run ? start : Math.min(end, start + known), share = kernel.busy[name] / (end - start || 1);
        during(start, seen, share, kernel, true); during(seen, end, share, kernel, false);
      });
    }
    const found = [], running = new Map();
    let since = 0;
    for (const [at, step, kernel, seen] of edges.sort((a, b) => a[0] - b[0])) {
      const shares = [...running.values()], share = sum(shares, (each) => each.share);
      if (at > since && share > 1e-6) {
        const most = shares.reduce((best, each) => (each.share > best.share ? each : best));
        found.push({ lane: name, start: since, end: at, kernel: most.kernel, name: "", color: name, share: Math.min(1, share), seen: Math.min(1, sum(shares, (each) => (each.seen ? each.share : 0))) });
      }
      since = at;
      const key = `${kernel.path} ${seen}`, own = running.get(key) ?? { share: 0, kernel, seen };
      own.share += step;
      if (own.share > 1e-9) running.set(key, own); else running.delete(key);
    }
    return found;
  }
  show({ kernel }) {
    this.focus(...kernel.drawn[0]);
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
      const runs = kernel.runs > kernel.drawn.length ? kernel.runs * part(kernel.start, kernel.end) : sum(kernel.drawn, (run) => part(...run));
      return { kernel, runs, time: runs * kernel.span };
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
        make("div", {}, item.launch ? "what the runtime does" : `kernel ${item.kernel.name}, ${file(item.kernel.source)}`),
        cause ? make("div", {}, "waited for ", make("button", { type: "button", class: "link", onclick: () => this.goTo(cause) }, `${cause.name} on ${this.title(cause.lane)}`), `, which ended at ${time(cause.end)}`) : "");
    } else if (this.wanted) {
      const kernels = [...new Set(this.matches.filter((each) => each.full).map((each) => each.kernel))];
      const whole = sum(this.program.kernels, (each) => each.added * each.runs) || 1;
      const found = sum(kernels, (each) => each.added * each.runs);
      said(make("b", {}, this.matches.length ? `${shown(this.matches.length, 9)} found` : "Nothing found"),
        make("div", {}, this.matches.length ? `${counted(kernels.length, "kernel")}, ${time(found)}, ${percent(found / whole)} of the kernels' time. Enter shows the next one, Shift+Enter the previous one.` : "Names of kernels, operations and instructions are searched, and source lines such as train.py:12."));
    } else said(make("div", { class: "note" }, `Click to select; drag with Shift to add up a range. Keys: ${KEYS}.`));
  }
  paint(pen, close) {
    const reached = new Map();
    for (const item of this.items) {
      if (item.end < this.begin || item.start > this.end) continue;
      this.item(pen, item, close, reached);
    }
    if (this.range) this.shade(pen);
    if (this.selected) this.arrows(pen, close);
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
  title(lane) {
    const [kind, number] = lane.split(" ");
    if (number && ["kernels", "collective"].includes(kind)) return "";
    return { kernels: "Kernels", queues: `▸ ${this.queues} DMA queues`, queue: `${this.queues > 1 ? "▾ " : ""}DMA queue ${number}`, stream: `CC stream ${number}` }[kind] ?? TITLES[lane] ?? lane;
  }
  item(pen, item, close, reached) {
    const lane = this.places.get(item.lane), x = this.x(item.start), wide = (item.end - item.start) * close;
    const y = this.top + lane * this.row + 2, high = this.row - 5, faint = this.wanted && !item.matching ? 0.15 : 1;
    if (item.span) {
      const overview = !item.queue && item.kernel.span * close < 240;
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
      const near = item.kernel.span * close >= 240, share = near ? item.share - item.seen : item.share, across = Math.max(wide - (wide > 3 ? 1 : 0), 0.7);
      pen.fillStyle = this.colors[item.color];
      if (near && item.seen) { pen.globalAlpha = 0.13 * faint; pen.fillRect(x, y, across, high); } // its instructions are shown
      pen.globalAlpha = 0.8 * faint;
      pen.fillRect(x, y + high * (1 - share), across, high * share);
    }
    pen.globalAlpha = 1;
    if (item.name && !(item.queue && this.places.has("queues"))) this.label(pen, item.name, x, y, wide, high); // in a folded row names would overlap
  }
  hit(event) { const found = this.hits(event); return found.find((each) => each.span) ?? found[0]; }
  click(event) {
    const box = this.canvas.getBoundingClientRect(), lane = this.lanes[Math.floor((event.clientY - box.top - this.top) / this.row)];
    if (event.clientX - box.left >= this.left) this.select(this.hit(event) ?? null);
    else if (lane && lane.startsWith("queue") && this.queues > 1) this.fold();
  }
  drag(range) { this.range = range; this.selected = null; this.describe(); this.draw(); }
  press(event) { // a key anywhere on the page
    const chosen = this.range ?? (this.selected && [this.selected.start, this.selected.end]);
    this.act(event, {
      w: () => this.zoom(0.7, this.pointer), s: () => this.zoom(1.4, this.pointer), a: () => this.move(-0.1), d: () => this.move(0.1),
      f: () => (chosen ? this.focus(...chosen) : this.fit()), m: () => this.mark(), 0: () => this.fit(), Escape: () => this.clear(),
      "/": () => document.getElementById("search").focus(),
    });
  }
  tell(event, item) {
    const kernel = item.kernel, title = TITLES[item.lane.split(" ")[0]], from = `from ${time(item.start)} to ${time(item.end)}`;
    if (item.launch) { showTip(event, item.name, [`${time(item.end - item.start)}, ${from}`, "what the runtime does around the kernels"]); return; }
    const own = [`kernel ${kernel.name}`, kernel.source && file(kernel.source)];
    if (item.span) {
      const cause = this.cause(item);
      showTip(event, item.name, [`${time(item.end - item.start)} on ${this.title(item.lane)}, ${from}`, cause && `waited for ${cause.name} on ${this.title(cause.lane)}`, ...own]);
    } else if (!item.full) showTip(event, `${title} busy for ${percent(item.share)}`, [from, ...own]);
    else {
      const busy = Object.entries(kernel.busy).map(([name, value]) => `${TITLES[name]} ${percent(value / (kernel.span || 1))}`).join(", ");
      showTip(event, kernel.name, [
        `${time(item.end - item.start)}, ${from}`, `adds ${time(kernel.added)} to the run, ${counted(kernel.runs, "run")}, limited by ${TITLES[kernel.critical] ?? kernel.critical}`,
        kernel.source && file(kernel.source), kernel.ops, busy, `${bytes(kernel.hbm)} HBM, ${flops(kernel.flops)}`,
      ]);
    }
  }
}
