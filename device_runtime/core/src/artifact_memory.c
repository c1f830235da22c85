/* An artifact whose files are in memory already. */
#include <inttypes.h>
#include <stdlib.h>

#include "artifact_internal.h"
#include "error.h"

static void release(hvdc_artifact *artifact) {
    free(artifact->files);
    hvdc_index_free(&artifact->index);
    free(artifact);
}

static enum hvdc_code take_file(hvdc_artifact *artifact, uint32_t i, const hvdc_memory_file *given, hvdc_error *error) {
    const hvdc_file *record = hvdc_index_file(&artifact->index, i);
    const char *path = artifact->index.strings + record->path;
    artifact->files[i] = (hvdc_mapped){.data = given->data, .bytes = record->bytes, .fd = -1};
    if (given->data == NULL) return HVDC_E_OK;
    if (given->bytes != record->bytes)
        return hvdc_refuse(error, HVDC_E_FILE_SIZE, path, "expected %" PRIu64 " bytes in memory, found %" PRIu64,
                           record->bytes, given->bytes);
    if ((uintptr_t)given->data % HVDC_MEMORY_FILE_ALIGNMENT != 0)
        return hvdc_refuse(error, HVDC_E_IO, path, "it is not in memory at a multiple of %u bytes",
                           HVDC_MEMORY_FILE_ALIGNMENT);
    return HVDC_E_OK;
}

static enum hvdc_code take_files(hvdc_artifact *artifact, const hvdc_memory_file *files, uint32_t count,
                                 hvdc_error *error) {
    if (count != artifact->index.files.count)
        return hvdc_refuse(error, HVDC_E_MISSING_FILE, HVDC_INDEX_NAME,
                           "it names %" PRIu32 " files, and %" PRIu32 " were given", artifact->index.files.count,
                           count);
    artifact->files = calloc((size_t)count + 1u, sizeof *artifact->files);
    if (artifact->files == NULL)
        return hvdc_refuse(error, HVDC_E_IO, HVDC_INDEX_NAME, "no memory for %" PRIu32 " files", count);
    enum hvdc_code code = HVDC_E_OK;
    for (uint32_t i = 0; code == HVDC_E_OK && i < count; i++) code = take_file(artifact, i, &files[i], error);
    return code;
}

enum hvdc_code hvdc_artifact_attach(const void *index, uint64_t index_bytes, const hvdc_memory_file *files,
                                    uint32_t file_count, hvdc_artifact **artifact, hvdc_error *error) {
    *artifact = NULL;
    if (error != NULL) *error = (hvdc_error){.code = HVDC_E_OK};
    hvdc_artifact *made = calloc(1, sizeof *made);
    if (made == NULL) return hvdc_refuse(error, HVDC_E_IO, HVDC_INDEX_NAME, "no memory");
    made->index_file = (hvdc_mapped){.data = index, .bytes = index_bytes, .fd = -1};
    made->release = release;
    enum hvdc_code code = hvdc_index_parse(index, index_bytes, &made->index, error);
    if (code == HVDC_E_OK) code = take_files(made, files, file_count, error);
    if (code == HVDC_E_OK)
        *artifact = made;
    else
        release(made);
    return code;
}
