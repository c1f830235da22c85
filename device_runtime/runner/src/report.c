#define _POSIX_C_SOURCE 200809L

#include "report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "hvdc/json.h"

#define EVERY_S 1.0 /* between two lines that say how far a video is */
#define LINE_BYTES 8192u

static void put_video(FILE *file, const hvdc_video *v) {
    (void)fprintf(file,
                  "{\"video\": %" PRIu32 ", \"gpu_blocks\": %" PRIu32
                  ", \"recovered\": %s, \"skipped\": %s, "
                  "\"started_s\": %.6f, \"finished_s\": %.6f, \"gpu_s\": %.6f, \"npu_s\": %.6f, \"cpu_s\": %.6f, "
                  "\"waiting_s\": %.6f, \"decode_s\": %.6f}",
                  v->video, v->gpu_blocks, v->recovered ? "true" : "false", v->skipped ? "true" : "false", v->started_s,
                  v->finished_s, v->gpu_s, v->npu_s, v->cpu_s, v->waiting_s, v->decode_s);
}

static const char *const cut_sources[] = {"none", "given", "rates", "measured"};

static void put_cut(FILE *file, const hvdc_outcome *o) {
    (void)fprintf(file, "\"cut\": %" PRIu32 ", \"gpu_share\": %.17g, \"cut_source\": \"%s\"", o->cut, o->gpu_share,
                  cut_sources[o->cut_source]);
    if (o->cut_source >= HVDC_CUT_FROM_RATES)
        (void)fprintf(file, ", \"rates\": {\"gpu_block_s\": %.9g, \"npu_block_s\": %.9g, \"decode_s\": %.9g}",
                      o->rates.gpu_block_s, o->rates.npu_block_s, o->rates.decode_s);
}

void hvdc_say_cut(const hvdc_outcome *o) {
    const bool lines = o->options->progress == HVDC_TALK_TEXT && o->cut_source >= HVDC_CUT_FROM_RATES;
    if (lines && o->options->mode == HVDC_MODE_TENSOR)
        (void)fprintf(stderr, "%.4g of all columns on the GPU: a block takes %.4g s there, %.4g s on the NPU\n",
                      o->gpu_share, o->rates.gpu_block_s, o->rates.npu_block_s);
    else if (lines)
        (void)fprintf(stderr,
                      "cut %" PRIu32 " of %" PRIu32
                      ": a block takes %.4g s on the GPU, %.4g s on the NPU, decoding a video %.4g s\n",
                      o->cut, o->trajectory.steps * o->trajectory.layers, o->rates.gpu_block_s, o->rates.npu_block_s,
                      o->rates.decode_s);
    if (o->options->progress != HVDC_TALK_JSON) return;
    (void)fputs("{\"event\": \"cut\", ", stderr);
    put_cut(stderr, o);
    (void)fputs("}\n", stderr);
}

void hvdc_say_in_lines(void) { (void)setvbuf(stderr, NULL, _IOLBF, LINE_BYTES); }

