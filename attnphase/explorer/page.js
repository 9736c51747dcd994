"use strict";

// Okabe and Ito's colours; dashes and markers tell the same apart, so that a grey print does
const LOOKS = {
  semantic: ["#0072B2", "solid", "circle"],
  positional: ["#D55E00", "dash", "square"],
  uninformed: ["#009E73", "dot", "triangle-up"],
  mixed: ["#CC79A7", "dashdot", "diamond"],
  given: ["#555555", "longdash", "triangle-down"],
};
const OTHER_LOOKS = Object.values(LOOKS);
const DOUBT_MARKS = [null, null, "circle-open", "circle", "x-thin-open", "cross-thin-open"];
const MOST_MARKS = 1500;
const CURVES = 4;
const FIRST_ACROSS = ["alpha", "attended"];
// of Plotly's buttons one sends the numbers to a site, and two select what nothing is done with
const BUTTONS = {
  responsive: true,
  displaylogo: false,
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"],
};

const what = JSON.parse(document.getElementById("what").textContent);
const place = {}; // what is chosen on every axis, by its name: a position in the axis' values
const choice = { quantity: null, across: null, up: null, shown: "value", series: null };
let table, runs;

// --- numbers ---------------------------------------------------------------------------------------------------------

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

function numbersOf(buffer) {
  const planes = new Uint8Array(buffer);
  const count = planes.length / 4;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++) {
    for (let i = 0; i < count; i++) bytes[4 * i + plane] = planes[plane * count + i];
  }
  return new Float32Array(bytes.buffer);
}

function tableOf(described, numbers, start) {
  const axes = new Map(described.axes.map((axis) => [axis.name, axis]));
  let at = start;
  const quantities = new Map();
  for (const one of described.quantities) {
    const values = numbers.subarray(at, at + one.size);
    at += one.size;
    const errors = one.errors ? numbers.subarray(at, at + one.size) : null;
    at += one.errors ? one.size : 0;
    quantities.set(one.name, { ...one, values, errors });
  }
  return { kind: described.kind, axes, quantities, end: at };
}

function offset(of, one, where) {
  let at = 0;
  for (const name of one.axes) at = at * of.axes.get(name).values.length + (where[name] ?? 0);
  return at;
}

function valueAt(of, name, where) {
  const one = of.quantities.get(name);
  if (!one) return [NaN, NaN];
  const at = offset(of, one, where);
  return [one.values[at], one.errors ? one.errors[at] : NaN];
}

// --- words -----------------------------------------------------------------------------------------------------------

const GREEK = { alpha: "α", omega: "ω", theta: "θ", sigma: "σ", lambda: "λ", "|theta|": "|θ|", theta_hat: "θ̂", beta: "β" };
const symbol = (name) => GREEK[name] ?? name;
const worded = (value) => (typeof value === "number" ? String(+value.toPrecision(6)) : String(value));

function numberText(value, error) {
  if (!Number.isFinite(value)) return "–";
  if (!(Number.isFinite(error) && error > 1e-12 * Math.abs(value))) return String(+value.toPrecision(6));
  const small = Math.max(Math.abs(value), error) < 1e-4;
  const power = small ? Math.floor(Math.log10(Math.max(Math.abs(value), error))) : 0;
  const scale = 10 ** power;
  const digits = Math.min(Math.max(1 - Math.floor(Math.log10(error / scale)), 0), 12);
  const text = `${(value / scale).toFixed(digits)} ± ${(error / scale).toFixed(digits)}`;
  return small ? `(${text})e${power}` : text;
}

function shownText(name, where) {
  const one = table.quantities.get(name);
  const [value, error] = valueAt(table, name, where);
  if (one.meanings.length) return Number.isFinite(value) ? (one.meanings[value] ?? "").replaceAll("_", " ") : "–";
  return numberText(value, error);
}

