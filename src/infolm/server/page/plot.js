// Small plots in SVG: curves, points and bars. Every one can be read by keyboard.
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 62, right: 12, top: 10, bottom: 38 };
const HEIGHT = 320;

function draw(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Round numbers from low to high, about `count` of them.
export function ticks(low, high, count = 6) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}

// An axis from data to pixels; by the logarithm where it is asked for, from 1 on.
function axis(low, high, from, to, logarithm = false) {
  const place = logarithm ? (value) => Math.log10(Math.max(value, 1)) : (value) => value;
  let [a, b] = [place(low), place(high)];
  if (a === b) [a, b] = [a - 0.5, b + 0.5];
  const scale = (value) => from + ((place(value) - a) / (b - a)) * (to - from);
  scale.ticks = logarithm
    ? ticks(Math.floor(a), Math.ceil(b), 8).filter((each) => Number.isInteger(each) && each >= a - 1e-9 && each <= b + 1e-9).map((each) => 10 ** each)
    : ticks(a, b);
  return scale;
}

export function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 7 : 4 });
}

function frame(into, label, x, y, xLabel, yLabel) {
  const width = Math.max(into.clientWidth, 260);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label, tabindex: 0 });
  const across = axis(...x.range, MARGIN.left, width - MARGIN.right, x.logarithm);
  const up = axis(...y.range, HEIGHT - MARGIN.bottom, MARGIN.top);
  for (const at of across.ticks) {
    svg.append(draw("line", { class: "grid", x1: across(at), x2: across(at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    svg.append(draw("text", { x: across(at), y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle" }, short(at)));
  }
  for (const at of up.ticks) {
    svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: up(at), y2: up(at) }));
    svg.append(draw("text", { x: MARGIN.left - 6, y: up(at) + 4, "text-anchor": "end" }, short(at)));
  }
  svg.append(draw("text", { x: (MARGIN.left + width) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xLabel));
  const middle = (HEIGHT - MARGIN.bottom) / 2;
  svg.append(draw("text", { transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
  return { svg, across, up, width };
}

function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

// Curves over steps. series: [{label, steps, values, colour (a number), thin}]. read: called with
// the step under the pointer, or that the arrow keys have reached.
export function curves(into, series, { xLabel, yLabel, logarithm = false, read }) {
  const steps = series.flatMap((each) => each.steps);
  const values = series.flatMap((each) => each.values);
  if (!steps.length) {
    into.replaceChildren();
    return;
  }
  const [low, high] = range(values);
  const room = (high - low || 1) * 0.04;
  const label = `${yLabel}: ${series.map((each) => `${each.label} ${short(each.values.at(-1) ?? NaN)}`).join(", ")}`;
  const before = into.contains(document.activeElement);
  const { svg, across, up, width } = frame(
    into, label, { range: range(steps), logarithm }, { range: [low - room, high + room] }, xLabel, yLabel,
  );
  for (const { steps, values, colour, thin } of series) {
    const points = steps.map((step, i) => `${across(step).toFixed(1)},${up(values[i]).toFixed(1)}`);
    svg.append(draw("polyline", { class: `curve c${colour % 8}${thin ? " thin" : ""}`, points: points.join(" ") }));
    if (steps.length < 40 && !thin) {
      steps.forEach((step, i) => svg.append(draw("circle", { class: `dot c${colour % 8}`, cx: across(step), cy: up(values[i]), r: 2.5 })));
    }
  }
  const cursor = draw("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
  svg.append(cursor);
  const known = [...new Set(steps)].sort((a, b) => a - b);
  let place = known.length - 1;
  const at = (index) => {
    place = Math.min(Math.max(index, 0), known.length - 1);
    const x = across(known[place]);
    for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) cursor.setAttribute(key, value);
    read?.(known[place]);
  };
  svg.addEventListener("pointermove", (event) => {
    const x = ((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width) * width;
    let best = 0;
    known.forEach((step, i) => { if (Math.abs(across(step) - x) < Math.abs(across(known[best]) - x)) best = i; });
    at(best);
  });
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: known.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    at(moves[event.key]);
  });
  into.replaceChildren(svg);
  if (before) svg.focus();
}

// The value of a curve at a step, or at the last before it.
export function valueAt({ steps, values }, step) {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return low ? values[low - 1] : undefined;
}

// Points to choose from, by pointer or by arrow keys. points: [{x, y, label}].
export function scatter(into, points, { label, xLabel, yLabel, choose }) {
  const { svg, across, up } = frame(
    into, label, { range: range(points.map((each) => each.x)) }, { range: range(points.map((each) => each.y)) }, xLabel, yLabel,
  );
  const dots = points.map((each) => {
    const dot = draw("circle", { class: "point", cx: across(each.x), cy: up(each.y), r: 4 });
    dot.append(draw("title", {}, each.label));
    svg.append(dot);
    return dot;
  });
  let now = -1;
  const go = (index) => {
    dots[now]?.classList.remove("chosen");
    now = index;
    dots[now].classList.add("chosen");
    choose(points[now]);
  };
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const scale = svg.viewBox.baseVal.width / box.width;
    let best = 0;
    const far = (i) => (across(points[i].x) - x * scale) ** 2 + (up(points[i].y) - y * scale) ** 2;
    points.forEach((_, i) => { if (far(i) < far(best)) best = i; });
    go(best);
  });
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in ways)) return;
    event.preventDefault();
    if (now < 0) return go(0);
    const [dx, dy] = ways[event.key];
    let best = now;
    let least = Infinity;
    points.forEach((each, i) => {
      const [x, y] = [across(each.x) - across(points[now].x), up(each.y) - up(points[now].y)];
      const along = x * dx + y * dy;
      const aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (along > 0 && along >= aside && along + 2 * aside < least) [best, least] = [i, along + 2 * aside];
    });
    if (best !== now) go(best);
  });
  into.replaceChildren(svg);
}

// Bars of numbers, the largest first. bars: [{label, value, on}].
export function bars(into, bars, { label, xLabel, yLabel }) {
  const most = Math.max(...bars.map((each) => each.value), 1e-6);
  const { svg, across, up } = frame(into, label, { range: [0.5, bars.length + 0.5] }, { range: [0, most * 1.05] }, xLabel, yLabel);
  const width = Math.max(across(2) - across(1) - 1, 1);
  bars.forEach((each, i) => {
    const bar = draw("rect", {
      class: each.on ? "bar" : "bar off", x: across(i + 1) - width / 2, y: up(each.value), width, height: up(0) - up(each.value),
    });
    bar.append(draw("title", {}, each.label));
    svg.append(bar);
  });
  into.replaceChildren(svg);
}
