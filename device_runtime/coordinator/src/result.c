#define _POSIX_C_SOURCE 200809L

#include "hvdc/result.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kept_file.h"

#define HEADER_BYTES 1024u

void hvdc_result_name(uint32_t video, char name[HVDC_RESULT_NAME_BYTES]) {
    (void)snprintf(name, HVDC_RESULT_NAME_BYTES, "video-%06" PRIu32 ".safetensors", video);
}

static uint64_t payload_bytes(const hvdc_result_key *key) {
    return (uint64_t)key->tokens * key->latent_values * sizeof(float);
}

/* The bytes before the tensor's: a function of the key, of how the video came to be, and of the tensor's digest, so that
 * a reader makes them again and compares. safetensors wants the JSON's length first, little-endian, and the tensor at a
 * multiple of 8. */
static size_t header(const hvdc_result_key *key, const hvdc_video *video, const uint8_t *digest,
                     uint8_t out[HEADER_BYTES]) {
    char artifact[HVDC_HEX_BYTES], input[HVDC_HEX_BYTES], sha[HVDC_HEX_BYTES], json[HEADER_BYTES - 8u];
    hvdc_hex_of(key->artifact, artifact);
    hvdc_hex_of(key->input, input);
    hvdc_hex_of(digest, sha);
    const bool chosen = key->policy[0] != 0;
    int said = snprintf(
        json, sizeof json,
        "{\"__metadata__\":{\"format\":\"hvdc-result-1\",\"gpu_blocks\":\"%" PRIu32
        "\",\"recovered\":\"%d\",\"video\":\"%" PRIu32 "\",\"mode\":\"%s\",\"cut\":\"%" PRIu32
        "%s%s\",\"gpu_share\":\"%.17g\",\"npu_sums\":\"%s\",\"artifact\":\"%s\",\"input\":\"%s\",\"sha256\":\"%s\"",
        video->gpu_blocks, video->recovered ? 1 : 0, key->video, hvdc_mode_name(key->mode), key->cut,
        chosen ? "\",\"policy\":\"" : "", key->policy, key->gpu_share, key->npu_sums, artifact, input, sha);
    size_t sealed = hvdc_seal(json, (size_t)said, sizeof json);
    int rest = snprintf(json + sealed, sizeof json - sealed,
                        "},\"tokens\":{\"dtype\":\"F32\",\"shape\":[%" PRIu32 ",%" PRIu32
                        "],\"data_offsets\":[0,%" PRIu64 "]}}",
                        key->tokens, key->latent_values, payload_bytes(key));
    size_t length = sealed + (size_t)rest, padded = (length + 7u) / 8u * 8u;
    for (size_t i = 0; i < 8; i++) out[i] = (uint8_t)(padded >> (8 * i));
    memcpy(out + 8, json, length);
    memset(out + 8 + length, ' ', padded - length);
    return 8 + padded;
}

bool hvdc_result_write(const char *directory, const hvdc_result_key *key, const hvdc_video *video, const float *latent,
                       hvdc_failure *failure) {
    char name[HVDC_RESULT_NAME_BYTES];
    uint8_t digest[HVDC_SHA256_BYTES], head[HEADER_BYTES];
    size_t bytes = (size_t)payload_bytes(key);
    hvdc_result_name(key->video, name);
    hvdc_sha256_of(latent, bytes, digest);
    size_t head_bytes = header(key, video, digest, head);
    hvdc_kept_file file;
    bool written = hvdc_kept_begin(directory, name, &file) && hvdc_kept_write(&file, head, head_bytes) &&
                   hvdc_kept_write(&file, latent, bytes) && hvdc_kept_end(&file);
    int error = errno;
    hvdc_kept_drop(&file);
    return written ||
           hvdc_fail(failure, HVDC_FAILURE_FILE, "%s/%s cannot be written: %s", directory, name, strerror(error));
}

