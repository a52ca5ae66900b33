/*
 * Every wrong call here must come back with its own code and a text; none may crash. Prints "ok" at the end.
 */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void contains(int line, const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fprintf(stderr, "line %d: no \"%s\" in: %s\n", line, part, text);
        exit(1);
    }
}

#define ERROR_SAYS(part) contains(__LINE__, fb_last_error(), (part))
#define HINT_SAYS(part) contains(__LINE__, fb_last_error_hint(), (part))

static const uint64_t shape[2] = {4, 6};
static double whole[4][6];

static void nulls(void)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    fb_reader *reader = NULL;
    fb_view *view = NULL;
    uint64_t version;
    size_t count;
    double value;
    int64_t number;
    void *memory;
    const void *seen;
    const char *text;

    TRUE(strcmp(fb_last_error(), "") == 0 && strcmp(fb_last_error_hint(), "") == 0);
    EXPECT(FB_USAGE, fb_options_new(NULL));
    ERROR_SAYS("Usage: options is NULL");
    EXPECT(FB_USAGE, fb_options_set(NULL, "rank", "0"));
    EXPECT(FB_USAGE, fb_options_free(NULL));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_USAGE, fb_open_writer(NULL, NULL, &writer));
    EXPECT(FB_USAGE, fb_open_writer("space", NULL, NULL));
    EXPECT(FB_USAGE, fb_open_writer("\xff\xfe", NULL, &writer));
    ERROR_SAYS("UTF-8");
    EXPECT(FB_USAGE, fb_begin_step(NULL, &version));
    HINT_SAYS("never opened");
    EXPECT(FB_USAGE, fb_begin_version(NULL, 0));
    EXPECT(FB_USAGE, fb_put(NULL, "T", FB_FLOAT64, 2, shape, NULL, NULL, whole));
    EXPECT(FB_USAGE, fb_reserve(NULL, "T", FB_FLOAT64, 2, shape, NULL, NULL, &memory));
    EXPECT(FB_USAGE, fb_commit(NULL, whole));
    EXPECT(FB_USAGE, fb_end_step(NULL));
    EXPECT(FB_USAGE, fb_abort_step(NULL));
    EXPECT(FB_USAGE, fb_resume(NULL, &version));
    EXPECT(FB_USAGE, fb_writer_rank(NULL, NULL, NULL));
    EXPECT(FB_USAGE, fb_writer_durability(NULL, &text));
    EXPECT(FB_USAGE, fb_attribute_set_text(NULL, "a", "b"));
    EXPECT(FB_USAGE, fb_attribute_set_int64(NULL, "a", 1));
    EXPECT(FB_USAGE, fb_attribute_set_double(NULL, "a", 1.0));
    EXPECT(FB_USAGE, fb_describe_dims(NULL, "T", 0, NULL));
    EXPECT(FB_USAGE, fb_describe_text(NULL, "T", "a", "b"));
    EXPECT(FB_USAGE, fb_describe_int64(NULL, "T", "a", 1));
    EXPECT(FB_USAGE, fb_describe_double(NULL, "T", "a", 1.0));
    EXPECT(FB_USAGE, fb_close_writer(NULL));
    EXPECT(FB_OK, fb_close_writer(&writer));
    EXPECT(FB_USAGE, fb_open_reader(NULL, NULL, &reader));
    EXPECT(FB_USAGE, fb_begin_read(NULL, 0, &version));
    EXPECT(FB_USAGE, fb_end_read(NULL));
    EXPECT(FB_USAGE, fb_wait(NULL, 0, 0));
    EXPECT(FB_USAGE, fb_open_version(NULL, 0, &reader));
    EXPECT(FB_USAGE, fb_latest(NULL, &version));
    EXPECT(FB_USAGE, fb_versions(NULL, &version, &version));
    EXPECT(FB_USAGE, fb_variable_count(NULL, &count));
    EXPECT(FB_USAGE, fb_variable_name(NULL, 0, &text));
    EXPECT(FB_USAGE, fb_variable_info(NULL, "T", NULL, NULL, NULL, 0));
    EXPECT(FB_USAGE, fb_get(NULL, "T", FB_ANY, 0, NULL, NULL, whole, sizeof whole));
    EXPECT(FB_USAGE, fb_open_view(NULL, "T", FB_ANY, 0, NULL, NULL, &view));
    EXPECT(FB_USAGE, fb_view_data(NULL, &seen, &count));
    EXPECT(FB_USAGE, fb_view_info(NULL, NULL, NULL, NULL, NULL, 0));
    EXPECT(FB_USAGE, fb_view_free(NULL));
    EXPECT(FB_OK, fb_view_free(&view));
    EXPECT(FB_USAGE, fb_attribute_get_text(NULL, "a", NULL, 0, &count));
    EXPECT(FB_USAGE, fb_attribute_get_int64(NULL, "a", &number));
    EXPECT(FB_USAGE, fb_attribute_get_double(NULL, "a", &value));
    EXPECT(FB_USAGE, fb_described_dim(NULL, "T", 0, NULL, 0, &count));
    EXPECT(FB_USAGE, fb_described_text(NULL, "T", "a", NULL, 0, &count));
    EXPECT(FB_USAGE, fb_described_int64(NULL, "T", "a", &number));
    EXPECT(FB_USAGE, fb_described_double(NULL, "T", "a", &value));
    EXPECT(FB_USAGE, fb_reader_rank(NULL, NULL, NULL));
    EXPECT(FB_USAGE, fb_close_reader(NULL));
    EXPECT(FB_OK, fb_close_reader(&reader));
    EXPECT(FB_USAGE, fb_dtype_name(FB_FLOAT64, NULL));
}

