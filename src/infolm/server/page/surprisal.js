// Lines shaded by surprisal: the model as it is, with a neural cache, with dynamic evaluation.
import { data, element, find, submitted, tried } from "./asking.js";

function told(token) {
  const top = token.top.map((each) => `${each.token} ${each.surprisal.toFixed(2)}`).join(", ");
  return `${token.token}: ${token.surprisal.toFixed(2)} bits, rank ${token.rank}. Likeliest: ${top}.`;
}

function shaded(sentence, name) {
  const line = element("p", { className: "line", tabIndex: 0 });
  line.append(element("small", { className: "method" }, name));
  let place = 0;
  const pieces = [];
  for (const token of sentence.tokens) {
    line.append(sentence.text.slice(place, Math.max(place, token.start)));
    const ends = token.start === token.end;
    const text = ends ? " ⏎" : sentence.text.slice(Math.max(place, token.start), token.end);
    const piece = element("span", { title: told(token), className: token.unknown ? "unknown" : "" }, text);
    piece.style.backgroundColor = `rgba(var(--shade), ${Math.min(0.75, token.surprisal / 20)})`;
    pieces.push(piece);
    line.append(piece);
    place = Math.max(place, token.end);
  }
  line.append(element("small", {}, `  ${sentence.surprisal.toFixed(1)} bits`));
  let now = -1;
  const go = (index) => {
    pieces[now]?.classList.remove("chosen");
    now = Math.min(Math.max(index, 0), pieces.length - 1);
    pieces[now].classList.add("chosen");
    find("detail").textContent = told(sentence.tokens[now]);
  };
  pieces.forEach((piece, i) => piece.addEventListener("click", () => go(i)));
  line.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: pieces.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(moves[event.key]);
  });
  return line;
}

async function score() {
  const form = find("score").querySelector("form").elements;
  const texts = find("text").value.split("\n").filter((line) => line.trim());
  if (!texts.length) throw new Error("there is no line to score: write one");
  const cache = [form.window, form.weight, form.sharpness].map((each) => each.value).join(",");
  const dynamic = [form.rate, form.decay].map((each) => each.value).join(",");
  const adapting = { dynamic, segment: Number(form.segment.value) };
  const ways = [["as it is", {}]];
  if (form.cache.checked) ways.push(["with a cache", { cache }]);
  if (form.dynamic.checked) ways.push(["dynamic", adapting]);
  if (form.cache.checked && form.dynamic.checked) ways.push(["both", { cache, ...adapting }]);
  const found = [];
  // Where something is carried from line to line, it is in every way, so that they can be compared.
  const context = ways.length > 1 ? { context: "carried" } : {};
  for (const [name, options] of ways) {
    found.push({ name, lines: await data("/v1/score", { texts, top: 5, ...context, ...options }) });
  }
  find("scored").replaceChildren(
    ...texts.flatMap((_, i) => found.map(({ name, lines }) => shaded(lines[i], ways.length > 1 ? name : ""))),
  );
  const totals = found.map(({ name, lines }) => {
    const bits = lines.reduce((sum, line) => sum + line.surprisal, 0);
    const tokens = lines.reduce((sum, line) => sum + line.tokens.length, 0);
    return `${name} ${(bits / tokens).toFixed(3)}`;
  });
  find("convention").textContent = `Bits per token: ${totals.join(", ")}. ${found[0].lines[0].convention}.`;
  find("detail").textContent = "";
}

export function begin() {
  submitted(find("score").querySelector("form"), score);
  find("take").addEventListener("click", () => {
    find("text").value = find("written").textContent;
    tried(score);
  });
}
