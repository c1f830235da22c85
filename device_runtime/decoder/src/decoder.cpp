/* The public face: a clip, tile by tile, and each tile latent frame by latent frame. */
#include "hvdc/decoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "executor.h"
#include "mosaic.h"
#include "text.h"
#include "tiles.h"

using hvdc::Executor;
using hvdc::Mosaic;
using hvdc::Port;
using hvdc::Span;

struct hvdc_frame_decoder {
    hvdc_frame_decoder(const hvdc_artifact *artifact, const hvdc_decoder_options &given)
        : record(*hvdc_artifact_decoder(artifact)), options(given), executor(artifact, given) {
        options.libraries = options.backend_library = options.system_library = nullptr; /* the caller's */
    }

    hvdc_decoder record;
    hvdc_decoder_options options;
    Executor executor;
    uint64_t clip_bytes = 0;
};

namespace {

uint32_t code_limit(const Port &port) { return port.record->dtype == HVDC_PORT_DTYPE_UINT8 ? 255 : 65535; }

/* ONNX's QuantizeLinear: halves to even, clipped to the codes. */
template <typename Code>
void quantise(const float *from, size_t count, const Port &port, Code *to) {
    const auto zero_point = static_cast<float>(port.record->zero_point);
    const auto most = static_cast<float>(code_limit(port));
    for (size_t i = 0; i < count; i++)
        to[i] = static_cast<Code>(std::clamp(std::nearbyint(from[i] / port.record->scale) + zero_point, 0.0f, most));
}

/* One frame of a tile of a latent into its buffer: [1][channels][1][rows][columns]. */
void write_tile(const hvdc_decoder_latent &latent, uint32_t t, const Span &rows, const Span &columns, const Port &port,
                void *buffer) {
    size_t at = 0;
    for (size_t channel = 0; channel < latent.channels; channel++)
        for (size_t y = rows.start; y < size_t{rows.start} + rows.size; y++, at += columns.size) {
            const float *from =
                latent.values + ((channel * latent.frames + t) * latent.rows + y) * latent.columns + columns.start;
            if (port.record->dtype == HVDC_PORT_DTYPE_UINT8)
                quantise(from, columns.size, port, static_cast<uint8_t *>(buffer) + at);
            else
                quantise(from, columns.size, port, static_cast<uint16_t *>(buffer) + at);
        }
}

/* Codes [1][channels][count][pixels] to numbers [count][pixels][channels]. */
template <typename Code>
void dequantise(const Code *from, const Port &port, float *to) {
    const size_t channels = port.dims[1], count = port.dims[2], pixels = size_t{port.dims[3]} * port.dims[4];
    const auto zero_point = static_cast<int32_t>(port.record->zero_point);
    for (size_t c = 0; c < channels; c++)
        for (size_t f = 0; f < count; f++)
            for (size_t p = 0; p < pixels; p++)
                to[(f * pixels + p) * channels + c] =
                    static_cast<float>(from[(c * count + f) * pixels + p] - zero_point) * port.record->scale;
}

void read_tile(const void *buffer, const Port &port, float *values) {
    if (port.record->dtype == HVDC_PORT_DTYPE_UINT8)
        dequantise(static_cast<const uint8_t *>(buffer), port, values);
    else
        dequantise(static_cast<const uint16_t *>(buffer), port, values);
}

bool check_finite(const hvdc_decoder_latent &latent, hvdc_failure *failure) {
    const size_t plane = size_t{latent.rows} * latent.columns, count = plane * latent.frames * latent.channels;
    const float *const end = latent.values + count;
    const float *found = std::find_if_not(latent.values, end, [](float value) { return std::isfinite(value); });
    if (found == end) return true;
    const auto at = static_cast<size_t>(found - latent.values);
    return hvdc::fail(failure, HVDC_FAILURE_USAGE,
                      "the latent is not finite at channel " + std::to_string(at / plane / latent.frames) + ", frame " +
                          std::to_string(at / plane % latent.frames) + ", row " +
                          std::to_string(at % plane / latent.columns) + ", column " +
                          std::to_string(at % latent.columns) + ": the denoising before it went wrong");
}

/* What one clip needs while it is decoded. */
struct Clip {
    hvdc_frame_decoder &decoder;
    const hvdc_decoder_latent &latent;
    hvdc_decoder_sink sink;
    void *sink_user;
    std::vector<Span> rows, columns;
    Mosaic mosaic;
    std::vector<float> values;
    uint64_t done = 0;

