/* The CPU's end: an engine whose blocks the DSP executes. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/dsp.h"
#include "hvdc/shared_memory.h"
#include "link.h"

#define SHARED_MAX 16u /* slots of a stream, and the engine's own */

/* Memory that the DSP has mapped. */
struct shared {
    uint8_t *data; /* NULL: free */
    uint64_t bytes;
    int fd;
    uint32_t region;
};

typedef struct dsp_engine {
    hvdc_engine face; /* first, so that an hvdc_engine of ours is a dsp_engine */
    hvdc_rpc_link link;
    hvdc_weights weights;
    const hvdc_memory_kind *kind; /* also of memory that others share: all choose the same */
    hvdc_memory *files;           /* [file_count], of those that had no descriptor */
    uint32_t *regions;            /* [file_count] */
    uint32_t file_count;
    hvdc_memory rotations, staged;
    uint64_t hidden_bytes, own_bytes, memory_bytes;
    struct shared shared[SHARED_MAX];
    hvdc_dsp_description description;
} dsp_engine;

#define CALL(engine, name, in, out, buffers, failure) \
    hvdc_link_call(&(engine)->link, HVDC_RPC_##name, in, out, buffers, failure)

static bool map(dsp_engine *e, const uint8_t *data, int fd, uint64_t bytes, bool writable, uint32_t *region,
                hvdc_failure *failure) {
    hvdc_rpc_map_in in = {.fd = (uint32_t)fd, .bytes = bytes, .writable = writable};
    hvdc_rpc_map_out out;
    void *address = (void *)(uintptr_t)data;
    const int result = e->link.map(HVDC_REMOTE_CDSP, fd, address, 0, (size_t)bytes, HVDC_REMOTE_MAP_FD_DELAYED);
    if (result != 0)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                         "FastRPC does not take descriptor %d of %" PRIu64
                         " MiB: it is no memory that the DSP can map, or a session has no room for it (0x%x)",
                         fd, bytes >> 20, (unsigned)result);
    if (!CALL(e, map, &in, &out, NULL, failure)) {
        (void)e->link.unmap(HVDC_REMOTE_CDSP, fd, address, (size_t)bytes);
        return false;
    }
    *region = out.region;
    return true;
}

static bool fill(const hvdc_memory_kind *kind, hvdc_memory *memory, const void *from, hvdc_failure *failure) {
    if (from == NULL) return true;
    if (!kind->begin_write(memory, failure)) return false;
    memcpy(memory->data, from, (size_t)memory->bytes);
    return kind->end_write(memory, failure);
}

/* Shared memory of this engine's own, filled with `from` unless that is NULL. On failure there is none. */
static bool make(dsp_engine *e, const char *name, const void *from, uint64_t bytes, bool writable, hvdc_memory *made,
                 uint32_t *region, hvdc_failure *failure) {
    if (!e->kind->create(name, bytes, made, failure)) return false;
    if (!fill(e->kind, made, from, failure) || !map(e, made->data, made->fd, bytes, writable, region, failure)) {
        e->kind->close(made);
        return false;
    }
    e->own_bytes += bytes;
    return true;
}

/* What the executor reads of an artifact: blocks and the tables of modulation. The rest is the CPU's. */
static bool is_needed(const hvdc_file *file) {
    return file->bytes != 0 && (file->kind == HVDC_FILE_KIND_REGION || file->kind == HVDC_FILE_KIND_ADAPTER ||
                                file->kind == HVDC_FILE_KIND_SCHEDULE);
}

static const uint8_t *bytes_of(const dsp_engine *e, uint32_t i) {
    hvdc_span span;
    if (e->weights.files != NULL && e->weights.files[i] != NULL) return e->weights.files[i];
    return hvdc_artifact_file_span(e->weights.artifact, i, &span) ? span.data : NULL;
}

static bool send_file(dsp_engine *e, uint32_t i, hvdc_failure *failure) {
    const hvdc_file *file = hvdc_artifact_file(e->weights.artifact, i);
    if (!is_needed(file)) return true;
    const uint8_t *bytes = bytes_of(e, i);
    if (bytes == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "file %" PRIu32 " of the artifact is not here", i);
    if (e->weights.fds != NULL && e->weights.fds[i] >= 0)
        return map(e, bytes, e->weights.fds[i], file->bytes, false, &e->regions[i], failure);
    e->description.copied_bytes += file->bytes;
    return make(e, "hvdc:dsp-file", bytes, file->bytes, false, &e->files[i], &e->regions[i], failure);
}

