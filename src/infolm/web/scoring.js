// Surprisals of a text's tokens and words, and text written on: what `infolm score` computes.
import { logSumExp } from "./arrays.js";
import { withCache } from "./models.js";
import { BLANKS } from "./tokens.js";

export const LONGEST = 4096; // tokens of a line
const TOP = 10; // likely tokens named in each place
const WORD = new RegExp(`[^${BLANKS}]+`, "g");

/** Of the distribution ln p at one place: the token's own, its rank, ln p(a word ends), the likeliest. */
export function view(logProbs, token, beginning) {
  const own = logProbs[token];
  let rank = 1;
  const top = [];
  for (let w = 0; w < logProbs.length; w++) {
    const p = logProbs[w];
    if (p > own) rank++;
    if (top.length < TOP || p > logProbs[top[TOP - 1]]) {
      let at = top.length;
      while (at && p > logProbs[top[at - 1]]) at--;
      top.splice(at, 0, w);
      top.length = Math.min(top.length, TOP);
    }
  }
  const begins = beginning ? logSumExp(Array.from(beginning, (w) => logProbs[w])) : 0;
  return { logProb: own, rank, begins, top: top.map((id) => ({ id, logProb: logProbs[id] })) };
}

/** A model with its tokenizer, which remembers what it read last. */
export class Reader {
  constructor(model, tokenizer) {
    Object.assign(this, { model, tokenizer, memory: [], settings: "" });
  }

  /**
   * The lines scored, in their order. settings: carried (the context runs from line to line), cache
   * (null, or window, weight, flatness). pause(): awaited now and then; done(line number, scored).
   */
  async score(lines, settings, pause, done) {
    if (JSON.stringify(settings) !== this.settings) this.memory = [];
    this.settings = JSON.stringify(settings);
    const located = lines.map((line) => this.tokenizer.located(line));
    const texts = located.map((tokens) => [...tokens.map(({ id }) => id), this.tokenizer.eos]);
    let places = [];
    for (const [number, line] of lines.entries()) {
      const problem = refusal(located[number], this.tokenizer);
      if (problem) {
        done(number, { line, problem, words: [], tokens: [] });
        continue;
      }
      const memory = (this.memory[settings.carried ? 0 : number] ??= []);
      const first = settings.carried ? places.length : 0;
      places = [...places.slice(0, first), ...texts[number]];
      await this.read(places, memory, settings, pause);
      const scores = memory.slice(first, places.length).map((place) => place.score);
      done(number, scored(line, located[number], scores, this.tokenizer));
    }
  }

  /** Score tokens into `memory`; those that it begins with already are not read again. */
  async read(tokens, memory, settings, pause) {
    let known = 0;
    while (known < memory.length && memory[known].token === tokens[known]) known++;
    if (known < tokens.length) memory.length = known;
    for (let i = known; i < tokens.length; i++) {
      const { state, hidden } = this.before(memory, i);
      const logProbs = this.distribution(hidden, memory, settings);
      const score = view(logProbs, tokens[i], this.tokenizer.beginning);
      memory.push({ token: tokens[i], state, hidden, score });
      await pause();
    }
  }

  /** What predicts the token at place i: all before it read, and an <eos> before all. */
  before(memory, i) {
    if (i === 0) return this.model.read(this.tokenizer.eos, this.model.start());
    return this.model.read(memory[i - 1].token, memory[i - 1].state);
  }

  /** ln p of every token, behind the places of `memory`. An n-gram model has nothing to compare. */
  distribution(hidden, memory, { cache }) {
    const logProbs = this.model.logProbs(hidden);
    if (!cache || !(hidden instanceof Float32Array)) return logProbs;
    return withCache(logProbs, hidden, memory.slice(-cache.window), cache);
  }

  /** Tokens drawn one after the other behind the lines; given one by one. */
  async *written(lines, settings, count, sampling, pause) {
    const located = lines.map((line) => this.tokenizer.located(line).map(({ id }) => id));
    const last = located.pop();
    const memory = [];
    let tokens = settings.carried ? located.flatMap((ids) => [...ids, this.tokenizer.eos]) : [];
    tokens = [...tokens, ...last];
    for (let i = 0; i < count; i++) {
      await this.read(tokens, memory, settings, pause);
      const { hidden } = this.before(memory, tokens.length);
      const token = drawn(this.distribution(hidden, memory, settings), sampling, this.tokenizer.unk);
      yield token;
      if (token === this.tokenizer.eos && !settings.carried) {
        [tokens, memory.length] = [[], 0];
      } else {
        tokens = [...tokens, token];
      }
    }
  }
}

function refusal(tokens, { eos, names }) {
  if (!tokens.length) return "no token of this vocabulary";
  if (tokens.some(({ id }) => id === eos)) return `${names[eos]} ends a line: put the rest on its own`;
  if (tokens.length > LONGEST) return `more than ${LONGEST} tokens: split the line`;
  return null;
}

/** Tokens and words of a line. A word's surprisal includes that it ends; all in nats. */
function scored(line, located, scores, tokenizer) {
  const words = Array.from(line.matchAll(WORD), (m) => ({
    word: m[0],
    start: m.index,
    end: m.index + m[0].length,
  }));
  words.push({ word: "<eos>", start: line.length, end: line.length });
  const places = [...located, { id: tokenizer.eos, start: line.length, end: line.length }];
  let number = 0;
  const tokens = places.map((place, i) => {
    const isEnd = i === places.length - 1;
    // White space belongs to the word behind it.
    while (number < words.length - 1 && (isEnd || words[number].end <= place.start)) number++;
    return { ...place, ...scores[i], word: number, unknown: place.id === tokenizer.unk };
  });
  const begins = (i) => (i === 0 ? 0 : tokens[i].begins);
  for (const [at, word] of words.entries()) {
    const own = tokens.flatMap((token, i) => (token.word === at ? [i] : []));
    const pieces = -own.reduce((sum, i) => sum + tokens[i].logProb, 0);
    const ends = at < words.length - 1 && own.length ? begins(own.at(-1) + 1) : 0;
    Object.assign(word, {
      tokens: own,
      pieces,
      surprisal: own.length ? pieces + begins(own[0]) - ends : 0,
      unknown: own.some((i) => tokens[i].unknown),
    });
  }
  return { line, tokens, words };
}

/** A token by temperature and nucleus; never the unknown one. */
export function drawn(logProbs, { temperature, topP }, unk, random = Math.random) {
  const tempered = logProbs.map((p, w) => (w === unk ? -Infinity : p / temperature));
  const total = logSumExp(tempered);
  const likely = Array.from(tempered, (p, id) => ({ id, p: Math.exp(p - total) }));
  likely.sort((a, b) => b.p - a.p);
  let [kept, mass] = [0, 0];
  while (kept < likely.length && (kept === 0 || mass < topP)) mass += likely[kept++].p;
  let rest = random() * mass;
  for (let i = 0; i < kept; i++) {
    rest -= likely[i].p;
    if (rest < 0) return likely[i].id;
  }
  return likely[0].id;
}
