// Text that streams, with sliders.
import { ask, chosen, find, submitted } from "./asking.js";

let going = null;
export const stop = () => going?.abort();

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

async function write() {
  const form = find("write").querySelector("form").elements;
  const prompt = find("prompt").value;
  stop();
  going = new AbortController();
  const body = { model: chosen(), prompt, stream: true, no_unk: form.no_unk.checked };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) body[name] = Number(form[name].value);
  const text = document.createElement("b");
  find("written").replaceChildren(document.createTextNode(prompt), text);
  find("stop").disabled = false;
  try {
    for await (const part of events(await ask("/v1/completions", body, going.signal))) {
      if (part.error) throw new Error(part.error.message);
      for (const choice of part.choices) text.append(choice.text);
    }
  } finally {
    find("stop").disabled = true;
  }
}

export function begin() {
  submitted(find("write").querySelector("form"), write);
  find("stop").addEventListener("click", stop);
}
