/* Calls that are given addresses in long allocations, in every form that programs use: stdio with placed buffers and
 * long strings, vectors, messages, random bytes, structures at the end of an array, system calls past the C library.
 *
 * Usage: stdio MEBIBYTES. Prints a checksum per form, the same whatever memory the arrays lie in. Between two forms
 * another array is swept, so that the buffers have left a small budget by the time they are used.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static unsigned char *other;
static size_t other_bytes;
static const char *path = "stdio-data";

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

#define must(what)               \
    do {                         \
        if (!(what)) fail(#what); \
    } while (0)

/* Stores into another array, which pushes everything else out of a small budget. */
static void sweep(void) {
    for (size_t i = 0; i < other_bytes; i += 512) other[i] += 1;
}

static uint64_t sum(const void *memory, size_t bytes) {
    const unsigned char *at = memory;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

static unsigned char *array(size_t bytes, unsigned seed) {
    unsigned char *made = malloc(bytes);
    must(made);
    for (size_t i = 0; i < bytes; i++) made[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
    sweep();
    return made;
}

/* As above, without zeros and line ends. */
static char *text(size_t bytes, unsigned seed) {
    char *made = (char *)array(bytes + 1, seed);
    for (size_t i = 0; i < bytes; i++) made[i] = (char)('a' + (unsigned char)made[i] % 26);
    made[bytes] = 0;
    sweep();
    return made;
}

static void say(const char *form, const void *memory, size_t bytes) {
    printf("%s %zu %016llx\n", form, bytes, (unsigned long long)sum(memory, bytes));
}

static void streams(size_t n) {
    char *buffer = (char *)array(4 * MIB, 1), *string = text(n, 2), *back = (char *)array(n + 2, 3);
    FILE *file = fopen(path, "w+");
    must(file);
    must(setvbuf(file, buffer, _IOFBF, 4 * MIB) == 0);
    must(fputs(string, file) >= 0 && fputc('\n', file) == '\n');
    must(fprintf(file, "%s\n", string) == (int)n + 1);
    must(fwrite(string, 1, n, file) == n);
    sweep();
    must(fflush(file) == 0);
    rewind(file);
    must(fgets(back, (int)n + 2, file));
    say("fgets", back, n + 1);
    char *line = NULL;
    size_t capacity = 0;
    must(getline(&line, &capacity, file) == (ssize_t)n + 1);
    say("getline", line, n + 1);
    sweep();
    must(fread(back, 1, n, file) == n);
    say("fread", back, n);
    must(fseek(file, 0, SEEK_SET) == 0 && fscanf(file, "%s", back) == 1);
    say("fscanf", back, strlen(back));
    must(fclose(file) == 0);
    char *made = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&made, &bytes);
    must(memory);
    for (int i = 0; i < 4; i++) must(fwrite(string, 1, n / 2, memory) == n / 2);
    must(fclose(memory) == 0);
    say("open_memstream", made, bytes);
    char *own = (char *)array(n, 4);
    memory = fmemopen(own, n, "r");
    must(memory && fread(back, 1, n, memory) == n && fclose(memory) == 0);
    say("fmemopen", back, n);
    string[MIB] = 0;
    sweep();
    must(puts(string) >= 0 && fflush(stdout) == 0);
    free(buffer), free(string), free(back), free(line), free(made), free(own);
}

static void descriptors(size_t n) {
    unsigned char *from = array(n, 5), *to = array(n, 6);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0);
    struct iovec *parts = (struct iovec *)array(MIB, 7);
    for (int i = 0; i < 4; i++) parts[i] = (struct iovec){from + (size_t)i * n / 4, n / 4};
    must(writev(fd, parts, 4) == (ssize_t)n);
    for (int i = 0; i < 4; i++) parts[i].iov_base = to + (size_t)(3 - i) * n / 4;
    sweep();
    must(preadv(fd, parts, 4, 0) == (ssize_t)n);
    say("preadv", to, n);
    sweep();
    must(pwritev2(fd, parts, 4, 0, 0) == (ssize_t)n);
    for (int i = 0; i < 4; i++) parts[i].iov_base = to + (size_t)i * n / 4;
    must(preadv2(fd, parts, 4, 0, 0) == (ssize_t)n);
    say("preadv2", to, n);
    sweep();
    must(syscall(SYS_pwrite64, fd, from, n, (off_t)0) == (long)n);
    memset(to, 0, n);
    sweep();
    must(syscall(SYS_pread64, fd, to, n, (off_t)0) == (long)n);
    say("pread64 past the C library", to, n);
    must(lseek(fd, 0, SEEK_SET) == 0 && syscall(SYS_write, fd, to, n) == (long)n);
    must(lseek(fd, 0, SEEK_SET) == 0);
    sweep();
    must(syscall(SYS_read, fd, from, n) == (long)n);
    say("read past the C library", from, n);
    off_t *offset = (off_t *)(from + n - 8);
    *offset = 4096;
    int copy = open("stdio-copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(copy >= 0);
    sweep();
    must(sendfile(copy, fd, offset, MIB) == (ssize_t)MIB && *offset == 4096 + (off_t)MIB);
    *offset = 0;
    must(copy_file_range(fd, offset, copy, NULL, MIB, 0) > 0);
    printf("copy_file_range %d\n", *offset > 0);
    close(copy), close(fd);
    int direct = open(path, O_RDWR | O_DIRECT);
    unsigned char *aligned = NULL;
    must(posix_memalign((void **)&aligned, 4096, n) == 0);
    memset(aligned, 0, n);
    sweep();
    if (direct < 0) direct = open(path, O_RDWR);
    must(pread(direct, aligned, n, 0) == (ssize_t)n);
    say("O_DIRECT read", aligned, n);
    for (size_t i = 0; i < n; i++) aligned[i] ^= 0x5a;
    sweep();
    must(pwrite(direct, aligned, n, 0) == (ssize_t)n);
    memset(aligned, 0, n);
    must(pread(direct, aligned, n, 0) == (ssize_t)n);
    sweep();
    say("O_DIRECT write", aligned, n);
    close(direct);
    free(from), free(to), free(parts), free(aligned);
}

/* Structures that the kernel stores, each in the last bytes of an array. */
static void structures(size_t n) {
    unsigned char *memory = array(n, 8);
    struct stat *seen = (struct stat *)(memory + n - sizeof *seen);
    must(stat(path, seen) == 0 && S_ISREG(seen->st_mode));
    printf("stat %lld\n", (long long)seen->st_size);
    sweep();
    must(syscall(SYS_statx, AT_FDCWD, path, 0, 0x7ff, memory + n / 2) == 0);
    must(symlink(path, "stdio-link") == 0);
    sweep();
    ssize_t long_ = readlink("stdio-link", (char *)memory + n / 4, n / 4);
    must(long_ > 0);
    say("readlink", memory + n / 4, (size_t)long_);
    must(unlink("stdio-link") == 0);
    sweep();
    must(getcwd((char *)memory, n));
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    sweep();
    long listed = syscall(SYS_getdents64, folder, memory, n);
    must(listed > 0);
    int names = 0;
    for (long at = 0; at < listed; names++) at += *(unsigned short *)(memory + at + 16);
    printf("getdents64 %d\n", names);
    close(folder);
    char *name = (char *)memory + n - 4096;
    strcpy(name, path);
    sweep();
    must(access(name, R_OK) == 0);
    int fd = open(name, O_RDONLY);
    must(fd >= 0);
    int *left = (int *)(memory + 8192);
    sweep();
    must(ioctl(fd, FIONREAD, left) == 0);
    printf("ioctl %d\n", *left);
    close(fd);
    struct timespec *time_ = (struct timespec *)(memory + 4096 * 3);
    sweep();
    must(clock_gettime(CLOCK_MONOTONIC, time_) == 0 && time_->tv_sec > 0);
    *time_ = (struct timespec){0, 1000};
    sweep();
    must(nanosleep(time_, NULL) == 0);
    free(memory);
}

static void random_bytes(size_t n) {
    unsigned char *memory = malloc(n);
    must(memory);
    memset(memory, 0, n);
    sweep();
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom(memory + done, n - done, 0);
        must(got > 0);
        done += (size_t)got;
    }
    size_t empty = 0;
    for (size_t page = 0; page + 4096 <= n; page += 4096) {
        int some = 0;
        for (size_t i = 0; i < 64; i++) some |= memory[page + i * 64];
        empty += !some;
    }
    printf("getrandom %zu\n", empty);
    free(memory);
}

