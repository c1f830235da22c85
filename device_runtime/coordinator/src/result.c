#define _GNU_SOURCE

#include "hvdc/result.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sha256.h"

#define HEADER_BYTES 1024u
#define CHECK ",\"check\":\""
#define HEX_BYTES (2u * HVDC_SHA256_BYTES + 1u)

void hvdc_result_name(uint32_t video, char name[HVDC_RESULT_NAME_BYTES]) {
    (void)snprintf(name, HVDC_RESULT_NAME_BYTES, "video-%06" PRIu32 ".safetensors", video);
}

static void hex_of(const uint8_t *bytes, char hex[HEX_BYTES]) {
    for (size_t i = 0; i < HVDC_SHA256_BYTES; i++) (void)snprintf(hex + 2 * i, 3, "%02x", (unsigned)bytes[i]);
}

static void sha256_of(const void *data, size_t bytes, uint8_t digest[HVDC_SHA256_BYTES]) {
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, data, bytes);
    hvdc_sha256_final(&sha, digest);
}

static uint64_t payload_bytes(const hvdc_result_key *key) {
    return (uint64_t)key->tokens * key->latent_values * sizeof(float);
}

/* The bytes before the tensor's: a function of the key, of how the video came to be, and of the tensor's digest, so that
 * a reader makes them again and compares. safetensors wants the JSON's length first, little-endian, and the tensor at a
 * multiple of 8. */
static size_t header(const hvdc_result_key *key, const hvdc_video *video, const uint8_t *digest,
                     uint8_t out[HEADER_BYTES]) {
    char artifact[HEX_BYTES], input[HEX_BYTES], sha[HEX_BYTES], check[HEX_BYTES], json[HEADER_BYTES - 8u];
    uint8_t check_digest[HVDC_SHA256_BYTES];
    hex_of(key->artifact, artifact);
    hex_of(key->input, input);
    hex_of(digest, sha);
    int said = snprintf(
        json, sizeof json,
        "{\"__metadata__\":{\"format\":\"hvdc-result-1\",\"gpu_blocks\":\"%" PRIu32
        "\",\"recovered\":\"%d\",\"video\":\"%" PRIu32 "\",\"mode\":\"%s\",\"cut\":\"%" PRIu32
        "\",\"gpu_share\":\"%.17g\",\"npu_sums\":\"%s\",\"artifact\":\"%s\",\"input\":\"%s\",\"sha256\":\"%s\"",
        video->gpu_blocks, video->recovered ? 1 : 0, key->video, hvdc_mode_name(key->mode), key->cut, key->gpu_share,
        key->npu_sums, artifact, input, sha);
    sha256_of(json, (size_t)said, check_digest);
    hex_of(check_digest, check);
    int rest = snprintf(json + said, sizeof json - (size_t)said,
                        CHECK "%s\"},\"tokens\":{\"dtype\":\"F32\",\"shape\":[%" PRIu32 ",%" PRIu32
                              "],\"data_offsets\":[0,%" PRIu64 "]}}",
                        check, key->tokens, key->latent_values, payload_bytes(key));
    size_t length = (size_t)said + (size_t)rest, padded = (length + 7u) / 8u * 8u;
    for (size_t i = 0; i < 8; i++) out[i] = (uint8_t)(padded >> (8 * i));
    memcpy(out + 8, json, length);
    memset(out + 8 + length, ' ', padded - length);
    return 8 + padded;
}

