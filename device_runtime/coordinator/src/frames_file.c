#define _POSIX_C_SOURCE 200809L

#include "hvdc/frames_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kept_file.h"

#define HEADER_BYTES 1024u
#define PIECE_BYTES (1u << 16)
#define COMMENT "P6\n# "

struct hvdc_frames_writer {
    hvdc_frames_key key;
    char *path; /* for sentences */
    hvdc_kept_file file;
    hvdc_sha256 sha; /* of what is behind the first header */
    uint32_t frames; /* that were put */
};

void hvdc_frames_name(uint32_t video, char name[HVDC_RESULT_NAME_BYTES]) {
    (void)snprintf(name, HVDC_RESULT_NAME_BYTES, "video-%06" PRIu32 ".ppm", video);
}

void hvdc_frames_key_latent(hvdc_frames_key *key, const float *latent, size_t values) {
    hvdc_sha256_of(latent, values * sizeof *latent, key->latent);
}

/* The size of an image, after its magic number. */
static size_t image_size(const hvdc_frames_key *key, char *out, size_t room) {
    return (size_t)snprintf(out, room, "\n%" PRIu32 " %" PRIu32 "\n255\n", key->width, key->height);
}

/* The first image's header; as long with every digest. */
static size_t header(const hvdc_frames_key *key, const uint8_t *digest, char out[HEADER_BYTES]) {
    char artifact[HVDC_HEX_BYTES], latent[HVDC_HEX_BYTES], sha[HVDC_HEX_BYTES], json[HEADER_BYTES - 64u];
    hvdc_hex_of(key->artifact, artifact);
    hvdc_hex_of(key->latent, latent);
    hvdc_hex_of(digest, sha);
    int said = snprintf(json, sizeof json,
                        "{\"format\":\"hvdc-frames-1\",\"decoder\":\"%s\",\"video\":\"%" PRIu32
                        "\",\"frames\":\"%" PRIu32 "\",\"height\":\"%" PRIu32 "\",\"width\":\"%" PRIu32
                        "\",\"artifact\":\"%s\",\"latent\":\"%s\",\"sha256\":\"%s\"",
                        key->decoder, key->video, key->frames, key->height, key->width, artifact, latent, sha);
    (void)hvdc_seal(json, (size_t)said, sizeof json);
    size_t bytes = (size_t)snprintf(out, HEADER_BYTES, COMMENT "%s}", json);
    return bytes + image_size(key, out + bytes, HEADER_BYTES - bytes);
}

static bool refuse(const hvdc_frames_writer *writer, int error, hvdc_failure *failure) {
    return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be written: %s", writer->path, strerror(error));
}

static char *path_of(const char *directory, const char *name) {
    size_t bytes = strlen(directory) + strlen(name) + 2u;
    char *path = malloc(bytes);
    if (path != NULL) (void)snprintf(path, bytes, "%s/%s", directory, name);
    return path;
}

bool hvdc_frames_begin(const char *directory, const hvdc_frames_key *key, hvdc_frames_writer **made,
                       hvdc_failure *failure) {
    static const uint8_t unknown[HVDC_SHA256_BYTES];
    char name[HVDC_RESULT_NAME_BYTES], head[HEADER_BYTES];
    hvdc_frames_name(key->video, name);
    *made = NULL;
    hvdc_frames_writer *writer = calloc(1, sizeof *writer);
    if (writer != NULL) writer->path = path_of(directory, name);
    if (writer == NULL || writer->path == NULL) {
        free(writer);
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory to write %s", name);
    }
    writer->key = *key;
    writer->file = HVDC_NO_KEPT_FILE;
    hvdc_sha256_init(&writer->sha);
    size_t bytes = header(key, unknown, head);
    if (hvdc_kept_begin(directory, name, &writer->file) && hvdc_kept_write(&writer->file, head, bytes)) {
        *made = writer;
        return true;
    }
    (void)refuse(writer, errno, failure);
    hvdc_frames_drop(writer);
    return false;
}

static bool put(hvdc_frames_writer *writer, const void *data, size_t bytes, hvdc_failure *failure) {
    hvdc_sha256_update(&writer->sha, data, bytes);
    return hvdc_kept_write(&writer->file, data, bytes) || refuse(writer, errno, failure);
}

bool hvdc_frames_put(hvdc_frames_writer *writer, const uint8_t *rgb, hvdc_failure *failure) {
    char head[64] = "P6";
    size_t bytes = 2u + image_size(&writer->key, head + 2, sizeof head - 2u);
    if (writer->frames++ > 0 && !put(writer, head, bytes, failure)) return false;
    return put(writer, rgb, (size_t)writer->key.height * writer->key.width * 3u, failure);
}

