// The whole session: what the host did in real time, and the runs on each core in simulated time; or
// the runs alone, back to back.

const PALETTE = ["tensor", "vector", "scalar", "dma", "gpsimd", "collective"]; // of programs; others are grey
const HOST_LANES = { compilation: "Compilation", input: "Copies", dispatch: "Dispatch" };
const MOST_CORES = 16;
const colorOf = (program) => PALETTE[program] ?? "sync";

class Session extends Lanes {
  constructor() {
    super("session-canvas", "The whole session. With the focus here, + and - zoom, arrow keys move.");
    this.cores = [...new Set(data.runs.flatMap((run) => run[1]))].sort((a, b) => a - b).slice(0, MOST_CORES);
    this.choose(data.session > 0);
    this.listen();
  }
  choose(withHost) { // or the device alone
    this.withHost = withHost;
    const free = new Map(), runs = [];
    for (const [number, on, placed] of data.runs) {
      const program = data.programs[number], start = withHost ? placed : Math.max(...on.map((core) => free.get(core) ?? 0)), end = start + program.total;
      for (const core of on) {
        free.set(core, end);
        if (this.cores.includes(core)) runs.push({ lane: `core ${core}`, start, end, number, name: program.name, color: colorOf(number) });
      }
    }
    const phases = withHost ? data.phases.map(([lane, name, start, end]) => ({ start, end, lane, name, color: "host", host: true })) : [];
    const lanes = Object.keys(HOST_LANES).flatMap((lane) => {
      const own = inRows(phases.filter((each) => each.lane === lane), lane);
      return [...new Set(own.map((each) => each.lane))].sort();
    });
    this.items = [...phases, ...runs].sort((a, b) => a.start - b.start);
    this.total = Math.max(withHost ? data.session : 0, ...runs.map((each) => each.end), 1);
    this.layOut([...lanes, ...this.cores.map((core) => `core ${core}`)]);
    this.fit();
  }
  repeating() { // to where the program with most runs does: the steps
    const most = data.programs.reduce((best, each, at) => (each.count > data.programs[best].count ? at : best), 0);
    const own = this.items.filter((each) => each.number === most);
    this.focus(own[0].start, own[Math.min(own.length, 5) - 1].end);
  }
  title(lane) {
    const [kind, row] = lane.split(" ");
    return HOST_LANES[kind] ? (row ? "" : HOST_LANES[kind]) : lane[0].toUpperCase() + lane.slice(1);
  }
  paint(pen, close) {
    const reached = new Map();
    for (const item of this.items) {
      if (item.end < this.begin || item.start > this.end) continue;
      const x = this.x(item.start), wide = Math.max((item.end - item.start) * close, 1), y = this.top + this.places.get(item.lane) * this.row + 2, high = this.row - 5;
      if (x + wide <= (reached.get(item.lane) ?? -9)) continue;
      reached.set(item.lane, x + wide);
      pen.fillStyle = this.colors[item.color];
      pen.fillRect(x, y, wide - (wide > 3 ? 0.6 : 0), high);
      this.label(pen, item.name, x, y, wide, high);
    }
  }
  tell(event, item) {
    showTip(event, item.name, [item.host ? HOST_LANES[item.lane.split(" ")[0]] : this.title(item.lane), `${time(item.end - item.start)} ${item.host ? "of real time" : "simulated"}, from ${time(item.start)}`]);
  }
}
function sessionSection() {
  const session = new Session(), choices = data.session > 0 ? [["With the host", true], ["Device alone", false]] : [];
  const buttons = choices.map(([title, withHost]) => make("button", { type: "button", "aria-pressed": String(withHost), onclick: (event) => {
    session.choose(withHost);
    buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === event.currentTarget)));
  } }, title));
  const actions = [["+", () => session.zoom(0.6)], ["−", () => session.zoom(1.7)], ["Steps", () => session.repeating()], ["All", () => session.fit()]];
  const ran = [...new Set(data.runs.map((run) => run[0]))].sort((a, b) => a - b), named = ran.filter((number) => number < PALETTE.length);
  const entries = named.map((number) => [colorOf(number), data.programs[number].name]);
  if (ran.length > named.length) entries.push(["sync", counted(ran.length - named.length, "other program")]);
  if (data.phases.length) entries.push(["host", "host"]);
  const key = make("div", { class: "legend" }, entries.map(([name, title]) => make("span", {}, make("i", { style: `background:var(--${name})` }), title)));
  return section("session", "The whole session", `${data.session_text} Runs on cores take simulated time, from when the host has enqueued them and their cores are free.`,
    make("div", { class: "tools" }, buttons, actions.map(([title, action]) => make("button", { type: "button", onclick: action }, title)), make("span", { class: "space" }), key), session.canvas);
}
