// The map of a memory: addresses over time. Rows of program.held are tensors, the largest ones.

const KINDS = { argument: ["accent", "arguments"], constant: ["scalar", "constants"], result: ["vector", "results"], scratch: ["dma", "scratch"] };
const heldIn = (program, memory) => program.held.filter((row) => row[1] === memory).map(([name, , kind, type, address, nbytes, first, last]) =>
  ({ name, kind, type, address, nbytes, first: program.kernels[first], last: program.kernels[last], always: kind !== "scratch" }));
const from = (tensor) => (tensor.always ? 0 : tensor.first.start);
const until = (tensor, program) => (tensor.always ? program.total : tensor.last.end);

// What is in use of a memory over one run: pairs of a time and the bytes from then on

const levelAt = (program, memory, at) => (program.levels[memory] ?? []).findLast(([since]) => since <= at)?.[1] ?? 0;
const fullest = (program, memory) => (program.levels[memory] ?? []).reduce((most, level) => (level[1] > most[1] ? level : most), [0, 0]);

function memoryMap(program, memory, capacity) {
  const tensors = heldIn(program, memory), high = memory === "hbm" ? 230 : 130, left = 84;
  const most = memory === "hbm" ? Math.max(1, ...tensors.map((each) => each.address + each.nbytes)) : capacity;
  const canvas = make("canvas", { class: "map", id: `map-${memory}`, style: `height:${high}px;cursor:crosshair`, role: "img", "aria-label": `Addresses of ${memory.toUpperCase()} in use over one run` });
  const x = (at) => left + ratio(at, program.total) * (canvas.clientWidth - left), y = (address) => high - address / most * high;
  function draw() {
    const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = canvas.clientWidth * ratio; canvas.height = high * ratio; pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.textAlign = "right";
    for (let part = 0; part <= 2; part++) {
      const at = Math.min(high - 8, Math.max(8, y(most * part / 2)));
      pen.fillStyle = color("grid"); pen.fillRect(left, y(most * part / 2), canvas.clientWidth, 1);
      pen.fillStyle = color("soft"); pen.fillText(bytes(most * part / 2), left - 8, at);
    }
    for (const each of tensors) {
      const start = x(from(each)), top = y(each.address + each.nbytes), tall = Math.max(0.7, each.nbytes / most * high), wide = Math.max(0.7, x(until(each, program)) - start);
      pen.fillStyle = color(memory === "hbm" ? KINDS[each.kind][0] : each.first.critical); pen.globalAlpha = 0.6;
      pen.fillRect(start, top, wide - (wide > 3 ? 0.5 : 0), tall - (tall > 3 ? 0.5 : 0));
      pen.globalAlpha = 1;
    }
  }
  function at(event) {
    const box = canvas.getBoundingClientRect(), when = (event.clientX - box.left - left) / (box.width - left) * program.total;
    const address = (high - (event.clientY - box.top)) / high * most, slack = 2 * most / high;
    return tensors.filter((each) => from(each) <= when && when <= until(each, program) && each.address - slack <= address && address <= each.address + each.nbytes + slack)
      .sort((a, b) => a.nbytes - b.nbytes)[0];
  }
  canvas.addEventListener("pointermove", (event) => {
    const each = at(event), unit = memory === "hbm" ? "" : " of each partition";
    if (each) showTip(event, `${each.name}, ${each.kind}`, [`${bytes(each.nbytes)}${unit} at ${bytes(each.address)}`, each.type, `${time(from(each))} to ${time(until(each, program))}`, `kernel ${each.first.name}`, each.first.source && file(each.first.source)]);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => { const each = at(event); if (each) current.show({ kernel: each.first }); });
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return canvas;
}
function memoryMaps(program, machine) {
  const rows = [["hbm", "HBM", 0], ["sbuf", "SBUF, of each partition", machine.sbuf_partition_bytes], ["psum", "PSUM, of each partition", machine.psum_partition_bytes]];
  const key = make("div", { class: "legend" }, Object.values(KINDS).map(([name, title]) => make("span", {}, make("i", { style: `background:var(--${name})` }), title)));
  return rows.flatMap(([memory, title, capacity]) => [make("h3", {}, title), memoryMap(program, memory, capacity), memory === "hbm" ? key : undefined]).filter(Boolean);
}
function tensorTable(program) { // what HBM holds while it holds most
  const [at] = fullest(program, "hbm");
  const rows = heldIn(program, "hbm").filter((each) => from(each) <= at && at < until(each, program));
  const most = Math.max(1, ...rows.map((each) => each.nbytes)), whole = sum(rows, (each) => each.nbytes) || 1;
  return sortable([
    { title: "Tensor", text: true, of: (r) => r.name, show: (r) => make("code", {}, r.name) },
    { title: "Size", of: (r) => r.nbytes, show: (r) => bytes(r.nbytes) },
    { title: "Share", of: (r) => r.nbytes, show: (r) => share(r.nbytes / whole, most / whole) },
    { title: "Kind", text: true, of: (r) => r.kind },
    { title: "Type", text: true, of: (r) => r.type, show: (r) => make("code", {}, r.type), title_of: (r) => r.type },
    { title: "Line", text: true, of: (r) => r.first.source, show: (r) => make("code", {}, file(r.first.source)), title_of: (r) => r.first.source },
    { title: "Kernel", text: true, of: (r) => r.first.name, show: (r) => make("button", { type: "button", class: "link", onclick: () => current.show({ kernel: r.first }) }, r.first.name) },
  ], rows, { by: 1 });
}
function meshPicture(program) {
  const { svgs, axes, busiest, topology } = program.mesh;
  const drawn = svgs.map((picture) => document.importNode(new DOMParser().parseFromString(picture, "image/svg+xml").documentElement, true));
  const note = busiest ? `The busiest link, between chips ${busiest.chips.join(" and ")}, carries ${bytes(busiest.bytes)} in one run, ${percent(busiest.share)} of its capacity.` : "No link between chips is used.";
  return section("mesh", axes.length ? `The mesh ${axes.join(", ")} on the machine` : "Cores on the machine",
    `${topology[0].toUpperCase()}${topology.slice(1)}. ${axes.length ? "Cores are labelled with their mesh coordinates and coloured by its first axis. " : ""}${note}`, make("div", { class: "scroll" }, drawn));
}
function splitCards(program) { // how the mesh splits arguments and results
  const cards = program.splits.map(({ spec, svg, copies, count, nbytes, arrays }) => {
    const rows = arrays.map(([name, type, each, kind]) => make("tr", { title: kind }, make("td", { class: "text" }, make("code", {}, name)), make("td", { class: "text" }, make("code", {}, type)), make("td", {}, bytes(each))));
    if (count > arrays.length) rows.push(make("tr", {}, make("td", { class: "text", colspan: 3 }, `and ${count - arrays.length} more`)));
    const picture = svg ? document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true) : null;
    return make("div", { class: "split" }, make("h3", {}, make("code", {}, spec)),
      make("p", { class: "note" }, `${counted(count, "array")}, ${bytes(nbytes)} on each core; ${copies === 1 ? "no part is held twice" : `every part is on ${copies} cores`}.`),
      picture, make("details", {}, make("summary", {}, "Arrays"), make("div", { class: "scroll" }, make("table", {}, rows))));
  });
  return section("splits", "How arrays are split", "Arguments and results by their PartitionSpec. A tile is labelled with the cores that hold it and coloured by the first axis of the mesh; it is grey where cores of several colours hold it.", make("div", { class: "splits" }, cards));
}
