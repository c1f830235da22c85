/* The decoder's C interface, as a coordinator uses it: hooks, memory, frames in order, and clips that are stopped.
 * decoder_face ARTIFACT LIBRARIES; the libraries are the stand-in's. */
#include "hvdc/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, heard.failure.message); \
            exit(1); \
        } \
    } while (0)

enum { FRAMES = 5, HEIGHT = 72, WIDTH = 80 };

/* What happened, in order: G give back, p progress, f frame, T take again. */
static struct {
    char events[64];
    hvdc_failure failure;
    unsigned buffers, allocations, refuse_allocation, stop_after, refuse_frame;
    bool refuse_give, refuse_take;
    uint8_t pixels[2][FRAMES][HEIGHT * WIDTH * 3];
    unsigned clip;
} heard;

static void note(char event) {
    size_t length = strlen(heard.events);
    EXPECT(length + 1 < sizeof heard.events);
    heard.events[length] = event;
}

static bool give_back(void *user, hvdc_failure *failure) {
    EXPECT(user == &heard);
    note('G');
    return heard.refuse_give ? hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the matrix unit is busy") : true;
}

static bool take_again(void *user, hvdc_failure *failure) {
    EXPECT(user == &heard);
    note('T');
    return heard.refuse_take ? hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the matrix unit is gone") : true;
}

static bool progress(void *user, uint64_t done, uint64_t total) {
    EXPECT(user == &heard && done >= 1 && done <= total && total == 3 * 4 * 2);
    note('p');
    return heard.stop_after == 0 || done < heard.stop_after;
}

static bool frame(void *user, uint32_t number, const uint8_t *rgb, hvdc_failure *failure) {
    unsigned before = 0;
    for (const char *event = heard.events; *event != 0; event++) before += *event == 'f';
    EXPECT(user == &heard && number == before);
    note('f');
    if (heard.refuse_frame != 0 && number + 1 == heard.refuse_frame)
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "frame %u cannot be written", number);
    memcpy(heard.pixels[heard.clip][number], rgb, sizeof heard.pixels[0][0]);
    return true;
}

static bool allocate(void *user, uint64_t bytes, hvdc_decoder_buffer *buffer, hvdc_failure *failure) {
    EXPECT(user == &heard && bytes > 0);
    if (++heard.allocations == heard.refuse_allocation)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "the heap has no %llu bytes", (unsigned long long)bytes);
    *buffer = (hvdc_decoder_buffer){malloc((size_t)bytes), bytes, -1}; /* of that size exactly: a sanitizer watches */
    EXPECT(buffer->data != NULL);
    heard.buffers++;
    return true;
}

static void release(void *user, hvdc_decoder_buffer *buffer) {
    EXPECT(user == &heard);
    free(buffer->data);
    heard.buffers--;
}

static hvdc_decoder_options options_of(const char *libraries) {
    hvdc_decoder_options options = hvdc_decoder_default_options();
    options.libraries = libraries;
    options.emulator = false;
    options.give_back = give_back;
    options.take_again = take_again;
    options.progress = progress;
    options.hook_user = options.progress_user = options.memory_user = &heard;
    return options;
}

static bool decode(hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent) {
    memset(heard.events, 0, sizeof heard.events);
    memset(&heard.failure, 0, sizeof heard.failure);
    return hvdc_frame_decoder_decode(decoder, latent, frame, &heard, &heard.failure);
}

static bool said(const char *words) { return strstr(heard.failure.message, words) != NULL; }