    bool run(hvdc_failure *failure) {
        for (size_t row = 0; row < rows.size(); row++)
            for (size_t column = 0; column < columns.size(); column++)
                if (!run_tile(row, column, failure)) return false;
        return true;
    }

    bool run_tile(size_t row, size_t column, hvdc_failure *failure) {
        Executor &executor = decoder.executor;
        const bool last = row + 1 == rows.size() && column + 1 == columns.size();
        uint32_t frame = 0;
        for (uint32_t t = 0; t < latent.frames; t++) {
            write_tile(latent, t, rows[row], columns[column], executor.latent_port(t), executor.latent(t));
            if (!executor.run(t, failure)) return false;
            const Port &port = executor.frames_port(t);
            read_tile(executor.frames(t), port, values.data());
            const uint32_t count = port.dims[2];
            mosaic.put(row, column, frame, count, values.data());
            for (uint32_t i = 0; last && i < count; i++)
                if (!sink(sink_user, frame + i, mosaic.frame(frame + i), failure)) return false;
            frame += count;
            if (!report(failure)) return false;
        }
        return true;
    }

    bool report(hvdc_failure *failure) {
        done++;
        const hvdc_decoder_options &options = decoder.options;
        const uint64_t total = uint64_t{rows.size()} * columns.size() * latent.frames;
        if (options.progress == nullptr || options.progress(options.progress_user, done, total)) return true;
        return hvdc::fail(failure, HVDC_FAILURE_USAGE,
                          "decoding was stopped after " + std::to_string(done) + " of " + std::to_string(total) +
                              " latent frames of tiles");
    }
};

/* Of the frames that a tile gives at once. */
size_t tile_values(const hvdc_frame_decoder &decoder) {
    return std::max(decoder.executor.frames_port(0).elements, decoder.executor.frames_port(1).elements);
}

bool forecast(const hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, uint64_t *bytes,
              hvdc_failure *failure) {
    uint32_t size[3] = {0, 0, 0};
    const hvdc_decoder &record = decoder->record;
    Mosaic mosaic;
    if (!hvdc_frame_decoder_size(decoder, latent, size, failure) ||
        !mosaic.plan(hvdc::plan_tiles(latent->rows, record.tile_rows, record.overlap_rows),
                     hvdc::plan_tiles(latent->columns, record.tile_columns, record.overlap_columns), size[0],
                     record.spatial_scale, HVDC_FRAME_CHANNELS, failure))
        return false;
    *bytes = mosaic.bytes() + tile_values(*decoder) * sizeof(float);
    return true;
}

bool decode(hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, hvdc_decoder_sink sink, void *sink_user,
            hvdc_failure *failure) {
    uint32_t size[3] = {0, 0, 0};
    if (!hvdc_frame_decoder_size(decoder, latent, size, failure) || !check_finite(*latent, failure)) return false;
    const hvdc_decoder &record = decoder->record;
    Clip clip{*decoder, *latent, sink, sink_user, {}, {}, {}, {}};
    clip.rows = hvdc::plan_tiles(latent->rows, record.tile_rows, record.overlap_rows);
    clip.columns = hvdc::plan_tiles(latent->columns, record.tile_columns, record.overlap_columns);
    if (!clip.mosaic.plan(clip.rows, clip.columns, size[0], record.spatial_scale, HVDC_FRAME_CHANNELS, failure))
        return false;
    clip.mosaic.allocate();
    clip.values.resize(tile_values(*decoder));
    decoder->clip_bytes = clip.mosaic.bytes() + clip.values.size() * sizeof(float);
    const hvdc_decoder_options &options = decoder->options;
    if (options.give_back != nullptr && !options.give_back(options.hook_user, failure)) return false;
    const bool decoded = clip.run(failure);
    hvdc_failure later{};
    const bool taken = options.take_again == nullptr || options.take_again(options.hook_user, &later);
    if (decoded && !taken && failure != nullptr) *failure = later; /* else the first one is what matters */
    return decoded && taken;
}

bool refuse_memory(hvdc_failure *failure) {
    return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is not enough memory to decode: close other programs");
}

}  // namespace

