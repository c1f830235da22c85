#define _POSIX_C_SOURCE 200809L

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hvdc/json.h"
#include "lines.h"
#include "stderr_apart.h"
#include "video_json.h"

#define EVERY_S 1.0 /* between two lines that say how far a video is */
#define LINE_BYTES 8192u
#define PROGRESS_ROOM_BYTES (256u << 10) /* how far a video is, as often as blocks are executed */
#define ROOM_BYTES (16u << 20)           /* everything else that is said */

/* Standard error is one for the process, and so is what waits for it. NULL: it is written at once. */
static struct {
    hvdc_lines *lines;
    uint64_t left_out, told; /* lines that nobody had read in time; of which a line has told */
} said;

/* A line, or the report, as it is put together. It does not move while `file` is open. */
typedef struct text {
    FILE *file;
    char *data;
    size_t bytes;
} text;

static bool text_begin(text *t) {
    *t = (text){.data = NULL};
    t->file = open_memstream(&t->data, &t->bytes);
    return t->file != NULL;
}

static bool put(const text *t, size_t room_bytes) {
    if (said.lines != NULL) return hvdc_lines_put(said.lines, t->data, t->bytes, room_bytes);
    (void)fwrite(t->data, 1, t->bytes, stderr);
    return true;
}

static void line_end(const hvdc_options *options, text *t, size_t room_bytes) {
    const bool whole = fclose(t->file) == 0;
    if (!whole || !put(t, room_bytes)) {
        said.left_out++;
    } else if (said.left_out > said.told) { /* there is room again */
        const uint64_t lines = said.left_out - said.told;
        said.told = said.left_out;
        hvdc_say(options, "note", "%" PRIu64 " lines were left out here: nobody had read them in time", lines);
    }
    free(t->data);
}

/* Nobody sees what is said any more: as if this process were asked to stop. */
static void ask_to_stop(void) { (void)kill(getpid(), SIGTERM); }

void hvdc_say_aside(bool stops) { said.lines = hvdc_lines_open(hvdc_stderr_apart(), stops ? ask_to_stop : NULL); }

void hvdc_say_no_more(double patience_s) {
    (void)hvdc_lines_close(said.lines, patience_s);
    said.lines = NULL;
}

bool hvdc_outcome_needs_gpu(const hvdc_outcome *o) {
    switch (o->options->mode) {
        case HVDC_MODE_NPU: return false;
        case HVDC_MODE_HETERO: return !o->is_placed || o->policy.policy != HVDC_POLICY_STATIC || o->cut > 0;
        case HVDC_MODE_TENSOR: return !o->is_placed || o->gpu_share > 0.0;
        case HVDC_MODE_GPU:
        case HVDC_MODE_DP: break;
    }
    return true;
}

static const char *const cut_sources[] = {"none", "given", "rates", "measured"};

static void put_cut(FILE *file, const hvdc_outcome *o) {
    const hvdc_policy_options *p = &o->policy;
    (void)fprintf(file, "\"cut\": %" PRIu32 ", \"gpu_share\": %.17g, \"cut_source\": \"%s\", \"policy\": \"%s\"",
                  o->cut, o->gpu_share, cut_sources[o->cut_source], hvdc_policy_name(p->policy));
    if (p->policy != HVDC_POLICY_STATIC) (void)fprintf(file, ", \"handoff_s\": %.17g", p->handoff_s);
    if (p->policy == HVDC_POLICY_DEADLINE)
        (void)fprintf(file, ", \"deadline_s\": %.17g, \"deadline_from\": \"%s\"", p->deadline_s,
                      p->from_start ? "start" : "arrival");
    if (o->cut_source >= HVDC_CUT_FROM_RATES)
        (void)fprintf(file, ", \"rates\": {\"gpu_block_s\": %.17g, \"npu_block_s\": %.17g, \"decode_s\": %.17g}",
                      o->rates.gpu_block_s, o->rates.npu_block_s, o->rates.decode_s);
}

void hvdc_say_cut(const hvdc_outcome *o) {
    const bool found = o->options->progress == HVDC_TALK_TEXT && o->cut_source >= HVDC_CUT_FROM_RATES;
    text t;
    if ((!found && o->options->progress != HVDC_TALK_JSON) || !text_begin(&t)) return;
    if (found && o->options->mode == HVDC_MODE_TENSOR) {
        (void)fprintf(t.file, "%.4g of all columns on the GPU: a block takes %.4g s there, %.4g s on the NPU\n",
                      o->gpu_share, o->rates.gpu_block_s, o->rates.npu_block_s);
    } else if (found) {
        if (o->policy.policy != HVDC_POLICY_STATIC)
            (void)fprintf(t.file, "policy %s, which begins as if by ", hvdc_policy_name(o->policy.policy));
        (void)fprintf(t.file,
                      "cut %" PRIu32 " of %" PRIu32
                      ": a block takes %.4g s on the GPU, %.4g s on the NPU, decoding a video %.4g s\n",
                      o->cut, o->trajectory.steps * o->trajectory.layers, o->rates.gpu_block_s, o->rates.npu_block_s,
                      o->rates.decode_s);
    } else {
        (void)fputs("{\"event\": \"cut\", ", t.file);
        put_cut(t.file, o);
        (void)fputs("}\n", t.file);
    }
    line_end(o->options, &t, ROOM_BYTES);
}

