/*
 * The coupled stream of stream_shape.py through the C interface of Forebay.
 *
 * usage: forebay_stream write|read NAME BYTES OBJECTS STEPS WARM SOURCE-BYTES [many]
 *
 * One call an object each way, or with `many` one call a step; objects come out into memory of the reader, as SST's
 * reader has it. The same walk through the source, the same clock and the same check of the content as in Python.
 * Prints one JSON object: begin_ns of the writer's first timed step, or end_ns of the reader's last.
 * Built by `cargo xtask bench put` with the C compiler that is there.
 */
#define _POSIX_C_SOURCE 200809L
#include <forebay.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 32, ENDS = 64 };

struct shape {
    const char *name;
    size_t bytes, objects, steps, warm, source_bytes;
    int many;
    /* Of the objects. */
    const char **names;
    /* Words that differ everywhere. */
    uint64_t *source;
};

static void must(int code, const char *call)
{
    if (code == FB_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, fb_last_error());
    exit(1);
}

#define MUST(call) must((call), #call)

static void *memory(size_t bytes)
{
    void *got = malloc(bytes);
    if (got == NULL) {
        perror("malloc");
        exit(1);
    }
    return got;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void prepare(struct shape *shape)
{
    size_t whole = shape->bytes * shape->objects, i;
    char *texts = memory(shape->objects * NAME_BYTES);

    if (shape->source_bytes < whole)
        shape->source_bytes = whole;
    shape->source = memory(shape->source_bytes);
    for (i = 0; i < shape->source_bytes / 8; i++)
        shape->source[i] = i * 0x9E3779B97F4A7C15u;
    shape->names = memory(shape->objects * sizeof *shape->names);
    for (i = 0; i < shape->objects; i++) {
        snprintf(texts + i * NAME_BYTES, NAME_BYTES, "object_%05zu", i);
        shape->names[i] = texts + i * NAME_BYTES;
    }
}

/* What one step holds; its place in the source moves on from step to step and wraps to its beginning. */
static const char *part(const struct shape *shape, size_t step)
{
    size_t whole = shape->bytes * shape->objects;
    return (const char *)shape->source + step % (shape->source_bytes / whole) * whole;
}

static void put_step(fb_writer *writer, const struct shape *shape, const char *from)
{
    const uint64_t extent = shape->bytes / 8;
    size_t i;

    if (shape->many) {
        MUST(fb_put_many(writer, shape->objects, shape->names, FB_INT64, 1, &extent, from));
        return;
    }
    for (i = 0; i < shape->objects; i++)
        MUST(fb_put(writer, shape->names[i], FB_INT64, 1, &extent, NULL, NULL, from + i * shape->bytes));
}

static int write_all(const struct shape *shape)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    uint64_t begin_ns = 0;
    char quota[32];
    size_t step;

    snprintf(quota, sizeof quota, "%zu", 6 * shape->bytes * shape->objects + ((size_t)512 << 20));
    MUST(fb_options_new(&options));
    MUST(fb_options_set(options, "quota", quota));
    MUST(fb_options_set(options, "readers", "bench:1"));
    MUST(fb_open_writer(shape->name, options, &writer));
    MUST(fb_options_free(&options));
    for (step = 0; step < shape->warm + shape->steps; step++) {
        if (step == shape->warm)
            begin_ns = now_ns();
        MUST(fb_begin_step(writer, NULL));
        put_step(writer, shape, part(shape, step));
        MUST(fb_end_step(writer));
    }
    MUST(fb_close_writer(&writer));
    printf("{\"begin_ns\": %" PRIu64 "}\n", begin_ns);
    return 0;
}

static void get_step(fb_reader *reader, const struct shape *shape, char *to)
{
    size_t i;

    if (shape->many) {
        MUST(fb_get_many(reader, shape->objects, shape->names, FB_INT64, to, shape->bytes * shape->objects));
        return;
    }
    for (i = 0; i < shape->objects; i++)
        MUST(fb_get(reader, shape->names[i], FB_INT64, 1, NULL, NULL, to + i * shape->bytes, shape->bytes));
}

static int read_all(const struct shape *shape)
{
    size_t whole = shape->bytes * shape->objects, stride, step, at, wrong = 0;
    fb_options *options = NULL;
    fb_reader *reader = NULL;
    uint64_t end_ns = 0;
    char *out = memory(whole);

    memset(out, 1, whole);
    MUST(fb_options_new(&options));
    MUST(fb_options_set(options, "component", "bench"));
    MUST(fb_open_reader(shape->name, options, &reader));
    MUST(fb_options_free(&options));
    stride = shape->objects < ENDS ? shape->bytes : shape->objects / ENDS * shape->bytes;
    for (step = 0; step < shape->warm + shape->steps; step++) {
        const char *expected = part(shape, step);
        MUST(fb_begin_read(reader, -1, NULL));
        get_step(reader, shape, out);
        MUST(fb_end_read(reader));
        end_ns = now_ns();
        for (at = 0; at < whole; at += stride)
            wrong += memcmp(out + at, expected + at, 8) != 0;
        if (step + 1 == shape->warm + shape->steps)
            wrong += memcmp(out, expected, whole) != 0;
    }
    MUST(fb_close_reader(&reader));
    printf("{\"end_ns\": %" PRIu64 ", \"wrong\": %zu}\n", end_ns, wrong);
    return wrong != 0;
}

static size_t number(const char *word)
{
    return (size_t)strtoull(word, NULL, 10);
}

int main(int count, char **words)
{
    struct shape shape = {0};

    if (count < 8 || count > 9 || (count == 9 && strcmp(words[8], "many") != 0)) {
        fprintf(stderr, "usage: forebay_stream write|read NAME BYTES OBJECTS STEPS WARM SOURCE-BYTES [many]\n");
        return 2;
    }
    shape.name = words[2];
    shape.bytes = number(words[3]);
    shape.objects = number(words[4]);
    shape.steps = number(words[5]);
    shape.warm = number(words[6]);
    shape.source_bytes = number(words[7]);
    shape.many = count == 9;
    if (shape.bytes < 8 || shape.objects == 0 || shape.steps == 0) {
        fprintf(stderr, "forebay_stream: objects of 8 bytes at least, and one at least in one step at least\n");
        return 2;
    }
    prepare(&shape);
    return strcmp(words[1], "write") == 0 ? write_all(&shape) : read_all(&shape);
}
