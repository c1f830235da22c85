/* hvdc_blocks: runs parts of a trajectory on an engine, for tests and benchmarks.
 *
 *   hvdc_blocks ARTIFACT [--threads N] [--grid FRAMES,ROWS,COLUMNS] [--cpu LEVEL] [--weights mapped|copied]
 *               [--npu-sums fast|exact] [--gpu-share S [--kernel-cache DIR]]
 *               [--dsp LIBRARY [--vtcm BYTES]] ACTION…
 *
 * With `--weights copied` engine and host read weights from copies of the data files in memory, as they do where
 * another process filled them, each of exactly its size. With --gpu-share the GPU's engine, in this process, computes
 * that share of each linear's columns; "inf": it fails whenever it is asked.
 *
 * With --dsp the engine is the one behind FastRPC's library of that path.
 *
 * Actions are executed in order on a hidden state [M][width] and a running latent [M][token_width]; files are raw
 * little-endian FP32 without a header.
 *
 *   engine NAME               open this engine, closing the one before; until then it is the first of the table
 *   text EXPERT FILE          a prompt's embeddings [text_tokens][text_width], projected, for expert 0 or 1
 *   project EXPERT FILE OUT   a prompt's embeddings to the expert's text [text_tokens][width], in a file
 *   projected EXPERT FILE     text that is projected already [text_tokens][width]
 *   latent FILE               load a latent [channels][frames][rows][columns]
 *   tokens FILE, hidden FILE  load the running latent, the hidden state
 *   embed                     hidden state from the running latent
 *   run STEP FIRST COUNT      blocks [FIRST, FIRST + COUNT) of a step
 *   euler STEP                head and Euler step
 *   save WHAT FILE            WHAT is hidden, tokens, latent, or velocity (of the step of `velocity`)
 *   velocity STEP             the head alone
 *   time REPEAT STEP FIRST COUNT   run REPEAT times on the same hidden state; prints seconds, and each stage's share
 *   rotations OUT             RoPE's cosines and sines [M][head_dim / 2][2], in a file
 *   memory                    prints the bytes that engine and host hold beside the weights
 *
 * Exit status: 0, or 1 with a sentence. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "blocks_partner.h"
#include "hvdc/dsp.h"
#include "hvdc/host.h"

struct settings {
    uint32_t threads;
    hvdc_grid grid;
    const char *cpu, *kernel_cache, *dsp;
    uint32_t vtcm_bytes;
    enum hvdc_npu_sums sums;
    double share;
    hvdc_partner *partner; /* NULL: none */
    bool copied;
};

static bool open_npu(const hvdc_weights *weights, const struct settings *settings, hvdc_engine **engine,
                     hvdc_failure *failure) {
    if (settings->dsp != NULL) {
        const hvdc_dsp_options dsp = {.library = settings->dsp,
                                      .threads = settings->threads,
                                      .vtcm_bytes = settings->vtcm_bytes,
                                      .sums = settings->sums,
                                      .grid = settings->grid};
        return hvdc_dsp_open(weights, &dsp, engine, failure);
    }
    const hvdc_npu_options options = {.threads = settings->threads,
                                      .grid = settings->grid,
                                      .cpu = settings->cpu,
                                      .sums = settings->sums,
                                      .partner = settings->partner};
    return hvdc_npu_open(weights, &options, engine, failure);
}

static const struct {
    const char *name;
    bool (*open)(const hvdc_weights *weights, const struct settings *settings, hvdc_engine **engine,
                 hvdc_failure *failure);
} ENGINES[] = {{"npu", open_npu}};

struct session {
    struct settings settings;
    hvdc_artifact *artifact;
    hvdc_weights weights;
    uint8_t **copies; /* of the data files, if they are copied */
    hvdc_pool *pool;
    hvdc_host *host;
    hvdc_engine *engine;
    blocks_partner partner; /* of the NPU's, if it has a share */
    float *hidden, *tokens, *latent, *velocity;
    size_t hidden_floats, token_floats;
    hvdc_failure failure;
};

static bool read_floats(struct session *s, const char *path, float *floats, size_t count) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return hvdc_fail(&s->failure, HVDC_FAILURE_FILE, "%s cannot be opened", path);
    }
    bool good = fread(floats, sizeof *floats, count, file) == count && fgetc(file) == EOF;
    (void)fclose(file);
    return good || hvdc_fail(&s->failure, HVDC_FAILURE_FILE, "%s does not hold exactly %zu FP32 values", path, count);
}

static bool write_floats(struct session *s, const char *path, const float *floats, size_t count) {
    FILE *file = fopen(path, "wb");
    bool good = file != NULL && fwrite(floats, sizeof *floats, count, file) == count;
    good = file != NULL && fclose(file) == 0 && good;
    return good || hvdc_fail(&s->failure, HVDC_FAILURE_FILE, "%s cannot be written", path);
}