void hvdc_say_in_lines(void) {
    (void)setvbuf(stderr, NULL, _IOLBF, LINE_BYTES);
    (void)setvbuf(stdout, NULL, _IOLBF, LINE_BYTES);
}

FILE *hvdc_take_standard_output(hvdc_failure *failure) {
    (void)fflush(stdout);
    int kept = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    FILE *out = kept < 0 ? NULL : fdopen(kept, "w");
    if (out != NULL && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) return out;
    (void)hvdc_fail(failure, HVDC_FAILURE_FILE, "standard output cannot be written: %s", strerror(errno));
    if (out != NULL)
        (void)fclose(out);
    else if (kept >= 0)
        (void)close(kept);
    return NULL;
}

void hvdc_say(const hvdc_options *options, const char *event, const char *format, ...) {
    char sentence[2 * HVDC_FAILURE_MESSAGE_BYTES];
    va_list arguments;
    text t;
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (options->progress == HVDC_TALK_NOTHING || !text_begin(&t)) return;
    if (options->progress == HVDC_TALK_TEXT) {
        (void)fprintf(t.file, "%s\n", sentence);
    } else {
        (void)fprintf(t.file, "{\"event\": \"%s\", \"text\": ", event);
        hvdc_json_text(t.file, sentence);
        (void)fputs("}\n", t.file);
    }
    line_end(options, &t, ROOM_BYTES);
}

/* "" where no GPU takes part. */
static void weights_text(const hvdc_outcome *o, char sentence[160]) {
    const hvdc_weights_use *use = &o->report.gpu_weights;
    const double mib = 1 << 20;
    sentence[0] = 0;
    if (use->copied_bytes > 0)
        (void)snprintf(sentence, 160, "weights: copied to the GPU: %.1f MiB, beside the %.1f MiB in shared memory",
                       (double)use->copied_bytes / mib, (double)o->weights_bytes / mib);
    else if (use->import[0] != 0)
        (void)snprintf(sentence, 160, "weights: once for both engines; the GPU reads %.1f MiB where they are (%s)",
                       (double)use->imported_bytes / mib, use->import);
}

void hvdc_say_weights_use(const hvdc_outcome *outcome) {
    char sentence[160];
    weights_text(outcome, sentence);
    if (sentence[0] != 0) hvdc_say(outcome->options, "note", "%s", sentence);
}

static const char *const event_names[] = {"started", "blocks",   "handoff",  "decoding",  "finished",
                                          "skipped", "gpu-lost", "stopping", "cut-chosen"};

static void put_json_event(FILE *file, const hvdc_progress *p) {
    (void)fprintf(file, "{\"event\": \"%s\", \"video\": %" PRIu32 ", \"position\": %" PRIu32 ", \"at_s\": %.6f",
                  event_names[p->event], p->video, p->position, p->at_s);
    if (p->event == HVDC_EVENT_DECODING)
        (void)fprintf(file, ", \"done\": %" PRIu64 ", \"total\": %" PRIu64, p->done, p->total);
    if (p->text != NULL) {
        (void)fputs(", \"text\": ", file);
        hvdc_json_text(file, p->text);
    }
    if (p->record != NULL) {
        (void)fputs(", \"record\": ", file);
        hvdc_put_video(file, p->record);
    }
    if (p->event == HVDC_EVENT_CUT) hvdc_put_in_flight(file, p);
    (void)fputs("}\n", file);
}