/* A whole small file; NULL with errno. */
static uint8_t *read_all(const char *directory, const char *name, size_t limit, size_t *bytes) {
    uint8_t *data = malloc(limit);
    errno = ENOMEM;
    int fd = data == NULL ? -1 : hvdc_kept_open(directory, name);
    ptrdiff_t got = fd < 0 ? -1 : hvdc_read_fully(fd, data, limit);
    int error = errno;
    if (fd >= 0) (void)close(fd);
    if (got < 0) {
        free(data);
        data = NULL;
    }
    *bytes = got < 0 ? 0 : (size_t)got;
    errno = error;
    return data;
}

/* What the writer varied: found by name in the padded JSON, and proven by making the header again. */
static bool number_of(const char *json, const char *name, uint32_t *value) {
    char find[32];
    (void)snprintf(find, sizeof find, "\"%s\":\"", name);
    const char *at = strstr(json, find);
    if (at == NULL || at[strlen(find)] < '0' || at[strlen(find)] > '9') return false;
    unsigned long long number = strtoull(at + strlen(find), NULL, 10); /* ULLONG_MAX where it does not fit */
    *value = (uint32_t)number;
    return number <= UINT32_MAX;
}

static enum hvdc_result_state judge(const uint8_t *data, size_t bytes, const hvdc_result_key *key, hvdc_video *video,
                                    float *latent) {
    uint8_t digest[HVDC_SHA256_BYTES], expected[HEADER_BYTES];
    char json[HEADER_BYTES + 1] = {0};
    uint64_t length = 0;
    if (bytes < 8) return HVDC_RESULT_DAMAGED;
    for (size_t i = 0; i < 8; i++) length |= (uint64_t)data[i] << (8 * i);
    if (length > HEADER_BYTES - 8u || bytes < 8u + length) return HVDC_RESULT_DAMAGED;
    const uint8_t *tensor = data + 8 + length;
    size_t tensor_bytes = bytes - 8u - (size_t)length;
    memcpy(json, data + 8, (size_t)length);
    hvdc_sha256_of(tensor, tensor_bytes, digest);
    if (!hvdc_is_sealed(json, digest)) return HVDC_RESULT_DAMAGED;
    uint32_t gpu_blocks, recovered, cut;
    if (!number_of(json, "gpu_blocks", &gpu_blocks) || !number_of(json, "recovered", &recovered) ||
        !number_of(json, "cut", &cut))
        return HVDC_RESULT_OTHER;
    hvdc_result_key its = *key;
    if (key->policy[0] != 0) its.cut = cut;
    hvdc_video said = {.video = key->video, .gpu_blocks = gpu_blocks, .recovered = recovered != 0};
    size_t head_bytes = header(&its, &said, digest, expected);
    if (bytes != head_bytes + (size_t)payload_bytes(key) || memcmp(data, expected, head_bytes) != 0)
        return HVDC_RESULT_OTHER;
    video->cut = its.cut;
    video->gpu_blocks = said.gpu_blocks;
    video->recovered = said.recovered;
    if (latent != NULL) memcpy(latent, tensor, tensor_bytes);
    return HVDC_RESULT_VERIFIED;
}

enum hvdc_result_state hvdc_result_check(const char *directory, const hvdc_result_key *key, hvdc_video *video,
                                         float *latent, hvdc_failure *failure) {
    char name[HVDC_RESULT_NAME_BYTES];
    size_t bytes = 0;
    hvdc_result_name(key->video, name);
    uint8_t *data = read_all(directory, name, HEADER_BYTES + (size_t)payload_bytes(key) + 1u, &bytes);
    enum hvdc_result_state state = HVDC_RESULT_DAMAGED;
    if (data != NULL)
        state = judge(data, bytes, key, video, latent);
    else if (errno == ENOENT)
        state = HVDC_RESULT_ABSENT;
    if (state == HVDC_RESULT_DAMAGED)
        (void)hvdc_fail(failure, HVDC_FAILURE_FILE, "%s/%s is cut short or was changed", directory, name);
    if (state == HVDC_RESULT_OTHER)
        (void)hvdc_fail(failure, HVDC_FAILURE_USAGE,
                        "%s/%s is the result of another artifact, prompt, seed, mode, cut, policy, share of the GPU "
                        "or sums of the NPU: take another directory, or remove it",
                        directory, name);
    free(data);
    return state;
}