static void options_and_names(void)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    fb_reader *reader = NULL;
    const char *name = NULL;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_UNKNOWN_KEY, fb_options_set(options, "quotta", "1GiB"));
    HINT_SAYS("did you mean `quota`?");
    EXPECT(FB_UNKNOWN_KEY, fb_options_set(options, "colour", "red"));
    HINT_SAYS("retention");
    EXPECT(FB_USAGE, fb_options_set(options, "quota", "lots"));
    EXPECT(FB_USAGE, fb_options_set(options, "tier", "floppy"));
    HINT_SAYS("pmem");
    EXPECT(FB_USAGE, fb_options_set(options, "quota", NULL));
    EXPECT(FB_OK, fb_options_set(options, "timeout", "0.02"));
    EXPECT(FB_PEER_MISSING, fb_open_reader("no-writer", options, &reader));
    TRUE(reader == NULL && fb_exit_code(FB_PEER_MISSING) == 7);
    EXPECT(FB_BAD_NAME, fb_open_writer("", options, &writer));
    EXPECT(FB_BAD_NAME, fb_open_writer("..", options, &writer));
    EXPECT(FB_OK, fb_options_set(options, "rank", "2"));
    EXPECT(FB_OK, fb_options_set(options, "size", "2"));
    EXPECT(FB_USAGE, fb_open_writer("space", options, &writer));
    TRUE(writer == NULL);
    EXPECT(FB_OK, fb_options_free(&options));
    TRUE(options == NULL);

    EXPECT(8, fb_dtype_size(FB_FLOAT64));
    EXPECT(16, fb_dtype_size(FB_COMPLEX128));
    EXPECT(FB_USAGE, fb_dtype_size(99));
    EXPECT(FB_OK, fb_dtype_name(FB_BFLOAT16, &name));
    TRUE(strcmp(name, "bfloat16") == 0);
    TRUE(strcmp(fb_error_name(FB_QUOTA_FULL), "QuotaFull") == 0);
}

