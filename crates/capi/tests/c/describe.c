/*
 * Names of dimensions, attributes of variables and of a version, and a variable that two ranks put one behind the
 * other, in the names of C.
 */
#include "expect.h"
#include <forebay.h>
#include <string.h>

static fb_writer *rank_of_two(const char *rank)
{
    fb_options *options = NULL;
    fb_writer *writer = NULL;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "rank", rank));
    EXPECT(FB_OK, fb_options_set(options, "size", "2"));
    EXPECT(FB_OK, fb_options_set(options, "retention", "forever"));
    EXPECT(FB_OK, fb_open_writer("described", options, &writer));
    EXPECT(FB_OK, fb_options_free(&options));
    return writer;
}

static void say(fb_writer *writer)
{
    const char *const dims[2] = {"row", "column"}, *const other[2] = {"row", "col"}, *const bad[2] = {"row", ""};

    EXPECT(FB_OK, fb_describe_dims(writer, "x", 2, dims));
    EXPECT(FB_VARIABLE_MISMATCH, fb_describe_dims(writer, "x", 2, other));
    EXPECT(FB_USAGE, fb_describe_dims(writer, "y", 2, bad));
    EXPECT(FB_USAGE, fb_describe_dims(writer, "y", -1, dims));
    EXPECT(FB_USAGE, fb_describe_dims(writer, "y", 1, NULL));
    EXPECT(FB_OK, fb_describe_text(writer, "x", "units", "m"));
    EXPECT(FB_OK, fb_describe_int64(writer, "x", "level", -3));
    EXPECT(FB_OK, fb_describe_double(writer, "x", "scale", 0.5));
    EXPECT(FB_OK, fb_describe_double(writer, NULL, "time", 0.25));
    EXPECT(FB_OK, fb_describe_int64(writer, "", "cycle", 7));
    EXPECT(FB_USAGE, fb_describe_int64(writer, "x", "", 7));
}

static void look(fb_reader *reader)
{
    uint64_t extents[FB_DIMENSIONS_MAX];
    double all[3][2];
    char text[16], small[2];
    size_t needed = 0;
    int64_t number = 0;
    double value = 0;
    int dtype = 0, ndim = 0;

    EXPECT(FB_OK, fb_variable_info(reader, "x", &dtype, &ndim, extents, FB_DIMENSIONS_MAX));
    TRUE(ndim == 2 && extents[0] == 3 && extents[1] == 2);
    EXPECT(FB_OK, fb_get(reader, "x", FB_FLOAT64, 2, NULL, NULL, all, sizeof all));
    TRUE(all[0][0] == 0 && all[1][0] == 10 && all[2][1] == 13);
    EXPECT(FB_OK, fb_described_dim(reader, "x", 1, text, sizeof text, &needed));
    TRUE(strcmp(text, "column") == 0 && needed == 7);
    EXPECT(FB_BUFFER_MISMATCH, fb_described_dim(reader, "x", 0, small, sizeof small, &needed));
    TRUE(needed == 4);
    EXPECT(FB_UNKNOWN_KEY, fb_described_dim(reader, "x", 2, text, sizeof text, NULL));
    EXPECT(FB_UNKNOWN_KEY, fb_described_dim(reader, "x", -1, text, sizeof text, NULL));
    EXPECT(FB_UNKNOWN_VARIABLE, fb_described_dim(reader, "y", 0, text, sizeof text, NULL));
    EXPECT(FB_OK, fb_described_text(reader, "x", "units", text, sizeof text, NULL));
    TRUE(strcmp(text, "m") == 0);
    EXPECT(FB_UNKNOWN_KEY, fb_described_text(reader, "x", "unit", text, sizeof text, NULL));
    TRUE(strstr(fb_last_error_hint(), "did you mean `units`?") != NULL);
    EXPECT(FB_OK, fb_described_int64(reader, "x", "level", &number));
    TRUE(number == -3);
    EXPECT(FB_BUFFER_MISMATCH, fb_described_int64(reader, "x", "units", &number));
    EXPECT(FB_OK, fb_described_double(reader, "x", "scale", &value));
    TRUE(value == 0.5);
    EXPECT(FB_OK, fb_described_double(reader, NULL, "time", &value));
    TRUE(value == 0.25);
    EXPECT(FB_OK, fb_described_int64(reader, "", "cycle", &number));
    TRUE(number == 7);
    EXPECT(FB_UNKNOWN_KEY, fb_described_int64(reader, NULL, "units", &number));
}

int main(void)
{
    const uint64_t shape[2] = {FB_CONCAT, 2}, one[2] = {1, 2}, two[2] = {2, 2}, second[2] = {1, 0};
    const double first_rows[1][2] = {{0, 1}}, second_rows[2][2] = {{10, 11}, {12, 13}};
    fb_writer *ranks[2] = {rank_of_two("0"), rank_of_two("1")};
    fb_reader *reader = NULL;
    uint64_t version = 9;

    EXPECT(FB_STEP_STATE, fb_describe_text(ranks[0], "x", "units", "m"));
    EXPECT(FB_OK, fb_begin_step(ranks[1], NULL));
    EXPECT(FB_OK, fb_put(ranks[1], "x", FB_FLOAT64, 2, shape, NULL, two, second_rows));
    EXPECT(FB_OK, fb_end_step(ranks[1]));
    EXPECT(FB_OK, fb_begin_step(ranks[0], NULL));
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_put(ranks[0], "x", FB_FLOAT64, 2, shape, second, one, first_rows));
    EXPECT(FB_OK, fb_put(ranks[0], "x", FB_FLOAT64, 2, shape, NULL, one, first_rows));
    say(ranks[0]);
    EXPECT(FB_OK, fb_end_step(ranks[0]));
    EXPECT(FB_OK, fb_open_reader("described", NULL, &reader));
    EXPECT(FB_STEP, fb_begin_read(reader, 5, &version));
    look(reader);
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_STEP_STATE, fb_described_text(reader, "x", "units", NULL, 0, NULL));
    EXPECT(FB_OK, fb_close_reader(&reader));
    EXPECT(FB_OK, fb_close_writer(&ranks[0]));
    EXPECT(FB_OK, fb_close_writer(&ranks[1]));
    printf("ok\n");
    return 0;
}