function doubtText(where) {
  const [status] = valueAt(table, "status", where);
  const meanings = table.quantities.get("status")?.meanings ?? [];
  const words = meanings.length && Number.isFinite(status) ? [meanings[status]] : [];
  const [doubt] = valueAt(table, "doubt", where);
  if (doubt > 0) words.push(table.quantities.get("doubt").meanings[doubt]);
  return words.join("; ").replaceAll("_", " ");
}

const look = (axis, i) => LOOKS[axis.values[i]] ?? OTHER_LOOKS[i % OTHER_LOOKS.length];

// Plotly reads tags and entities in every text: those of a dataset are shown as they are, and line breaks are ours
function drawn(part) {
  if (typeof part === "string") return part.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("\n", "<br>");
  if (Array.isArray(part)) return part.map(drawn);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, drawn(value)]));
}

const plot = (element, traces, layout, buttons) => Plotly.react(element, drawn(traces), drawn(layout), buttons);

// --- what is chosen --------------------------------------------------------------------------------------------------

const numeric = (axis) => axis.role === "field" && typeof axis.values[0] === "number" && axis.values.length > 1;
const free = (axis) => axis.role === "field" && axis.values.length > 1;
const seriesAxis = () => [...table.axes.values()].find((axis) => axis.role === "series" && axis.values.length > 1);

function chooseFirst() {
  const long = [...table.axes.values()].filter(numeric);
  const first = long.find((axis) => FIRST_ACROSS.includes(axis.name)) ?? long[0];
  const others = long.filter((axis) => axis !== first);
  choice.across = first.name;
  choice.up = (others.find((axis) => axis.name === "token") ?? others[0])?.name ?? null;
  choice.series = seriesAxis()?.name ?? null;
  for (const axis of table.axes.values()) place[axis.name] = 0;
  for (const axis of long) place[axis.name] = Math.floor(axis.values.length / 2);
  choice.quantity = [...table.quantities.keys()].find((name) => hasMap(name)) ?? table.quantities.keys().next().value;
}

function hasMap(name) {
  const axes = table.quantities.get(name).axes;
  return axes.includes(choice.across) && (choice.up === null || axes.includes(choice.up));
}

function selectBox(label, options, value, onChange, id) {
  const box = document.createElement("label");
  const select = document.createElement("select");
  box.append(label, select);
  select.id = id;
  for (const [key, text] of options) select.append(new Option(text, key, false, key === value));
  select.addEventListener("change", () => onChange(select.value));
  return box;
}

function drawControls() {
  const controls = document.getElementById("controls");
  const active = document.activeElement?.id;
  const quantities = [...table.quantities.values()].filter((one) => one.name !== "doubt");
  const long = [...table.axes.values()].filter(numeric).map((axis) => [axis.name, `${symbol(axis.name)}: ${axis.label}`]);
  const boxes = [
    selectBox("variable", quantities.map((one) => [one.name, `${symbol(one.name)}: ${one.label}`.slice(0, 90)]),
      choice.quantity, (value) => { choice.quantity = value; draw(); }, "choose-quantity"),
    selectBox("across", long, choice.across, (value) => {
      if (value === choice.up) choice.up = choice.across;
      choice.across = value;
      draw();
    }, "choose-across"),
  ];
  if (long.length > 1) {
    boxes.push(selectBox("up", long, choice.up, (value) => {
      if (value === choice.across) choice.across = choice.up;
      choice.up = value;
      draw();
    }, "choose-up"));
  }
  const axis = seriesAxis();
  if (axis) {
    const shown = axis.values.map((value, i) => [String(i), value]);
    for (let i = 1; i < axis.values.length; i++) shown.push([`0-${i}`, `${axis.values[0]} − ${axis.values[i]}`]);
    boxes.push(selectBox(`${axis.name} of the map`, shown, choice.pair ?? String(place[axis.name]), (value) => {
      choice.pair = value.includes("-") ? value : null;
      place[axis.name] = Number(value.split("-")[0]);
      draw();
    }, "choose-series"));
  }
  controls.replaceChildren(...boxes);
  drawSliders();
  if (active) document.getElementById(active)?.focus();
}

