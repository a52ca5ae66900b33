/* Programs that know nothing of windows: each checks its own arrays, says its peak of memory and then "ok". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CHECK(what)                                                         \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

static size_t bytes;

static void *mapped(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void fill(uint64_t *array, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size / 8; i++) array[i] = i * 2654435761u + seed;
}

static void compare(const uint64_t *array, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size / 8; i++) CHECK(array[i] == i * 2654435761u + seed);
}

static int zeros(const char *memory, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (memory[i]) return 0;
    return 1;
}

/* Two arrays, swept several times. */
static void stream(void) {
    size_t n = bytes / 16;
    double *a = malloc(n * 8), *b = mapped(n * 8);
    CHECK(a && b);
    for (size_t i = 0; i < n; i++) a[i] = (double)i;
    for (size_t i = 0; i < n; i++) {
        CHECK(b[i] == 0);
        b[i] = 2 * a[i];
    }
    for (size_t i = 0; i < n; i++) a[i] += b[i];
    for (size_t i = 0; i < n; i++) CHECK(a[i] == 3.0 * (double)i);
    free(a);
    CHECK(munmap(b, n * 8) == 0);
}

/* What the manual says of allocations. */
static void heap(void) {
    uint64_t *a = malloc(2 * MIB);
    fill(a, 2 * MIB, 1);
    CHECK(malloc_usable_size(a) >= 2 * MIB);
    a = realloc(a, 20 * MIB);
    compare(a, 2 * MIB, 1);
    fill(a, 20 * MIB, 2);
    uint64_t *between = malloc(MIB);
    a = realloc(a, 24 * MIB);
    compare(a, 20 * MIB, 2);
    a = realloc(a, 1000);
    compare(a, 1000, 2);
    CHECK(malloc_usable_size(a) >= 1000);
    a = realloc(a, 3 * MIB);
    compare(a, 1000, 2);
    char *words[100];
    for (int i = 0; i < 100; i++) CHECK(asprintf(&words[i], "%0*d", 10 * i + 1, i) == 10 * i + 1);
    for (int i = 0; i < 100; i++) {
        CHECK(malloc_usable_size(words[i]) > strlen(words[i]) && atoi(words[i]) == i);
        free(words[i]);
    }
    free(between);
    free(a);
    for (int round = 0; round < 3; round++) {
        char *c = calloc(3, 4 * MIB);
        CHECK(c && zeros(c, 12 * MIB));
        memset(c, 7, 12 * MIB);
        free(c);
    }
    volatile size_t too_many = SIZE_MAX / 2;
    CHECK(calloc(too_many, 3) == NULL);
    void *aligned = NULL;
    for (size_t alignment = 64; alignment <= 2 * MIB; alignment *= 8) {
        CHECK(posix_memalign(&aligned, alignment, 2 * MIB) == 0);
        CHECK((uintptr_t)aligned % alignment == 0);
        free(aligned);
    }
    CHECK(posix_memalign(&aligned, 24, MIB) == EINVAL);
    aligned = aligned_alloc(4096, 2 * MIB);
    CHECK((uintptr_t)aligned % 4096 == 0);
    free(aligned);
}

/* What the manual says of mappings. */
static void maps(void) {
    size_t size = 8 * MIB;
    char *m = mapped(size);
    CHECK(zeros(m, size));
    memset(m, 1, size);
    CHECK(madvise(m + 4096, 3 * MIB, MADV_DONTNEED) == 0);
    CHECK(m[0] == 1 && zeros(m + 4096, 3 * MIB) && m[4096 + 3 * MIB] == 1);
    CHECK(munmap(m, 4096) == 0 && munmap(m + size - MIB, MIB) == 0);
    CHECK(m[3 * MIB + 4096] == 1 && m[size - MIB - 1] == 1);
    CHECK(munmap(m + 4096, size - MIB - 4096) == 0);
    uint64_t *grows = mapped(2 * MIB);
    fill(grows, 2 * MIB, 5);
    grows = mremap(grows, 2 * MIB, 2 * MIB - 4096, 0);
    grows = mremap(grows, 2 * MIB - 4096, 16 * MIB, MREMAP_MAYMOVE);
    CHECK(grows != MAP_FAILED);
    compare(grows, 2 * MIB - 4096, 5);
    CHECK(zeros((char *)grows + 2 * MIB - 4096, 14 * MIB + 4096));
    fill(grows, 16 * MIB, 6);
    uint64_t *behind = mapped(MIB);
    grows = mremap(grows, 16 * MIB, 20 * MIB, MREMAP_MAYMOVE);
    compare(grows, 16 * MIB, 6);
    CHECK(zeros((char *)grows + 16 * MIB, 4 * MIB));
    CHECK(munmap(behind, MIB) == 0 && munmap(grows, 20 * MIB) == 0);
}

