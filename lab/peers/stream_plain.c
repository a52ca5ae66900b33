/* A plain STREAM of our own writing: four loops over three arrays of static length, OpenMP for the threads.
 *
 * cc -O3 -march=native -fopenmp -mcmodel=large -DELEMENTS=134217728 -o stream_plain stream_plain.c
 * OMP_NUM_THREADS=2 OMP_PROC_BIND=true ./stream_plain
 *
 * Prints one line of JSON: bytes per second of the best of nine rounds (the tenth, first one, touches the caches and
 * is not counted), counting the bytes of the arrays that a kernel names, as STREAM does. Every element is compared
 * with what the arithmetic gives; "wrong" says how many differ.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stddef.h>
#include <time.h>

#ifndef ELEMENTS
#define ELEMENTS 16777216
#endif
#define ROUNDS 10
#define SCALAR 3.0

static double a[ELEMENTS], b[ELEMENTS], c[ELEMENTS];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep(double *best, double begun, int round)
{
    double took = now() - begun;
    if (round > 0 && took < *best)
        *best = took;
}

int main(void)
{
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    double ea = 1.0, eb = 2.0, ec = 0.0, begun;
    long wrong = 0;
    ptrdiff_t i;
    /* The pages come from the threads that use them. */
#pragma omp parallel for
    for (i = 0; i < ELEMENTS; i++) {
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        begun = now();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            c[i] = a[i];
        keep(&best[0], begun, round);
        begun = now();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            b[i] = SCALAR * c[i];
        keep(&best[1], begun, round);
        begun = now();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            c[i] = a[i] + b[i];
        keep(&best[2], begun, round);
        begun = now();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            a[i] = b[i] + SCALAR * c[i];
        keep(&best[3], begun, round);
        ec = ea;
        eb = SCALAR * ec;
        ec = ea + eb;
        ea = eb + SCALAR * ec;
    }
#pragma omp parallel for reduction(+ : wrong)
    for (i = 0; i < ELEMENTS; i++)
        wrong += a[i] != ea || b[i] != eb || c[i] != ec;
    {
        double one = 8.0 * (double)ELEMENTS;
        printf("{\"copy\": %.1f, \"scale\": %.1f, \"add\": %.1f, \"triad\": %.1f, \"wrong\": %ld}\n",
               2 * one / best[0], 2 * one / best[1], 3 * one / best[2], 3 * one / best[3], wrong);
    }
    return wrong != 0;
}