function drawSliders() {
  const sliders = document.getElementById("sliders");
  const active = document.activeElement?.id;
  const boxes = [];
  for (const axis of table.axes.values()) {
    if (axis.role === "series" || axis.values.length < 2 || axis.name === choice.across || axis.name === choice.up) continue;
    if (axis.role === "entry" && !table.quantities.get(choice.quantity).axes.includes(axis.name)) continue;
    const box = document.createElement("label");
    const slider = document.createElement("input");
    const text = document.createElement("span");
    const say = () => { text.textContent = `${symbol(axis.name)} = ${worded(axis.values[place[axis.name]])}`; };
    Object.assign(slider, { type: "range", min: 0, max: axis.values.length - 1, step: 1, value: place[axis.name] });
    slider.id = `slide-${axis.name}`;
    slider.addEventListener("input", () => { place[axis.name] = Number(slider.value); say(); draw(false); });
    say();
    box.append(text, slider);
    boxes.push(box);
  }
  sliders.replaceChildren(...boxes);
  if (active) document.getElementById(active)?.focus();
}

// --- the map ---------------------------------------------------------------------------------------------------------

function plane(pick) {
  const across = table.axes.get(choice.across).values;
  const up = table.axes.get(choice.up).values;
  return up.map((_, j) => across.map((_, i) => pick({ ...place, [choice.across]: i, [choice.up]: j })));
}

function pairOf(where) {
  if (!choice.pair) return null;
  const [a, b] = choice.pair.split("-").map(Number);
  return [{ ...where, [choice.series]: a }, { ...where, [choice.series]: b }];
}

function mapValue(name, where) {
  const pair = pairOf(where);
  if (!pair) return valueAt(table, name, where);
  const [[a, da], [b, db]] = pair.map((one) => valueAt(table, name, one));
  return [a - b, Math.hypot(da, db)];
}

function hoverText(where) {
  const one = table.quantities.get(choice.quantity);
  const lines = [choice.across, choice.up].filter(Boolean)
    .map((name) => `${symbol(name)} = ${worded(table.axes.get(name).values[where[name]])}`);
  const pair = pairOf(where);
  const text = one.meanings.length && !pair ? shownText(one.name, where) : numberText(...mapValue(one.name, where));
  lines.push(`${symbol(one.name)} = ${text}`);
  const axis = seriesAxis();
  for (const each of pair ?? [where]) {
    const doubt = doubtText(each);
    if (doubt) lines.push(axis ? `${axis.values[each[axis.name]]}: ${doubt}` : doubt);
  }
  return lines.join("\n");
}

function range(values) {
  const known = values.flat().filter(Number.isFinite).sort((a, b) => a - b);
  if (!known.length) return [0, 1];
  return [known[0], known[known.length - 1]];
}

const LINES = [["solid", "#000000"], ["dash", "#000000"], ["dot", "#000000"], ["dashdot", "#000000"]];

function zeroLine(z, name, k) {
  const [low, high] = range(z);
  if (!(low < 0 && high > 0)) return [];
  const [dash, color] = LINES[k % LINES.length];
  const common = { x: table.axes.get(choice.across).values, y: table.axes.get(choice.up).values, z, type: "contour" };
  const shape = { autocontour: false, contours: { start: 0, end: 0, size: 1, coloring: "none" }, showscale: false };
  const line = { color, dash, width: 2 };
  return [{ ...common, ...shape, line, hoverinfo: "skip", name, showlegend: true }];
}

