// A program defines names of the C library itself, and reaches the original by another symbol, as
// Erlang's `sigaction` calls the next `__sigaction`. Only the program's own calls go through its
// definitions. A library that calls one of them would recurse, or be counted here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMES(X) \
    X(_exit) X(close) X(dup2) X(dup3) X(epoll_create1) X(eventfd) X(fork) X(getenv) X(getpid) \
    X(gettid) X(madvise) X(mmap) X(munmap) X(nanosleep) X(open) X(pipe2) X(pthread_sigmask) X(read) \
    X(sched_yield) X(sigaction) X(signal) X(sigprocmask) X(socketpair) X(syscall) X(write) X(writev)
enum {
#define NUMBER(name) of_##name,
    NAMES(NUMBER)
#undef NUMBER
    COUNT
};
static const char *const names[] = {
#define NAME(name) #name,
    NAMES(NAME)
};
static int counted[COUNT];
static int wanted[COUNT];
static __thread int depth;

// Avoids the C library, whose names may be among the defined ones.
static long inline_call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined __x86_64__
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result)
        : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0)
        : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    return result;
}

static void say(const char *text) { inline_call(SYS_write, 2, (long)text, (long)strlen(text), 0, 0, 0); }

static void fail(const char *name, const char *what) {
    say("own_names: ");
    say(name);
    say(what);
    inline_call(SYS_exit_group, 1, 0, 0, 0, 0, 0);
}

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        fail(name, ": no next one\n");
    return found;
}

static void enter(int name) {
    __atomic_fetch_add(&counted[name], 1, __ATOMIC_SEQ_CST);
    // These functions do not call each other, except that the C library's `fork` may.
    if (++depth > 4)
        fail(names[name], " recurses\n");
}
static void leave(void) { depth--; }

#define RETURN(type, expression) \
    type result = (expression); \
    leave(); \
    return result

__attribute__((noreturn)) void _exit(int status) {
    enter(of__exit);
    void (*other)(int) = next("_Exit");
    other(status);
    __builtin_unreachable();
}
int close(int fd) {
    enter(of_close);
    int (*other)(int) = next("__close");
    RETURN(int, other(fd));
}
int dup2(int fd, int new) {
    enter(of_dup2);
    int (*other)(int, int) = next("__dup2");
    RETURN(int, other(fd, new));
}
static long (*next_syscall(void))(long, ...) { return (long (*)(long, ...))next("syscall"); }
int dup3(int fd, int new, int flags) {
    enter(of_dup3);
    RETURN(int, (int)next_syscall()(SYS_dup3, fd, new, flags));
}
int epoll_create1(int flags) {
    enter(of_epoll_create1);
    int (*other)(int) = next("epoll_create");
    (void)flags;
    RETURN(int, other(1));
}
int eventfd(unsigned initial, int flags) {
    enter(of_eventfd);
    RETURN(int, (int)next_syscall()(SYS_eventfd2, initial, flags));
}
pid_t fork(void) {
    enter(of_fork);
    pid_t (*other)(void) = next("fork");
    RETURN(pid_t, other());
}
char *getenv(const char *name) {
    enter(of_getenv);
    char *(*other)(const char *) = next("getenv");
    RETURN(char *, other(name));
}
pid_t getpid(void) {
    enter(of_getpid);
    RETURN(pid_t, (pid_t)next_syscall()(SYS_getpid));
}
pid_t gettid(void) {
    enter(of_gettid);
    RETURN(pid_t, (pid_t)next_syscall()(SYS_gettid));
}
int open(const char *path, int flags, ...) {
    enter(of_open);
    va_list list;
    va_start(list, flags);
    unsigned mode = va_arg(list, unsigned);
    va_end(list);
    RETURN(int, (int)next_syscall()(SYS_openat, AT_FDCWD, path, flags, mode));
}
int madvise(void *start, size_t size, int advice) {
    enter(of_madvise);
    RETURN(int, (int)next_syscall()(SYS_madvise, start, size, advice));
}
void *mmap(void *start, size_t size, int access, int flags, int fd, off_t offset) {
    enter(of_mmap);
    RETURN(void *, (void *)next_syscall()(SYS_mmap, start, size, access, flags, fd, offset));
}
int munmap(void *start, size_t size) {
    enter(of_munmap);
    RETURN(int, (int)next_syscall()(SYS_munmap, start, size));
}
int nanosleep(const struct timespec *time, struct timespec *left) {
    enter(of_nanosleep);
    RETURN(int, (int)next_syscall()(SYS_nanosleep, time, left));
}
int pthread_sigmask(int how, const sigset_t *new, sigset_t *old) {
    enter(of_pthread_sigmask);
    int (*other)(int, const sigset_t *, sigset_t *) = next("pthread_sigmask");
    RETURN(int, other(how, new, old));
}
int sched_yield(void) {
    enter(of_sched_yield);
    RETURN(int, (int)next_syscall()(SYS_sched_yield));
}
int sigprocmask(int how, const sigset_t *new, sigset_t *old) {
    enter(of_sigprocmask);
    int (*other)(int, const sigset_t *, sigset_t *) = next("sigprocmask");
    RETURN(int, other(how, new, old));
}
int pipe2(int fds[2], int flags) {
    enter(of_pipe2);
    RETURN(int, (int)next_syscall()(SYS_pipe2, fds, flags));
}
ssize_t read(int fd, void *buffer, size_t count) {
    enter(of_read);
    ssize_t (*other)(int, void *, size_t) = next("__read");
    RETURN(ssize_t, other(fd, buffer, count));
}
int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    enter(of_sigaction);
    int (*other)(int, const struct sigaction *, struct sigaction *) = next("__sigaction");
    RETURN(int, other(number, new, old));
}
__sighandler_t signal(int number, __sighandler_t handler) {
    enter(of_signal);
    __sighandler_t (*other)(int, __sighandler_t) = next("ssignal");
    RETURN(__sighandler_t, other(number, handler));
}
int socketpair(int domain, int type, int protocol, int fds[2]) {
    enter(of_socketpair);
    RETURN(int, (int)next_syscall()(SYS_socketpair, domain, type, protocol, fds));
}
long syscall(long number, ...) {
    enter(of_syscall);
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    RETURN(long, next_syscall()(number, a, b, c, d, e, f));
}
ssize_t write(int fd, const void *buffer, size_t count) {
    enter(of_write);
    ssize_t (*other)(int, const void *, size_t) = next("__write");
    RETURN(ssize_t, other(fd, buffer, count));
}
ssize_t writev(int fd, const struct iovec *list, int count) {
    enter(of_writev);
    RETURN(ssize_t, next_syscall()(SYS_writev, fd, list, count));
}

