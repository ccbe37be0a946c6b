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
const ratio = (part, whole) => (whole ? part / whole : 0);
const rate = (flop, ns) => (flop && ns ? `${flops(flop / ns * 1e9)}/s` : "–");
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
  return [make("span", { class: "bar", style: `width:${Math.max(1, 60 * value / (most || 1))}px;background:var(--${name})` }), percent(value)];
}
const dot = (name) => [make("span", { class: "dot", style: `background:var(--${name})` }), TITLES[name] ?? name];
