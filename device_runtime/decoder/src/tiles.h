/* Where the tiles of a latent lie and which pixels each gives: `plan_tiles` of exporters/decoder/tiles.py, placement
 * "even", whose docstrings explain it. */
#ifndef HVDC_DECODER_TILES_H
#define HVDC_DECODER_TILES_H

#include <cstdint>
#include <vector>

namespace hvdc {

/* One tile along one axis, in latent pixels: it decodes [start, start + size), gives [keep_start, keep_stop), and fades
 * over the first `fade` of these. */
struct Span {
    uint32_t start, size, keep_start, keep_stop, fade;
};

/* The tiles along an axis of `length` latent pixels: at least `size`, which is at least 1 and twice `overlap`. */
std::vector<Span> plan_tiles(uint32_t length, uint32_t size, uint32_t overlap);

}  // namespace hvdc

#endif