function boundaries() {
  const found = [];
  const axis = seriesAxis();
  const has = (name) => table.quantities.has(name) && hasMap(name);
  if (axis?.name === "branch" && has("training_loss")) {
    const named = (word) => axis.values.indexOf(word);
    const [semantic, positional] = [named("semantic"), named("positional")];
    if (semantic >= 0 && positional >= 0) {
      const on = (where, i) => valueAt(table, "training_loss", { ...where, branch: i })[0];
      found.push(...zeroLine(plane((where) => on(where, semantic) - on(where, positional)), "losses cross", 0));
    }
    if (semantic >= 0 && has("test_error") && table.quantities.has("linear_test_error")) {
      const excess = (where) => valueAt(table, "test_error", where)[0] - valueAt(table, "linear_test_error", where)[0];
      const z = plane((where) => excess({ ...where, branch: semantic }));
      found.push(...zeroLine(z, "semantic test error crosses the linear predictor's", 1));
    }
  }
  if (table.quantities.has("on_branch") && hasMap("on_branch")) {
    const ends = (where) => {
      const [value] = valueAt(table, "on_branch", where);
      return Number.isFinite(value) ? (value === 1 ? 0.5 : -0.5) : NaN;
    };
    const label = axis ? `${axis.values[place[axis.name]]} branch ends` : "branch ends";
    found.push(...zeroLine(plane(ends), label, 2));
  }
  const others = [...table.axes.values()].filter((axis) => free(axis) && ![choice.across, choice.up].includes(axis.name));
  if (choice.across === "alpha" && others.every((axis) => standsAt(axis, what.lines_at[axis.name]))) {
    what.lines.filter((line) => line.along === choice.up).forEach((line, k) => found.push({
      x: line.values, y: line.at, type: "scatter", mode: "lines+markers", name: line.name, marker: { size: 5 },
      text: line.values.map((value) => `${line.name} = ${worded(value)}`), hoverinfo: "text",
      error_x: { array: line.errors, thickness: 1 }, line: { color: "#666666", dash: LINES[k % LINES.length][0], width: 2 },
    }));
  }
  return found;
}

function doubtMarks() {
  if (!table.quantities.has("doubt")) return [];
  const words = table.quantities.get("doubt").meanings;
  const found = words.map(() => ({ x: [], y: [] }));
  const across = table.axes.get(choice.across).values;
  const up = table.axes.get(choice.up).values;
  plane((where) => {
    const doubts = (pairOf(where) ?? [where]).map((one) => valueAt(table, "doubt", one)[0]);
    const doubt = Math.max(...doubts.filter(Number.isFinite));
    if (doubt > 1) {
      found[doubt].x.push(across[where[choice.across]]);
      found[doubt].y.push(up[where[choice.up]]);
    }
  });
  return found.flatMap((one, doubt) => {
    if (!one.x.length || !DOUBT_MARKS[doubt]) return [];
    const step = Math.ceil(one.x.length / MOST_MARKS);
    const thin = (list) => list.filter((_, i) => i % step === 0);
    return [{
      x: thin(one.x), y: thin(one.y), type: "scatter", mode: "markers", name: words[doubt], hoverinfo: "skip",
      marker: { symbol: DOUBT_MARKS[doubt], size: doubt === 3 ? 3 : 7, color: "#ffffff", line: { color: "#000000", width: 1 } },
    }];
  });
}

function layoutOf(across, up) {
  const title = (name) => ({ text: `${symbol(name)}${name === symbol(name) ? "" : ` (${name})`}` });
  return {
    margin: { l: 62, r: 10, t: 30, b: 46 }, font: { size: 13 }, hovermode: "closest", dragmode: "pan",
    xaxis: { title: title(across), zeroline: false, automargin: true }, yaxis: { title: up, zeroline: false },
    legend: { orientation: "h", y: -0.2, font: { size: 11 } }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
  };
}