bool hvdc_frames_end(hvdc_frames_writer *writer, hvdc_failure *failure) {
    uint8_t digest[HVDC_SHA256_BYTES];
    char head[HEADER_BYTES];
    hvdc_sha256_final(&writer->sha, digest);
    size_t bytes = header(&writer->key, digest, head);
    bool good = writer->frames == writer->key.frames ||
                hvdc_fail(failure, HVDC_FAILURE_FILE, "%s got %" PRIu32 " of %" PRIu32 " frames", writer->path,
                          writer->frames, writer->key.frames);
    if (good && (!hvdc_kept_rewrite(&writer->file, head, bytes) || !hvdc_kept_end(&writer->file)))
        good = refuse(writer, errno, failure);
    hvdc_frames_drop(writer);
    return good;
}

void hvdc_frames_drop(hvdc_frames_writer *writer) {
    if (writer == NULL) return;
    hvdc_kept_drop(&writer->file);
    free(writer->path);
    free(writer);
}

/* Digest of the rest of a file behind `begun` bytes that were read already; false if it cannot be read. */
static bool digest_rest(int fd, const char *begun, size_t bytes, uint8_t digest[HVDC_SHA256_BYTES]) {
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, begun, bytes);
    uint8_t *piece = malloc(PIECE_BYTES);
    ptrdiff_t got = -1;
    while (piece != NULL && (got = hvdc_read_fully(fd, piece, PIECE_BYTES)) > 0)
        hvdc_sha256_update(&sha, piece, (size_t)got);
    free(piece);
    hvdc_sha256_final(&sha, digest);
    return got == 0;
}

/* The bytes behind a whole header decide "sha256", and so what the header has to be. */
static enum hvdc_result_state judge(int fd, const hvdc_frames_key *key) {
    uint8_t digest[HVDC_SHA256_BYTES];
    char head[HEADER_BYTES + 1] = {0}, expected[HEADER_BYTES];
    ptrdiff_t got = hvdc_read_fully(fd, head, HEADER_BYTES);
    const char *comment = strchr(head, '\n'), *line = comment == NULL ? NULL : strchr(comment + 1, '\n');
    const char *size = line == NULL ? NULL : strchr(line + 1, '\n'),
               *end = size == NULL ? NULL : strchr(size + 1, '\n');
    if (got < 0 || strncmp(head, COMMENT, strlen(COMMENT)) != 0 || end == NULL) return HVDC_RESULT_DAMAGED;
    size_t head_bytes = (size_t)(end + 1 - head);
    if (!digest_rest(fd, end + 1, (size_t)got - head_bytes, digest)) return HVDC_RESULT_DAMAGED;
    size_t due = header(key, digest, expected);
    if (due == head_bytes && memcmp(head, expected, due) == 0) return HVDC_RESULT_VERIFIED;
    return hvdc_is_sealed(head + strlen(COMMENT), digest) ? HVDC_RESULT_OTHER : HVDC_RESULT_DAMAGED;
}

bool hvdc_frames_check_none(const char *directory, uint32_t videos, hvdc_failure *failure) {
    for (uint32_t i = 0; i < videos; i++) {
        char name[HVDC_RESULT_NAME_BYTES];
        hvdc_frames_name(i, name);
        if (hvdc_kept_is_there(directory, name))
            return hvdc_fail(failure, HVDC_FAILURE_FILE,
                             "%s/%s is there already: resume the stream, or take another directory", directory, name);
    }
    return true;
}

enum hvdc_result_state hvdc_frames_check(const char *directory, const hvdc_frames_key *key, hvdc_failure *failure) {
    char name[HVDC_RESULT_NAME_BYTES];
    hvdc_frames_name(key->video, name);
    int fd = hvdc_kept_open(directory, name);
    enum hvdc_result_state state = HVDC_RESULT_DAMAGED;
    if (fd >= 0)
        state = judge(fd, key);
    else if (errno == ENOENT)
        state = HVDC_RESULT_ABSENT;
    if (fd >= 0) (void)close(fd);
    if (state == HVDC_RESULT_DAMAGED)
        (void)hvdc_fail(failure, HVDC_FAILURE_FILE, "%s/%s is cut short or was changed", directory, name);
    if (state == HVDC_RESULT_OTHER)
        (void)hvdc_fail(failure, HVDC_FAILURE_USAGE,
                        "%s/%s holds the frames of another artifact or latent, or of another decoder than %s: take "
                        "another directory, or remove it",
                        directory, name, key->decoder);
    return state;
}
