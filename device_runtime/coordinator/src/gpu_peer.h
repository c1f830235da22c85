/* The worker as its owner sees it: a process that was told what to do and says how far it is.
 *
 * Everything that it says is checked against what it was told; whatever does not fit means that it is lost. */
#ifndef HVDC_GPU_PEER_H
#define HVDC_GPU_PEER_H

#include "hvdc/child.h"
#include "protocol.h"

typedef struct hvdc_gpu_peer {
    hvdc_child child;
    hvdc_channel channel;
    hvdc_assignment todo[HVDC_SLOTS_MAX]; /* in the order in which they were given */
    uint32_t todo_count;
    uint64_t heard_ns;
    uint64_t engine_bytes;
    hvdc_weights_use weights;
    bool ending; /* it has been told to end, or has said that it will */
} hvdc_gpu_peer;

#define HVDC_NO_GPU_PEER ((hvdc_gpu_peer){.child = {.pid = 0, .socket = -1}})

/* Starts the worker and tells it all that does not change; `exchange` may be no memory. hvdc_gpu_peer_news says when it is ready. */
bool hvdc_gpu_peer_start(hvdc_gpu_peer *peer, const hvdc_stream *stream, const hvdc_slot *slots, uint32_t slot_count,
                         const hvdc_memory *exchange, double timeout_s, hvdc_failure *failure);

bool hvdc_gpu_peer_assign(hvdc_gpu_peer *peer, hvdc_assignment todo, hvdc_failure *failure);

enum hvdc_gpu_news_kind { HVDC_GPU_SILENT, HVDC_GPU_READY, HVDC_GPU_SPAN, HVDC_GPU_HANDOFF, HVDC_GPU_LOST };

typedef struct hvdc_gpu_news {
    enum hvdc_gpu_news_kind kind;
    hvdc_span_of_time span;
    hvdc_handoff handoff; /* of the first of `todo`, which it is removed from; the checksum is not compared yet */
} hvdc_gpu_news;

/* What has come and was not read yet; LOST fills `failure`. */
enum hvdc_gpu_news_kind hvdc_gpu_peer_news(hvdc_gpu_peer *peer, hvdc_gpu_news *news, hvdc_failure *failure);

/* Kills it, and leaves the rest to hvdc_gpu_peer_end: who waits for a message of it hears that it is gone. */
void hvdc_gpu_peer_kill(hvdc_gpu_peer *peer);

/* Ends the process: asked kindly if it has nothing to do; killed 5 s later if it is still there, and at once if it was
 * not asked and has not said that it ends. `how` says how it ended. */
bool hvdc_gpu_peer_end(hvdc_gpu_peer *peer, bool kindly, char *how, size_t how_bytes, hvdc_failure *failure);

#endif
