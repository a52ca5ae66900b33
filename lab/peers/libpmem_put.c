/*
 * pmem_memcpy_persist of libpmem into a pool file: what a put costs without names, boxes, versions or checksums.
 *
 * usage: libpmem_put FOLDER OBJECT-BYTES PUTS POOL-BYTES SOURCE-BYTES
 *
 * Both the pool and the source are faulted in before the clock starts; puts walk through both. Prints one JSON
 * object: ns_per_put, the ns of one plain memcpy of the same size beside it, and whether the last object arrived.
 * Built by `cargo xtask bench put` where libpmem.h is installed; never part of Forebay.
 */
#include <libpmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static char *filled(size_t bytes) {
    char *memory = aligned_alloc(4096, bytes);
    if (memory == NULL) {
        perror("aligned_alloc");
        exit(1);
    }
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)memory)[i] = i * 0x9E3779B97F4A7C15u;
    return memory;
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: libpmem_put FOLDER OBJECT-BYTES PUTS POOL-BYTES SOURCE-BYTES\n");
        return 2;
    }
    size_t object = strtoull(words[2], NULL, 10), puts = strtoull(words[3], NULL, 10);
    size_t pool_bytes = strtoull(words[4], NULL, 10), source_bytes = strtoull(words[5], NULL, 10);
    char path[4096];
    snprintf(path, sizeof path, "%s/libpmem-%d.pool", words[1], (int)getpid());

    size_t mapped = 0;
    int is_pmem = 0;
    char *pool = pmem_map_file(path, pool_bytes, PMEM_FILE_CREATE | PMEM_FILE_EXCL, 0600, &mapped, &is_pmem);
    if (pool == NULL) {
        fprintf(stderr, "pmem_map_file %s: %s\n", path, pmem_errormsg());
        return 1;
    }
    unlink(path);
    memset(pool, 1, pool_bytes);
    char *source = filled(source_bytes);

    size_t in_pool = pool_bytes / object, in_source = source_bytes / object;
    double begin = now_ns();
    for (size_t i = 0; i < puts; i++)
        pmem_memcpy_persist(pool + i % in_pool * object, source + i % in_source * object, object);
    double put_ns = (now_ns() - begin) / (double)puts;
    size_t last = puts - 1;
    int wrong = memcmp(pool + last % in_pool * object, source + last % in_source * object, object) != 0;

    begin = now_ns();
    for (size_t i = 0; i < puts; i++)
        memcpy(pool + i % in_pool * object, source + i % in_source * object, object);
    double copy_ns = (now_ns() - begin) / (double)puts;
    wrong |= memcmp(pool + last % in_pool * object, source + last % in_source * object, object) != 0;

    printf("{\"ns_per_put\": %.1f, \"ns_per_memcpy\": %.1f, \"wrong\": %d}\n", put_ns, copy_ns, wrong);
    pmem_unmap(pool, mapped);
    free(source);
    return wrong;
}