static bool number(struct session *s, const char *text, uint32_t *value) {
    char *end;
    unsigned long long parsed = strtoull(text, &end, 10);
    *value = 0;
    if (*text < '0' || *text > '9' || *end != 0 || parsed > UINT32_MAX) {
        return hvdc_fail(&s->failure, HVDC_FAILURE_USAGE, "\"%s\" is not a number", text);
    }
    *value = (uint32_t)parsed;
    return true;
}

static bool open_engine(struct session *s, const char *name) {
    hvdc_engine_close(s->engine);
    s->engine = NULL;
    for (size_t i = 0; i < sizeof ENGINES / sizeof *ENGINES; i++) {
        if (strcmp(name, ENGINES[i].name) == 0) {
            return ENGINES[i].open(&s->weights, &s->settings, &s->engine, &s->failure);
        }
    }
    return hvdc_fail(&s->failure, HVDC_FAILURE_USAGE, "there is no engine \"%s\"", name);
}

static bool do_engine(struct session *s, char **arguments) { return open_engine(s, arguments[0]); }

/* A prompt's embeddings, or its text if it is projected already, to the engine, or to a file if one is named. */
static bool take_text(struct session *s, char **arguments, bool projected, const char *out_path) {
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    uint32_t expert;
    size_t in = (size_t)g->text_tokens * (projected ? g->width : g->text_width),
           out = (size_t)g->text_tokens * g->width;
    if (!number(s, arguments[0], &expert)) {
        return false;
    }
    float *from = malloc(in * sizeof *from), *text = malloc(out * sizeof *text);
    bool good = (from != NULL && text != NULL) || hvdc_fail(&s->failure, HVDC_FAILURE_MEMORY, "no memory for a prompt");
    good = good && read_floats(s, arguments[1], from, in) &&
           (projected || hvdc_host_project_text(s->host, expert, from, text, &s->failure)) &&
           (out_path != NULL ? write_floats(s, out_path, text, out)
                             : s->engine->set_text(s->engine, expert, projected ? from : text, &s->failure));
    free(from);
    free(text);
    return good;
}

static bool do_text(struct session *s, char **arguments) { return take_text(s, arguments, false, NULL); }

static bool do_project(struct session *s, char **arguments) { return take_text(s, arguments, false, arguments[2]); }

static bool do_projected(struct session *s, char **arguments) { return take_text(s, arguments, true, NULL); }

static bool do_rotations(struct session *s, char **arguments) {
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    float *rotations;
    if (!hvdc_rope_rotations(&s->weights, hvdc_host_grid(s->host), &rotations, &s->failure)) {
        return false;
    }
    bool good = write_floats(s, arguments[0], rotations, s->hidden_floats / g->heads);
    free(rotations);
    return good;
}

static bool do_latent(struct session *s, char **arguments) {
    if (!read_floats(s, arguments[0], s->latent, s->token_floats)) {
        return false;
    }
    hvdc_to_tokens(hvdc_artifact_geometry(s->artifact), hvdc_host_grid(s->host), s->latent, s->tokens);
    return true;
}

static bool do_tokens(struct session *s, char **arguments) {
    return read_floats(s, arguments[0], s->tokens, s->token_floats);
}

static bool do_hidden(struct session *s, char **arguments) {
    return read_floats(s, arguments[0], s->hidden, s->hidden_floats);
}

static bool do_embed(struct session *s, char **arguments) {
    (void)arguments;
    hvdc_host_embed(s->host, s->tokens, s->hidden);
    return true;
}

static bool do_run(struct session *s, char **arguments) {
    uint32_t step, first, count;
    return number(s, arguments[0], &step) && number(s, arguments[1], &first) && number(s, arguments[2], &count) &&
           s->engine->run(s->engine, step, first, count, s->hidden, &s->failure);
}

static bool do_euler(struct session *s, char **arguments) {
    uint32_t step;
    return number(s, arguments[0], &step) && hvdc_host_euler(s->host, step, s->hidden, s->tokens, &s->failure);
}

static bool do_velocity(struct session *s, char **arguments) {
    uint32_t step;
    return number(s, arguments[0], &step) && hvdc_host_velocity(s->host, step, s->hidden, s->velocity, &s->failure);
}

