#include "rows.h"

#include <stdio.h>
#include <string.h>

#include "program.h"

#define LANES_OF_A_GPU 64u
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *const NAMES[HVDC_ROW_KERNELS] = {"norm_quantize", "rms_rotate_quantize",
                                                    "quantize",      "quantize_hidden",
                                                    "gelu_quantize", "quantize_values",
                                                    "softmax",       "add_gated",
                                                    "narrow",        "widen"};

bool hvdc_rows_open(hvdc_device *d, uint32_t head, hvdc_rows *r, hvdc_failure *failure) {
    char options[64];
    const hvdc_sources sources = {{hvdc_source_tiles_h, hvdc_source_common_cl, hvdc_source_rows_cl}, 3, options};
    memset(r, 0, sizeof *r);
    if (head == 0 || head % 4 != 0) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "attention heads of %u channels: the GPU's kernels take multiples of 4; run on the NPU alone",
                         (unsigned)head);
    }
    r->vector = d->is_cpu && head % 16 == 0 ? 16 : 4;
    r->lanes = d->is_cpu ? 1 : LANES_OF_A_GPU;
    (void)snprintf(options, sizeof options, "-DVECTOR=%u -DLANES=%u", (unsigned)r->vector, (unsigned)r->lanes);
    if (!hvdc_program_build(d, &sources, &r->program, failure)) {
        return false;
    }
    for (uint32_t i = 0; i < HVDC_ROW_KERNELS; ++i) {
        if (!hvdc_program_kernel(d, r->program, NAMES[i], &r->kernels[i], failure)) {
            hvdc_rows_release(d, r);
            return false;
        }
    }
    hvdc_program_keep(d, &sources, r->program);
    return true;
}

void hvdc_rows_release(hvdc_device *d, hvdc_rows *r) {
    for (uint32_t i = 0; i < HVDC_ROW_KERNELS; ++i) {
        hvdc_device_release_kernel(d, r->kernels[i]);
    }
    if (r->program != NULL) {
        d->cl.clReleaseProgram(r->program);
    }
    memset(r, 0, sizeof *r);
}

/* One group of lanes for each row (and batch). */
static bool over_rows(hvdc_device *d, hvdc_rows *r, enum hvdc_row_kernel kernel, const hvdc_argument *arguments,
                      size_t count, uint32_t rows, uint32_t batches, hvdc_failure *failure) {
    const uint64_t global[] = {r->lanes, rows, batches}, local[] = {r->lanes, 1, 1};
    return hvdc_device_launch(d, r->kernels[kernel], arguments, (uint32_t)count, global, local, failure);
}

bool hvdc_rows_norm(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem hidden, uint32_t offset, float eps,
                    hvdc_place gain, float one, hvdc_place shift, float scale, cl_mem codes, hvdc_failure *failure) {
    const float inverse = 1.0f / scale;
    const hvdc_argument arguments[] = {
        HVDC_ARGUMENT(hidden),      HVDC_ARGUMENT(offset),       HVDC_ARGUMENT(e.stride),
        HVDC_ARGUMENT(e.width),     HVDC_ARGUMENT(eps),          HVDC_ARGUMENT(gain.memory),
        HVDC_ARGUMENT(gain.offset), HVDC_ARGUMENT(shift.memory), HVDC_ARGUMENT(shift.offset),
        HVDC_ARGUMENT(one),         HVDC_ARGUMENT(scale),        HVDC_ARGUMENT(inverse),
        HVDC_ARGUMENT(codes)};
    return over_rows(d, r, HVDC_ROW_NORM, arguments, COUNT(arguments), e.rows, 1, failure);
}

bool hvdc_rows_rms(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem y, float eps, hvdc_place gain, cl_mem cosines,
                   cl_mem sines, uint32_t first_token, float scale, cl_mem codes, hvdc_heads heads,
                   hvdc_failure *failure) {
    const float inverse = 1.0f / scale;
    const cl_int rotated = cosines != NULL;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(y),
                                       HVDC_ARGUMENT(e.stride),
                                       HVDC_ARGUMENT(e.width),
                                       HVDC_ARGUMENT(heads.head),
                                       HVDC_ARGUMENT(eps),
                                       HVDC_ARGUMENT(gain.memory),
                                       HVDC_ARGUMENT(gain.offset),
                                       HVDC_ARGUMENT(cosines),
                                       HVDC_ARGUMENT(sines),
                                       HVDC_ARGUMENT(first_token),
                                       HVDC_ARGUMENT(rotated),
                                       HVDC_ARGUMENT(scale),
                                       HVDC_ARGUMENT(inverse),
                                       HVDC_ARGUMENT(codes),
                                       HVDC_ARGUMENT(heads.head_stride),
                                       HVDC_ARGUMENT(heads.keys_stored)};
    return over_rows(d, r, HVDC_ROW_RMS, arguments, COUNT(arguments), e.rows, 1, failure);
}

