/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * forebay.h: share versioned n-D arrays between the programs of one node.
 *
 * Generated from crates/capi/src; do not edit. Write it anew with
 *     cargo run -p forebay-capi --features header --bin forebay-header
 *
 * A writer, rank R of N, and a reader, in short:
 *
 *     fb_writer *w = NULL;                           fb_reader *r = NULL;
 *     if (fb_open_writer("heat", NULL, &w)) ...      if (fb_open_reader("heat", NULL, &r)) ...
 *     fb_begin_step(w, NULL);                        while (fb_begin_read(r, -1, &version) == FB_STEP) {
 *     fb_put(w, "T", FB_FLOAT64, 2,                      fb_get(r, "T", FB_FLOAT64, 2, start, count,
 *            shape, start, count, data);                        buffer, sizeof buffer);
 *     fb_end_step(w);                                    fb_end_read(r);
 *     fb_close_writer(&w);                           }
 *                                                    fb_close_reader(&r);
 *
 * RETURN VALUES. Every function returns an int unless it says otherwise: 0 (FB_OK), a positive status that is
 * no error (FB_STEP, FB_END_OF_STREAM, FB_NOT_YET, FB_SKIPPED), or a negative error code. After an error
 * fb_last_error() is the whole text for a person, fb_last_error_hint() what to do next; both belong to the
 * calling thread. When a call fails, the outputs are untouched unless the function says otherwise. Beside the
 * errors that a function names, each can return FB_USAGE (a NULL, a text that is not UTF-8), FB_FORKED_HANDLE
 * (the handle was opened before fork()), FB_IO and FB_INTERNAL (a bug in Forebay; the handle is then of no
 * further use).
 *
 * POINTERS. Texts are UTF-8 and end with NUL. NULL where memory is needed is FB_USAGE, never a crash. Other
 * than that a pointer must be what the parameter says: a live handle of that type, or memory of at least the
 * stated length. Memory is only used during the call, except where the function says otherwise. Handles are
 * given by address to the function that ends them, which sets them to NULL; ending NULL is no error.
 *
 * ARRAYS. Shapes and boxes are in C order (the last index runs fastest) and count elements, not bytes. A box
 * is `start` (first index in each dimension, from 0) and `count` (elements in each dimension); start = NULL
 * is the origin, count = NULL is everything from start to the end of the shape. `ndim` is 0 for a scalar.
 * Data is dense, in C order, in the byte order of the machine; it needs no alignment.
 *
 * TIME. Timeouts are in seconds; a negative one is the handle's own (option "timeout", 60 s unless said), 0
 * asks and does not wait. Every call that waits has a deadline and then returns FB_TIMED_OUT with a text that
 * names who is missing.
 *
 * THREADS. A handle may move between threads; calls on one handle are carried out one after another. Closing
 * or freeing a handle must be the last call on it. Different handles do not hinder each other.
 *
 * PROCESSES. A handle does not survive fork() in the child. A process that ends without fb_close_writer
 * counts as dead: its open version is aborted and waiting readers get FB_PRODUCER_DIED at once.
 *
 * DURABILITY. What an acknowledged step (fb_end_step returned FB_OK) survives depends on tier and horizon of
 * the space: fb_writer_durability() says it.
 */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

/**
 * An argument makes no sense on its own.
 */
#define FB_USAGE (-1)

/**
 * A key of a file or a table that Forebay does not know.
 */
#define FB_UNKNOWN_KEY (-2)

/**
 * A `FOREBAY_*` environment variable that Forebay does not know, or with a value it cannot read.
 */
#define FB_UNKNOWN_ENVIRONMENT (-3)

/**
 * A name that would leave the pool directory, is empty or too long.
 */
#define FB_BAD_NAME (-4)

/**
 * A box that does not lie inside the variable's shape.
 */
#define FB_BOX_OUTSIDE_SHAPE (-5)

/**
 * A variable that the version does not hold.
 */
#define FB_UNKNOWN_VARIABLE (-6)

/**
 * A component, command or file that a workflow names and that does not exist.
 */
#define FB_UNKNOWN_COMPONENT (-7)

/**
 * A version that is complete was put again.
 */
#define FB_VERSION_EXISTS (-8)

/**
 * Versions of a space follow each other without gaps; this one does not.
 */
#define FB_VERSION_OUT_OF_ORDER (-9)

/**
 * No step is open, or one is open already.
 */
#define FB_STEP_STATE (-10)

/**
 * The buffer's length, dtype or layout does not fit the box.
 */
#define FB_BUFFER_MISMATCH (-11)

/**
 * The box is not one contiguous range of one piece, so it cannot be viewed without a copy.
 */
#define FB_NOT_CONTIGUOUS (-12)

/**
 * The space exists with other options than the ones asked for.
 */
#define FB_OPTION_MISMATCH (-13)

/**
 * The array lies in the memory of a GPU that cannot be copied from or to.
 */
#define FB_DEVICE_MEMORY (-14)

/**
 * A job of several nodes, where only one node can be served.
 */
#define FB_SEVERAL_NODES (-20)

/**
 * The pool belongs to another host.
 */
#define FB_POOL_OWNED_ELSEWHERE (-21)

/**
 * This tier or mechanism is not available here.
 */
#define FB_NOT_POSSIBLE_HERE (-22)

/**
 * A live process already holds this rank of this space: two runs with one name.
 */
#define FB_NAME_IN_USE (-23)

/**
 * Ranks of one group disagree on its size.
 */
#define FB_GROUP_MISMATCH (-24)

/**
 * A component of a workflow failed.
 */
#define FB_COMPONENT_FAILED (-30)

/**
 * The operating system refused access.
 */
#define FB_PERMISSION_DENIED (-40)

/**
 * Insufficient capacity on the tier: file system, available memory or a memory cgroup.
 */
#define FB_TIER_FULL (-50)

/**
 * The space's quota is used up and nothing was released before the deadline.
 */
#define FB_QUOTA_FULL (-51)

/**
 * One version alone is larger than the quota.
 */
#define FB_VERSION_TOO_LARGE (-52)

/**
 * A fixed table (members, groups, lanes) has no free place.
 */
#define FB_TOO_MANY (-53)

/**
 * The deadline passed.
 */
#define FB_TIMED_OUT (-60)

/**
 * A producer rank died; its open versions are aborted.
 */
#define FB_PRODUCER_DIED (-61)

/**
 * No space of this name appeared, or declared ranks never joined.
 */
#define FB_PEER_MISSING (-62)

/**
 * A newer incarnation of the producers has taken over; this handle may not write any more.
 */
#define FB_FENCED (-63)

/**
 * Stored bytes do not match their checksum or make no sense.
 */
#define FB_DAMAGED (-70)

/**
 * A format version or feature that this build does not know.
 */
#define FB_UNKNOWN_FORMAT (-71)

/**
 * The pieces of a version leave part of the box uncovered.
 */
#define FB_BOX_NOT_COVERED (-72)

/**
 * Ranks disagree on a variable's dtype or global shape.
 */
#define FB_VARIABLE_MISMATCH (-73)

/**
 * The version was there and has been dropped.
 */
#define FB_VERSION_GONE (-74)

/**
 * A flush failed earlier; the pool no longer takes writes.
 */
#define FB_POISONED (-75)

/**
 * A handle was used in a forked child.
 */
#define FB_FORKED_HANDLE (-80)

/**
 * The handle is closed.
 */
#define FB_CLOSED (-81)

/**
 * The operating system reported an error that has no kind of its own.
 */
#define FB_IO (-82)

/**
 * A state that should be impossible.
 */
#define FB_INTERNAL (-83)


/**
 * Number of this ABI. Grows when a program built against an older header would no longer work.
 */
#define FB_ABI_VERSION 2

/**
 * Most dimensions that a variable can have.
 */
