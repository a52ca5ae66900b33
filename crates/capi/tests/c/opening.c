/*
 * What becomes of a space that is opened again, as C programs see it: the modes of a writer, what is refused and what
 * the text says, and a reader that waits for the writers of its own run.
 *
 *   opening first | die | second
 *
 * "first" writes two versions and ends, "die" writes two and says so by the file "died", then waits to be killed;
 * "second" is another run, which finds what these left.
 */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <string.h>
#include <unistd.h>

static fb_options *with(const char *key, const char *value)
{
    fb_options *options = NULL;

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "retention", "forever"));
    EXPECT(FB_OK, fb_options_set(options, "quota", "16MiB"));
    EXPECT(FB_OK, fb_options_set(options, "timeout", "1"));
    if (key != NULL)
        EXPECT(FB_OK, fb_options_set(options, key, value));
    return options;
}

/* Opens the space to write; the code, and the version that comes first. */
static int open_in(const char *name, fb_options *options, fb_writer **writer, uint64_t *first)
{
    int code = fb_open_writer(name, options, writer);

    EXPECT(FB_OK, fb_options_free(&options));
    if (code == FB_OK)
        EXPECT(FB_OK, fb_resume(*writer, first));
    return code;
}

static void put(fb_writer *writer, uint64_t expected)
{
    uint64_t version = 99;
    double value;

    EXPECT(FB_OK, fb_begin_step(writer, &version));
    TRUE(version == expected);
    value = (double)version;
    EXPECT(FB_OK, fb_put(writer, "x", FB_FLOAT64, 0, NULL, NULL, NULL, &value));
    EXPECT(FB_OK, fb_end_step(writer));
}

static void first(const char *name, int dies)
{
    fb_writer *writer = NULL;
    uint64_t version = 9;

    EXPECT(FB_OK, open_in(name, with(NULL, NULL), &writer, &version));
    TRUE(version == 0);
    put(writer, 0);
    put(writer, 1);
    if (dies) {
        FILE *file = fopen("died", "w");
        TRUE(file != NULL && fclose(file) == 0);
        pause();
    }
    EXPECT(FB_OK, fb_close_writer(&writer));
}

static void says(const char *part)
{
    if (strstr(fb_last_error(), part) == NULL) {
        fprintf(stderr, "`%s` is missing in: %s\n", part, fb_last_error());
        exit(1);
    }
}

static void second(void)
{
    fb_writer *writer = NULL, *again = NULL;
    fb_reader *reader = NULL, *one = NULL;
    fb_options *options;
    uint64_t version = 9;
    double value = 0;

    /* "stopped" holds two versions of a writer that was killed, which no reader has read. */
    EXPECT(FB_NAME_IN_USE, open_in("stopped", with(NULL, NULL), &writer, &version));
    says("option \"mode\" set to \"a\"");
    says("option \"replace\" set to \"true\"");
    says("versions 0 to 1");
    EXPECT(FB_OK, open_in("stopped", with("mode", "a"), &writer, &version));
    TRUE(version == 2);
    /* The handle that is open is named. */
    EXPECT(FB_NAME_IN_USE, open_in("stopped", with("mode", "a"), &again, &version));
    says("this process has space stopped open for writing");
    EXPECT(FB_OK, fb_close_writer(&writer));

    /* "done" has finished, before this run. */
    EXPECT(FB_NAME_IN_USE, open_in("done", with("mode", "x"), &writer, &version));
    says("option \"mode\" set to \"w\"");
    options = with(NULL, NULL);
    EXPECT(FB_OK, fb_open_reader("done", options, &reader));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_TIMED_OUT, fb_begin_read(reader, 0.1, &version));
    says("had finished before this reader came");
    says("option \"finished\" set to \"true\"");
    EXPECT(FB_OK, fb_open_version(reader, 1, &one));
    EXPECT(FB_OK, fb_get(one, "x", FB_FLOAT64, 0, NULL, NULL, &value, sizeof value));
    TRUE(value == 1);
    /* It is held. */
    EXPECT(FB_NAME_IN_USE, open_in("done", with(NULL, NULL), &writer, &version));
    says("holds version 1");
    EXPECT(FB_OK, fb_close_reader(&one));
    EXPECT(FB_OK, open_in("done", with(NULL, NULL), &writer, &version));
    TRUE(version == 0);
    put(writer, 0);
    EXPECT(FB_OK, fb_close_writer(&writer));
    /* The reader that waited reads what this run wrote, and that it ended. */
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    TRUE(version == 0);
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_END_OF_STREAM, fb_begin_read(reader, 10, &version));
    EXPECT(FB_OK, fb_close_reader(&reader));

    /* "kept" has finished, and is taken as it is. */
    options = with("finished", "true");
    EXPECT(FB_OK, fb_open_reader("kept", options, &reader));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_STEP, fb_begin_read(reader, 10, &version));
    TRUE(version == 0);
    EXPECT(FB_OK, fb_end_read(reader));
    EXPECT(FB_OK, fb_close_reader(&reader));

    options = with("mode", "a");
    EXPECT(FB_OK, fb_options_set(options, "replace", "true"));
    EXPECT(FB_USAGE, open_in("kept", options, &writer, &version));
}

int main(int argc, char **argv)
{
    TRUE(argc > 1);
    if (strcmp(argv[1], "first") == 0) {
        first("done", 0);
        first("kept", 0);
    } else if (strcmp(argv[1], "die") == 0) {
        first("stopped", 1);
    } else {
        second();
    }
    puts("ok");
    return 0;
}
