/* What happens to rows of activations between the GEMMs. LANES work-items share a row; each takes VECTOR channels at once.
 * Rows are `row_stride` elements apart, a multiple of 32, and zeros follow the last channel. */

#if VECTOR == 4
#define PAIRED(x) ((x).s0011)
#define SWAPPED(x) ((x).s1032)
#define SIGNS ((floats)(-1.0f, 1.0f, -1.0f, 1.0f))
#define LOAD_HALF_AS_MANY(pointer) vload2(0, pointer)
#else
#define PAIRED(x) ((x).s0011223344556677)
#define SWAPPED(x) ((x).s1032547698badcfe)
#define SIGNS ((floats)((float8)(-1, 1, -1, 1, -1, 1, -1, 1), (float8)(-1, 1, -1, 1, -1, 1, -1, 1)))
#define LOAD_HALF_AS_MANY(pointer) vload8(0, pointer)
#endif

#define FOR_CHANNELS(c, end) for (uint c = get_local_id(0) * VECTOR; c < (end); c += LANES * VECTOR)

/* x where the channel is one of `width`, else 0. */
static floats within(floats x, uint channel, uint width) {
    return select((floats)(0.0f), x, LANES_FROM((int)channel) < (ints)((int)width));
}

/* A sum of FP32 numbers and what it lost: twice as many digits, so that a norm's statistics are those of exact sums rounded
 * once, whatever the order. (T. J. Dekker, Numer. Math. 18, 1971.) */
typedef struct {
    floats high, low;
} wide_floats;
typedef struct {
    float high, low;
} wide;

static wide_floats added(wide_floats sum, floats x, floats x_low) {
    const floats high = sum.high + x;
    const floats part = high - sum.high;
    const floats lost = (sum.high - (high - part)) + (x - part);
    wide_floats result = {high, sum.low + (lost + x_low)};
    return result;
}

static wide joined(wide a, wide b) {
    const float high = a.high + b.high;
    const float part = high - a.high;
    const float lost = (a.high - (high - part)) + (b.high - part);
    const float low = lost + (a.low + b.low);
    const float sum = high + low;
    wide result = {sum, low - (sum - high)};
    return result;
}

static wide wide_total(wide_floats x) {
    float high[VECTOR], low[VECTOR];
    STORE_FLOATS(x.high, high);
    STORE_FLOATS(x.low, low);
    wide sum = {high[0], low[0]};
    for (uint v = 1; v < VECTOR; ++v) {
        const wide next = {high[v], low[v]};
        sum = joined(sum, next);
    }
    return sum;
}

static wide product(wide a, float b) {
    const float high = a.high * b;
    wide result = {high, fma(a.high, b, -high) + a.low * b};
    return result;
}

/* a / n; n is a number of channels, so it is exact. */
static wide mean_of(wide a, float n) {
    const float high = a.high / n;
    wide result = {high, (fma(-high, n, a.high) + a.low) / n};
    const float sum = result.high + result.low;
    result.low = result.low - (sum - result.high);
    result.high = sum;
    return result;
}

/* 1 / sqrt(x + eps), rounded once. */
static float inverse_root(wide x, float eps) {
    const wide more = {eps, 0.0f};
    const wide v = joined(x, more);
    const float r = 1.0f / sqrt(v.high);
    const float square = r * r, square_low = fma(r, r, -square);
    const float rest = fma(-v.high, square, 1.0f) - fma(v.high, square_low, v.low * square);
    return fma(0.5f * r, rest, r);
}

#if LANES == 1
#define SCRATCH
#define SCRATCH_FLOATS
#define SCRATCH_INTS
#define SUM_OVER_LANES(x) (x)
#define MAX_OVER_LANES(x) (x)
#define INT_SUM_OVER_LANES(x) (x)
#else
/* In a fixed order, so that a device's result does not vary. */
#define OVER_LANES(name, type, combine) \
    static type name(type x, local type *scratch) { \
        const uint lane = get_local_id(0); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        scratch[lane] = x; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        for (uint step = LANES / 2; step > 0; step /= 2) { \
            if (lane < step) { \
                scratch[lane] = combine(scratch[lane], scratch[lane + step]); \
            } \
            barrier(CLK_LOCAL_MEM_FENCE); \
        } \
        return scratch[0]; \
    }