#define FB_DIMENSIONS_MAX 16

/**
 * As the first extent of a global shape in `fb_put` and `fb_reserve`: the variable is what all ranks put, one behind
 * the other along the first dimension in the order of ranks and puts. No rank has to know what the others bring;
 * `start` is 0 there. `fb_variable_info` has the whole extent.
 */
#define FB_CONCAT UINT64_MAX

/**
 * The call did what it says.
 */
#define FB_OK 0

/**
 * No error: every writer closed, and this reader has seen the last version.
 */
#define FB_END_OF_STREAM 1

/**
 * No error: there is no complete version yet, or no step of a checkpoint.
 */
#define FB_NOT_YET 2

/**
 * No error: the version is complete already and the option "mode" is "a"; the puts of this step
 * are accepted and dropped.
 */
#define FB_SKIPPED 3

/**
 * No error: fb_begin_read has opened a version.
 */
#define FB_STEP 4

/**
 * `fb_get`: whatever the variable holds.
 */
#define FB_ANY 0

/**
 * Truth value, one byte, 0 or 1.
 */
#define FB_BOOL 1

/**
 * Signed integer of 8 bits.
 */
#define FB_INT8 2

/**
 * Signed integer of 16 bits.
 */
#define FB_INT16 3

/**
 * Signed integer of 32 bits.
 */
#define FB_INT32 4

/**
 * Signed integer of 64 bits.
 */
#define FB_INT64 5

/**
 * Unsigned integer of 8 bits.
 */
#define FB_UINT8 6

/**
 * Unsigned integer of 16 bits.
 */
#define FB_UINT16 7

/**
 * Unsigned integer of 32 bits.
 */
#define FB_UINT32 8

/**
 * Unsigned integer of 64 bits.
 */
#define FB_UINT64 9

/**
 * IEEE 754 half precision.
 */
#define FB_FLOAT16 10

/**
 * The upper half of a single precision number.
 */
#define FB_BFLOAT16 11

/**
 * IEEE 754 single precision: `float`, `real(4)`.
 */
#define FB_FLOAT32 12

/**
 * IEEE 754 double precision: `double`, `real(8)`.
 */
#define FB_FLOAT64 13

/**
 * Two single precision numbers: real, imaginary.
 */
#define FB_COMPLEX64 14

/**
 * Two double precision numbers: real, imaginary.
 */
#define FB_COMPLEX128 15

/**
 * Bytes of a UTF-8 text, one element a byte.
 */
#define FB_STR 16

/**
 * Bytes of a file of which a part is in memory: made by fb_array_open, ended by fb_array_close. Unlike on
 * other handles, calls on one array from several threads go on side by side.
 */
typedef struct fb_array fb_array;

/**
 * Arrays of this process that are saved step by step: made by fb_checkpoint_open, ended by fb_checkpoint_close.
 */
typedef struct fb_checkpoint fb_checkpoint;

/**
 * How to open a space or a checkpoint: made by fb_options_new, filled by fb_options_set, ended by
 * fb_options_free. One set of options may open any number of writers, readers and checkpoints.
 */
typedef struct fb_options fb_options;

/**
 * A hard budget of memory that any number of arrays share: made by fb_pool_new, ended by fb_pool_free. Threads
 * may share it.
 */
typedef struct fb_pool fb_pool;

/**
 * One rank's end of a space that is read, made by fb_open_reader, or one version of it, made by fb_open_version;
 * ended by fb_close_reader.
 */
typedef struct fb_reader fb_reader;

/**
 * A file on a tier as writable memory: made by fb_map, ended by fb_unmap. Unlike on other handles, calls on one
 * region from several threads go on side by side; each range belongs to the thread that writes it.
 */
typedef struct fb_region fb_region;

/**
 * A tile of an array that stays in memory: made by fb_tile_pin, ended by fb_tile_unpin.
 */
typedef struct fb_tile fb_tile;

/**
 * A box of a variable in place: made by fb_open_view, ended by fb_view_free.
 */
typedef struct fb_view fb_view;

/**
 * A file as memory in a budget: made by fb_window_open, ended by fb_window_close. Any threads may touch the memory.
 */
typedef struct fb_window fb_window;

/**
 * One rank's end of a space that is written: made by fb_open_writer, ended by fb_close_writer.
 */
typedef struct fb_writer fb_writer;

/**
 * What fb_array_tiles calls for each tile: `context` is the caller's own, `data` are `bytes` bytes of the
 * array from `offset` on, valid during the call. 0 goes on; anything else ends fb_array_tiles, which returns
 * it.
 */
typedef int (*fb_tile_visitor)(void *context, uint64_t offset, void *data, size_t bytes);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The release of the library, for example "0.1.0". Never NULL, never freed, does not block.
 */
const char *fb_version_string(void);

/**
 * The ABI that the library was built with. A program is safe to run when it equals `FB_ABI_VERSION` of the
 * header it was compiled with. Does not block, cannot fail.
 */
int fb_abi_version(void);

/**
 * The whole text of the last error on this thread: kind, message, facts, hint and causes, in one or more
 * lines. Never NULL; empty before the first error. Valid until the next call on this thread that fails; not
 * to be freed. Does not block.
 */
const char *fb_last_error(void);

/**
 * What to do about the last error on this thread. Never NULL; empty when there is no hint. Valid until the
 * next call on this thread that fails; not to be freed. Does not block.
 */
const char *fb_last_error_hint(void);

/**
 * The name of an error code or status, for example "TimedOut" for FB_TIMED_OUT, "Ok" for FB_OK. Never NULL;
 * "Unknown" for a number that is neither. Not to be freed. Does not block.
 */
const char *fb_error_name(int code);

/**
 * The exit status that a program which ends with this code should have, so that scripts can tell errors
 * apart: 0 for FB_OK and the other statuses, 2 usage, 3 not possible here, 4 a component failed, 5
 * permission denied, 6 out of space, 7 timed out or peer missing, 8 data check failed, 70 internal. Does not
 * block, cannot fail.
 */
int fb_exit_code(int code);

/**
 * Bytes of one element of this type, or FB_USAGE when there is no such type. Does not block.
 */
int fb_dtype_size(int dtype);

/**
 * Name of the type as NumPy says it ("float64"), stored in `*name`. The text is never freed.
 * FB_USAGE when there is no such type. Does not block.
 */
int fb_dtype_name(int dtype, const char **name);

/**
 * Makes options that hold the defaults and stores them in `*options`. Does not block.
 */
int fb_options_new(fb_options **options);

