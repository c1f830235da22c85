#include "check_spec.h"

#include <stdlib.h>
#include <string.h>

enum word_kind { NUMBER, SECONDS, TEXT, YES_NO, PLACE, MODE, POLICY, STOP };

typedef struct word {
    const char *key;
    enum word_kind kind;
    void *to;
} word;

static bool read_number(const char *text, uint32_t *value, const char **end) {
    char *after;
    unsigned long read = strtoul(text, &after, 10);
    *value = (uint32_t)read;
    *end = after;
    return after != text && read <= UINT32_MAX;
}

static bool read_value(const word *as, const char *text) {
    uint32_t number = 0;
    const char *end = text;
    char *after;
    check_place *place = as->to;
    switch (as->kind) {
        case NUMBER: return read_number(text, as->to, &end) && *end == 0;
        case SECONDS: *(double *)as->to = strtod(text, &after); return after != text && *after == 0;
        case TEXT: *(const char **)as->to = text; return true;
        case YES_NO: *(bool *)as->to = strcmp(text, "1") == 0; return strcmp(text, "0") == 0 || strcmp(text, "1") == 0;
        case PLACE:
            return read_number(text, &place->video, &end) && *end == ':' &&
                   read_number(end + 1, &place->position, &end) && *end == 0;
        case MODE: return hvdc_mode_of_name(text, as->to);
        case POLICY: return hvdc_policy_of_name(text, as->to);
        case STOP:
            if (!read_number(text, &number, &end) || number > 1) return false;
            *(enum hvdc_stop *)as->to = number == 0 ? HVDC_STOP_FINISH : HVDC_STOP_ABANDON;
            return true;
    }
    return false;
}

static bool read_word(const char *text, check_spec *s) {
    hvdc_trajectory *t = &s->trajectory;
    hvdc_stream_options *o = &s->options;
    const word words[] = {
        {"steps", NUMBER, &t->steps},
        {"layers", NUMBER, &t->layers},
        {"tokens", NUMBER, &t->tokens},
        {"width", NUMBER, &t->width},
        {"latent", NUMBER, &t->latent_values},
        {"text_tokens", NUMBER, &t->text_tokens},
        {"text_width", NUMBER, &t->text_width},
        {"mode", MODE, &o->mode},
        {"cut", NUMBER, &o->cut},
        {"policy", POLICY, &o->policy.policy},
        {"gpu_s", SECONDS, &o->policy.rates.gpu_block_s},
        {"npu_s", SECONDS, &o->policy.rates.npu_block_s},
        {"decode_s", SECONDS, &o->policy.rates.decode_s},
        {"handoff_s", SECONDS, &o->policy.handoff_s},
        {"deadline_s", SECONDS, &o->policy.deadline_s},
        {"from_start", YES_NO, &o->policy.from_start},
        {"share", SECONDS, &o->gpu_share},
        {"npu_sums", TEXT, &o->npu_sums},
        {"videos", NUMBER, &o->videos},
        {"slots", NUMBER, &o->slots},
        {"per_call", NUMBER, &o->blocks_per_call},
        {"stop_when_lost", YES_NO, &o->stop_when_gpu_lost},
        {"resume", YES_NO, &o->resume},
        {"start_s", SECONDS, &o->start_timeout_s},
        {"silence_s", SECONDS, &o->silence_timeout_s},
        {"npu_silence_s", SECONDS, &o->npu_silence_timeout_s},
        {"on_stop", STOP, &o->on_stop},
        {"dir", TEXT, &o->directory},
        {"trace", TEXT, &o->trace},
        {"seed", NUMBER, &s->seed},
        {"switch", NUMBER, &s->switch_step},
        {"gpu_us", NUMBER, &s->gpu_block_us},
        {"npu_us", NUMBER, &s->npu_block_us},
        {"gpu_slows", PLACE, &s->gpu_slows},
        {"npu_slows", PLACE, &s->npu_slows},
        {"wild", NUMBER, &s->wild},
        {"host_us", NUMBER, &s->host_us},
        {"decode_us", NUMBER, &s->decode_us},
        {"decodes", YES_NO, &s->decodes},
        {"load_us", NUMBER, &s->load_us},
        {"artifact", TEXT, &s->artifact},
        {"limit_kib", NUMBER, &s->limit_kib},
        {"die", PLACE, &s->die_at},
        {"die_in_advance", PLACE, &s->die_in_advance},
        {"scribble", PLACE, &s->scribble_at},
        {"exit", PLACE, &s->exit_at},
        {"hang", PLACE, &s->hang_at},
        {"gpu_fails", PLACE, &s->gpu_fail_at},
        {"open_fails", NUMBER, &s->open_fails},
        {"refuses", NUMBER, &s->refuses},
        {"open_hangs", NUMBER, &s->open_hangs},
        {"npu_fails", PLACE, &s->npu_fail_at},
        {"npu_hangs", PLACE, &s->npu_hang_at},
        {"abort", PLACE, &s->abort_at},
        {"load_fails", NUMBER, &s->load_fails_at},
        {"decode_fails", NUMBER, &s->decode_fails_at},
        {"decode_hangs", NUMBER, &s->decode_hangs_at},
        {"proxy", TEXT, &s->proxy},
    };
    const char *equals = strchr(text, '=');
    if (equals == NULL) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].key) == (size_t)(equals - text) &&
            strncmp(words[i].key, text, (size_t)(equals - text)) == 0)
            return read_value(&words[i], equals + 1);
    return false;
}

const char *check_spec_read(char *const *words, int count, check_spec *spec) {
    const check_place nowhere = {CHECK_NOWHERE, CHECK_NOWHERE};
    *spec = (check_spec){
        .trajectory =
            {.steps = 2, .layers = 2, .tokens = 3, .width = 4, .latent_values = 2, .text_tokens = 2, .text_width = 3},
        .options = {.videos = 1, .stop_fd = -1},
        .switch_step = UINT32_MAX,
        .gpu_slows = nowhere,
        .npu_slows = nowhere,
        .decodes = true,
        .die_at = nowhere,
        .die_in_advance = nowhere,
        .scribble_at = nowhere,
        .exit_at = nowhere,
        .hang_at = nowhere,
        .gpu_fail_at = nowhere,
        .npu_fail_at = nowhere,
        .npu_hang_at = nowhere,
        .abort_at = nowhere,
        .load_fails_at = CHECK_NOWHERE,
        .decode_fails_at = CHECK_NOWHERE,
        .decode_hangs_at = CHECK_NOWHERE,
    };
    for (int i = 0; i < count; i++)
        if (!read_word(words[i], spec)) return words[i];
    for (uint32_t i = 0; i < HVDC_STEPS_MAX && i < spec->trajectory.steps; i++)
        spec->trajectory.experts[i] = i >= spec->switch_step ? HVDC_EXPERT_DETAIL : HVDC_EXPERT_SEMANTIC;
    return NULL;
}