bool hvdc_rows_quantize(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem y, float scale, cl_mem codes,
                        hvdc_failure *failure) {
    const float inverse = 1.0f / scale;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(y),     HVDC_ARGUMENT(e.stride), HVDC_ARGUMENT(e.width),
                                       HVDC_ARGUMENT(scale), HVDC_ARGUMENT(inverse),  HVDC_ARGUMENT(codes)};
    return over_rows(d, r, HVDC_ROW_QUANTIZE, arguments, COUNT(arguments), e.rows, 1, failure);
}

bool hvdc_rows_quantize_hidden(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem hidden, uint32_t offset, float scale,
                               cl_mem codes, hvdc_failure *failure) {
    const float inverse = 1.0f / scale;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(hidden), HVDC_ARGUMENT(offset),  HVDC_ARGUMENT(e.stride),
                                       HVDC_ARGUMENT(scale),  HVDC_ARGUMENT(inverse), HVDC_ARGUMENT(codes)};
    return over_rows(d, r, HVDC_ROW_QUANTIZE_HIDDEN, arguments, COUNT(arguments), e.rows, 1, failure);
}

bool hvdc_rows_gelu(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem y, float scale, cl_mem codes,
                    hvdc_failure *failure) {
    const float inverse = 1.0f / scale;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(y), HVDC_ARGUMENT(e.stride), HVDC_ARGUMENT(scale),
                                       HVDC_ARGUMENT(inverse), HVDC_ARGUMENT(codes)};
    return over_rows(d, r, HVDC_ROW_GELU, arguments, COUNT(arguments), e.rows, 1, failure);
}

bool hvdc_rows_values(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem y, uint32_t first_token, float scale,
                      cl_mem codes, hvdc_heads heads, hvdc_failure *failure) {
    const float inverse = 1.0f / scale;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(y),
                                       HVDC_ARGUMENT(e.stride),
                                       HVDC_ARGUMENT(e.width),
                                       HVDC_ARGUMENT(heads.head),
                                       HVDC_ARGUMENT(e.rows),
                                       HVDC_ARGUMENT(first_token),
                                       HVDC_ARGUMENT(scale),
                                       HVDC_ARGUMENT(inverse),
                                       HVDC_ARGUMENT(codes),
                                       HVDC_ARGUMENT(heads.head_stride),
                                       HVDC_ARGUMENT(heads.keys_stored)};
    const uint64_t global[] = {e.width / r->vector, (e.rows + 3) / 4, 1}, local[] = {d->is_cpu ? 1 : 32, 1, 1};
    return hvdc_device_launch(d, r->kernels[HVDC_ROW_VALUES], arguments, COUNT(arguments), global, local, failure);
}

bool hvdc_rows_softmax(hvdc_device *d, hvdc_rows *r, cl_mem scores, uint32_t rows, uint32_t heads, uint32_t keys,
                       uint32_t keys_stored, cl_mem probabilities, cl_mem totals, hvdc_failure *failure) {
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(scores), HVDC_ARGUMENT(keys),          HVDC_ARGUMENT(keys_stored),
                                       HVDC_ARGUMENT(rows),   HVDC_ARGUMENT(probabilities), HVDC_ARGUMENT(totals)};
    return over_rows(d, r, HVDC_ROW_SOFTMAX, arguments, COUNT(arguments), rows, heads, failure);
}

bool hvdc_rows_add(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem hidden, uint32_t offset, cl_mem y,
                   hvdc_place gate, hvdc_failure *failure) {
    const cl_int gated = gate.memory != NULL;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(hidden), HVDC_ARGUMENT(offset),      HVDC_ARGUMENT(e.stride),
                                       HVDC_ARGUMENT(y),      HVDC_ARGUMENT(gate.memory), HVDC_ARGUMENT(gate.offset),
                                       HVDC_ARGUMENT(gated)};
    return over_rows(d, r, HVDC_ROW_ADD, arguments, COUNT(arguments), e.rows, 1, failure);
}

static bool over_elements(hvdc_device *d, hvdc_rows *r, enum hvdc_row_kernel kernel, const hvdc_argument *arguments,
                          size_t count, hvdc_extent e, hvdc_failure *failure) {
    const uint64_t global[] = {e.stride, e.rows, 1}, local[] = {32, 1, 1};
    return hvdc_device_launch(d, r->kernels[kernel], arguments, (uint32_t)count, global, local, failure);
}

bool hvdc_rows_narrow(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem wide, cl_mem hidden, uint32_t offset,
                      hvdc_failure *failure) {
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(wide), HVDC_ARGUMENT(e.width), HVDC_ARGUMENT(e.stride),
                                       HVDC_ARGUMENT(hidden), HVDC_ARGUMENT(offset)};
    return over_elements(d, r, HVDC_ROW_NARROW, arguments, COUNT(arguments), e, failure);
}

bool hvdc_rows_widen(hvdc_device *d, hvdc_rows *r, hvdc_extent e, cl_mem hidden, uint32_t offset, cl_mem wide,
                     hvdc_failure *failure) {
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(hidden), HVDC_ARGUMENT(offset), HVDC_ARGUMENT(e.width),
                                       HVDC_ARGUMENT(e.stride), HVDC_ARGUMENT(wide)};
    return over_elements(d, r, HVDC_ROW_WIDEN, arguments, COUNT(arguments), e, failure);
}
