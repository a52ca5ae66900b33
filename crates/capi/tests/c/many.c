/*
 * Many small objects in one call: they come back as they were put, and an error names the object.
 */
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBJECTS = 1000, WORDS = 6 };

static int failures;

static void expect(int line, int wanted, int got)
{
    if (wanted != got) {
        fprintf(stderr, "line %d: %d, not %d: %s\n", line, got, wanted, fb_last_error());
        failures++;
    }
}

#define EXPECT(wanted, call) expect(__LINE__, wanted, call)
#define TRUE(condition) expect(__LINE__, 1, !!(condition))

static double put[OBJECTS][WORDS], got[OBJECTS][WORDS];
static char texts[OBJECTS][16];
static const char *names[OBJECTS];

int main(void)
{
    const uint64_t shape[2] = {2, 3};
    fb_writer *writer = NULL;
    fb_reader *reader = NULL;
    uint64_t version = 9;
    int i, j;

    for (i = 0; i < OBJECTS; i++) {
        sprintf(texts[i], "block_%05d", i);
        names[i] = texts[i];
        for (j = 0; j < WORDS; j++)
            put[i][j] = 10 * i + j;
    }
    EXPECT(FB_OK, fb_open_writer("many", NULL, &writer));
    EXPECT(FB_STEP_STATE, fb_put_many(writer, OBJECTS, names, FB_FLOAT64, 2, shape, put));
    EXPECT(FB_OK, fb_begin_step(writer, &version));
    EXPECT(FB_USAGE, fb_put_many(NULL, OBJECTS, names, FB_FLOAT64, 2, shape, put));
    EXPECT(FB_USAGE, fb_put_many(writer, OBJECTS, NULL, FB_FLOAT64, 2, shape, put));
    EXPECT(FB_USAGE, fb_put_many(writer, OBJECTS, names, 4711, 2, shape, put));
    EXPECT(FB_USAGE, fb_put_many(writer, OBJECTS, names, FB_FLOAT64, 2, NULL, put));
    EXPECT(FB_USAGE, fb_put_many(writer, OBJECTS, names, FB_FLOAT64, 2, shape, NULL));
    EXPECT(FB_OK, fb_put_many(writer, 0, NULL, FB_FLOAT64, 2, shape, NULL));
    names[7] = NULL;
    EXPECT(FB_USAGE, fb_put_many(writer, OBJECTS, names, FB_FLOAT64, 2, shape, put));
    TRUE(strstr(fb_last_error(), "object=7") != NULL);
    names[7] = "";
    EXPECT(FB_BAD_NAME, fb_put_many(writer, OBJECTS, names, FB_FLOAT64, 2, shape, put));
    TRUE(strstr(fb_last_error(), "object=7") != NULL);
    names[7] = texts[7];
    /* The seven before it are there; now the rest. */
    EXPECT(FB_OK, fb_put_many(writer, OBJECTS - 7, names + 7, FB_FLOAT64, 2, shape, put + 7));
    EXPECT(FB_OK, fb_end_step(writer));

    EXPECT(FB_OK, fb_open_reader("many", NULL, &reader));
    EXPECT(FB_STEP_STATE, fb_get_many(reader, OBJECTS, names, FB_FLOAT64, got, sizeof got));
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    EXPECT(FB_BUFFER_MISMATCH, fb_get_many(reader, OBJECTS, names, FB_FLOAT32, got, sizeof got));
    EXPECT(FB_BUFFER_MISMATCH, fb_get_many(reader, OBJECTS, names, FB_FLOAT64, got, sizeof got - 8));
    EXPECT(FB_BUFFER_MISMATCH, fb_get_many(reader, OBJECTS / 2, names, FB_ANY, got, sizeof got));
    EXPECT(FB_USAGE, fb_get_many(reader, OBJECTS, names, FB_FLOAT64, NULL, sizeof got));
    EXPECT(FB_OK, fb_get_many(reader, OBJECTS, names, FB_FLOAT64, got, sizeof got));
    TRUE(memcmp(put, got, sizeof put) == 0);
    memset(got, 0, sizeof got);
    EXPECT(FB_OK, fb_get_many(reader, OBJECTS, names, FB_ANY, got, sizeof got));
    TRUE(memcmp(put, got, sizeof put) == 0);
    names[3] = "missing";
    EXPECT(FB_UNKNOWN_VARIABLE, fb_get_many(reader, OBJECTS, names, FB_FLOAT64, got, sizeof got));
    TRUE(strstr(fb_last_error(), "object=3") != NULL);
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_OK, fb_close_reader(&reader));
    EXPECT(FB_OK, fb_close_writer(&writer));
    if (failures == 0)
        printf("ok\n");
    return failures != 0;
}