/**
 * Sets one option; both key and value are texts. Does not block.
 *
 * Process:
 * - "rank" (a whole number; default: from the launcher, else 0; FOREBAY_RANK): Rank of this process in its
 *   group. Must be given together with "size"; without them a launcher provides both (srun, flux, mpiexec).
 * - "size" (a whole number; default: from the launcher, else 1; FOREBAY_SIZE): Number of processes of the
 *   group.
 * - "component" (1 to 64 bytes; default: the name of the program; FOREBAY_COMPONENT): Name of the component;
 *   of a reader: its reader group.
 *
 * Creation of a space (set by the first writer; later writers must agree):
 * - "channel" ("space", "files"; default: space; FOREBAY_CHANNEL_KIND): How the data are stored. "files": one
 *   file per object, the baseline for comparisons, with the same interface.
 * - "tier" ("dram", "numa:N", "numa:N+M", "file", "direct", "pmem"; default: that of the directory, else dram;
 *   FOREBAY_TIER): Tier of a new space. "dram": shared memory; "numa:N": memory of node N; "numa:N+M": pages
 *   interleaved over several nodes; "file": the page cache of a file system; "direct": direct I/O; "pmem": a
 *   directly mapped file system.
 * - "quota" (bytes, as 512MiB; default: a quarter of the free space when the space is created; FOREBAY_QUOTA):
 *   Limit of the bytes of a new space. A hard limit: a writer that is ahead waits for its readers, or does
 *   what "when_full" says.
 * - "spill" (DIRECTORY[,quota=SIZE][,tier=KIND], with ; between several; default: none; FOREBAY_SPILL): Lower
 *   tiers of a new space, the faster first. They take the data that exceed the first:
 *   "/scratch/me,quota=20GiB", several separated by ";".
 * - "when_full" ("block", "spill", "drop_oldest", "error"; default: spill with lower tiers, else block;
 *   FOREBAY_WHEN_FULL): What happens when a new space is full. "block": writers wait until their deadline;
 *   "spill": older data are moved to a lower tier; "drop_oldest": complete versions are dropped, oldest first,
 *   read or not, up to the first that a reader holds (an open step, a view), and beyond that writers wait;
 *   "error": the put fails at once.
 * - "segment" (bytes, as 512MiB; default: grows with the lane; FOREBAY_SEGMENT): Bytes that a writer allocates
 *   at once. Without it: as much as it already has, from 256 KiB to 64 MiB or a quarter of its share of the
 *   quota.
 * - "horizon" ("none", "epoch", "write"; default: none; FOREBAY_HORIZON): When stores are made persistent.
 *   "none": not by Forebay; "epoch": once per version, before it is complete; "write": with every store.
 * - "retention" ("released", "last:K", "forever"; default: released; FOREBAY_RETENTION): When a complete
 *   version is dropped. "released": when all registered readers have released it; "last:K": when K newer
 *   versions are complete and no reader holds it or an older one; "forever": never.
 * - "checksum" ("true", "false"; default: true; FOREBAY_CHECKSUM): CRC-32C of every payload. Can be turned off
 *   at horizon "none" only.
 *
 * Writer:
 * - "batch" (4KiB to 64MiB; default: none; FOREBAY_BATCH): Size of the batches in which writers collect small
 *   objects of a step. A batch is collected in memory and written to the tier with one operation. Durability
 *   does not change: data of a step are acknowledged when the step ends. Invalid at horizon "write" and in
 *   channels of files.
 * - "mode" ("w", "a", "x"; default: w): What happens to an existing space. "w": start over; "a": continue
 *   after the complete versions; "x": fail.
 * - "replace" ("true", "false"; default: false): With mode "w": also replace a space whose writers died. It is
 *   replaced although it has versions that no reader has read.
 * - "readers" (NAME:SIZE, with , between several; default: none; FOREBAY_READERS): Reader groups that will
 *   join, with their sizes. Versions are kept for them, and they keep a cursor.
 *
 * Reader:
 * - "group" (1 to 64 bytes; default: the component): Reader group of this rank; the group keeps a cursor. A
 *   group that is opened again, also after a kill or a reboot, continues after the last version that all its
 *   ranks ended. Without "group": the component, which keeps a cursor if a writer's "readers" names it.
 * - "observer" ("true", "false"; default: false): Open without registering as a reader. An observer has no
 *   cursor; no writer waits for it, and no version is kept for it, except those of which it holds a view.
 * - "verify" ("first", "always", "never"; default: first): When checksums are verified on read. "first": once
 *   per record and process.
 * - "latest" ("true", "false"; default: false): Start at the newest complete version, and skip to the newest
 *   at each step.
 * - "finished" ("true", "false"; default: false): Stream a space also when its writers ended before, in
 *   another run. Without it the first step waits for new writers.
 *
 * Writer and reader:
 * - "timeout" (seconds; default: 60; FOREBAY_TIMEOUT): Timeout of blocking calls in seconds. The error names
 *   the missing process. Calls with a timeout argument ignore it.
 * - "scope" ("job", "node"; default: job; FOREBAY_SCOPE): What rank and size refer to in a job of several
 *   nodes. "job": all ranks, which needs an agent on each node; "node": the ranks of this node are coupled.
 * - "absent" ("hold", "drop", "error"; default: the previous value, else hold): What writers do while a reader
 *   group that keeps a cursor is away. "hold": versions from its cursor on are kept, and a writer that finds
 *   the quota full waits and names the group; "drop": versions are dropped, and the group learns how many it
 *   missed; "error": the next step of a writer fails. A reader sets it for its group, a writer for those in
 *   "readers".
 *
 * Checkpoint:
 * - "levels" (a level with its options, as in file,keep=3; with ; between several; default: file): Levels of
 *   the checkpoint, the fastest first. A level is a tier ("dram", "numa:N", "file", "direct", "pmem"), a
 *   directory or "s3://BUCKET/PREFIX", optionally "+partner", "+xor:N" or "+rs:K+M" (redundancy between
 *   nodes), then options, as in "file,keep=3": "keep=N" retains the N newest steps, "every=N" each N-th
 *   permanently, "best=K" or "best=K:largest" the K best by the metric of the save.
 * - "when" (steps:N, seconds:S, optimum, optimum:MTBF, signal; with ; between several; default: optimum): When
 *   "need" returns true. After a number of steps, after a number of seconds, at the optimum for a mean time
 *   between failures in seconds, or when the job is about to end (SIGTERM, SIGUSR1). One rule that applies is
 *   enough.
 * - "incremental" (a whole number; default: 0): Interval of full steps; the steps between them contain changes
 *   only. 0: all steps are full. For levels that are not in memory and do not set it themselves.
 * - "compress" (none, zstd, zstd:LEVEL; default: none): Compression of chunks. For levels that are not in
 *   memory and do not set it themselves.
 * - "memory" (bytes, as 512MiB; default: two steps): Limit of the memory of this process's part in a level in
 *   memory.
 * - "program" (text; default: none): Name of the program: a directory into which another program saves is
 *   refused.
 *
 * A checkpoint takes "rank", "size", "scope" and "timeout" of these, and its own.
 *
 * FB_UNKNOWN_KEY with the nearest key in the hint, FB_USAGE when the value cannot be read.
 */
int fb_options_set(fb_options *options,
                   const char *key,
                   const char *value);

/**
 * Ends the options and sets `*options` to NULL. Handles that were opened with them are not touched. Does not
 * block.
 */
int fb_options_free(fb_options **options);

/**
 * Opens `name` to write and stores the handle in `*writer`. A short name lies below FOREBAY_DIR (default
 * /dev/shm/forebay-UID); one that contains a slash is a path. The first rank makes the space. `options`
 * may be NULL. Does not wait for other ranks or for readers, only for the first pages of the pool to be
 * faulted in.
 *
 * FB_BAD_NAME, FB_NAME_IN_USE (a live process holds this rank), FB_GROUP_MISMATCH (ranks disagree on the
 * size), FB_OPTION_MISMATCH (the space exists with other options), FB_TIER_FULL, FB_PERMISSION_DENIED,
 * FB_POOL_OWNED_ELSEWHERE, FB_SEVERAL_NODES, FB_NOT_POSSIBLE_HERE, FB_UNKNOWN_ENVIRONMENT,
 * FB_UNKNOWN_FORMAT, FB_DAMAGED.
 */
int fb_open_writer(const char *name, const fb_options *options, fb_writer **writer);

/**
 * Rank and size of this writer's group, as given or found in the environment. Either output may be NULL.
 * Does not block.
 */
int fb_writer_rank(fb_writer *writer, uint32_t *rank, uint32_t *size);

/**
 * What an acknowledged step survives: "process crash", "OS crash" or "power failure", stored in `*text`. The
 * text lives as long as the writer. Does not block.
 */
int fb_writer_durability(fb_writer *writer, const char **text);

/**
 * After a restart: finds the first version that is not complete, stores it in `*version` (may be NULL) and
 * goes on from there. Every rank of the new group must call it before its first step. Does not wait for
 * other ranks.
 *
 * FB_STEP_STATE (a step is open), FB_FENCED (a newer incarnation took over).
 */
