/* JSON and HTTP/1.1, as far as the upstream and the load generator of the benchmark need them.

   Nothing is decoded: a value is a span of the bytes that hold it. What is read here was written by programs that are
   measured, not by hostile ones; whatever is not understood is an empty span. */

#ifndef MESSAGE_H
#define MESSAGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct span {
    const char *at;
    size_t length;
};

struct buffer {
    char *data;
    size_t length, room;
};

static const struct span NOTHING = {NULL, 0};

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void reserve(struct buffer *buffer, size_t more) {
    if (buffer->length + more <= buffer->room)
        return;
    while (buffer->room < buffer->length + more)
        buffer->room = buffer->room ? buffer->room * 2 : 4096;
    buffer->data = realloc(buffer->data, buffer->room);
    if (buffer->data == NULL)
        die("realloc");
}

static void append(struct buffer *buffer, const char *data, size_t length) {
    reserve(buffer, length);
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
}

#define append_text(buffer, text) append(buffer, text, strlen(text))
#define append_span(buffer, span) append(buffer, (span).at, (span).length)

static void append_fill(struct buffer *buffer, size_t length) {
    reserve(buffer, length);
    memset(buffer->data + buffer->length, 'x', length);
    buffer->length += length;
}

static void drop_front(struct buffer *buffer, size_t length) {
    buffer->length -= length;
    memmove(buffer->data, buffer->data + length, buffer->length);
}

static int is(struct span span, const char *text) {
    return span.length == strlen(text) && memcmp(span.at, text, span.length) == 0;
}

/* JSON. `at` stands at the first byte of something, `end` behind the last byte of the text. */

static const char *skip_blank(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* Behind the string that begins here. */
static const char *skip_string(const char *at, const char *end) {
    for (at++; at < end; at++) {
        at = memchr(at, '"', end - at);
        if (at == NULL)
            return end;
        const char *escapes = at;
        while (escapes[-1] == '\\')
            escapes--;
        if ((at - escapes) % 2 == 0)
            return at + 1;
    }
    return end;
}

/* Behind the value that begins here. */
static const char *skip_value(const char *at, const char *end) {
    int depth = 0;
    do {
        at = skip_blank(at, end);
        if (at >= end)
            return end;
        if (*at == '"') {
            at = skip_string(at, end);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            depth--;
            at++;
        } else if (*at == ',' || *at == ':') {
            at++;
        } else {
            while (at < end && strchr(",:]} \t\r\n", *at) == NULL)
                at++;
        }
    } while (depth > 0);
    return at;
}

/* The value of a member of an object. */
static struct span member(struct span object, const char *name) {
    const char *end = object.at + object.length, *at = object.at;
    size_t length = strlen(name);
    if (object.at == NULL || (at = skip_blank(at, end)) >= end || *at != '{')
        return NOTHING;
    for (at = skip_blank(at + 1, end); at < end && *at == '"'; at = skip_blank(at, end)) {
        const char *key = at + 1;
        at = skip_string(at, end);
        int found = (size_t)(at - 1 - key) == length && memcmp(key, name, length) == 0;
        at = skip_blank(at, end);
        const char *value = skip_blank(at + 1, end);
        at = skip_value(value, end);
        if (found)
            return (struct span){value, at - value};
        at = skip_blank(at, end);
        if (at < end && *at == ',')
            at++;
    }
    return NOTHING;
}

/* The first item of an array, and how many it has. */
static struct span first_item(struct span array, long *count) {
    const char *end = array.at + array.length;
    struct span first = NOTHING;
    *count = 0;
    if (array.at == NULL || array.length < 2 || array.at[0] != '[')
        return NOTHING;
    for (const char *at = skip_blank(array.at + 1, end); at < end && *at != ']'; at = skip_blank(at, end)) {
        const char *value = at;
        at = skip_value(at, end);
        if ((*count)++ == 0)
            first = (struct span){value, at - value};
        at = skip_blank(at, end);
        if (at < end && *at == ',')
            at = skip_blank(at + 1, end);
    }
    return first;
}

/* The bytes between the quotes of a string. */
static struct span inside(struct span string) {
    if (string.length < 2 || string.at[0] != '"')
        return NOTHING;
    return (struct span){string.at + 1, string.length - 2};
}

static long number(struct span value, long otherwise) {
    if (value.at == NULL)
        return otherwise;
    return strtol(value.at, NULL, 10); /* a byte that is no digit follows in every text */
}

/* HTTP/1.1 */

/* The length of a head with the empty line at its end; 0 if that has not come. */
static size_t head_length(const char *data, size_t length) {
    const char *end = memmem(data, length, "\r\n\r\n", 4);
    return end == NULL ? 0 : (size_t)(end + 4 - data);
}

/* The value of a header. */
static struct span header(struct span head, const char *name) {
    const char *end = head.at + head.length;
    size_t length = strlen(name);
    for (const char *line = memchr(head.at, '\n', head.length); line != NULL; line = memchr(line, '\n', end - line)) {
        line++;
        if ((size_t)(end - line) > length && strncasecmp(line, name, length) == 0 && line[length] == ':') {
            const char *value = skip_blank(line + length + 1, end);
            const char *stop = memchr(value, '\r', end - value);
            return (struct span){value, (stop == NULL ? end : stop) - value};
        }
    }
    return NOTHING;
}

#endif