struct transfer {
    int fd;
    char *memory;
    size_t size;
};

static void *send_all(void *given) {
    struct transfer *t = given;
    for (size_t done = 0; done < t->size;) {
        ssize_t sent = send(t->fd, t->memory + done, t->size - done, 0);
        CHECK(sent > 0);
        done += (size_t)sent;
    }
    return NULL;
}

/* The system reads and writes arrays that are not there. */
static void calls(const char *folder) {
    size_t size = bytes / 2;
    uint64_t *a = malloc(size), *b = malloc(size);
    char path[4096];
    snprintf(path, sizeof path, "%s/data-%ld", folder, (long)getpid());
    fill(a, size, 9);
    memset(b, 1, size);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && unlink(path) == 0);
    CHECK(write(fd, a, size) == (ssize_t)size);
    CHECK(pread(fd, b, size, 0) == (ssize_t)size);
    compare(b, size, 9);
    memset(b, 2, size);
    FILE *file = fdopen(dup(fd), "r+");
    rewind(file);
    CHECK(fread(b, 8, size / 8, file) == size / 8);
    compare(b, size, 9);
    fill(a, size, 10);
    rewind(file);
    CHECK(fwrite(a, 8, size / 8, file) == size / 8 && fflush(file) == 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    char head[24];
    struct iovec parts[] = {{head, sizeof head},
                            {(char *)b + sizeof head, size / 2},
                            {(char *)b + sizeof head + size / 2, size / 2 - sizeof head}};
    CHECK(readv(fd, parts, 3) == (ssize_t)size);
    memcpy(b, head, sizeof head);
    compare(b, size, 10);
    CHECK(pwritev(fd, parts, 3, 0) == (ssize_t)size);
    CHECK(fclose(file) == 0 && close(fd) == 0);
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    memset(b, 3, size);
    struct transfer t = {ends[0], (char *)a, size};
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send_all, &t) == 0);
    CHECK(recv(ends[1], b, size, MSG_WAITALL) == (ssize_t)size);
    CHECK(pthread_join(sender, NULL) == 0);
    compare(b, size, 10);
    CHECK(send(ends[0], a, 100, 0) == 100);
    CHECK(recv(ends[1], b, size, 0) == 100);
    CHECK(read(-1, b, size) == -1 && errno == EBADF);
    free(a);
    free(b);
}

static void *receive_all(void *given) {
    struct transfer *t = given;
    return (void *)(recv(t->fd, t->memory, t->size, MSG_WAITALL) == (ssize_t)t->size ? t : NULL);
}

/* Many threads wait for data, with arrays that are more than the budget, while another one works; and messages. */
static void waits(void) {
    enum { THREADS = 8 };
    size_t size = bytes / 8;
    int ends[THREADS][2];
    pthread_t threads[THREADS];
    struct transfer transfers[THREADS];
    /* A hang is an error, and not the end of the tests. */
    alarm(200);
    for (int i = 0; i < THREADS; i++) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]) == 0);
        transfers[i] = (struct transfer){ends[i][0], malloc(size), size};
        memset(transfers[i].memory, i, size);
        CHECK(pthread_create(&threads[i], NULL, receive_all, &transfers[i]) == 0);
    }
    usleep(100000);
    uint64_t *a = malloc(bytes);
    fill(a, bytes, 1);
    compare(a, bytes, 1);
    for (int i = 0; i < THREADS; i++) {
        struct transfer t = {ends[i][1], (char *)a + i * size, size};
        send_all(&t);
    }
    for (int i = 0; i < THREADS; i++) {
        void *got;
        CHECK(pthread_join(threads[i], &got) == 0 && got == &transfers[i]);
        CHECK(memcmp(transfers[i].memory, (char *)a + i * size, size) == 0);
        free(transfers[i].memory);
    }
    int pair[2], buffer = 4 * MIB;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    /* Longer messages only for who may. */
    int may = setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer) == 0;
    size_t message = may ? 5 * MIB / 2 : 100000;
    char *b = malloc(4 * MIB);
    CHECK(send(pair[0], a, message, 0) == (ssize_t)message && send(pair[0], a, 7, 0) == 7);
    CHECK(recv(pair[1], b, 4 * MIB, 0) == (ssize_t)message && memcmp(a, b, message) == 0);
    CHECK(read(pair[1], b, 4 * MIB) == 7);
    struct iovec parts[] = {{a, message / 2}, {(char *)a + message / 2, message - message / 2}};
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK(writev(pair[0], parts, 2) == (ssize_t)message && recv(pair[1], b, 4 * MIB, 0) == (ssize_t)message);
    CHECK(sendmsg(pair[0], &header, 0) == (ssize_t)message);
    struct iovec to[] = {{b, 1000}, {b + 1000, 4 * MIB - 1000}};
    header = (struct msghdr){.msg_iov = to, .msg_iovlen = 2};
    memset(b, 0, message);
    CHECK(recvmsg(pair[1], &header, 0) == (ssize_t)message && memcmp(a, b, message) == 0);
    free(a);
    free(b);
}