int fb_resume(fb_writer *writer, uint64_t *version);

/**
 * Begins the next version and stores its number in `*version` (may be NULL). Does not wait.
 *
 * FB_STEP_STATE (a step is open), FB_VERSION_EXISTS (after a restart without fb_resume), FB_PRODUCER_DIED
 * (another rank of this group), FB_FENCED.
 */
int fb_begin_step(fb_writer *writer, uint64_t *version);

/**
 * Begins this version, for programs that count their steps themselves. Does not wait.
 *
 * FB_SKIPPED (no error) when the version is complete and the option "mode" is "a": a step is open, its puts are
 * dropped, fb_end_step ends it. FB_VERSION_EXISTS when it is complete in another mode, FB_VERSION_OUT_OF_ORDER
 * when it would leave a gap; else the errors of fb_begin_step.
 */
int fb_begin_version(fb_writer *writer,
                     uint64_t version);

/**
 * Puts one piece of variable `name` into the open step: `shape` is the variable's whole shape, the same on
 * every rank, `start` and `count` the box that `data` holds (each `ndim` numbers; NULL as said at the top).
 * `data` is copied and may be changed as soon as the call returns. A variable may be put in any number of
 * pieces that do not overlap. Waits, until the timeout, when the quota is used up; the step is durable after
 * fb_end_step only.
 *
 * FB_STEP_STATE (no step is open), FB_BOX_OUTSIDE_SHAPE, FB_VARIABLE_MISMATCH (dtype or shape differ from
 * what another rank put), FB_BAD_NAME, FB_VERSION_TOO_LARGE, FB_QUOTA_FULL, FB_TIER_FULL, FB_POISONED,
 * FB_FENCED.
 */
int fb_put(fb_writer *writer,
           const char *name,
           int dtype,
           int ndim,
           const uint64_t *shape,
           const uint64_t *start,
           const uint64_t *count,
           const void *data);

/**
 * Puts many objects into the open step, each whole and under a name of its own: `names[i]` is a variable of
 * `shape` (`ndim` numbers) whose elements are the i-th part of `data`, which holds all `objects` of them one
 * behind the other. As that many calls of fb_put, but what a call costs is paid once. After an error the objects
 * before the one that it names (see fb_last_error) are in the step: put the rest, or fb_abort_step.
 *
 * Blocking and errors: those of fb_put.
 */
int fb_put_many(fb_writer *writer,
                size_t objects,
                const char *const *names,
                int dtype,
                int ndim,
                const uint64_t *shape,
                const void *data);

/**
 * Reserves space for one piece and stores its address in `*data`: the pool itself where the tier is byte
 * addressable, so that the program can compute into it and nothing is copied. The parameters are those of
 * fb_put. Fill all of it, then call fb_commit with the same address. The memory ends with fb_commit
 * (whatever that returns), fb_abort_step or fb_close_writer, and must not be touched after that. It is
 * aligned as malloc() does, to 64 bytes where it is the pool; what it holds at first is unspecified.
 *
 * Blocking and errors: those of fb_put.
 */
int fb_reserve(fb_writer *writer,
               const char *name,
               int dtype,
               int ndim,
               const uint64_t *shape,
               const uint64_t *start,
               const uint64_t *count,
               void **data);

/**
 * Hands in the piece whose memory fb_reserve stored as `data`; its checksum is computed here. The memory
 * must not be touched any more. Does not wait for other processes.
 *
 * FB_USAGE (no such reservation), FB_STEP_STATE, FB_TIER_FULL, FB_POISONED, FB_FENCED.
 */
int fb_commit(fb_writer *writer, const void *data);

/**
 * Ends the step: this rank's part of the version is acknowledged under the horizon of the space (see
 * DURABILITY at the top). The version becomes visible to readers when the last rank has returned from here.
 * Does not wait for other ranks.
 *
 * FB_STEP_STATE (no step is open, or a reservation was not committed), FB_TIER_FULL, FB_POISONED (a flush
 * failed), FB_PRODUCER_DIED, FB_FENCED, FB_IO. After an error the version does not count and the step is
 * still open: try again, or fb_abort_step.
 */
int fb_end_step(fb_writer *writer);

/**
 * Drops what this rank put into the open step, and its reservations; the version can be begun again. Does
 * not wait for other ranks. Without an open step it does nothing.
 */
int fb_abort_step(fb_writer *writer);

/**
 * Ends the writer and sets `*writer` to NULL, whatever is returned. When every rank has closed, readers get
 * FB_END_OF_STREAM after the last version; an open step is aborted. Does not wait for readers.
 */
int fb_close_writer(fb_writer **writer);

/**
 * Opens `name` to read and stores the handle in `*reader`. The name is found as in fb_open_writer; `options`
 * may be NULL. Waits, until the timeout, for the space to appear. Ranks of one reader group ("component",
 * "size") share the versions: one goes when every rank of every group released it.
 *
 * FB_PEER_MISSING (no such space before the deadline), FB_BAD_NAME, FB_NAME_IN_USE, FB_GROUP_MISMATCH,
 * FB_PERMISSION_DENIED, FB_POOL_OWNED_ELSEWHERE, FB_SEVERAL_NODES, FB_UNKNOWN_ENVIRONMENT,
 * FB_UNKNOWN_FORMAT, FB_DAMAGED.
 */
int fb_open_reader(const char *name, const fb_options *options, fb_reader **reader);

/**
 * Rank and size of this reader's group, as given or found in the environment. Either output may be NULL.
 * Does not block.
 */
int fb_reader_rank(fb_reader *reader, uint32_t *rank, uint32_t *size);

/**
 * Goes to the next version that this reader has not seen, waiting for it at most `timeout` seconds, and
 * stores its number in `*version` (may be NULL). The version stays until fb_end_read.
 *
 * Returns FB_STEP when a version is open, FB_END_OF_STREAM (no error either) after the last version of writers
 * that all closed; never FB_OK. FB_TIMED_OUT (names the ranks that are missing), FB_PRODUCER_DIED (names the
 * rank; after every complete version was seen, then at once and not after the timeout), FB_PEER_MISSING (the
 * space was removed), FB_STEP_STATE (a step is open), FB_DAMAGED.
 */
int fb_begin_read(fb_reader *reader,
                  double timeout,
                  uint64_t *version);

/**
 * Stores in `*missed` how many versions were dropped, unread by this reader, between the version before and the one
 * that is open; after FB_END_OF_STREAM those behind the last one. 0 unless the space drops what is not read
 * ("retention", "when_full", "absent"). Does not block.
 */
int fb_missed(fb_reader *reader,
              uint64_t *missed);

/**
 * Releases the version that fb_begin_read began; when every reader has, its memory may be used again (views keep
 * theirs). When it returns the version counts as read: a group that keeps a cursor is not given it again, once all its
 * ranks have come that far. Does not block, but at a durable horizon for the medium. FB_STEP_STATE (no step is open).
 */
int fb_end_read(fb_reader *reader);

/**
 * Waits at most `timeout` seconds until this version is complete; does not make it the current one.
 *
 * FB_TIMED_OUT, FB_PRODUCER_DIED, FB_PEER_MISSING, FB_VERSION_GONE (it was complete and has been dropped).
 */
int fb_wait(fb_reader *reader, uint64_t version, double timeout);

/**
 * Opens a retained version and stores a handle of it in `*opened`: a reader whose only step is that version,
 * which is begun already. Any number can be open at once, mixed with fb_begin_read of `reader`, whose stream
 * stays where it is. Each holds its version until fb_end_read or fb_close_reader of the handle, also when
 * `reader` is closed. Does not wait.
 *
 * FB_VERSION_GONE, FB_TIMED_OUT (it is not complete; fb_wait waits for it), FB_DAMAGED.
 */