/* Whether an event is said in text, and how. */
static bool put_event(FILE *file, hvdc_speaker *s, const hvdc_progress *p) {
    const uint32_t all = s->trajectory->steps * s->trajectory->layers;
    switch (p->event) {
        case HVDC_EVENT_BLOCKS:
            if (p->at_s - s->last_s < EVERY_S) return false;
            s->last_s = p->at_s;
            (void)fprintf(file, "video %" PRIu32 ": %" PRIu32 " of %" PRIu32 " blocks\n", p->video, p->position, all);
            return true;
        case HVDC_EVENT_DECODING:
            if (p->at_s - s->last_s < EVERY_S) return false;
            s->last_s = p->at_s;
            (void)fprintf(file, "video %" PRIu32 ": %" PRIu64 " of %" PRIu64 " latent frames of tiles decoded\n",
                          p->video, p->done, p->total);
            return true;
        case HVDC_EVENT_HANDOFF:
            (void)fprintf(file, "video %" PRIu32 ": handed to the NPU at block %" PRIu32 "\n", p->video, p->position);
            return true;
        case HVDC_EVENT_FINISHED:
            (void)fprintf(file, "video %" PRIu32 ": finished after %.1f s\n", p->video, p->at_s);
            return true;
        case HVDC_EVENT_SKIPPED: (void)fprintf(file, "video %" PRIu32 ": is there already\n", p->video); return true;
        default: return p->text != NULL && fprintf(file, "%s\n", p->text) > 0;
    }
}

void hvdc_say_progress(void *speaker, const hvdc_progress *p) {
    hvdc_speaker *s = speaker;
    const size_t room_bytes =
        p->event == HVDC_EVENT_BLOCKS || p->event == HVDC_EVENT_DECODING ? PROGRESS_ROOM_BYTES : ROOM_BYTES;
    text t;
    if (s->options->progress == HVDC_TALK_NOTHING || !text_begin(&t)) return;
    bool is_said = true;
    if (s->options->progress == HVDC_TALK_JSON)
        put_json_event(t.file, p);
    else
        is_said = put_event(t.file, s, p);
    if (is_said) {
        line_end(s->options, &t, room_bytes);
    } else {
        (void)fclose(t.file);
        free(t.data);
    }
}

static void put_decoder(FILE *file, const hvdc_clips_facts *d) {
    if (d == NULL) {
        (void)fputs("null", file);
        return;
    }
    (void)fputs("{\"name\": ", file);
    hvdc_json_text(file, d->decoder);
    (void)fputs(", \"binary_build\": ", file);
    hvdc_json_text(file, d->binary_build);
    (void)fputs(", \"memory\": ", file);
    hvdc_json_text(file, d->memory);
    (void)fprintf(file,
                  ", \"emulator\": %s, \"contexts\": %" PRIu32 ", \"contexts_loaded\": %" PRIu32
                  ", \"buffer_bytes\": %" PRIu64 ", \"clip_bytes\": %" PRIu64 ", \"latent_bytes\": %" PRIu64 "}",
                  d->emulator ? "true" : "false", d->contexts, d->contexts_loaded, d->buffer_bytes, d->clip_bytes,
                  d->latent_bytes);
}

static void put_json(FILE *file, const hvdc_outcome *o) {
    const hvdc_stream_report *r = &o->report;
    (void)fprintf(file, "{\"mode\": \"%s\", \"executions\": %" PRIu32 ", ", hvdc_mode_name(o->options->mode),
                  o->trajectory.steps * o->trajectory.layers);
    put_cut(file, o);
    (void)fprintf(file, ", \"npu_sums\": \"%s\"", hvdc_npu_sums_name(o->options->npu_sums));
    (void)fprintf(file,
                  ", \"threads\": %" PRIu32 ", \"finished\": %" PRIu32 ", \"skipped\": %" PRIu32
                  ", \"stopped\": %s"
                  ", \"gpu_lost\": %s, \"note\": ",
                  o->options->threads, r->finished, r->skipped, r->stopped ? "true" : "false",
                  r->gpu_lost ? "true" : "false");
    hvdc_json_text(file, r->note);
    (void)fputs(", \"npu\": ", file);
    hvdc_json_text(file, o->npu);
    (void)fprintf(file,
                  ", \"npu_weights_copied_bytes\": %" PRIu64 ", \"npu_hidden_copied\": %" PRIu64
                  ", \"npu_checks_failed\": %" PRIu32,
                  o->npu_weights_copied_bytes, o->npu_hidden_copied, o->npu_checks_failed);
    (void)fprintf(file,
                  ", \"seconds\": %.6f, \"period_s\": %.6f, \"weights_kind\": \"%s\", \"weights_bytes\": %" PRIu64
                  ", \"gpu_import\": \"%s\", \"gpu_imported_bytes\": %" PRIu64
                  ", \"gpu_weights_copied_bytes\": %" PRIu64 ", \"slot_bytes\": %" PRIu64
                  ", \"gpu_engine_bytes\": %" PRIu64 ", \"npu_engine_bytes\": %" PRIu64 ", \"host_bytes\": %" PRIu64
                  ", \"forecast\": {\"weights_bytes\": %" PRIu64 ", \"slot_bytes\": %" PRIu64
                  ", \"npu_engine_bytes\": %" PRIu64 ", \"gpu_engine_bytes\": %" PRIu64 ", \"decoder_bytes\": %" PRIu64
                  "}, \"lines_left_out\": %" PRIu64 ", \"decoder\": ",
                  r->seconds, r->period_s, o->weights_kind, o->weights_bytes, r->gpu_weights.import,
                  r->gpu_weights.imported_bytes, r->gpu_weights.copied_bytes, r->slot_bytes, r->gpu_engine_bytes,
                  r->npu_engine_bytes, o->host_bytes, o->forecast.weights_bytes, o->forecast.slot_bytes,
                  o->forecast.npu_engine_bytes, o->forecast.gpu_engine_bytes, o->forecast.decoder_bytes, said.left_out);
    put_decoder(file, o->decoder);
    (void)fputs(", \"videos\": [", file);
    for (uint32_t i = 0; i < o->videos; i++) {
        (void)fputs(i == 0 ? "" : ", ", file);
        hvdc_put_video(file, &r->videos[i]);
    }
    (void)fputs("]}\n", file);
}

