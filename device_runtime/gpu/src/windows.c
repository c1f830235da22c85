#include "windows.h"

#include <stdlib.h>
#include <string.h>

#include "program.h"

#define COMPARED_WORDS 32u /* at each end: tensors are aligned to as many bytes */
#define COMPARED_BYTES ((uint64_t)4u * COMPARED_WORDS)

static uint64_t page_below(uint64_t offset) { return offset / HVDC_GPU_PAGE_BYTES * HVDC_GPU_PAGE_BYTES; }
static uint64_t page_above(uint64_t offset) { return page_below(offset + HVDC_GPU_PAGE_BYTES - 1); }

static bool read_in_place(const hvdc_tensor *tensor) { return tensor->kind != HVDC_TENSOR_KIND_FFN_BASE; }

static bool add(hvdc_model *m, uint32_t file, uint64_t first, uint64_t end, hvdc_failure *failure) {
    hvdc_window *more = realloc(m->windows, (m->window_count + 1) * sizeof *more);
    if (more == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for the windows of the data files");
    }
    m->windows = more;
    m->windows[m->window_count++] = (hvdc_window){.file = file, .first = first, .bytes = end - first};
    return true;
}

/* Runs of tensors, in whole pages, as long as the limit allows. */
static bool plan_file(const hvdc_device *d, hvdc_model *m, uint32_t file, hvdc_failure *failure) {
    const hvdc_artifact *artifact = m->weights->artifact;
    const hvdc_file *record = hvdc_artifact_file(artifact, file);
    uint64_t first = 0, end = 0;
    bool open = false;
    if (hvdc_import_is_whole(&m->import)) {
        if (record->bytes > d->max_buffer_bytes) {
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s has %llu bytes, and a buffer at most %llu",
                             hvdc_artifact_text(artifact, record->path), (unsigned long long)record->bytes,
                             (unsigned long long)d->max_buffer_bytes);
        }
        return add(m, file, 0, record->bytes, failure);
    }
    for (uint32_t i = 0; i < record->tensor_count; ++i) {
        const hvdc_tensor *t = hvdc_artifact_tensor(artifact, record->first_tensor + i);
        const bool wanted = read_in_place(t);
        const uint64_t from = page_below(t->offset), to = page_above(t->offset + t->bytes);
        if (wanted && to - from > d->max_buffer_bytes) {
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                             "%s needs %llu bytes of memory in one piece, and a buffer has at most %llu",
                             hvdc_artifact_text(artifact, t->name), (unsigned long long)(to - from),
                             (unsigned long long)d->max_buffer_bytes);
        }
        if (open && (!wanted || to - first > d->max_buffer_bytes)) {
            if (!add(m, file, first, end, failure)) {
                return false;
            }
            open = false;
        }
        if (wanted) {
            first = open ? first : from;
            end = to;
            open = true;
        }
    }
    return !open || add(m, file, first, end, failure);
}

static bool base_of(const hvdc_model *m, uint32_t file, const uint8_t **data, hvdc_failure *failure) {
    hvdc_span span;
    *data = m->weights->files == NULL ? NULL : m->weights->files[file];
    if (*data == NULL) {
        if (!hvdc_artifact_file_span(m->weights->artifact, file, &span)) {
            return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "data file %u is not mapped", (unsigned)file);
        }
        *data = span.data;
    }
    return true;
}

static bool view(hvdc_device *d, const hvdc_gpu_options *options, hvdc_model *m, hvdc_window *w,
                 hvdc_failure *failure) {
    const uint8_t *base;
    if (!base_of(m, w->file, &base, failure)) {
        return false;
    }
    if (m->import.way == HVDC_GPU_IMPORT_COPY) {
        if (!hvdc_device_allocate(d, "a copy of weights", w->bytes, false, &w->copy, failure)) {
            return false;
        }
        w->memory = w->copy.memory;
        m->copied_bytes += w->bytes;
        return hvdc_device_write(d, w->memory, 0, base + w->first, w->bytes, failure);
    }
    union {
        const uint8_t *constant;
        void *given;
    } data = {base + w->first}; /* OpenCL's interface has no pointer to constant memory; the buffer is read-only */
    const hvdc_pages pages = {
        .data = data.given,
        .bytes = w->bytes,
        .fd = m->weights->fds == NULL ? -1 : m->weights->fds[w->file],
        .hardware_buffer = options->hardware_buffers == NULL ? NULL : options->hardware_buffers[w->file]};
    if (!hvdc_import_is_possible(d, m->import.way, &pages)) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "memory is shared as %s, and data file %u comes without what that needs",
                         hvdc_gpu_import_name(m->import.way), (unsigned)w->file);
    }
    m->imported_bytes += w->bytes;
    return hvdc_import_make(d, &m->import, &pages, false, &w->memory, failure);
}

