/*
 * An array larger than its budget: tiles written and read, items gathered and scattered, pins, modes and errors, and
 * threads of one program. Prints "ok".
 *
 *   array PATH
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

enum { TILE = 4096, TILES = 1024, VALUES = TILE / 8, HEADER = 100 };

#define BYTES ((uint64_t)TILE * TILES)

static uint64_t statistic(const fb_pool *pool, const char *name)
{
    uint64_t value = 0;
    EXPECT(FB_OK, fb_pool_statistic(pool, name, &value));
    return value;
}

/* Every value is its own number. */
static int number(void *context, uint64_t offset, void *data, size_t bytes)
{
    uint64_t *values = data;
    for (size_t i = 0; i < bytes / 8; i++)
        values[i] = offset / 8 + i;
    *(uint64_t *)context += bytes;
    return 0;
}

static int sum(void *context, uint64_t offset, void *data, size_t bytes)
{
    const uint64_t *values = data;
    (void)offset;
    for (size_t i = 0; i < bytes / 8; i++)
        *(uint64_t *)context += values[i];
    return 0;
}

static int stop_at_third(void *context, uint64_t offset, void *data, size_t bytes)
{
    (void)offset, (void)data, (void)bytes;
    return ++*(int *)context == 3 ? 77 : 0;
}

static void written_and_read(fb_pool *pool, const char *path)
{
    fb_array *array = NULL;
    uint64_t bytes = 0, tiles = 0, seen = 0, indices[300], rows[300], total = BYTES / 8;
    size_t tile = 0;
    int visited = 0;
    const char *method = NULL;

    EXPECT(FB_OK, fb_array_open(pool, path, "x+", 0, BYTES, TILE, NULL, NULL, &array));
    EXPECT(FB_OK, fb_array_info(array, &bytes, &tile, &tiles, &method));
    TRUE(bytes == BYTES && tile == TILE && tiles == TILES);
    TRUE(strcmp(method, "direct") == 0 || strcmp(method, "cached") == 0);
    EXPECT(FB_OK, fb_array_tiles(array, NULL, 0, 1, number, &seen));
    TRUE(seen == BYTES);
    TRUE(statistic(pool, "evicted") > 0 && statistic(pool, "written") > 0);
    TRUE(statistic(pool, "frame_bytes") + statistic(pool, "table_bytes") <= statistic(pool, "budget"));

    seen = 0;
    EXPECT(FB_OK, fb_array_tiles(array, NULL, 0, 0, sum, &seen));
    TRUE(seen == total * (total - 1) / 2);
    indices[0] = 5, indices[1] = 900, indices[2] = 5;
    seen = 0;
    EXPECT(FB_OK, fb_array_tiles(array, indices, 3, 0, sum, &seen));
    TRUE(seen == (2 * (5ULL * VALUES * 2 + VALUES - 1) + 900ULL * VALUES * 2 + VALUES - 1) * VALUES / 2);
    EXPECT(77, fb_array_tiles(array, NULL, 0, 0, stop_at_third, &visited));
    TRUE(visited == 3);

    for (uint64_t i = 0; i < 300; i++)
        indices[i] = i * 7919 % total;
    EXPECT(FB_OK, fb_array_gather(array, indices, 300, 8, rows));
    TRUE(memcmp(indices, rows, sizeof rows) == 0);
    memset(rows, 0, sizeof rows);
    EXPECT(FB_OK, fb_array_scatter(array, indices, 300, 8, rows));
    EXPECT(FB_OK, fb_array_prefetch(array, 0, BYTES));
    EXPECT(FB_OK, fb_array_read(array, indices[77] * 8, &seen, 8));
    TRUE(seen == 0);
    EXPECT(FB_OK, fb_array_write(array, BYTES - 8, "lastword", 8));
    EXPECT(FB_OK, fb_array_flush(array));
    EXPECT(FB_OK, fb_array_close(&array));
    TRUE(array == NULL);
    EXPECT(FB_OK, fb_array_close(&array));
}

