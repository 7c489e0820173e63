// A signal handler that interrupts malloc may make every async-signal-safe call, and calls on sets.
// None of them allocates from the program's heap, not even the first call of a thread or of the
// process. The program's own malloc raises the signal in the middle of an allocation, and fails if
// it is entered again before that one ends.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void __libc_free(void *block);

static __thread volatile int is_allocating;
static __thread volatile int is_wanted;

static void fail(const char *what) {
    ssize_t ignored = write(2, what, strlen(what));
    (void)ignored;
    _exit(1);
}

static void enter(void) {
    if (is_allocating)
        fail("handler_in_malloc: the heap is used while it is interrupted\n");
    is_allocating = 1;
    if (is_wanted) {
        is_wanted = 0;
        raise(SIGUSR1);
    }
}
static void leave(void) { is_allocating = 0; }

void *malloc(size_t size) {
    enter();
    void *block = __libc_malloc(size);
    leave();
    return block;
}
void *calloc(size_t count, size_t size) {
    enter();
    void *block = __libc_calloc(count, size);
    leave();
    return block;
}
void *realloc(void *block, size_t size) {
    enter();
    void *moved = __libc_realloc(block, size);
    leave();
    return moved;
}
void free(void *block) {
    if (!block)
        return;
    enter();
    __libc_free(block);
    leave();
}

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fail("handler_in_malloc: line " LINE(__LINE__) ": " #condition "\n"); \
    } while (0)
#define LINE(number) LINE_TEXT(number)
#define LINE_TEXT(number) #number

static int shared_counter = -1;
static int shared_set = -1;
static atomic_int handled;
static int is_alone;