struct half {
    int fd;
    unsigned char *memory;
    size_t bytes;
};

static void *send_all(void *given) {
    struct half *half = given;
    for (size_t done = 0; done < half->bytes;) {
        struct iovec part = {half->memory + done, half->bytes - done};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        ssize_t sent = sendmsg(half->fd, &message, 0);
        must(sent > 0);
        done += (size_t)sent;
    }
    return NULL;
}

static void messages(size_t n) {
    int pair[2];
    pthread_t thread;
    unsigned char *from = array(n, 9), *to = array(n, 10);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct half half = {pair[0], from, n};
    sweep();
    must(pthread_create(&thread, NULL, send_all, &half) == 0);
    must(recv(pair[1], to, n, MSG_WAITALL) == (ssize_t)n);
    pthread_join(thread, NULL);
    say("sendmsg and recv", to, n);
    struct pollfd *polled = (struct pollfd *)(to + n - sizeof *polled);
    *polled = (struct pollfd){pair[1], POLLIN, 0};
    must(write(pair[0], "x", 1) == 1);
    sweep();
    printf("poll %d\n", poll(polled, 1, 1000) == 1 && polled->revents == POLLIN);
    int epoll = epoll_create1(0);
    struct epoll_event *events = (struct epoll_event *)from;
    events[0] = (struct epoll_event){EPOLLIN, {.u64 = 7}};
    sweep();
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], events) == 0);
    sweep();
    must(epoll_wait(epoll, events + 1, 100, 1000) == 1 && events[1].data.u64 == 7);
    puts("epoll 1");
    close(epoll), close(pair[0]), close(pair[1]);
    int pipes[2];
    must(pipe(pipes) == 0);
    memset(from, 7, 64 * 1024);
    struct iovec part = {from, 32 * 1024};
    sweep();
    must(vmsplice(pipes[1], &part, 1, 0) == 32 * 1024);
    sweep();
    for (size_t done = 0; done < 32 * 1024;) {
        ssize_t got = read(pipes[0], to + done, 32 * 1024 - done);
        must(got > 0);
        done += (size_t)got;
    }
    say("vmsplice", to, 32 * 1024);
    close(pipes[0]), close(pipes[1]);
    free(from), free(to);
}

