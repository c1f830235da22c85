#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hmx_staged.h"
#include "vtcm_products.h"

void hvdc_session_begin(hvdc_rpc_session *session) {
    const uint32_t generation = session->generation + 1u;
    *session = (hvdc_rpc_session){.open = true, .generation = generation, .rotations_region = HVDC_RPC_NO_REGION};
}

static void release_units(hvdc_rpc_session *s) {
    if (s->units.context == 0) return;
    hvdc_hmx_staged_close();
    hvdc_dsp_release(&s->units);
}

/* VTCM, `asked_bytes` or else what is free of what the engine uses, and in it the matrix unit. */
static bool take_units(hvdc_rpc_session *s, uint32_t asked_bytes, hvdc_failure *failure) {
    const uint32_t useful = hvdc_vtcm_useful_bytes(hvdc_artifact_geometry(s->artifact));
    const bool any = asked_bytes == 0;
    if (!hvdc_dsp_acquire(any ? HVDC_VTCM_LEAST_BYTES : asked_bytes, any ? useful : asked_bytes, &s->units, failure))
        return false;
    if (hvdc_hmx_staged_open(s->units.vtcm, s->units.vtcm_bytes, s->units.context, failure)) return true;
    hvdc_dsp_release(&s->units);
    return false;
}

static void close_engine(hvdc_rpc_session *s) {
    hvdc_engine_close(s->engine);
    s->engine = NULL;
    if (s->rotations_region != HVDC_RPC_NO_REGION) s->regions[s->rotations_region].users--;
    s->rotations_region = HVDC_RPC_NO_REGION;
    release_units(s);
}

static void detach(hvdc_rpc_session *s) {
    hvdc_artifact_close(s->artifact);
    s->artifact = NULL;
    for (uint32_t i = 0; s->file_regions != NULL && i < s->files; i++)
        if (s->file_regions[i] != HVDC_RPC_NO_REGION) s->regions[s->file_regions[i]].users--;
    free(s->file_regions);
    free(s->index);
    s->file_regions = NULL;
    s->index = NULL;
    s->files = 0;
}

void hvdc_session_end(hvdc_rpc_session *s) {
    close_engine(s);
    detach(s);
    for (uint32_t i = 0; i < HVDC_RPC_REGIONS; i++)
        if (s->regions[i].data != NULL) hvdc_dsp_unmap(s->regions[i].data, s->regions[i].bytes);
    if (s->powered) (void)hvdc_dsp_power(s, false, NULL);
    *s = (hvdc_rpc_session){.generation = s->generation};
}

static bool is_version(const uint8_t version[HVDC_RPC_VERSION_BYTES]) {
    return memchr(version, 0, HVDC_RPC_VERSION_BYTES) != NULL;
}

bool hvdc_session_hello(hvdc_rpc_session *s, const hvdc_rpc_hello_in *in, hvdc_rpc_hello_out *out,
                        const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts;
    const hvdc_dsp_facts facts = hvdc_dsp_describe();
    *out = (hvdc_rpc_hello_out){.abi = HVDC_RPC_ABI,
                                .arch = facts.arch,
                                .contexts = facts.contexts,
                                .vtcm_bytes = facts.vtcm_bytes,
                                .version = HVDC_RUNTIME_VERSION};
    if (!is_version(in->version) || strcmp((const char *)in->version, HVDC_RUNTIME_VERSION) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "libhvdc_skel.so is of runtime %s and the program on the CPU of another: take both of one "
                         "build, with `hvdc runtime build --target hexagon`",
                         HVDC_RUNTIME_VERSION);
    if (s->artifact != NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "hello comes before attach: an artifact is attached already");
    memcpy(s->index_sha256, in->index_sha256, sizeof s->index_sha256);
    s->greeted = true;
    return true;
}

static bool check_greeted(const hvdc_rpc_session *s, hvdc_failure *failure) {
    return s->greeted || hvdc_fail(failure, HVDC_FAILURE_USAGE, "hello comes before every other call of a session");
}

static bool check_engine(const hvdc_rpc_session *s, hvdc_failure *failure) {
    return s->engine != NULL || hvdc_fail(failure, HVDC_FAILURE_USAGE, "there is no engine: open_engine comes before");
}

