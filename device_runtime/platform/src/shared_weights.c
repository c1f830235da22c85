/* Loading: each file copied into memory of its own while its SHA-256 is computed. */
#define _GNU_SOURCE

#include "shared_weights_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sha256.h"
#include "weights_exchange.h"

#define CHUNK_BYTES (1u << 20)

bool hvdc_is_shared_file(const hvdc_file *file) {
    return file->kind == HVDC_FILE_KIND_REGION || file->kind == HVDC_FILE_KIND_ADAPTER;
}

static const char *path_of(const hvdc_artifact *artifact, const hvdc_file *file) {
    return hvdc_artifact_text(artifact, file->path);
}

hvdc_shared_weights *hvdc_shared_weights_new(const hvdc_artifact *artifact, hvdc_failure *failure) {
    uint32_t count = hvdc_artifact_file_count(artifact);
    hvdc_shared_weights *shared = calloc(1, sizeof *shared);
    if (shared != NULL) {
        shared->memory = calloc(count, sizeof *shared->memory);
        shared->files = calloc(count, sizeof *shared->files);
        shared->fds = calloc(count, sizeof *shared->fds);
    }
    if (shared == NULL || shared->memory == NULL || shared->files == NULL || shared->fds == NULL) {
        hvdc_shared_weights_close(shared);
        (void)hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the table of %" PRIu32 " files", count);
        return NULL;
    }
    shared->count = count;
    for (uint32_t i = 0; i < count; i++) {
        shared->memory[i] = HVDC_NO_MEMORY;
        shared->fds[i] = -1;
    }
    shared->view = (hvdc_weights){.artifact = artifact, .files = shared->files, .fds = shared->fds};
    return shared;
}

void hvdc_shared_weights_add(hvdc_shared_weights *shared, uint32_t file) {
    shared->files[file] = shared->memory[file].data;
    shared->fds[file] = shared->memory[file].fd;
    shared->bytes += shared->memory[file].bytes;
}

void hvdc_shared_weights_close(hvdc_shared_weights *shared) {
    if (shared == NULL) return;
    for (uint32_t i = 0; i < shared->count; i++)
        if (shared->kind != NULL)
            shared->kind->close(&shared->memory[i]);
        else
            hvdc_memory_unmap(&shared->memory[i]);
    free(shared->memory);
    free(shared->files);
    free(shared->fds);
    free(shared);
}

/* Copies a file to `to` (NULL: reads it only), and fails unless its SHA-256 is the artifact's. */
static bool copy_verified(const hvdc_artifact *artifact, uint32_t i, uint8_t *to, hvdc_failure *failure) {
    const hvdc_file *file = hvdc_artifact_file(artifact, i);
    uint8_t digest[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    hvdc_span from;
    if (!hvdc_artifact_file_span(artifact, i, &from))
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact has no file %" PRIu32, i);
    hvdc_sha256_init(&sha);
    for (uint64_t at = 0; at < from.bytes; at += CHUNK_BYTES) {
        size_t bytes = (size_t)(from.bytes - at < CHUNK_BYTES ? from.bytes - at : CHUNK_BYTES);
        const uint8_t *read = from.data + at;
        if (to != NULL) read = memcpy(to + at, read, bytes); /* hash what was written, not what was read */
        hvdc_sha256_update(&sha, read, bytes);
    }
    hvdc_sha256_final(&sha, digest);
    return memcmp(digest, file->sha256, sizeof digest) == 0 ||
           hvdc_fail(
               failure, HVDC_FAILURE_ARTIFACT,
               "%s: its SHA-256 is not the one in the artifact's index: the file was changed; run `hvdc validate`, "
               "or copy the artifact again",
               path_of(artifact, file));
}

static bool load_file(hvdc_shared_weights *shared, uint32_t i, hvdc_failure *failure) {
    const hvdc_artifact *artifact = shared->view.artifact;
    const hvdc_file *file = hvdc_artifact_file(artifact, i);
    hvdc_memory *memory = &shared->memory[i];
    char name[64];
    (void)snprintf(name, sizeof name, "hvdc:%.50s", path_of(artifact, file));
    if (!shared->kind->create(name, file->bytes, memory, failure) || !shared->kind->begin_write(memory, failure) ||
        /* NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): there is memory for every file of the artifact */
        !copy_verified(artifact, i, memory->data, failure) || !shared->kind->end_write(memory, failure) ||
        !hvdc_memory_seal(shared->kind, memory, failure))
        return false;
    hvdc_shared_weights_add(shared, i);
    return true;
}

uint64_t hvdc_shared_weights_due_bytes(const hvdc_artifact *artifact) {
    return hvdc_weights_offer_of(artifact).shared_bytes;
}

bool hvdc_shared_weights_load(const hvdc_artifact *artifact, uint64_t limit_bytes, hvdc_shared_weights **made,
                              hvdc_failure *failure) {
    *made = NULL;
    uint32_t count = hvdc_artifact_file_count(artifact);
    const uint64_t bytes = hvdc_shared_weights_due_bytes(artifact);
    const hvdc_memory_kind *kind = hvdc_memory_choose(failure);
    if (kind == NULL || !hvdc_memory_fits("the weights", bytes, limit_bytes, failure)) return false;
    hvdc_shared_weights *shared = hvdc_shared_weights_new(artifact, failure);
    if (shared == NULL) return false;
    shared->kind = kind;
    bool loaded = true;
    for (uint32_t i = 0; loaded && i < count; i++) {
        const hvdc_file *file = hvdc_artifact_file(artifact, i);
        if (hvdc_is_shared_file(file))
            loaded = load_file(shared, i, failure);
        else if (file->kind != HVDC_FILE_KIND_DECODER)
            loaded = copy_verified(artifact, i, NULL, failure);
    }
    if (loaded)
        *made = shared;
    else
        hvdc_shared_weights_close(shared);
    return loaded;
}

const hvdc_weights *hvdc_shared_weights_view(const hvdc_shared_weights *shared) { return &shared->view; }

uint64_t hvdc_shared_weights_bytes(const hvdc_shared_weights *shared) { return shared->bytes; }

const char *hvdc_shared_weights_kind(const hvdc_shared_weights *shared) {
    return shared->kind != NULL ? shared->kind->name : "of the other process";
}
