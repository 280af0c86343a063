// The page: text in, shaded words out, one panel a model.
import { arraysOf, unpacked } from "./arrays.js";
import { modelOf } from "./models.js";
import { Reader } from "./scoring.js";
import { Tokenizer } from "./tokens.js";

const DARKEST = 16; // bits of surprisal, and more, that have the strongest shade
const SHADES = {
  light: [[255, 255, 255], [254, 217, 166], [244, 140, 80], [200, 50, 35], [110, 5, 15]],
  dark: [[30, 32, 38], [92, 52, 24], [160, 66, 26], [226, 104, 62], [255, 196, 150]],
};
const SLICE = 25; // milliseconds of work before the page may draw and hear keys
const darkness = matchMedia("(prefers-color-scheme: dark)");

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const panels = [];
let texts = []; // the lines that are scored
let turn = 0; // of the newest scoring: older ones stop
let chosen = null; // sentence and word that the detail shows
let writing = null;

/** An element with attributes and children; text is always text. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const perUnit = () => (at("unit").value === "bits" ? 1 / Math.LN2 : 1);
const number = (id) => {
  const { min, max, value, defaultValue } = at(id);
  const given = value === "" || Number.isNaN(+value) ? +defaultValue : +value;
  return Math.min(Math.max(given, +min), max === "" ? Infinity : +max);
};

function settings() {
  const cache = { window: number("window"), weight: number("weight"), flatness: number("flatness") };
  return { carried: at("carried").checked, cache: at("cache").checked ? cache : null };
}

/** Background and letters of a surprisal in nats: of black and white what is easier to read. */
function shade(surprisal) {
  const shades = SHADES[darkness.matches ? "dark" : "light"];
  const place = Math.min(Math.max(surprisal / Math.LN2 / DARKEST, 0), 1) * (shades.length - 1);
  const left = Math.min(Math.floor(place), shades.length - 2);
  const colour = shades[left].map((a, i) => Math.round(a + (place - left) * (shades[left + 1][i] - a)));
  const [r, g, b] = colour.map((c) => (c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return { background: `rgb(${colour})`, color: light > 0.179 ? "#000" : "#fff" };
}

/** Lets the page draw and hear keys. A timer waits some milliseconds more. */
const rest = () => globalThis.scheduler?.yield?.() ?? new Promise((resolve) => setTimeout(resolve));

/** Gives way to the page now and then; throws where a newer scoring has begun. */
function pauser(own) {
  let since = performance.now();
  return async () => {
    if (performance.now() - since > SLICE) {
      await rest();
      since = performance.now();
    }
    if (own !== turn) throw new Superseded();
  };
}
class Superseded extends Error {}

// -- panels ----------------------------------------------------------------------------------

async function open() {
  const tokenizers = data.tokenizers.map((described) => new Tokenizer(described));
  for (const [i, { name, about }] of data.models.entries()) {
    const body = element("div", { class: "text", role: "listbox", "aria-label": `Words by ${name}` });
    const total = element("p", { class: "total" });
    const heading = element("h2", {}, name);
    const frame = element("article", { class: "panel", "aria-label": name }, heading);
    frame.append(element("p", { class: "about" }, about), body, total);
    at("panels").append(frame);
    at("writer").append(element("option", { value: i }, name));
    panels.push({ name, body, total, scored: [], reader: null, read: "", seconds: 0 });
    body.addEventListener("keydown", moved);
  }
  for (const [i, panel] of panels.entries()) {
    const { model, arrays, tokenizer } = data.models[i];
    const stored = at(`arrays-${i}`);
    const buffer = await unpacked(stored.textContent);
    stored.remove();
    panel.reader = new Reader(modelOf(model, arraysOf(buffer, arrays)), tokenizers[tokenizer]);
    await refresh();
  }
  document.body.dataset.ready = "yes";
}

/** What a panel's numbers and shades depend on. */
const asked = () => JSON.stringify([at("text").value, settings(), at("unit").value, darkness.matches]);

/** Score the text under every open model that has not read it, and draw what is known as soon as it is. */
async function refresh() {
  const own = ++turn;
  const now = asked();
  document.body.dataset.scored = "no";
  texts = at("text").value.split("\n").filter((line) => line.trim());
  const pause = pauser(own);
  try {
    for (const panel of panels.filter(({ reader, read }) => reader && read !== now)) {
      const began = performance.now();
      panel.read = "";
      panel.scored.length = Math.min(panel.scored.length, texts.length);
      while (panel.body.children.length > texts.length) panel.body.lastChild.remove();
      await panel.reader.score(texts, settings(), pause, (line, scored) => {
        panel.scored[line] = scored;
        draw(panel, line);
      });
      drawTotal(panel);
      panel.read = now;
      panel.seconds = (performance.now() - began) / 1000;
    }
  } catch (error) {
    if (error instanceof Superseded) return;
    throw error;
  }
  const open = panels.filter(({ reader }) => reader).length;
  const seconds = panels.reduce((sum, panel) => sum + panel.seconds, 0).toFixed(1);
  at("status").textContent =
    open < panels.length
      ? `Opening the models ... ${open} of ${panels.length}`
      : `${texts.length} line${texts.length === 1 ? "" : "s"} read by ${open} model${open === 1 ? "" : "s"} in ${seconds} s`;
  document.body.dataset.scored = "yes";
  showDetail();
}

function draw(panel, line) {
  const { words, problem } = panel.scored[line];
  const sentence = element("div", { class: "sentence", role: "presentation" });
  if (problem) sentence.append(element("span", { class: "problem" }, `${texts[line]} (${problem})`));
  for (const [i, word] of words.entries()) {
    const value = `${(word.surprisal * perUnit()).toFixed(1)} ${at("unit").value}`;
    const unknown = word.unknown ? ", not in the vocabulary" : "";
    const shown = element("span", {
      class: word.unknown ? "word unknown" : "word",
      role: "option",
      tabindex: line === 0 && i === 0 ? 0 : -1,
      "aria-selected": "false",
      "aria-label": `${word.word}: ${value}${unknown}`,
      "data-line": line,
      "data-word": i,
    });
    shown.textContent = word.word;
    Object.assign(shown.style, shade(word.surprisal));
    shown.addEventListener("pointerenter", () => choose(line, i));
    shown.addEventListener("focus", () => choose(line, i));
    sentence.append(shown, " ");
  }
  const old = panel.body.children[line];
  if (old) old.replaceWith(sentence);
  else panel.body.append(sentence);
  if (!performance.getEntriesByName("first words").length) performance.mark("first words");
}

function drawTotal(panel) {
  const tokens = panel.scored.flatMap((sentence) => sentence.tokens);
  const nats = -tokens.reduce((sum, { logProb }) => sum + logProb, 0);
  const unknown = tokens.filter((token) => token.unknown).length;
  const parts = [
    `${(nats * perUnit()).toFixed(1)} ${at("unit").value}`,
    `${tokens.length} tokens`,
    `perplexity ${Math.exp(nats / tokens.length).toPrecision(4)}`,
    ...(unknown ? [`${unknown} unknown`] : []),
  ];
  panel.total.textContent = tokens.length ? parts.join(", ") : "";
}

/** Arrow keys, Home and End move between the words of a panel. */
function moved(event) {
  const words = [...event.currentTarget.querySelectorAll(".word")];
  const here = words.indexOf(document.activeElement);
  const steps = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + 1, ArrowUp: here - 1 };
  const to = { ...steps, Home: 0, End: words.length - 1 }[event.key];
  if (to === undefined || !words[to]) return;
  event.preventDefault();
  for (const word of words) word.tabIndex = -1;
  words[to].tabIndex = 0;
  words[to].focus();
}

// -- the chosen word -------------------------------------------------------------------------

function choose(line, word) {
  chosen = { line, word };
  showDetail();
}

function showDetail() {
  for (const old of document.querySelectorAll(".word.chosen")) {
    old.classList.remove("chosen");
    old.setAttribute("aria-selected", "false");
  }
  const found = chosen && panels.some(({ scored }) => scored[chosen.line]?.words[chosen.word]);
  at("detail").replaceChildren();
  if (!found) return;
  const columns = element("div", { class: "columns" });
  for (const panel of panels) {
    const sentence = panel.scored[chosen.line];
    const word = sentence?.words[chosen.word];
    if (!word) continue;
    const place = `[data-line="${chosen.line}"][data-word="${chosen.word}"]`;
    const shown = panel.body.querySelector(place);
    shown?.classList.add("chosen");
    shown?.setAttribute("aria-selected", "true");
    columns.append(alternatives(panel, sentence, word));
  }
  at("detail").append(columns);
}

/** Of a word by one model: its surprisal, and what was likely in the place of each of its tokens. */
function alternatives(panel, sentence, word) {
  const unit = at("unit").value;
  const names = panel.reader.tokenizer.names;
  const named = (id) => (id === panel.reader.tokenizer.eos ? "<eos>" : names[id]);
  const value = (word.surprisal * perUnit()).toFixed(2);
  const made = element("div", {}, element("h3", {}, `${panel.name}: ${word.word}, ${value} ${unit}`));
  for (const i of word.tokens) {
    const token = sentence.tokens[i];
    const bits = (-token.logProb * perUnit()).toFixed(2);
    const caption = `${named(token.id)}: ${bits} ${unit}, rank ${token.rank}`;
    const table = element("table", {}, element("caption", { class: "hidden" }, caption));
    const rows = token.top.slice(0, word.tokens.length > 1 ? 3 : 6);
    if (word.tokens.length > 1) made.append(element("p", {}, caption));
    else made.append(element("p", {}, `rank ${token.rank}${token.unknown ? ", read as <unk>" : ""}`));
    for (const { id, logProb } of rows) {
      const share = `${(100 * Math.exp(logProb)).toFixed(1)} %`;
      const own = id === token.id ? { class: "own" } : {};
      table.append(element("tr", own, element("td", {}, named(id)), element("td", {}, share)));
    }
    made.append(table);
  }
  return made;
}

// -- writing on ------------------------------------------------------------------------------

async function write() {
  if (writing) {
    writing.stopped = true;
    return;
  }
  const own = (writing = { stopped: false });
  const field = at("text");
  const { reader } = panels[+at("writer").value];
  if (!reader) return void (writing = null);
  at("write").textContent = "Stop";
  field.readOnly = true;
  const cursor = field.selectionEnd;
  const before = field.value.slice(0, cursor);
  const after = field.value.slice(cursor);
  const lines = before.split("\n");
  const context = [...lines.slice(0, -1).filter((line) => line.trim()), lines.at(-1)];
  const sampling = { temperature: number("temperature"), topP: number("top-p") };
  const pause = () => new Promise((resolve) => setTimeout(resolve));
  const text = reader.tokenizer.writer(before);
  let added = "";
  for await (const id of reader.written(context, settings(), number("count"), sampling, pause)) {
    added += text(id);
    field.value = before + added + after;
    if (own.stopped) break;
  }
  field.readOnly = false;
  field.setSelectionRange(cursor + added.length, cursor + added.length);
  field.focus();
  at("write").textContent = "Continue";
  writing = null;
  await refresh();
}

// -- tables ----------------------------------------------------------------------------------

/** The columns of `infolm score --csv`, behind the name of the model. Places count characters. */
function rows(by) {
  const unit = at("unit").value;
  const scale = perUnit();
  const found = [];
  for (const { name, scored, reader } of panels) {
    for (const [n, { line, words, tokens }] of scored.entries()) {
      const place = (units) => [...line.slice(0, units)].length;
      const span = ({ start, end }) => ({ start: place(start), end: place(end) });
      if (by === "word") {
        for (const [i, word] of words.entries()) {
          found.push({
            model: name, sentence: n + 1, word_number: i + 1, word: word.word, ...span(word),
            surprisal: word.surprisal * scale, pieces: word.pieces * scale, unit,
            tokens: word.tokens.length, unknown: word.unknown,
          });
        }
        continue;
      }
      for (const [i, token] of tokens.entries()) {
        const eos = token.id === reader.tokenizer.eos;
        found.push({
          model: name, sentence: n + 1, token_number: i + 1,
          token: eos ? "<eos>" : reader.tokenizer.names[token.id], ...span(token),
          log_prob: token.logProb, surprisal: -token.logProb * scale, unit, rank: token.rank,
          unknown: token.unknown, word_number: token.word + 1, word: words[token.word].word,
          word_surprisal: words[token.word].surprisal * scale,
        });
      }
    }
  }
  return found;
}

function delimited(table) {
  const cell = (value) => {
    const text = typeof value === "boolean" ? (value ? "True" : "False") : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [Object.keys(table[0]), ...table.map((row) => Object.values(row))];
  return lines.map((line) => `${line.map(cell).join(",")}\n`).join("");
}

function download(by) {
  const table = rows(by);
  if (!table.length) return;
  const url = URL.createObjectURL(new Blob([delimited(table)], { type: "text/csv" }));
  element("a", { href: url, download: `surprisal-${by}s.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// -- the rest of the page --------------------------------------------------------------------

function explain() {
  const scale = element("span", { class: "scale", "aria-hidden": "true" });
  for (let bits = 0; bits <= DARKEST; bits += 2) {
    const step = element("span");
    step.style.background = shade(bits * Math.LN2).background;
    scale.append(step);
  }
  at("legend").replaceChildren("0 bits", scale, `${DARKEST} bits and more. Dotted: not in the vocabulary.`);
  const { carried, cache } = settings();
  at("convention").textContent = [
    "Convention: surprisal is -log p of a word given all before it",
    carried ? "one text behind an <eos>, the context carried" : "each line by itself behind an <eos>",
    "a word's surprisal includes that it ends",
    ...(cache ? ["neural models with the cache, n-grams without"] : []),
    data.weights === "int8"
      ? "weights rounded to int8, so numbers differ a little from `infolm score`"
      : "float32 weights: the numbers of `infolm score`",
  ].join("; ");
}

let typing = 0;
at("text").value = data.text;
at("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(refresh, 120);
});
at("cache").addEventListener("change", () => {
  if (at("cache").checked) at("carried").checked = true; // a cache learns from what was read
  at("cache-settings").hidden = !at("cache").checked;
});
for (const id of ["carried", "cache", "weight", "flatness", "window", "unit"]) {
  at(id).addEventListener("change", () => {
    explain();
    refresh();
  });
}
darkness.addEventListener("change", () => {
  explain();
  refresh();
});
at("write").addEventListener("click", write);
at("csv-word").addEventListener("click", () => download("word"));
at("csv-token").addEventListener("click", () => download("token"));
explain();
open().catch((error) => {
  at("status").textContent = `This browser cannot open the models (${error.message}): try a newer one.`;
  throw error;
});