static void wrong_puts(fb_writer *writer)
{
    const uint64_t start[2] = {2, 0}, count[2] = {3, 6}, huge[3] = {1ull << 40, 1ull << 40, 1ull << 40};
    void *memory = NULL;
    int stranger = 0;

    EXPECT(FB_STEP_STATE, fb_put(writer, "T", FB_FLOAT64, 2, shape, NULL, NULL, whole));
    EXPECT(FB_STEP_STATE, fb_end_step(writer));
    HINT_SAYS("call fb_begin_step first");
    EXPECT(FB_OK, fb_abort_step(writer));
    EXPECT(FB_OK, fb_begin_step(writer, NULL));
    EXPECT(FB_STEP_STATE, fb_begin_step(writer, NULL));
    HINT_SAYS("call fb_end_step or fb_abort_step first");
    ERROR_SAYS("call fb_end_step or fb_abort_step first");
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_put(writer, "T", FB_FLOAT64, 2, shape, start, count, whole));
    ERROR_SAYS("T");
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_put(writer, "T", FB_FLOAT64, 3, huge, NULL, NULL, whole));
    EXPECT(FB_USAGE, fb_put(writer, "T", 99, 2, shape, NULL, NULL, whole));
    EXPECT(FB_USAGE, fb_put(writer, "T", FB_FLOAT64, -1, shape, NULL, NULL, whole));
    EXPECT(FB_USAGE, fb_put(writer, "T", FB_FLOAT64, FB_DIMENSIONS_MAX + 1, shape, NULL, NULL, whole));
    EXPECT(FB_USAGE, fb_put(writer, "T", FB_FLOAT64, 2, NULL, NULL, NULL, whole));
    ERROR_SAYS("shape is NULL");
    EXPECT(FB_USAGE, fb_put(writer, "T", FB_FLOAT64, 2, shape, NULL, NULL, NULL));
    ERROR_SAYS("data is NULL");
    EXPECT(FB_USAGE, fb_put(writer, NULL, FB_FLOAT64, 2, shape, NULL, NULL, whole));
    EXPECT(FB_BAD_NAME, fb_put(writer, "", FB_FLOAT64, 2, shape, NULL, NULL, whole));
    EXPECT(FB_USAGE, fb_commit(writer, &stranger));
    HINT_SAYS("fb_reserve");
    EXPECT(FB_OK, fb_reserve(writer, "T", FB_FLOAT64, 2, shape, NULL, NULL, &memory));
    memset(memory, 0, sizeof whole);
    EXPECT(FB_STEP_STATE, fb_end_step(writer));
    ERROR_SAYS("reservation of T");
    HINT_SAYS("fb_commit");
    EXPECT(FB_OK, fb_abort_step(writer));
    EXPECT(FB_USAGE, fb_commit(writer, memory));
}

/* A complete version 0: T whole, half of "gap", an empty piece. */
static void good_step(fb_writer *writer)
{
    const uint64_t half[2] = {2, 6}, lower[2] = {2, 0}, empty[2] = {0, 6};
    uint64_t version = 7;
    void *memory = NULL;
    int row, column;

    EXPECT(FB_OK, fb_begin_step(writer, &version));
    TRUE(version == 0);
    for (row = 0; row < 4; row++)
        for (column = 0; column < 6; column++)
            whole[row][column] = 10 * row + column;
    EXPECT(FB_OK, fb_reserve(writer, "T", FB_FLOAT64, 2, shape, NULL, half, &memory));
    TRUE(((uintptr_t)memory & 15) == 0);
    memcpy(memory, whole, sizeof whole / 2);
    EXPECT(FB_OK, fb_commit(writer, memory));
    EXPECT(FB_USAGE, fb_commit(writer, memory));
    EXPECT(FB_OK, fb_put(writer, "T", FB_FLOAT64, 2, shape, lower, NULL, whole[2]));
    EXPECT(FB_OK, fb_put(writer, "T", FB_FLOAT64, 2, shape, NULL, empty, NULL));
    EXPECT(FB_OK, fb_put(writer, "gap", FB_FLOAT64, 2, shape, NULL, half, whole));
    EXPECT(FB_OK, fb_attribute_set_text(writer, "unit", "kelvin"));
    EXPECT(FB_OK, fb_attribute_set_int64(writer, "cells", 24));
    EXPECT(FB_OK, fb_attribute_set_double(writer, "dt", 0.5));
    EXPECT(FB_OK, fb_end_step(writer));
}