/* Asynchronous reads, and memory of a process named by itself. */
static void past_the_library(size_t n) {
    unsigned char *to = array(n, 11);
    aio_context_t context = 0;
    int fd = open(path, O_RDONLY);
    if (syscall(SYS_io_setup, 8, &context) == 0) {
        struct iocb one = {0}, *all = &one;
        struct io_event *event = (struct io_event *)(to + n - sizeof *event);
        one.aio_fildes = (unsigned)fd;
        one.aio_lio_opcode = IOCB_CMD_PREAD;
        one.aio_buf = (uint64_t)(uintptr_t)to;
        one.aio_nbytes = n / 2;
        sweep();
        must(syscall(SYS_io_submit, context, 1, &all) == 1);
        must(syscall(SYS_io_getevents, context, 1, 1, event, NULL) == 1);
        must(event->res == (long)(n / 2));
        syscall(SYS_io_destroy, context);
    } else {
        must(pread(fd, to, n / 2, 0) == (ssize_t)(n / 2));
    }
    close(fd);
    say("io_submit", to, n / 2);
    struct iovec there = {to, n / 2}, here = {to + n / 2, n / 2};
    sweep();
    ssize_t moved = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (moved < 0) memcpy(to + n / 2, to, n / 2);
    say("process_vm_readv", to + n / 2, n / 2);
    free(to);
}

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    sem_t done;
    long count;
};

