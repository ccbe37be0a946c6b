// The page of a comparison: what changed by a threshold or more, costliest programs first

const THRESHOLDS = [0, 0.01, 0.05, 0.1];
const difference = (row) => (row.after ?? 0) - (row.before ?? 0);
const oneSided = (row) => !row.before || !row.after;
function matters(row, least) { // as Comparison.changed
  if (!oneSided(row) && !/_percent$/.test(row.name)) return Math.abs(row.after / row.before - 1) >= least;
  return (oneSided(row) && difference(row) !== 0) || Math.abs(difference(row)) >= least;
}
function change(row) {
  if (oneSided(row)) return row.after ? "new" : row.before ? "gone" : "";
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
const columns = (show) => [
  { title: "Before", of: (r) => r.before, show: (r) => show(r, r.before) }, { title: "After", of: (r) => r.after, show: (r) => show(r, r.after) },
  { title: "Change", of: (r) => (oneSided(r) ? null : r.after / r.before - 1), show: change },
];
function renderChanges(least) {
  const totals = data.metrics.filter((row) => row.name === "total_time"), of = new Map(totals.map((row) => [row.program, row]));
  const weight = (name) => Math.max(of.get(name)?.before ?? 0, of.get(name)?.after ?? 0);
  const changed = data.metrics.filter((row) => matters(row, least));
  const names = [...new Set(changed.map((row) => row.program))].sort((a, b) => weight(b) - weight(a));
  const lines = data.lines.filter((row) => difference(row) !== 0 && Math.abs(difference(row)) >= least * weight(row.program) * 1e9);
  if (!names.length && !lines.length) return [section("unchanged", "Nothing changed", `No program, metric or line differs by ${percent(least)} or more.`)];
  const rows = totals.filter((row) => matters(row, least)), same = totals.length - rows.length;
  const parts = [section("programs", "Time of one run", same ? `${counted(same, "program")} took as long as before.` : null, sortable([
    { title: "Program", text: true, of: (r) => r.program }, ...columns((r, value) => metric(r.name, value)),
    { title: "", of: (r) => Math.max(r.before ?? 0, r.after ?? 0), show: (r) => pairBars(r, weight(names[0])) },
  ], rows, { by: 4 }))];
  for (const name of names.slice(0, 8)) {
    const total = of.get(name), own = changed.filter((row) => row.program === name);
    parts.push(section(`metrics-${name}`, name, total && !oneSided(total) ? `${metric("total_time", total.before)} before, ${metric("total_time", total.after)} after.` : null,
      sortable([{ title: "Metric", text: true, of: (r) => r.name }, ...columns((r, value) => metric(r.name, value))], own, { by: null })));
  }
  parts.push(section("lines", "Cost by source line", "Of one run; largest changes first.", sortable([
    { title: "Line", text: true, of: (r) => r.name, show: (r) => make("code", {}, file(r.name)), title_of: (r) => r.name },
    { title: "Program", text: true, of: (r) => r.program }, ...columns((r, value) => (value === null ? "–" : time(value))),
    { title: "Difference", of: (r) => Math.abs(difference(r)), show: (r) => time(difference(r)) },
  ], lines, { by: 5 })));
  return parts;
}
function renderComparison(page) {
  const [before, after] = data.titles, body = make("div", { id: "changes" });
  const choose = make("select", { id: "threshold", "aria-label": "Smallest change shown", onchange: () => body.replaceChildren(...renderChanges(Number(choose.value))) },
    THRESHOLDS.map((least) => make("option", { value: least, selected: least === 0.01 ? "" : undefined }, least ? `changes of ${percent(least)} or more` : "all changes")));
  page.append(make("header", {}, make("h1", {}, "Before and after"), make("p", {}, `before: ${before} · after: ${after} · simulated`)), make("div", { class: "tools" }, choose), body);
  body.replaceChildren(...renderChanges(0.01));
}
