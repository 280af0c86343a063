// The codes of sentence models: a map, ways between codes and along them, neighbours, a diagnosis.
import { data, element, find, submitted, tried } from "./asking.js";
import { bars, scatter } from "./plot.js";

// A slider over sentences that were written beforehand.
function slider(label, input, into, words) {
  let steps = [];
  const show = () => {
    const step = steps[Number(input.value)];
    label.querySelector("output").textContent = words(step, Number(input.value), steps.length);
    into.textContent = step?.text ?? "";
  };
  input.addEventListener("input", show);
  return (found, at) => {
    steps = found;
    input.max = found.length - 1;
    input.value = at;
    label.hidden = false;
    show();
  };
}

const rebuilt = (record) => Object.entries(record).filter(([name]) => name !== "sentence");

async function neighbours(sentence) {
  const found = await data("/v1/latent/neighbours", { sentence, num: 8, unknown: true });
  return found.map((each) => element("li", {}, `${each.sentence}  (${each.distance.toFixed(3)})`));
}

async function showPoint({ label }) {
  const into = find("chosen");
  into.replaceChildren(element("p", { className: "sentence" }, label));
  const [record] = await data("/v1/latent/reconstruct", { sentences: [label], unknown: true });
  if (into.firstChild?.textContent !== label) return; // another was chosen meanwhile
  const rows = rebuilt(record).map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)));
  into.append(element("h3", {}, "Written anew from its code"), element("dl", {}, ...rows));
  const take = (name, id) => {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", () => { find(id).value = label; find(id).focus(); });
    return button;
  };
  into.append(take("Walk from here", "start"), take("From here", "a"), take("To here", "b"));
  const near = await neighbours(label);
  if (into.firstChild?.textContent !== label) return;
  into.append(element("h3", {}, "Neighbours among the training sentences"), element("ol", {}, ...near));
}

async function drawMap() {
  const [{ points, variance, units }] = await data("/v1/latent/map", { num: 500 });
  const share = variance.map((each) => `${(100 * each).toFixed(1)} %`);
  find("shares").textContent =
    `${points.length.toLocaleString("en")} sentences at the first two principal components of their codes, ` +
    `which have ${share.join(" and ")} of the variance. Click, or use the arrow keys.`;
  const labelled = points.map(({ x, y, sentence }) => ({ x, y, label: sentence }));
  scatter(find("points"), labelled, {
    label: "Map of the codes of validation sentences", xLabel: "first component", yLabel: "second component",
    choose: (point) => tried(() => showPoint(point)),
  });
  offer(units.map((each) => each.unit));
}

function offer(units) {
  find("unit").replaceChildren(...units.map((unit) => new Option(`${unit + 1}`, unit)));
}

async function diagnose() {
  find("verdict").textContent = "Reading validation sentences …";
  try {
    const [found] = await data("/v1/latent/diagnosis", {});
    // What one types stands between backticks.
    const parts = found.sentence.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
    find("verdict").replaceChildren(element("strong", {}, found.verdict), ": ", ...parts);
    const units = [...found.units].sort((a, b) => b.kl - a.kl);
    if (found.kl) {
      bars(find("units"), units.map(({ unit, kl, active }) => ({
        label: `unit ${unit + 1}: ${kl.toFixed(3)} nats, ${active ? "active" : "idle"}`, value: kl, on: active,
      })), { label: "KL by unit of the code", xLabel: "units, the largest first", yLabel: "KL, nats" });
    }
  } catch (error) {
    find("verdict").textContent = "";
    throw error;
  }
}

let ready = {};

async function interpolate() {
  const found = await data("/v1/latent/interpolate", { a: find("a").value, b: find("b").value, steps: 17, unknown: true });
  ready.between(found, 0);
}

async function walk() {
  if (!find("unit").options.length) await drawMap();
  const unit = Number(find("unit").value);
  const body = { sentence: find("start").value, unit, steps: 17, reach: Number(find("reach").value), unknown: true };
  const found = await data("/v1/latent/walk", body);
  const near = found.reduce((best, each, i) => (Math.abs(each.value - each.own) < Math.abs(found[best].value - found[best].own) ? i : best), 0);
  ready.along(found, near);
}

// Another model was chosen: nothing on the page is of it yet.
export function forget() {
  for (const id of ["points", "chosen", "units", "verdict", "between", "there", "neighbours", "unit"]) find(id).replaceChildren();
  find("way").hidden = find("walked").hidden = true;
}

export function begin() {
  ready = {
    between: slider(find("way"), find("step"), find("between"), (_, at, count) => `${at} of ${count - 1}`),
    along: slider(find("walked"), find("value"), find("there"), (step) =>
      step ? `${step.value.toFixed(3)} (its own: ${step.own.toFixed(3)})` : ""),
  };
  submitted(find("between-two").querySelector("form"), interpolate);
  submitted(find("along").querySelector("form"), walk);
  submitted(find("nearby").querySelector("form"), async () => {
    find("neighbours").replaceChildren(...(await neighbours(find("asked").value)));
  });
  find("draw").addEventListener("click", () => tried(drawMap));
  find("diagnose").addEventListener("click", () => tried(diagnose));
  find("drawn").addEventListener("click", () => tried(async () => {
    const [a, b] = await data("/v1/latent/sample", { num: 2, seed: Math.floor(Math.random() * 1e9) });
    find("a").value = a.text;
    find("b").value = b.text;
    await interpolate();
  }));
}
