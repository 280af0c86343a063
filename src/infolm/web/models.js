// Language models. Each has
//   start()               the state before any token
//   read(token, state)    -> { state, hidden }: the state after the token, and what predicts the next
//   logProbs(hidden)      ln p of every token, a new array
// A state is never changed: whoever keeps one can go back to it.
import { dot, linear, logSoftmax, logSumExp, row, sigmoid } from "./arrays.js";

/** The softmax over the vocabulary, or a mixture of them: sum_k pi_k softmax(W y_k + b). */
class Softmax {
  constructor({ weight, bias, projection, projection_bias, prior, experts }, arrays) {
    const at = (number) => (number === null ? null : arrays[number]);
    this.weight = at(weight);
    this.bias = at(bias).data;
    this.projection = at(projection);
    this.projectionBias = at(projection_bias)?.data;
    this.prior = at(prior);
    this.experts = experts;
  }

  logProbs(x) {
    const y = this.projection ? linear(this.projection, x, this.projectionBias) : x;
    const logits = (part) => logSoftmax(Float64Array.from(linear(this.weight, part, this.bias)));
    if (!this.prior) return logits(y);
    const weights = logSoftmax(Float64Array.from(linear(this.prior, x, null)));
    const size = this.weight.columns;
    const total = new Float64Array(this.weight.rows);
    for (let k = 0; k < this.experts; k++) {
      const part = logits(y.slice(k * size, (k + 1) * size).map(Math.tanh));
      for (let w = 0; w < total.length; w++) total[w] += Math.exp(part[w] + weights[k]);
    }
    return total.map(Math.log);
  }
}

// What a cell's step consists of. v: the values so far; i: the inputs' numbers; o: the operation.
const OPERATIONS = {
  linear: (v, i, o, weights) => linear(weights[o.weight], v[i[0]], i.length > 1 ? v[i[1]] : null),
  slice: (v, i, o) => v[i[0]].subarray(o.start, o.start + o.size),
  add: (v, i) => v[i[0]].map((a, n) => a + v[i[1]][n]),
  sub: (v, i) => v[i[0]].map((a, n) => a - v[i[1]][n]),
  mul: (v, i) => v[i[0]].map((a, n) => a * v[i[1]][n]),
  muladd: (v, i) => v[i[0]].map((a, n) => a * v[i[1]][n] + v[i[2]][n]),
  affine: (v, i, o) => v[i[0]].map((a) => o.alpha * a + o.beta),
  min: (v, i) => v[i[0]].map((a, n) => Math.min(a, v[i[1]][n])),
  sigmoid: (v, i) => v[i[0]].map(sigmoid),
  tanh: (v, i) => v[i[0]].map(Math.tanh),
};

/** One recurrent layer: the program of its step, whichever cell that is. */
class Cell {
  constructor({ hidden, remembered, weights, leaves, body, after }, arrays) {
    Object.assign(this, { hidden, remembered, leaves, body, after });
    this.weights = weights.map((number) => arrays[number]);
  }

  start() {
    return Array.from({ length: this.remembered }, () => new Float32Array(this.hidden));
  }

  step(x, before) {
    const values = [];
    for (const { number, operation, start, weight } of this.leaves) {
      const read = { x: () => x, before: () => before[start], vector: () => this.weights[weight].data };
      values[number] = read[operation]();
    }
    for (const o of this.body) {
      values[o.number] = OPERATIONS[o.operation](values, o.inputs, o, this.weights);
    }
    return this.after.map((number) => values[number]);
  }
}

const sum = (a, b) => (a ? a.map((each, i) => each + b[i]) : b);

class Recurrent {
  constructor({ embedding, cells, connections, softmax }, arrays) {
    this.embedding = arrays[embedding];
    this.cells = cells.map((cell) => new Cell(cell, arrays));
    this.connections = connections;
    this.softmax = new Softmax(softmax, arrays);
  }

  start() {
    return this.cells.map((cell) => cell.start());
  }

  read(token, state) {
    let x = row(this.embedding, token);
    let total = null;
    const after = this.cells.map((cell, l) => {
      const new_ = cell.step(x, state[l]);
      total = sum(total, new_[0]);
      x = this.connections === "residual" ? total : new_[0];
      return new_;
    });
    return { state: after, hidden: this.connections === "stacked" ? x : total };
  }

  logProbs(hidden) {
    return this.softmax.logProbs(hidden);
  }
}

class Transformer {
  constructor({ embedding, norm, blocks, heads, context, base, epsilon, softmax }, arrays) {
    Object.assign(this, { heads, context, base, epsilon });
    this.embedding = arrays[embedding];
    this.norm = arrays[norm].data;
    this.blocks = blocks.map((block) =>
      Object.fromEntries(Object.entries(block).map(([name, number]) => [name, arrays[number]])),
    );
    this.softmax = new Softmax(softmax, arrays);
  }

  start() {
    return { position: 0, memories: this.blocks.map(() => []) };
  }

