/*
 * A file as memory in a budget: stored into and read by threads, hints, modes and errors. Prints the engine and "ok".
 *
 *   window PATH ENGINE
 */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TILE = 16384, THREADS = 4, VALUES = 1 << 20 };

#define BYTES ((uint64_t)VALUES * 8)

struct part {
    uint64_t *values;
    size_t first;
};

static void *number(void *context)
{
    const struct part *part = context;
    for (size_t i = part->first; i < VALUES; i += THREADS)
        part->values[i] = i * 3;
    return NULL;
}

static uint64_t statistic(const fb_window *window, const char *name)
{
    uint64_t value = 0;
    EXPECT(FB_OK, fb_window_statistic(window, name, &value));
    return value;
}

int main(int argc, char **argv)
{
    fb_window *window = NULL;
    pthread_t running[THREADS];
    struct part parts[THREADS];
    void *data = NULL;
    const char *engine = NULL, *why = NULL;
    uint64_t bytes = 0, wrong = 0, *values;
    const uint64_t budget = BYTES / 4;
    int file, code;

    if (argc != 3)
        return 2;
    EXPECT(FB_IO, fb_window_open(argv[1], NULL, 0, 0, budget, 0, NULL, &window));
    file = open(argv[1], O_CREAT | O_EXCL | O_RDWR, 0600);
    TRUE(file >= 0 && ftruncate(file, (off_t)BYTES) == 0 && close(file) == 0);
    code = fb_window_open(argv[1], "r+", 0, 0, budget, TILE, argv[2], &window);
    if (code == FB_NOT_POSSIBLE_HERE || code == FB_PERMISSION_DENIED) {
        printf("skipped: %s\n", fb_last_error());
        return unlink(argv[1]);
    }
    EXPECT(FB_OK, code);
    EXPECT(FB_OK, fb_window_engine(window, &engine, &why));
    TRUE(strcmp(engine, argv[2]) == 0 && *why != 0);
    EXPECT(FB_OK, fb_window_data(window, &data, &bytes));
    TRUE(bytes == BYTES);
    values = data;
    for (size_t i = 0; i < THREADS; i++) {
        parts[i].values = values;
        parts[i].first = i;
        EXPECT(0, pthread_create(&running[i], NULL, number, &parts[i]));
    }
    for (size_t i = 0; i < THREADS; i++)
        EXPECT(0, pthread_join(running[i], NULL));
    EXPECT(FB_OK, fb_window_flush(window));
    EXPECT(FB_OK, fb_window_advise(window, "will_stream", 0, BYTES));
    for (size_t i = 0; i < VALUES; i++)
        wrong += values[i] != i * 3;
    TRUE(wrong == 0);
    EXPECT(FB_OK, fb_window_advise(window, "done_with", 0, BYTES));
    EXPECT(FB_OK, fb_window_advise(window, "random", 0, 0));
    EXPECT(FB_OK, fb_window_advise(window, "prefetch", 0, 4096));
    EXPECT(FB_UNKNOWN_KEY, fb_window_advise(window, "hurry", 0, 0));
    EXPECT(FB_UNKNOWN_KEY, fb_window_statistic(window, "misses", &bytes));
    /* The kernel's pages are sent away by a thread, which may not have come by yet. */
    if (strcmp(engine, "kernel") != 0)
        TRUE(statistic(window, "evicted_bytes") > 0 && statistic(window, "written_bytes") > 0);
    TRUE(statistic(window, "failures") == 0);
    EXPECT(FB_OK, fb_window_close(&window));
    TRUE(window == NULL);
    EXPECT(FB_OK, fb_window_close(&window));

    /* Copies are not the page cache's to keep: engine "kernel" has no mode "c". */
    if (strcmp(argv[2], "kernel") == 0)
        EXPECT(FB_NOT_POSSIBLE_HERE, fb_window_open(argv[1], "c", 8, 80, 64 << 10, 4096, argv[2], &window));
    EXPECT(FB_OK, fb_window_open(argv[1], "c", 8, 80, 64 << 10, 4096, NULL, &window));
    EXPECT(FB_OK, fb_window_data(window, &data, &bytes));
    values = data;
    TRUE(bytes == 80 && values[0] == 3 && values[9] == 30);
    values[0] = 77;
    TRUE(values[0] == 77);
    EXPECT(FB_OK, fb_window_close(&window));
    EXPECT(FB_OK, fb_window_open(argv[1], NULL, 8, 80, 64 << 10, 4096, argv[2], &window));
    EXPECT(FB_OK, fb_window_data(window, &data, NULL));
    TRUE(*(const uint64_t *)data == 3);
    EXPECT(FB_OK, fb_window_close(&window));

    EXPECT(FB_USAGE, fb_window_open(argv[1], "w", 0, 0, budget, 0, NULL, &window));
    EXPECT(FB_USAGE, fb_window_open(argv[1], "r", 0, 0, budget, 5000, NULL, &window));
    EXPECT(FB_USAGE, fb_window_open(argv[1], "r", 0, 0, budget, 0, "magic", &window));
    EXPECT(FB_DAMAGED, fb_window_open(argv[1], "r", 8, BYTES, budget, 0, NULL, &window));
    EXPECT(FB_USAGE, fb_window_data(NULL, &data, NULL));
    TRUE(window == NULL);
    EXPECT(0, unlink(argv[1]));
    puts("ok");
    return 0;
}
