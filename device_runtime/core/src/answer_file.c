#define _POSIX_C_SOURCE 200809L

#include "hvdc/answer_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sha256.h"

#define PATH_BYTES 4096
#define MAKE_IT "`hvdc runtime build --into` the artifact computes it anew"

struct hvdc_answer_file {
    const uint8_t *data;
    uint64_t bytes;
    const hvdc_answer_header *header;
    uint64_t elements;     /* of one answer */
    const char *directory; /* while it is opened */
    char path[PATH_BYTES];
};

/* A long path leaves room for the reason. */
#define REFUSE(format, ...) \
    hvdc_fail(failure, HVDC_FAILURE_FILE, "%.200s/" HVDC_RUNTIME_NAME "/" HVDC_ANSWER_NAME ": " format "; " MAKE_IT, \
              file->directory, __VA_ARGS__)

static bool map(hvdc_answer_file *file, hvdc_failure *failure) {
    const int fd = open(file->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not block */
    if (fd < 0) return REFUSE("cannot be opened: %s", strerror(errno));
    struct stat status;
    bool good = true;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        good = REFUSE("%s", "is not a regular file");
    } else if (status.st_size < (off_t)sizeof *file->header || (uint64_t)status.st_size > SIZE_MAX) {
        good = REFUSE("it has %lld bytes, its header alone takes %zu", (long long)status.st_size, sizeof *file->header);
    } else {
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            good = REFUSE("cannot be mapped: %s", strerror(errno));
        } else {
            file->data = data;
            file->bytes = (uint64_t)status.st_size;
            file->header = data;
        }
    }
    (void)close(fd);
    return good;
}

static bool check_header(const hvdc_answer_file *file, hvdc_failure *failure) {
    static const uint8_t magic[] = HVDC_ANSWER_MAGIC;
    const hvdc_answer_header *h = file->header;
    if (memcmp(h->magic, magic, sizeof magic) != 0) return REFUSE("%s", "it does not begin with HVDCANS");
    if (h->version != HVDC_ANSWER_VERSION)
        return REFUSE("it has version %" PRIu32 ", this program reads %u", h->version, HVDC_ANSWER_VERSION);
    if (h->header_bytes != sizeof *h)
        return REFUSE("its header has %" PRIu32 " bytes, expected %zu", h->header_bytes, sizeof *h);
    if (h->total_bytes != file->bytes)
        return REFUSE("it has %" PRIu64 " bytes, its header says %" PRIu64, file->bytes, h->total_bytes);
    static const uint8_t zeros[HVDC_SHA256_BYTES];
    const size_t at = offsetof(hvdc_answer_header, sha256), behind = at + sizeof zeros;
    uint8_t digest[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, file->data, at);
    hvdc_sha256_update(&sha, zeros, sizeof zeros);
    hvdc_sha256_update(&sha, file->data + behind, (size_t)file->bytes - behind);
    hvdc_sha256_final(&sha, digest);
    return memcmp(digest, h->sha256, sizeof digest) == 0 ||
           REFUSE("%s", "its SHA-256 is not the one in its header: it was damaged");
}

static bool check_sizes(hvdc_answer_file *file, const hvdc_artifact *artifact, hvdc_failure *failure) {
    const hvdc_answer_header *h = file->header;
    const hvdc_geometry *g = hvdc_artifact_geometry(artifact);
    if (memcmp(h->artifact_sha256, hvdc_artifact_header(artifact)->index_sha256, sizeof h->artifact_sha256) != 0)
        return REFUSE("%s", "it is the answer of another artifact");
    /* Each axis first, so that no product overflows. */
    const uint64_t most = HVDC_ANSWER_MAX_TOKENS;
    const bool few = h->frames <= most && h->rows <= most && h->columns <= most;
    const uint64_t tokens = few ? (uint64_t)h->frames * h->rows * h->columns : 0u;
    if (tokens == 0u || tokens > most)
        return REFUSE("%" PRIu32 " x %" PRIu32 " x %" PRIu32 " tokens, expected 1 to %u", h->frames, h->rows,
                      h->columns, HVDC_ANSWER_MAX_TOKENS);
    if (h->width != g->width || h->text_tokens != g->text_tokens)
        return REFUSE("width %" PRIu32 " and %" PRIu32 " tokens of text, the artifact has %" PRIu32 " and %" PRIu32,
                      h->width, h->text_tokens, g->width, g->text_tokens);
    if (h->answers == 0u || h->answers > HVDC_ANSWER_MAX || sizeof *h + h->answers * sizeof(hvdc_answer) > file->bytes)
        return REFUSE("%" PRIu32 " answers, expected 1 to %u, and their records in the file", h->answers,
                      HVDC_ANSWER_MAX);
    file->elements = tokens * h->width;
    return true;
}

static bool is_unit(float unit) {
    int exponent;
    return unit >= HVDC_ANSWER_SMALLEST_UNIT && unit <= HVDC_ANSWER_LARGEST_UNIT && frexpf(unit, &exponent) == 0.5f;
}

static bool is_seed(uint32_t seed) { return seed >= 1u && seed < HVDC_ANSWER_MODULUS; }