bool hvdc_session_power(hvdc_rpc_session *s, const hvdc_rpc_power_in *in, hvdc_rpc_power_out *out,
                        const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts, (void)out;
    if (!check_greeted(s, failure)) return false;
    if (in->up > 1u) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "power is 0 or 1, not %" PRIu32, in->up);
    if (!hvdc_dsp_power(s, in->up == 1u, failure)) return false;
    s->powered = in->up == 1u;
    return true;
}

/* A region by its number. */
static hvdc_rpc_region *region_of(hvdc_rpc_session *s, uint32_t region, hvdc_failure *failure) {
    if (region < HVDC_RPC_REGIONS && s->regions[region].data != NULL) return &s->regions[region];
    (void)hvdc_fail(failure, HVDC_FAILURE_USAGE, "region %" PRIu32 " is not mapped", region);
    return NULL;
}

/* [offset, offset + bytes) of a region. */
static uint8_t *place_in(hvdc_rpc_session *s, uint32_t number, uint64_t offset, uint64_t bytes, const char *what,
                         hvdc_failure *failure) {
    const hvdc_rpc_region *region = region_of(s, number, failure);
    if (region == NULL) return NULL;
    if (offset % HVDC_RPC_ALIGNMENT != 0) {
        (void)hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s at offset %" PRIu64 ", which is no multiple of %u", what,
                        offset, HVDC_RPC_ALIGNMENT);
        return NULL;
    }
    if (offset > region->bytes || bytes > region->bytes - offset) {
        (void)hvdc_fail(failure, HVDC_FAILURE_USAGE,
                        "%s of %" PRIu64 " bytes at offset %" PRIu64 " are not in region %" PRIu32 " of %" PRIu64
                        " bytes",
                        what, bytes, offset, number, region->bytes);
        return NULL;
    }
    return region->data + offset;
}

bool hvdc_session_map(hvdc_rpc_session *s, const hvdc_rpc_map_in *in, hvdc_rpc_map_out *out,
                      const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts;
    if (!check_greeted(s, failure)) return false;
    if (in->fd > INT32_MAX || in->bytes == 0 || in->bytes > UINT32_MAX || in->writable > 1u)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "descriptor %" PRIu32 " of %" PRIu64 " bytes, writable %" PRIu32 ", is nothing to map", in->fd,
                         in->bytes, in->writable);
    uint32_t number = 0;
    while (number < HVDC_RPC_REGIONS && s->regions[number].data != NULL) number++;
    if (number == HVDC_RPC_REGIONS)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%u regions are mapped already: unmap one", HVDC_RPC_REGIONS);
    hvdc_rpc_region *region = &s->regions[number];
    if (!hvdc_dsp_map((int)in->fd, in->bytes, in->writable == 1u, &region->data, failure)) {
        region->data = NULL;
        return false;
    }
    region->bytes = in->bytes;
    region->writable = in->writable == 1u;
    out->region = number;
    out->address = (uint64_t)(uintptr_t)region->data;
    return true;
}

bool hvdc_session_unmap(hvdc_rpc_session *s, const hvdc_rpc_unmap_in *in, hvdc_rpc_unmap_out *out,
                        const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts, (void)out;
    hvdc_rpc_region *region = region_of(s, in->region, failure);
    if (region == NULL) return false;
    if (region->users != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "region %" PRIu32 " is in use: close the session instead",
                         in->region);
    hvdc_dsp_unmap(region->data, region->bytes);
    *region = (hvdc_rpc_region){.data = NULL};
    return true;
}

/* Regions of files are counted as used, so that what fails half-way is undone by detach. */
static bool take_files(hvdc_rpc_session *s, const hvdc_rpc_parts *parts, hvdc_memory_file *files,
                       hvdc_failure *failure) {
    for (uint32_t i = 0; i < s->files; i++) {
        uint32_t number;
        memcpy(&number, (const uint8_t *)parts->given[1].buffer.data + i * sizeof number, sizeof number);
        s->file_regions[i] = HVDC_RPC_NO_REGION;
        if (number == HVDC_RPC_NO_REGION) continue;
        hvdc_rpc_region *region = region_of(s, number, failure);
        if (region == NULL || !hvdc_dsp_before_read(region->data, region->bytes, failure)) {
            s->files = i;
            return false;
        }
        files[i] = (hvdc_memory_file){.data = region->data, .bytes = region->bytes};
        s->file_regions[i] = number;
        region->users++;
    }
    return true;
}