/* One array after the other, faster than a disk takes them. */
static void rush(void) {
    for (uint64_t round = 0; round < 2 * bytes / (4 * MIB); round++) {
        uint64_t *a = malloc(4 * MIB), *b = malloc(4 * MIB);
        fill(a, 4 * MIB, round);
        memcpy(b, a, 4 * MIB);
        free(round % 2 ? a : b);
        compare(round % 2 ? b : a, 4 * MIB, round);
    }
}

/* One long array, stored faster than a disk takes it. */
static void one(void) {
    uint64_t *a = malloc(bytes);
    fill(a, bytes, 7);
    compare(a, bytes, 7);
    free(a);
}

/* The system writes by itself what fits into the budget. The program ends in one of the ways there are. */
static void synced(const char *end) {
    uint64_t *a = malloc(bytes);
    fill(a, bytes, 7);
    sync();
    if (!strcmp(end, "_exit")) _exit(0);
    if (!strcmp(end, "quick_exit")) quick_exit(0);
    if (!strcmp(end, "execvp")) execvp("true", (char *[]){"true", NULL});
    if (!strcmp(end, "vfork")) {
        /* The child shares this process's memory, and must not use up its check. */
        if (vfork() == 0) {
            execvp("true", (char *[]){"true", NULL});
            _exit(127);
        }
        _exit(0);
    }
    free(a);
}

/* Calls that the C library makes itself, or that are made past it, reach arrays that are not there. */
static void inner(const char *folder) {
    size_t size = bytes / 4;
    char *a = malloc(size), *buffer = malloc(MIB), *b = malloc(size), path[4096];
    snprintf(path, sizeof path, "%s/inner-%ld", folder, (long)getpid());
    memset(a, 'x', size - 1);
    a[size - 1] = 0;
    FILE *file = fopen(path, "w+");
    CHECK(file && setvbuf(file, buffer, _IOFBF, MIB) == 0);
    memset(b, 1, size);
    for (size_t i = 0; i < 3 * MIB; i += 1024) CHECK(fprintf(file, "%01023zu\n", i) == 1024);
    CHECK(fputs(a, file) >= 0 && fflush(file) == 0);
    memset(b, 1, size);
    rewind(file);
    for (size_t i = 0; i < 3 * MIB; i += 1024) {
        size_t seen;
        CHECK(fscanf(file, "%zu", &seen) == 1 && seen == i);
    }
    CHECK(getc(file) == '\n' && fgets(b, (int)size, file) == b && strcmp(a, b) == 0);
    int fd = fileno(file);
    memset(a, 2, size);
    CHECK(getrandom(b, size, 0) == (ssize_t)size && getentropy(b, 256) == 0);
    size_t different = 0;
    for (size_t i = 0; i < size; i++) different += b[i] != 'x';
    CHECK(different > size / 2);
    memset(a, 3, size);
    struct iovec part = {b, MIB};
    CHECK(preadv2(fd, &part, 1, 3 * MIB, 0) == (ssize_t)MIB && zeros(b, MIB) == 0 && b[0] == 'x');
    memset(a, 4, size);
    CHECK(syscall(SYS_pread64, fd, b, MIB, 0) == (ssize_t)MIB && b[1022] == '0' && b[1023] == '\n');
    memset(a, 5, size);
    struct stat *seen = (struct stat *)(b + size / 2);
    CHECK(fstat(fd, seen) == 0 && seen->st_size == (off_t)(3 * MIB + size - 1));
    memset(a, 6, size);
    strcpy(b, path);
    memset(a, 7, size);
    CHECK(access(b, F_OK) == 0 && unlink(b) == 0 && readlink("/proc/self/exe", b, 4096) > 0);
    CHECK(fclose(file) == 0);
    free(a);
    free(b);
    free(buffer);
}