static void wrong_gets(fb_reader *reader)
{
    const uint64_t start[2] = {1, 2}, count[2] = {2, 3}, beyond[2] = {1, 5};
    uint64_t extents[FB_DIMENSIONS_MAX];
    fb_view *view = NULL;
    const void *memory = NULL;
    const char *name = NULL;
    double box[2][3];
    size_t many = 0, bytes = 0;
    int dtype = 0, ndim = 0;

    EXPECT(FB_OK, fb_variable_count(reader, &many));
    TRUE(many == 2);
    EXPECT(FB_OK, fb_variable_name(reader, 0, &name));
    TRUE(strcmp(name, "T") == 0 || strcmp(name, "gap") == 0);
    EXPECT(FB_USAGE, fb_variable_name(reader, 2, &name));
    EXPECT(FB_OK, fb_variable_info(reader, "T", &dtype, &ndim, extents, FB_DIMENSIONS_MAX));
    TRUE(dtype == FB_FLOAT64 && ndim == 2 && extents[0] == 4 && extents[1] == 6);
    ndim = 0;
    EXPECT(FB_BUFFER_MISMATCH, fb_variable_info(reader, "T", &dtype, &ndim, extents, 1));
    TRUE(ndim == 2);
    EXPECT(FB_UNKNOWN_VARIABLE, fb_variable_info(reader, "TT", &dtype, &ndim, extents, FB_DIMENSIONS_MAX));
    EXPECT(FB_UNKNOWN_VARIABLE, fb_get(reader, "U", FB_ANY, 0, NULL, NULL, whole, sizeof whole));
    EXPECT(FB_BUFFER_MISMATCH, fb_get(reader, "T", FB_FLOAT32, 2, NULL, NULL, whole, sizeof whole));
    ERROR_SAYS("float64");
    EXPECT(FB_BUFFER_MISMATCH, fb_get(reader, "T", FB_FLOAT64, 2, NULL, NULL, whole, sizeof whole - 1));
    EXPECT(FB_USAGE, fb_get(reader, "T", FB_FLOAT64, 2, NULL, NULL, NULL, sizeof whole));
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_get(reader, "T", FB_FLOAT64, 2, beyond, count, box, sizeof box));
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_get(reader, "T", FB_FLOAT64, 1, start, count, box, sizeof box));
    EXPECT(FB_BOX_NOT_COVERED, fb_get(reader, "gap", FB_FLOAT64, 2, NULL, NULL, whole, sizeof whole));
    EXPECT(FB_NOT_CONTIGUOUS, fb_open_view(reader, "T", FB_FLOAT64, 2, NULL, NULL, &view));
    HINT_SAYS("use fb_get,");
    TRUE(view == NULL);
    EXPECT(FB_OK, fb_get(reader, "T", FB_FLOAT64, 2, start, count, box, sizeof box));
    TRUE(box[0][0] == 12 && box[0][2] == 14 && box[1][0] == 22 && box[1][2] == 24);
    {
        const uint64_t row[2] = {3, 0}, one[2] = {1, 6};
        uint64_t version = 9;
        EXPECT(FB_OK, fb_open_view(reader, "T", FB_ANY, 2, row, one, &view));
        EXPECT(FB_OK, fb_view_data(view, &memory, &bytes));
        TRUE(bytes == 6 * sizeof(double) && ((const double *)memory)[5] == 35);
        EXPECT(FB_OK, fb_view_info(view, &version, &dtype, &ndim, extents, FB_DIMENSIONS_MAX));
        TRUE(version == 0 && dtype == FB_FLOAT64 && ndim == 2 && extents[0] == 1 && extents[1] == 6);
        EXPECT(FB_BUFFER_MISMATCH, fb_view_info(view, NULL, NULL, NULL, extents, 1));
    }
    EXPECT(FB_OK, fb_end_read(reader));
    /* The view outlives the step. */
    TRUE(((const double *)memory)[0] == 30);
    EXPECT(FB_OK, fb_view_free(&view));
    TRUE(view == NULL);
    EXPECT(FB_STEP_STATE, fb_end_read(reader));
    EXPECT(FB_STEP_STATE, fb_get(reader, "T", FB_FLOAT64, 2, NULL, NULL, whole, sizeof whole));
}

