/* One DiT block, in the order of quant/paths/block.py. Source: Wan2.1 wan/modules/model.py `WanAttentionBlock`. */
#include "npu_internal.h"

enum norm { PLAIN, LAYER };

struct rows {
    npu_engine *npu;
    enum norm norm;
    float *hidden;
    const float *factor, *addend, *gate;
    const uint16_t *y;
};

/* 32 rows of the hidden state become an operand. */
static void enter_tiles(void *context, uint32_t first, uint32_t tiles, uint32_t worker) {
    const struct rows *rows = context;
    npu_engine *npu = rows->npu;
    npu_scratch *scratch = &npu->scratch[worker];
    uint32_t width = npu->geometry.width;
    for (uint32_t tile = first; tile < first + tiles; tile++) {
        uint32_t row = tile * TILE, count = npu->tokens - row < TILE ? npu->tokens - row : TILE;
        for (uint32_t r = 0; r < count; r++) {
            const float *x = rows->hidden + (size_t)(row + r) * width;
            uint16_t *y = scratch->rows + (size_t)r * width;
            if (rows->norm == PLAIN) {
                npu->hvx->narrow(x, width, y);
            } else {
                npu->hvx->layer_norm(x, width, npu->geometry.eps, rows->factor, rows->addend, scratch->row, y);
            }
        }
        npu->hvx->pack_rows(scratch->rows, width, count, width,
                            npu->input + (size_t)tile * npu->width_tiles * TILE_HALFS, 1);
    }
}

static void enter(npu_engine *npu, enum norm norm, const float *factor, const float *addend, float *hidden) {
    double start = npu_now_s();
    struct rows rows = {.npu = npu, .norm = norm, .hidden = hidden, .factor = factor, .addend = addend};
    hvdc_pool_run(npu->pool, npu_tiles(npu->tokens), 1, enter_tiles, &rows);
    npu->seconds[HVDC_NPU_NORM] += npu_now_s() - start;
}

/* AdaLN: x · (1 + scale) + shift of the normalised hidden state. */
static void enter_modulated(npu_engine *npu, const float *shift, const float *scale, float *hidden) {
    for (uint32_t i = 0; i < npu->geometry.width; i++) {
        npu->factor[i] = 1.0f + scale[i];
    }
    enter(npu, LAYER, npu->factor, shift, hidden);
}

static void add_rows(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct rows *rows = context;
    uint32_t width = rows->npu->geometry.width;
    (void)worker;
    for (size_t row = first; row < (size_t)first + count; row++) {
        rows->npu->hvx->residual(rows->hidden + row * width, rows->y + row * width, rows->gate, width);
    }
}

static void add(npu_engine *npu, float *hidden, const float *gate) {
    double start = npu_now_s();
    struct rows rows = {.npu = npu, .hidden = hidden, .gate = gate, .y = npu->output};
    hvdc_pool_run(npu->pool, npu->tokens, TILE, add_rows, &rows);
    npu->seconds[HVDC_NPU_RESIDUAL] += npu_now_s() - start;
}

static void attend(npu_engine *npu, const npu_keys *keys, enum hvdc_npu_stage stage) {
    double start = npu_now_s();
    npu_attend(npu, keys);
    npu->seconds[stage] += npu_now_s() - start;
}

/* W x + b of `npu->input` as an operand of attention. */
static void project(npu_engine *npu, const npu_linear *linear, uint32_t expert, uint32_t rows, const float *gain,
                    const float *rotations, enum npu_operand operand, npu_keys *keys) {
    npu_apply(npu, linear, expert, rows, npu->output);
    npu_pack(npu, npu->output, rows, gain, rotations, operand, keys);
}

/* What attention gave goes through its output linear into the residual stream. */
static void leave(npu_engine *npu, const npu_attention *attention, uint32_t expert, const float *gate, float *hidden) {
    npu_pack(npu, npu->output, npu->tokens, NULL, NULL, NPU_INPUT, NULL);
    npu_apply(npu, &attention->to_out, expert, npu->tokens, npu->output);
    add(npu, hidden, gate);
}