static bool do_save(struct session *s, char **arguments) {
    if (strcmp(arguments[0], "hidden") == 0) {
        return write_floats(s, arguments[1], s->hidden, s->hidden_floats);
    }
    if (strcmp(arguments[0], "tokens") == 0) {
        return write_floats(s, arguments[1], s->tokens, s->token_floats);
    }
    if (strcmp(arguments[0], "velocity") == 0) {
        return write_floats(s, arguments[1], s->velocity, s->token_floats);
    }
    if (strcmp(arguments[0], "latent") == 0) {
        hvdc_to_latent(hvdc_artifact_geometry(s->artifact), hvdc_host_grid(s->host), s->tokens, s->latent);
        return write_floats(s, arguments[1], s->latent, s->token_floats);
    }
    return hvdc_fail(&s->failure, HVDC_FAILURE_USAGE, "what is \"%s\"? say hidden, tokens, latent or velocity",
                     arguments[0]);
}

static double now_s(void) {
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool stage_seconds(struct session *s, double seconds[HVDC_NPU_STAGE_COUNT]) {
    if (strcmp(s->engine->name, HVDC_DSP_NAME) == 0) return hvdc_dsp_seconds(s->engine, seconds, &s->failure);
    hvdc_npu_seconds(s->engine, seconds);
    return true;
}

static bool do_time(struct session *s, char **arguments) {
    uint32_t repeat;
    float *kept = malloc(s->hidden_floats * sizeof *kept);
    if (!number(s, arguments[0], &repeat) || kept == NULL) {
        free(kept);
        return kept != NULL ? false : hvdc_fail(&s->failure, HVDC_FAILURE_MEMORY, "no memory for a hidden state");
    }
    memcpy(kept, s->hidden, s->hidden_floats * sizeof *kept);
    bool good = true;
    for (uint32_t i = 0; good && i < repeat; i++) {
        double before[HVDC_NPU_STAGE_COUNT], after[HVDC_NPU_STAGE_COUNT], start = now_s();
        memcpy(s->hidden, kept, s->hidden_floats * sizeof *kept);
        good = stage_seconds(s, before) && do_run(s, arguments + 1);
        double seconds = now_s() - start;
        (void)printf("%.6f s\n", seconds);
        good = good && stage_seconds(s, after);
        for (unsigned stage = 0; good && stage < HVDC_NPU_STAGE_COUNT; stage++) {
            (void)printf("  %5.1f %% %s\n", 100.0 * (after[stage] - before[stage]) / seconds,
                         hvdc_npu_stage_name((enum hvdc_npu_stage)stage));
        }
    }
    free(kept);
    return good;
}

static bool do_memory(struct session *s, char **arguments) {
    (void)arguments;
    (void)printf("engine %" PRIu64 "\nhost %" PRIu64 "\n", s->engine->memory_bytes(s->engine),
                 hvdc_host_memory_bytes(s->host));
    return true;
}

static const struct {
    const char *name;
    int arguments;
    bool (*act)(struct session *session, char **arguments);
} ACTIONS[] = {
    {"engine", 1, do_engine},   {"text", 2, do_text},           {"projected", 2, do_projected},
    {"project", 3, do_project}, {"rotations", 1, do_rotations}, {"latent", 1, do_latent},
    {"tokens", 1, do_tokens},   {"hidden", 1, do_hidden},       {"embed", 0, do_embed},
    {"run", 3, do_run},         {"euler", 1, do_euler},         {"velocity", 1, do_velocity},
    {"save", 2, do_save},       {"time", 4, do_time},           {"memory", 0, do_memory},
};

static bool read_options(struct session *s, int *at, int argc, char **argv) {
    for (; *at + 1 < argc && strncmp(argv[*at], "--", 2) == 0; *at += 2) {
        const char *option = argv[*at], *value = argv[*at + 1];
        hvdc_grid *grid = &s->settings.grid;
        char more;
        if (strcmp(option, "--threads") == 0) {
            if (!number(s, value, &s->settings.threads)) return false;
        } else if (strcmp(option, "--dsp") == 0) {
            s->settings.dsp = value;
        } else if (strcmp(option, "--vtcm") == 0) {
            if (!number(s, value, &s->settings.vtcm_bytes)) return false;
        } else if (strcmp(option, "--cpu") == 0) {
            s->settings.cpu = value;
        } else if (strcmp(option, "--kernel-cache") == 0) {
            s->settings.kernel_cache = value;
        } else if (strcmp(option, "--npu-sums") == 0 && hvdc_npu_sums_of_name(value, &s->settings.sums)) {
            continue;
        } else if (strcmp(option, "--gpu-share") == 0) {
            s->settings.share = strtod(value, NULL);
        } else if (strcmp(option, "--weights") == 0 && (strcmp(value, "mapped") == 0 || strcmp(value, "copied") == 0)) {
            s->settings.copied = strcmp(value, "copied") == 0;
        } else if (strcmp(option, "--grid") != 0 || sscanf(value, "%" SCNu32 ",%" SCNu32 ",%" SCNu32 "%c",
                                                           &grid->frames, &grid->rows, &grid->columns, &more) != 3) {
            return hvdc_fail(&s->failure, HVDC_FAILURE_USAGE, "what is %s %s?", option, value);
        }
    }
    return true;
}

static bool copy_weights(struct session *s) {
    uint32_t count = hvdc_artifact_file_count(s->artifact);
    s->copies = calloc(count, sizeof *s->copies);
    for (uint32_t i = 0; s->copies != NULL && i < count; i++) {
        hvdc_span span = {0};
        (void)hvdc_artifact_file_span(s->artifact, i, &span);
        s->copies[i] = malloc((size_t)span.bytes);
        if (s->copies[i] == NULL) {
            return hvdc_fail(&s->failure, HVDC_FAILURE_MEMORY, "no memory for a copy of %s", span.path);
        }
        memcpy(s->copies[i], span.data, (size_t)span.bytes);
    }
    s->weights.files = (const uint8_t *const *)s->copies;
    return s->copies != NULL || hvdc_fail(&s->failure, HVDC_FAILURE_MEMORY, "no memory for copies of the weights");
}

static void free_copies(struct session *s) {
    for (uint32_t i = 0; s->copies != NULL && i < hvdc_artifact_file_count(s->artifact); i++) {
        free(s->copies[i]);
    }
    free(s->copies);
}

static bool open_session(struct session *s, const char *path) {
    hvdc_error error;
    if (hvdc_artifact_open(path, &s->artifact, &error) != HVDC_E_OK) {
        return hvdc_fail(&s->failure, HVDC_FAILURE_ARTIFACT, "%.200s: %.280s", error.file, error.message);
    }
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    s->weights = (hvdc_weights){.artifact = s->artifact};
    s->settings.partner = s->settings.share > 0.0 ? &s->partner.face : NULL;
    if ((s->settings.copied && !copy_weights(s)) || !hvdc_pool_open(s->settings.threads, &s->pool, &s->failure) ||
        !hvdc_host_open(&s->weights, &s->settings.grid, s->pool, &s->host, &s->failure) ||
        (s->settings.partner != NULL && !blocks_partner_open(&s->weights, hvdc_host_grid(s->host), s->settings.share,
                                                             s->settings.kernel_cache, &s->partner, &s->failure)) ||
        !open_engine(s, ENGINES[0].name)) {
        return false;
    }
    size_t tokens = hvdc_grid_tokens(hvdc_host_grid(s->host));
    s->hidden_floats = tokens * g->width;
    s->token_floats = tokens * hvdc_token_width(g);
    s->hidden = calloc(s->hidden_floats, sizeof *s->hidden);
    s->tokens = calloc(s->token_floats, sizeof *s->tokens);
    s->latent = calloc(s->token_floats, sizeof *s->latent);
    s->velocity = calloc(s->token_floats, sizeof *s->velocity);
    return (s->hidden != NULL && s->tokens != NULL && s->latent != NULL && s->velocity != NULL) ||
           hvdc_fail(&s->failure, HVDC_FAILURE_MEMORY, "no memory for %zu tokens", tokens);
}

static bool act(struct session *s, int argc, char **argv) {
    while (argc > 0) {
        size_t i = 0, actions = sizeof ACTIONS / sizeof *ACTIONS;
        while (i < actions && strcmp(argv[0], ACTIONS[i].name) != 0) i++;
        if (i == actions || argc - 1 < ACTIONS[i].arguments) {
            return hvdc_fail(&s->failure, HVDC_FAILURE_USAGE, "\"%s\" is no action, or lacks arguments", argv[0]);
        }
        if (!ACTIONS[i].act(s, argv + 1)) {
            return false;
        }
        argc -= 1 + ACTIONS[i].arguments;
        argv += 1 + ACTIONS[i].arguments;
    }
    return true;
}

int main(int argc, char **argv) {
    struct session session = {.failure = {.kind = HVDC_FAILURE_NONE}};
    int at = 2;
    bool good = argc >= 2 || hvdc_fail(&session.failure, HVDC_FAILURE_USAGE, "which artifact?");
    good = good && read_options(&session, &at, argc, argv) && open_session(&session, argv[1]) &&
           act(&session, argc - at, argv + at);
    if (!good) {
        (void)fprintf(stderr, "hvdc_blocks: %s\n", session.failure.message);
    }
    hvdc_engine_close(session.engine);
    blocks_partner_close(&session.partner);
    hvdc_host_close(session.host);
    hvdc_pool_close(session.pool);
    free_copies(&session);
    hvdc_artifact_close(session.artifact);
    free(session.hidden);
    free(session.tokens);
    free(session.latent);
    free(session.velocity);
    return good ? 0 : 1;
}
