#define _GNU_SOURCE

#include "check_engine.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void check_sleep_us(uint32_t us) {
    struct timespec pause = {.tv_sec = us / 1000000u, .tv_nsec = (long)(us % 1000000u) * 1000};
    if (us > 0) (void)nanosleep(&pause, NULL);
}

static float modulo(uint64_t value) { return (float)(value % CHECK_PRIME); }

static bool is_at(const check_place *place, uint32_t video, uint32_t position) {
    return place->video == video && place->position == position;
}

static bool set_text(hvdc_engine *engine, uint32_t expert, const float *text, hvdc_failure *failure) {
    check_engine *e = (check_engine *)(void *)engine;
    const hvdc_trajectory *t = &e->spec->trajectory;
    (void)failure;
    memcpy(e->text[expert], text, (size_t)t->text_tokens * t->width * sizeof *text);
    return true;
}

static bool faults(const check_engine *e, uint32_t position, hvdc_failure *failure) {
    const check_spec *s = e->spec;
    if (!e->is_gpu) {
        if (is_at(&s->abort_at, e->video, position)) (void)raise(SIGKILL);
        while (is_at(&s->npu_hang_at, e->video, position)) (void)pause();
        return !is_at(&s->npu_fail_at, e->video, position) ||
               hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the NPU refuses block %u", (unsigned)position);
    }
    if (is_at(&s->die_at, e->video, position)) (void)raise(SIGKILL);
    if (is_at(&s->exit_at, e->video, position)) _exit(0);
    if (is_at(&s->hang_at, e->video, position))
        for (;;) (void)pause();
    return !is_at(&s->gpu_fail_at, e->video, position) ||
           hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the GPU refuses block %u", (unsigned)position);
}

static float product(float value, uint32_t step, uint32_t block, bool is_gpu, size_t i) {
    return modulo((uint64_t)value + (uint64_t)101u * step + (uint64_t)13u * block + (is_gpu ? 5u : 9u) +
                  (uint64_t)3u * i);
}

static uint32_t block_us(const check_engine *e) {
    const check_spec *s = e->spec;
    const check_place *slows = e->is_gpu ? &s->gpu_slows : &s->npu_slows;
    const uint32_t us =
        (e->is_gpu ? s->gpu_block_us : s->npu_block_us) * (e->video >= slows->video ? slows->position : 1u);
    const uint32_t drawn = (s->wild + 2u * e->video + (e->is_gpu ? 1u : 0u)) * UINT32_C(2654435761) >> 26;
    return s->wild == 0 ? us : us * (1u + drawn) / 16u;
}

/* In place; the first columns by the partner, if there is one. */
static bool linear(check_engine *e, uint32_t step, uint32_t block, float *hidden, hvdc_failure *failure) {
    const hvdc_trajectory *t = &e->spec->trajectory;
    const uint32_t tiles = (t->width + HVDC_SLICE_COLUMNS - 1u) / HVDC_SLICE_COLUMNS;
    hvdc_partner *partner = e->partner;
    hvdc_slice slice = {.step = step, .block = block, .rows = t->tokens};
    if (partner != NULL && partner->begin != NULL) slice.tiles = hvdc_slice_tiles(partner->share, tiles);
    const uint32_t given = slice.tiles * HVDC_SLICE_COLUMNS;
    if (given > 0) {
        for (size_t i = 0; i < (size_t)t->tokens * t->width; i++) partner->exchange.input[i] = (uint16_t)hidden[i];
        if (!partner->begin(partner->context, &slice, failure)) return false;
    }
    for (size_t i = 0; i < (size_t)t->tokens * t->width; i++)
        if (i % t->width >= given) hidden[i] = product(hidden[i], step, block, e->is_gpu, i);
    if (given > 0 && !partner->finish(partner->context, failure)) return false;
    for (size_t i = 0; given > 0 && i < (size_t)t->tokens * t->width; i++)
        if (i % t->width < given) hidden[i] = partner->exchange.output[i];
    return true;
}

bool check_multiply(hvdc_engine *engine, const hvdc_slice *slice, const hvdc_exchange *exchange,
                    hvdc_failure *failure) {
    check_engine *e = (check_engine *)(void *)engine;
    const hvdc_trajectory *t = &e->spec->trajectory;
    if (slice->step == 0 && slice->block == 0) e->videos++;
    e->video = e->videos - 1u; /* they come in order; one that is begun anew comes to no worker */
    if (!faults(e, slice->step * t->layers + slice->block, failure)) return false;
    if ((uint64_t)t->tokens * t->width > exchange->values)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the exchange is too small");
    for (size_t i = 0; i < (size_t)slice->rows * t->width; i++)
        if (i % t->width < (size_t)slice->tiles * HVDC_SLICE_COLUMNS)
            exchange->output[i] = product((float)exchange->input[i], slice->step, slice->block, true, i);
    check_sleep_us(e->spec->gpu_block_us);
    return true;
}

