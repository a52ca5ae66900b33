/*
 * A checkpoint from C: steps saved, restored and refused, levels and reports, memory that moves, ranks by environment.
 *
 *   checkpoint all DIR            everything in one process; prints "ok"
 *   checkpoint steps DIR LAST     saves each step up to LAST, with a file "saved-STEP" after each; then waits to be
 *                                 killed when LAST is 1000
 *   checkpoint rank DIR           one rank of several, as the environment says; prints its rank, size and first row
 */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 6, COLUMNS = 3000 };

static double u[ROWS * COLUMNS];

static void fill(double *values, uint64_t step)
{
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        values[i] = (double)step * 1e6 + (double)i;
}

static int is(const double *values, uint64_t step)
{
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        if (values[i] != (double)step * 1e6 + (double)i)
            return 0;
    return 1;
}

static const uint64_t shape[2] = {ROWS, COLUMNS};

static void saved_and_restored(const char *dir)
{
    fb_options *options = NULL;
    fb_checkpoint *ck = NULL, *second = NULL;
    uint64_t step = 77, run = 0, rejected = 7;
    int64_t count = 0, lost = 7, newest = 7;
    uint32_t rank = 7, size = 7;
    int levels = 0, need = 7;
    double value = -1;
    const char *text = NULL, *tier = NULL, *durability = NULL;
    double *other = malloc(sizeof u);

    TRUE(other != NULL);
    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "levels", "dram; file,keep=3"));
    EXPECT(FB_OK, fb_options_set(options, "when", "steps:3"));
    EXPECT(FB_OK, fb_options_set(options, "timeout", "20"));
    EXPECT(FB_OK, fb_options_set(options, "program", "test"));
    EXPECT(FB_OK, fb_checkpoint_open(dir, options, &ck));
    EXPECT(FB_NAME_IN_USE, fb_checkpoint_open(dir, options, &second));
    TRUE(second == NULL && strlen(fb_last_error_hint()) > 0);
    EXPECT(FB_OK, fb_checkpoint_info(ck, &run, &rank, &size, &levels));
    TRUE(run == 1 && rank == 0 && size == 1 && levels == 2);

    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "count", FB_INT64, 0, NULL, NULL, NULL, &count));
    EXPECT(FB_NOT_YET, fb_checkpoint_restore_latest(ck, &step));
    EXPECT(FB_NOT_YET, fb_checkpoint_wait(ck, -1, &step));
    EXPECT(FB_NOT_YET, fb_checkpoint_report(ck, &text, &rejected, &lost));
    TRUE(step == 77 && rejected == 7);
    EXPECT(FB_OK, fb_checkpoint_need(ck, 3, &need));
    TRUE(need == 1);
    EXPECT(FB_OK, fb_checkpoint_need(ck, 4, &need));
    TRUE(need == 0);

    EXPECT(FB_OK, fb_checkpoint_prepare(ck));
    for (count = 0; count < 5; count++) {
        fill(u, (uint64_t)count);
        EXPECT(FB_OK, fb_checkpoint_save(ck, (uint64_t)count));
    }
    EXPECT(FB_VERSION_OUT_OF_ORDER, fb_checkpoint_save(ck, 4));
    EXPECT(FB_OK, fb_checkpoint_wait(ck, -1, &step));
    TRUE(step == 4);
    EXPECT(FB_OK, fb_checkpoint_wait(ck, 0, NULL));
    EXPECT(FB_OK, fb_checkpoint_level(ck, 0, &text, &tier, &durability, &newest));
    TRUE(strstr(text, ".checkpoints") && strcmp(tier, "dram") == 0 && newest == 4);
    TRUE(strcmp(durability, "process crash") == 0);
    EXPECT(FB_OK, fb_checkpoint_level(ck, 1, NULL, NULL, &durability, NULL));
    TRUE(strcmp(durability, "power failure") == 0 || strcmp(durability, "process crash") == 0);
    EXPECT(FB_OK, fb_checkpoint_statistic(ck, "saves", &value));
    TRUE(value == 5);
    EXPECT(FB_OK, fb_checkpoint_statistic(ck, "cost_s", &value));
    TRUE(value > 0);

    /* The memory of the array moves: the next step is saved from the new place, and restored to it. */
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, other));
    fill(other, 5);
    EXPECT(FB_OK, fb_checkpoint_save(ck, 5));
    memset(other, 0, sizeof u);
    memset(u, 0, sizeof u);
    count = -1;
    EXPECT(FB_OK, fb_checkpoint_restore_latest(ck, &step));
    TRUE(step == 5 && is(other, 5) && u[1] == 0 && count == 5);
    EXPECT(FB_OK, fb_checkpoint_wait(ck, -1, NULL));
    EXPECT(FB_OK, fb_checkpoint_restore(ck, 4));
    TRUE(is(other, 4) && count == 4);
    EXPECT(FB_OK, fb_checkpoint_report(ck, &text, &rejected, &lost));
    TRUE(strstr(text, "restored step 4 of run 1") && rejected == 0 && lost == -1);
    EXPECT(FB_VERSION_GONE, fb_checkpoint_restore(ck, 1));
    EXPECT(FB_NOT_YET, fb_checkpoint_report(ck, &text, NULL, NULL));
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
    TRUE(ck == NULL);
    EXPECT(FB_OK, fb_checkpoint_close(&ck));

    EXPECT(FB_OK, fb_options_set(options, "program", "another"));
    EXPECT(FB_OPTION_MISMATCH, fb_checkpoint_open(dir, options, &ck));
    TRUE(ck == NULL);
    EXPECT(FB_OK, fb_options_free(&options));
    free(other);
}

