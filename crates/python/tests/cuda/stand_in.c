/* A stand-in for the CUDA driver: the calls that forebay._gpu makes, on memory of the host.
 *
 * What it calls device memory has addresses that no processor can load from, so that a program which touches it
 * without the driver dies. It refuses what the driver refuses: calls without a context, in another one than the
 * memory's, ranges outside one allocation. The tests ask it what was done, make it fail, and make it slow. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201 };
enum { SIZE = 64 << 20, DEVICES = 2, RANGES = 1024 };
/* Not canonical: a load from here is a fault. */
#define BASE 0x0100000000000000ull

/* The context is the number of the device and 100, or one that the program has made. */
typedef struct { uint64_t first, bytes; int device, context; } Range;
typedef struct {
  size_t x, y; unsigned type; uint64_t host, device; void *array; size_t pitch;
} Side;
typedef struct { Side source, target; size_t width, height; } Copy2D;

static char *memory;
static uint64_t used;
static Range allocated[RANGES], pinned[RANGES];
static int allocations, pins, is_ready, retained;
static __thread int current;
static const char *fails, *sleeps;
static int fails_with, sleeps_ms;

/* What the tests read: bytes copied from and to the device, of those how many from or to pinned memory, and calls. */
API uint64_t stand_in_from, stand_in_to, stand_in_pinned, stand_in_copies, stand_in_waits, stand_in_inits;

API int stand_in_pins(void) { return pins; }
API int stand_in_current(void) { return current; }
API int stand_in_retained(void) { return retained; }
/* That function fails with this status. */
API void stand_in_fail(const char *name, int status) { fails = name, fails_with = status; }
/* That function takes so long. */
API void stand_in_sleep(const char *name, int ms) { sleeps = name, sleeps_ms = ms; }
API void stand_in_reset(void) {
  used = 0, allocations = 0, fails = sleeps = NULL;
  stand_in_from = stand_in_to = stand_in_pinned = stand_in_copies = stand_in_waits = stand_in_inits = 0;
}
API uint64_t stand_in_allocate(uint64_t bytes, int device, int context) {
  if (!memory) memory = malloc(SIZE);
  if (used + bytes > SIZE || allocations == RANGES) return 0;
  allocated[allocations++] = (Range){BASE + used, bytes, device, context ? context : device + 100};
  used += (bytes + 511) / 512 * 512;
  return allocated[allocations - 1].first;
}
API void *stand_in_host(uint64_t pointer) { return memory + (pointer - BASE); }

static int check(const char *name) {
  if (sleeps && !strcmp(sleeps, name)) usleep(sleeps_ms * 1000);
  if (fails && !strcmp(fails, name)) return fails_with;
  return is_ready ? OK : NOT_INITIALIZED;
}
static Range *owner(uint64_t pointer, uint64_t bytes) {
  for (int i = 0; i < allocations; i++)
    if (pointer >= allocated[i].first && pointer + bytes <= allocated[i].first + allocated[i].bytes)
      return &allocated[i];
  return NULL;
}

API int cuInit(unsigned flags) {
  is_ready = 1, stand_in_inits++;
  return flags ? INVALID_VALUE : check("cuInit");
}
API int cuGetErrorName(int status, const char **name) {
  *name = "CUDA_ERROR_OTHER";
  if (status == INVALID_VALUE) *name = "CUDA_ERROR_INVALID_VALUE";
  if (status == 700) *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
  return OK;
}
API int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) {
  Range *range = owner(pointer, 1);
  int status = check("cuPointerGetAttribute");
  if (status) return status;
  if (!range) return INVALID_VALUE;
  if (attribute == 1 && range->device == 1) return INVALID_VALUE; /* as of memory of a pool of the driver */
  if (attribute == 1) *(void **)data = (void *)(uintptr_t)range->context;
  else if (attribute == 2) *(unsigned *)data = 2;
  else if (attribute == 9) *(int *)data = range->device;
  else return INVALID_VALUE;
  return OK;
}
API int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal + 40;
  return ordinal < DEVICES ? check("cuDeviceGet") : INVALID_VALUE;
}
API int cuDevicePrimaryCtxRetain(void **context, int device) {
  int status = check("cuDevicePrimaryCtxRetain");
  if (status) return status;
  retained++;
  *context = (void *)(uintptr_t)(device - 40 + 100);
  return OK;
}
API int cuCtxSetCurrent(void *context) {
  int status = check("cuCtxSetCurrent");
  if (!status) current = (int)(uintptr_t)context;
  return status;
}
API int cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
  int status = check("cuMemHostAlloc");
  if (status) return status;
  if (current < 100 || current >= 100 + DEVICES) return INVALID_CONTEXT; /* it would go with the program's own */
  if (flags != 1 || pins == RANGES || posix_memalign(host, 4096, bytes)) return INVALID_VALUE;
  pinned[pins++] = (Range){(uint64_t)*host, bytes, 0, current};
  return OK;
}
API int cuMemFreeHost(void *host) {
  for (int i = 0; i < pins; i++)
    if (pinned[i].first == (uint64_t)host) {
      pinned[i] = pinned[--pins];
      free(host);
      return check("cuMemFreeHost");
    }
  return INVALID_VALUE;
}
API int cuStreamSynchronize(void *stream) {
  stand_in_waits++;
  if (!current || stream == (void *)2) return INVALID_CONTEXT;
  return check("cuStreamSynchronize");
}
API int cuCtxSynchronize(void) { stand_in_waits++; return current ? check("cuCtxSynchronize") : INVALID_CONTEXT; }

static int copy(const char *name, uint64_t device, char *host, uint64_t bytes, int to_host) {
  uint64_t first = (uint64_t)host;
  Range *range = owner(device, bytes);
  int status = check(name);
  if (status) return status;
  if (!range) return INVALID_VALUE;
  if (range->context != current) return INVALID_CONTEXT;
  for (int i = 0; i < pins; i++)
    if (first >= pinned[i].first && first + bytes <= pinned[i].first + pinned[i].bytes) stand_in_pinned += bytes;
  if (to_host) memcpy(host, stand_in_host(device), bytes), stand_in_from += bytes;
  else memcpy(stand_in_host(device), host, bytes), stand_in_to += bytes;
  return OK;
}
API int cuMemcpyDtoH_v2(void *host, uint64_t device, size_t bytes) {
  stand_in_copies++;
  return copy("cuMemcpyDtoH_v2", device, host, bytes, 1);
}
API int cuMemcpyHtoD_v2(uint64_t device, const void *host, size_t bytes) {
  stand_in_copies++;
  return copy("cuMemcpyHtoD_v2", device, (char *)host, bytes, 0);
}
API int cuMemcpy2D_v2(const Copy2D *c) {
  int to_host = c->source.type == 2;
  const Side *there = to_host ? &c->source : &c->target, *here = to_host ? &c->target : &c->source;
  stand_in_copies++;
  if (there->type != 2 || here->type != 1 || there->pitch < c->width || here->pitch < c->width) return INVALID_VALUE;
  if (there->x || there->y || here->x || here->y) return INVALID_VALUE;
  for (size_t row = 0; row < c->height; row++) {
    char *host = (char *)here->host + row * here->pitch;
    int status = copy("cuMemcpy2D_v2", there->device + row * there->pitch, host, c->width, to_host);
    if (status) return status;
  }
  return OK;
}