static bool run(hvdc_engine *engine, uint32_t step, uint32_t first, uint32_t count, float *hidden,
                hvdc_failure *failure) {
    check_engine *e = (check_engine *)(void *)engine;
    const hvdc_trajectory *t = &e->spec->trajectory;
    const float *text = e->text[t->experts[step]];
    size_t values = (size_t)t->tokens * t->width, texts = (size_t)t->text_tokens * t->width;
    for (uint32_t block = first; block < first + count; block++) {
        if (!faults(e, step * t->layers + block, failure)) return false;
        for (size_t i = 0; i < values; i++)
            hidden[i] = modulo((uint64_t)hidden[i] * 31u + (uint64_t)text[i % texts] * 7u);
        if (!linear(e, step, block, hidden, failure)) return false;
        check_sleep_us(block_us(e));
    }
    return true;
}

static uint64_t memory_bytes(const hvdc_engine *engine) {
    const hvdc_trajectory *t = &((const check_engine *)(const void *)engine)->spec->trajectory;
    return 2u * (uint64_t)t->text_tokens * t->width * sizeof(float);
}

static void close_engine(hvdc_engine *engine) {
    check_engine *e = (check_engine *)(void *)engine;
    free(e->text[0]);
    free(e->text[1]);
    free(e);
}

bool check_engine_open(const check_spec *spec, bool is_gpu, hvdc_partner *partner, hvdc_engine **engine,
                       hvdc_failure *failure) {
    const hvdc_trajectory *t = &spec->trajectory;
    if (is_gpu && spec->open_hangs)
        for (;;) (void)pause();
    if (is_gpu && spec->open_fails)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "there is no OpenCL device: install a driver");
    check_engine *e = calloc(1, sizeof *e);
    if (e == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for an engine");
    e->engine = (hvdc_engine){.name = is_gpu ? "gpu" : "npu",
                              .set_text = set_text,
                              .run = run,
                              .memory_bytes = memory_bytes,
                              .close = close_engine};
    e->spec = spec;
    e->is_gpu = is_gpu;
    e->partner = partner;
    for (int i = 0; i < 2; i++) {
        e->text[i] = calloc((size_t)t->text_tokens * t->width, sizeof(float));
        if (e->text[i] == NULL) {
            close_engine(&e->engine);
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for an engine");
        }
    }
    *engine = &e->engine;
    return true;
}

static bool embed(void *context, const float *latent, float *hidden, hvdc_failure *failure) {
    const check_engine *e = context;
    const hvdc_trajectory *t = &e->spec->trajectory;
    (void)failure;
    for (uint32_t token = 0; token < t->tokens; token++)
        for (uint32_t c = 0; c < t->width; c++)
            hidden[(size_t)token * t->width + c] =
                modulo((uint64_t)latent[(size_t)token * t->latent_values + c % t->latent_values] * 3u + c + 1u);
    check_sleep_us(e->spec->host_us);
    return true;
}

static bool project_text(void *context, uint32_t expert, const float *embeds, float *text, hvdc_failure *failure) {
    check_engine *e = context;
    const hvdc_trajectory *t = &e->spec->trajectory;
    (void)failure;
    e->video = (uint32_t)embeds[0];
    for (uint32_t i = 0; i < t->text_tokens; i++)
        for (uint32_t c = 0; c < t->width; c++)
            text[(size_t)i * t->width + c] = modulo(
                (uint64_t)embeds[(size_t)i * t->text_width + c % t->text_width] * 5u + (uint64_t)11u * expert + c);
    check_sleep_us(e->spec->host_us);
    return true;
}

static bool advance(void *context, uint32_t step, const float *hidden, const float *latent, float *next,
                    hvdc_failure *failure) {
    const check_engine *e = context;
    const hvdc_trajectory *t = &e->spec->trajectory;
    (void)failure;
    bool scribbles = e->is_gpu && is_at(&e->spec->scribble_at, e->video, step);
    for (uint32_t token = 0; token < t->tokens; token++) {
        if (e->is_gpu && token == t->tokens / 2u && is_at(&e->spec->die_in_advance, e->video, step))
            (void)raise(SIGKILL);
        uint64_t sum = 0;
        for (uint32_t c = 0; c < t->width; c++) sum += (uint64_t)hidden[(size_t)token * t->width + c] * (c + 1u);
        for (uint32_t v = 0; v < t->latent_values; v++) {
            size_t at = (size_t)token * t->latent_values + v;
            next[at] = modulo((uint64_t)latent[at] * 7u + sum + step + v);
        }
    }
    if (scribbles) {
        memset((float *)(uintptr_t)latent, 0x55, (size_t)t->tokens * t->latent_values * sizeof *latent);
        (void)raise(SIGKILL);
    }
    check_sleep_us(e->spec->host_us);
    return true;
}

hvdc_host_ops check_host_ops(hvdc_engine *engine) {
    return (hvdc_host_ops){.context = engine, .embed = embed, .project_text = project_text, .advance = advance};
}

void check_inputs(const check_spec *spec, uint32_t video, float *latent, float *embeds) {
    const hvdc_trajectory *t = &spec->trajectory;
    uint64_t base = (uint64_t)(video + 1u) * 7919u + (uint64_t)spec->seed * 104729u;
    for (size_t i = 0; i < (size_t)t->tokens * t->latent_values; i++) latent[i] = modulo(base + 31u * i);
    for (size_t i = 0; i < (size_t)t->text_tokens * t->text_width; i++) embeds[i] = modulo(base * 3u + 17u * i);
    embeds[0] = (float)video;
}
