#include "tiles.h"

namespace hvdc {

namespace {

/* a / b, rounded to the nearest, halves to even. */
uint64_t divide_rounding(uint64_t a, uint64_t b) {
    const uint64_t whole = a / b, twice = 2 * (a % b);
    return whole + (twice > b || (twice == b && whole % 2 == 1) ? 1 : 0);
}

}  // namespace

std::vector<Span> plan_tiles(uint32_t length, uint32_t size, uint32_t overlap) {
    if (length <= size) return {{0, length, 0, length, 0}};
    const uint64_t stride = size - overlap, count = (length - overlap + stride - 1) / stride;
    std::vector<Span> spans;
    for (uint64_t i = 0; i < count; i++) {
        const auto start = static_cast<uint32_t>(divide_rounding(i * (length - size), count - 1));
        spans.push_back({start, size, 0, length, i == 0 ? 0 : overlap});
    }
    for (uint64_t i = 1; i < count; i++) { /* a fade lies in the middle of what two tiles share */
        const uint32_t shared = spans[i - 1].start + size - spans[i].start;
        spans[i].keep_start = spans[i].start + (shared - overlap) / 2;
        spans[i - 1].keep_stop = spans[i].keep_start;
    }
    return spans;
}

}  // namespace hvdc