static void on_signal(int number) {
    (void)number;
    uint64_t value = 1;
    int saved = errno;
    int fds[2], pair[2];
    CHECK(pipe(fds) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int counter = eventfd(0, EFD_NONBLOCK);
    CHECK(counter >= 0);
    int set = epoll_create1(0);
    CHECK(set >= 0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[0], &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    CHECK(write(counter, &value, sizeof value) == sizeof value);
    CHECK(epoll_wait(set, &event, 1, -1) == 1);
    CHECK(read(counter, &value, sizeof value) == sizeof value);
    int copy = dup(counter), at = dup2(counter, copy), other = fcntl(counter, F_DUPFD, 0);
    CHECK(copy >= 0 && at == copy && other >= 0);
    CHECK(close(copy) == 0 && close(other) == 0);
    CHECK(write(fds[1], &value, sizeof value) == sizeof value);
    CHECK(read(fds[0], &value, sizeof value) == sizeof value);
    CHECK(send(pair[0], &value, sizeof value, 0) == sizeof value);
    CHECK(recv(pair[1], &value, sizeof value, 0) == sizeof value);
    // These calls sleep, for user-level objects and for kernel fds together.
    struct pollfd polled[] = {{counter, POLLIN, 0}, {0, 0, 0}, {fds[0], POLLIN, 0}};
    int kernels = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    polled[1].fd = fds[0];
    CHECK(poll(polled, 3, 1) == 0);
    struct pollfd stdins[] = {{counter, POLLIN, 0}, {kernels, POLLPRI, 0}};
    CHECK(poll(stdins, 2, 1) >= 0);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(counter, &readable);
    FD_SET(fds[0], &readable);
    struct timeval moment = {0, 1000};
    CHECK(select(fds[0] + counter + 1, &readable, NULL, NULL, &moment) == 0);
    CHECK(epoll_wait(set, &event, 1, 1) == 0);
    if (shared_set >= 0) {
        int found = epoll_wait(shared_set, &event, 1, 0);
        CHECK(found >= 0);
        CHECK(write(shared_counter, &value, sizeof value) == sizeof value);
    }
    // The rest of the calls on fds that POSIX lists.
    struct iovec part = {&value, sizeof value};
    CHECK(writev(fds[1], &part, 1) == sizeof value && readv(fds[0], &part, 1) == sizeof value);
    // Several threads run the handler at once.
    static atomic_int high = 200;
    int own_fd = atomic_fetch_add(&high, 1);
    int third = dup3(counter, own_fd, O_CLOEXEC), ends[2], option = 0;
    socklen_t size = sizeof option;
    struct stat found;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(third == own_fd && fstat(third, &found) == 0 && close(third) == 0);
    CHECK(pipe2(ends, O_NONBLOCK) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &option, &size) == 0 && option == SOCK_STREAM);
    CHECK(sendto(pair[0], &value, sizeof value, 0, NULL, 0) == sizeof value);
    CHECK(recvfrom(pair[1], &value, sizeof value, 0, NULL, NULL) == sizeof value);
    CHECK(sendmsg(pair[0], &message, 0) == sizeof value && recvmsg(pair[1], &message, 0) == sizeof value);
    CHECK(shutdown(pair[0], SHUT_WR) == 0 && recv(pair[1], &value, sizeof value, 0) == 0);
    struct timespec soon = {0, 1000};
    sigset_t none;
    sigemptyset(&none);
    CHECK(ppoll(polled, 1, &soon, &none) == 0);
    FD_SET(counter, &readable);
    CHECK(pselect(counter + 1, &readable, NULL, NULL, &soon, &none) == 0);
    CHECK(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    // The message demotes the eventfd.
    if (handled % 8 == 0) {
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(int))];
        } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
        int sockets[2], sent;
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        memcpy(CMSG_DATA(&control.header), &counter, sizeof counter);
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
        CHECK(sendmsg(sockets[0], &message, 0) == sizeof value);
        CHECK(recvmsg(sockets[1], &message, 0) == sizeof value);
        memcpy(&sent, CMSG_DATA(&control.header), sizeof sent);
        value = 5;
        CHECK(write(sent, &value, sizeof value) == sizeof value);
        CHECK(read(counter, &value, sizeof value) == sizeof value && value == 5);
        CHECK(close(sent) == 0 && close(sockets[0]) == 0 && close(sockets[1]) == 0);
    }
    struct sigaction action;
    CHECK(sigaction(SIGUSR2, NULL, &action) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
    // The C library's fork waits for the heap only in a process with several threads.
    if (is_alone && handled % 4 == 0) {
        pid_t child = fork();
        if (child == 0)
            execl("/proc/self/exe", "handler_in_malloc", "executed", NULL);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    if (handled % 16 == 0) {
        pid_t child = _Fork();
        if (child == 0)
            _exit(close(fds[0]) == 0 && write(counter, &value, sizeof value) == sizeof value ? 0 : 2);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(close(kernels) == 0 && close(set) == 0 && close(counter) == 0 && close(fds[0]) == 0);
    CHECK(close(fds[1]) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    errno = saved;
    handled++;
}

static void *allocate(void *unused) {
    (void)unused;
    for (int round = 0; round < 20; round++) {
        is_wanted = 1;
        // The compiler may remove an allocation that is never used.
        void *volatile block = malloc(100);
        free(block);
    }
    return NULL;
}

static void *write_on(void *is_over) {
    uint64_t value = 1;
    while (!atomic_load((atomic_int *)is_over)) {
        CHECK(write(shared_counter, &value, sizeof value) == sizeof value);
        struct timespec moment = {0, 100000};
        nanosleep(&moment, NULL);
        ssize_t got = read(shared_counter, &value, sizeof value);
        (void)got;
        value = 1;
    }
    return NULL;
}

int main(int count_of_arguments, char **arguments) {
    (void)arguments;
    if (count_of_arguments > 1)
        return 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    // The handler makes the very first calls.
    is_alone = 1;
    allocate(NULL);
    is_alone = 0;
    pthread_t thread;
    for (int count = 0; count < 8; count++) {
        CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    // With another thread that uses the same objects.
    shared_counter = eventfd(0, EFD_NONBLOCK);
    shared_set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(shared_set, EPOLL_CTL_ADD, shared_counter, &event) == 0);
    atomic_int is_over = 0;
    CHECK(pthread_create(&thread, NULL, write_on, &is_over) == 0);
    pthread_t others[3];
    for (int count = 0; count < 3; count++)
        CHECK(pthread_create(&others[count], NULL, allocate, NULL) == 0);
    for (int count = 0; count < 3; count++)
        CHECK(pthread_join(others[count], NULL) == 0);
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(handled == 240);
    return 0;
}