static bool send_artifact(dsp_engine *e, hvdc_failure *failure) {
    hvdc_rpc_attach_in in = {.unused = 0};
    hvdc_rpc_attach_out out;
    e->file_count = hvdc_artifact_file_count(e->weights.artifact);
    e->files = calloc(e->file_count, sizeof *e->files);
    e->regions = calloc(e->file_count, sizeof *e->regions);
    if (e->files == NULL || e->regions == NULL) {
        e->file_count = 0;
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a table of files");
    }
    for (uint32_t i = 0; i < e->file_count; i++) {
        e->files[i] = HVDC_NO_MEMORY;
        e->regions[i] = HVDC_RPC_NO_REGION;
    }
    for (uint32_t i = 0; i < e->file_count; i++)
        if (!send_file(e, i, failure)) return false;
    const hvdc_header *header = hvdc_artifact_header(e->weights.artifact); /* index.bin begins with it */
    const hvdc_remote_arg buffers[] = {
        {.buffer = {.data = (void *)(uintptr_t)header, .bytes = (size_t)header->total_bytes}},
        {.buffer = {.data = e->regions, .bytes = e->file_count * sizeof *e->regions}}};
    return CALL(e, attach, &in, &out, buffers, failure);
}

static bool greet(dsp_engine *e, hvdc_failure *failure) {
    hvdc_rpc_hello_in in = {.version = HVDC_RUNTIME_VERSION};
    hvdc_rpc_hello_out out;
    hvdc_rpc_power_in power = {.up = 1};
    hvdc_rpc_power_out powered;
    memcpy(in.index_sha256, hvdc_artifact_header(e->weights.artifact)->index_sha256, sizeof in.index_sha256);
    if (!CALL(e, hello, &in, &out, NULL, failure)) return false;
    e->description.arch = out.arch;
    e->description.contexts = out.contexts;
    e->description.vtcm_bytes = out.vtcm_bytes;
    return CALL(e, power, &power, &powered, NULL, failure);
}

static bool test_units(dsp_engine *e, const hvdc_dsp_options *options, hvdc_failure *failure) {
    if (options->findings == NULL) return true;
    options->findings->failed = options->findings->worthless = 0;
    options->findings->report[0] = 0;
    return e->description.arch == 0 || hvdc_link_test_units(&e->link, options->vtcm_bytes, options->findings, failure);
}

static bool open_engine(dsp_engine *e, const hvdc_dsp_options *options, hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(e->weights.artifact);
    hvdc_rpc_open_engine_in in = {
        .threads = options->threads, .vtcm_bytes = options->vtcm_bytes, .sums = (uint32_t)options->sums};
    hvdc_rpc_open_engine_out out;
    hvdc_grid grid;
    float *rotations;
    if (!hvdc_grid_resolve(e->weights.artifact, &options->grid, &grid, failure) ||
        !hvdc_rope_rotations(&e->weights, &grid, &rotations, failure))
        return false;
    const uint64_t tokens = hvdc_grid_tokens(&grid);
    const bool sent = make(e, "hvdc:dsp-rope", rotations, tokens * (g->width / g->heads) * sizeof *rotations, false,
                           &e->rotations, &in.rotations_region, failure);
    free(rotations);
    in.frames = grid.frames;
    in.rows = grid.rows;
    in.columns = grid.columns;
    e->hidden_bytes = tokens * g->width * sizeof(float);
    if (!sent || !CALL(e, open_engine, &in, &out, NULL, failure)) return false;
    e->description.vtcm_held_bytes = out.vtcm_bytes;
    return out.tokens == tokens ||
           hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                     "the DSP opened an engine for %" PRIu32 " tokens and not for %" PRIu64, out.tokens, tokens);
}

/* Asked for after every call that may change it, since hvdc_engine.memory_bytes cannot fail. */
static bool measure(dsp_engine *e, double seconds[HVDC_NPU_STAGE_COUNT], hvdc_failure *failure) {
    hvdc_rpc_measure_in in = {.unused = 0};
    hvdc_rpc_measure_out out;
    const hvdc_remote_arg buffers[] = {{.buffer = {.data = seconds, .bytes = HVDC_RPC_SECONDS_BYTES}}};
    if (!CALL(e, measure, &in, &out, buffers, failure)) return false;
    e->memory_bytes = out.memory_bytes;
    return true;
}

