// What every part of the page needs: elements, requests, and words for what went wrong.
// Text of models and people is only ever set as text, never as markup.
export const find = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made[key] = value;
  made.append(...children);
  return made;
}

export const chosen = () => find("model").value;

export function say(text) {
  find("message").textContent = text;
  find("message").hidden = !text;
}

export async function ask(path, body, signal) {
  const key = find("key").value;
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const sent = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...sent, headers, signal });
  if (answer.status === 401) find("keyed").hidden = false;
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer;
}

export async function data(path, body) {
  return (await (await ask(path, { model: chosen(), ...body })).json()).data;
}

// Does the work of a button; what goes wrong is said at the top of the page.
export async function tried(work) {
  say("");
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  }
}

export function submitted(form, work) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tried(work);
  });
}
