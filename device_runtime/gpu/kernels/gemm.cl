/* INT8 GEMM with exact INT32 sums: activations [rows][4 words] row-major, weights in tiles [n_tile][k_tile], where a word
 * holds four consecutive k of one column. A work-item has ROWS rows and PARTS * VECTOR columns, all in one column of tiles.
 *
 * Arguments of all: `a` from word a_offset, a_row words to the next row, a_batch to the next batch (attention's heads);
 * `b` alike; `words` = padded K / 4; `columns` that are written. Sums of rows [batch][rows] and of columns
 * [batch][columns] are read by the unsigned dot form alone. Offsets and strides of words are multiples of 8, so that vectors
 * of them are aligned. Codes beyond the last row are read up to whole ROWS and not used, so `a` is that much larger. */
#define COLUMNS (VECTOR * PARTS)

#define OPERANDS \
    global const uint *restrict a, uint a_offset, uint a_row, uint a_batch, global const uint *restrict b, \
        uint b_offset, uint b_batch, uint words, uint rows, uint columns, global const int *restrict row_sums, \
        global const int *restrict column_sums

#ifdef PAIRS
/* Splits rows for PAIRS: [batch][rows / ROWS][words][ROWS][2]. */
kernel void pack(global const uint *restrict a, uint a_offset, uint a_row, uint a_batch, uint words, uint rows,
                 global uint *restrict packed) {
    const uint word = get_global_id(0), block = get_global_id(1), batch = get_global_id(2);
    const uint blocks = (rows + ROWS - 1) / ROWS;
    if (word >= words || block >= blocks) {
        return;
    }
    packed += (((size_t)batch * blocks + block) * words + word) * ROWS * 2;
    for (uint r = 0; r < ROWS; ++r) {
        const uint row = block * ROWS + r;
        const short2 x = as_short2(row < rows ? a[a_offset + batch * a_batch + (size_t)row * a_row + word] : 0);
        packed[2 * r] = as_uint((x << (short)8) >> (short)8);
        packed[2 * r + 1] = as_uint(x >> (short)8);
    }
}

static void multiply(ints sums[ROWS][PARTS], global const uint *restrict a, uint a_offset, uint a_row, uint a_batch,
                     global const uint *restrict b, uint words, uint rows) {
    const uint block = get_global_id(1), blocks = (rows + ROWS - 1) / ROWS;
    a += ((size_t)get_global_id(2) * blocks + block) * words * ROWS * 2;
    for (uint word = 0; word < words; ++word) {
        pairs even[PARTS], odd[PARTS];
#pragma unroll
        for (uint p = 0; p < PARTS; ++p) {
            word_pairs w;
            w.words = vload16(0, b + p * VECTOR);
            even[p] = (w.halves << (short)8) >> (short)8;
            odd[p] = w.halves >> (short)8;
        }
#pragma unroll
        for (uint r = 0; r < ROWS; ++r) {
            word_pairs x, y;
            x.words = (uint16)(a[2 * r]);
            y.words = (uint16)(a[2 * r + 1]);
#pragma unroll
            for (uint p = 0; p < PARTS; ++p) {
                sums[r][p] += products_of_pairs(even[p], x.halves) + products_of_pairs(odd[p], y.halves);
            }
        }
        a += 2 * ROWS;
        b += WORDS_TO_NEXT_GROUP;
    }
}
#else
/* One word of each row with those of the columns. */
#define STEP(part) \
    { \
        uints w[PARTS]; \
        _Pragma("unroll") for (uint p = 0; p < PARTS; ++p) { w[p] = *(global const uints *)(b + p * VECTOR); } \
        _Pragma("unroll") for (uint r = 0; r < ROWS; ++r) { \
            _Pragma("unroll") for (uint p = 0; p < PARTS; ++p) { sums[r][p] = DOTS(w[p], x[r].part, sums[r][p]); } \
        } \
        b += WORDS_TO_NEXT_GROUP; \
    }

static void multiply(ints sums[ROWS][PARTS], global const uint *restrict a, uint a_offset, uint a_row, uint a_batch,
                     global const uint *restrict b, uint words, uint rows) {
    a += a_offset + (size_t)get_global_id(2) * a_batch + (size_t)get_global_id(1) * ROWS * a_row;
    for (uint word = 0; word < words; word += 4) { /* a multiple of 8: K is padded to whole tiles */
        uint4 x[ROWS];
#pragma unroll
        for (uint r = 0; r < ROWS; ++r) {
            x[r] = *(global const uint4 *)(a + r * a_row + word);
        }
        STEP(s0)
        STEP(s1)
        STEP(s2)
        STEP(s3)
    }
}
#endif

#if VECTOR == 1
#define LOAD_SUMS(pointer) (*(pointer))
#else
#define LOAD_SUMS(pointer) HVDC_JOIN(vload, VECTOR)(0, pointer)
#endif
/* Sums of columns exist for whole tiles. */
#define WHOLE_TILES(columns) \
    (((columns) + HVDC_TILE_HMX_INT8_K4_COLS - 1) / HVDC_TILE_HMX_INT8_K4_COLS * HVDC_TILE_HMX_INT8_K4_COLS)

