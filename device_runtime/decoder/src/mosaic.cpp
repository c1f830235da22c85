#include "mosaic.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "text.h"

namespace hvdc {

namespace {

/* The weight of a tile's own pixels over a fade, then that of the tile before: from doubles, as numpy makes them. */
std::vector<float> shares_of(size_t pixels) {
    std::vector<float> shares(2 * pixels);
    for (size_t i = 0; i < pixels; i++) {
        const double share = static_cast<double>(i) / static_cast<double>(pixels);
        shares[i] = static_cast<float>(share);
        shares[pixels + i] = static_cast<float>(1.0 - share);
    }
    return shares;
}

void fade(float *values, const float *before, size_t count, float own, float other) {
    for (size_t i = 0; i < count; i++) values[i] = before[i] * other + values[i] * own;
}

uint8_t pixel_of(float value) {
    const float unit = (value + 1.0f) * 0.5f;
    return static_cast<uint8_t>(std::nearbyint(std::clamp(unit, 0.0f, 1.0f) * 255.0f));
}

uint32_t largest_fade(const std::vector<Span> &spans) { return spans.back().fade; }

}  // namespace

bool Mosaic::plan(std::vector<Span> rows, std::vector<Span> columns, uint32_t frames, uint32_t scale, uint32_t channels,
                  hvdc_failure *failure) {
    rows_ = std::move(rows);
    columns_ = std::move(columns);
    count_ = frames;
    scale_ = scale;
    channels_ = channels;
    const uint64_t height = rows_.back().keep_stop * uint64_t{scale},
                   width = columns_.back().keep_stop * uint64_t{scale};
    if (height > UINT32_MAX || width > UINT32_MAX / channels || frames > SIZE_MAX / 64 / height / (width * channels))
        return fail(failure, HVDC_FAILURE_USAGE,
                    std::to_string(frames) + " frames of " + std::to_string(width) + " × " + std::to_string(height) +
                        " pixels are more than fit any memory");
    width_values_ = static_cast<size_t>(width) * channels;
    frame_bytes_ = static_cast<size_t>(height) * width_values_;
    const size_t row_fade = largest_fade(rows_) * scale_, column_fade = largest_fade(columns_) * scale_;
    right_values_ = columns_.size() > 1 ? count_ * rows_.front().size * scale_ * column_fade * channels_ : 0;
    below_values_ = rows_.size() > 1 ? count_ * row_fade * columns_.front().size * scale_ * channels_ : 0;
    return true;
}

void Mosaic::allocate() {
    row_shares_ = shares_of(largest_fade(rows_) * scale_);
    column_shares_ = shares_of(largest_fade(columns_) * scale_);
    frames_.assign(count_ * frame_bytes_, 0);
    right_.assign(right_values_, 0.0f);
    below_.assign(rows_.size() > 1 ? columns_.size() : 0, std::vector<float>(below_values_, 0.0f));
}

uint64_t Mosaic::bytes() const {
    const uint64_t strips = rows_.size() > 1 ? columns_.size() : 0;
    return count_ * frame_bytes_ + (right_values_ + strips * below_values_) * sizeof(float);
}

Mosaic::Extent Mosaic::extent(size_t row, size_t column) const {
    return {rows_[row].size * scale_, columns_[column].size * scale_ * channels_};
}

void Mosaic::put(size_t row, size_t column, uint32_t first, uint32_t count, float *values) {
    const Extent tile = extent(row, column);
    for (uint32_t i = 0; i < count; i++) put_frame(row, column, first + i, values + i * tile.rows * tile.row_values);
}

void Mosaic::put_frame(size_t row, size_t column, uint32_t frame, float *values) {
    const Extent tile = extent(row, column);
    const Span &rows = rows_[row], &columns = columns_[column];
    const size_t top = (rows.keep_start - rows.start) * scale_, bottom = (rows.keep_stop - rows.start) * scale_;
    const size_t left = (columns.keep_start - columns.start) * scale_ * channels_;
    const size_t right = (columns.keep_stop - columns.start) * scale_ * channels_;
    const size_t row_fade = rows.fade * scale_, column_fade = columns.fade * scale_;

    const float *above = row_fade == 0 ? nullptr : below_[column].data() + frame * row_fade * tile.row_values;
    for (size_t y = 0; y < row_fade; y++)
        fade(values + (top + y) * tile.row_values, above + y * tile.row_values, tile.row_values, row_shares_[y],
             row_shares_[row_fade + y]);
    const float *before = column_fade == 0 ? nullptr : right_.data() + frame * tile.rows * column_fade * channels_;
    for (size_t y = 0; column_fade > 0 && y < tile.rows; y++)
        for (size_t x = 0; x < column_fade; x++)
            fade(values + y * tile.row_values + left + x * channels_, before + (y * column_fade + x) * channels_,
                 channels_, column_shares_[x], column_shares_[column_fade + x]);

    uint8_t *pixels = frames_.data() + frame * frame_bytes_ + columns.keep_start * scale_ * channels_;
    for (size_t y = top; y < bottom; y++) {
        uint8_t *line = pixels + (rows.start * scale_ + y) * width_values_;
        std::transform(values + y * tile.row_values + left, values + y * tile.row_values + right, line, pixel_of);
    }

    if (column + 1 < columns_.size()) { /* what the tile on the right will fade from */
        const Span &next = columns_[column + 1];
        const size_t at = (next.keep_start - columns.start) * scale_ * channels_, wide = next.fade * scale_ * channels_;
        float *strip = right_.data() + frame * tile.rows * wide;
        for (size_t y = 0; y < tile.rows; y++) std::copy_n(values + y * tile.row_values + at, wide, strip + y * wide);
    }
    if (row + 1 < rows_.size()) { /* and the tile below */
        const Span &next = rows_[row + 1];
        const size_t at = (next.keep_start - rows.start) * scale_ * tile.row_values;
        const size_t count = next.fade * scale_ * tile.row_values;
        std::copy_n(values + at, count, below_[column].data() + frame * count);
    }
}

}  // namespace hvdc
