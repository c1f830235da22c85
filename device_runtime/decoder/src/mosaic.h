/* Tiles become whole frames: neighbours fade into each other over what they share, first from the tile above, then from
 * the tile on the left, both of which are blended by then. The formula is that of exporters/decoder/blending.py, in the
 * same FP32 operations, so that the same tiles give the same pixels. */
#ifndef HVDC_DECODER_MOSAIC_H
#define HVDC_DECODER_MOSAIC_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hvdc/failure.h"
#include "tiles.h"

namespace hvdc {

class Mosaic {
   public:
    /* `frames` frames of all tiles, `scale` pixels per latent pixel, `channels` values per pixel: `bytes` says what
     * `allocate` will take. */
    bool plan(std::vector<Span> rows, std::vector<Span> columns, uint32_t frames, uint32_t scale, uint32_t channels,
              hvdc_failure *failure);
    void allocate();

    /* Frames `first` … of the tile in a row and column of the grid: float [count][rows][columns][channels] of the whole
     * tile around [-1, 1], which are blended in place. Tiles come row by row, from the left; frames in order. */
    void put(size_t row, size_t column, uint32_t first, uint32_t count, float *values);

    /* uint8 [height][width][channels]: whole once the last tile has put it. */
    const uint8_t *frame(uint32_t frame) const { return frames_.data() + frame * frame_bytes_; }

    uint64_t bytes() const;

   private:
    /* A tile's part of a frame, values: [rows][row_values]. */
    struct Extent {
        size_t rows, row_values;
    };

    Extent extent(size_t row, size_t column) const;
    void put_frame(size_t row, size_t column, uint32_t frame, float *values);

    std::vector<Span> rows_, columns_;
    size_t count_ = 0, scale_ = 0, channels_ = 0, width_values_ = 0, frame_bytes_ = 0;
    size_t right_values_ = 0, below_values_ = 0; /* of `right_`, of each strip of `below_` */
    std::vector<uint8_t> frames_;
    std::vector<float> right_;              /* of the tile on the left: [frames][rows][fade columns] */
    std::vector<std::vector<float>> below_; /* of the tile above, for each column: [frames][fade rows][columns] */
    std::vector<float> row_shares_, column_shares_; /* i / n of a fade over n pixels, then 1 - i / n */
};

}  // namespace hvdc

#endif