static void pins_and_modes(fb_pool *pool, const char *path)
{
    fb_array *array = NULL, *other = NULL;
    fb_tile *pin = NULL, *again = NULL;
    void *data = NULL, *same = NULL;
    uint64_t offset = 0;
    size_t bytes = 0;
    char word[8];
    struct stat seen;

    EXPECT(FB_OK, fb_array_open(pool, path, "c", HEADER, 0, 0, "clock", "none", &array));
    EXPECT(FB_OK, fb_tile_pin(array, 0, 0, &pin, &data, &offset, &bytes));
    TRUE(offset == 0 && bytes > 0);
    EXPECT(FB_OK, fb_tile_pin(array, 0, 0, &again, &same, NULL, NULL));
    TRUE(same == data);
    EXPECT(FB_USAGE, fb_array_close(&array));
    TRUE(array != NULL);
    EXPECT(FB_OK, fb_tile_unpin(&again));
    EXPECT(FB_OK, fb_tile_unpin(&pin));
    TRUE(pin == NULL);
    EXPECT(FB_OK, fb_tile_unpin(&pin));
    EXPECT(FB_OK, fb_tile_pin(array, 1, 1, &pin, &data, &offset, &bytes));
    memcpy(data, "onwriten", 8);
    EXPECT(FB_OK, fb_tile_unpin(&pin));
    EXPECT(FB_OK, fb_array_read(array, offset, word, 8));
    TRUE(memcmp(word, "onwriten", 8) == 0);
    EXPECT(FB_OK, fb_array_close(&array));

    EXPECT(FB_OK, fb_array_open(pool, path, "r", 0, 0, TILE, "none", NULL, &array));
    EXPECT(FB_OK, fb_array_read(array, BYTES - 8, word, 8));
    TRUE(memcmp(word, "lastword", 8) == 0);
    EXPECT(FB_OK, fb_array_read(array, offset + HEADER, word, 8));
    TRUE(memcmp(word, "onwriten", 8) != 0);
    EXPECT(FB_PERMISSION_DENIED, fb_array_write(array, 0, "x", 1));
    EXPECT(FB_PERMISSION_DENIED, fb_tile_pin(array, 0, 1, &pin, &data, NULL, NULL));
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_array_read(array, BYTES, word, 1));
    EXPECT(FB_BOX_OUTSIDE_SHAPE, fb_tile_pin(array, TILES, 0, &pin, &data, NULL, NULL));
    EXPECT(FB_USAGE, fb_array_read(array, 0, NULL, 8));
    EXPECT(FB_USAGE, fb_array_tiles(array, NULL, 0, 0, NULL, NULL));
    TRUE(pin == NULL);
    EXPECT(FB_OK, fb_array_close(&array));

    EXPECT(FB_NAME_IN_USE, fb_array_open(pool, path, "x+", 0, BYTES, 0, NULL, NULL, &other));
    EXPECT(FB_DAMAGED, fb_array_open(pool, path, "r", 0, BYTES + 1, 0, NULL, NULL, &other));
    EXPECT(FB_USAGE, fb_array_open(pool, path, "w", 0, BYTES, 0, NULL, NULL, &other));
    EXPECT(FB_USAGE, fb_array_open(pool, path, "r", 0, 0, 3000, NULL, NULL, &other));
    EXPECT(FB_USAGE, fb_array_open(pool, path, "r", 0, 0, 0, "lifo", NULL, &other));
    EXPECT(FB_UNKNOWN_KEY, fb_pool_statistic(pool, "misses", &offset));
    TRUE(other == NULL && stat(path, &seen) == 0 && (uint64_t)seen.st_size == BYTES);

    /* What cannot be made leaves nothing. */
    EXPECT(FB_OK, unlink(path));
    EXPECT(FB_USAGE, fb_array_open(pool, path, NULL, 0, 0, 0, NULL, NULL, &other));
    EXPECT(FB_USAGE, fb_array_open(pool, path, NULL, 0, BYTES, 3000, NULL, NULL, &other));
    TRUE(other == NULL && stat(path, &seen) != 0);
    EXPECT(FB_OK, fb_array_open(pool, path, NULL, HEADER, BYTES, 0, NULL, "write", &other));
    EXPECT(FB_OK, fb_array_write(other, 0, "durable", 8));
    EXPECT(FB_OK, fb_array_close(&other));
    TRUE(stat(path, &seen) == 0 && (uint64_t)seen.st_size == BYTES + HEADER);
}

struct part {
    fb_array *array;
    uint64_t first;
};

static void *fill(void *context)
{
    const struct part *part = context;
    uint64_t value, back;
    for (uint64_t i = 0; i < 2000; i++) {
        value = (part->first + i * 4) % (BYTES / 8);
        EXPECT(FB_OK, fb_array_write(part->array, value * 8, &value, 8));
        EXPECT(FB_OK, fb_array_read(part->array, value * 8, &back, 8));
        TRUE(back == value);
    }
    return NULL;
}

static void threads(fb_pool *pool, const char *path)
{
    pthread_t running[4];
    struct part parts[4];
    fb_array *array = NULL;

    EXPECT(FB_OK, fb_array_open(pool, path, "r+", HEADER, BYTES, TILE, NULL, NULL, &array));
    for (uint64_t i = 0; i < 4; i++) {
        parts[i].array = array;
        parts[i].first = i;
        EXPECT(0, pthread_create(&running[i], NULL, fill, &parts[i]));
    }
    for (int i = 0; i < 4; i++)
        EXPECT(0, pthread_join(running[i], NULL));
    EXPECT(FB_OK, fb_array_close(&array));
}

int main(int argc, char **argv)
{
    fb_pool *pool = NULL;

    if (argc != 2)
        return 2;
    EXPECT(FB_USAGE, fb_pool_new(TILE, TILE, &pool));
    EXPECT(FB_USAGE, fb_pool_new(BYTES, 0, NULL));
    TRUE(pool == NULL);
    EXPECT(FB_OK, fb_pool_new(BYTES / 4, 128 << 10, &pool));
    written_and_read(pool, argv[1]);
    pins_and_modes(pool, argv[1]);
    threads(pool, argv[1]);
    EXPECT(FB_OK, fb_pool_free(&pool));
    EXPECT(FB_OK, unlink(argv[1]));
    puts("ok");
    return 0;
}