static bool same_at(hvdc_device *d, cl_kernel copy, const hvdc_buffer *own, const hvdc_window *w, const uint8_t *base,
                    uint64_t offset) {
    uint32_t found[COMPARED_WORDS];
    const cl_uint from = (cl_uint)(offset / 4), zero = 0;
    const hvdc_argument arguments[] = {HVDC_ARGUMENT(w->memory), HVDC_ARGUMENT(from), HVDC_ARGUMENT(own->memory),
                                       HVDC_ARGUMENT(zero)};
    const uint64_t global[] = {COMPARED_WORDS, 1, 1}, local[] = {1, 1, 1};
    return hvdc_device_launch(d, copy, arguments, sizeof arguments / sizeof arguments[0], global, local, NULL) &&
           hvdc_device_read(d, own->memory, 0, found, sizeof found, NULL) &&
           memcmp(found, base + w->first + offset, sizeof found) == 0;
}

static bool compare(hvdc_device *d, hvdc_model *m, hvdc_failure *failure) {
    const hvdc_sources sources = {{hvdc_source_probe_cl}, 1, ""};
    cl_program program = NULL;
    cl_kernel copy = NULL;
    hvdc_buffer own = {NULL, 0};
    bool good = hvdc_program_build(d, &sources, &program, failure) &&
                hvdc_program_kernel(d, program, "copy_words", &copy, failure) &&
                hvdc_device_allocate(d, "a probe", COMPARED_BYTES, false, &own, failure);
    for (uint32_t i = 0; good && i < m->window_count; ++i) {
        const hvdc_window *w = &m->windows[i];
        const uint8_t *base;
        good = base_of(m, w->file, &base, failure);
        if (good &&
            (!same_at(d, copy, &own, w, base, 0) || !same_at(d, copy, &own, w, base, w->bytes - COMPARED_BYTES))) {
            good = hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                             "%s reads other bytes of data file %u than this process does (shared as %s); try another "
                             "way of sharing, or run on the NPU alone",
                             d->name, (unsigned)w->file, hvdc_gpu_import_name(m->import.way));
        }
    }
    hvdc_device_free(d, &own);
    hvdc_device_release_kernel(d, copy);
    if (program != NULL) {
        d->cl.clReleaseProgram(program);
    }
    return good;
}

bool hvdc_windows_plan(const hvdc_device *d, hvdc_model *m, hvdc_failure *failure) {
    const hvdc_artifact *artifact = m->weights->artifact;
    for (uint32_t file = 0; file < hvdc_artifact_file_count(artifact); ++file) {
        const uint32_t kind = hvdc_artifact_file(artifact, file)->kind;
        if ((kind == HVDC_FILE_KIND_REGION || kind == HVDC_FILE_KIND_ADAPTER) && !plan_file(d, m, file, failure)) {
            return false;
        }
    }
    return true;
}

bool hvdc_windows_open(hvdc_device *d, const hvdc_gpu_options *options, hvdc_model *m, hvdc_failure *failure) {
    if (!hvdc_windows_plan(d, m, failure)) {
        return false;
    }
    for (uint32_t i = 0; i < m->window_count; ++i) {
        if (!view(d, options, m, &m->windows[i], failure)) {
            return false;
        }
    }
    return compare(d, m, failure);
}

void hvdc_windows_close(hvdc_device *d, hvdc_model *m) {
    for (uint32_t i = 0; i < m->window_count; ++i) {
        if (m->windows[i].copy.memory != NULL) {
            hvdc_device_free(d, &m->windows[i].copy);
        } else {
            hvdc_import_release(d, &m->import, m->windows[i].memory);
        }
    }
    free(m->windows);
    m->windows = NULL;
    m->window_count = 0;
}