static void attributes(fb_reader *reader)
{
    char small[3], text[16];
    size_t needed = 0;
    int64_t number = 0;
    double value = 0;

    EXPECT(FB_BUFFER_MISMATCH, fb_attribute_get_text(reader, "unit", NULL, 0, &needed));
    TRUE(needed == 7);
    EXPECT(FB_BUFFER_MISMATCH, fb_attribute_get_text(reader, "unit", small, sizeof small, NULL));
    EXPECT(FB_OK, fb_attribute_get_text(reader, "unit", text, sizeof text, NULL));
    TRUE(strcmp(text, "kelvin") == 0);
    EXPECT(FB_UNKNOWN_KEY, fb_attribute_get_text(reader, "units", text, sizeof text, NULL));
    HINT_SAYS("did you mean `unit`?");
    EXPECT(FB_OK, fb_attribute_get_int64(reader, "cells", &number));
    TRUE(number == 24);
    EXPECT(FB_OK, fb_attribute_get_double(reader, "dt", &value));
    TRUE(value == 0.5);
    EXPECT(FB_OK, fb_attribute_get_double(reader, "cells", &value));
    TRUE(value == 24.0);
    EXPECT(FB_BUFFER_MISMATCH, fb_attribute_get_int64(reader, "dt", &number));
    EXPECT(FB_BUFFER_MISMATCH, fb_attribute_get_text(reader, "dt", text, sizeof text, NULL));
}

static fb_writer *rank_of_two(const char *rank)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "rank", rank));
    EXPECT(FB_OK, fb_options_set(options, "size", "2"));
    EXPECT(FB_OK, fb_open_writer("two", options, &writer));
    EXPECT(FB_OK, fb_options_set(options, "size", "3"));
    EXPECT(FB_OK, fb_options_set(options, "rank", "2"));
    {
        fb_writer *third = NULL;
        EXPECT(FB_GROUP_MISMATCH, fb_open_writer("two", options, &third));
    }
    EXPECT(FB_OK, fb_options_free(&options));
    return writer;
}

/* Ranks that disagree about a variable: the second one is told. */
static void disagreement(void)
{
    const uint64_t half[2] = {2, 6}, lower[2] = {2, 0}, other[2] = {4, 7};
    fb_writer *first = rank_of_two("0"), *second = rank_of_two("1");

    EXPECT(FB_OK, fb_begin_step(first, NULL));
    EXPECT(FB_OK, fb_begin_step(second, NULL));
    EXPECT(FB_OK, fb_put(first, "T", FB_FLOAT64, 2, shape, NULL, half, whole));
    EXPECT(FB_VARIABLE_MISMATCH, fb_put(second, "T", FB_FLOAT32, 2, shape, lower, half, whole));
    EXPECT(FB_VARIABLE_MISMATCH, fb_put(second, "T", FB_FLOAT64, 2, other, lower, half, whole));
    EXPECT(FB_OK, fb_put(second, "T", FB_FLOAT64, 2, shape, lower, half, whole));
    EXPECT(FB_OK, fb_end_step(first));
    EXPECT(FB_OK, fb_end_step(second));
    EXPECT(FB_OK, fb_close_writer(&first));
    EXPECT(FB_OK, fb_close_writer(&second));
}

