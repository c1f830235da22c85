#define _POSIX_C_SOURCE 200809L

#include "hvdc/stream_file.h"

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
#define MAKE_IT "write it with `hvdc run`"

struct hvdc_stream_file {
    const uint8_t *data;
    size_t bytes;
    const hvdc_stream_header *header;
    char path[PATH_BYTES];
};

static bool map(hvdc_stream_file *file, hvdc_failure *failure) {
    int fd = open(file->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not block */
    if (fd < 0) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be opened: %s; " MAKE_IT, file->path, strerror(errno));
    }
    struct stat status;
    bool good = true;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        good = hvdc_fail(failure, HVDC_FAILURE_FILE, "%s is not a regular file", file->path);
    } else if (status.st_size < (off_t)sizeof *file->header || (uint64_t)status.st_size > SIZE_MAX) {
        good = hvdc_fail(failure, HVDC_FAILURE_FILE, "%s has %lld bytes, its header alone takes %zu: it was cut short",
                         file->path, (long long)status.st_size, sizeof *file->header);
    } else {
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            good = hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be mapped: %s", file->path, strerror(errno));
        } else {
            file->data = data;
            file->bytes = (size_t)status.st_size;
            file->header = data;
        }
    }
    (void)close(fd);
    return good;
}

/* offset + count * a * b * 4 rounded up to the alignment; false if that exceeds `limit`. */
static bool end_of(uint64_t offset, uint64_t count, uint64_t a, uint64_t b, uint64_t limit, uint64_t *end) {
    uint64_t left = limit - offset;
    if (a > left || b > left || count > left || (b != 0 && a > left / b)) {
        return false;
    }
    uint64_t floats = a * b;
    if (floats > left / sizeof(float) || (floats != 0 && count > left / sizeof(float) / floats)) {
        return false;
    }
    uint64_t bytes = count * floats * sizeof(float), align = HVDC_STREAM_ALIGN_BYTES;
    *end = offset + (bytes + align - 1u) / align * align;
    return *end <= limit;
}

static bool check_sizes(const hvdc_stream_file *file, hvdc_failure *failure) {
    static const uint8_t magic[] = HVDC_STREAM_MAGIC;
    const hvdc_stream_header *h = file->header;
    const char *path = file->path;
    if (memcmp(h->magic, magic, sizeof magic) != 0) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s is no stream: it does not begin with HVDCSTR", path);
    }
    if (h->version != HVDC_STREAM_VERSION) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE,
                         "%s has version %" PRIu32 ", this program reads %u: write it with the hvdc that it is from",
                         path, h->version, HVDC_STREAM_VERSION);
    }
    if (h->header_bytes != sizeof *h) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s: its header has %" PRIu32 " bytes, expected %zu", path,
                         h->header_bytes, sizeof *h);
    }
    if (h->total_bytes != file->bytes) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s has %zu bytes, its header says %" PRIu64 ": it was cut short",
                         path, file->bytes, h->total_bytes);
    }
    const uint32_t counts[] = {h->videos, h->prompts, h->tokens, h->latent_values, h->text_tokens, h->text_width};
    static const char *const names[] = {"videos", "prompts", "tokens", "latent_values", "text_tokens", "text_width"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i] == 0 || (i < 2 && counts[i] > HVDC_STREAM_MAX_VIDEOS)) {
            return hvdc_fail(failure, HVDC_FAILURE_FILE,
                             "%s: %s is %" PRIu32
                             ", expected at least 1 and, of videos and "
                             "prompts, at most %u",
                             path, names[i], counts[i], HVDC_STREAM_MAX_VIDEOS);
        }
    }
    return true;
}

static bool check_places(const hvdc_stream_file *file, hvdc_failure *failure) {
    const hvdc_stream_header *h = file->header;
    uint64_t align = HVDC_STREAM_ALIGN_BYTES, total = file->bytes, latents = 0, embeds = 0, end = 0;
    uint64_t videos = (sizeof *h + align - 1u) / align * align;
    bool fits = videos <= total &&
                end_of(videos, h->videos, 1u, sizeof(hvdc_stream_video) / sizeof(float), total, &latents) &&
                end_of(latents, h->videos, h->tokens, h->latent_values, total, &embeds) &&
                end_of(embeds, h->prompts, h->text_tokens, h->text_width, total, &end);
    if (!fits || end != total) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE,
                         "%s: %" PRIu32 " latents of %" PRIu32 " x %" PRIu32 " and %" PRIu32 " prompts of %" PRIu32
                         " x %" PRIu32 " values do not make %" PRIu64 " bytes",
                         file->path, h->videos, h->tokens, h->latent_values, h->prompts, h->text_tokens, h->text_width,
                         total);
    }
    if (h->videos_offset != videos || h->latents_offset != latents || h->embeds_offset != embeds) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE,
                         "%s: videos, latents, embeddings are said to start at %" PRIu64 ", %" PRIu64 ", %" PRIu64
                         ", expected %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                         file->path, h->videos_offset, h->latents_offset, h->embeds_offset, videos, latents, embeds);
    }
    return true;
}

