/*
 * Threads that put pieces through one writer at the same time, and whose errors do not mix. Prints "ok".
 */
#include <forebay.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, PIECES = 40 };

static const uint64_t shape[2] = {THREADS * PIECES, 8};
static fb_writer *writer;

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, fb_last_error());
        exit(1);
    }
}

static void *put_rows(void *argument)
{
    const uint64_t first = (uint64_t)(*(int *)argument) * PIECES, count[2] = {1, 8};
    uint64_t row;
    char wrong[32];

    for (row = first; row < first + PIECES; row++) {
        const uint64_t start[2] = {row, 0};
        int32_t values[8], i;
        for (i = 0; i < 8; i++)
            values[i] = (int32_t)(8 * row) + i;
        must(fb_put(writer, "rows", FB_INT32, 2, shape, start, count, values) == FB_OK, "put");
        /* An error of this thread, which the others must not see. */
        sprintf(wrong, "w%llu", (unsigned long long)first);
        must(fb_put(writer, wrong, FB_INT32, 2, shape, shape, count, values) == FB_BOX_OUTSIDE_SHAPE,
             "wrong put");
        must(strstr(fb_last_error(), wrong) != NULL, "the error is this thread's own");
    }
    return NULL;
}

int main(void)
{
    static int32_t all[THREADS * PIECES][8];
    pthread_t threads[THREADS];
    int numbers[THREADS], i;
    fb_reader *reader = NULL;

    must(fb_open_writer("threads", NULL, &writer) == FB_OK, "open");
    must(fb_begin_step(writer, NULL) == FB_OK, "begin");
    for (i = 0; i < THREADS; i++) {
        numbers[i] = i;
        must(pthread_create(&threads[i], NULL, put_rows, &numbers[i]) == 0, "thread");
    }
    for (i = 0; i < THREADS; i++)
        must(pthread_join(threads[i], NULL) == 0, "join");
    must(fb_end_step(writer) == FB_OK, "end");
    must(strcmp(fb_last_error(), "") == 0, "no error on this thread");
    must(fb_open_reader("threads", NULL, &reader) == FB_OK, "open to read");
    must(fb_begin_read(reader, -1, NULL) == FB_STEP, "begin to read");
    must(fb_get(reader, "rows", FB_INT32, 2, NULL, NULL, all, sizeof all) == FB_OK, "get");
    for (i = 0; i < THREADS * PIECES * 8; i++)
        must(all[i / 8][i % 8] == i, "element");
    must(fb_end_read(reader) == FB_OK, "end of reading");
    must(fb_close_reader(&reader) == FB_OK && fb_close_writer(&writer) == FB_OK, "close");
    puts("ok");
    return 0;
}