/* A program that was started again a step back: what is complete is skipped or refused, then it goes on. */
static void restarted(void)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    fb_reader *reader = NULL, *one = NULL, *zero = NULL;
    double value = 1.5;
    uint64_t version = 9;
    void *memory = NULL;

    EXPECT(FB_OK, fb_open_writer("again", NULL, &writer));
    EXPECT(FB_OK, fb_begin_step(writer, NULL));
    EXPECT(FB_OK, fb_put(writer, "x", FB_FLOAT64, 0, NULL, NULL, NULL, &value));
    EXPECT(FB_OK, fb_end_step(writer));
    EXPECT(FB_OK, fb_close_writer(&writer));

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "mode", "a"));
    EXPECT(FB_OK, fb_open_writer("again", options, &writer));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_SKIPPED, fb_begin_version(writer, 0));
    value = -1;
    EXPECT(FB_OK, fb_put(writer, "x", FB_FLOAT64, 0, NULL, NULL, NULL, &value));
    EXPECT(FB_OK, fb_reserve(writer, "x", FB_FLOAT64, 0, NULL, NULL, NULL, &memory));
    memcpy(memory, &value, sizeof value);
    EXPECT(FB_OK, fb_commit(writer, memory));
    EXPECT(FB_OK, fb_end_step(writer));
    EXPECT(FB_OK, fb_resume(writer, &version));
    TRUE(version == 1);
    value = 2.5;
    EXPECT(FB_OK, fb_begin_step(writer, &version));
    TRUE(version == 1);
    EXPECT(FB_OK, fb_put(writer, "x", FB_FLOAT64, 0, NULL, NULL, NULL, &value));
    EXPECT(FB_OK, fb_end_step(writer));
    EXPECT(FB_OK, fb_close_writer(&writer));

    EXPECT(FB_OK, fb_open_reader("again", NULL, &reader));
    EXPECT(FB_STEP, fb_begin_read(reader, -1, &version));
    TRUE(version == 0);
    EXPECT(FB_OK, fb_open_version(reader, 1, &one));
    EXPECT(FB_OK, fb_open_version(reader, 0, &zero));
    EXPECT(FB_OK, fb_get(one, "x", FB_FLOAT64, 0, NULL, NULL, &value, sizeof value));
    TRUE(value == 2.5);
    EXPECT(FB_OK, fb_get(zero, "x", FB_FLOAT64, 0, NULL, NULL, &value, sizeof value));
    TRUE(value == 1.5);
    EXPECT(FB_OK, fb_get(reader, "x", FB_FLOAT64, 0, NULL, NULL, &value, sizeof value));
    TRUE(value == 1.5);
    EXPECT(FB_STEP_STATE, fb_begin_read(one, -1, &version));
    HINT_SAYS("call fb_end_read first");
    EXPECT(FB_OK, fb_end_read(one));
    EXPECT(FB_STEP_STATE, fb_get(one, "x", FB_FLOAT64, 0, NULL, NULL, &value, sizeof value));
    HINT_SAYS("call fb_begin_read to begin reading");
    EXPECT(FB_END_OF_STREAM, fb_begin_read(one, -1, &version));
    EXPECT(FB_OK, fb_close_reader(&one));
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_STEP, fb_begin_read(reader, -1, &version));
    TRUE(version == 1);
    EXPECT(FB_TIMED_OUT, fb_open_version(reader, 7, &one));
    HINT_SAYS("no further version will come");
    TRUE(one == NULL);
    EXPECT(FB_OK, fb_close_reader(&reader));
    EXPECT(FB_OK, fb_get(zero, "x", FB_FLOAT64, 0, NULL, NULL, &value, sizeof value));
    TRUE(value == 1.5);
    EXPECT(FB_OK, fb_close_reader(&zero));
}

