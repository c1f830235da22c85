/* snprintf, as far as the runtime's sentences need it. */
#include <stdio.h>

#include <stdint.h>
#include <string.h>

struct sink {
    char *to;
    size_t bytes, length;
};

static void put(struct sink *sink, char value) {
    if (sink->length + 1u < sink->bytes) sink->to[sink->length] = value;
    sink->length++;
}

static void put_text(struct sink *sink, const char *text, size_t length, size_t width, char fill) {
    for (; width > length; width--) put(sink, fill);
    for (size_t i = 0; i < length; i++) put(sink, text[i]);
}

static size_t digits(uint64_t value, uint32_t base, char out[20]) {
    char reversed[20];
    size_t count = 0;
    do {
        reversed[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0u);
    for (size_t i = 0; i < count; i++) out[i] = reversed[count - 1u - i];
    return count;
}

static size_t number(const char **format) {
    size_t value = 0;
    for (; **format >= '0' && **format <= '9'; (*format)++) value = 10u * value + (size_t)(**format - '0');
    return value;
}

/* va_list may be an array, so that it is handed on by its address. */
struct values {
    va_list list;
};

static void put_value(struct sink *sink, const char **format, struct values *values) {
    char fill = **format == '0' ? '0' : ' ', text[21];
    size_t width = number(format), precision = SIZE_MAX, length = 0;
    if (**format == '.') {
        (*format)++;
        precision = **format == '*' ? ((*format)++, (size_t)va_arg(values->list, int)) : number(format);
    }
    unsigned longs = 0;
    for (; **format == 'l' || **format == 'z'; (*format)++) longs += **format == 'l';
    const char kind = *(*format)++;
    if (kind == 's') {
        const char *given = va_arg(values->list, const char *);
        while (length < precision && given[length] != 0) length++;
        put_text(sink, given, length, width, ' ');
    } else if (kind == 'u' || kind == 'x') {
        uint64_t value = longs == 2u ? va_arg(values->list, unsigned long long) : va_arg(values->list, unsigned);
        put_text(sink, text, digits(value, kind == 'u' ? 10u : 16u, text), width, fill);
    } else if (kind == 'd' || kind == 'i') {
        int64_t value = longs == 2u ? va_arg(values->list, long long) : va_arg(values->list, int);
        text[0] = '-';
        length = digits(value < 0 ? 0u - (uint64_t)value : (uint64_t)value, 10u, text + 1);
        put_text(sink, value < 0 ? text : text + 1, length + (value < 0), width, ' ');
    } else if (kind == 'g') { /* rare, and right for those who can read it */
        double value = va_arg(values->list, double);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        put_text(sink, "FP64 0x", 7, 0, ' ');
        put_text(sink, text, digits(bits, 16u, text), 16, '0');
    } else if (kind == 'c') {
        put(sink, (char)va_arg(values->list, int));
    } else {
        put(sink, kind); /* %% */
    }
}

_Static_assert(sizeof(size_t) == sizeof(unsigned) && sizeof(long) == sizeof(int), "z and l do not widen");

int vsnprintf(char *restrict to, size_t bytes, const char *restrict format, va_list list) {
    struct sink sink = {to, bytes, 0};
    struct values values;
    const char *at = format;
    va_copy(values.list, list);
    while (*at != 0) {
        if (*at != '%') {
            put(&sink, *at++);
            continue;
        }
        at++;
        put_value(&sink, &at, &values);
    }
    va_end(values.list);
    if (bytes > 0u) to[sink.length < bytes ? sink.length : bytes - 1u] = 0;
    return (int)sink.length;
}

int snprintf(char *restrict to, size_t bytes, const char *restrict format, ...) {
    va_list values;
    va_start(values, format);
    int length = vsnprintf(to, bytes, format, values);
    va_end(values);
    return length;
}
