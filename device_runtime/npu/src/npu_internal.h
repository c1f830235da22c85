/* What the parts of the NPU executor share. */
#ifndef HVDC_NPU_INTERNAL_H
#define HVDC_NPU_INTERNAL_H

#include <time.h>

#include "hvdc/bind.h"
#include "hvdc/npu.h"
#include "hmx.h"
#include "hvx.h"

#define TILE HVDC_HMX_TILE
#define TILE_HALFS HVDC_HMX_TILE_HALFS
#define NPU_EXPERTS 2u
#define NPU_FFN_ROWS (HVDC_HMX_ROW_TILES * TILE) /* tokens between the feed-forward pair at a time */

static inline uint32_t npu_tiles(uint32_t count) { return (count + TILE - 1u) / TILE; }

/* A linear of a block; `a` and `b` are its adapter's factors, with `tiles` NULL where there is one expert. */
typedef struct npu_linear {
    enum hvdc_linear_id id;
    hvdc_weight base, a, b;
    const float *bias; /* padded to whole tiles */
} npu_linear;

typedef struct npu_attention {
    npu_linear to_q, to_k, to_v, to_out;
    const float *norm_q, *norm_k;
} npu_attention;

typedef struct npu_block {
    npu_attention self, cross;
    npu_linear up, down;
    const float *norm2_gain, *norm2_bias; /* NULL in a model without an affine norm before cross-attention */
} npu_block;

/* Keys and values of one block: FP16 tiles [heads][key tiles][head tiles] and [heads][head tiles][key tiles]. */
typedef struct npu_keys {
    uint16_t *keys, *values;
    uint32_t count, tiles;
} npu_keys;

/* A thread's own. */
typedef struct npu_scratch {
    void *hmx;
    uint16_t *weights; /* tiles [hmx->col_tiles][k tiles] of a weight that is widened on the way */
    uint16_t *tiles;   /* what the matrix unit gave */
    uint16_t *rows;    /* FP16 [32][padded width] */
    float *row;        /* FP32 [padded width] */
    float *total, *part;
    float max[HVDC_HMX_QUERY_TILES * TILE], sum[HVDC_HMX_QUERY_TILES * TILE], factor[HVDC_HMX_QUERY_TILES * TILE];
} npu_scratch;

typedef struct npu_engine {
    hvdc_engine face; /* first, so that an hvdc_engine of ours is an npu */
    hvdc_weights weights;
    hvdc_geometry geometry;
    hvdc_grid grid;
    hvdc_pool *pool;
    const hvdc_hmx *hmx;
    const hvdc_hvx *hvx;
    uint32_t tokens, head_dim, head_tiles, width_tiles, ffn_tiles, rank_tiles;
    const float *rotations; /* [tokens][head_dim / 2][2] */
    float *own_rotations;   /* the same, or NULL where they were given */
    npu_block *blocks;      /* [layers] */

    /* Tiles of activations have a stride of the tiles of their channels. */
    uint16_t *input;              /* what enters a linear: tiles [tokens][width] */
    uint16_t *output;             /* what leaves it, and what attention gives: FP16 row-major [tokens][width] */
    uint16_t *query;              /* tiles [token tiles][heads · head tiles] */
    npu_keys self;                /* of the tokens */
    uint16_t *low;                /* an adapter's hidden: tiles [tokens][rank] */
    uint16_t *up, *down, *middle; /* the feed-forward pair widened, and what is between: tiles [32 row tiles][ffn] */
    float *factor;                /* 1 + scale, for the modulation at hand: [width] */
    npu_keys *text[NPU_EXPERTS];  /* [layers], NULL before the expert has its text */
    npu_scratch *scratch;         /* [threads] */
    uint64_t bytes;
    hvdc_partner *partner; /* NULL: none */
    hvdc_slice slice;      /* what it was last asked for; step and block are those at work */
    bool lost;             /* it failed within this call */
    hvdc_failure why_lost;
    double seconds[HVDC_NPU_STAGE_COUNT];
} npu_engine;

/* Threads, units and buffers for `npu->geometry` and `npu->grid`. What was made is released by npu_release, also after
 * a failure. */
bool npu_prepare(npu_engine *npu, const hvdc_npu_options *options, hvdc_failure *failure);
void npu_release(npu_engine *npu);

/* Room for `count` keys and values of all heads, to be freed. */
bool npu_allocate_keys(npu_engine *npu, uint32_t count, npu_keys *keys, hvdc_failure *failure);
void npu_free_keys(npu_keys *keys);

/* Finds and checks every tensor of a block. */
bool npu_bind_block(const npu_engine *npu, uint32_t block, npu_block *bound, hvdc_failure *failure);

/* What becomes of a GEMM's sums, narrowed to FP16. */
enum npu_result {
    NPU_TILES, /* stay as they are, as the next operand */
    NPU_ROWS,  /* + bias, row-major [rows][n] */
    NPU_ADD,   /* added to what is there, row-major */
    NPU_GELU   /* GELU of + bias, as the next operand */
};

typedef struct npu_gemm {
    const uint16_t *input; /* tiles [row tiles][k tiles] */
    uint32_t rows;
    const hvdc_weight *weight;
    uint32_t first;          /* column of tiles: those before it are left out */
    const uint16_t *widened; /* the weight as FP16 tiles, or NULL */
    enum npu_result result;
    const float *bias;
    uint16_t *out;
} npu_gemm;

void npu_multiply(npu_engine *npu, const npu_gemm *gemm);

/* y [rows][n] = W x + b from `npu->input`, and for the detail expert + B (A x). */
void npu_apply(npu_engine *npu, const npu_linear *linear, uint32_t expert, uint32_t rows, uint16_t *y);

/* The FP16 tiles of a weight, from column of tiles `first` on; `tiles` has room for all. */
void npu_widen(npu_engine *npu, const hvdc_weight *weight, uint32_t first, uint16_t *tiles);

/* How many columns of tiles of a linear are the partner's. */
uint32_t npu_given(const npu_engine *npu, const npu_linear *linear);
/* Gives the partner what enters it, tiles [rows][k], if it has any. */
void npu_begin(npu_engine *npu, const npu_linear *linear, const uint16_t *input, uint32_t rows);
/* Waits for its columns, and puts them where those of `npu_multiply` are: result NPU_ROWS or NPU_GELU. */
void npu_join(npu_engine *npu, const npu_linear *linear, enum npu_result result, uint16_t *out);
/* False if the partner has failed since the call began. */
bool npu_kept_partner(npu_engine *npu, hvdc_failure *failure);
/* Values of an exchange that suits a clip. */
uint64_t npu_exchange_values(const hvdc_geometry *geometry, uint32_t tokens);

/* softmax(q kᵀ / √head_dim) v of `npu->query` for every head, to `npu->output` [tokens][width]. */
void npu_attend(npu_engine *npu, const npu_keys *keys);

/* Rows of FP16 [rows][width] to `npu->query`, to keys, to values, to `npu->input`. With a gain, RMS-normalised; with
 * rotations, rotated. */
enum npu_operand { NPU_QUERY, NPU_KEYS, NPU_VALUES, NPU_INPUT };
void npu_pack(npu_engine *npu, const uint16_t *x, uint32_t rows, const float *gain, const float *rotations,
              enum npu_operand operand, npu_keys *keys);

void npu_run_block(npu_engine *npu, uint32_t step, uint32_t block, uint32_t expert, float *hidden);

/* Keys and values of a block from the text in `npu->input`. */
void npu_text_keys(npu_engine *npu, uint32_t block, uint32_t expert, npu_keys *keys);

static inline double npu_now_s(void) {
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