static void mistakes(const char *dir)
{
    fb_options *options = NULL;
    fb_checkpoint *ck = NULL;
    uint64_t start[2] = {ROWS - 1, 0}, count[2] = {2, COLUMNS}, flat[1] = {ROWS};
    double value = 0;
    int need = 0;
    char path[4096];

    snprintf(path, sizeof path, "%s-mistakes", dir);
    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_USAGE, fb_options_set(options, "when", "sometimes"));
    EXPECT(FB_USAGE, fb_options_set(options, "levels", " ; "));
    EXPECT(FB_USAGE, fb_options_set(options, "memory", "much"));
    EXPECT(FB_UNKNOWN_KEY, fb_options_set(options, "level", "dram"));
    TRUE(strstr(fb_last_error_hint(), "levels") != NULL);
    EXPECT(FB_OK, fb_options_set(options, "levels", "tape"));
    EXPECT(FB_USAGE, fb_checkpoint_open(path, options, &ck));
    EXPECT(FB_OK, fb_options_set(options, "levels", "file,kept=3"));
    EXPECT(FB_UNKNOWN_KEY, fb_checkpoint_open(path, options, &ck));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_USAGE, fb_checkpoint_open(NULL, NULL, &ck));
    EXPECT(FB_USAGE, fb_checkpoint_open(path, NULL, NULL));
    TRUE(ck == NULL);
    EXPECT(FB_USAGE, fb_checkpoint_save(NULL, 1));
    EXPECT(FB_OK, fb_checkpoint_close(&ck));

    EXPECT(FB_OK, fb_checkpoint_open(path, NULL, &ck));
    EXPECT(FB_USAGE, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, NULL));
    EXPECT(FB_USAGE, fb_checkpoint_protect(ck, "u", 99, 2, shape, NULL, NULL, u));
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, start, count, u));
    EXPECT(FB_BAD_NAME, fb_checkpoint_protect(ck, "", FB_FLOAT64, 2, shape, NULL, NULL, u));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    EXPECT(FB_USAGE, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 1, flat, NULL, NULL, u));
    EXPECT(FB_USAGE, fb_checkpoint_need(ck, 1, NULL));
    EXPECT(FB_OK, fb_checkpoint_need(ck, 1, &need));
    EXPECT(FB_USAGE, fb_checkpoint_wait(ck, 1, NULL));
    EXPECT(FB_USAGE, fb_checkpoint_wait(ck, -2, NULL));
    EXPECT(FB_USAGE, fb_checkpoint_level(ck, 1, NULL, NULL, NULL, NULL));
    EXPECT(FB_UNKNOWN_KEY, fb_checkpoint_statistic(ck, "load", &value));
    fill(u, 1);
    EXPECT(FB_OK, fb_checkpoint_save(ck, 1));
    EXPECT(FB_OK, fb_checkpoint_close(&ck));

    /* Another array of that name, and one that was never saved. */
    EXPECT(FB_OK, fb_checkpoint_open(path, NULL, &ck));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 1, flat, NULL, NULL, u));
    EXPECT(FB_VARIABLE_MISMATCH, fb_checkpoint_restore_latest(ck, NULL));
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
    EXPECT(FB_OK, fb_checkpoint_open(path, NULL, &ck));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "v", FB_FLOAT64, 1, flat, NULL, NULL, u));
    EXPECT(FB_UNKNOWN_VARIABLE, fb_checkpoint_restore_latest(ck, NULL));
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
}

/* A damaged newest step: the one before is taken, and said. */
static void damaged(const char *dir)
{
    fb_checkpoint *ck = NULL;
    uint64_t step = 0, rejected = 0;
    int64_t lost = 0;
    const char *text = NULL;
    char path[4096], data[8192];
    int file;

    snprintf(path, sizeof path, "%s-damaged", dir);
    EXPECT(FB_OK, fb_checkpoint_open(path, NULL, &ck));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    for (step = 1; step <= 2; step++) {
        fill(u, step);
        EXPECT(FB_OK, fb_checkpoint_save(ck, step));
    }
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
    snprintf(data, sizeof data, "%s/file/s0000000002-r000001/00000.data", path);
    file = open(data, O_WRONLY);
    TRUE(file >= 0 && pwrite(file, "x", 1, 70000) == 1 && close(file) == 0);
    EXPECT(FB_OK, fb_checkpoint_open(path, NULL, &ck));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    EXPECT(FB_OK, fb_checkpoint_restore_latest(ck, &step));
    TRUE(step == 1 && is(u, 1));
    EXPECT(FB_OK, fb_checkpoint_report(ck, &text, &rejected, &lost));
    TRUE(rejected == 1 && lost == 2 && strstr(text, "checksum") != NULL);
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
}