static void feed_forward(npu_engine *npu, const npu_block *block) {
    double start = npu_now_s();
    uint32_t up_first = npu_given(npu, &block->up), down_first = npu_given(npu, &block->down);
    npu_widen(npu, &block->up.base, up_first, npu->up);
    npu_widen(npu, &block->down.base, down_first, npu->down);
    double widened = npu_now_s(), elsewhere = npu->seconds[HVDC_NPU_EXCHANGE];
    npu->seconds[HVDC_NPU_WIDEN] += widened - start;
    for (uint32_t row = 0; row < npu->tokens; row += NPU_FFN_ROWS) {
        uint32_t rows = npu->tokens - row < NPU_FFN_ROWS ? npu->tokens - row : NPU_FFN_ROWS;
        npu_gemm up = {.input = npu->input + (size_t)(row / TILE) * npu->width_tiles * TILE_HALFS,
                       .rows = rows,
                       .weight = &block->up.base,
                       .first = up_first,
                       .widened = npu->up,
                       .result = NPU_GELU,
                       .bias = block->up.bias,
                       .out = npu->middle};
        npu_gemm down = {.input = npu->middle,
                         .rows = rows,
                         .weight = &block->down.base,
                         .first = down_first,
                         .widened = npu->down,
                         .result = NPU_ROWS,
                         .bias = block->down.bias,
                         .out = npu->output + (size_t)row * npu->geometry.width};
        npu_begin(npu, &block->up, up.input, rows);
        npu_multiply(npu, &up);
        npu_join(npu, &block->up, NPU_GELU, up.out);
        npu_begin(npu, &block->down, down.input, rows);
        npu_multiply(npu, &down);
        npu_join(npu, &block->down, NPU_ROWS, down.out);
    }
    elsewhere = npu->seconds[HVDC_NPU_EXCHANGE] - elsewhere;
    npu->seconds[HVDC_NPU_FEED_FORWARD] += npu_now_s() - widened - elsewhere;
}

void npu_text_keys(npu_engine *npu, uint32_t block, uint32_t expert, npu_keys *keys) {
    const npu_attention *cross = &npu->blocks[block].cross;
    npu->slice.block = block;
    project(npu, &cross->to_k, expert, keys->count, cross->norm_k, NULL, NPU_KEYS, keys);
    project(npu, &cross->to_v, expert, keys->count, NULL, NULL, NPU_VALUES, keys);
}

void npu_run_block(npu_engine *npu, uint32_t step, uint32_t block, uint32_t expert, float *hidden) {
    const npu_block *b = &npu->blocks[block];
    uint32_t width = npu->geometry.width, tokens = npu->tokens;
    const float *row = hvdc_artifact_adaln(npu->weights.artifact, step, block);
    const float *shift_attn = row, *scale_attn = row + width, *gate_attn = row + 2u * (size_t)width;
    const float *shift_ffn = row + 3u * (size_t)width, *scale_ffn = row + 4u * (size_t)width;
    const float *gate_ffn = row + 5u * (size_t)width;
    npu->slice.step = step;
    npu->slice.block = block;

    enter_modulated(npu, shift_attn, scale_attn, hidden);
    project(npu, &b->self.to_q, expert, tokens, b->self.norm_q, npu->rotations, NPU_QUERY, NULL);
    project(npu, &b->self.to_k, expert, tokens, b->self.norm_k, npu->rotations, NPU_KEYS, &npu->self);
    project(npu, &b->self.to_v, expert, tokens, NULL, NULL, NPU_VALUES, &npu->self);
    attend(npu, &npu->self, HVDC_NPU_SELF_ATTENTION);
    leave(npu, &b->self, expert, gate_attn, hidden);

    enter(npu, b->norm2_gain == NULL ? PLAIN : LAYER, b->norm2_gain, b->norm2_bias, hidden);
    project(npu, &b->cross.to_q, expert, tokens, b->cross.norm_q, NULL, NPU_QUERY, NULL);
    attend(npu, &npu->text[expert][block], HVDC_NPU_CROSS_ATTENTION);
    leave(npu, &b->cross, expert, NULL, hidden);

    enter_modulated(npu, shift_ffn, scale_ffn, hidden);
    feed_forward(npu, b);
    add(npu, hidden, gate_ffn);
}
