// Runs the native machine on several threads of its own (std::thread: no OpenMP, whose library is
// not made for ThreadSanitizer) and compares each bit with what one thread computes. Compiled with
// -fsanitize=thread and -DSOURCE='"native.cpp"' by thread_sanitizer.py.
#include SOURCE

#include <cstdio>
#include <cstring>
#include <random>

namespace {

// h_t = tanh(W x_t + U h_{t-1}) sigmoid(x_t), then gradients of the rows with U transposed.
template <class T>
std::vector<T> compute(const std::vector<Index>& sizes, Index width, Index threads, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<T> normal(0, T(0.5));
    Index rows = 0;
    for (Index n : sizes) rows += n;
    const auto drawn = [&](Index count) {
        std::vector<T> values(count);
        for (auto& value : values) value = normal(random);
        return values;
    };
    auto x = drawn(rows * width), w = drawn(width * width), u = drawn(width * width);
    auto bias = drawn(width);
    std::vector<T> state((sizes[0] + rows) * width), sum(rows * width), gate(rows * width);
    T* const now = state.data() + sizes[0] * width;
    const Operand<T> operands[] = {{x.data(), width, NOW},      {state.data(), width, BEFORE},
                                {sum.data(), width, NOW},    {now, width, NOW},
                                {gate.data(), width, NOW},   {bias.data(), 0, FIXED}};
    const Index weights[] = {reinterpret_cast<Index>(w.data()), width, width, width, 0,
                             reinterpret_cast<Index>(u.data()), width, width, width, 0};
    const Instruction forward[] = {{LINEAR, 2, 0, -1, 5, 0, width, 1, 0},  {LINEAR, 2, 1, -1, 2, 1, width, 1, 0},
                          {TANH, 2, 2, -1, -1, -1, width, 1, 0},  {SIGMOID, 4, 0, -1, -1, -1, width, 1, 0},
                          {MUL, 3, 2, 4, -1, -1, width, 1, 0}};
    const Instruction backward[] = {{DTANH, 4, 0, 2, -1, -1, width, 1, 0}, {LINEAR, 2, 4, -1, -1, 1, width, 1, 0}};
    const auto steps = static_cast<Index>(sizes.size());
    const bool wide = sizeof(T) == 8, rounded = !wide && seed % 2;
    execute(wide, rounded, forward, 5, operands, weights, 2, sizes.data(), steps, false, threads,
            nullptr);
    std::vector<T> found(state);
    execute(wide, rounded, backward, 2, operands, weights, 2, sizes.data(), steps, true, threads,
            nullptr);
    found.insert(found.end(), sum.begin(), sum.end());
    return found;
}

template <class T>
int differences(unsigned rounds) {
    int count = 0;
    for (unsigned round = 0; round < rounds; ++round) {
        std::mt19937 random(round);
        std::vector<Index> sizes{Index(1 + random() % 9)};
        for (unsigned t = random() % 7; t--;) sizes.push_back(1 + random() % sizes.back());
        const Index width = 1 + random() % 70, threads = 2 + random() % 3;
        const auto one = compute<T>(sizes, width, 1, round);
        const auto several = compute<T>(sizes, width, threads, round);
        count += std::memcmp(one.data(), several.data(), one.size() * sizeof(T)) != 0;
    }
    return count;
}

}  // namespace

int main(int, char** arguments) {
    const auto rounds = static_cast<unsigned>(std::atoi(arguments[1]));
    const int count = differences<float>(rounds) + differences<double>(rounds);
    std::printf("%u programs, %d differ from one thread's\n", 2 * rounds, count);
    return count != 0;
}
