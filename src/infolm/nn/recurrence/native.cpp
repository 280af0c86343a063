// Runs a program of linear maps and pointwise operations over time; and exponentiates logits.
//
// The program is one step of a recurrent cell (or of its derivative), of which nothing is known
// here but a list of instructions. Each thread takes some rows of the batch through all steps
// alone, so that threads wait for each other only once, when the weights are packed.
//
// A row's numbers come from the same operations in the same order whichever thread computes them
// and whichever rows are computed beside them: no bit depends on the number of threads.
//
// Rounding, infinities and NaN are IEEE's: not to be compiled with -ffast-math.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

using Index = std::int64_t;

// ---------------------------------------------------------------------------------------------
// Vectors of numbers

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

template <class T>
struct Lanes {
    using Integer = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    typedef T Vector __attribute__((vector_size(BYTES)));
    typedef Integer Bits __attribute__((vector_size(BYTES)));
    static constexpr int count = BYTES / sizeof(T);
};

template <class T>
using Vector = typename Lanes<T>::Vector;

template <class T>
inline Vector<T> load(const T* from) {
    Vector<T> vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <class T>
inline void store(T* to, Vector<T> vector) {
    std::memcpy(to, &vector, sizeof vector);
}

// The first `count` lanes; the others are 0.
template <class T>
inline Vector<T> load_first(const T* from, Index count) {
#if defined(__AVX512F__)
    const unsigned mask = (1u << count) - 1;
    if constexpr (sizeof(T) == 4) return (Vector<T>)_mm512_maskz_loadu_ps(mask, from);
    else return (Vector<T>)_mm512_maskz_loadu_pd(mask, from);
#else
    Vector<T> vector{};
    for (Index i = 0; i < count; ++i) vector[i] = from[i];
    return vector;
#endif
}

template <class T>
inline void store_first(T* to, Vector<T> vector, Index count) {
#if defined(__AVX512F__)
    const unsigned mask = (1u << count) - 1;
    if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(to, mask, (__m512)vector);
    else _mm512_mask_storeu_pd(to, mask, (__m512d)vector);
#else
    for (Index i = 0; i < count; ++i) to[i] = vector[i];
#endif
}

// ---------------------------------------------------------------------------------------------
// Linear maps: out[b] = init[b] + W v[b]
//
// W is packed into panels of PANEL outputs, [panel][input][output of the panel], the last one
// padded with zeros. A tile of the result, some rows by one or more panels, stays in registers
// while the sum runs over the inputs in their order, beginning with init: the same sum for every
// shape of tile.

//
// Where products are `rounded`, W and v are rounded to bfloat16, the upper half of a float, and the
// sums stay in single precision. Processors that multiply pairs of bfloat16 read W and v as such
// pairs of adjacent inputs, which stand in place of the floats (an odd last input beside a 0).
// Others multiply the rounded numbers as floats.

#if defined(__AVX512BF16__)
constexpr bool PAIRS = true;
#else
constexpr bool PAIRS = false;
#endif

// The nearest bfloat16, that with an even last bit of two.
inline std::uint32_t bfloat16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (x != x ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float widened(std::uint32_t half) {
    const std::uint32_t bits = half << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Numbers in a row of so many rounded ones.
constexpr Index rounded_length(Index inputs) { return PAIRS ? (inputs + 1) / 2 : inputs; }

// A row as the rounded products read it.
inline void round_row(const float* from, Index count, float* to) {
#if defined(__AVX512BF16__)
    const __mmask16 all = 0xffff;
    for (Index i = 0; i < count; i += 32) {
        const Index left = count - i;
        const __mmask16 low = left >= 16 ? all : (1 << left) - 1;
        const __mmask16 high = left >= 32 ? all : left > 16 ? (1 << (left - 16)) - 1 : 0;
        const __m512 a = _mm512_maskz_loadu_ps(low, from + i);
        const __m512 b = _mm512_maskz_loadu_ps(high, from + i + 16);
        const auto halves = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        const Index pairs = rounded_length(left);
        _mm512_mask_storeu_epi32(to + i / 2, pairs >= 16 ? all : (1 << pairs) - 1, halves);
    }
#else
    for (Index i = 0; i < count; ++i) to[i] = widened(bfloat16(from[i]));
#endif
}

// sum + w v, or of pairs sum + w_0 v_0 + w_1 v_1.
template <bool PAIRED, class T>
inline Vector<T> accumulated(Vector<T> sum, Vector<T> w, T v) {
#if defined(__AVX512BF16__)
    if constexpr (PAIRED)
        return (Vector<T>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)_mm512_set1_ps(v));
#endif
    return sum + w * v;
}

template <class T>
constexpr int PANEL = 2 * Lanes<T>::count;

// Rows of a tile: with two vectors each, as many sums as there are registers for.
#if defined(__AVX512F__)
constexpr Index TILE_ROWS = 12;
#else
constexpr Index TILE_ROWS = 6;
#endif

template <class T>
struct Matrix {
    const T* stored;
    Index outputs, inputs, stride;
    bool transposed, rounded;
    T* packed;

    Index panels() const { return (outputs + PANEL<T> - 1) / PANEL<T>; }
    Index length() const { return rounded ? rounded_length(inputs) : inputs; }
    Index panel_size() const { return length() * PANEL<T>; }
    Index size() const { return panels() * panel_size(); }

    void pack(Index panel) {
        T* to = packed + panel * panel_size();
        const Index first = panel * PANEL<T>;
        const Index count = std::min<Index>(PANEL<T>, outputs - first);
        if (count < PANEL<T>) std::fill_n(to, panel_size(), T(0));
        if constexpr (std::is_same_v<T, float>)
            if (rounded) return pack_rounded(to, first, count);
        if (transposed) {
            for (Index k = 0; k < inputs; ++k)
                std::copy_n(stored + k * stride + first, count, to + k * PANEL<T>);
        } else {
            // A few inputs at a time: what is written stays in the first-level cache.
            constexpr Index few = 64 / sizeof(T);
            for (Index begin = 0; begin < inputs; begin += few)
                for (Index j = 0; j < count; ++j)
                    for (Index k = begin; k < std::min(begin + few, inputs); ++k)
                        to[k * PANEL<T> + j] = stored[(first + j) * stride + k];
        }
    }

    void pack_rounded(float* to, Index first, Index count) const {
        constexpr Index P = PANEL<float>;
        if (!transposed) {
            thread_local std::vector<float> memory;
            memory.resize(length());
            for (Index j = 0; j < count; ++j) {
                round_row(stored + (first + j) * stride, inputs, memory.data());
                for (Index k = 0; k < length(); ++k) to[k * P + j] = memory[k];
            }
        } else if (!PAIRS) {
            for (Index k = 0; k < inputs; ++k)
                round_row(stored + k * stride + first, count, to + k * P);
        } else {
            for (Index k = 0; k < inputs; k += 2) {
                const float* const even = stored + k * stride + first;
                const float* const odd = even + stride;
                std::uint32_t pairs[P];
                for (Index j = 0; j < count; ++j) pairs[j] = bfloat16(even[j]);
                if (k + 1 < inputs)
                    for (Index j = 0; j < count; ++j) pairs[j] |= bfloat16(odd[j]) << 16;
                std::memcpy(to + k / 2 * P, pairs, count * sizeof *pairs);
            }
        }
    }
};

// Rows of an operand that one thread works on.
template <class T>
struct Rows {
    T* first;
    Index stride;

    T* operator[](Index row) const { return first + row * stride; }
};

// The compiler would rather read a vector of W again for each row than keep it in a register.
template <class V>
inline void keep(V& vector) {
#if defined(__AVX512F__)
    asm("" : "+v"(vector));
#elif defined(__x86_64__)
    asm("" : "+x"(vector));
#elif defined(__aarch64__)
    asm("" : "+w"(vector));
#endif
}

// Whole panels; `ahead` is what will be read after them, fetched meanwhile into the second-level
// cache, `pace` elements for each input.
template <class T, bool PAIRED, int ROWS, int PANELS>
void tile(const T* packed, Index panel_size, Index inputs, const T* ahead, Index pace,
          Rows<T> v, Rows<T> init, Rows<T> out) {
    constexpr int L = Lanes<T>::count, VECTORS = 2 * PANELS;
    Vector<T> sum[ROWS][VECTORS] = {};
    if (init.first)
        for (int r = 0; r < ROWS; ++r)
            for (int j = 0; j < VECTORS; ++j) sum[r][j] = load(init[r] + j * L);
    for (Index k = 0; k < inputs; ++k) {
        if (PANELS == 1) __builtin_prefetch(ahead + k * pace, 0, 2);
        const auto part = [&](int j) {
            auto w = load(packed + (j / 2) * panel_size + k * PANEL<T> + (j % 2) * L);
            keep(w);
            return w;
        };
        if constexpr (PANELS == 1) {
            const Vector<T> w[] = {part(0), part(1)};
            for (int r = 0; r < ROWS; ++r)
                for (int j = 0; j < 2; ++j)
                    sum[r][j] = accumulated<PAIRED, T>(sum[r][j], w[j], v[r][k]);
        } else {
            for (int j = 0; j < VECTORS; ++j) {
                const auto w = part(j);
                for (int r = 0; r < ROWS; ++r)
                    sum[r][j] = accumulated<PAIRED, T>(sum[r][j], w, v[r][k]);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int j = 0; j < VECTORS; ++j) store(out[r] + j * L, sum[r][j]);
}

// Few rows are bound by reading W: several panels at once keep more reads and sums under way.
Index panels_together(Index rows) { return rows < 4 ? 5 - rows : 1; }

// Kernels of one panel, by their rows less one.
template <class T, bool PAIRED, std::size_t... LESS>
constexpr auto one_panel(std::index_sequence<LESS...>) {
    return std::array{tile<T, PAIRED, LESS + 1, 1>...};
}

template <class T, bool PAIRED>
auto kernel(Index rows, Index panels) {
    if (panels == 4) return tile<T, PAIRED, 1, 4>;
    if (panels == 3) return tile<T, PAIRED, 2, 3>;
    if (panels == 2) return tile<T, PAIRED, 3, 2>;
    constexpr auto kernels = one_panel<T, PAIRED>(std::make_index_sequence<TILE_ROWS>());
    return kernels[rows - 1];
}

template <class T>
void linear(const Matrix<T>& w, Index rows, Rows<T> v, Rows<T> init, Rows<T> out) {
    constexpr Index P = PANEL<T>;
    const Index length = w.length(), panel_size = w.panel_size();
    auto kernels = kernel<T, false>;
    if constexpr (std::is_same_v<T, float>) {
        if (w.rounded) {
            if (PAIRS) kernels = kernel<T, PAIRS>;
            thread_local std::vector<float> memory;
            if (memory.size() < std::size_t(rows * length)) memory.resize(rows * length);
            for (Index row = 0; row < rows; ++row)
                round_row(v[row], w.inputs, memory.data() + row * length);
            v = {memory.data(), length};
        }
    }
    const Index groups = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const Index pace = (P + groups - 1) / groups;
    for (Index panel = 0, panels; panel < w.panels(); panel += panels) {
        const Index column = panel * P, columns = w.outputs - column;
        panels = panels_together(rows);
        if (columns < panels * P) panels = 1;
        const T* const packed = w.packed + panel * panel_size;
        for (Index group = 0; group < groups; ++group) {
            const Index row = rows * group / groups, count = rows * (group + 1) / groups - row;
            const auto run = [&](Rows<T> init, Rows<T> out) {
                kernels(count, panels)(packed, panel_size, length,
                                       packed + panel_size + group * pace * length, pace,
                                       {v[row], v.stride}, init, out);
            };
            const Rows<T> from{init.first ? init[row] + column : nullptr, init.stride};
            const Rows<T> to{out[row] + column, out.stride};
            if (columns >= P) {
                run(from, to);
            } else {
                T edge[TILE_ROWS * P] = {};
                for (Index r = 0; from.first && r < count; ++r)
                    std::copy_n(from[r], columns, edge + r * P);
                run({edge, P}, {edge, P});
                for (Index r = 0; r < count; ++r) std::copy_n(edge + r * P, columns, to[r]);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Pointwise operations

template <class T>
struct Real;

template <>
struct Real<float> {
    static constexpr int mantissa = 23, bias = 127, degree = 7;
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-6f;
    static constexpr float one_tanh = 10;  // from here tanh is 1
};

template <>
struct Real<double> {
    static constexpr int mantissa = 52, bias = 1023, degree = 13;
    static constexpr double ln2_high = 0.6931471803691238, ln2_low = 1.9082149292705877e-10;
    static constexpr double one_tanh = 20;
};

template <class T>
inline Vector<T> clamped(Vector<T> x, T low, T high) {  // NaN stays NaN
    const Vector<T> lowest = Vector<T>{} + low, highest = Vector<T>{} + high;
    x = x < lowest ? lowest : x;
    return x > highest ? highest : x;
}

// e^x = scale (1 + excess): x = n ln 2 + r, |r| <= ln(2) / 2, scale = 2^n, excess = e^r - 1.
template <class T>
struct Exponential {
    Vector<T> scale, excess;
};

// Taylor's series has converged to a rounding error at these degrees (r^8/8! < 6e-9,
// r^14/14! < 5e-18). Above the largest number scale is infinite, below the smallest normal one 0.
template <class T>
inline Exponential<T> exponential(Vector<T> x) {
    using R = Real<T>;
    using Bits = typename Lanes<T>::Bits;
    constexpr T ln2 = T(0.6931471805599453);
    x = clamped<T>(x, -ln2 * T(R::bias + 0.25), ln2 * T(R::bias + 1.25));
    // Adding 1.5 * 2^mantissa rounds to an integer, which then stands in the lowest bits.
    constexpr T round = T(Index(3) << (R::mantissa - 1));
    const Vector<T> rounded = x * (1 / ln2) + round;
    const Vector<T> n = rounded - round;
    const Vector<T> r = x - n * R::ln2_high - n * R::ln2_low;
    T factorial = 1;
    for (int k = 2; k <= R::degree; ++k) factorial *= T(k);
    Vector<T> series = Vector<T>{} + 1 / factorial;
    for (int k = R::degree; k > 2; --k) {
        factorial /= T(k);
        series = series * r + 1 / factorial;
    }
    Bits bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    bits = (bits + R::bias) << R::mantissa;
    Exponential<T> result;
    std::memcpy(&result.scale, &bits, sizeof bits);
    result.excess = r * r * series + r;
    return result;
}

template <class T>
inline Vector<T> sigmoid(Vector<T> x) {
    const auto e = exponential<T>(-x);
    return T(1) / (T(1) + e.scale * (T(1) + e.excess));
}

// (e^2x - 1) / (e^2x + 1), from e^2x - 1 = scale excess + (scale - 1), which is exact near 0.
template <class T>
inline Vector<T> tanh(Vector<T> x) {
    const auto e = exponential<T>(clamped<T>(x, -Real<T>::one_tanh, Real<T>::one_tanh) * T(2));
    const Vector<T> less_one = e.scale * e.excess + (e.scale - T(1));
    return less_one / (less_one + T(2));
}

template <class T>
inline Vector<T> below(Vector<T> a, Vector<T> b) {
    const Vector<T> zero{}, one = zero + T(1), half = zero + T(0.5);
    return a < b ? one : (a == b ? half : zero);
}

template <class T>
inline Vector<T> minimum(Vector<T> a, Vector<T> b) {  // NaN if either is
    return ((a < b) | (a != a)) ? a : b;
}

// out = f(in...), elementwise; out may be one of in.
template <class T, class F, class... In>
inline void map(Index length, F f, T* out, In*... in) {
    constexpr Index L = Lanes<T>::count;
    Index i = 0;
    for (; i + L <= length; i += L) store(out + i, f(load(in + i)...));
    if (i < length) store_first(out + i, f(load_first(in + i, length - i)...), length - i);
}

// ---------------------------------------------------------------------------------------------
// Programs

enum Operation : Index {
    LINEAR, ADD, SUB, MUL, MULADD, MIN, BELOW, AFFINE, SIGMOID, TANH, DSIGMOID, DTANH
};

// As Python writes them: see native.py.
struct Instruction {
    Index operation, out, a, b, c, weight, length;
    double alpha, beta;
};

enum When : Index { FIXED, NOW, BEFORE };

template <class T>
struct Operand {
    T* first;
    Index stride, when;
};

// Elements of a row to which a run of pointwise instructions is applied before the next ones, so
// that intermediate results stay in the first-level cache.
template <class T>
constexpr Index CHUNK = 1024 / sizeof(T);

template <class T>
struct Program {
    const Instruction* instructions;
    Index count;
    const Operand<T>* operands;
    std::vector<Matrix<T>> weights;
    std::vector<Index> ends;  // of the run of pointwise instructions that begins here

    Program(const Instruction* instructions, Index count, const Operand<T>* operands)
        : instructions(instructions), count(count), operands(operands), ends(count) {
        for (Index i = 0; i < count; i = ends[i]) {
            ends[i] = i + 1;
            while (ends[i] < count && joins(i, ends[i])) ++ends[i];
        }
    }

    // Whether instruction `next` belongs to the run that began with `first`: none of them writes
    // to, or reads, columns that overlap in part those of another.
    bool joins(Index first, Index next) const {
        const auto numbers = [&](Index i) {
            const Instruction& x = instructions[i];
            return std::array<Index, 4>{x.out, x.a, x.b, x.c};
        };
        const Index length = instructions[first].length;
        if (instructions[first].operation == LINEAR || instructions[next].operation == LINEAR ||
            instructions[next].length != length)
            return false;
        for (Index earlier = first; earlier < next; ++earlier)
            for (Index a : numbers(earlier))
                for (Index b : numbers(next)) {
                    if (a < 0 || b < 0) continue;
                    const auto distance = std::abs(operands[a].first - operands[b].first);
                    if (distance > 0 && distance < length) return false;
                }
        return true;
    }

    // The rows [first, last) at a step; offsets[when] is the step's first row in its operands.
    void step(const Index* offsets, Index first, Index last) const {
        const auto rows = [&](Index operand) -> Rows<T> {
            if (operand < 0) return {nullptr, 0};
            const auto& o = operands[operand];
            return {o.first + (offsets[o.when] + first) * o.stride, o.stride};
        };
        for (Index i = 0; i < count; i = ends[i]) {
            const Instruction& x = instructions[i];
            if (x.operation == LINEAR) {
                linear(weights[x.weight], last - first, rows(x.a), rows(x.c), rows(x.out));
                continue;
            }
            for (Index row = first; row < last; ++row)
                for (Index begin = 0; begin < x.length; begin += CHUNK<T>)
                    for (Index j = i; j < ends[i]; ++j)
                        pointwise(instructions[j], offsets, row, begin,
                                  std::min(CHUNK<T>, x.length - begin));
        }
    }

    void pointwise(const Instruction& i, const Index* offsets, Index row, Index begin,
                   Index length) const {
        using V = Vector<T>;
        const auto at = [&](Index operand) {
            const auto& o = operands[operand];
            return o.first + (offsets[o.when] + row) * o.stride + begin;
        };
        T *const out = at(i.out), *const a = at(i.a);
        const auto unary = [&](auto f) { map(length, f, out, a); };
        const auto binary = [&](auto f) { map(length, f, out, a, at(i.b)); };
        switch (i.operation) {
            case ADD: return binary([](V x, V y) { return x + y; });
            case SUB: return binary([](V x, V y) { return x - y; });
            case MUL: return binary([](V x, V y) { return x * y; });
            case MIN: return binary([](V x, V y) { return minimum<T>(x, y); });
            case BELOW: return binary([](V x, V y) { return below<T>(x, y); });
            case DSIGMOID: return binary([](V g, V s) { return g * (s * (T(1) - s)); });
            case DTANH: return binary([](V g, V y) { return g * (T(1) - y * y); });
            case SIGMOID: return unary([](V x) { return sigmoid<T>(x); });
            case TANH: return unary([](V x) { return tanh<T>(x); });
            case AFFINE:
                return unary([m = T(i.alpha), n = T(i.beta)](V x) { return m * x + n; });
            case MULADD:
                return map(
                    length, [](V x, V y, V z) { return x * y + z; }, out, a, at(i.b), at(i.c));
        }
    }

    // All steps for the rows [first, last) of the batch.
    void run(const Index* sizes, Index steps, bool reverse, Index first, Index last) const {
        Index total = 0;
        for (Index t = 0; t < steps; ++t) total += sizes[t];
        Index start = reverse ? total : 0;
        for (Index step = 0; step < steps; ++step) {
            const Index t = reverse ? steps - 1 - step : step;
            if (reverse) start -= sizes[t];
            const Index before = t ? sizes[0] + start - sizes[t - 1] : 0;
            const Index offsets[] = {0, start, before};
            const Index end = std::min(last, sizes[t]);
            if (first < end) this->step(offsets, first, end);
            if (!reverse) start += sizes[t];
        }
    }
};

// The first row of a part when the batch is cut into parts of about equal work, where a row's work
// is the number of steps that have it. A part may be empty.
Index cut(const Index* sizes, Index steps, Index part, Index parts) {
    Index total = 0, done = 0, row = 0;
    for (Index t = 0; t < steps; ++t) total += sizes[t];
    for (Index length = steps; row < sizes[0] && done * parts < total * part; ++row) {
        while (sizes[length - 1] <= row) --length;
        done += length;
    }
    return row;
}

// Memory that a thread keeps for its next call: fresh pages would cost as much as the packing.
struct Workspace {
    static constexpr std::align_val_t LINE{64};
    struct Release {
        void operator()(void* memory) const { ::operator delete(memory, LINE); }
    };
    std::unique_ptr<void, Release> memory;
    std::size_t size = 0;

    void* reserve(std::size_t wanted) {
        if (wanted > size) {
            size = 0;
            memory.reset();
            memory.reset(::operator new(wanted, LINE));
            size = wanted;
        }
        return memory.get();
    }
};

// OpenMP's way to call a function on several threads (GOMP_parallel in GCC's and LLVM's libraries).
using Team = void (*)(void (*)(void*), void*, unsigned, unsigned);

// Calls work() on so many threads, or on fewer if there are not as many to be had.
//
// PyTorch's own threads are best: they wait for work at full speed for some milliseconds, and
// others beside them would have to share the processors with them.
template <class F>
void parallel(Team team, Index threads, F work) {
    if (threads == 1) return work();
    if (team) return team([](void* f) { (*static_cast<F*>(f))(); }, &work, threads, 0);
    std::vector<std::thread> others;
    try {
        for (Index i = 1; i < threads; ++i) others.emplace_back(std::ref(work));
    } catch (const std::system_error&) {
    }
    work();
    for (auto& thread : others) thread.join();
}

template <class T>
int run(const Instruction* instructions, Index count, const Operand<T>* operands,
        const Index* weights, Index weight_count, bool rounded, const Index* sizes, Index steps,
        bool reverse, Index threads, Team team) try {
    Program<T> program(instructions, count, operands);
    std::size_t size = 0;
    Index panels = 0;
    for (Index i = 0; i < weight_count; ++i) {
        const Index* w = weights + 5 * i;
        const T* const stored = reinterpret_cast<const T*>(w[0]);
        program.weights.push_back({stored, w[1], w[2], w[3], w[4] != 0, rounded, nullptr});
        size += program.weights.back().size() * sizeof(T);
        panels += program.weights.back().panels();
    }
    thread_local Workspace workspace;
    T* packed = static_cast<T*>(workspace.reserve(size));
    for (auto& w : program.weights) {
        w.packed = packed;
        packed += w.size();
    }
    std::atomic<Index> next_panel{0}, packed_panels{0}, next_part{0};
    const Index parts = std::min(threads, sizes[0]);
    parallel(team, parts, [&] {
        for (Index panel; (panel = next_panel++) < panels; ++packed_panels) {
            auto* w = program.weights.data();
            for (; panel >= w->panels(); ++w) panel -= w->panels();
            w->pack(panel);
        }
        while (packed_panels < panels) std::this_thread::yield();
        for (Index part; (part = next_part++) < parts;)
            program.run(sizes, steps, reverse, cut(sizes, steps, part, parts),
                        cut(sizes, steps, part + 1, parts));
    });
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// ---------------------------------------------------------------------------------------------
// Softmax

using Half = std::uint16_t;
typedef Half Halves __attribute__((vector_size(BYTES / 2)));
typedef std::uint32_t Words __attribute__((vector_size(BYTES)));

inline Vector<float> load_halves(const Half* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Words bits = __builtin_convertvector(halves, Words) << 16;
    Vector<float> x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline void store_halves(Half* to, Vector<float> x) {  // which are finite
    Words bits;
    std::memcpy(&bits, &x, sizeof bits);
    const Halves halves = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// x = logits + bias of a row becomes e - Z onehot(t), e = exp(x - max x), Z = sum e, and gives
// ln softmax(x)[t] and Z. A row stays in the second-level cache all the while.
void exponentiate_row(Half* row, Index columns, const float* bias, Index target, float* log_p,
                      float* z) {
    using V = Vector<float>;
    constexpr Index L = Lanes<float>::count;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const Index whole = columns / L * L, rest = columns - whole;
    thread_local std::vector<float> memory;
    if (Index(memory.size()) < columns) memory.resize(columns);
    float* const x = memory.data();
    V largest = V{} - infinity;
    for (Index i = 0; i < whole; i += L) {
        const V sum = load_halves(row + i) + load(bias + i);
        store(x + i, sum);
        largest = sum > largest ? sum : largest;
    }
    float most = -infinity;
    for (Index i = 0; i < L; ++i) most = std::max(most, largest[i]);
    for (Index i = whole; i < columns; ++i) {
        x[i] = widened(row[i]) + bias[i];
        most = std::max(most, x[i]);
    }
    V total{};
    const auto next = [&](V sum) {
        const auto e = exponential<float>(sum - most);
        const V value = e.scale * (1.0f + e.excess);
        total += value;
        return value;
    };
    for (Index i = 0; i < whole; i += L) store_halves(row + i, next(load(x + i)));
    if (rest) {
        V last = load_first(x + whole, rest);
        for (Index i = rest; i < L; ++i) last[i] = -infinity;
        Half halves[L];
        store_halves(halves, next(last));
        std::copy_n(halves, rest, row + whole);
    }
    *z = 0;
    for (Index i = 0; i < L; ++i) *z += total[i];
    *log_p = x[target] - most - std::log(*z);
    row[target] = bfloat16(std::exp(x[target] - most) - *z);
}

}  // namespace

#if defined(_WIN32)
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C"
#endif

EXPORTED int execute(bool wide, bool rounded, const void* instructions, Index count, const void* operands,
                     const Index* weights, Index weight_count, const Index* sizes, Index steps,
                     bool reverse, Index threads, void* team) {
    const auto as = [&](auto number) {
        using T = decltype(number);
        return run<T>(static_cast<const Instruction*>(instructions), count,
                      static_cast<const Operand<T>*>(operands), weights, weight_count, rounded,
                      sizes, steps, reverse, threads, reinterpret_cast<Team>(team));
    };
    return wide ? as(double()) : as(float());  // double is not rounded: see native.py
}

EXPORTED void exponentiate(void* logits, Index rows, Index columns, const float* bias,
                           const Index* targets, float* log_p, float* z, Index threads,
                           void* team) {
    Half* const first = static_cast<Half*>(logits);
    std::atomic<Index> next{0};
    constexpr Index FEW = 8;  // rows that a thread takes at once
    parallel(reinterpret_cast<Team>(team), std::min(threads, (rows + FEW - 1) / FEW), [&] {
        for (Index begin; (begin = FEW * next++) < rows;)
            for (Index row = begin; row < std::min(begin + FEW, rows); ++row)
                exponentiate_row(first + row * columns, columns, bias, targets[row], log_p + row,
                                 z + row);
    });
}