int fb_open_version(fb_reader *reader, uint64_t version, fb_reader **opened);

/**
 * Stores the newest complete version in `*version`, or returns FB_NOT_YET when there is none. Does not
 * block.
 */
int fb_latest(fb_reader *reader, uint64_t *version);

/**
 * Stores the range of retained complete versions: from `*begin`, up to but without `*end`; equal when there
 * are none. Does not block; a version of the range may be dropped at any time unless it is being read.
 */
int fb_versions(fb_reader *reader, uint64_t *begin, uint64_t *end);

/**
 * Stores the number of variables of the current version in `*count`. Does not block. FB_STEP_STATE (there is
 * no current version), FB_DAMAGED.
 */
int fb_variable_count(fb_reader *reader, size_t *count);

/**
 * Stores the name of the variable with this index (from 0) in `*name`. The text is valid until the current
 * version changes or ends. Does not block. FB_USAGE (no such index), FB_STEP_STATE, FB_DAMAGED.
 */
int fb_variable_name(fb_reader *reader, size_t index, const char **name);

/**
 * Stores element type, number of dimensions and whole shape of a variable of the current version. `shape`
 * holds `capacity` numbers (FB_DIMENSIONS_MAX is always enough); each output may be NULL. Does not block.
 *
 * FB_UNKNOWN_VARIABLE (the hint names the nearest), FB_BUFFER_MISMATCH (more dimensions than `capacity`:
 * `*dtype` and `*ndim` are stored all the same), FB_STEP_STATE, FB_VARIABLE_MISMATCH, FB_DAMAGED.
 */
int fb_variable_info(fb_reader *reader,
                     const char *name,
                     int *dtype,
                     int *ndim,
                     uint64_t *shape,
                     int capacity);

/**
 * Copies a box of a variable of the current version into `buffer`, gathering it from the pieces that the
 * writers put. `dtype` is the type of the buffer's elements (FB_ANY does not check); `ndim`, `start` and
 * `count` are the box, and with start = count = NULL the whole variable is meant, whatever `ndim` says.
 * `bytes` is the size of the buffer and must be exactly the size of the box. Does not wait; nothing is kept
 * of the buffer.
 *
 * FB_UNKNOWN_VARIABLE, FB_BOX_OUTSIDE_SHAPE, FB_BUFFER_MISMATCH (dtype or bytes), FB_BOX_NOT_COVERED (no
 * writer put some of it; the buffer's content is then unspecified), FB_STEP_STATE, FB_VERSION_GONE,
 * FB_DAMAGED.
 */
int fb_get(fb_reader *reader,
           const char *name,
           int dtype,
           int ndim,
           const uint64_t *start,
           const uint64_t *count,
           void *buffer,
           size_t bytes);

/**
 * Copies many whole variables of the current version into `buffer`, one behind the other in the order of
 * `names`: all of the same size, `bytes` in all. `dtype` is their type (FB_ANY does not check). As that many
 * calls of fb_get, but what a call costs is paid once. An error names the object (see fb_last_error); those
 * before it are in the buffer by then.
 *
 * FB_UNKNOWN_VARIABLE, FB_BUFFER_MISMATCH (dtype or bytes), FB_BOX_NOT_COVERED, FB_STEP_STATE,
 * FB_VERSION_GONE, FB_DAMAGED.
 */
int fb_get_many(fb_reader *reader,
                size_t objects,
                const char *const *names,
                int dtype,
                void *buffer,
                size_t bytes);

/**
 * Ends the reader and its membership of its group for good, and sets `*reader` to NULL, whatever is returned: nothing
 * is kept for this rank any more, and its cursor is forgotten. One that comes again begins at the oldest version.
 * Views stay valid until they are freed.
 *
 * FB_TIMED_OUT, FB_PEER_MISSING (the space was removed).
 */
int fb_leave_reader(fb_reader **reader);

/**
 * Ends the reader and sets `*reader` to NULL, whatever is returned. A group that keeps a cursor goes on there when it
 * is opened again (options "group", "absent"; fb_leave_reader ends it for good); any other holds nothing back any
 * more. Views stay valid until they are freed. Does not block.
 */
int fb_close_reader(fb_reader **reader);

/**
 * Opens a view of a box of the current version and stores it in `*view`. The parameters are those of fb_get;
 * the box must be one contiguous range of one piece. Nothing is copied. Does not wait.
 *
 * FB_NOT_CONTIGUOUS (use fb_get), else the errors of fb_get.
 */
int fb_open_view(fb_reader *reader,
                 const char *name,
                 int dtype,
                 int ndim,
                 const uint64_t *start,
                 const uint64_t *count,
                 fb_view **view);

/**
 * Stores the address of the first element in `*data` and the size in `*bytes` (may be NULL). The memory is
 * read-only (a store ends the program) and valid until fb_view_free. Does not block.
 */
int fb_view_data(const fb_view *view, const void **data, size_t *bytes);

/**
 * Stores version, element type, number of dimensions and the count of the box. `count` holds `capacity` numbers; each
 * output may be NULL. Does not block. FB_BUFFER_MISMATCH (more dimensions than `capacity`: the others are stored all
 * the same).
 */
int fb_view_info(const fb_view *view,
                 uint64_t *version,
                 int *dtype,
                 int *ndim,
                 uint64_t *count,
                 int capacity);

/**
 * Ends the view and sets `*view` to NULL; its memory must not be touched any more. Does not block.
 */
int fb_view_free(fb_view **view);

/**
 * Sets an attribute of the space to a text. Replaces what was there; any rank may set it. Does not wait.
 * FB_BAD_NAME (an empty or too long key), FB_TOO_MANY, FB_FENCED.
 */
int fb_attribute_set_text(fb_writer *writer, const char *key, const char *value);

/**
 * Sets an attribute of the space to a whole number. As fb_attribute_set_text.
 */
int fb_attribute_set_int64(fb_writer *writer, const char *key, int64_t value);

/**
 * Sets an attribute of the space to a number. As fb_attribute_set_text.
 */
int fb_attribute_set_double(fb_writer *writer, const char *key, double value);

/**
 * Copies a text attribute into `buffer`, with NUL, and stores the bytes it needs, with NUL, in `*needed`
 * (may be NULL). To learn the size, ask with bytes = 0 and buffer = NULL. Does not block.
 *
 * FB_UNKNOWN_KEY (the hint names the nearest), FB_BUFFER_MISMATCH (not a text, or more than `bytes`:
 * `*needed` is stored all the same).
 */
int fb_attribute_get_text(fb_reader *reader, const char *key, char *buffer, size_t bytes, size_t *needed);

/**
 * Stores a whole-number attribute in `*value`; a truth value counts as 0 or 1. Does not block.
 * FB_UNKNOWN_KEY, FB_BUFFER_MISMATCH (it is of another type).
 */
int fb_attribute_get_int64(fb_reader *reader, const char *key, int64_t *value);

/**
 * Stores a number attribute in `*value`; a whole number is converted. Does not block. FB_UNKNOWN_KEY,
 * FB_BUFFER_MISMATCH (it is of another type).
 */
int fb_attribute_get_double(fb_reader *reader, const char *key, double *value);

/**
 * Names the `ndim` dimensions of a variable of the open step, in C's order. One rank is enough. Does not block.
 *
 * FB_USAGE (an empty or too long name), FB_STEP_STATE, FB_VARIABLE_MISMATCH (named otherwise before in this step).
 * Readers get FB_VARIABLE_MISMATCH when ranks name them differently, or not as many as the variable has.
 */
int fb_describe_dims(fb_writer *writer,
                     const char *variable,
                     int ndim,
                     const char *const *dims);