static bool check_record(const hvdc_answer_file *file, const hvdc_artifact *artifact, uint32_t i,
                         hvdc_failure *failure) {
    const hvdc_answer *a = hvdc_answer_file_answer(file, i);
    if (!HVDC_ANSWER_ENGINE_KNOWN(a->engine) ||
        (a->engine == HVDC_ANSWER_ENGINE_GPU && hvdc_artifact_calibration(artifact) == NULL))
        return REFUSE("answer %" PRIu32 " is of engine %" PRIu32 ", which cannot execute the artifact", i, a->engine);
    if (a->step >= hvdc_artifact_step_count(artifact) || a->block >= hvdc_artifact_geometry(artifact)->layers)
        return REFUSE("answer %" PRIu32 " is of step %" PRIu32 " and block %" PRIu32 ", which the artifact has not", i,
                      a->step, a->block);
    if (!is_seed(a->hidden_seed) || !is_seed(a->text_seed))
        return REFUSE("answer %" PRIu32 " has the seeds %" PRIu32 " and %" PRIu32, i, a->hidden_seed, a->text_seed);
    if (!is_unit(a->hidden_unit) || !is_unit(a->text_unit))
        return REFUSE("answer %" PRIu32 " has the units %g and %g", i, (double)a->hidden_unit, (double)a->text_unit);
    if (!(a->limit >= 0.0 && a->limit <= 1.0) || a->reserved != 0u)
        return REFUSE("answer %" PRIu32 " has the limit %g, and %" PRIu32 " in reserved", i, a->limit, a->reserved);
    for (uint32_t j = 0; j < i; j++) {
        const hvdc_answer *b = hvdc_answer_file_answer(file, j);
        if (b->engine == a->engine && b->step == a->step && b->block == a->block)
            return REFUSE("answers %" PRIu32 " and %" PRIu32 " are of the same block execution", j, i);
    }
    return true;
}

/* The index of the first value that is not finite, or their number. */
static uint64_t first_bad(const void *values, uint32_t value_bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        const bool good = value_bytes == sizeof(float) ? isfinite(((const float *)values)[i]) != 0
                                                       : (((const uint16_t *)values)[i] & 0x7c00u) != 0x7c00u;
        if (!good) return i;
    }
    return count;
}

static bool check_answers(const hvdc_answer_file *file, const hvdc_artifact *artifact, hvdc_failure *failure) {
    uint64_t at = sizeof *file->header + file->header->answers * sizeof(hvdc_answer);
    for (uint32_t i = 0; i < file->header->answers; i++) {
        if (!check_record(file, artifact, i, failure)) return false;
        const hvdc_answer *a = hvdc_answer_file_answer(file, i);
        const uint32_t value_bytes = HVDC_ANSWER_VALUE_BYTES(a->engine);
        const uint64_t behind = at + file->elements * value_bytes; /* far from overflow: there are few tokens */
        const uint64_t end =
            (behind + HVDC_ANSWER_ALIGN_BYTES - 1u) / HVDC_ANSWER_ALIGN_BYTES * HVDC_ANSWER_ALIGN_BYTES;
        if (a->values_offset != at || end > file->bytes)
            return REFUSE("answer %" PRIu32 " has its values at %" PRIu64 ", expected %" PRIu64 ", within the file", i,
                          a->values_offset, at);
        const uint64_t bad = first_bad(file->data + at, value_bytes, file->elements);
        if (bad < file->elements) return REFUSE("value %" PRIu64 " of answer %" PRIu32 " is not finite", bad, i);
        for (uint64_t gap = behind; gap < end; gap++)
            if (file->data[gap] != 0u) return REFUSE("answer %" PRIu32 " has no zeros behind its values", i);
        at = end;
    }
    return at == file->bytes || REFUSE("%" PRIu64 " bytes behind the last value", file->bytes - at);
}

bool hvdc_answer_file_open(const char *directory, const hvdc_artifact *artifact, hvdc_answer_file **opened,
                           hvdc_failure *failure) {
    *opened = NULL;
    hvdc_answer_file *file = calloc(1, sizeof *file);
    if (file == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory to open an answer");
    file->directory = directory;
    const int length = snprintf(file->path, sizeof file->path, "%s/" HVDC_RUNTIME_NAME "/" HVDC_ANSWER_NAME, directory);
    bool good = (length > 0 && (size_t)length < sizeof file->path) ||
                hvdc_fail(failure, HVDC_FAILURE_FILE, "the artifact's path is too long");
    good = good && map(file, failure) && check_header(file, failure) && check_sizes(file, artifact, failure) &&
           check_answers(file, artifact, failure);
    if (!good) {
        hvdc_answer_file_close(file);
        return false;
    }
    *opened = file;
    return true;
}

void hvdc_answer_file_close(hvdc_answer_file *file) {
    if (file == NULL) return;
    if (file->data != NULL) (void)munmap((void *)(uintptr_t)file->data, (size_t)file->bytes);
    free(file);
}

const hvdc_answer_header *hvdc_answer_file_header(const hvdc_answer_file *file) { return file->header; }

const hvdc_answer *hvdc_answer_file_answer(const hvdc_answer_file *file, uint32_t answer) {
    const hvdc_answer *answers = (const void *)(file->data + sizeof *file->header);
    return answer < file->header->answers ? answers + answer : NULL;
}

const void *hvdc_answer_file_values(const hvdc_answer_file *file, uint32_t answer) {
    const hvdc_answer *record = hvdc_answer_file_answer(file, answer);
    return record == NULL ? NULL : file->data + record->values_offset;
}

void hvdc_answer_make_up(uint32_t seed, float unit, float *values, uint64_t count) {
    uint64_t state = seed;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)((int32_t)(state >> HVDC_ANSWER_SHIFT) - HVDC_ANSWER_MIDDLE) * unit;
        state = state * HVDC_ANSWER_MULTIPLIER % HVDC_ANSWER_MODULUS;
    }
}
