#include "video_json.h"

#include <inttypes.h>
#include <math.h>

/* To the last bit what the policy saw and said, so that it can be reckoned again. */
static void put_choice(FILE *file, const hvdc_cut_choice *c) {
    if (!c->made) {
        (void)fputs("null", file);
        return;
    }
    (void)fprintf(file,
                  "{\"at_s\": %.17g, \"arrival_s\": %.17g, \"not_before_s\": %.17g, \"gpu_block_s\": %.17g, "
                  "\"npu_block_s\": %.17g, \"decode_s\": %.17g, \"gpu_videos\": %" PRIu32 ", \"npu_videos\": %" PRIu32
                  ", \"gpu_free_s\": %.17g, \"npu_free_s\": %.17g}",
                  c->at_s, c->arrival_s, c->not_before_s, c->rates.gpu_block_s, c->rates.npu_block_s, c->rates.decode_s,
                  c->gpu_videos, c->npu_videos, c->ready.gpu_s, c->ready.npu_s);
}

void hvdc_put_video(FILE *file, const hvdc_video *v) {
    (void)fprintf(file,
                  "{\"video\": %" PRIu32 ", \"cut\": %" PRIu32 ", \"gpu_blocks\": %" PRIu32
                  ", \"recovered\": %s, \"skipped\": %s, \"kept\": %s, "
                  "\"started_s\": %.6f, \"finished_s\": %.6f, \"gpu_s\": %.6f, \"npu_s\": %.6f, \"cpu_s\": %.6f, "
                  "\"waiting_s\": %.6f, \"decode_s\": %.17g, \"gpu_stage_s\": %.17g, \"npu_stage_s\": %.17g, "
                  "\"choice\": ",
                  v->video, v->cut, v->gpu_blocks, v->recovered ? "true" : "false", v->skipped ? "true" : "false",
                  v->kept ? "true" : "false", v->started_s, v->finished_s, v->gpu_s, v->npu_s, v->cpu_s, v->waiting_s,
                  v->decode_s, v->gpu_stage_s, v->npu_stage_s);
    put_choice(file, &v->choice);
    (void)fputc('}', file);
}

/* What a policy saw: null for what had not happened. */
void hvdc_put_in_flight(FILE *file, const hvdc_progress *p) {
    (void)fputs(", \"in_flight\": [", file);
    for (uint32_t i = 0; i < p->in_flight_count; i++) {
        const hvdc_in_flight *v = &p->in_flight[i];
        const double times[] = {v->gpu_start_s, v->gpu_end_s, v->npu_start_s};
        static const char *const names[] = {"gpu_start_s", "gpu_end_s", "npu_start_s"};
        (void)fprintf(file, "%s{\"video\": %" PRIu32 ", \"cut\": %" PRIu32, i == 0 ? "" : ", ", v->video, v->cut);
        for (size_t time = 0; time < 3; time++)
            if (isnan(times[time]))
                (void)fprintf(file, ", \"%s\": null", names[time]);
            else
                (void)fprintf(file, ", \"%s\": %.17g", names[time], times[time]);
        (void)fputc('}', file);
    }
    (void)fputc(']', file);
}