#define ADDED(a, b) ((a) + (b))
OVER_LANES(sum_over_lanes, wide, joined)
OVER_LANES(max_over_lanes, float, fmax)
OVER_LANES(int_sum_over_lanes, int, ADDED)
#define SCRATCH local wide scratch[LANES];
#define SCRATCH_FLOATS local float scratch_floats[LANES];
#define SCRATCH_INTS local int scratch_ints[LANES];
#define SUM_OVER_LANES(x) sum_over_lanes(x, scratch)
#define MAX_OVER_LANES(x) max_over_lanes(x, scratch_floats)
#define INT_SUM_OVER_LANES(x) int_sum_over_lanes(x, scratch_ints)
#endif

/* Layer norm of FP16 rows, then the norm's own gain and bias or AdaLN's (1 + gain) and shift, then codes. */
kernel void norm_quantize(global const half *restrict hidden, uint hidden_offset, uint row_stride, uint width,
                          float eps, global const float *restrict gain, uint gain_offset,
                          global const float *restrict shift, uint shift_offset, float one, float scale, float inverse,
                          global char *restrict codes) {
    SCRATCH
    const uint row = get_group_id(1);
    const size_t first = hidden_offset + (size_t)row * row_stride;
    wide_floats sum = {0.0f, 0.0f}, squares = {0.0f, 0.0f};
    FOR_CHANNELS(c, row_stride) { /* zeros follow the last channel */
        const floats x = LOAD_HALFS(first + c, hidden);
        sum = added(sum, x, (floats)(0.0f));
        squares = added(squares, x * x, (floats)(0.0f)); /* a product of FP16 numbers is exact */
    }
    const wide mean_wide = mean_of(SUM_OVER_LANES(wide_total(sum)), (float)width);
    const wide square = product(mean_wide, mean_wide.high);
    const wide of_mean = {-square.high, -(square.low + mean_wide.low * mean_wide.high)};
    const wide variance = joined(mean_of(SUM_OVER_LANES(wide_total(squares)), (float)width), of_mean);
    const float mean = mean_wide.high, deviation = inverse_root(variance, eps);
    FOR_CHANNELS(c, row_stride) {
        const floats x = (LOAD_HALFS(first + c, hidden) - mean) * deviation;
        const floats y = x * (LOAD_FLOATS(gain + gain_offset + c) + one) + LOAD_FLOATS(shift + shift_offset + c);
        STORE_CODES(codes_of(within(y, c, width), scale, inverse), codes + (size_t)row * row_stride + c);
    }
}

/* Root-mean-square norm over all channels, rotation of adjacent pairs by the token's position if `rotated`, and codes:
 * of queries as [row][head][head_stride], of keys as tiles [head][key_tile][channel_tile] with the row as column. */
