#include "hvdc/json.h"

void hvdc_json_text(FILE *file, const char *text) {
    (void)fputc('"', file);
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            (void)fprintf(file, "\\%c", c);
        else if (c < 0x20)
            (void)fprintf(file, "\\u%04x", (unsigned)c);
        else
            (void)fputc(c, file);
    }
    (void)fputc('"', file);
}
