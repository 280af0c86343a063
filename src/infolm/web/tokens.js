// How a line becomes tokens: { id, start, end }, the places in UTF-16 units of the line as written.

export const BLANKS = " \t\n\r\v\f";

/** Lower case, character by character: no sigma is final. */
const lower = (text) => text.replaceAll("Σ", "σ").toLowerCase();

/** A regular expression of Python's as one of JavaScript's, which escapes nothing without need. */
function expression(pattern) {
  const needed = "^$\\.*+?()[]{}|/-";
  const escaped = pattern.replace(/\\([\s\S])/g, (both, c) => (needed.includes(c) ? both : c));
  return new RegExp(escaped, "gu");
}

/** The printable character that stands for each byte in a byte-level vocabulary. */
function byteCharacters() {
  let spare = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable =
      (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || byte > 0xad;
    return String.fromCodePoint(printable ? byte : spare++);
  });
}

const PAIRS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

export class Tokenizer {
  constructor(described) {
    Object.assign(this, described); // kind, tokens, eos, unk, lowercase, ...
    this.names = described.names ?? this.tokens;
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
    this.beginning = described.begins && Uint32Array.from(described.begins);
    this.cutting = described.pattern && expression(described.pattern);
    this.marks = described.marks && expression(described.marks);
    this.bytes = byteCharacters();
    this.values = new Map(this.bytes.map((c, byte) => [c, byte]));
    this.ranks = new Map((described.merges ?? []).map((pair, rank) => [pair.join(" "), rank]));
  }

  normal(text) {
    return this.lowercase ? lower(text) : text;
  }

  id(token) {
    return this.ids.get(token) ?? this.unk;
  }

  located(line) {
    return this[this.kind](line);
  }

  word(line) {
    const found = [];
    for (const match of line.matchAll(this.cutting)) {
      for (const [part, begin] of this.marks ? this.known(match[0]) : [[match[0], 0]]) {
        const start = match.index + begin;
        found.push({ id: this.id(this.normal(part)), start, end: start + part.length });
      }
    }
    return found;
  }

  /** A word between blanks as known ones, where it can be had so, and where each begins in it. */
  known(word) {
    const found = (part) => {
      if (this.ids.has(this.normal(part))) return part;
      return this.ids.has(lower(part)) ? lower(part) : null;
    };
    const whole = found(word);
    if (whole !== null) return [[whole, 0]];
    return Array.from(word.matchAll(this.marks), (m) => [found(m[0]) ?? m[0], m.index]);
  }

  /** Each character as written, what lower case makes of it, and its place. */
  *characters(line) {
    let start = 0;
    for (const c of line) {
      yield { text: this.normal(c), start, end: start + c.length };
      start += c.length;
    }
  }

  char(line) {
    const found = [];
    for (const { text, start, end } of this.characters(line)) {
      for (const c of text) found.push({ id: this.id(c), start, end });
    }
    return found;
  }

  /** The characters that stand for the line's bytes, with their places. */
  byteLevel(line) {
    const encoder = new TextEncoder();
    const found = [];
    for (const { text, start, end } of this.characters(line)) {
      for (const byte of encoder.encode(text)) found.push({ text: this.bytes[byte], start, end });
    }
    return found;
  }

  byte(line) {
    return this.byteLevel(line).map(({ text, start, end }) => ({ id: this.id(text), start, end }));
  }

  bpe(line) {
    const encoder = new TextEncoder();
    const bytes = this.byteLevel(line);
    const found = [];
    let at = 0;
    for (const [piece] of this.normal(line).matchAll(PAIRS)) {
      const length = encoder.encode(piece).length;
      found.push(...this.merged(bytes.slice(at, at + length)));
      at += length;
    }
    return found.map(({ text, start, end }) => ({ id: this.id(text), start, end }));
  }

  /** Byte pairs joined, the one that was learnt first before all others. */
  merged(parts) {
    const rank = (i) => this.ranks.get(`${parts[i].text} ${parts[i + 1].text}`) ?? Infinity;
    while (parts.length > 1) {
      let best = 0;
      for (let i = 1; i < parts.length - 1; i++) if (rank(i) < rank(best)) best = i;
      if (rank(best) === Infinity) break;
      const [a, b] = parts.slice(best, best + 2);
      parts.splice(best, 2, { text: a.text + b.text, start: a.start, end: b.end });
    }
    return parts;
  }

  /** Makes a function that gives what each next token adds to the text `before`. */
  writer(before) {
    const decoder = new TextDecoder();
    const { opening = "", closing = "", both = "", ending = "" } = this.joining ?? {};
    const clings = ending && new RegExp(ending, "i");
    let last = before.slice(-1);
    return (id) => {
      let text = this.tokens[id];
      if (id === this.eos) text = "\n";
      else if (this.kind === "word") {
        const left = (closing + both).includes(text) || clings.test(text);
        const right = !last || `${BLANKS}${opening}${both}`.includes(last);
        if (!left && !right) text = ` ${text}`;
      } else if (this.kind !== "char") {
        const bytes = Uint8Array.from(text, (c) => this.values.get(c));
        text = decoder.decode(bytes, { stream: true });
      }
      last = text.slice(-1) || last;
      return text;
    };
  }
}