  read(token, { position, memories }) {
    let x = row(this.embedding, token);
    const after = this.blocks.map((block, l) => {
      const parts = linear(block.queries_keys_values, this.normalised(x, block.attention_norm.data));
      const size = x.length;
      const [query, key, value] = [0, 1, 2].map((n) => parts.slice(n * size, (n + 1) * size));
      this.turn(query, position);
      this.turn(key, position);
      const memory = [...memories[l].slice(-this.context + 1 || Infinity), { key, value }];
      x = sum(x, linear(block.attention_output, this.attended(query, memory)));
      const both = linear(block.gate_and_inner, this.normalised(x, block.inner_norm.data));
      const inner = both.length / 2;
      const gated = both.subarray(0, inner).map((g, i) => g * sigmoid(g) * both[inner + i]);
      x = sum(x, linear(block.inner_output, gated));
      return memory;
    });
    return {
      state: { position: position + 1, memories: after },
      hidden: this.normalised(x, this.norm),
    };
  }

  normalised(x, weight) {
    const scale = 1 / Math.sqrt(dot(x, x) / x.length + this.epsilon);
    return x.map((each, i) => each * scale * weight[i]);
  }

  /** Rotary positions: columns j and j + D/2 of each head, by position x base^(-2j/D). */
  turn(x, position) {
    const size = x.length / this.heads;
    const half = size / 2;
    for (let head = 0; head < this.heads; head++) {
      for (let j = 0; j < half; j++) {
        const angle = position * this.base ** (-j / half);
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        const [at, to] = [head * size + j, head * size + j + half];
        const [a, b] = [x[at], x[to]];
        x[at] = a * cos - b * sin;
        x[to] = b * cos + a * sin;
      }
    }
  }

  attended(query, memory) {
    const out = new Float32Array(query.length);
    const size = query.length / this.heads;
    for (let head = 0; head < this.heads; head++) {
      const part = (x) => x.subarray(head * size, (head + 1) * size);
      const own = part(query);
      const weights = memory.map(({ key }) => dot(own, part(key)) / Math.sqrt(size));
      const total = logSumExp(weights);
      memory.forEach(({ value }, s) => {
        const weight = Math.exp(weights[s] - total);
        for (let j = head * size; j < (head + 1) * size; j++) out[j] += weight * value[j];
      });
    }
    return out;
  }

  logProbs(hidden) {
    return this.softmax.logProbs(hidden);
  }
}

/**
 * Interpolated Kneser-Ney. The k-grams of a context stand together: those of the context with number h
 * are starts[h] to starts[h + 1] - 1 of `words`, ascending, and a k-gram's number is its place there.
 */
class KneserNey {
  constructor({ levels, vocabulary }, arrays) {
    this.vocabulary = vocabulary;
    this.levels = levels.map((level) => {
      const children = arrays[level.children].data;
      const starts = new Uint32Array(children.length + 1);
      children.forEach((n, h) => (starts[h + 1] = starts[h] + n));
      const [words, share, backoff] = ["words", "share", "backoff"].map((n) => arrays[level[n]].data);
      return { starts, words, share, backoff };
    });
  }

  start() {
    return [];
  }

  read(token, state) {
    const context = [...state, token].slice(1 - this.levels.length || Infinity);
    return { state: context, hidden: context };
  }

  logProbs(context) {
    const p = new Float64Array(this.vocabulary).fill(1 / this.vocabulary);
    this.levels.slice(0, context.length + 1).forEach(({ starts, words, share, backoff }, k) => {
      const h = this.number(context.slice(context.length - k));
      if (h < 0) return; // a context that was never seen leaves all to the lower order
      for (let w = 0; w < p.length; w++) p[w] *= backoff[h];
      for (let i = starts[h]; i < starts[h + 1]; i++) p[words[i]] += share[i];
    });
    return p.map(Math.log);
  }

  /** Of a k-gram among the k-grams; -1: the text does not hold it. */
  number(gram) {
    let found = 0;
    for (let k = 0; k < gram.length && found >= 0; k++) {
      const { starts, words } = this.levels[k];
      let [low, high] = [starts[found], starts[found + 1]];
      const end = high;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (words[middle] < gram[k]) low = middle + 1;
        else high = middle;
      }
      found = low < end && words[low] === gram[k] ? low : -1;
    }
    return found;
  }
}

const KINDS = { recurrent: Recurrent, transformer: Transformer, "kneser-ney": KneserNey };

export const modelOf = (description, arrays) => new KINDS[description.kind](description, arrays);

/** ln((1 - weight) p + weight p_cache): the last `window` pairs of a hidden vector and its token. */
export function withCache(logProbs, hidden, pairs, { weight, flatness }) {
  if (!pairs.length) return logProbs;
  const scores = Float64Array.from(pairs, (pair) => flatness * dot(pair.hidden, hidden));
  logSoftmax(scores);
  const cached = new Map();
  pairs.forEach(({ token }, i) => {
    cached.set(token, (cached.get(token) ?? 0) + Math.exp(scores[i]));
  });
  const rest = Math.log1p(-weight);
  for (let w = 0; w < logProbs.length; w++) logProbs[w] += rest;
  for (const [token, p] of cached) {
    logProbs[token] = logSumExp([logProbs[token], Math.log(weight * p)]);
  }
  return logProbs;
}
