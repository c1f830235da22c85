#define _GNU_SOURCE

#include "lies.h"

#include <string.h>
#include <unistd.h>

#include "hvdc/channel.h"
#include "hvdc/shared_memory.h"
#include "weights_exchange.h"

static uint32_t first_shared(const hvdc_weights *view) {
    uint32_t i = 0;
    while (view->fds[i] < 0) i++;
    return i;
}

/* Memory of a file's size, or one byte more, that was not sealed. */
static bool own_memory(uint64_t bytes, hvdc_memory *memory, hvdc_failure *failure) {
    const hvdc_memory_kind *kind = hvdc_memory_choose(failure);
    return kind != NULL && kind->create("hvdc:lie", bytes, memory, failure);
}

static bool send_file(const char *lie, const hvdc_weights *view, uint32_t i, hvdc_channel *channel,
                      hvdc_failure *failure) {
    bool first = i == first_shared(view);
    hvdc_memory own = HVDC_NO_MEMORY;
    hvdc_shared_file one = {.file = i, .bytes = hvdc_artifact_file(view->artifact, i)->bytes};
    int fd = view->fds[i];
    if (first && strcmp(lie, "no-descriptor") == 0) fd = -1;
    if (first && strcmp(lie, "another-file") == 0) one.file = UINT32_MAX;
    if (first && strcmp(lie, "another-size") == 0) one.bytes += 4096;
    if (!first && strcmp(lie, "twice") == 0) {
        one = (hvdc_shared_file){.file = first_shared(view),
                                 .bytes = hvdc_artifact_file(view->artifact, first_shared(view))->bytes};
        fd = view->fds[first_shared(view)];
    }
    if (first && (strcmp(lie, "unsealed") == 0 || strcmp(lie, "larger") == 0)) {
        if (!own_memory(one.bytes + (strcmp(lie, "larger") == 0), &own, failure)) return false;
        fd = own.fd;
    }
    if (first && strcmp(lie, "not-memory") == 0) fd = STDOUT_FILENO;
    bool sent = hvdc_channel_send(channel, HVDC_EXCHANGE_FILE, &one, sizeof one, fd, failure);
    hvdc_memory_unmap(&own);
    return sent;
}

bool send_lie(const char *lie, const hvdc_shared_weights *shared, int socket, hvdc_failure *failure) {
    const hvdc_weights *view = hvdc_shared_weights_view(shared);
    hvdc_channel channel = hvdc_channel_on(socket);
    hvdc_message message;
    hvdc_weights_offer offer = hvdc_weights_offer_of(view->artifact);
    if (strcmp(lie, "fewer-files") == 0) offer.shared_files--;
    if (strcmp(lie, "more-bytes") == 0) offer.shared_bytes++;
    size_t bytes = strcmp(lie, "short-offer") == 0 ? sizeof offer - 1 : sizeof offer;
    uint32_t kind = strcmp(lie, "no-offer") == 0 ? HVDC_EXCHANGE_TAKEN : HVDC_EXCHANGE_OFFER;
    if (!hvdc_channel_send(&channel, kind, &offer, bytes, -1, failure) ||
        !hvdc_channel_expect(&channel, 20, HVDC_EXCHANGE_READY, 0, HVDC_EXCHANGE_NO, &message, failure))
        return false;
    for (uint32_t i = 0; i < hvdc_artifact_file_count(view->artifact); i++) {
        if (view->fds[i] < 0) continue;
        if (strcmp(lie, "silent") == 0) break;
        if (strcmp(lie, "gone") == 0) return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner goes");
        if (!send_file(lie, view, i, &channel, failure)) break; /* the reader has said why */
    }
    return hvdc_channel_expect(&channel, 1, HVDC_EXCHANGE_TAKEN, 0, HVDC_EXCHANGE_NO, &message, failure);
}