static bool set_text(hvdc_engine *engine, uint32_t expert, const float *text, hvdc_failure *failure) {
    dsp_engine *e = (dsp_engine *)engine;
    const hvdc_geometry *g = hvdc_artifact_geometry(e->weights.artifact);
    hvdc_rpc_set_text_in in = {.expert = expert};
    hvdc_rpc_set_text_out out;
    double seconds[HVDC_NPU_STAGE_COUNT];
    const hvdc_remote_arg buffers[] = {
        {.buffer = {.data = (void *)(uintptr_t)text, .bytes = (size_t)g->text_tokens * g->width * sizeof *text}}};
    return CALL(e, set_text, &in, &out, buffers, failure) && measure(e, seconds, failure);
}

static struct shared *find_shared(dsp_engine *e, const void *data, uint64_t bytes) {
    for (uint32_t i = 0; i < SHARED_MAX; i++) {
        struct shared *s = &e->shared[i];
        const uint64_t offset = (uint64_t)((uintptr_t)data - (uintptr_t)s->data);
        if (s->data != NULL && (uintptr_t)data >= (uintptr_t)s->data && offset % HVDC_RPC_ALIGNMENT == 0 &&
            offset <= s->bytes && bytes <= s->bytes - offset)
            return s;
    }
    return NULL;
}

/* A free place; SHARED_MAX if there is none. */
static uint32_t free_place(const dsp_engine *e, hvdc_failure *failure) {
    uint32_t i = 0;
    while (i < SHARED_MAX && e->shared[i].data != NULL) i++;
    if (i == SHARED_MAX)
        (void)hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                        "the DSP has %u pieces of memory in common with this program already", SHARED_MAX);
    return i;
}

static bool share(hvdc_engine *engine, void *data, uint64_t bytes, int fd, hvdc_failure *failure) {
    dsp_engine *e = (dsp_engine *)engine;
    const uint32_t i = free_place(e, failure);
    uint32_t region;
    if (i == SHARED_MAX || !map(e, data, fd, bytes, true, &region, failure)) return false;
    e->shared[i] = (struct shared){.data = data, .bytes = bytes, .fd = fd, .region = region};
    return true;
}

/* Memory for hidden states that lie elsewhere. */
static bool stage(dsp_engine *e, hvdc_failure *failure) {
    const uint32_t i = free_place(e, failure);
    uint32_t region;
    if (i == SHARED_MAX || !make(e, "hvdc:dsp-hidden", NULL, e->hidden_bytes, true, &e->staged, &region, failure))
        return false;
    e->shared[i] =
        (struct shared){.data = e->staged.data, .bytes = e->hidden_bytes, .fd = e->staged.fd, .region = region};
    return true;
}

static void unshare(hvdc_engine *engine, void *data) {
    dsp_engine *e = (dsp_engine *)engine;
    for (uint32_t i = 0; i < SHARED_MAX; i++) {
        if (data == NULL || e->shared[i].data != data) continue;
        hvdc_rpc_unmap_in in = {.region = e->shared[i].region};
        hvdc_rpc_unmap_out out;
        if (!e->link.is_lost) (void)CALL(e, unmap, &in, &out, NULL, NULL);
        (void)e->link.unmap(HVDC_REMOTE_CDSP, e->shared[i].fd, data, (size_t)e->shared[i].bytes);
        e->shared[i] = (struct shared){.data = NULL};
    }
}

/* The CPU's caches: what it wrote is in memory before the DSP reads, and what the DSP wrote is what it reads then. */
static bool run_in(dsp_engine *e, const struct shared *shared, const void *hidden, uint32_t step, uint32_t first,
                   uint32_t count, hvdc_failure *failure) {
    hvdc_memory memory = {.data = shared->data, .bytes = shared->bytes, .fd = shared->fd};
    hvdc_rpc_run_in in = {.step = step,
                          .first = first,
                          .count = count,
                          .region = shared->region,
                          .offset = (uint64_t)((uintptr_t)hidden - (uintptr_t)shared->data)};
    hvdc_rpc_run_out out;
    if (!e->kind->end_write(&memory, failure)) return false;
    const bool ran = CALL(e, run, &in, &out, NULL, failure);
    return e->kind->begin_write(&memory, ran ? failure : NULL) && ran;
}

