// Arrays of numbers: how a file holds them, and the few operations that the models need.

/** The bytes of a gzipped, base64-encoded text. */
export async function unpacked(text) {
  const letters = atob(text.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/**
 * The arrays of a model. Each has `shape`, `type` and `start`, in bytes. An int8 matrix has a float32
 * scale for each row behind its numbers, and is read as float32.
 */
export function arraysOf(buffer, described) {
  return described.map(({ shape, type, start }) => {
    const size = shape.reduce((a, b) => a * b, 1);
    const [rows, columns] = [shape[0], shape[1] ?? 1];
    if (type === "uint32") return { data: new Uint32Array(buffer, start, size), rows, columns };
    if (type === "float32") return { data: new Float32Array(buffer, start, size), rows, columns };
    const whole = new Int8Array(buffer, start, size);
    const scales = new Float32Array(buffer, start + 4 * Math.ceil(size / 4), rows);
    const data = new Float32Array(size);
    for (let i = 0; i < size; i++) data[i] = whole[i] * scales[Math.floor(i / columns)];
    return { data, rows, columns };
  });
}

/** W x + b, four sums at a time. Its types are always the same, so that it is compiled well. */
export function linear({ data, rows, columns }, x, bias) {
  const out = new Float32Array(rows);
  const even = columns - (columns % 4);
  for (let row = 0, at = 0; row < rows; row++, at += columns) {
    let [a, b, c, d] = [bias ? bias[row] : 0, 0, 0, 0];
    let j = 0;
    for (; j < even; j += 4) {
      a += data[at + j] * x[j];
      b += data[at + j + 1] * x[j + 1];
      c += data[at + j + 2] * x[j + 2];
      d += data[at + j + 3] * x[j + 3];
    }
    for (; j < columns; j++) a += data[at + j] * x[j];
    out[row] = a + b + (c + d);
  }
  return out;
}

export const row = ({ data, columns }, i) => data.subarray(i * columns, (i + 1) * columns);
export const sigmoid = (x) => 1 / (1 + Math.exp(-x));

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** ln sum exp(x). */
export function logSumExp(x) {
  let largest = -Infinity;
  for (let i = 0; i < x.length; i++) if (x[i] > largest) largest = x[i];
  if (largest === -Infinity) return largest;
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += Math.exp(x[i] - largest);
  return largest + Math.log(sum);
}

/** x - ln sum exp(x), in place. */
export function logSoftmax(x) {
  const total = logSumExp(x);
  for (let i = 0; i < x.length; i++) x[i] -= total;
  return x;
}