/* The best steps stay behind the newest. */
static void kept(const char *dir)
{
    const double loss[6] = {9, 5, 3, 4, 6, 7};
    fb_options *options = NULL;
    fb_checkpoint *ck = NULL;
    char path[4096];

    snprintf(path, sizeof path, "%s-kept", dir);
    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "levels", "file,keep=1,best=2,every=5"));
    EXPECT(FB_OK, fb_checkpoint_open(path, options, &ck));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    for (uint64_t step = 0; step < 6; step++) {
        fill(u, step);
        EXPECT(FB_OK, fb_checkpoint_save_metric(ck, step, loss[step]));
    }
    EXPECT(FB_USAGE, fb_checkpoint_save_metric(ck, 6, strtod("nan", NULL)));
    for (uint64_t step = 6; step < 8; step++) {
        fill(u, step);
        EXPECT(FB_OK, fb_checkpoint_save(ck, step));
    }
    EXPECT(FB_VERSION_GONE, fb_checkpoint_restore(ck, 1));
    EXPECT(FB_VERSION_GONE, fb_checkpoint_restore(ck, 4));
    for (uint64_t step = 0; step < 8; step++)
        if (step == 0 || step == 2 || step == 3 || step == 5 || step == 7) {
            EXPECT(FB_OK, fb_checkpoint_restore(ck, step));
            TRUE(is(u, step));
        }
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
}

static void steps(const char *dir, uint64_t last)
{
    const struct timespec pause = {0, 2000000};
    fb_options *options = NULL;
    fb_checkpoint *ck = NULL;
    uint64_t step = 0, first = 0;
    char name[64];

    EXPECT(FB_OK, fb_options_new(&options));
    EXPECT(FB_OK, fb_options_set(options, "levels", "dram;file"));
    EXPECT(FB_OK, fb_checkpoint_open(dir, options, &ck));
    EXPECT(FB_OK, fb_options_free(&options));
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    if (fb_checkpoint_restore_latest(ck, &step) == FB_OK) {
        TRUE(is(u, step));
        first = step + 1;
    }
    printf("%lu\n", (unsigned long)first);
    for (step = first; step <= last; step++) {
        fill(u, step);
        EXPECT(FB_OK, fb_checkpoint_save(ck, step));
        snprintf(name, sizeof name, "saved-%lu", (unsigned long)step);
        TRUE(close(open(name, O_CREAT | O_WRONLY, 0600)) == 0);
        nanosleep(&pause, NULL);
    }
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
}

static void ranks(const char *dir)
{
    fb_checkpoint *ck = NULL;
    uint32_t rank = 0, size = 0;
    uint64_t step = 0, run = 0, start[2] = {0, 0}, count[2] = {0, COLUMNS};
    double whole[ROWS * COLUMNS];

    EXPECT(FB_OK, fb_checkpoint_open(dir, NULL, &ck));
    EXPECT(FB_OK, fb_checkpoint_info(ck, &run, &rank, &size, NULL));
    start[0] = (uint64_t)ROWS * rank / size;
    count[0] = (uint64_t)ROWS * (rank + 1) / size - start[0];
    fill(whole, 9);
    memcpy(u, whole + start[0] * COLUMNS, count[0] * COLUMNS * sizeof *u);
    EXPECT(FB_OK, fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, start, count, u));
    if (run == 1) {
        EXPECT(FB_OK, fb_checkpoint_save(ck, 9));
        EXPECT(FB_OK, fb_checkpoint_wait(ck, -1, NULL));
    } else {
        memset(u, 0, sizeof u);
        EXPECT(FB_OK, fb_checkpoint_restore_latest(ck, &step));
        TRUE(step == 9);
    }
    TRUE(memcmp(u, whole + start[0] * COLUMNS, count[0] * COLUMNS * sizeof *u) == 0);
    EXPECT(FB_OK, fb_checkpoint_close(&ck));
    printf("%u of %u from row %u\n", rank, size, (unsigned)start[0]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "all") == 0) {
        saved_and_restored(argv[2]);
        mistakes(argv[2]);
        damaged(argv[2]);
        kept(argv[2]);
        puts("ok");
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "steps") == 0) {
        steps(argv[2], strtoul(argv[3], NULL, 10));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "rank") == 0) {
        ranks(argv[2]);
        return 0;
    }
    return 2;
}