/**
 * Sets an attribute of a variable of the open step to a text; with `variable` NULL or empty, of the version itself.
 * The last value counts, of several ranks that of the highest. Does not block. FB_USAGE (an empty or too long key,
 * too long a text), FB_STEP_STATE.
 */
int fb_describe_text(fb_writer *writer,
                     const char *variable,
                     const char *key,
                     const char *value);

/**
 * Sets an attribute of a variable or of the version to a whole number. As fb_describe_text.
 */
int fb_describe_int64(fb_writer *writer, const char *variable, const char *key, int64_t value);

/**
 * Sets an attribute of a variable or of the version to a number. As fb_describe_text.
 */
int fb_describe_double(fb_writer *writer, const char *variable, const char *key, double value);

/**
 * Copies the name of dimension `index` (from 0, in C's order) of a variable of the current version into `buffer`, as
 * fb_attribute_get_text copies a text. Does not block.
 *
 * FB_UNKNOWN_KEY (its writers named no dimensions, or not so many), FB_UNKNOWN_VARIABLE, FB_BUFFER_MISMATCH (more
 * than `bytes`: `*needed` is stored all the same), FB_VARIABLE_MISMATCH, FB_STEP_STATE, FB_DAMAGED.
 */
int fb_described_dim(fb_reader *reader,
                     const char *variable,
                     int index,
                     char *buffer,
                     size_t bytes,
                     size_t *needed);

/**
 * Copies a text attribute of a variable of the current version, or of the version itself where `variable` is NULL or
 * empty, into `buffer`, as fb_attribute_get_text does. Does not block.
 *
 * FB_UNKNOWN_KEY (the hint names the nearest), FB_UNKNOWN_VARIABLE, FB_BUFFER_MISMATCH (not a text, or more than
 * `bytes`: `*needed` is stored all the same), FB_VARIABLE_MISMATCH, FB_STEP_STATE, FB_DAMAGED.
 */
int fb_described_text(fb_reader *reader,
                      const char *variable,
                      const char *key,
                      char *buffer,
                      size_t bytes,
                      size_t *needed);

/**
 * Stores a whole-number attribute of a variable of the current version, or of the version itself where `variable` is
 * NULL or empty, in `*value`; a truth value counts as 0 or 1. Does not block. As fb_described_text.
 */
int fb_described_int64(fb_reader *reader,
                       const char *variable,
                       const char *key,
                       int64_t *value);

/**
 * Stores a number attribute of a variable of the current version, or of the version itself where `variable` is NULL or
 * empty, in `*value`; a whole number is converted. Does not block. As fb_described_text.
 */
int fb_described_double(fb_reader *reader,
                        const char *variable,
                        const char *key,
                        double *value);

/**
 * Maps the file `path`, of exactly `bytes` bytes (0: the size of the file that is there), and stores the handle in
 * `*region`. `tier` is "dram", "numa:N" (memory of node N, where dram is), "numa:N+M" (of both in turn), "pmem" or
 * "file", and the directory must be on it ("file" is possible everywhere); NULL finds out. `mode` is "a+" (open
 * it, or make it when it is not there;
 * NULL is the same), "r+" (it must be there), "r" (it must be there; for reading only), "x+" (it must not be there)
 * or "w+" (what is there is removed first). A new file holds zeros, is 0600, and appears when it is complete.
 *
 * Free space is checked before a page is touched, and pages are faulted in except on file (some 0.2 ms per MiB). Waits
 * a few seconds at most for others that allocate in the same directory. Symbolic links are not followed in the last
 * part of the path.
 *
 * FB_TIER_FULL, FB_NOT_POSSIBLE_HERE (the directory is not on this tier, there is no such
 * node, or the tier cannot be mapped),
 * FB_OPTION_MISMATCH (the file has another size), FB_PERMISSION_DENIED; FB_IO also when the file is missing, or is
 * there and must not be; FB_USAGE also when it is no regular file, or new and without a size.
 */
int fb_map(const char *path,
           size_t bytes,
           const char *tier,
           const char *mode,
           fb_region **region);

/**
 * Stores the address of the first byte in `*data` and the size in `*bytes` (may be NULL). The address is a multiple
 * of 2 MiB, at least of a page; the memory is valid until fb_unmap, in a forked child as well. In mode "r" a store
 * into it ends the program. Other processes that map the file see stores at once. Does not block.
 */
int fb_region_data(const fb_region *region,
                   void **data,
                   size_t *bytes);

/**
 * Stores the tier ("dram", "numa:0", "pmem", "file") in `*tier` and what a persisted range survives ("process crash",
 * "power failure") in `*durability`; either may be NULL. The texts live as long as the region. Does not block.
 */
int fb_region_info(const fb_region *region,
                   const char **tier,
                   const char **durability);

/**
 * Makes `bytes` bytes from `offset` (in bytes) on persistent, however they were stored. On pmem their cache lines
 * are written back and fenced; on file the pages that they touch go to the disk (one msync), which blocks for
 * milliseconds; on dram and numa:N there is nothing to persist to, and it is one fence.
 *
 * FB_USAGE (a range outside), FB_PERMISSION_DENIED (mode "r"), FB_POISONED: the first flush that fails poisons the
 * handle for good, since the kernel may have dropped the pages that it could not write.
 */
int fb_persist(fb_region *region,
               size_t offset,
               size_t bytes);

/**
 * Copies `bytes` bytes from `data` to `offset` (in bytes) and makes them persistent, in one pass: as a copy and
 * fb_persist, but on pmem from 256 bytes on, and on dram from 16 KiB on, past the cache. `data` may lie in the
 * region itself, but not overlap the range.
 *
 * The errors of fb_persist; FB_USAGE also for overlapping ranges; on file also FB_TIER_FULL: a part may then have
 * been copied.
 */
int fb_copy_persist(fb_region *region,
                    size_t offset,
                    const void *data,
                    size_t bytes);

/**
 * Unmaps the memory, which must not be touched any more, and sets `*region` to NULL. The file stays; what was not
 * persisted stays in it too, and survives the end of the program but no more. Does not block.
 */
int fb_unmap(fb_region **region);

/**
 * Makes a pool that never holds more than `budget` bytes of memory, for data and for what is known of it, and
 * stores it in `*pool`. `tile_max` is the longest tile of any array in it, in bytes; 0 takes what the budget
 * allows, 2 MiB at most. FB_USAGE when the budget holds fewer than two such tiles, FB_TIER_FULL. Does not
 * block.
 */
int fb_pool_new(uint64_t budget, size_t tile_max, fb_pool **pool);

/**
 * Stores one number of what the pool has done and holds in `*value`: "loaded", "written", "evicted" (tiles),
 * "hits" (touched tiles that were there), "frame_bytes", "table_bytes", "budget" (bytes). FB_UNKNOWN_KEY. Does
 * not block.
 */
int fb_pool_statistic(const fb_pool *pool,
                      const char *name,
                      uint64_t *value);

/**
 * Ends the pool and sets `*pool` to NULL; arrays in it stay open and keep their memory. Does not block.
 */
int fb_pool_free(fb_pool **pool);

/**
 * Opens `bytes` bytes from `offset` on of the file `path` (bytes 0: up to its end) as an array in `pool` and
 * stores the handle in `*array`.
 *
 * `mode` is "r" (read), "r+" (read and write; the file must be there), "a+" (the same, or make it when it is
 * not there; NULL is the same), "x+" (make it; it must not be there) or "c" (writes stay with this handle;
 * what does not fit the budget lies in a file without a name beside the data). A new file holds zeros, and its
 * blocks are reserved. `tile` is what moves together, a power of two from 4096 to the pool's longest; 0 is 64
 * KiB, or the pool's longest. `policy` says which tiles leave first: "s3fifo" (NULL), "clock", or "none" for
 * data that streams through. `horizon` says when writes become durable: "epoch" (NULL: with fb_array_flush and
 * fb_array_close), "write" (each call), "none" (with fb_array_flush alone).
 *
 * FB_USAGE, FB_DAMAGED (the file is too short), FB_TIER_FULL (the disk is full, or the budget too small for the table
 * of its tiles), FB_NAME_IN_USE ("x+"), FB_PERMISSION_DENIED. Blocks while space is reserved.
 */
