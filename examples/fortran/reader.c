/*
 * Reads what writer.f90 writes and checks every element: reader.py for machines without Python.
 *
 *   cc reader.c $(pkg-config --cflags --libs forebay) -o reader && ./reader NAME
 *
 * Fortran's T(nx, ny) is T[ny][nx] here: the same bytes, dimensions in C order. Exits with 1 when an element
 * is wrong, else as fb_exit_code says.
 */
#include <forebay.h>

#include <stdio.h>
#include <stdlib.h>

enum { NX = 6, NY = 8, STEPS = 3 };

static int check(int code, const char *doing)
{
    if (code < 0) {
        fprintf(stderr, "reader: %s: %s\n", doing, fb_last_error());
        exit(fb_exit_code(code));
    }
    return code;
}

static void same(double found, double expected, const char *name, unsigned long long version, int j, int i)
{
    if (found != expected) {
        fprintf(stderr, "reader: version %llu: %s[%d][%d] is %g, not %g\n", version, name, j, i, found,
                expected);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static double t[NY][NX];
    static float coarse[NY / 2][NX];
    fb_reader *reader = NULL;
    uint64_t version, shape[FB_DIMENSIONS_MAX];
    int dtype = 0, ndim = 0, steps = 0, i, j;
    int32_t step = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: reader NAME\n");
        return 2;
    }
    check(fb_open_reader(argv[1], NULL, &reader), "open");
    while (check(fb_begin_read(reader, -1, &version), "wait for a version") == FB_STEP) {
        check(fb_variable_info(reader, "T", &dtype, &ndim, shape, FB_DIMENSIONS_MAX), "ask about T");
        if (dtype != FB_FLOAT64 || ndim != 2 || shape[0] != NY || shape[1] != NX) {
            fprintf(stderr, "reader: T is not a float64 array of %d x %d\n", NY, NX);
            return 1;
        }
        check(fb_get(reader, "T", FB_FLOAT64, 2, NULL, NULL, t, sizeof t), "get T");
        check(fb_get(reader, "coarse", FB_FLOAT32, 2, NULL, NULL, coarse, sizeof coarse), "get coarse");
        check(fb_get(reader, "step", FB_INT32, 0, NULL, NULL, &step, sizeof step), "get step");
        for (j = 0; j < NY; j++)
            for (i = 0; i < NX; i++) {
                const double expected = 10000.0 * (double)version + 100.0 * j + i;
                same(t[j][i], expected, "T", version, j, i);
                if (j % 2 == 0)
                    same(coarse[j / 2][i], (float)expected, "coarse", version, j / 2, i);
            }
        same(step, (double)version + 1, "step", version, 0, 0);
        check(fb_end_read(reader), "end the step");
        steps++;
    }
    check(fb_close_reader(&reader), "close");
    printf("%d steps of %d x %d, every element as written\n", steps, NY, NX);
    return steps == STEPS ? 0 : 1;
}
