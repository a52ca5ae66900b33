/* Small kernels of linear algebra and stencils on arrays of a given size, each swept more than once.
 *
 * Usage: kernels KERNEL MEBIBYTES. Kernels: mvt, gemver, jacobi-2d, fill, rush, jumps. Prints sums of the results,
 * which do not depend on the memory that the arrays lie in.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *vector(size_t n, double begin) {
    double *made = malloc(n * sizeof *made);
    if (!made) perror("malloc"), exit(1);
    for (size_t i = 0; i < n; i++) made[i] = begin + (double)(i % 97) / 97;
    return made;
}

static void print(const char *name, const double *vector, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += vector[i];
    printf("%s %.17g %.17g\n", name, sum, vector[n / 2]);
}

static size_t root(size_t bytes) {
    size_t n = 16;
    while ((n + 16) * (n + 16) * sizeof(double) <= bytes) n += 16;
    return n;
}

/* Two products of a matrix, one along its rows and one along its columns. */
static void mvt(size_t bytes) {
    size_t n = root(bytes);
    double *a = vector(n * n, 0.5), *x = vector(n, 1), *y = vector(n, 2), *u = vector(n, 3), *v = vector(n, 4);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) x[i] += a[i * n + j] * u[j];
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < n; i++) y[i] += a[j * n + i] * v[j];
    print("x", x, n), print("y", y, n);
}

/* An update of rank two, then both products of the result. */
static void gemver(size_t bytes) {
    size_t n = root(bytes);
    double *a = vector(n * n, 0), *u = vector(n, 1), *v = vector(n, 2), *p = vector(n, 3), *q = vector(n, 4);
    double *x = vector(n, 0), *y = vector(n, 1), *w = vector(n, 0);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) a[i * n + j] += u[i] * v[j] + p[i] * q[j];
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < n; i++) x[i] += 1.2e-6 * a[j * n + i] * y[j];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) w[i] += 1.5e-6 * a[i * n + j] * x[j];
    print("x", x, n), print("w", w, n), print("a", a, n * n);
}

/* Five points of one plane into another and back. */
static void jacobi(size_t bytes) {
    size_t n = root(bytes / 2);
    double *a = vector(n * n, 0), *b = vector(n * n, 1);
    for (int step = 0; step < 4; step++) {
        for (size_t i = 1; i + 1 < n; i++)
            for (size_t j = 1; j + 1 < n; j++) {
                const double *at = a + i * n + j;
                b[i * n + j] = 0.2 * (at[0] + at[-1] + at[1] + at[n] + *(at - n));
            }
        double *other = a;
        a = b, b = other;
    }
    print("a", a, n * n), print("b", b, n * n);
}

/* One long array, stored as fast as memory is. */
static void fill(size_t bytes) {
    uint64_t *a = malloc(bytes), sum = 0, words = bytes / sizeof *a;
    if (!a) perror("malloc"), exit(1);
    for (uint64_t i = 0; i < words; i += 8)
        for (uint64_t j = 0; j < 8; j++) a[i + j] = i * 2654435761u + j;
    for (uint64_t i = 0; i < words; i++) sum = sum * 31 + a[i];
    printf("fill %llu\n", (unsigned long long)sum);
}

/* Arrays that come and go, each stored at once. */
static void rush(size_t bytes) {
    size_t part = (size_t)2 << 20, parts = bytes / part;
    unsigned char **all = calloc(parts, sizeof *all);
    uint64_t sum = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < parts; i++) {
            if (round && i % 3 == 0) free(all[i]), all[i] = NULL;
            if (!all[i]) {
                if (!(all[i] = malloc(part))) perror("malloc"), exit(1);
                memset(all[i], (int)(i + (size_t)round), part);
            }
        }
        for (size_t i = 0; i < parts; i++)
            for (size_t at = 0; at < part; at += 4096) sum = sum * 31 + all[i][at];
    }
    printf("rush %llu\n", (unsigned long long)sum);
}

/* Jumps by chance: each page is a surprise. */
static void jumps(size_t bytes) {
    uint64_t words = bytes / sizeof(uint64_t), *a = malloc(bytes), at = 1, sum = 0;
    if (!a) perror("malloc"), exit(1);
    for (uint64_t i = 0; i < words; i++) a[i] = i;
    for (int i = 0; i < 20000; i++) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        uint64_t *word = a + (at >> 20) % words;
        sum += *word, *word ^= at;
    }
    printf("jumps %llu\n", (unsigned long long)sum);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(size_t);
    } all[] = {{"mvt", mvt},   {"gemver", gemver}, {"jacobi-2d", jacobi},
               {"fill", fill}, {"rush", rush},     {"jumps", jumps}};
    for (size_t i = 0; count == 3 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(words[1], all[i].name)) {
            all[i].run((size_t)atoi(words[2]) << 20);
            return 0;
        }
    return fprintf(stderr, "usage: kernels KERNEL MEBIBYTES\n"), 2;
}