static bool attach(hvdc_rpc_session *s, const hvdc_rpc_parts *parts, hvdc_memory_file *files, hvdc_failure *failure) {
    const size_t index_bytes = parts->given[0].buffer.bytes;
    hvdc_error error;
    memcpy(s->index, parts->given[0].buffer.data, index_bytes);
    if (!take_files(s, parts, files, failure)) return false;
    if (hvdc_artifact_attach(s->index, index_bytes, files, s->files, &s->artifact, &error) != HVDC_E_OK)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "%.100s: %.100s: %.250s [%s]", error.file,
                         hvdc_code_meaning(error.code), error.message, hvdc_code_name(error.code));
    return memcmp(hvdc_artifact_header(s->artifact)->index_sha256, s->index_sha256, sizeof s->index_sha256) == 0 ||
           hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the index is not that of the artifact that hello announced");
}

bool hvdc_session_attach(hvdc_rpc_session *s, const hvdc_rpc_attach_in *in, hvdc_rpc_attach_out *out,
                         const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)in, (void)out;
    if (!check_greeted(s, failure)) return false;
    if (s->artifact != NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "an artifact is attached already: open another session");
    s->files = (uint32_t)(parts->given[1].buffer.bytes / sizeof *s->file_regions);
    s->index = malloc(parts->given[0].buffer.bytes);
    s->file_regions = calloc(s->files, sizeof *s->file_regions);
    hvdc_memory_file *files = calloc(s->files, sizeof *files);
    bool good = s->index != NULL && s->file_regions != NULL && files != NULL;
    if (!good) {
        s->files = 0;
        (void)hvdc_fail(failure, HVDC_FAILURE_MEMORY, "the DSP has no memory for the artifact's index");
    }
    good = good && attach(s, parts, files, failure);
    free(files);
    if (!good) detach(s);
    return good;
}

static bool find_rotations(hvdc_rpc_session *s, const hvdc_rpc_open_engine_in *in, uint32_t tokens,
                           const float **rotations, hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    const uint64_t bytes = (uint64_t)tokens * (g->width / g->heads) * sizeof(float);
    const uint8_t *at = place_in(s, in->rotations_region, in->rotations_offset, bytes, "RoPE's rotations", failure);
    if (at == NULL || !hvdc_dsp_before_read(at, bytes, failure)) return false;
    *rotations = (const float *)(const void *)at;
    return true;
}

bool hvdc_session_open_engine(hvdc_rpc_session *s, const hvdc_rpc_open_engine_in *in, hvdc_rpc_open_engine_out *out,
                              const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts;
    if (!check_greeted(s, failure)) return false;
    if (s->artifact == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "there is no artifact: attach comes before open_engine");
    if (s->engine != NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "an engine is open already: close_engine comes before");
    if (in->threads > HVDC_RPC_MAX_THREADS)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%" PRIu32 " threads are more than the limit of %u", in->threads,
                         HVDC_RPC_MAX_THREADS);
    if (in->sums > HVDC_NPU_SUMS_EXACT)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "sums are 0 or 1, not %" PRIu32, in->sums);
    if (in->sums == HVDC_NPU_SUMS_EXACT && !hvdc_dsp_describe().adds_exactly)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "nobody knows whether this DSP's matrix unit adds exactly: take fast sums, or --npu portable");
    hvdc_npu_options options = {.threads = in->threads,
                                .sums = (enum hvdc_npu_sums)in->sums,
                                .grid = {.frames = in->frames, .rows = in->rows, .columns = in->columns}};
    hvdc_grid grid;
    if (!hvdc_grid_resolve(s->artifact, &options.grid, &grid, failure)) return false;
    const uint32_t tokens = hvdc_grid_tokens(&grid);
    if (!find_rotations(s, in, tokens, &options.rotations, failure) || !take_units(s, in->vtcm_bytes, failure))
        return false;
    options.unit = hvdc_dsp_describe().has_unit ? hvdc_hmx_staged() : NULL;
    if (!hvdc_npu_open(&(hvdc_weights){.artifact = s->artifact}, &options, &s->engine, failure)) {
        release_units(s);
        return false;
    }
    s->rotations_region = in->rotations_region;
    s->regions[s->rotations_region].users++;
    s->tokens = tokens;
    out->tokens = tokens;
    out->vtcm_bytes = s->units.vtcm_bytes;
    return true;
}

