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
    const part = ratio(program.busy[name] ?? 0, program.total), y = at * row, bound = ratio(program.bounds[name] ?? 0, program.total);
    const bar = svg("rect", { x: left, y: y + 5, width: Math.max(1, Math.min(1, part) * room), height: row - 11, rx: 4, fill: `var(--${name})` });
    bar.addEventListener("pointermove", (event) => showTip(event, TITLES[name], [`busy for ${time(program.busy[name])} of ${time(program.total)}`, bound > 0 && `at peak rate its work would take ${time(program.bounds[name])}`]));
    bar.addEventListener("pointerleave", hideTip);
    picture.append(svg("text", { x: left - 10, y: y + row / 2 + 4, "text-anchor": "end" }, TITLES[name]), bar,
      svg("text", { class: "value", x: left + Math.min(1, Math.max(part, bound)) * room + 8, y: y + row / 2 + 4 }, percent(part)));
    if (bound > 0.004) picture.append(svg("line", { x1: left + Math.min(1, bound) * room, x2: left + Math.min(1, bound) * room, y1: y + 2, y2: y + row - 3, stroke: "var(--ink)", "stroke-width": 2 }));
  });
  return picture;
}

function roofline(program, machine) {
  const width = 560, height = 330, left = 92, bottom = 40, top = 12;
  const points = program.kernels.filter((each) => each.flops > 0 && each.hbm > 0 && each.span > 0)
    .map((each) => ({ kernel: each, x: each.flops / each.hbm, y: each.flops / each.span * 1e9, size: each.added * each.runs }));
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
    svg("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, scaled(10 ** power, [["PFLOP/s", 1e15], ["TFLOP/s", 1e12], ["GFLOP/s", 1e9], ["MFLOP/s", 1e6]])));
  const low = Math.max(10 ** x0, 10 ** y0 / machine.max_hbm_bandwidth);
  picture.append(svg("polyline", { points: [[low, low * machine.max_hbm_bandwidth], [ridge, machine.max_flops], [10 ** x1, machine.max_flops]].map(([a, b]) => `${x(a)},${y(b)}`).join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 2, "stroke-linejoin": "round" }),
    svg("text", { x: width - 14, y: y(machine.max_flops) - 8, "text-anchor": "end" }, `BF16 peak ${shown(machine.max_flops / 1e12)} TFLOP/s`),
    svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "FLOP per byte of HBM"));
  const most = Math.max(...points.map((each) => each.size), 1);
  for (const point of points.sort((a, b) => b.size - a.size)) {
    const spot = svg("circle", { cx: x(point.x), cy: y(point.y), r: 4 + 12 * Math.sqrt(point.size / most), fill: `var(--${point.kernel.critical})`, "fill-opacity": 0.72, stroke: "var(--card)", "stroke-width": 1.5 });
    spot.addEventListener("pointermove", (event) => showTip(event, point.kernel.name, [`${flops(point.y)}/s at ${shown(point.x)} FLOP/byte`, `adds ${time(point.size)} in ${counted(point.kernel.runs, "run")}`, file(point.kernel.source), `limited by ${TITLES[point.kernel.critical]}`]));
    spot.addEventListener("pointerleave", hideTip);
    picture.append(spot);
  }
  if (!points.length) picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no kernel uses both the Tensor engine and HBM"));
  return picture;
}

function memoryChart(program, machine) {
  const width = 1240, height = 250, left = 84, bottom = 34, top = 10;
  const fixed = [["weights & inputs", (program.hbm.argument ?? 0) + (program.hbm.constant ?? 0), "accent"], ["results", program.hbm.result ?? 0, "vector"]];
  const base = sum(fixed, (each) => each[1]);
  const most = Math.max(base + fullest(program, "hbm")[1], 1);
  const x = (at) => left + ratio(at, program.total) * (width - left - 12), y = (value) => height - bottom - value / most * (height - bottom - top);
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
  for (const [at, nbytes] of program.levels.hbm ?? []) corners.push([at, corners[corners.length - 1][1]], [at, nbytes]);
  corners.push([program.total, corners[corners.length - 1][1]]);
  const outline = corners.map(([at, value]) => `${x(at).toFixed(1)},${y(base + value).toFixed(1)}`);
  picture.append(svg("polygon", { points: [...outline, `${x(program.total)},${y(base)}`, `${x(0)},${y(base)}`].join(" "), fill: "var(--dma)", "fill-opacity": 0.65 }));
  const cover = svg("rect", { x: left, y: top, width: width - left - 12, height: height - top - bottom, fill: "transparent" });
  cover.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width * width - left) / (width - left - 12) * program.total;
    const held = (memory) => levelAt(program, memory, at), running = program.kernels.filter((each) => each.start <= at && at < each.end);
    showTip(event, `${bytes(base + held("hbm"))} at ${time(Math.max(0, at))}`, [`${bytes(base)} arguments, constants and results`, `${bytes(held("hbm"))} scratch`, `SBUF ${bytes(held("sbuf"))} of ${bytes(machine.sbuf_partition_bytes)} per partition`, `PSUM ${bytes(held("psum"))} of ${bytes(machine.psum_partition_bytes)} per partition`,
      running.length && `kernel ${running.slice(0, 3).map((each) => each.name).join(", ")}`]);
  });
  cover.addEventListener("pointerleave", hideTip);
  picture.append(cover);
  const key = make("div", { class: "legend" }, [["accent", "arguments and constants"], ["vector", "results"], ["dma", "scratch between kernels"]].map(([name, title]) => make("span", {}, make("i", { style: `background:var(--${name})` }), title)));
  return [picture, key];
}