static bool write_all(int fd, const void *data, size_t bytes) {
    for (const uint8_t *at = data; bytes > 0;) {
        ssize_t done = write(fd, at, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

static bool write_durably(int directory, const char *name, const void *head, size_t head_bytes, const void *data,
                          size_t bytes) {
    char partial[HVDC_RESULT_NAME_BYTES + 16];
    (void)snprintf(partial, sizeof partial, ".%s.partial", name);
    int fd = openat(directory, partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    bool written = write_all(fd, head, head_bytes) && write_all(fd, data, bytes) && fsync(fd) == 0;
    int error = errno;
    if (close(fd) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && renameat(directory, partial, directory, name) == 0) return fsync(directory) == 0;
    if (written) error = errno;
    (void)unlinkat(directory, partial, 0);
    errno = error;
    return false;
}

bool hvdc_result_write(const char *directory, const hvdc_result_key *key, const hvdc_video *video, const float *latent,
                       hvdc_failure *failure) {
    char name[HVDC_RESULT_NAME_BYTES];
    uint8_t digest[HVDC_SHA256_BYTES], head[HEADER_BYTES];
    size_t bytes = (size_t)payload_bytes(key);
    hvdc_result_name(key->video, name);
    sha256_of(latent, bytes, digest);
    size_t head_bytes = header(key, video, digest, head);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool written = fd >= 0 && write_durably(fd, name, head, head_bytes, latent, bytes);
    int error = errno;
    if (fd >= 0) (void)close(fd);
    return written ||
           hvdc_fail(failure, HVDC_FAILURE_FILE, "%s/%s cannot be written: %s", directory, name, strerror(error));
}

/* A whole small file; NULL with errno, 0 if there is none. */
static uint8_t *read_all(const char *path, size_t limit, size_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    uint8_t *data = malloc(limit);
    *bytes = 0;
    while (data != NULL && *bytes < limit) {
        ssize_t got = read(fd, data + *bytes, limit - *bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            free(data);
            data = NULL;
        }
        if (got <= 0) break;
        *bytes += (size_t)got;
    }
    int error = errno;
    (void)close(fd);
    errno = error;
    return data;
}

/* What the writer varied: found by name in the padded JSON, and proven by making the header again. */
static bool number_of(const char *json, const char *name, uint32_t *value) {
    char find[32];
    (void)snprintf(find, sizeof find, "\"%s\":\"", name);
    const char *at = strstr(json, find);
    return at != NULL && sscanf(at + strlen(find), "%" SCNu32, value) == 1;
}

/* Whether what a header says is what was written, whoever wrote it: `check` covers the text before it, and `sha256` in
 * that text the tensor. */
static bool is_whole(const char *json, const uint8_t *tensor, size_t bytes) {
    uint8_t digest[HVDC_SHA256_BYTES];
    char check[HEX_BYTES], sha[HEX_BYTES];
    const char *end = strstr(json, CHECK), *said = strstr(json, "\"sha256\":\"");
    if (end == NULL || said == NULL || said > end) return false;
    sha256_of(json, (size_t)(end - json), digest);
    hex_of(digest, check);
    sha256_of(tensor, bytes, digest);
    hex_of(digest, sha);
    return strncmp(end + strlen(CHECK), check, HEX_BYTES - 1u) == 0 &&
           strncmp(said + strlen("\"sha256\":\""), sha, HEX_BYTES - 1u) == 0;
}

static enum hvdc_result_state judge(const uint8_t *data, size_t bytes, const hvdc_result_key *key, hvdc_video *video) {
    uint8_t digest[HVDC_SHA256_BYTES], expected[HEADER_BYTES];
    char json[HEADER_BYTES + 1] = {0};
    uint64_t length = 0;
    if (bytes < 8) return HVDC_RESULT_DAMAGED;
    for (size_t i = 0; i < 8; i++) length |= (uint64_t)data[i] << (8 * i);
    if (length > HEADER_BYTES - 8u || bytes < 8u + length) return HVDC_RESULT_DAMAGED;
    const uint8_t *tensor = data + 8 + length;
    size_t tensor_bytes = bytes - 8u - (size_t)length;
    memcpy(json, data + 8, (size_t)length);
    if (!is_whole(json, tensor, tensor_bytes)) return HVDC_RESULT_DAMAGED;
    uint32_t gpu_blocks, recovered;
    if (!number_of(json, "gpu_blocks", &gpu_blocks) || !number_of(json, "recovered", &recovered))
        return HVDC_RESULT_OTHER;
    hvdc_video said = {.video = key->video, .gpu_blocks = gpu_blocks, .recovered = recovered != 0};
    sha256_of(tensor, tensor_bytes, digest);
    size_t head_bytes = header(key, &said, digest, expected);
    if (bytes != head_bytes + (size_t)payload_bytes(key) || memcmp(data, expected, head_bytes) != 0)
        return HVDC_RESULT_OTHER;
    video->gpu_blocks = said.gpu_blocks;
    video->recovered = said.recovered;
    return HVDC_RESULT_VERIFIED;
}

enum hvdc_result_state hvdc_result_check(const char *directory, const hvdc_result_key *key, hvdc_video *video,
                                         hvdc_failure *failure) {
    char name[HVDC_RESULT_NAME_BYTES];
    hvdc_result_name(key->video, name);
    size_t path_bytes = strlen(directory) + 1 + sizeof name, bytes = 0;
    char *path = malloc(path_bytes);
    uint8_t *data = NULL;
    errno = ENOMEM;
    if (path != NULL) {
        (void)snprintf(path, path_bytes, "%s/%s", directory, name);
        data = read_all(path, HEADER_BYTES + (size_t)payload_bytes(key) + 1u, &bytes);
    }
    enum hvdc_result_state state = HVDC_RESULT_DAMAGED;
    if (data != NULL)
        state = judge(data, bytes, key, video);
    else if (errno == ENOENT)
        state = HVDC_RESULT_ABSENT;
    if (state == HVDC_RESULT_DAMAGED)
        (void)hvdc_fail(failure, HVDC_FAILURE_FILE, "%s/%s is cut short or was changed", directory, name);
    if (state == HVDC_RESULT_OTHER)
        (void)hvdc_fail(failure, HVDC_FAILURE_USAGE,
                        "%s/%s is the result of another artifact, prompt, seed, mode, cut, share of the GPU or sums "
                        "of the NPU: take another directory, or remove it",
                        directory, name);
    free(data);
    free(path);
    return state;
}