/* "last:3" keeps three versions; an open version, the end of the stream and success have numbers of their own. */
static void kept(void)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    fb_reader *reader = NULL;
    uint64_t version = 0, begin = 9, end = 9;
    int status, steps = 0, i;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "retention", "last:3"));
    EXPECT(FB_OK, fb_options_set(options, "quota", "16MiB"));
    EXPECT(FB_OK, fb_open_writer("kept", options, &writer));
    for (i = 0; i < 10; i++) {
        double value = i;
        EXPECT(FB_OK, fb_begin_step(writer, NULL));
        EXPECT(FB_OK, fb_put(writer, "x", FB_FLOAT64, 0, NULL, NULL, NULL, &value));
        EXPECT(FB_OK, fb_end_step(writer));
    }
    EXPECT(FB_OK, fb_close_writer(&writer));
    EXPECT(FB_OK, fb_open_reader("kept", NULL, &reader));
    EXPECT(FB_OK, fb_versions(reader, &begin, &end));
    TRUE(begin == 7 && end == 10);
    while ((status = fb_begin_read(reader, 10, &version)) == FB_STEP) {
        EXPECT(FB_OK, fb_end_read(reader));
        steps++;
    }
    TRUE(status == FB_END_OF_STREAM && steps == 3 && version == 9);
    TRUE(FB_STEP > 0 && FB_END_OF_STREAM > 0 && FB_STEP != FB_END_OF_STREAM && FB_OK == 0);
    EXPECT(FB_OK, fb_close_reader(&reader));
    EXPECT(FB_OK, fb_options_free(&options));
}

/* What the environment says of ranks, and variables that are none of Forebay's. */
static void environment(void)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;

    setenv("FOREBAY_RUN", "/tmp/no-run", 1);
    setenv("FOREBAY_RANK", "0", 1);
    setenv("FOREBAY_SIZE", "1", 1);
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    EXPECT(FB_UNKNOWN_ENVIRONMENT, fb_open_writer("both", NULL, &writer));
    ERROR_SAYS("FOREBAY_RANK=0, FOREBAY_SIZE=1");
    ERROR_SAYS("OMPI_COMM_WORLD_SIZE=4");
    HINT_SAYS("set the options \"rank\" and \"size\"");
    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "rank", "0"));
    EXPECT(FB_OK, fb_options_set(options, "size", "1"));
    setenv("FOREBAY_ROOT", "/opt/forebay", 1);
    EXPECT(FB_OK, fb_open_writer("both", options, &writer));
    EXPECT(FB_OK, fb_close_writer(&writer));
    EXPECT(FB_OK, fb_options_free(&options));
    unsetenv("FOREBAY_RUN");
    unsetenv("FOREBAY_RANK");
    unsetenv("FOREBAY_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("FOREBAY_ROOT");
}

/* Opens reader group "viz" of a space. */
static fb_reader *viz(const char *space)
{
    fb_options *options = NULL;
    fb_reader *reader = NULL;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "group", "viz"));
    EXPECT(FB_OK, fb_open_reader(space, options, &reader));
    EXPECT(FB_OK, fb_options_free(&options));
    return reader;
}

/* Puts and ends so many versions. */
static void put_versions(fb_writer *writer, int versions)
{
    static double values[20000];

    while (versions-- > 0) {
        uint64_t shape[1] = {20000};
        EXPECT(FB_OK, fb_begin_step(writer, NULL));
        EXPECT(FB_OK, fb_put(writer, "x", FB_FLOAT64, 1, shape, NULL, NULL, values));
        EXPECT(FB_OK, fb_end_step(writer));
    }
}

/* A group that is opened again goes on where it stopped; what went without it is counted; one that left begins anew. */
static void reopened(void)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    fb_reader *reader;
    uint64_t version = 0, missed = 9, begin = 0, end = 0;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "quota", "4MiB"));
    EXPECT(FB_OK, fb_options_set(options, "readers", "viz:1"));
    EXPECT(FB_OK, fb_options_set(options, "absent", "drop"));
    EXPECT(FB_USAGE, fb_options_set(options, "absent", "maybe"));
    EXPECT(FB_OK, fb_open_writer("reopened", options, &writer));
    put_versions(writer, 3);
    reader = viz("reopened");
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    EXPECT(FB_OK, fb_close_reader(&reader));
    reader = viz("reopened");
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    EXPECT(FB_OK, fb_missed(reader, &missed));
    TRUE(version == 1 && missed == 0);
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_OK, fb_close_reader(&reader));
    put_versions(writer, 100);
    reader = viz("reopened");
    EXPECT(FB_OK, fb_versions(reader, &begin, &end));
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    EXPECT(FB_OK, fb_missed(reader, &missed));
    TRUE(begin > 2 && version == begin && missed == begin - 2);
    EXPECT(FB_USAGE, fb_missed(reader, NULL));
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_OK, fb_leave_reader(&reader));
    TRUE(reader == NULL);
    EXPECT(FB_OK, fb_leave_reader(&reader));
    reader = viz("reopened");
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    EXPECT(FB_OK, fb_missed(reader, &missed));
    TRUE(version == begin && missed == 0);
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_OK, fb_close_reader(&reader));
    EXPECT(FB_OK, fb_close_writer(&writer));
    EXPECT(FB_OK, fb_options_free(&options));
}