kernel void rms_rotate_quantize(global const float *restrict y, uint row_stride, uint width, uint head, float eps,
                                global const float *restrict gain, uint gain_offset,
                                global const float *restrict cosines, global const float *restrict sines,
                                uint first_token, int rotated, float scale, float inverse, global char *restrict codes,
                                uint head_stride, uint keys_stored) {
    SCRATCH
    const uint row = get_group_id(1), token = first_token + row;
    y += (size_t)row * row_stride;
    wide_floats sum = {0.0f, 0.0f};
    FOR_CHANNELS(c, row_stride) {
        const floats x = LOAD_FLOATS(y + c), x_square = x * x;
        sum = added(sum, x_square, fma(x, x, -x_square));
    }
    const float factor = inverse_root(mean_of(SUM_OVER_LANES(wide_total(sum)), (float)width), eps);
    FOR_CHANNELS(c, width) {
        const uint at = c / head, channel = c % head;
        floats x = LOAD_FLOATS(y + c) * factor * LOAD_FLOATS(gain + gain_offset + c);
        if (rotated) {
            const size_t pair = ((size_t)token * head + channel) / 2;
            const floats cosine = PAIRED(LOAD_HALF_AS_MANY(cosines + pair));
            const floats sine = PAIRED(LOAD_HALF_AS_MANY(sines + pair)) * SIGNS;
            x = x * cosine + SWAPPED(x) * sine;
        }
        const ints code = codes_of(x, scale, inverse);
        if (keys_stored == 0) {
            STORE_CODES(code, codes + ((size_t)row * (width / head) + at) * head_stride + channel);
        } else {
            global char *tiles = codes + (size_t)at * keys_stored * head_stride;
            const uint k_tiles = head_stride / HVDC_TILE_HMX_INT8_K4_ROWS;
#if VECTOR == 4
            vstore4(convert_char4(code), 0, tiles + tiled(channel, token, k_tiles));
#else
            vstore4(convert_char4(code.s0123), 0, tiles + tiled(channel, token, k_tiles));
            vstore4(convert_char4(code.s4567), 0, tiles + tiled(channel + 4, token, k_tiles));
            vstore4(convert_char4(code.s89ab), 0, tiles + tiled(channel + 8, token, k_tiles));
            vstore4(convert_char4(code.scdef), 0, tiles + tiled(channel + 12, token, k_tiles));
#endif
        }
    }
}

/* Codes of FP32 rows. What stands behind the last channel is not looked at. */
kernel void quantize(global const float *restrict y, uint row_stride, uint width, float scale, float inverse,
                     global char *restrict codes) {
    const size_t first = (size_t)get_group_id(1) * row_stride;
    FOR_CHANNELS(c, row_stride) {
        STORE_CODES(codes_of(within(LOAD_FLOATS(y + first + c), c, width), scale, inverse), codes + first + c);
    }
}

/* Codes of FP16 rows: cross-attention without a norm. */
kernel void quantize_hidden(global const half *restrict hidden, uint hidden_offset, uint row_stride, float scale,
                            float inverse, global char *restrict codes) {
    const size_t first = (size_t)get_group_id(1) * row_stride;
    FOR_CHANNELS(c, row_stride) {
        STORE_CODES(codes_of(LOAD_HALFS(hidden_offset + first + c, hidden), scale, inverse), codes + first + c);
    }
}

/* tanh |u| = 1 - 2 e / (1 + e) with e = e^(-2 |u|), each step with what it lost. */
static floats tanh_of(floats u) {
    floats e_low;
    const floats e = exponential_parts(-2.0f * fabs(u), &e_low);
    const floats below = 1.0f + e, below_low = (e - (below - 1.0f)) + e_low;
    const floats part = divided(2.0f * e, below);
    const floats part_low = (fma(-below, part, 2.0f * e) + (2.0f * e_low - below_low * part)) / below;
    const floats t = 1.0f - part;
    return copysign(t + (((1.0f - t) - part) - part_low), u);
}

/* GELU in its tanh form, and codes. */
kernel void gelu_quantize(global const float *restrict y, uint row_stride, float scale, float inverse,
                          global char *restrict codes) {
    const size_t first = (size_t)get_group_id(1) * row_stride;
    FOR_CHANNELS(c, row_stride) {
        const floats x = LOAD_FLOATS(y + first + c);
        const floats u = 0.7978845608f * (x + 0.044715f * (x * x * x));
        const floats activated = 0.5f * x * (1.0f + tanh_of(u));
        STORE_CODES(codes_of(activated, scale, inverse), codes + first + c);
    }
}

/* Codes of values as tiles [head][channel_tile][key_tile]: a word is four keys of one channel. Rows start at a multiple of
 * four tokens; those behind the last become zeros. */