hvdc_decoder_options hvdc_decoder_default_options(void) {
    hvdc_decoder_options options{};
#if defined(__x86_64__)
    options.emulator = true;
#endif
    return options;
}

bool hvdc_frame_decoder_open(const hvdc_artifact *artifact, const hvdc_decoder_options *options,
                             hvdc_frame_decoder **decoder, hvdc_failure *failure) {
    *decoder = nullptr;
    if (hvdc_artifact_decoder(artifact) == nullptr)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the artifact holds no decoder: compile it with --vae PATH --latents FILE");
    if ((options->allocate == nullptr) != (options->release == nullptr))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a decoder's allocate and release belong together: give both");
    try {
        auto made = std::make_unique<hvdc_frame_decoder>(artifact, *options);
        if (!made->executor.open(*options, failure)) return false;
        *decoder = made.release();
        return true;
    } catch (const std::bad_alloc &) {
        return refuse_memory(failure);
    }
}

void hvdc_frame_decoder_close(hvdc_frame_decoder *decoder) { delete decoder; }

void hvdc_frame_decoder_facts(const hvdc_frame_decoder *decoder, hvdc_decoder_facts *facts) {
    decoder->executor.describe(facts);
    facts->clip_bytes = decoder->clip_bytes;
}

bool hvdc_frame_decoder_size(const hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, uint32_t size[3],
                             hvdc_failure *failure) {
    const hvdc_decoder &record = decoder->record;
    if (latent->channels != record.channels || latent->frames == 0 || latent->rows < record.tile_rows ||
        latent->columns < record.tile_columns)
        return hvdc_fail(
            failure, HVDC_FAILURE_USAGE,
            "the artifact's decoder does not fit these latents: expected %u channels, a frame or more, and "
            "at least %u x %u latent pixels, found %u channels, %u frames, %u x %u: give latents of the "
            "clip that the artifact is compiled for",
            record.channels, record.tile_rows, record.tile_columns, latent->channels, latent->frames, latent->rows,
            latent->columns);
    const uint64_t sizes[3] = {1 + uint64_t{record.temporal_scale} * (latent->frames - 1),
                               uint64_t{record.spatial_scale} * latent->rows,
                               uint64_t{record.spatial_scale} * latent->columns};
    for (int i = 0; i < 3; i++) {
        if (sizes[i] > INT32_MAX)
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a clip of %u latent frames of %u x %u is too large",
                             latent->frames, latent->rows, latent->columns);
        size[i] = static_cast<uint32_t>(sizes[i]);
    }
    return true;
}

bool hvdc_frame_decoder_decode(hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, hvdc_decoder_sink sink,
                               void *sink_user, hvdc_failure *failure) {
    try {
        return decode(decoder, latent, sink, sink_user, failure);
    } catch (const std::bad_alloc &) {
        return refuse_memory(failure);
    }
}

bool hvdc_frame_decoder_forecast(const hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, uint64_t *bytes,
                                 hvdc_failure *failure) {
    try {
        return forecast(decoder, latent, bytes, failure);
    } catch (const std::bad_alloc &) {
        return refuse_memory(failure);
    }
}