int fb_array_open(fb_pool *pool,
                  const char *path,
                  const char *mode,
                  uint64_t offset,
                  uint64_t bytes,
                  size_t tile,
                  const char *policy,
                  const char *horizon,
                  fb_array **array);

/**
 * Stores the bytes of data, the length of a tile, the number of tiles and the way that data moves ("direct":
 * past the page cache; "cached": through it, so that the kernel's memory comes on top of the budget), each of
 * which may be NULL. The text lives as long as the array. Does not block.
 */
int fb_array_info(const fb_array *array, uint64_t *bytes, size_t *tile, uint64_t *tiles, const char **method);

/**
 * Copies `bytes` bytes of the array from `offset` on to `data`, reading ahead with many requests in flight.
 * Blocks until they are there. FB_BOX_OUTSIDE_SHAPE, or what the read failed with: `data` then holds anything.
 */
int fb_array_read(const fb_array *array,
                  uint64_t offset,
                  void *data,
                  size_t bytes);

/**
 * Copies `bytes` bytes from `data` to `offset` of the array. They go to the file when memory is needed, and
 * durably with fb_array_flush. Blocks while tiles are evicted. FB_BOX_OUTSIDE_SHAPE, FB_PERMISSION_DENIED (mode
 * "r"), FB_POISONED, or what a read failed with: then a part may have been written.
 */
int fb_array_write(fb_array *array,
                   uint64_t offset,
                   const void *data,
                   size_t bytes);

/**
 * Copies the `number` items of `item` bytes each that `indices` names (item i begins at byte i * item) to
 * `data`, one behind the other, with many requests in flight. Blocks until they are there. The errors of
 * fb_array_read.
 */
int fb_array_gather(const fb_array *array, const uint64_t *indices, size_t number, size_t item, void *data);

/**
 * Copies `number` items of `item` bytes each from `data`, one behind the other, to the places that `indices`
 * names; of an index that is there twice the last one stays. The errors of fb_array_write.
 */
int fb_array_scatter(fb_array *array, const uint64_t *indices, size_t number, size_t item, const void *data);

/**
 * Begins to read `bytes` bytes from `offset` on, as far as they fit, and does not wait for them. Only a
 * hint: errors are those of who touches the data later.
 */
int fb_array_prefetch(const fb_array *array, uint64_t offset, uint64_t bytes);

/**
 * Calls `visitor` once for each tile, in the order of `tiles` (`number` numbers from 0 on; NULL: all of them
 * from first to last), reading the next ones ahead. With `write` other than 0 the visitor may change the data
 * (then `tiles` must be NULL), which is written behind; without it a store is an error that is not noticed.
 * Returns what the visitor returned if that is not 0. The errors of fb_array_read and fb_array_write.
 */
int fb_array_tiles(fb_array *array,
                   const uint64_t *tiles,
                   size_t number,
                   int write,
                   fb_tile_visitor visitor,
                   void *context);

/**
 * Keeps tile `tile` (from 0) in memory and stores its handle in `*pin`, the address of its data in `*data`,
 * the byte of the array where it begins in `*offset` and its length in `*bytes` (the latter two may be NULL).
 * With `write` other than 0 the data may be changed, and no other thread sees the tile until fb_tile_unpin; else a
 * store into it is an error that is not noticed, and others may pin it, too. Blocks until it is there;
 * FB_TIMED_OUT when all of the budget is pinned, or another thread has the tile to write it, for a minute. The
 * errors of fb_array_read and fb_array_write.
 */
int fb_tile_pin(fb_array *array,
                uint64_t tile,
                int write,
                fb_tile **pin,
                void **data,
                uint64_t *offset,
                size_t *bytes);

/**
 * Ends a pin and sets `*pin` to NULL; its memory must not be touched any more. Does not block.
 */
int fb_tile_unpin(fb_tile **pin);

/**
 * Writes back what was changed and makes it durable; blocks until it is. Nothing happens in modes "r" and "c".
 * What could not be written stays in memory, and the call may be made again; after FB_POISONED (the medium's
 * own flush failed) it is unknown what it holds, and nothing can be written any more.
 */
int fb_array_flush(fb_array *array);

/**
 * Ends the array and sets `*array` to NULL: as fb_array_flush, except with horizon "none", where it does not
 * wait for the medium. Its file stays. FB_USAGE when there are pins: the array then stays open. With any other
 * error what could not be written is lost, and the array is ended all the same.
 */
int fb_array_close(fb_array **array);

/**
 * Opens `bytes` bytes from `offset` on of the file `path` (bytes 0: up to its end) as a window and stores the handle
 * in `*window`. No more than `budget` bytes of it are in memory, with what is known of them.
 *
 * `mode` is "r" (read; NULL is the same), "r+" (read and write) or "c" (writes stay with this handle); the file must
 * be there. `tile` is what moves together, a power of two from 4096 to 2 MiB; 0 is 64 KiB. `engine` is "userfault"
 * (the thread that touches what is not there reads it in its own handler of SIGBUS), "handler" (threads answer, also
 * when a system call touches it), "kernel" (a mapping whose pages are sent away) or "direct" (a mapping of a file in
 * memory); NULL takes what fits. Who touches a page that cannot be read gets SIGBUS, after a line on stderr.
 *
 * FB_USAGE, FB_DAMAGED (the file is too short), FB_NOT_POSSIBLE_HERE (this engine is not available),
 * FB_PERMISSION_DENIED, FB_TIER_FULL. Does not block.
 */
int fb_window_open(const char *path,
                   const char *mode,
                   uint64_t offset,
                   uint64_t bytes,
                   uint64_t budget,
                   size_t tile,
                   const char *engine,
                   fb_window **window);

/**
 * Stores the address of the first byte in `*data` and the size in `*bytes` (may be NULL). Touching a byte that is not
 * there brings it, which blocks for as long as the medium takes. In mode "r" a store ends the program; in a child of
 * fork() so does every touch. With engine "userfault" system calls that are given an address in it fail with EFAULT
 * where nothing is there yet. Does not block.
 */
int fb_window_data(const fb_window *window,
                   void **data,
                   uint64_t *bytes);

/**
 * Stores how it works in `*engine` ("userfault", "handler", "kernel", "direct") and why so in `*why`; either may be
 * NULL. The texts live as long as the window. Does not block.
 */
int fb_window_engine(const fb_window *window,
                     const char **engine,
                     const char **why);

/**
 * Stores one number of what it has done and holds in `*value`: "faults", "read_bytes", "written_bytes",
 * "evicted_bytes", "resident_bytes", "resident_peak", "failures" (pages that could not be read). FB_UNKNOWN_KEY.
 * Does not block.
 */
int fb_window_statistic(const fb_window *window,
                        const char *name,
                        uint64_t *value);

/**
 * Says what the program will do next, of `bytes` bytes from `offset` on: "prefetch" begins to bring them,
 * "will_stream" says that they will be read from front to back, "done_with" sends them away (written back where they
 * were changed). For the whole window, whatever the range: "random" brings nothing beside what is touched,
 * "sequential" that all will be read from front to back, "normal" finds runs by itself. Only hints: none of them can
 * go wrong, but FB_UNKNOWN_KEY for another word.
 */
int fb_window_advise(fb_window *window,
                     const char *hint,
                     uint64_t offset,
                     uint64_t bytes);