kernel void quantize_values(global const float *restrict y, uint row_stride, uint width, uint head, uint rows,
                            uint first_token, float scale, float inverse, global char *restrict codes, uint head_stride,
                            uint keys_stored) {
    const uint row = get_global_id(1) * 4;
    const uint c = get_global_id(0) * VECTOR;
    if (c >= width || row >= rows) {
        return;
    }
    uints words = 0;
    for (uint r = 0; r < 4 && row + r < rows; ++r) {
        const ints code = codes_of(LOAD_FLOATS(y + (size_t)(row + r) * row_stride + c), scale, inverse);
        words |= AS_UINTS(code & 255) << (8 * r);
    }
    codes += (size_t)(c / head) * keys_stored * head_stride;
    const size_t place = tiled(first_token + row, c % head, keys_stored / HVDC_TILE_HMX_INT8_K4_ROWS);
    STORE_UINTS(words, (global uint *)(codes + place));
}

/* Unnormalised probabilities of one row and head: p = round_half_even(127 e^(score - maximum)), and their sum. Keys behind
 * the last get 0. */
kernel void softmax(global const half *restrict scores, uint keys, uint keys_stored, uint rows,
                    global char *restrict probabilities, global int *restrict totals) {
    SCRATCH_FLOATS
    SCRATCH_INTS
    const uint row = get_group_id(1), head = get_global_id(2);
    const size_t first = ((size_t)head * rows + row) * keys_stored;
    floats highest = -INFINITY;
    FOR_CHANNELS(c, keys_stored) {
        const floats x = LOAD_HALFS(first + c, scores);
        highest = fmax(highest, select((floats)(-INFINITY), x, LANES_FROM((int)c) < (ints)((int)keys)));
    }
    const float maximum = MAX_OVER_LANES(largest(highest));
    ints sum = 0;
    FOR_CHANNELS(c, keys_stored) {
        const floats x = LOAD_HALFS(first + c, scores);
        const ints p = TO_INTS(rint(within(exponential(x - maximum), c, keys) * 127.0f));
        sum += p;
        STORE_CODES(p, probabilities + first + c);
    }
    const int of_row = INT_SUM_OVER_LANES(total_of_ints(sum));
    if (get_local_id(0) == 0) {
        totals[head * rows + row] = of_row;
    }
}

/* hidden = fp16(hidden + y * gate), the gate 1 where there is none. */
kernel void add_gated(global half *restrict hidden, uint hidden_offset, uint row_stride, global const float *restrict y,
                      global const float *restrict gate, uint gate_offset, int gated) {
    const size_t first = (size_t)get_group_id(1) * row_stride;
    FOR_CHANNELS(c, row_stride) {
        floats more = LOAD_FLOATS(y + first + c);
        if (gated) {
            more = more * LOAD_FLOATS(gate + gate_offset + c);
        }
        STORE_HALFS(LOAD_HALFS(hidden_offset + first + c, hidden) + more, hidden_offset + first + c, hidden);
    }
}

/* Rows of the hidden state from and to the FP32 of the world outside, [rows][width] there. */
kernel void narrow(global const float *restrict wide, uint width, uint row_stride, global half *restrict hidden,
                   uint hidden_offset) {
    const uint channel = get_global_id(0), row = get_global_id(1);
    if (channel < row_stride) {
        const float x = channel < width ? wide[(size_t)row * width + channel] : 0.0f;
        vstore_half_rte(x, hidden_offset + (size_t)row * row_stride + channel, hidden);
    }
}
kernel void widen(global const half *restrict hidden, uint hidden_offset, uint width, uint row_stride,
                  global float *restrict wide) {
    const uint channel = get_global_id(0), row = get_global_id(1);
    if (channel < width) {
        wide[(size_t)row * width + channel] = vload_half(hidden_offset + (size_t)row * row_stride + channel, hidden);
    }
}