static void check_clips(hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent) {
    EXPECT(decode(decoder, latent)); /* 3 x 4 tiles of 2 latent frames; frames
                                      come with the last tile */
    EXPECT(strcmp(heard.events, "GppppppppppppppppppppppfpffffpT") == 0);
    heard.clip = 1;
    heard.stop_after = 9;
    EXPECT(!decode(decoder, latent) && said("stopped after 9 of 24") && strcmp(heard.events, "GpppppppppT") == 0);
    heard.stop_after = 0;
    heard.refuse_frame = 3;
    EXPECT(!decode(decoder, latent) && said("frame 2 cannot be written"));
    EXPECT(heard.failure.kind == HVDC_FAILURE_FILE && heard.events[strlen(heard.events) - 1] == 'T');
    heard.refuse_take = true; /* the first failure is what a person needs */
    EXPECT(!decode(decoder, latent) && said("frame 2 cannot be written"));
    heard.refuse_frame = 0;
    EXPECT(!decode(decoder, latent) && said("the matrix unit is gone"));
    heard.refuse_take = false;
    heard.refuse_give = true;
    EXPECT(!decode(decoder, latent) && said("the matrix unit is busy") && strcmp(heard.events, "G") == 0);
    heard.refuse_give = false;
    memset(heard.events, 0, sizeof heard.events);
    heard.stop_after = 1;
    EXPECT(!hvdc_frame_decoder_decode(decoder, latent, frame, &heard, NULL)); /* nobody has to ask why */
    heard.stop_after = 0;
    EXPECT(decode(decoder, latent) && memcmp(heard.pixels[0], heard.pixels[1], sizeof heard.pixels[0]) == 0);
}

static void check_sizes(const hvdc_frame_decoder *decoder, hvdc_decoder_latent latent) {
    uint32_t size[3] = {0};
    EXPECT(hvdc_frame_decoder_size(decoder, &latent, size, &heard.failure));
    EXPECT(size[0] == FRAMES && size[1] == HEIGHT && size[2] == WIDTH);
    latent.frames = UINT32_MAX;
    EXPECT(!hvdc_frame_decoder_size(decoder, &latent, size, &heard.failure) && said("is too large"));
    latent.frames = 0;
    EXPECT(!hvdc_frame_decoder_size(decoder, &latent, size, &heard.failure) && said("does not fit these latents"));
    latent.frames = 2;
    latent.rows = UINT32_MAX;
    latent.columns = UINT32_MAX;
    EXPECT(!hvdc_frame_decoder_size(decoder, &latent, size, &heard.failure) && said("is too large"));
}

static void check_memory(const hvdc_artifact *artifact, hvdc_decoder_options options,
                         const hvdc_decoder_latent *latent) {
    hvdc_frame_decoder *decoder = NULL;
    hvdc_decoder_facts facts;
    options.allocate = allocate;
    EXPECT(!hvdc_frame_decoder_open(artifact, &options, &decoder, &heard.failure) && said("belong together"));
    options.release = release;
    EXPECT(hvdc_frame_decoder_open(artifact, &options, &decoder, &heard.failure));
    hvdc_frame_decoder_facts(decoder, &facts);
    EXPECT(!facts.memory_is_shared && strcmp(facts.memory, "client buffers: the allocator gave no descriptors") == 0);
    EXPECT(heard.buffers > 0 && facts.buffer_bytes > 0);
    EXPECT(decode(decoder, latent) && memcmp(heard.pixels[0], heard.pixels[1], sizeof heard.pixels[0]) == 0);
    hvdc_frame_decoder_close(decoder);
    EXPECT(heard.buffers == 0);
    for (unsigned last = heard.allocations; last > 0; last--) {
        heard.allocations = 0;
        heard.refuse_allocation = last;
        EXPECT(!hvdc_frame_decoder_open(artifact, &options, &decoder, &heard.failure) && said("the heap has no"));
        EXPECT(decoder == NULL && heard.buffers == 0 && heard.failure.kind == HVDC_FAILURE_MEMORY);
    }
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    hvdc_artifact *artifact = NULL;
    EXPECT(hvdc_artifact_open(argv[1], &artifact, NULL) == HVDC_E_OK);
    static float values[4 * 2 * 9 * 10];
    for (int i = 0; i < 4 * 2 * 9 * 10; i++) values[i] = (float)(i * 37 % 101) / 10.0f - 5.0f;
    const hvdc_decoder_latent latent = {values, 4, 2, 9, 10};
    const hvdc_decoder_options options = options_of(argv[2]);
    hvdc_frame_decoder *decoder = NULL;
    EXPECT(hvdc_frame_decoder_open(artifact, &options, &decoder, &heard.failure));
    check_clips(decoder, &latent);
    check_sizes(decoder, latent);
    hvdc_frame_decoder_close(decoder);
    hvdc_frame_decoder_close(NULL);
    check_memory(artifact, options, &latent);
    hvdc_artifact_close(artifact);
    return 0;
}
