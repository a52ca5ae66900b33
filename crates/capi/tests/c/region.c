/*
 * A mapped region: stores, persisted ranges, modes, sizes and errors; then a child that is killed. Prints "ok".
 *
 *   region TIER PATH
 */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100003, PIECE = 1000 };

static void nulls_and_ranges(const char *path)
{
    fb_region *region = NULL;
    void *data;
    char byte = 1;

    EXPECT(FB_USAGE, fb_map(NULL, BYTES, NULL, NULL, &region));
    EXPECT(FB_USAGE, fb_map(path, BYTES, NULL, NULL, NULL));
    EXPECT(FB_USAGE, fb_map(path, BYTES, "tape", NULL, &region));
    EXPECT(FB_USAGE, fb_map(path, BYTES, NULL, "w", &region));
    EXPECT(FB_USAGE, fb_map(path, 0, NULL, NULL, &region));
    EXPECT(FB_NOT_POSSIBLE_HERE, fb_map(path, BYTES, "direct", NULL, &region));
    EXPECT(FB_NOT_POSSIBLE_HERE, fb_map(path, BYTES, "numa:1023", NULL, &region));
    EXPECT(FB_IO, fb_map(path, BYTES, NULL, "r+", &region));
    EXPECT(FB_TIER_FULL, fb_map(path, (size_t)1 << 43, NULL, NULL, &region));
    TRUE(region == NULL && access(path, F_OK) != 0);
    EXPECT(FB_USAGE, fb_unmap(NULL));
    EXPECT(FB_OK, fb_unmap(&region));
    EXPECT(FB_USAGE, fb_persist(NULL, 0, 1));
    EXPECT(FB_USAGE, fb_copy_persist(NULL, 0, &byte, 1));
    EXPECT(FB_USAGE, fb_region_data(NULL, &data, NULL));
    EXPECT(FB_USAGE, fb_region_info(NULL, NULL, NULL));

    EXPECT(FB_OK, fb_map(path, BYTES, NULL, "x+", &region));
    EXPECT(FB_USAGE, fb_persist(region, BYTES, 1));
    EXPECT(FB_USAGE, fb_persist(region, 0, BYTES + 1));
    EXPECT(FB_USAGE, fb_persist(region, SIZE_MAX, SIZE_MAX));
    EXPECT(FB_USAGE, fb_copy_persist(region, BYTES, &byte, 1));
    EXPECT(FB_USAGE, fb_copy_persist(region, 0, NULL, 1));
    EXPECT(FB_OK, fb_copy_persist(region, BYTES, NULL, 0));
    EXPECT(FB_OK, fb_persist(region, BYTES, 0));
    EXPECT(FB_OK, fb_region_data(region, &data, NULL));
    EXPECT(FB_USAGE, fb_copy_persist(region, 0, (char *)data + 10, 11));
    TRUE(strstr(fb_last_error(), "overlap") != NULL);
    EXPECT(FB_OK, fb_copy_persist(region, 0, (char *)data + 10, 10));
    EXPECT(FB_OK, fb_unmap(&region));
    TRUE(region == NULL);
    EXPECT(FB_OK, fb_unmap(&region));
}

static void round_trip(const char *path, const char *tier)
{
    fb_region *region = NULL, *other = NULL;
    const char *on, *survives;
    void *data, *seen;
    size_t bytes = 0;
    double values[500];
    int i;

    EXPECT(FB_IO, fb_map(path, BYTES, tier, "x+", &region));
    EXPECT(FB_OK, fb_map(path, BYTES, tier, "w+", &region));
    EXPECT(FB_OK, fb_region_info(region, &on, &survives));
    TRUE(strcmp(on, tier) == 0);
    TRUE(strcmp(survives, "process crash") == 0 || strcmp(survives, "power failure") == 0);
    EXPECT(FB_OK, fb_region_data(region, &data, &bytes));
    TRUE(bytes == BYTES && ((size_t)data & 4095) == 0);

    for (i = 0; i < 500; i++)
        values[i] = 0.5 * i;
    EXPECT(FB_OK, fb_copy_persist(region, 64, values, sizeof values));
    ((char *)data)[BYTES - 1] = 'z';
    EXPECT(FB_OK, fb_persist(region, BYTES - 1, 1));
    TRUE(memcmp((char *)data + 64, values, sizeof values) == 0);

    EXPECT(FB_OPTION_MISMATCH, fb_map(path, BYTES + 1, tier, NULL, &other));
    TRUE(strstr(fb_last_error(), "100003") != NULL && strstr(fb_last_error(), "100004") != NULL);
    EXPECT(FB_OK, fb_map(path, 0, tier, "r", &other));
    EXPECT(FB_OK, fb_region_data(other, &seen, &bytes));
    TRUE(bytes == BYTES && memcmp(seen, data, BYTES) == 0);
    EXPECT(FB_PERMISSION_DENIED, fb_persist(other, 0, 1));
    EXPECT(FB_PERMISSION_DENIED, fb_copy_persist(other, 0, values, 8));
    EXPECT(FB_OK, fb_unmap(&other));
    EXPECT(FB_OK, fb_unmap(&region));

    EXPECT(FB_OK, fb_map(path, BYTES, NULL, NULL, &region));
    EXPECT(FB_OK, fb_region_data(region, &data, NULL));
    TRUE(memcmp((char *)data + 64, values, sizeof values) == 0 && ((char *)data)[BYTES - 1] == 'z');
    EXPECT(FB_OK, fb_unmap(&region));
}

static void child_writes(const char *path, const char *tier, int pipe_end)
{
    fb_region *region = NULL;
    char piece[PIECE];
    size_t i;

    if (fb_map(path, BYTES, tier, NULL, &region) != FB_OK)
        _exit(1);
    for (i = 0; i < BYTES / PIECE; i++) {
        memset(piece, (int)(1 + i), PIECE);
        if (fb_copy_persist(region, i * PIECE, piece, PIECE) != FB_OK || write(pipe_end, "+", 1) != 1)
            _exit(1);
    }
    pause();
}

/* What copy_persist returned for is there when the process is killed. */
static void killed(const char *path, const char *tier)
{
    fb_region *region = NULL;
    size_t done = 0, i;
    int ends[2], status;
    char said[BYTES / PIECE];
    ssize_t got;
    pid_t child;
    void *data;

    TRUE(pipe(ends) == 0);
    child = fork();
    TRUE(child >= 0);
    if (child == 0)
        child_writes(path, tier, ends[1]);
    close(ends[1]);
    while (done < 10 && (got = read(ends[0], said, sizeof said)) > 0)
        done += (size_t)got;
    TRUE(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    while ((got = read(ends[0], said, sizeof said)) > 0)
        done += (size_t)got;
    close(ends[0]);

    EXPECT(FB_OK, fb_map(path, BYTES, tier, "r+", &region));
    EXPECT(FB_OK, fb_region_data(region, &data, NULL));
    for (i = 0; i < done * PIECE; i++)
        TRUE(((unsigned char *)data)[i] == 1 + i / PIECE);

    /* A forked child keeps the memory but not the handle. */
    child = fork();
    TRUE(child >= 0);
    if (child == 0)
        _exit(fb_persist(region, 0, 1) == FB_FORKED_HANDLE && ((char *)data)[0] == 1 ? 0 : 1);
    TRUE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(FB_OK, fb_unmap(&region));
}

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    nulls_and_ranges(words[2]);
    round_trip(words[2], words[1]);
    killed(words[2], words[1]);
    puts("ok");
    return 0;
}