void hvdc_say(const hvdc_options *options, const char *event, const char *format, ...) {
    char text[2 * HVDC_FAILURE_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (options->progress == HVDC_TALK_TEXT) (void)fprintf(stderr, "%s\n", text);
    if (options->progress != HVDC_TALK_JSON) return;
    (void)fprintf(stderr, "{\"event\": \"%s\", \"text\": ", event);
    hvdc_json_text(stderr, text);
    (void)fputs("}\n", stderr);
}

/* "" where no GPU takes part. */
static void weights_text(const hvdc_outcome *o, char text[160]) {
    const hvdc_weights_use *use = &o->report.gpu_weights;
    const double mib = 1 << 20;
    text[0] = 0;
    if (use->copied_bytes > 0)
        (void)snprintf(text, 160, "weights: copied to the GPU: %.1f MiB, beside the %.1f MiB in shared memory",
                       (double)use->copied_bytes / mib, (double)o->weights_bytes / mib);
    else if (use->import[0] != 0)
        (void)snprintf(text, 160, "weights: once for both engines; the GPU reads %.1f MiB where they are (%s)",
                       (double)use->imported_bytes / mib, use->import);
}

void hvdc_say_weights_use(const hvdc_outcome *outcome) {
    char text[160];
    weights_text(outcome, text);
    if (text[0] != 0) hvdc_say(outcome->options, "note", "%s", text);
}

static const char *const event_names[] = {"started", "blocks",   "handoff", "finished",
                                          "skipped", "gpu-lost", "stopping"};

static void say_json(const hvdc_progress *p) {
    (void)fprintf(stderr, "{\"event\": \"%s\", \"video\": %" PRIu32 ", \"position\": %" PRIu32 ", \"at_s\": %.6f",
                  event_names[p->event], p->video, p->position, p->at_s);
    if (p->text != NULL) {
        (void)fputs(", \"text\": ", stderr);
        hvdc_json_text(stderr, p->text);
    }
    if (p->record != NULL) {
        (void)fputs(", \"record\": ", stderr);
        put_video(stderr, p->record);
    }
    (void)fputs("}\n", stderr);
}

void hvdc_say_progress(void *speaker, const hvdc_progress *p) {
    hvdc_speaker *s = speaker;
    uint32_t all = s->trajectory->steps * s->trajectory->layers;
    if (s->options->progress == HVDC_TALK_JSON) say_json(p);
    if (s->options->progress != HVDC_TALK_TEXT) return;
    switch (p->event) {
        case HVDC_EVENT_BLOCKS:
            if (p->at_s - s->last_s < EVERY_S) return;
            s->last_s = p->at_s;
            (void)fprintf(stderr, "video %" PRIu32 ": %" PRIu32 " of %" PRIu32 " blocks\n", p->video, p->position, all);
            return;
        case HVDC_EVENT_HANDOFF:
            (void)fprintf(stderr, "video %" PRIu32 ": handed to the NPU at block %" PRIu32 "\n", p->video, p->position);
            return;
        case HVDC_EVENT_FINISHED:
            (void)fprintf(stderr, "video %" PRIu32 ": finished after %.1f s\n", p->video, p->at_s);
            return;
        case HVDC_EVENT_SKIPPED: (void)fprintf(stderr, "video %" PRIu32 ": is there already\n", p->video); return;
        default:
            if (p->text != NULL) (void)fprintf(stderr, "%s\n", p->text);
    }
}

static void print_json(const hvdc_outcome *o) {
    const hvdc_stream_report *r = &o->report;
    (void)printf("{\"mode\": \"%s\", \"executions\": %" PRIu32 ", ", hvdc_mode_name(o->options->mode),
                 o->trajectory.steps * o->trajectory.layers);
    put_cut(stdout, o);
    (void)printf(", \"npu_sums\": \"%s\"", hvdc_npu_sums_name(o->options->npu_sums));
    (void)printf(", \"threads\": %" PRIu32 ", \"finished\": %" PRIu32 ", \"skipped\": %" PRIu32
                 ", \"stopped\": %s"
                 ", \"gpu_lost\": %s, \"note\": ",
                 o->options->threads, r->finished, r->skipped, r->stopped ? "true" : "false",
                 r->gpu_lost ? "true" : "false");
    hvdc_json_text(stdout, r->note);
    (void)fputs(", \"npu\": ", stdout);
    hvdc_json_text(stdout, o->npu);
    (void)printf(", \"npu_weights_copied_bytes\": %" PRIu64 ", \"npu_hidden_copied\": %" PRIu64,
                 o->npu_weights_copied_bytes, o->npu_hidden_copied);
    (void)printf(", \"seconds\": %.6f, \"period_s\": %.6f, \"weights_kind\": \"%s\", \"weights_bytes\": %" PRIu64
                 ", \"gpu_import\": \"%s\", \"gpu_imported_bytes\": %" PRIu64 ", \"gpu_weights_copied_bytes\": %" PRIu64
                 ", \"slot_bytes\": %" PRIu64 ", \"gpu_engine_bytes\": %" PRIu64 ", \"npu_engine_bytes\": %" PRIu64
                 ", \"host_bytes\": %" PRIu64 ", \"videos\": [",
                 r->seconds, r->period_s, o->weights_kind, o->weights_bytes, r->gpu_weights.import,
                 r->gpu_weights.imported_bytes, r->gpu_weights.copied_bytes, r->slot_bytes, r->gpu_engine_bytes,
                 r->npu_engine_bytes, o->host_bytes);
    for (uint32_t i = 0; i < o->videos; i++) {
        (void)fputs(i == 0 ? "" : ", ", stdout);
        put_video(stdout, &r->videos[i]);
    }
    (void)fputs("]}\n", stdout);
}

static void print_text(const hvdc_outcome *o) {
    const hvdc_stream_report *r = &o->report;
    (void)printf("video  gpu blocks     gpu s     npu s     cpu s  waiting s\n");
    for (uint32_t i = 0; i < o->videos; i++) {
        const hvdc_video *v = &r->videos[i];
        if (v->finished_s > 0.0)
            (void)printf("%5" PRIu32 "  %10" PRIu32 "  %8.3f  %8.3f  %8.3f  %9.3f%s\n", v->video, v->gpu_blocks,
                         v->gpu_s, v->npu_s, v->cpu_s, v->waiting_s, v->recovered ? "  recovered" : "");
    }
    (void)printf("%" PRIu32 " finished, %" PRIu32 " were there, of %" PRIu32 " videos; %.3f s, a video every %.3f s\n",
                 r->finished, r->skipped, o->videos, r->seconds, r->period_s);
    char weights[160];
    weights_text(o, weights);
    if (weights[0] != 0) (void)printf("%s\n", weights);
    if (r->note[0] != 0) (void)printf("%s\n", r->note);
}

bool hvdc_print_outcome(const hvdc_outcome *outcome) {
    if (outcome->options->json)
        print_json(outcome);
    else
        print_text(outcome);
    return fflush(stdout) == 0;
}

static const char *const failure_kinds[] = {"none", "usage", "artifact", "device", "memory", "peer", "file"};

void hvdc_print_failure(const hvdc_options *options, const hvdc_failure *failure) {
    (void)fprintf(stderr, "hvdc_runner: %s\n", failure->message);
    if (!options->json) return;
    (void)printf("{\"error\": {\"kind\": \"%s\", \"what\": ", failure_kinds[failure->kind]);
    hvdc_json_text(stdout, failure->message);
    (void)fputs("}}\n", stdout);
    (void)fflush(stdout);
}