static void put_text(FILE *file, const hvdc_outcome *o) {
    const hvdc_stream_report *r = &o->report;
    (void)fprintf(file, "video  gpu blocks     gpu s     npu s     cpu s  waiting s  decode s\n");
    for (uint32_t i = 0; i < o->videos; i++) {
        const hvdc_video *v = &r->videos[i];
        if (v->finished_s > 0.0)
            (void)fprintf(file, "%5" PRIu32 "  %10" PRIu32 "  %8.3f  %8.3f  %8.3f  %9.3f  %8.3f%s\n", v->video,
                          v->gpu_blocks, v->gpu_s, v->npu_s, v->cpu_s, v->waiting_s, v->decode_s,
                          v->recovered ? "  recovered" : "");
    }
    (void)fprintf(file,
                  "%" PRIu32 " finished, %" PRIu32 " were there, of %" PRIu32 " videos; %.3f s, a video every %.3f s\n",
                  r->finished, r->skipped, o->videos, r->seconds, r->period_s);
    char weights[160];
    weights_text(o, weights);
    if (weights[0] != 0) (void)fprintf(file, "%s\n", weights);
    if (o->decoder != NULL) (void)fprintf(file, "decoded by %s\n", o->decoder->decoder);
    if (r->note[0] != 0) (void)fprintf(file, "%s\n", r->note);
}

/* To where the report goes, and to its end: 0, or why not. */
static int print(FILE *out, text *t, double patience_s) {
    int error = fclose(t->file) == 0 ? 0 : ENOMEM;
    hvdc_lines *lines = error == 0 ? hvdc_lines_open(fileno(out), NULL) : NULL;
    if (error == 0) error = lines != NULL && hvdc_lines_put(lines, t->data, t->bytes, SIZE_MAX) ? 0 : ENOMEM;
    const int written = hvdc_lines_close(lines, patience_s);
    free(t->data);
    return error != 0 ? error : written;
}

bool hvdc_print_outcome(FILE *out, const hvdc_outcome *outcome) {
    const hvdc_options *options = outcome->options;
    hvdc_failure failure;
    int error = ENOMEM;
    text t;
    if (text_begin(&t)) {
        (options->json ? put_json : put_text)(t.file, outcome);
        error = print(out, &t, options->reader_silence_s);
    }
    if (error == 0) return true;
    if (error == ETIMEDOUT)
        (void)hvdc_fail(&failure, HVDC_FAILURE_FILE,
                        "the report is not written: nobody has read standard output for %.1f s; the videos are kept",
                        options->reader_silence_s);
    else
        (void)hvdc_fail(&failure, HVDC_FAILURE_FILE,
                        "the report cannot be written to standard output: %s; the videos are kept", strerror(error));
    hvdc_say_failure(options, &failure);
    return false;
}

static const char *const failure_kinds[] = {"none", "usage", "artifact", "device", "memory", "peer", "file"};

void hvdc_say_failure(const hvdc_options *options, const hvdc_failure *failure) {
    text t;
    if (!text_begin(&t)) return;
    (void)fprintf(t.file, "hvdc_runner: %s\n", failure->message);
    line_end(options, &t, ROOM_BYTES);
}

void hvdc_print_failure(FILE *out, const hvdc_options *options, const hvdc_failure *failure) {
    text t;
    hvdc_say_failure(options, failure);
    if (!options->json || !text_begin(&t)) return;
    (void)fprintf(t.file, "{\"error\": {\"kind\": \"%s\", \"what\": ", failure_kinds[failure->kind]);
    hvdc_json_text(t.file, failure->message);
    (void)fputs("}}\n", t.file);
    (void)print(out, &t, options->reader_silence_s);
}