static bool check_hash(const hvdc_stream_file *file, hvdc_failure *failure) {
    static const uint8_t zeros[HVDC_SHA256_BYTES];
    const size_t at = offsetof(hvdc_stream_header, sha256), behind = at + sizeof zeros;
    uint8_t digest[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, file->data, at);
    hvdc_sha256_update(&sha, zeros, sizeof zeros);
    hvdc_sha256_update(&sha, file->data + behind, file->bytes - behind);
    hvdc_sha256_final(&sha, digest);
    if (memcmp(digest, file->header->sha256, sizeof digest) != 0) {
        return hvdc_fail(failure, HVDC_FAILURE_FILE,
                         "%s: its SHA-256 is not the one in its header: it was damaged or edited; write it again",
                         file->path);
    }
    return true;
}

static bool check_finite(const hvdc_stream_file *file, const char *what, const float *values, uint64_t count,
                         hvdc_failure *failure) {
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s: value %" PRIu64 " of the %s is not finite", file->path, i,
                             what);
        }
    }
    return true;
}

static bool check_contents(const hvdc_stream_file *file, hvdc_failure *failure) {
    const hvdc_stream_header *h = file->header;
    for (uint32_t i = 0; i < h->videos; i++) {
        const hvdc_stream_video *video = hvdc_stream_file_video(file, i);
        if (video->prompt >= h->prompts || video->reserved != 0) {
            return hvdc_fail(failure, HVDC_FAILURE_FILE,
                             "%s: video %" PRIu32 " takes prompt %" PRIu32 " (reserved %" PRIu32
                             "), and there are %" PRIu32 " prompts",
                             file->path, i, video->prompt, video->reserved, h->prompts);
        }
    }
    const float *latents = (const void *)(file->data + h->latents_offset);
    const float *embeds = (const void *)(file->data + h->embeds_offset);
    return check_finite(file, "latents", latents, (uint64_t)h->videos * h->tokens * h->latent_values, failure) &&
           check_finite(file, "embeddings", embeds, (uint64_t)h->prompts * h->text_tokens * h->text_width, failure);
}

bool hvdc_stream_file_open(const char *directory, hvdc_stream_file **file, hvdc_failure *failure) {
    *file = NULL;
    hvdc_stream_file *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory to open the stream in %s", directory);
    }
    int length = snprintf(made->path, sizeof made->path, "%s/" HVDC_STREAM_NAME, directory);
    bool good = length > 0 && (size_t)length < sizeof made->path;
    if (!good) {
        (void)hvdc_fail(failure, HVDC_FAILURE_FILE, "the path of the stream's directory is too long");
    }
    good = good && map(made, failure) && check_sizes(made, failure) && check_places(made, failure) &&
           check_hash(made, failure) && check_contents(made, failure);
    if (!good) {
        hvdc_stream_file_close(made);
        return false;
    }
    *file = made;
    return true;
}

void hvdc_stream_file_close(hvdc_stream_file *file) {
    if (file != NULL) {
        if (file->data != NULL) {
            (void)munmap((void *)(uintptr_t)file->data, file->bytes);
        }
        free(file);
    }
}

const hvdc_stream_header *hvdc_stream_file_header(const hvdc_stream_file *file) { return file->header; }

const hvdc_stream_video *hvdc_stream_file_video(const hvdc_stream_file *file, uint32_t video) {
    const hvdc_stream_video *videos = (const void *)(file->data + file->header->videos_offset);
    return video < file->header->videos ? videos + video : NULL;
}

const float *hvdc_stream_file_latent(const hvdc_stream_file *file, uint32_t video) {
    const hvdc_stream_header *h = file->header;
    const float *latents = (const void *)(file->data + h->latents_offset);
    return video < h->videos ? latents + (size_t)video * h->tokens * h->latent_values : NULL;
}

const float *hvdc_stream_file_embeds(const hvdc_stream_file *file, uint32_t video) {
    const hvdc_stream_header *h = file->header;
    const hvdc_stream_video *record = hvdc_stream_file_video(file, video);
    const float *embeds = (const void *)(file->data + h->embeds_offset);
    return record == NULL ? NULL : embeds + (size_t)record->prompt * h->text_tokens * h->text_width;
}
