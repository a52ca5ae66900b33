/*
 * A writer that the test kills inside its second step, its fellow, and a reader that must be told.
 *
 *   killed NAME writer 0 | writer 1 | reader
 *
 * Files "ready-0", "ready-1" and "reading" in the current folder tell the test how far each one is.
 */
#define _POSIX_C_SOURCE 200809L
#include <forebay.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t shape[1] = {2000};

static int check(int code, const char *doing)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", doing, fb_last_error());
        exit(fb_exit_code(code));
    }
    return code;
}

static void mark(const char *name)
{
    FILE *file = fopen(name, "w");
    if (file == NULL || fclose(file) != 0)
        exit(1);
}

static int writer(const char *name, const char *rank)
{
    const uint64_t start[1] = {rank[0] == '0' ? 0 : 1000}, count[1] = {1000};
    static double half[1000];
    fb_options *options = NULL;
    fb_writer *out = NULL;
    uint64_t version;
    int i, step;

    check(fb_options_new(&options), "options");
    check(fb_options_set(options, "rank", rank), "rank");
    check(fb_options_set(options, "size", "2"), "size");
    check(fb_open_writer(name, options, &out), "open");
    check(fb_options_free(&options), "options");
    for (step = 0; step < 2; step++) {
        check(fb_begin_step(out, &version), "begin");
        for (i = 0; i < 1000; i++)
            half[i] = (double)version;
        check(fb_put(out, "T", FB_FLOAT64, 1, shape, start, count, half), "put");
        if (step == 1 && rank[0] == '1')
            break;
        check(fb_end_step(out), "end");
    }
    mark(rank[0] == '0' ? "ready-0" : "ready-1");
    /* Only a signal ends this. */
    return pause() == -1 ? 1 : 0;
}

static int reader(const char *name)
{
    static double whole[2000];
    fb_reader *in = NULL;
    uint64_t version = 9;
    int code, i;

    check(fb_open_reader(name, NULL, &in), "open");
    check(fb_begin_read(in, -1, &version), "first version");
    check(fb_get(in, "T", FB_FLOAT64, 1, NULL, NULL, whole, sizeof whole), "get");
    check(fb_end_read(in), "end");
    mark("reading");
    code = fb_begin_read(in, -1, &version);
    if (code != FB_PRODUCER_DIED) {
        fprintf(stderr, "%s instead of ProducerDied: %s\n", fb_error_name(code), fb_last_error());
        return 1;
    }
    puts(fb_last_error());
    /* What was complete is still whole; what was not is not there. */
    if (fb_latest(in, &version) != FB_OK || version != 0 || fb_wait(in, 1, 0) >= 0)
        return 1;
    for (i = 0; i < 2000; i++)
        if (whole[i] != 0.0)
            return 1;
    return check(fb_close_reader(&in), "close");
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[2], "writer") == 0)
        return writer(argv[1], argv[3]);
    return argc == 3 ? reader(argv[1]) : 2;
}
