#include "bench_answer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "hidden.h"
#include "hvdc/half.h"

static const char *const EXPERT_NAMES[] = {"semantic", "detail"};

/* `found`: the result, of a hidden state `before`. */
static void compare(const float *found, const float *before, const void *stored, uint32_t value_bytes, uint64_t count,
                    bench_answer *answer) {
    double off = 0.0, changed = 0.0;
    answer->values = count;
    answer->different = 0;
    answer->max_abs = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        const float due = value_bytes == sizeof(float) ? ((const float *)stored)[i]
                                                       : hvdc_half_to_float(((const uint16_t *)stored)[i]);
        const double difference = (double)found[i] - (double)due, change = (double)due - (double)before[i];
        answer->different += hvdc_bits_of_float(found[i]) == hvdc_bits_of_float(due) ? 0u : 1u;
        if (!(fabs(difference) <= answer->max_abs)) answer->max_abs = fabs(difference); /* NaN stays */
        off += difference * difference;
        changed += change * change;
    }
    answer->relative = answer->different == 0u ? 0.0 : sqrt(off / changed);
    answer->right = answer->limit == 0.0 ? answer->different == 0u : answer->relative <= answer->limit;
}

static bool execute(hvdc_engine *engine, const hvdc_answer *asked, uint32_t expert, const float *text, float *before,
                    uint64_t count, hvdc_hidden *hidden, hvdc_failure *failure) {
    if (!engine->set_text(engine, expert, text, failure)) return false;
    if (!hvdc_hidden_open(hidden, engine, "hvdc:answer", (size_t)count, failure)) return false;
    hvdc_answer_make_up(asked->hidden_seed, asked->hidden_unit, before, count);
    for (uint64_t i = 0; i < count; i++) hidden->values[i] = before[i];
    return hvdc_hidden_share(hidden, engine, failure) &&
           engine->run(engine, asked->step, asked->block, 1, hidden->values, failure);
}

static bool ask(hvdc_engine *engine, bool by_bits, const hvdc_answer_file *file, uint32_t i, uint32_t expert,
                bench_answer *answer, hvdc_failure *failure) {
    const hvdc_answer_header *h = hvdc_answer_file_header(file);
    const hvdc_answer *asked = hvdc_answer_file_answer(file, i);
    const uint64_t count = (uint64_t)h->frames * h->rows * h->columns * h->width;
    const uint64_t text_values = (uint64_t)h->text_tokens * h->width;
    *answer = (bench_answer){.engine = asked->engine == HVDC_ANSWER_ENGINE_GPU ? "gpu" : "npu",
                             .expert = expert,
                             .step = asked->step,
                             .block = asked->block,
                             .limit = by_bits ? 0.0 : asked->limit};
    float *text = malloc((size_t)text_values * sizeof *text), *before = malloc((size_t)count * sizeof *before);
    hvdc_hidden hidden = HVDC_NO_HIDDEN;
    bool good = (text != NULL && before != NULL) ||
                hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a block's input");
    if (good) {
        hvdc_answer_make_up(asked->text_seed, asked->text_unit, text, text_values);
        good = execute(engine, asked, expert, text, before, count, &hidden, failure);
    }
    if (good)
        compare(hidden.values, before, hvdc_answer_file_values(file, i), HVDC_ANSWER_VALUE_BYTES(asked->engine), count,
                answer);
    hvdc_hidden_close(&hidden, engine);
    free(before);
    free(text);
    return good;
}

bool bench_answer_ask(hvdc_engine *engine, enum hvdc_answer_engine kind, bool by_bits, const hvdc_answer_file *file,
                      const hvdc_artifact *artifact, bench_answers *answers, hvdc_failure *failure) {
    const uint32_t before = answers->count;
    for (uint32_t i = 0; i < hvdc_answer_file_header(file)->answers; i++) {
        const hvdc_answer *asked = hvdc_answer_file_answer(file, i);
        if (asked->engine != (uint32_t)kind) continue;
        bench_answer *answer = &answers->of[answers->count];
        if (!ask(engine, by_bits, file, i, hvdc_artifact_step(artifact, asked->step)->expert, answer, failure))
            return false;
        answers->right = (answers->count == 0u || answers->right) && answer->right;
        answers->count++;
    }
    return answers->count > before ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "the artifact's answer holds no block of the %s's engine",
                     kind == HVDC_ANSWER_ENGINE_GPU ? "GPU" : "NPU");
}

/* JSON has no word for what is not finite. */
static void put_number(const char *name, double value) {
    if (isfinite(value))
        (void)printf(", \"%s\": %.9g", name, value);
    else
        (void)printf(", \"%s\": null", name);
}

void bench_answer_print(const bench_answers *answers, bool json) {
    if (json)
        (void)fputs("\"answers\": [", stdout);
    else
        (void)printf("%-4s %-8s %5s %6s %12s %12s %12s %12s %8s\n", "on", "expert", "step", "block", "different",
                     "max abs", "relative", "limit", "");
    for (uint32_t i = 0; i < answers->count; i++) {
        const bench_answer *a = &answers->of[i];
        const char *expert = a->expert < sizeof EXPERT_NAMES / sizeof *EXPERT_NAMES ? EXPERT_NAMES[a->expert] : "?";
        if (json) {
            (void)printf("%s\n  {\"engine\": \"%s\", \"expert\": \"%s\", \"step\": %" PRIu32 ", \"block\": %" PRIu32
                         ", \"values\": %" PRIu64 ", \"different\": %" PRIu64,
                         i == 0u ? "" : ",", a->engine, expert, a->step, a->block, a->values, a->different);
            put_number("max_abs", a->max_abs);
            put_number("relative", a->relative);
            (void)printf(", \"decides\": \"%s\", \"limit\": %.9g, \"right\": %s}", a->limit == 0.0 ? "bits" : "limit",
                         a->limit, a->right ? "true" : "false");
        } else {
            (void)printf("%-4s %-8s %5" PRIu32 " %6" PRIu32 " %12" PRIu64 " %12.4g %12.4g %12.4g %8s\n", a->engine,
                         expert, a->step, a->block, a->different, a->max_abs, a->relative, a->limit,
                         a->right ? "right" : "WRONG");
        }
    }
    if (json) (void)printf("\n], \"right\": %s", answers->right ? "true" : "false");
}
