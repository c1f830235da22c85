#include "hvdc/host.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/bind.h"
#include "hvdc/panel.h"
#include "hvdc/rows.h"
#include "multiply.h"

#define ROWS 256u /* tokens of a piece of work */
#define EXPERTS 2u
#define SQRT_2_OVER_PI 0.79788456080286535588

/* A linear [n][k]: its weight as the artifact has it, and as panels [ceil(n / 32)][k][32] if it was rearranged. */
struct linear {
    const float *weight, *bias;
    float *panels;
    uint32_t n, k;
};

struct hvdc_host {
    hvdc_weights weights;
    hvdc_geometry geometry;
    hvdc_grid grid;
    hvdc_pool *pool;
    hvdc_multiply *multiply;
    struct linear embedding, head[EXPERTS], text_1[EXPERTS], text_2[EXPERTS];
    float *scratch; /* for each thread [ROWS][width] */
    uint64_t bytes;
};

static float *allocate(hvdc_host *host, size_t floats, hvdc_failure *failure) {
    float *made = malloc(floats * sizeof *made);
    if (made == NULL) {
        hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for %zu MiB of the host's scratch",
                  floats * sizeof *made >> 20);
        return NULL;
    }
    host->bytes += floats * sizeof *made;
    return made;
}

/* Column c of a panel from row c of the weight; k in the order that `from` gives, NULL being as stored. */
static void pack_panel(const struct linear *linear, uint32_t first, const uint32_t *from, float *panel) {
    uint32_t columns = linear->n - first < HVDC_PANEL_COLUMNS ? linear->n - first : HVDC_PANEL_COLUMNS;
    memset(panel, 0, (size_t)linear->k * HVDC_PANEL_COLUMNS * sizeof *panel);
    for (uint32_t c = 0; c < columns; c++) {
        const float *row = linear->weight + (size_t)(first + c) * linear->k;
        for (uint32_t i = 0; i < linear->k; i++) {
            panel[(size_t)i * HVDC_PANEL_COLUMNS + c] = row[from == NULL ? i : from[i]];
        }
    }
}

static bool pack(hvdc_host *host, struct linear *linear, const uint32_t *from, hvdc_failure *failure) {
    size_t panel = (size_t)linear->k * HVDC_PANEL_COLUMNS;
    uint32_t panels = (linear->n + HVDC_PANEL_COLUMNS - 1u) / HVDC_PANEL_COLUMNS;
    linear->panels = allocate(host, panels * panel, failure);
    for (uint32_t i = 0; linear->panels != NULL && i < panels; i++) {
        pack_panel(linear, i * HVDC_PANEL_COLUMNS, from, linear->panels + i * panel);
    }
    return linear->panels != NULL;
}

/* y = x · Wᵀ + b of packed panels, for rows `n` floats apart. */
static void apply(const hvdc_host *host, const struct linear *linear, const float *x, uint32_t rows, float *y) {
    for (uint32_t c = 0; c < linear->n; c += HVDC_PANEL_COLUMNS) {
        uint32_t columns = linear->n - c < HVDC_PANEL_COLUMNS ? linear->n - c : HVDC_PANEL_COLUMNS;
        host->multiply(x, linear->k, rows, linear->k, linear->panels + (size_t)c * linear->k, columns, linear->bias + c,
                       y + c, linear->n);
    }
}

static bool bind(hvdc_host *host, const char *prefix, const char *name, uint32_t n, uint32_t k, struct linear *linear,
                 hvdc_failure *failure) {
    char full[HVDC_TEXT_LIMIT + 1u];
    *linear = (struct linear){.n = n, .k = k};
    (void)snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    if (!hvdc_bind_floats(&host->weights, full, (const uint32_t[]){n, k}, 2, &linear->weight, failure)) {
        return false;
    }
    (void)snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    return hvdc_bind_floats(&host->weights, full, &n, 1, &linear->bias, failure);
}

/* The embedding's weight is stored [width][channels][patch], channel first; tokens have the channel last. */
static bool bind_embedding(hvdc_host *host, hvdc_failure *failure) {
    const hvdc_geometry *g = &host->geometry;
    struct linear *linear = &host->embedding;
    const uint32_t shape[5] = {g->width, g->in_channels, g->patch[0], g->patch[1], g->patch[2]};
    uint32_t volume = g->patch[0] * g->patch[1] * g->patch[2];
    *linear = (struct linear){.n = g->width, .k = volume * g->in_channels};
    if (!hvdc_bind_floats(&host->weights, "patch_embedding.weight", shape, 5, &linear->weight, failure) ||
        !hvdc_bind_floats(&host->weights, "patch_embedding.bias", &g->width, 1, &linear->bias, failure)) {
        return false;
    }
    uint32_t *from = malloc(linear->k * sizeof *from);
    if (from == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for an order of %u channels", (unsigned)linear->k);
    }
    for (uint32_t i = 0; i < linear->k; i++) {
        from[i] = i % g->in_channels * volume + i / g->in_channels;
    }
    bool packed = pack(host, linear, from, failure);
    free(from);
    return packed;
}