/* A hidden state in memory that the DSP does not see. */
static bool run_staged(dsp_engine *e, float *hidden, uint32_t step, uint32_t first, uint32_t count,
                       hvdc_failure *failure) {
    if (e->staged.data == NULL && !stage(e, failure)) return false;
    const struct shared *shared = find_shared(e, e->staged.data, e->hidden_bytes);
    e->description.staged_runs++;
    memcpy(e->staged.data, hidden, (size_t)e->hidden_bytes);
    if (!run_in(e, shared, e->staged.data, step, first, count, failure)) return false;
    memcpy(hidden, e->staged.data, (size_t)e->hidden_bytes);
    return true;
}

static bool run(hvdc_engine *engine, uint32_t step, uint32_t first, uint32_t count, float *hidden,
                hvdc_failure *failure) {
    dsp_engine *e = (dsp_engine *)engine;
    const struct shared *shared = find_shared(e, hidden, e->hidden_bytes);
    return shared != NULL ? run_in(e, shared, hidden, step, first, count, failure)
                          : run_staged(e, hidden, step, first, count, failure);
}

static uint64_t memory_bytes(const hvdc_engine *engine) {
    const dsp_engine *e = (const dsp_engine *)engine;
    return e->own_bytes + e->memory_bytes;
}

static void drop(dsp_engine *e, hvdc_memory *memory) {
    if (memory->data == NULL) return;
    (void)e->link.unmap(HVDC_REMOTE_CDSP, memory->fd, memory->data, (size_t)memory->bytes);
    e->kind->close(memory);
}

/* Closing the handle ends the DSP's session, and with it every mapping at its end. */
static void close_dsp(hvdc_engine *engine) {
    dsp_engine *e = (dsp_engine *)engine;
    const hvdc_rpc_link link = e->link;
    if (link.is_open) (void)link.close(link.handle);
    e->link.is_open = false;
    for (uint32_t i = 0; i < SHARED_MAX; i++)
        if (e->shared[i].data != NULL && e->shared[i].data != e->staged.data)
            (void)link.unmap(HVDC_REMOTE_CDSP, e->shared[i].fd, e->shared[i].data, (size_t)e->shared[i].bytes);
    for (uint32_t i = 0; i < e->file_count; i++) {
        if (e->files[i].data != NULL)
            drop(e, &e->files[i]);
        else if (e->regions[i] != HVDC_RPC_NO_REGION)
            (void)link.unmap(HVDC_REMOTE_CDSP, e->weights.fds[i], (void *)(uintptr_t)bytes_of(e, i),
                             (size_t)hvdc_artifact_file(e->weights.artifact, i)->bytes);
    }
    drop(e, &e->rotations);
    drop(e, &e->staged);
    free(e->files);
    free(e->regions);
    hvdc_link_close(&e->link);
    free(e);
}

bool hvdc_dsp_open(const hvdc_weights *weights, const hvdc_dsp_options *options, hvdc_engine **engine,
                   hvdc_failure *failure) {
    const hvdc_dsp_options defaults = {.library = NULL};
    double seconds[HVDC_NPU_STAGE_COUNT];
    *engine = NULL;
    dsp_engine *e = calloc(1, sizeof *e);
    if (e == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for an engine on the DSP");
    options = options == NULL ? &defaults : options;
    e->face = (hvdc_engine){.name = HVDC_DSP_NAME,
                            .set_text = set_text,
                            .run = run,
                            .memory_bytes = memory_bytes,
                            .share = share,
                            .unshare = unshare,
                            .close = close_dsp};
    e->weights = *weights;
    e->rotations = e->staged = HVDC_NO_MEMORY;
    e->kind = hvdc_memory_choose(failure);
    if (e->kind == NULL || !hvdc_link_open(options, &e->link, failure) || !greet(e, failure) ||
        !test_units(e, options, failure) || !send_artifact(e, failure) || !open_engine(e, options, failure) ||
        !measure(e, seconds, failure)) {
        close_dsp(&e->face);
        return false;
    }
    *engine = &e->face;
    return true;
}

bool hvdc_dsp_seconds(hvdc_engine *engine, double seconds[HVDC_NPU_STAGE_COUNT], hvdc_failure *failure) {
    return measure((dsp_engine *)engine, seconds, failure);
}

const hvdc_dsp_description *hvdc_dsp_describe_engine(const hvdc_engine *engine) {
    return &((const dsp_engine *)engine)->description;
}
