// The page of a server: which part of it is shown, and what all parts have in common.
import { ask, chosen, find, tried } from "./asking.js";
import * as codes from "./codes.js";
import * as runs from "./runs.js";
import * as surprisal from "./surprisal.js";
import * as writing from "./writing.js";

let models = [];
let watching = false;

function show() {
  const model = models.find((each) => each.id === chosen());
  const answers = model ? model.answers : [];
  find("write").hidden = find("score").hidden = !answers.includes("completions");
  find("latent").hidden = !answers.includes("latent/interpolate");
  find("none").hidden = !model || answers.length !== 1;
}

// #models or #runs; without either what there is, models first.
function turn() {
  const place = location.hash.slice(1);
  const atRuns = watching && (place === "runs" || !models.length);
  find("models").hidden = find("which").hidden = atRuns;
  find("runs").hidden = !atRuns;
  for (const link of find("places").children) {
    if (link.hash === (atRuns ? "#runs" : "#models")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (atRuns) runs.show();
}

async function load() {
  models = (await (await ask("/v1/models")).json()).data;
  watching = (await (await ask("/v1/runs")).json()).watching;
  find("model").replaceChildren(...models.map((each) => new Option(each.id, each.id)));
  find("places").hidden = !watching || !models.length;
  show();
  turn();
}

for (const slider of document.querySelectorAll(".row input[type=range]")) {
  const shown = () => (slider.parentElement.querySelector("output").textContent = slider.value);
  slider.addEventListener("input", shown);
  shown();
}
for (const part of [writing, surprisal, codes, runs]) part.begin();
find("model").addEventListener("change", () => {
  codes.forget();
  show();
});
find("key").addEventListener("change", () => tried(load));
window.addEventListener("hashchange", turn);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") writing.stop();
  if (event.key === "Enter" && event.ctrlKey) document.activeElement.form?.requestSubmit();
});
tried(load);