static bool bind_expert(hvdc_host *host, uint32_t expert, hvdc_failure *failure) {
    const hvdc_geometry *g = &host->geometry;
    bool semantic = expert == HVDC_EXPERT_SEMANTIC;
    const char *prefix = semantic ? "condition_embedder.text_embedder." : "condition_embedder_lora.text_embedder.";
    return bind(host, prefix, "linear_1", g->width, g->text_width, &host->text_1[expert], failure) &&
           bind(host, prefix, "linear_2", g->width, g->width, &host->text_2[expert], failure) &&
           bind(host, "", semantic ? "proj_out" : "proj_out_lora", hvdc_token_width(g), g->width, &host->head[expert],
                failure) &&
           pack(host, &host->head[expert], NULL, failure);
}

bool hvdc_host_open(const hvdc_weights *weights, const hvdc_grid *grid, hvdc_pool *pool, hvdc_host **host,
                    hvdc_failure *failure) {
    *host = NULL;
    hvdc_grid resolved;
    enum hvdc_cpu cpu;
    const hvdc_geometry *g = hvdc_artifact_geometry(weights->artifact);
    if (!hvdc_grid_resolve(weights->artifact, grid, &resolved, failure) || !hvdc_cpu_select(NULL, &cpu, failure)) {
        return false;
    }
    if (g->in_channels != g->out_channels) {
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT,
                         "the model reads %u latent channels and writes %u: no running latent follows from that",
                         (unsigned)g->in_channels, (unsigned)g->out_channels);
    }
    hvdc_host *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the host's computations");
    }
    made->weights = *weights;
    made->geometry = *g;
    made->grid = resolved;
    made->pool = pool;
    made->multiply = hvdc_multiply_for(cpu);
    bool good = bind_embedding(made, failure);
    for (uint32_t expert = 0; good && expert < g->experts && expert < EXPERTS; expert++) {
        good = bind_expert(made, expert, failure);
    }
    if (good) {
        made->scratch = allocate(made, (size_t)hvdc_pool_threads(pool) * ROWS * g->width, failure);
        good = made->scratch != NULL;
    }
    if (!good) {
        hvdc_host_close(made);
        return false;
    }
    *host = made;
    return true;
}

void hvdc_host_close(hvdc_host *host) {
    if (host == NULL) {
        return;
    }
    free(host->embedding.panels);
    for (uint32_t expert = 0; expert < EXPERTS; expert++) {
        free(host->head[expert].panels);
    }
    free(host->scratch);
    free(host);
}

uint64_t hvdc_host_memory_bytes(const hvdc_host *host) { return sizeof *host + host->bytes; }

const hvdc_grid *hvdc_host_grid(const hvdc_host *host) { return &host->grid; }

struct projection {
    const hvdc_host *host;
    const struct linear *linear;
    const float *x;
    float *y, *panels; /* a panel [k][32] for each thread */
    bool gelu;
};

/* GELU by tanh, in FP64 and rounded once. */
static float gelu(float x) {
    const double wide = x, inner = SQRT_2_OVER_PI * (wide + 0.044715 * wide * wide * wide);
    return (float)(0.5 * wide * (1.0 + tanh(inner)));
}

/* The text's weights are read once for a prompt, so panels are made on the way. */
static void project_columns(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct projection *p = context;
    uint32_t rows = p->host->geometry.text_tokens, n = p->linear->n, k = p->linear->k;
    float *panel = p->panels + (size_t)worker * k * HVDC_PANEL_COLUMNS;
    for (uint32_t column = first * HVDC_PANEL_COLUMNS; count > 0u; count--, column += HVDC_PANEL_COLUMNS) {
        uint32_t columns = n - column < HVDC_PANEL_COLUMNS ? n - column : HVDC_PANEL_COLUMNS;
        pack_panel(p->linear, column, NULL, panel);
        p->host->multiply(p->x, k, rows, k, panel, columns, p->linear->bias + column, p->y + column, n);
        for (uint32_t r = 0; p->gelu && r < rows; r++) {
            for (uint32_t c = column; c < column + columns; c++) {
                p->y[(size_t)r * n + c] = gelu(p->y[(size_t)r * n + c]);
            }
        }
    }
}