/* fork, with and without exec: who forks and who is forked have the same arrays, and then each its own. */
static void forks(char *self) {
    size_t size = bytes / 2;
    uint64_t *a = malloc(size), *b = calloc(size, 1);
    fill(a, size, 3);
    CHECK(system("test -n \"$FOREBAY_MEM\" && cat /proc/self/status >/dev/null") == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        compare(a, size, 3);
        CHECK(zeros((char *)b, size));
        fill(b, size, 5);
        a = realloc(a, size / 2);
        compare(a, size / 2, 3);
        free(a);
        uint64_t *own = malloc(bytes / 4);
        fill(own, bytes / 4, 4);
        compare(own, bytes / 4, 4);
        compare(b, size, 5);
        pid_t grandchild = fork();
        CHECK(grandchild >= 0);
        if (grandchild == 0) {
            compare(b, size, 5);
            compare(own, bytes / 4, 4);
            _exit(7);
        }
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        free(own);
        execl(self, self, "heap", "16", (char *)NULL);
        _exit(9);
    }
    fill(a, size, 6);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    compare(a, size, 6);
    CHECK(zeros((char *)b, size));
    free(a);
    free(b);
}

/* A program that closes what it did not open, and opens files after that. */
static void closes(const char *folder) {
    uint64_t *a = malloc(bytes);
    fill(a, bytes, 5);
    for (int fd = 3; fd < 1024; fd++) CHECK(close(fd) == 0 || errno == EBADF);
    CHECK(close_range(3, ~0U, 0) == 0);
    closefrom(3);
    int fds[600];
    for (int i = 0; i < 600; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/closes-%ld-%d", folder, (long)getpid(), i);
        fds[i] = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        CHECK(fds[i] >= 3 && unlink(path) == 0);
    }
    for (int fd = 3; fd < 1024; fd++) {
        int mine = 0;
        for (int i = 0; i < 600; i++) mine |= fds[i] == fd;
        CHECK(mine || (dup2(0, fd) == fd ? close(fd) == 0 : errno == EBADF));
    }
    compare(a, bytes, 5);
    fill(a, bytes, 6);
    compare(a, bytes, 6);
    for (int i = 0; i < 600; i++) {
        struct stat found;
        CHECK(fstat(fds[i], &found) == 0 && found.st_size == 0 && close(fds[i]) == 0);
    }
    free(a);
}

static volatile sig_atomic_t own_handler;

static void on_bus(int signal) {
    (void)signal;
    own_handler++;
}

static void *touch_all(void *given) {
    compare(given, bytes, 11);
    return NULL;
}

/* A program's own handler for SIGBUS, and threads that block every signal. */
static void signals(void) {
    struct sigaction action = {.sa_handler = on_bus};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    uint64_t *a = malloc(bytes);
    fill(a, bytes, 11);
    CHECK(raise(SIGBUS) == 0 && own_handler == 1);
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    compare(a, bytes, 11);
    CHECK(raise(SIGBUS) == 0 && own_handler == 2);
    sigset_t all, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, touch_all, a) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    free(a);
}

static void *churn(void *given) {
    uint64_t seed = (uint64_t)(uintptr_t)given + 1, *mine[4] = {0};
    for (int round = 0; round < 40; round++) {
        size_t at = (size_t)(seed >> 33) % 4, size = MIB + (size_t)(seed >> 40) % (2 * MIB) / 8 * 8;
        if (mine[at]) {
            compare(mine[at], MIB, (uint64_t)at);
            free(mine[at]);
        }
        mine[at] = malloc(size);
        fill(mine[at], size, (uint64_t)at);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    }
    for (int at = 0; at < 4; at++) free(mine[at]);
    return NULL;
}

/* Allocations that come and go in several threads. */
static void threads(void) {
    pthread_t all[4];
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, churn, (void *)i) == 0);
    for (size_t i = 0; i < 4; i++) CHECK(pthread_join(all[i], NULL) == 0);
}

/* Several processes in one budget. */
static void share(char *self, char *size) {
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            execl(self, self, "stream", size, (char *)NULL);
            _exit(9);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void say_peak(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (strncmp(line, "VmHWM:", 6) == 0) printf("peak %ld\n", atol(line + 6));
    fclose(status);
}

int main(int count, char **words) {
    CHECK(count >= 3);
    bytes = (size_t)atol(words[2]) * MIB;
    const char *what = words[1];
    if (!strcmp(what, "stream")) stream();
    else if (!strcmp(what, "heap")) heap();
    else if (!strcmp(what, "maps")) maps();
    else if (!strcmp(what, "calls")) calls(words[3]);
    else if (!strcmp(what, "rush")) rush();
    else if (!strcmp(what, "one")) one();
    else if (!strcmp(what, "synced")) synced(words[3]);
    else if (!strcmp(what, "waits")) waits();
    else if (!strcmp(what, "inner")) inner(words[3]);
    else if (!strcmp(what, "forks")) forks(words[0]);
    else if (!strcmp(what, "signals")) signals();
    else if (!strcmp(what, "closes")) closes(words[3]);
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "share")) share(words[0], words[2]);
    else return 2;
    say_peak();
    puts("ok");
    return 0;
}