/* Handles do not survive a fork, but the parent's do not suffer from it. */
static void forked(fb_writer *writer)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        EXPECT(FB_FORKED_HANDLE, fb_begin_step(writer, NULL));
        EXPECT(FB_FORKED_HANDLE, fb_close_writer(&writer));
        _exit(writer == NULL ? 0 : 1);
    }
    TRUE(waitpid(child, &status, 0) == child);
    TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    fb_writer *writer = NULL, *second = NULL;
    fb_reader *reader = NULL, *one = NULL;
    uint64_t version = 0, begin = 9, end = 9;
    uint32_t rank = 9, size = 9;
    const char *durability = NULL;

    nulls();
    options_and_names();
    disagreement();
    restarted();
    kept();
    environment();
    reopened();
    EXPECT(FB_OK, fb_open_writer("space", NULL, &writer));
    EXPECT(FB_NAME_IN_USE, fb_open_writer("space", NULL, &second));
    TRUE(second == NULL);
    EXPECT(FB_OK, fb_writer_rank(writer, &rank, &size));
    TRUE(rank == 0 && size == 1);
    EXPECT(FB_OK, fb_writer_durability(writer, &durability));
    contains(__LINE__, durability, "crash");
    EXPECT(FB_OK, fb_open_reader("space", NULL, &reader));
    EXPECT(FB_NOT_YET, fb_latest(reader, &version));
    EXPECT(FB_TIMED_OUT, fb_begin_read(reader, 0, &version));
    EXPECT(FB_TIMED_OUT, fb_wait(reader, 0, 0.01));
    EXPECT(FB_TIMED_OUT, fb_open_version(reader, 0, &one));
    HINT_SAYS("fb_wait() blocks");
    wrong_puts(writer);
    good_step(writer);
    EXPECT(FB_VERSION_EXISTS, fb_begin_version(writer, 0));
    HINT_SAYS("fb_begin_step opens");
    HINT_SAYS("the option \"mode\" set to \"a\"");
    EXPECT(FB_VERSION_OUT_OF_ORDER, fb_begin_version(writer, 5));
    EXPECT(FB_OK, fb_wait(reader, 0, -1));
    EXPECT(FB_OK, fb_latest(reader, &version));
    EXPECT(FB_OK, fb_versions(reader, &begin, &end));
    TRUE(version == 0 && begin == 0 && end == 1);
    EXPECT(FB_STEP, fb_begin_read(reader, -1, &version));
    TRUE(version == 0);
    EXPECT(FB_STEP_STATE, fb_begin_read(reader, 0, &version));
    wrong_gets(reader);
    attributes(reader);
    forked(writer);
    EXPECT(FB_TIMED_OUT, fb_begin_read(reader, 0, &version));
    EXPECT(FB_OK, fb_begin_step(writer, &version));
    EXPECT(FB_OK, fb_abort_step(writer));
    EXPECT(FB_OK, fb_close_writer(&writer));
    TRUE(writer == NULL);
    EXPECT(FB_OK, fb_close_writer(&writer));
    EXPECT(FB_END_OF_STREAM, fb_begin_read(reader, -1, &version));
    EXPECT(FB_OK, fb_close_reader(&reader));
    puts("ok");
    return 0;
}
