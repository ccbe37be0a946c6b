// The page of a profile

let current; // the timeline on the page
const PHASES = ["forward", "backward", "recomputed"]; // of a gradient

function tile(title, value, more, why) {
  return make("div", { class: "tile", title: why ?? "" }, make("span", {}, title), make("b", {}, value), more && make("small", {}, more));
}
function tiles(program, machine) {
  const busiest = RESOURCES.reduce((best, name) => ((program.busy[name] ?? 0) > (program.busy[best] ?? 0) ? name : best));
  const fixed = (program.hbm.argument ?? 0) + (program.hbm.constant ?? 0) + (program.hbm.result ?? 0);
  const peak = fixed + fullest(program, "hbm")[1];
  return make("div", { class: "tiles", id: "tiles" },
    tile("Time per run", time(program.total), `${program.range ? `${program.range} in 80 %; ` : ""}${counted(program.count, "run")} on ${counted(program.ranks, "core")}`, program.basis),
    tile("MFU", percent(program.share.mfu_estimated_percent), `HBM traffic allows ${percent(program.share.mfu_max_achievable_estimated_percent)}`),
    tile("HBM bandwidth used", percent(program.share.mbu_estimated_percent), `${shown(machine.max_hbm_bandwidth / 1e9)} GB/s per core`),
    tile("Busiest", TITLES[busiest], `${percent(ratio(program.busy[busiest] ?? 0, program.total))} of the run`),
    tile("HBM", bytes(peak), `of ${bytes(machine.hbm_bytes)} per core`),
    tile("Kernels", shown(program.kernels.length, 6), counted(sum(program.kernels, (each) => each.runs), "run")));
}
function aside(finding) { // what the sentence of a finding leaves out
  const line = finding.source && !finding.what.includes(file(finding.source)) ? `Line: ${file(finding.source)}. ` : "";
  const kernel = finding.kernel ? `Costliest kernel: ${finding.kernel}. ` : "";
  const others = finding.others.length ? `This is ${finding.program}; the same in ${finding.others.join(", ")}.` : "";
  return line + kernel + others;
}
function findingsList(program) {
  const own = data.findings.filter((each) => [each.program, ...each.others].includes(program.name.replace(/\.\d+$/, "")));
  if (!own.length) return make("p", { class: "empty" }, "Nothing stands out.");
  return make("div", { class: "findings" }, own.map((each) => make("div", { class: "finding", "data-rule": each.rule },
    make("div", { class: "cost" }, percent(ratio(each.cost_ns, data.total)), make("small", {}, "at most")),
    make("p", { class: "what" }, each.what, make("span", { class: "note" }, ` ${aside(each)}`)),
    make("p", { class: "remedy" }, each.remedy))));
}
function kernelGroups(program) { // kernels of one name, line and limit as one
  const groups = new Map();
  for (const kernel of program.kernels) {
    const key = [kernel.name, kernel.source, kernel.critical].join("\n");
    const group = groups.get(key) ?? { ...kernel, first: kernel, runs: 0, whole: 0, spans: 0, tensor: 0, flops: 0, hbm: 0, transfers: 0, moved: 0 };
    group.runs += kernel.runs; group.whole += kernel.added * kernel.runs; group.spans += kernel.span * kernel.runs; group.tensor += (kernel.busy.tensor ?? 0) * kernel.runs;
    group.flops += kernel.flops * kernel.runs; group.hbm += kernel.hbm * kernel.runs;
    group.transfers += kernel.dma[0] * kernel.runs; group.moved += kernel.dma[1] * kernel.runs;
    groups.set(key, group);
  }
  return [...groups.values()];
}
function kernelTable(program, timeline) {
  const groups = kernelGroups(program), whole = sum(groups, (each) => each.whole) || 1;
  const most = Math.max(...groups.map((each) => each.whole), 1) / whole;
  return sortable([
    { title: "Kernel", text: true, of: (k) => k.name, title_of: (k) => `${k.path}: ${k.ops}`, show: (k) => make("button", { type: "button", class: "link", onclick: () => timeline.show({ kernel: k.first }) }, k.name) },
    { title: "Share", of: (k) => k.whole, show: (k) => share(k.whole / whole, most) },
    { title: "Adds", of: (k) => k.whole, show: (k) => time(k.whole) },
    { title: "Span", of: (k) => k.spans, show: (k) => time(k.spans) },
    { title: "Runs", of: (k) => k.runs, show: (k) => shown(k.runs, 9) },
    { title: "Limited by", text: true, of: (k) => k.critical, show: (k) => dot(k.critical) },
    { title: "Tensor", of: (k) => k.tensor / k.spans, show: (k) => percent(k.tensor / (k.spans || 1)) },
    { title: "Rate", of: (k) => k.flops / k.spans, show: (k) => rate(k.flops, k.spans) },
    { title: "HBM", of: (k) => k.hbm, show: (k) => bytes(k.hbm) },
    { title: "DMA size", of: (k) => k.moved / (k.transfers || 1), show: (k) => (k.transfers ? bytes(k.moved / k.transfers) : "–") },
    { title: "Line", text: true, of: (k) => k.source, show: (k) => make("code", {}, file(k.source)), title_of: (k) => k.source },
  ], groups, { by: 1 });
}
function costTable(program, rows, first, by, more = []) {
  const whole = sum(program.kernels, (each) => each.added * each.runs) || 1, most = Math.max(...rows.map((each) => each.time), 1) / whole;
  const top = (row) => Object.entries(row.busy).sort((a, b) => b[1] - a[1])[0]?.[0] ?? "host";
  return sortable([
    first,
    { title: "Share", of: (r) => r.time, show: (r) => share(r.time / whole, most) },
    { title: "Time", of: (r) => r.time, show: (r) => time(r.time) },
    ...more,
    { title: "Busiest", text: true, of: top, show: (r) => dot(top(r)) },
    { title: "Kernels", of: (r) => r.kernels },
    { title: "FLOP", of: (r) => r.flops, show: (r) => flops(r.flops) },
    { title: "HBM", of: (r) => r.hbm, show: (r) => bytes(r.hbm) },
  ], rows, { by });
}
function lineTable(program) {
  return costTable(program, program.lines, { title: "Line", text: true, of: (r) => r.name, show: (r) => make("code", {}, r.name ? file(r.name) : "–"), title_of: (r) => r.name }, 1);
}
function layerTable(program) { // layers within layers follow them, indented
  const show = (row) => make("code", { style: `padding-left:${row.name.split("/").length - 1}em` }, row.name.split("/").at(-1) || "–");
  const phases = PHASES.filter((name) => program.layers.some((row) => row.phases[name]));
  const apart = phases.length < 2 ? [] : phases.map((name) => ({ title: `${name[0].toUpperCase()}${name.slice(1)}`, of: (r) => r.phases[name] ?? 0, show: (r) => (r.phases[name] ? time(r.phases[name]) : "–") }));
  return costTable(program, program.layers, { title: "Layer", text: true, of: (r) => r.name, show, title_of: (r) => r.name }, null, apart);
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
  if (timeline.queues > 1) actions.push(["Collapse or expand DMA queues", () => timeline.fold()]);
  const tools = make("div", { class: "tools" }, search, actions.map(([title, action]) => make("button", { type: "button", onclick: action }, title)),
    make("span", { class: "space" }), legend(RESOURCES.filter((name) => program.busy[name])));
  return [
    tiles(program, machine),
    section("findings", "Findings", "What costs time, how much of the whole recording a fix could save at most, and what to do.", findingsList(program)),
    section("timeline", "Timeline of one run", "Kernels reach from their start to their end, and are coloured by what limits them; engines show how busy they are. Zoom in (scroll, or double-click a kernel) for the first instructions and DMA transfers of each kernel, and what they waited for.", tools, timeline.canvas, timeline.panel),
    make("div", { class: "pair" },
      section("engines", "Engines", "Share of the run for which each is busy. The mark shows what its work would take at peak rate.", engineBars(program)),
      section("roofline", "Roofline", "Kernels that multiply matrices: area is what they add to the run, colour is what limits them.", roofline(program, machine))),
    section("memory", "HBM over one run", `Of ${bytes(machine.hbm_bytes)} per core; memory that other programs hold is not included.`, memoryChart(program, machine)),
    section("maps", "Maps of the memories", "Where the largest tensors lie, and for how long. Click one to see the kernel that first needs it.", memoryMaps(program, machine)),
    section("tensors", "HBM at its fullest", "Each line makes a tensor, or is the first to read an argument.", tensorTable(program)),
    program.mesh ? meshPicture(program) : make("span"),
    program.splits.length ? splitCards(program) : make("span"),
    section("kernels", "Cost by kernel", "A kernel spans the time from its start to its end, as the timeline draws it. Kernels overlap: what one adds is its end minus the end of those before it. Click a kernel to see it in the timeline; click a heading to sort.", kernelTable(program, timeline)),
    section("layers", "Cost by layer", "Name scopes and modules, or else functions, with all that lies within them.", layerTable(program)),
    section("lines", "Cost by source line", null, lineTable(program)),
    section("opcodes", "Cost by instruction", "DMA is the sum of all transfers' times, although transfers overlap.", opcodeTable(program)),
    program.assumed.length ? section("assumed", "Assumed", program.assumed.join("; ")) : make("span"),
  ];
}
function renderProfile(page) {
  const { machine } = data, body = make("div", { id: "program" });
  page.append(make("header", {}, make("h1", {}, "Where the time goes"),
    make("p", {}, `${machine.target}, LNC ${machine.lnc} · ${counted(data.executions, "run")} of ${counted(data.program_count, "program")} · ${time(data.total)} on the device, simulated`)));
  if (!data.programs.length) { page.append(section("empty", "No program ran", "Nothing ran on platform neuron during the recording.")); return; }
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
    if (found) current.show({ kernel: found });
  }
  page.append(make("div", { class: "tabs", id: "programs" }, buttons, rest.length ? more : null), body);
  if (data.runs.length > 1 || data.phases.length) page.append(sessionSection());
  choose(0);
  follow();
}