// A call of the program.
#define CALL(name, ...) (wanted[of_##name]++, name(__VA_ARGS__))
#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fail("line " LINE(__LINE__), ": " #condition " is wrong\n"); \
    } while (0)
#define LINE(number) LINE_TEXT(number)
#define LINE_TEXT(number) #number

static volatile sig_atomic_t handled;
static void on_signal(int number) { handled = number; }

static void *write_later(void *fd) {
    struct timespec moment = {0, 20000000};
    inline_call(SYS_nanosleep, (long)&moment, 0, 0, 0, 0, 0);
    uint64_t one = 1;
    CHECK(write(*(int *)fd, &one, sizeof one) == sizeof one);
    return NULL;
}

static void *block(void *fd) {
    uint64_t value;
    read(*(int *)fd, &value, sizeof value);
    return NULL;
}

static void compare(void) {
    for (int name = 0; name < COUNT; name++)
        if (counted[name] != wanted[name])
            fail(names[name], counted[name] > wanted[name] ? " was called by others\n" : " was not called\n");
}

int main(void) {
    memset(counted, 0, sizeof counted);
    struct sigaction action = {.sa_handler = on_signal}, known;
    CHECK(CALL(sigaction, SIGUSR1, &action, NULL) == 0);
    CHECK(CALL(sigaction, SIGUSR1, NULL, &known) == 0 && known.sa_handler == on_signal);
    raise(SIGUSR1);
    CHECK(handled == SIGUSR1);
    CHECK(CALL(signal, SIGUSR2, on_signal) == SIG_DFL);
    raise(SIGUSR2);
    CHECK(handled == SIGUSR2);
    compare();

    uint64_t value = 3;
    int counter = CALL(eventfd, 0, EFD_NONBLOCK), blocking = CALL(eventfd, 0, 0);
    CHECK(counter >= 0 && blocking >= 0);
    int set = CALL(epoll_create1, 0), pipe_fds[2], pair[2];
    CHECK(set >= 0 && CALL(pipe2, pipe_fds, 0) == 0);
    CHECK(CALL(socketpair, AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipe_fds[0], &event) == 0);
    CHECK(CALL(write, counter, &value, sizeof value) == sizeof value);
    CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == 7);
    CHECK(CALL(read, counter, &value, sizeof value) == sizeof value && value == 3);
    struct iovec part = {&value, sizeof value};
    CHECK(CALL(writev, pair[0], &part, 1) == sizeof value);
    CHECK(CALL(read, pair[1], &value, sizeof value) == sizeof value);
    CHECK(epoll_wait(set, &event, 1, 10) == 0);
    compare();

    // Sleeps, with and without kernel files.
    pthread_t thread;
    struct pollfd polled[] = {{counter, POLLIN, 0}, {0, 0, 0}, {pair[1], POLLIN, 0}};
    for (int count = 1; count <= 3; count++) {
        wanted[of_write]++;
        CHECK(pthread_create(&thread, NULL, write_later, &counter) == 0);
        CHECK(poll(polled, (nfds_t)count, -1) >= 1);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(CALL(read, counter, &value, sizeof value) == sizeof value);
    }
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(counter, &readable);
    FD_SET(pair[1], &readable);
    struct timeval limit = {0, 1000};
    CHECK(select(pair[1] + counter + 1, &readable, NULL, NULL, &limit) == 0);
    wanted[of_read]++;
    CHECK(pthread_create(&thread, NULL, block, &blocking) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    compare();

    int copy = CALL(dup2, counter, 50);
    CHECK(copy == 50 && CALL(dup3, counter, 51, O_CLOEXEC) == 51 && CALL(close, 50) == 0);
    CHECK(CALL(syscall, SYS_close, 51L, 0L, 0L, 0L, 0L, 0L) == 0);
    CHECK(CALL(getpid) == CALL(syscall, SYS_getpid, 0L, 0L, 0L, 0L, 0L, 0L));
    compare();

    // From then on the kernel serves it, in both processes.
    pid_t child = CALL(fork);
    if (child == 0) {
        CHECK(CALL(write, counter, &value, sizeof value) == sizeof value);
        compare();
        CALL(_exit, 3);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
    CHECK(CALL(read, counter, &value, sizeof value) == sizeof value);
    child = (pid_t)CALL(syscall, SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L, 0L);
    if (child == 0)
        CALL(_exit, 4);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 4);
    CHECK(CALL(close, set) == 0 && CALL(close, pair[0]) == 0 && CALL(close, pipe_fds[1]) == 0);
    compare();
    return 0;
}