/**
 * Writes back what was stored and makes it durable; blocks until it is. Nothing is written in modes "r" and "c". What
 * could not be written is still there, and the call may be made again; after FB_POISONED (the medium's own flush
 * failed) it is unknown what it holds.
 */
int fb_window_flush(fb_window *window);

/**
 * Ends the window, whose memory must not be touched any more, and sets `*window` to NULL: as fb_window_flush, whose
 * errors it has; what could not be written is lost then.
 */
int fb_window_close(fb_window **window);

/**
 * Opens the checkpoint directory `path`, made if it is missing, as one rank of a new run of the program, and stores
 * the handle in `*checkpoint`. `options` may be NULL; it knows "rank", "size", "scope" and "timeout" as for a space
 * (ranks come from the environment of srun, flux or mpiexec when they are not given), and "levels", "when", "program"
 * and "memory", see fb_options_set. All ranks give the same path and levels. Does not wait for other ranks.
 *
 * FB_NAME_IN_USE (a live process holds this rank), FB_OPTION_MISMATCH (another program saves there),
 * FB_NOT_POSSIBLE_HERE (a level's directory is not on its tier), FB_UNKNOWN_KEY (an option of a level),
 * FB_UNKNOWN_FORMAT, FB_DAMAGED, FB_PERMISSION_DENIED, FB_SEVERAL_NODES, FB_UNKNOWN_ENVIRONMENT.
 */
int fb_checkpoint_open(const char *path,
                       const fb_options *options,
                       fb_checkpoint **checkpoint);

/**
 * Makes an array part of every step: the box (`start`, `count`) of a variable of this `shape`, as for fb_put. `data`
 * is its memory, read by each save and written by each restore; it must stay until fb_checkpoint_close and not overlap
 * another one. An array that ranks share has its global shape and each rank's box; one that every rank protects whole
 * is each rank's own.
 *
 * Called again with the same name, type, shape and box it takes the new memory instead: after a realloc, or when a
 * program swaps two buffers. Does not block.
 *
 * FB_BAD_NAME, FB_BOX_OUTSIDE_SHAPE; FB_USAGE also when the name is protected as another array.
 */
int fb_checkpoint_protect(fb_checkpoint *checkpoint,
                          const char *name,
                          int dtype,
                          int ndim,
                          const uint64_t *shape,
                          const uint64_t *start,
                          const uint64_t *count,
                          void *data);

/**
 * Allocates the space for two steps in the first level, so that the first saves take no longer than later ones. Blocks
 * while pages are allocated (some 0.2 ms per MiB on memory). FB_TIER_FULL.
 */
int fb_checkpoint_prepare(fb_checkpoint *checkpoint);

/**
 * Saves the protected arrays as they are now; `step` is larger than every step this run saved before. Returns when
 * the first level holds them, which is when it survives what that level says (fb_checkpoint_level); a thread carries
 * it down to the others. Waits, at most for the timeout, when the first level has no free space before an earlier step
 * has gone down. After an error the older steps are all there, and the next call tries again.
 *
 * FB_VERSION_OUT_OF_ORDER, FB_TIER_FULL, FB_FENCED (a later run has begun), FB_TIMED_OUT, FB_PRODUCER_DIED; also
 * what went wrong on the way down since the last call: this step was not saved then.
 */
int fb_checkpoint_save(fb_checkpoint *checkpoint,
                       uint64_t step);

/**
 * As fb_checkpoint_save, with a number that says how good the step is: levels with "best=K" keep the K best (see
 * fb_options_set). Of several ranks rank 0's number counts. FB_USAGE also when it is not a number.
 */
int fb_checkpoint_save_metric(fb_checkpoint *checkpoint,
                              uint64_t step,
                              double metric);

/**
 * Stores in `*need` 1 when this step is to be saved, as the option "when" says, else 0. All ranks ask for the same
 * steps in the same order and get the same answer. Looks at a clock; of several ranks the others wait for rank 0.
 * FB_TIMED_OUT, FB_VERSION_OUT_OF_ORDER, FB_PRODUCER_DIED.
 */
int fb_checkpoint_need(fb_checkpoint *checkpoint,
                       uint64_t step,
                       int *need);

/**
 * Waits until the newest saved step is committed by all ranks in every level down to `level` (from 0; -1 is the last
 * one), at most for the timeout, and stores it in `*step` (may be NULL). FB_NOT_YET (no error) when nothing was saved.
 * What went wrong on the way down; FB_TIMED_OUT, FB_PRODUCER_DIED; FB_USAGE also when there is no such level.
 */
int fb_checkpoint_wait(fb_checkpoint *checkpoint,
                       int level,
                       uint64_t *step);

/**
 * Loads the newest step that is whole into the protected arrays and stores its number in `*step` (may be NULL). All
 * ranks call it and get the same step, compared with its checksums. FB_NOT_YET (no error) when nothing was ever
 * saved: the arrays are untouched. What was looked at and not taken, and a saved step that is lost, are written to
 * stderr, a line each; fb_checkpoint_report has them, too. Waits for other ranks, at most for the timeout.
 *
 * The reason of the newest step when none could be taken (FB_DAMAGED and others); FB_VERSION_GONE (steps had been
 * saved and no level has one), FB_UNKNOWN_VARIABLE, FB_VARIABLE_MISMATCH, FB_BOX_NOT_COVERED (the program protects
 * something else than was saved), FB_COMPONENT_FAILED (another rank does), FB_TIMED_OUT. The arrays then hold
 * anything.
 */
int fb_checkpoint_restore_latest(fb_checkpoint *checkpoint,
                                 uint64_t *step);

/**
 * As fb_checkpoint_restore_latest for this step. FB_VERSION_GONE when no level has it.
 */
int fb_checkpoint_restore(fb_checkpoint *checkpoint, uint64_t step);

/**
 * What the last restore took and what it did not: `*text`, for a person, in one or more lines; `*rejected`, how many
 * copies were looked at and not taken; `*lost`, the newest step that had been saved and is newer than the one
 * restored, or -1. Any of them may be NULL. The text lives until the next restore. FB_NOT_YET (no error) before a
 * restore has taken a step. Does not block.
 */
int fb_checkpoint_report(fb_checkpoint *checkpoint,
                         const char **text,
                         uint64_t *rejected,
                         int64_t *lost);

/**
 * Number of this run (it grows with every start of the program), rank and size as given or found in the environment,
 * and the number of levels. Any of them may be NULL. Does not block.
 */
int fb_checkpoint_info(fb_checkpoint *checkpoint,
                       uint64_t *run,
                       uint32_t *rank,
                       uint32_t *size,
                       int *levels);

/**
 * One level, from 0: its directory, tier ("dram", "file" and so on), what a committed step survives there ("process
 * crash", "power failure"), and the newest step of this process that it has (-1: none). Any of them may be NULL. The
 * texts live as long as the checkpoint. FB_USAGE when there is no such level. Does not block.
 */
int fb_checkpoint_level(fb_checkpoint *checkpoint,
                        int level,
                        const char **dir,
                        const char **tier,
                        const char **durability,
                        int64_t *step);

/**
 * Stores one number of what was measured in `*value`: "saves" (how many), and in seconds "blocked_s" (all saves),
 * "cost_s" (one of late), "carried_s" (the way of one down to the last level), "restore_s" (the last restore).
 * FB_UNKNOWN_KEY. Does not block.
 */
int fb_checkpoint_statistic(fb_checkpoint *checkpoint,
                            const char *name,
                            double *value);

/**
 * Waits until every step has arrived in the last level, leaves the run and sets `*checkpoint` to NULL. A process that
 * ends without it counts as one that failed. What went wrong on the way down; the checkpoint is ended all the same.
 */
int fb_checkpoint_close(fb_checkpoint **checkpoint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