static void *count(void *given) {
    struct shared *shared = given;
    for (int i = 0; i < 2000; i++) {
        pthread_mutex_lock(&shared->mutex);
        shared->count++;
        if (i % 500 == 0) sweep();
        pthread_cond_signal(&shared->more);
        pthread_mutex_unlock(&shared->mutex);
    }
    sem_post(&shared->done);
    return NULL;
}

static volatile sig_atomic_t handled;
static void handler(int number) {
    char there[4096];
    memset(there, number, sizeof there);
    handled += there[17] == number;
}

/* Locks, stacks and stacks of handlers in an array, and a program whose arguments lie there. */
static void threads(size_t n) {
    unsigned char *memory = array(n, 12);
    struct shared *shared = (struct shared *)(memory + n - 4096);
    memset(shared, 0, sizeof *shared);
    pthread_mutex_init(&shared->mutex, NULL), pthread_cond_init(&shared->more, NULL);
    sem_init(&shared->done, 0, 0);
    pthread_t all[3];
    pthread_attr_t attributes;
    for (int i = 0; i < 3; i++) {
        pthread_attr_init(&attributes);
        uintptr_t stack = ((uintptr_t)memory + (size_t)i * 512 * 1024 + 65535) / 65536 * 65536;
        must(pthread_attr_setstack(&attributes, (void *)stack, 256 * 1024) == 0);
        must(pthread_create(all + i, &attributes, count, shared) == 0);
    }
    pthread_mutex_lock(&shared->mutex);
    while (shared->count < 6000) pthread_cond_wait(&shared->more, &shared->mutex);
    pthread_mutex_unlock(&shared->mutex);
    for (int i = 0; i < 3; i++) sem_wait(&shared->done), pthread_join(all[i], NULL);
    printf("locks %ld\n", shared->count);
    stack_t stack = {.ss_sp = memory + n / 2, .ss_size = 65536};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    must(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 3; i++) sweep(), raise(SIGUSR1);
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, NULL);
    printf("handlers %d\n", (int)handled);
    char **words = (char **)(memory + n / 4), *said = (char *)memory + n / 4 + 65536;
    strcpy(said, "said by a child");
    words[0] = "echo", words[1] = said, words[2] = NULL;
    pid_t child;
    int status;
    fflush(stdout);
    sweep();
    must(posix_spawnp(&child, "echo", NULL, NULL, words, environ) == 0);
    must(waitpid(child, &status, 0) == child && status == 0);
    free(memory);
}

static void mappings(size_t n) {
    unsigned char *memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    for (size_t i = 0; i < n; i++) memory[i] = (unsigned char)(i >> 12);
    sweep();
    must(madvise(memory + n / 4, n / 4, MADV_DONTNEED) == 0);
    say("madvise", memory, n);
    memory = mremap(memory, n, 2 * n, MREMAP_MAYMOVE);
    must(memory != MAP_FAILED);
    sweep();
    say("mremap", memory, 2 * n);
    must(munmap(memory + n, n / 2) == 0);
    say("munmap", memory + n + n / 2, n / 2);
    must(munmap(memory, n) == 0 && munmap(memory + n + n / 2, n / 2) == 0);
    unsigned char *grown = calloc(1, MIB);
    for (size_t bytes = MIB; bytes <= n; bytes += MIB) {
        must((grown = realloc(grown, bytes)));
        memset(grown + bytes - MIB, (int)(bytes >> 20), MIB);
    }
    sweep();
    say("realloc", grown, n);
    free(grown);
}

int main(int count_, char **words) {
    size_t n = (count_ > 1 ? (size_t)atoi(words[1]) : 4) * MIB;
    other_bytes = 4 * n;
    must((other = calloc(1, other_bytes)));
    // For as long as the program runs: what is printed lies there.
    must(setvbuf(stdout, (char *)array(4 * MIB, 0), _IOFBF, 4 * MIB) == 0);
    streams(n);
    descriptors(n);
    structures(n);
    random_bytes(n);
    messages(n);
    past_the_library(n);
    threads(n);
    mappings(n);
    say("other", other, other_bytes);
    puts("ok");
    return 0;
}