function drawMap() {
  const element = document.getElementById("map");
  const main = document.querySelector("main");
  const possible = choice.up !== null;
  element.parentElement.hidden = !possible;
  main.classList.toggle("flat", !possible);
  if (!possible) return;
  const key = document.getElementById("key");
  const one = table.quantities.get(choice.quantity);
  const z = plane((where) => mapValue(one.name, where)[0]);
  const [low, high] = range(z);
  const signed = low < 0 && high > 0;
  const largest = Math.max(-low, high);
  const colours = signed ? { colorscale: "PuOr", zmin: -largest, zmax: largest, reversescale: false } : { colorscale: "Cividis" };
  const heat = {
    x: table.axes.get(choice.across).values, y: table.axes.get(choice.up).values, z, type: "heatmap", ...colours,
    text: plane(hoverText), hoverinfo: "text", colorbar: { thickness: 14 }, hoverongaps: false,
  };
  const chosen = {
    x: [table.axes.get(choice.across).values[place[choice.across]]], y: [table.axes.get(choice.up).values[place[choice.up]]],
    type: "scatter", mode: "markers", name: "chosen", showlegend: false, hoverinfo: "skip",
    marker: { symbol: "cross-open", size: 17, color: "#000000", line: { width: 3, color: "#ffffff" } },
  };
  const rim = { ...chosen, marker: { symbol: "cross-open", size: 17, color: "#000000", line: { width: 1.4, color: "#000000" } } };
  const layout = layoutOf(choice.across, { text: symbol(choice.up) });
  Object.assign(layout.legend, { yref: "container", y: 0, yanchor: "bottom" }); // below the axis at any width
  const of = seriesAxis() && one.axes.includes(choice.series)
    ? ` (${choice.pair ? document.getElementById("choose-series").selectedOptions[0].text : seriesAxis().values[place[choice.series]]})`
    : "";
  layout.title = { text: `${symbol(one.name)}${of}`, font: { size: 14 }, x: 0.02, xanchor: "left" };
  plot(element, [heat, ...boundaries(), ...doubtMarks(), chosen, rim], layout, { ...BUTTONS, scrollZoom: true });
  key.textContent = hasMap(one.name) ? "Click the map, or move the cross by the arrow keys." :
    `${symbol(one.name)} does not depend on ${[choice.across, choice.up].filter((name) => !one.axes.includes(name)).map(symbol).join(" and ")}.`;
  if (!element.dataset.listens) {
    element.dataset.listens = "yes";
    element.on("plotly_click", (event) => {
      const point = event.points.find((each) => each.data.type === "heatmap") ?? event.points[0];
      choose(nearest(choice.across, point.x), nearest(choice.up, point.y));
    });
    element.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(place[choice.across] + step[0], place[choice.up] + step[1]);
    });
  }
}

function nearest(name, value) {
  const values = table.axes.get(name).values;
  return values.reduce((best, each, i) => (Math.abs(each - value) < Math.abs(values[best] - value) ? i : best), 0);
}

function choose(i, j) {
  const within = (name, at) => Math.min(Math.max(at, 0), table.axes.get(name).values.length - 1);
  place[choice.across] = within(choice.across, i);
  place[choice.up] = within(choice.up, j);
  draw(false);
}

// --- the curves ------------------------------------------------------------------------------------------------------

function curveNames() {
  const able = [...table.quantities.values()]
    .filter((one) => one.axes.includes(choice.across) && !one.meanings.length).map((one) => one.name);
  const first = table.quantities.get(choice.quantity).axes.includes(choice.across) ? [choice.quantity] : [];
  return [...new Set([...first.filter((name) => able.includes(name)), ...able])].slice(0, CURVES);
}

