// Lanes of what happens in time, on a canvas. The wheel zooms, dragging moves, and the arrow keys and
// + and - do so where the canvas has the focus. A subclass has `total`, `lanes` (names of rows),
// `items` ({lane, start, end, ...}), `title(lane)`, `paint(pen, close)` (`close`: pixels per ns) and
// `tell(event, item)`.

class Lanes {
  constructor(id, label) {
    this.row = 24; this.top = 26; this.pointer = 0.5; this.range = null;
    this.canvas = make("canvas", { id, tabindex: "0", "aria-label": label });
  }
  layOut(lanes) {
    this.lanes = lanes;
    this.places = new Map(lanes.map((lane, at) => [lane, at]));
    this.height = this.top + lanes.length * this.row + 6;
    this.canvas.style.height = `${this.height}px`;
  }
  fit() { this.begin = 0; this.end = this.total || 1; this.draw(); }
  zoom(factor, at = 0.5) {
    const width = this.end - this.begin, middle = this.begin + at * width;
    const next = Math.min(Math.max(width * factor, 20), this.total * 1.05);
    this.begin = middle - at * next; this.end = this.begin + next; this.clamp(); this.draw();
  }
  move(part) { const step = part * (this.end - this.begin); this.begin += step; this.end += step; this.clamp(); this.draw(); }
  clamp() {
    const width = this.end - this.begin, low = -0.02 * width, high = this.total + 0.02 * width;
    if (this.begin < low) { this.begin = low; this.end = low + width; }
    if (this.end > high && width < high - low) { this.end = high; this.begin = high - width; }
  }
  focus(start, end) {
    const spare = 0.1 * (end - start) + 1;
    this.begin = start - spare; this.end = end + spare; this.draw();
  }
  x(time) { return this.left + (time - this.begin) / (this.end - this.begin) * (this.width - this.left); }
  draw() {
    const canvas = this.canvas, ratio = window.devicePixelRatio || 1;
    this.width = canvas.clientWidth || 1200;
    this.left = this.width < 600 ? 84 : 132;
    canvas.width = this.width * ratio; canvas.height = this.height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.colors = Object.fromEntries([...RESOURCES, "accent", "ink", "soft", "line", "grid", "card"].map((name) => [name, color(name)]));
    pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    this.axis(pen);
    pen.save(); pen.beginPath(); pen.rect(this.left, 0, this.width - this.left, this.height); pen.clip();
    this.paint(pen, (this.width - this.left) / (this.end - this.begin));
    pen.restore();
  }
  axis(pen) {
    const width = this.end - this.begin, rough = width / Math.max(2, (this.width - this.left) / (this.width < 600 ? 75 : 140)), power = 10 ** Math.floor(Math.log10(rough));
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
  label(pen, text, x, y, wide, high) { // within a box, as far as there is room
    const from = Math.max(x, this.left), room = Math.min(x + wide, this.width) - from, letters = Math.floor((room - 8) / 6.6);
    if (letters <= 2) return;
    pen.fillStyle = "#fff"; pen.textAlign = "left";
    pen.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, from + 4, y + high / 2 + 0.5);
  }
  at(event) { return this.begin + (event.clientX - this.canvas.getBoundingClientRect().left - this.left) / (this.width - this.left) * (this.end - this.begin); }
  hits(event) {
    const box = this.canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top - this.top) / this.row);
    const at = this.at(event), near = 1.5 * (this.end - this.begin) / (this.width - this.left);
    return event.clientX - box.left < this.left ? [] : this.items.filter((each) => this.places.get(each.lane) === row && each.start - near <= at && at <= each.end + near);
  }
  hit(event) { return this.hits(event)[0]; }
  show(item) { this.focus(item.start, item.end); }
  click() {}
  drag() {} // with Shift
  listen() {
    const canvas = this.canvas;
    let held = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { this.move(event.deltaX / this.width); return; }
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, Math.max(0, (event.offsetX - this.left) / (this.width - this.left)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: this.at(event), moved: false, range: event.shiftKey };
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
        if (held.range) this.drag([held.from, this.at(event)].sort((a, b) => a - b));
        else { this.move((held.x - event.clientX) / (this.width - this.left)); held.x = event.clientX; }
        hideTip();
        return;
      }
      const item = this.hit(event);
      if (item) this.tell(event, item); else hideTip();
    });
    canvas.addEventListener("dblclick", (event) => { const item = this.hit(event); if (item) this.show(item); });
    canvas.addEventListener("keydown", (event) => this.act(event, { "+": () => this.zoom(0.7), "-": () => this.zoom(1.4), ArrowLeft: () => this.move(-0.1), ArrowRight: () => this.move(0.1) }));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
  act(event, actions) {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (action) { event.preventDefault(); action(); }
  }
}

function inRows(items, lane) { // items that overlap lie in several rows of their lane
  const ends = [];
  for (const item of items.sort((a, b) => a.start - b.start)) {
    const free = ends.findIndex((end) => end <= item.start + 0.001), row = free < 0 ? ends.length : free;
    ends[row] = item.end;
    item.lane = row ? `${lane} ${row + 1}` : lane;
  }
  return items;
}
