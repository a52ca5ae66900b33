/*
 * Two ranks write the halves of an array, a third program reads it whole; no MPI, no server.
 *
 *   cc ranks.c $(pkg-config --cflags --libs forebay) -o ranks
 *   ./ranks heat                    starts all three below and waits for them
 *   ./ranks heat writer 0 2         rank 0 of 2: the upper half
 *   ./ranks heat writer 1 2         rank 1 of 2: the lower half
 *   ./ranks heat reader             checks every element of every step
 *
 * The exit status is that of forebay.h (fb_exit_code), or 1 when an element is wrong. A writer's memory is
 * the pool itself (fb_reserve); the reader copies (fb_get) and looks at one half in place (fb_open_view).
 */
#define _POSIX_C_SOURCE 200809L
#include <forebay.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 4, ROWS = 64, COLUMNS = 48 };

static const uint64_t shape[2] = {ROWS, COLUMNS};

/* Ends the program with the text of the error when a call failed; statuses such as FB_END_OF_STREAM pass. */
static int check(int code, const char *doing)
{
    if (code < 0) {
        fprintf(stderr, "ranks: %s: %s\n", doing, fb_last_error());
        exit(fb_exit_code(code));
    }
    return code;
}

/* What an element must be: different for every step, row and column. */
static double element(uint64_t version, uint64_t row, uint64_t column)
{
    return 1e6 * (double)version + 1e3 * (double)row + (double)column;
}

static void set(fb_options *options, const char *key, const char *value)
{
    check(fb_options_set(options, key, value), key);
}

static int write_half(const char *name, const char *rank_text, const char *size_text)
{
    const uint64_t rank = strtoull(rank_text, NULL, 10), size = strtoull(size_text, NULL, 10);
    fb_options *options = NULL;
    fb_writer *writer = NULL;
    uint64_t start[2], count[2], version, row, column;
    int step;

    if (size == 0 || rank >= size || ROWS % size != 0) {
        fprintf(stderr, "ranks: %s of %s is not a rank that divides %d rows\n", rank_text, size_text, ROWS);
        return 2;
    }
    count[0] = ROWS / size, count[1] = COLUMNS;
    start[0] = rank * count[0], start[1] = 0;

    check(fb_options_new(&options), "options");
    set(options, "rank", rank_text);
    set(options, "size", size_text);
    check(fb_open_writer(name, options, &writer), "open the writer");
    check(fb_options_free(&options), "options");
    if (rank == 0)
        check(fb_attribute_set_text(writer, "unit", "kelvin"), "set the unit");

    for (step = 0; step < STEPS; step++) {
        void *memory = NULL;
        double *half;

        check(fb_begin_step(writer, &version), "begin a step");
        check(fb_reserve(writer, "T", FB_FLOAT64, 2, shape, start, count, &memory), "reserve T");
        half = memory;
        for (row = 0; row < count[0]; row++)
            for (column = 0; column < COLUMNS; column++)
                half[row * COLUMNS + column] = element(version, start[0] + row, column);
        check(fb_commit(writer, memory), "commit T");
        if (rank == 0) {
            const int64_t iterations = 10 * ((int64_t)version + 1);
            check(fb_put(writer, "iterations", FB_INT64, 0, NULL, NULL, NULL, &iterations), "put iterations");
        }
        check(fb_end_step(writer), "end the step");
    }
    check(fb_close_writer(&writer), "close the writer");
    return 0;
}

static int wrong(const double *rows, uint64_t version, uint64_t first, uint64_t rows_many)
{
    uint64_t row, column;

    for (row = 0; row < rows_many; row++)
        for (column = 0; column < COLUMNS; column++)
            if (rows[row * COLUMNS + column] != element(version, first + row, column)) {
                fprintf(stderr, "ranks: version %llu: element (%llu, %llu) is wrong\n",
                        (unsigned long long)version, (unsigned long long)(first + row),
                        (unsigned long long)column);
                return 1;
            }
    return 0;
}

static int read_whole(const char *name)
{
    static double whole[ROWS][COLUMNS];
    const uint64_t lower_start[2] = {ROWS / 2, 0}, lower_count[2] = {ROWS / 2, COLUMNS};
    fb_reader *reader = NULL;
    uint64_t version;
    char unit[32];
    int steps = 0;

    check(fb_open_reader(name, NULL, &reader), "open the reader");
    while (check(fb_begin_read(reader, -1, &version), "wait for a version") == FB_STEP) {
        fb_view *lower = NULL;
        const void *memory = NULL;
        int64_t iterations = 0;
        int bad;

        check(fb_get(reader, "T", FB_FLOAT64, 2, NULL, NULL, whole, sizeof whole), "get T");
        check(fb_get(reader, "iterations", FB_INT64, 0, NULL, NULL, &iterations, sizeof iterations), "get");
        check(fb_open_view(reader, "T", FB_FLOAT64, 2, lower_start, lower_count, &lower), "view half of T");
        check(fb_view_data(lower, &memory, NULL), "view half of T");
        bad = wrong(&whole[0][0], version, 0, ROWS) || wrong(memory, version, ROWS / 2, ROWS / 2);
        check(fb_view_free(&lower), "free the view");
        if (bad || iterations != 10 * ((int64_t)version + 1))
            return 1;
        check(fb_end_read(reader), "end the step");
        steps++;
    }
    check(fb_attribute_get_text(reader, "unit", unit, sizeof unit, NULL), "get the unit");
    check(fb_close_reader(&reader), "close the reader");
    printf("%d steps of %d x %d %s, every element as written\n", steps, ROWS, COLUMNS, unit);
    return steps == STEPS ? 0 : 1;
}

/* Starts this program again in another role. After fork() only exec: handles do not survive it. */
static pid_t start(char *const arguments[])
{
    pid_t child = fork();

    if (child == 0) {
        execv("/proc/self/exe", arguments);
        perror("ranks: exec");
        _exit(127);
    }
    if (child < 0) {
        perror("ranks: fork");
        exit(1);
    }
    return child;
}

static int start_all(char *name)
{
    char *first[] = {"ranks", name, "writer", "0", "2", NULL};
    char *second[] = {"ranks", name, "writer", "1", "2", NULL};
    char *reader[] = {"ranks", name, "reader", NULL};
    int failed = 0, i;

    start(first);
    start(second);
    start(reader);
    for (i = 0; i < 3; i++) {
        int status = 0;
        if (wait(&status) < 0 || !WIFEXITED(status))
            failed = 1;
        else if (WEXITSTATUS(status) != 0)
            failed = WEXITSTATUS(status);
    }
    return failed;
}

int main(int argc, char **argv)
{
    if (fb_abi_version() != FB_ABI_VERSION) {
        fprintf(stderr, "ranks: built for ABI %d, run with %d\n", FB_ABI_VERSION, fb_abi_version());
        return 3;
    }
    if (argc == 2)
        return start_all(argv[1]);
    if (argc == 5 && strcmp(argv[2], "writer") == 0)
        return write_half(argv[1], argv[3], argv[4]);
    if (argc == 3 && strcmp(argv[2], "reader") == 0)
        return read_whole(argv[1]);
    fprintf(stderr, "usage: ranks NAME [writer RANK SIZE | reader]\n");
    return 2;
}