function curvesOf(name, k) {
  const x = table.axes.get(choice.across).values;
  const axis = seriesAxis();
  const one = table.quantities.get(name);
  const several = axis && one.axes.includes(axis.name) ? axis.values.map((_, i) => i) : [null];
  const [xaxis, yaxis] = [`x${k + 1}`, `y${k + 1}`];
  return several.flatMap((i) => {
    const where = (j) => ({ ...place, ...(i === null ? {} : { [axis.name]: i }), [choice.across]: j });
    const found = x.map((_, j) => valueAt(table, name, where(j)));
    const [colour, dash, marker] = i === null ? ["#333333", "solid", "circle"] : look(axis, i);
    const doubts = x.map((_, j) => valueAt(table, "doubt", where(j))[0]);
    const label = i === null ? symbol(name) : String(axis.values[i]);
    const common = { x, xaxis, yaxis, legendgroup: label };
    const low = found.map(([value, error]) => value - (Number.isFinite(error) ? error : 0));
    const high = found.map(([value, error]) => value + (Number.isFinite(error) ? error : 0));
    const band = one.errors ? [
      { ...common, y: low, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      { ...common, y: high, mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: `${colour}44`, hoverinfo: "skip", showlegend: false },
    ] : [];
    const text = found.map(([value, error], j) => {
      const doubt = doubtText(where(j));
      return [label, `${symbol(choice.across)} = ${worded(x[j])}`, `${symbol(name)} = ${numberText(value, error)}`, doubt].filter(Boolean).join("\n");
    });
    // hollow where the point is doubtful
    const color = doubts.map((doubt) => (doubt > 0 ? "#ffffff" : colour));
    return [...band, {
      ...common, y: found.map(([value]) => value), mode: "lines+markers", name: label, showlegend: k === 0, text,
      hoverinfo: "text", line: { color: colour, dash, width: 2 },
      marker: { symbol: marker, size: x.length > 60 ? 3 : 6, color, line: { color: colour, width: 1 } },
    }];
  });
}

// whether what has this value of an axis belongs to the chosen place; what says none belongs everywhere
function standsAt(axis, value) {
  const here = axis.values[place[axis.name]];
  return value === undefined || value === null || value === here || Math.abs(value - here) < 1e-9 * Math.abs(here);
}

// where runs stand along the curves: several places, or the only one
const runsAcross = () => runs.axes.get(choice.across)?.values ?? [what.runs_at[choice.across]];

function runsFit() {
  if (!runs || !runsAcross().every(Number.isFinite)) return [false, "The runs do not say where they stand along the curves."];
  for (const axis of table.axes.values()) {
    if (!free(axis) || axis.name === choice.across) continue;
    const there = runs.axes.has(axis.name) ? runs.axes.get(axis.name).values : [what.runs_at[axis.name]];
    if (!there.some((value) => standsAt(axis, value))) {
      return [false, `There are no runs at ${symbol(axis.name)} = ${worded(axis.values[place[axis.name]])}.`];
    }
  }
  return [true, ""];
}

function runsOf(name, k) {
  const one = runs.quantities.get(name);
  if (!one || !runsFit()[0]) return [];
  const x = runsAcross();
  const starts = runs.axes.get("start")?.values ?? [what.runs_at.start];
  const dimension = (runs.axes.get("dimension")?.values.length ?? 1) - 1;
  const d = runs.axes.get("dimension")?.values[dimension] ?? what.runs_at.dimension;
  return starts.map((start, i) => {
    const where = (j) => {
      const at = { start: i, dimension, [choice.across]: j };
      for (const axis of runs.axes.values()) {
        if (axis.name in at || !table.axes.has(axis.name)) continue;
        const value = table.axes.get(axis.name).values[place[axis.name]];
        at[axis.name] = Math.max(axis.values.findIndex((each) => Math.abs(each - value) < 1e-9 * Math.abs(value)), 0);
      }
      return at;
    };
    const found = x.map((_, j) => valueAt(runs, name, where(j)));
    const [colour, , marker] = LOOKS[start] ?? OTHER_LOOKS[i % OTHER_LOOKS.length];
    return {
      x, y: found.map(([value]) => value), xaxis: `x${k + 1}`, yaxis: `y${k + 1}`, mode: "markers",
      name: ["runs", start, d && `d = ${d}`].filter(Boolean).join(", "), showlegend: k === 0, legendgroup: `runs ${start}`,
      error_y: { array: found.map(([, error]) => error), thickness: 1.2, color: colour },
      marker: { symbol: `${marker}-open`, size: 9, color: colour, line: { width: 1.6 } },
      text: found.map(([value, error], j) => [`runs ${start ?? ""}`, `${symbol(choice.across)} = ${worded(x[j])}`,
        `${symbol(name)} = ${numberText(value, error)}`].join("\n")),
      hoverinfo: "text",
    };
  });
}

function drawCurves() {
  const names = curveNames();
  const traces = names.flatMap((name, k) => [...curvesOf(name, k), ...(runs ? runsOf(name, k) : [])]);
  const layout = layoutOf(choice.across, undefined);
  delete layout.yaxis;
  const here = table.axes.get(choice.across).values[place[choice.across]];
  const element = document.getElementById("curves");
  const columns = element.clientWidth < 520 ? 1 : Math.min(names.length, 2);
  const rows = Math.ceil(names.length / columns);
  element.classList.toggle("tall", rows > 2);
  layout.legend.y = rows > 2 ? -0.06 : -0.2;
  layout.grid = { rows, columns, pattern: "independent", xgap: 0.22, ygap: 0.2 };
  layout.shapes = names.map((_, k) => ({
    type: "line", xref: `x${k + 1}`, yref: `y${k + 1} domain`, x0: here, x1: here, y0: 0, y1: 1, line: { color: "#000000", width: 1, dash: "dot" },
  }));
  names.forEach((name, k) => {
    layout[`xaxis${k ? k + 1 : ""}`] = { title: { text: k >= names.length - columns ? symbol(choice.across) : "" }, zeroline: false };
    layout[`yaxis${k ? k + 1 : ""}`] = { title: { text: symbol(name), standoff: 4 }, zeroline: false, exponentformat: "power" };
  });
  const fixed = [...table.axes.values()].filter((axis) => free(axis) && axis.name !== choice.across);
  layout.title = { text: fixed.map((axis) => `${symbol(axis.name)} = ${worded(axis.values[place[axis.name]])}`).join(", "), font: { size: 14 }, x: 0.02, xanchor: "left" };
  plot(element, traces, layout, BUTTONS);
  const words = ["Bands and bars are one standard error.", table.quantities.has("doubt") ? "Hollow: doubtful points." : "", runs ? runsFit()[1] : ""];
  document.getElementById("note").textContent = words.filter(Boolean).join(" ");
}

// --- the chosen point ------------------------------------------------------------------------------------------------

function drawValues() {
  const axis = seriesAxis();
  const columns = axis ? axis.values.map((_, i) => ({ ...place, [axis.name]: i })) : [place];
  const chosen = [...table.axes.values()].filter(free)
    .map((one) => `${symbol(one.name)} = ${worded(one.values[place[one.name]])}`).join(", ");
  const row = (cells, tag) => {
    const line = document.createElement("tr");
    cells.forEach((text, i) => {
      const cell = document.createElement(i === 0 || tag === "th" ? "th" : "td");
      cell.textContent = text;
      if (i === 0) cell.scope = "row";
      line.append(cell);
    });
    return line;
  };
  const head = document.createElement("thead");
  head.append(row(["", ...(axis ? axis.values : ["value"])], "th"));
  const body = document.createElement("tbody");
  for (const one of table.quantities.values()) {
    const line = row([symbol(one.name), ...columns.map((where) => shownText(one.name, where))]);
    line.title = one.label;
    body.append(line);
  }
  const whole = document.createElement("table");
  whole.append(head, body);
  document.getElementById("values").replaceChildren(whole);
  const name = choice.quantity;
  document.getElementById("said").textContent =
    `${chosen}: ${symbol(name)} = ${columns.map((where, i) => `${shownText(name, where)}${axis ? ` (${axis.values[i]})` : ""}`).join(", ")}`;
}

function draw(controls = true) {
  if (controls) drawControls();
  drawMap();
  drawCurves();
  drawValues();
}

async function begin() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await unpacked("plotly"));
  document.head.append(script);
  const numbers = numbersOf(await unpacked("numbers"));
  table = tableOf(what.table, numbers, 0);
  runs = what.runs ? tableOf(what.runs, numbers, table.end) : null;
  document.getElementById("problem").textContent = what.problem;
  document.getElementById("made").textContent = what.made;
  chooseFirst();
  draw();
  document.body.dataset.ready = "yes";
}

begin().catch((error) => {
  document.getElementById("said").textContent = `This page cannot be shown: ${error.message}. A browser of 2023 or later can.`;
  throw error;
});
