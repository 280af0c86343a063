// The page of a server: text that streams, surprisal as shading, sentences between two others.
// Text of models and people is only ever set as text, never as markup.
const find = (id) => document.getElementById(id);
let models = [];
let going = null;

function say(text) {
  find("message").textContent = text;
  find("message").hidden = !text;
}

function headers() {
  const key = find("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, body, signal) {
  const sent = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...sent, headers: headers(), signal });
  if (answer.status === 401) find("keyed").hidden = false;
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer;
}

async function tried(work) {
  say("");
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  }
}

const chosen = () => find("model").value;

function show() {
  const model = models.find((each) => each.id === chosen());
  const answers = model ? model.answers : [];
  find("write").hidden = find("score").hidden = !answers.includes("completions");
  find("latent").hidden = !answers.includes("latent/interpolate");
  find("none").hidden = !model || answers.length !== 1;
}

async function load() {
  models = (await (await ask("/v1/models")).json()).data;
  find("model").replaceChildren(...models.map((each) => new Option(each.id, each.id)));
  show();
}

// -- writing --------------------------------------------------------------------------------

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function write(event) {
  event?.preventDefault();
  const form = find("write").querySelector("form").elements;
  const prompt = find("prompt").value;
  going?.abort();
  going = new AbortController();
  const body = { model: chosen(), prompt, stream: true, no_unk: form.no_unk.checked };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) body[name] = Number(form[name].value);
  const text = document.createElement("b");
  find("written").replaceChildren(document.createTextNode(prompt), text);
  find("stop").disabled = false;
  await tried(async () => {
    for await (const part of events(await ask("/v1/completions", body, going.signal))) {
      if (part.error) throw new Error(part.error.message);
      for (const choice of part.choices) text.append(choice.text);
    }
  });
  find("stop").disabled = true;
}

// -- surprisal ------------------------------------------------------------------------------

function shaded(sentence) {
  const line = document.createElement("p");
  line.className = "line";
  let place = 0;
  for (const token of sentence.tokens) {
    line.append(sentence.text.slice(place, Math.max(place, token.start)));
    const piece = document.createElement("span");
    const ends = token.start === token.end;
    piece.textContent = ends ? " ⏎" : sentence.text.slice(Math.max(place, token.start), token.end);
    const top = token.top.map((each) => `${each.token}  ${each.surprisal.toFixed(2)}`).join("\n");
    piece.title = `${token.token}: ${token.surprisal.toFixed(2)} bits, rank ${token.rank}\n\nlikeliest:\n${top}`;
    piece.style.backgroundColor = `rgba(var(--shade), ${Math.min(0.75, token.surprisal / 20)})`;
    if (token.unknown) piece.className = "unknown";
    line.append(piece);
    place = Math.max(place, token.end);
  }
  const sum = document.createElement("small");
  sum.textContent = `  ${sentence.surprisal.toFixed(1)} bits`;
  line.append(sum);
  return line;
}

async function score(event) {
  event?.preventDefault();
  const form = find("score").querySelector("form").elements;
  const texts = find("text").value.split("\n").filter((line) => line.trim());
  const body = { model: chosen(), texts, top: 5 };
  if (form.cache.checked) body.cache = "2000,0.1,1";
  if (form.dynamic.checked) body.dynamic = "0.1,0.001";
  await tried(async () => {
    const found = (await (await ask("/v1/score", body)).json()).data;
    find("scored").replaceChildren(...found.map(shaded));
    find("convention").textContent = `Bits; ${found[0].convention}. Hover over a token for its rank.`;
  });
}

// -- codes ----------------------------------------------------------------------------------

let way = [];

function stepped() {
  const step = Number(find("step").value);
  find("way").querySelector("output").textContent = `${step} of ${way.length - 1}`;
  find("between").textContent = way[step] ?? "";
}

async function interpolate(event) {
  event?.preventDefault();
  const body = { model: chosen(), a: find("a").value, b: find("b").value, steps: 17, unknown: true };
  await tried(async () => {
    way = (await (await ask("/v1/latent/interpolate", body)).json()).data.map((each) => each.text);
    find("way").hidden = false;
    stepped();
  });
}

async function drawn() {
  await tried(async () => {
    const body = { model: chosen(), num: 2, seed: Math.floor(Math.random() * 1e9) };
    const [a, b] = (await (await ask("/v1/latent/sample", body)).json()).data;
    find("a").value = a.text;
    find("b").value = b.text;
    await interpolate();
  });
}

async function neighbours() {
  await tried(async () => {
    const body = { model: chosen(), sentence: find("a").value, num: 8, unknown: true };
    const found = (await (await ask("/v1/latent/neighbours", body)).json()).data;
    find("neighbours").replaceChildren(...found.map((each) => {
      const row = document.createElement("li");
      row.textContent = `${each.sentence}  (${each.distance.toFixed(3)})`;
      return row;
    }));
  });
}

// -- what does what -------------------------------------------------------------------------

for (const slider of document.querySelectorAll(".sliders input[type=range]")) {
  const shown = () => (slider.parentElement.querySelector("output").textContent = slider.value);
  slider.addEventListener("input", shown);
  shown();
}
find("model").addEventListener("change", show);
find("key").addEventListener("change", () => tried(load));
find("write").querySelector("form").addEventListener("submit", write);
find("stop").addEventListener("click", () => going?.abort());
find("score").querySelector("form").addEventListener("submit", score);
find("take").addEventListener("click", () => {
  find("text").value = find("written").textContent;
  score();
});
find("latent").querySelector("form").addEventListener("submit", interpolate);
find("step").addEventListener("input", stepped);
find("drawn").addEventListener("click", drawn);
find("near").addEventListener("click", neighbours);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") going?.abort();
  if (event.key === "Enter" && event.ctrlKey) document.activeElement.form?.requestSubmit();
});
tried(load);