bool hvdc_session_set_text(hvdc_rpc_session *s, const hvdc_rpc_set_text_in *in, hvdc_rpc_set_text_out *out,
                           const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)out;
    if (!check_engine(s, failure)) return false;
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    const uint64_t due = (uint64_t)g->text_tokens * g->width * sizeof(float);
    const hvdc_remote_arg *text = &parts->given[0];
    if (text->buffer.bytes != due || (uintptr_t)text->buffer.data % sizeof(float) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a text of %zu bytes where the model has %" PRIu64,
                         text->buffer.bytes, due);
    return s->engine->set_text(s->engine, in->expert, text->buffer.data, failure);
}

bool hvdc_session_run(hvdc_rpc_session *s, const hvdc_rpc_run_in *in, hvdc_rpc_run_out *out,
                      const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts, (void)out;
    if (!check_engine(s, failure)) return false;
    const uint64_t bytes = (uint64_t)s->tokens * hvdc_artifact_geometry(s->artifact)->width * sizeof(float);
    uint8_t *at = place_in(s, in->region, in->offset, bytes, "a hidden state", failure);
    if (at == NULL) return false;
    if (!s->regions[in->region].writable)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "region %" PRIu32 " is mapped for reading only", in->region);
    if (!hvdc_dsp_before_read(at, bytes, failure)) return false;
    const bool ran = s->engine->run(s->engine, in->step, in->first, in->count, (float *)(void *)at, failure);
    /* Also what a run that failed has written: it would leave the caches later, over what the CPU put there meanwhile. */
    return hvdc_dsp_after_write(at, bytes, ran ? failure : NULL) && ran;
}

bool hvdc_session_measure(hvdc_rpc_session *s, const hvdc_rpc_measure_in *in, hvdc_rpc_measure_out *out,
                          const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)in;
    if (!check_engine(s, failure)) return false;
    double seconds[HVDC_NPU_STAGE_COUNT];
    hvdc_npu_seconds(s->engine, seconds);
    memcpy(parts->taken[0].buffer.data, seconds, sizeof seconds);
    out->memory_bytes = s->engine->memory_bytes(s->engine);
    return true;
}

bool hvdc_session_close_engine(hvdc_rpc_session *s, const hvdc_rpc_close_engine_in *in, hvdc_rpc_close_engine_out *out,
                               const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)in, (void)out, (void)parts;
    if (!check_engine(s, failure)) return false;
    close_engine(s);
    return true;
}

bool hvdc_session_selftest(hvdc_rpc_session *s, const hvdc_rpc_selftest_in *in, hvdc_rpc_selftest_out *out,
                           const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    const hvdc_remote_arg *report = &parts->taken[0];
    hvdc_dsp_units units;
    if (!check_greeted(s, failure)) return false;
    if (s->engine != NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the engine holds the units that the self-test asks: close_engine comes before");
    const bool any = in->vtcm_bytes == 0; /* as much as there is, since ends of it are tested */
    if (!hvdc_dsp_acquire(any ? HVDC_VTCM_LEAST_BYTES : in->vtcm_bytes, any ? UINT32_MAX : in->vtcm_bytes, &units,
                          failure))
        return false;
    const bool done = hvdc_dsp_selftest(&units, report->buffer.data, (uint32_t)report->buffer.bytes, &out->failed,
                                        &out->worthless, failure);
    hvdc_dsp_release(&units);
    return done;
}

bool hvdc_session_invert(hvdc_rpc_session *s, const hvdc_rpc_invert_in *in, hvdc_rpc_invert_out *out,
                         const hvdc_rpc_parts *parts, hvdc_failure *failure) {
    (void)parts, (void)out;
    if (!check_greeted(s, failure)) return false;
    uint8_t *at = place_in(s, in->region, in->offset, in->bytes, "what is to be inverted", failure);
    if (at == NULL) return false;
    if (!s->regions[in->region].writable)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "region %" PRIu32 " is mapped for reading only", in->region);
    if (s->regions[in->region].users != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "region %" PRIu32 " is in use", in->region);
    if (!hvdc_dsp_before_read(at, in->bytes, failure)) return false;
    for (uint64_t i = 0; i < in->bytes; i++) at[i] = (uint8_t)~at[i];
    return hvdc_dsp_after_write(at, in->bytes, failure);
}
