#define _GNU_SOURCE

#include <inttypes.h>
#include <string.h>

#include "hvdc/channel.h"
#include "shared_weights_internal.h"
#include "weights_exchange.h"

hvdc_weights_offer hvdc_weights_offer_of(const hvdc_artifact *artifact) {
    hvdc_weights_offer of = {.files = hvdc_artifact_file_count(artifact)};
    memcpy(of.index_sha256, hvdc_artifact_header(artifact)->index_sha256, sizeof of.index_sha256);
    for (uint32_t i = 0; i < of.files; i++) {
        const hvdc_file *file = hvdc_artifact_file(artifact, i);
        if (!hvdc_is_shared_file(file)) continue;
        of.shared_files++;
        of.shared_bytes += file->bytes;
    }
    return of;
}

bool hvdc_shared_weights_send(const hvdc_shared_weights *shared, int socket, double timeout_s, hvdc_failure *failure) {
    if (timeout_s <= 0) timeout_s = -1;
    hvdc_channel channel = hvdc_channel_on(socket);
    hvdc_message message;
    hvdc_weights_offer made = hvdc_weights_offer_of(shared->view.artifact);
    if (!hvdc_channel_send(&channel, HVDC_EXCHANGE_OFFER, &made, sizeof made, -1, failure) ||
        !hvdc_channel_expect(&channel, timeout_s, HVDC_EXCHANGE_READY, 0, HVDC_EXCHANGE_NO, &message, failure))
        return false;
    for (uint32_t i = 0; i < shared->count; i++) {
        if (shared->memory[i].data == NULL) continue;
        hvdc_shared_file one = {.file = i, .bytes = shared->memory[i].bytes};
        if (!hvdc_channel_send(&channel, HVDC_EXCHANGE_FILE, &one, sizeof one, shared->memory[i].fd, failure))
            return false;
    }
    return hvdc_channel_expect(&channel, timeout_s, HVDC_EXCHANGE_TAKEN, 0, HVDC_EXCHANGE_NO, &message, failure);
}

static bool check_offer(const hvdc_artifact *artifact, const hvdc_message *message, hvdc_failure *failure) {
    hvdc_weights_offer theirs, ours = hvdc_weights_offer_of(artifact);
    memcpy(&theirs, message->payload, sizeof theirs);
    if (memcmp(theirs.index_sha256, ours.index_sha256, sizeof ours.index_sha256) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT,
                         "the two processes have opened different artifacts (their index.bin differs): start both with "
                         "the same one");
    if (theirs.files != ours.files || theirs.shared_files != ours.shared_files ||
        theirs.shared_bytes != ours.shared_bytes)
        return hvdc_fail(failure, HVDC_FAILURE_PEER,
                         "the other process offers %" PRIu32 " shared files of %" PRIu64
                         " bytes, and the artifact has "
                         "%" PRIu32 " of %" PRIu64,
                         theirs.shared_files, theirs.shared_bytes, ours.shared_files, ours.shared_bytes);
    return true;
}

static bool take_file(hvdc_shared_weights *shared, hvdc_message *message, hvdc_failure *failure) {
    hvdc_shared_file one;
    memcpy(&one, message->payload, sizeof one);
    int fd = message->fd;
    message->fd = -1;
    if (fd < 0) return hvdc_fail(failure, HVDC_FAILURE_PEER, "file %" PRIu32 " came without its descriptor", one.file);
    const hvdc_file *file = hvdc_artifact_file(shared->view.artifact, one.file);
    bool due =
        file != NULL && hvdc_is_shared_file(file) && shared->memory[one.file].data == NULL && file->bytes == one.bytes;
    hvdc_memory memory;
    if (!hvdc_memory_import(fd, one.bytes, true, &memory, failure)) return false;
    if (!due) {
        hvdc_memory_unmap(&memory);
        return hvdc_fail(failure, HVDC_FAILURE_PEER,
                         "the other process passed file %" PRIu32 " of %" PRIu64 " bytes, which is not due", one.file,
                         one.bytes);
    }
    shared->memory[one.file] = memory;
    hvdc_shared_weights_add(shared, one.file);
    return true;
}

static bool receive_all(hvdc_channel *channel, hvdc_shared_weights *shared, double timeout_s, hvdc_failure *failure) {
    uint32_t due = hvdc_weights_offer_of(shared->view.artifact).shared_files;
    hvdc_message message;
    if (!hvdc_channel_send(channel, HVDC_EXCHANGE_READY, NULL, 0, -1, failure)) return false;
    for (uint32_t i = 0; i < due; i++)
        if (!hvdc_channel_expect(channel, timeout_s, HVDC_EXCHANGE_FILE, sizeof(hvdc_shared_file), HVDC_EXCHANGE_NO,
                                 &message, failure) ||
            !take_file(shared, &message, failure))
            return false;
    return hvdc_channel_send(channel, HVDC_EXCHANGE_TAKEN, NULL, 0, -1, failure);
}

bool hvdc_shared_weights_receive(const hvdc_artifact *artifact, int socket, double timeout_s,
                                 hvdc_shared_weights **made, hvdc_failure *failure) {
    if (timeout_s <= 0) timeout_s = -1;
    *made = NULL;
    hvdc_channel channel = hvdc_channel_on(socket);
    hvdc_message message;
    hvdc_failure why = {.kind = HVDC_FAILURE_NONE};
    hvdc_shared_weights *shared = NULL;
    if (hvdc_channel_expect(&channel, timeout_s, HVDC_EXCHANGE_OFFER, sizeof(hvdc_weights_offer), HVDC_EXCHANGE_NO,
                            &message, &why) &&
        check_offer(artifact, &message, &why))
        shared = hvdc_shared_weights_new(artifact, &why);
    if (shared != NULL && receive_all(&channel, shared, timeout_s, &why)) {
        *made = shared;
        return true;
    }
    hvdc_shared_weights_close(shared);
    (void)hvdc_channel_refuse(&channel, HVDC_EXCHANGE_NO, &why); /* if the other end still listens */
    return hvdc_fail(failure, why.kind, "%s", why.message);
}