/* Declares this work-item's sums, finds them, and says which rows and columns of which batch they are of. */
#define MULTIPLY() \
    const uint first_column = get_global_id(0) * COLUMNS, first_row = get_global_id(1) * ROWS; \
    const size_t batch = get_global_id(2); \
    if (first_column >= columns || first_row >= rows) { \
        return; \
    } \
    ints sums[ROWS][PARTS]; \
    _Pragma("unroll") for (uint r = 0; r < ROWS; ++r) { \
        _Pragma("unroll") for (uint p = 0; p < PARTS; ++p) { sums[r][p] = 0; } \
    } \
    b += b_offset + batch * b_batch + \
         (size_t)(first_column / HVDC_TILE_HMX_INT8_K4_COLS) * words * WORDS_TO_NEXT_GROUP + \
         first_column % HVDC_TILE_HMX_INT8_K4_COLS; \
    multiply(sums, a, a_offset, a_row, a_batch, b, words, rows)

/* For each of them that is of a row: SUM(r, p) of ROW(r) and the columns from COLUMN(p) on. */
#define FOR_SUMS(r, p) \
    _Pragma("unroll") for (uint r = 0; r < ROWS; ++r) if (ROW(r) < rows) \
        _Pragma("unroll") for (uint p = 0; p < PARTS; ++p)
#define ROW(r) (first_row + (r))
#define COLUMN(p) (first_column + (p) * VECTOR)
#if DOT_FORM == DOT_QCOM
#define SUM(r, p) \
    (sums[r][p] + ZERO_POINT(LOAD_SUMS(column_sums + batch * WHOLE_TILES(columns) + COLUMN(p)), \
                             row_sums[batch * rows + ROW(r)], words))
#else
#define SUM(r, p) (sums[r][p])
#endif

/* Sums of codes over k, of each row and of each column: for the unsigned dot form. */
kernel void sums_of_rows(global const uint *restrict a, uint a_offset, uint a_row, uint a_batch, uint words, uint rows,
                         global int *restrict out) {
    const uint row = get_global_id(0);
    const size_t batch = get_global_id(2);
    if (row >= rows) {
        return;
    }
    a += a_offset + batch * a_batch + (size_t)row * a_row;
    int sum = 0;
    for (uint word = 0; word < words; ++word) {
        const char4 x = as_char4(a[word]);
        sum += x.s0 + x.s1 + x.s2 + x.s3;
    }
    out[batch * rows + row] = sum;
}

kernel void sums_of_columns(global const uint *restrict b, uint b_offset, uint b_batch, uint words, uint columns,
                            global int *restrict out) {
    const uint column = get_global_id(0);
    const size_t batch = get_global_id(2);
    if (column >= WHOLE_TILES(columns)) {
        return;
    }
    b += b_offset + batch * b_batch + (size_t)(column / HVDC_TILE_HMX_INT8_K4_COLS) * words * WORDS_TO_NEXT_GROUP +
         column % HVDC_TILE_HMX_INT8_K4_COLS;
    int sum = 0;
    for (uint word = 0; word < words; ++word) {
        const char4 w = as_char4(b[(size_t)word * WORDS_TO_NEXT_GROUP]);
        sum += w.s0 + w.s1 + w.s2 + w.s3;
    }
    out[batch * WHOLE_TILES(columns) + column] = sum;
}

/* The sums themselves, INT32 [batch][row][column]. */
kernel void gemm_sums(OPERANDS, global int *restrict out, uint out_row, uint out_batch) {
    MULTIPLY();
    FOR_SUMS(r, p) {
        global int *place = out + batch * out_batch + (size_t)ROW(r) * out_row + COLUMN(p);
        STORE_INTS(SUM(r, p), place);
    }
}

/* A linear: sum * (scale_x * scales) + bias, FP32. `add`: with neither bias nor what was in `out` before (0), with the bias
 * (1), added to `out` (2: an adapter's second factor). */
kernel void gemm_linear(OPERANDS, global float *restrict out, uint out_row, float scale_x,
                        global const float *restrict scales, uint scales_offset, global const float *restrict bias,
                        uint bias_offset, int add) {
    MULTIPLY();
    FOR_SUMS(r, p) {
        global float *place = out + (size_t)ROW(r) * out_row + COLUMN(p);
        floats y = TO_FLOATS(SUM(r, p)) * (scale_x * LOAD_FLOATS(scales + scales_offset + COLUMN(p)));
        if (add == 1) {
            y = y + LOAD_FLOATS(bias + bias_offset + COLUMN(p));
        } else if (add == 2) {
            y = LOAD_FLOATS(place) + y;
        }
        STORE_FLOATS(y, place);
    }
}

/* Attention's scores: fp16(sum * factor), [head][row][key]. */
kernel void gemm_scores(OPERANDS, global half *restrict out, uint out_row, uint out_batch, float factor) {
    MULTIPLY();
    FOR_SUMS(r, p) {
        const size_t place = batch * out_batch + (size_t)ROW(r) * out_row + COLUMN(p);
        STORE_HALFS(TO_FLOATS(SUM(r, p)) * factor, place, out);
    }
}

/* Attention's output: sum * scale_v / (sum of the row's probabilities), FP32 [row][head][channel]. */
kernel void gemm_values(OPERANDS, global float *restrict out, uint out_offset, uint out_row, uint out_batch,
                        float scale_v, global const int *restrict totals) {
    MULTIPLY();
    FOR_SUMS(r, p) {
        const floats of_row = (float)totals[batch * rows + ROW(r)];
        const floats y = divided(TO_FLOATS(SUM(r, p)) * scale_v, of_row);
        global float *place = out + out_offset + (size_t)ROW(r) * out_row + batch * out_batch + COLUMN(p);
        if (COLUMN(p) + VECTOR <= columns) {
            STORE_FLOATS(y, place);
        } else {
            float each[VECTOR];
            STORE_FLOATS(y, each);
            for (uint v = 0; v < VECTOR && COLUMN(p) + v < columns; ++v) {
                place[v] = each[v];
            }
        }
    }
}