static bool project(hvdc_host *host, const struct linear *linear, const float *x, bool gelu, float *y,
                    hvdc_failure *failure) {
    size_t floats = (size_t)hvdc_pool_threads(host->pool) * linear->k * HVDC_PANEL_COLUMNS;
    float *panels = malloc(floats * sizeof *panels);
    if (panels == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the text projection's scratch");
    }
    struct projection projection = {host, linear, x, y, panels, gelu};
    hvdc_pool_run(host->pool, (linear->n + HVDC_PANEL_COLUMNS - 1u) / HVDC_PANEL_COLUMNS, 1, project_columns,
                  &projection);
    free(panels);
    return true;
}

bool hvdc_host_project_text(hvdc_host *host, uint32_t expert, const float *embeds, float *text, hvdc_failure *failure) {
    if (expert >= host->geometry.experts) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the artifact has %u experts, and none of number %" PRIu32,
                         (unsigned)host->geometry.experts, expert);
    }
    size_t floats = (size_t)host->geometry.text_tokens * host->geometry.width;
    float *middle = malloc(floats * sizeof *middle);
    if (middle == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the text projection's scratch");
    }
    bool good = project(host, &host->text_1[expert], embeds, true, middle, failure) &&
                project(host, &host->text_2[expert], middle, false, text, failure);
    free(middle);
    return good;
}

struct rows {
    const hvdc_host *host;
    const struct linear *head;
    const float *factor, *shift; /* of the head's modulation */
    const float *in;
    float *out;
    float step_size;
    bool euler;
};

static void embed_rows(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct rows *rows = context;
    const struct linear *linear = &rows->host->embedding;
    (void)worker;
    apply(rows->host, linear, rows->in + (size_t)first * linear->k, count, rows->out + (size_t)first * linear->n);
}

void hvdc_host_embed(hvdc_host *host, const float *tokens, float *hidden) {
    struct rows rows = {.host = host, .in = tokens, .out = hidden};
    hvdc_pool_run(host->pool, hvdc_grid_tokens(&host->grid), ROWS, embed_rows, &rows);
}

static void head_rows(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct rows *rows = context;
    const struct linear *head = rows->head;
    float *normed = rows->host->scratch + (size_t)worker * ROWS * head->k, v[ROWS][HVDC_PANEL_COLUMNS];
    for (uint32_t r = 0; r < count; r++) {
        hvdc_layer_norm_row(rows->in + (size_t)(first + r) * head->k, head->k, rows->host->geometry.eps, rows->factor,
                            rows->shift, normed + (size_t)r * head->k);
    }
    for (uint32_t c = 0; c < head->n; c += HVDC_PANEL_COLUMNS) {
        uint32_t columns = head->n - c < HVDC_PANEL_COLUMNS ? head->n - c : HVDC_PANEL_COLUMNS;
        rows->host->multiply(normed, head->k, count, head->k, head->panels + (size_t)c * head->k, columns,
                             head->bias + c, &v[0][0], HVDC_PANEL_COLUMNS);
        for (uint32_t r = 0; r < count; r++) {
            float *out = rows->out + (size_t)(first + r) * head->n + c;
            for (uint32_t i = 0; i < columns; i++) {
                out[i] = rows->euler ? out[i] + v[r][i] * rows->step_size : v[r][i];
            }
        }
    }
}

static bool run_head(hvdc_host *host, uint32_t step, const float *hidden, bool euler, float *out,
                     hvdc_failure *failure) {
    const hvdc_step *record = hvdc_artifact_step(host->weights.artifact, step);
    const float *shift = hvdc_artifact_head(host->weights.artifact, step);
    if (record == NULL || shift == NULL || record->expert >= host->geometry.experts) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the artifact has %u steps, and none of number %" PRIu32,
                         (unsigned)host->geometry.steps, step);
    }
    uint32_t width = host->geometry.width;
    float *factor = malloc(width * sizeof *factor);
    if (factor == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the head's modulation");
    }
    for (uint32_t i = 0; i < width; i++) {
        factor[i] = 1.0f + shift[width + i]; /* the row is shift, scale */
    }
    struct rows rows = {host, &host->head[record->expert], factor, shift, hidden, out, record->step_size, euler};
    hvdc_pool_run(host->pool, hvdc_grid_tokens(&host->grid), ROWS, head_rows, &rows);
    free(factor);
    return true;
}

bool hvdc_host_velocity(hvdc_host *host, uint32_t step, const float *hidden, float *velocity, hvdc_failure *failure) {
    return run_head(host, step, hidden, false, velocity, failure);
}

bool hvdc_host_euler(hvdc_host *host, uint32_t step, const float *hidden, float *tokens, hvdc_failure *failure) {
    return run_head(host, step, hidden, true, tokens, failure);
}
