// Calls that name no user-level object are passed on as the same system calls. A seccomp filter
// that allows only the program's own calls does not kill it. The test includes a second thread,
// signal handlers, and sets of kernel fds. Most filters compare only the call's number, and the
// program checks the results; one filter compares arguments.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fail(__LINE__); \
    } while (0)

static void fail(int line) {
    char text[] = "own_system_calls: line 0000\n";
    for (int at = (int)strlen(text) - 2; line; line /= 10)
        text[at--] = (char)('0' + line % 10);
    ssize_t ignored = write(2, text, strlen(text));
    (void)ignored;
    _exit(1);
}

static void allow_only(const int *numbers, size_t count) {
    struct sock_filter filter[64];
    size_t at = 0;
    filter[at++] = (struct sock_filter)BPF_STMT(
        BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t each = 0; each < count; each++) {
        filter[at++] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (unsigned)numbers[each], 0, 1);
        filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {(unsigned short)at, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

// A system call with its arguments.
struct exact {
    int number;
    unsigned count;
    unsigned long arguments[6];
};

// Allows these calls with exactly these arguments, and exit.
static void allow_exactly(const struct exact *calls, size_t count) {
    struct sock_filter filter[512];
    size_t at = 0, load = offsetof(struct seccomp_data, nr);
    for (size_t each = 0; each < count; each++) {
        const struct exact *call = &calls[each];
        unsigned char left = (unsigned char)(4 * call->count + 1);
        filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)load);
        filter[at++] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call->number, 0, left);
        for (unsigned which = 0; which < call->count; which++)
            for (unsigned half = 0; half < 2; half++) {
                size_t place = offsetof(struct seccomp_data, args) + 8 * which + 4 * half;
                left = (unsigned char)(left - 2);
                filter[at++] =
                    (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)place);
                // The kernel ignores the upper half of an int argument.
                unsigned word = (unsigned)(call->arguments[which] >> 32 * half);
                filter[at++] = (struct sock_filter)BPF_JUMP(
                    BPF_JMP | BPF_JEQ | BPF_K, word, 0, half && !word ? 0 : left);
            }
        filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)load);
    filter[at++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {(unsigned short)at, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static int pipe_fds[2], pair[2];
// Pipes, socket pairs and sets are user-level objects, too (`--user all`).
static int all_are_served;
static volatile sig_atomic_t handled;

// Makes a FIFO that is the kernel's, whatever is served.
static void make_pipe(void) {
    char folder[] = "/tmp/own_system_calls.XXXXXX", path[sizeof folder + 2];
    CHECK(mkdtemp(folder) != NULL);
    CHECK(snprintf(path, sizeof path, "%s/f", folder) > 0 && mkfifo(path, 0600) == 0);
    pipe_fds[0] = open(path, O_RDONLY | O_NONBLOCK);
    pipe_fds[1] = open(path, O_WRONLY);
    CHECK(pipe_fds[0] >= 0 && pipe_fds[1] >= 0 && fcntl(pipe_fds[0], F_SETFL, 0) == 0);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

// Makes two connected sockets that are the kernel's, whatever is served.
static void make_pair(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof address;
    int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    // The kernel chooses the name.
    CHECK(bind(listening, (struct sockaddr *)&address, sizeof address.sun_family) == 0);
    CHECK(listen(listening, 1) == 0 && getsockname(listening, (struct sockaddr *)&address, &size) == 0);
    pair[0] = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(pair[0] >= 0 && connect(pair[0], (struct sockaddr *)&address, size) == 0);
    pair[1] = accept(listening, NULL, NULL);
    CHECK(pair[1] >= 0 && close(listening) == 0);
}

static void on_signal(int number) { handled += number == SIGUSR1; }

static void reads_and_writes(void) {
    const int allowed[] = {SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_exit_group};
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    char byte = 1;
    struct iovec part = {&byte, 1};
    for (int round = 0; round < 3; round++) {
        CHECK(write(pipe_fds[1], &byte, 1) == 1 && read(pipe_fds[0], &byte, 1) == 1);
        CHECK(writev(pair[0], &part, 1) == 1 && readv(pair[1], &part, 1) == 1);
    }
    CHECK(read(999, &byte, 1) == -1 && errno == EBADF);
}

static void fds(void) {
    const int allowed[] = {SYS_dup, SYS_dup3, SYS_close, SYS_fcntl, SYS_ioctl, SYS_exit_group,
#ifdef SYS_dup2
        SYS_dup2,
#endif
    };
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    int copy = dup(pipe_fds[0]), flag = 1;
    CHECK(copy >= 0 && close(copy) == 0 && dup2(pipe_fds[0], 60) == 60 && close(60) == 0);
    CHECK(dup3(pipe_fds[0], 61, O_CLOEXEC) == 61 && close(61) == 0);
    CHECK(fcntl(pipe_fds[0], F_GETFL) >= 0 && ioctl(pipe_fds[0], FIONBIO, &flag) == 0);
    CHECK(close(999) == -1 && errno == EBADF);
    CHECK(syscall(SYS_close, pipe_fds[0]) == 0);
}

static void polls(void) {
    const int allowed[] = {
#ifdef SYS_poll
        SYS_poll,
#else
        SYS_ppoll,
#endif
        SYS_exit_group};
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    struct pollfd entries[] = {{pipe_fds[0], POLLIN, 0}, {pair[0], POLLOUT, 0}};
    CHECK(poll(entries, 1, 0) == 0 && poll(entries, 1, 1) == 0 && poll(entries, 2, -1) == 1);
    CHECK(poll((struct pollfd *)8, 2, 0) == -1 && errno == EFAULT);
}

static void polls_with_a_mask(void) {
    const int allowed[] = {SYS_ppoll, SYS_pselect6, SYS_exit_group};
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    struct pollfd entry = {pipe_fds[0], POLLIN, 0};
    struct timespec moment = {0, 1000};
    struct timeval at_once = {0, 0};
    sigset_t none;
    sigemptyset(&none);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(pipe_fds[0], &readable);
    CHECK(ppoll(&entry, 1, &moment, &none) == 0);
    CHECK(select(pipe_fds[0] + 1, &readable, NULL, NULL, &at_once) == 0);
    CHECK(pselect(pipe_fds[0] + 1, &readable, NULL, NULL, &moment, &none) == 0);
}

// The same in a process that has user-level objects: calls that do not name them are passed on. A thread's first look at the
// list of a poll asks futex(2) whether the page can be read. The list may be on a page of the stack that no call before had.
static void beside_objects(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, found[2];
    uint64_t value = 1;
    int counter = eventfd(0, EFD_NONBLOCK), set = epoll_create1(0), kernels = epoll_create1(0);
    CHECK(counter >= 0 && set >= 0 && kernels >= 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
    CHECK(write(counter, &value, 8) == 8 && epoll_wait(set, found, 2, -1) == 1);
    if (all_are_served) {
        int ends[2];
        CHECK(pipe(ends) == 0 && write(ends[1], &value, 8) == 8);
    }
    const int allowed[] = {SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_dup, SYS_dup3, SYS_close, SYS_fcntl,
        SYS_ioctl, SYS_epoll_ctl, SYS_pselect6, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg,
        SYS_getsockopt, SYS_exit_group, SYS_futex,
#ifdef __x86_64__
        SYS_dup2, SYS_poll, SYS_epoll_wait,
#else
        SYS_ppoll, SYS_epoll_pwait,
#endif
    };
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    for (int round = 0; round < 2; round++) {
        char byte = 1;
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        struct pollfd entries[] = {{pipe_fds[0], POLLIN, 0}, {pair[0], POLLOUT, 0}};
        struct timeval at_once = {0, 0};
        fd_set readable;
        int size = 0, copy = dup(pipe_fds[0]);
        socklen_t length = sizeof size;
        FD_ZERO(&readable);
        FD_SET(pipe_fds[0], &readable);
        CHECK(write(pipe_fds[1], &byte, 1) == 1 && read(pipe_fds[0], &byte, 1) == 1);
        CHECK(writev(pair[0], &part, 1) == 1 && readv(pair[1], &part, 1) == 1);
        CHECK(send(pair[0], &byte, 1, 0) == 1 && recv(pair[1], &byte, 1, 0) == 1);
        CHECK(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, &length) == 0);
        CHECK(poll(entries, 1, 0) == 0 && poll(entries, 1, 1) == 0 && poll(entries, 2, -1) == 1);
        CHECK(select(pipe_fds[0] + 1, &readable, NULL, NULL, &at_once) == 0);
        CHECK(copy >= 0 && dup2(pipe_fds[0], 60) == 60 && dup3(pipe_fds[0], 61, O_CLOEXEC) == 61);
        CHECK(fcntl(copy, F_GETFL) >= 0 && ioctl(copy, FIONREAD, &size) == 0);
        if (!all_are_served) {
            CHECK(epoll_ctl(kernels, EPOLL_CTL_ADD, copy, &event) == 0 && epoll_wait(kernels, found, 2, 1) == 0);
            CHECK(epoll_ctl(kernels, EPOLL_CTL_DEL, copy, NULL) == 0);
        }
        CHECK(close(copy) == 0 && close(60) == 0 && close(61) == 0);
        CHECK(read(999, &byte, 1) == -1 && errno == EBADF);
    }
}

static void messages(void) {
    const int allowed[] = {SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_shutdown,
        SYS_getsockopt, SYS_setsockopt, SYS_exit_group};
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    char byte = 1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int size = 4096;
    socklen_t length = sizeof size;
    CHECK(send(pair[0], &byte, 1, 0) == 1 && recv(pair[1], &byte, 1, 0) == 1);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    CHECK(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, &length) == 0);
    CHECK(shutdown(pair[0], SHUT_RDWR) == 0);
}

static void signals(void) {
    const int allowed[] = {SYS_rt_sigaction, SYS_rt_sigreturn, SYS_kill, SYS_exit_group};
    pid_t own = getpid();
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, known;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && kill(own, SIGUSR1) == 0 && handled == 1);
    CHECK(signal(SIGUSR1, SIG_IGN) == on_signal);
    CHECK(sigaction(SIGUSR1, NULL, &known) == 0 && known.sa_handler == SIG_IGN);
}

static void makes(void) {
    const int allowed[] = {SYS_pipe2, SYS_socketpair, SYS_close, SYS_exit_group,
#ifdef SYS_pipe
        SYS_pipe,
#endif
    };
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    int fds[2];
    CHECK(pipe(fds) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
    CHECK(pipe2(fds, O_CLOEXEC) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

static void sets(void) {
    const int allowed[] = {SYS_epoll_create1, SYS_epoll_ctl, SYS_dup, SYS_dup3, SYS_fcntl, SYS_ppoll,
        SYS_close, SYS_read, SYS_write, SYS_exit_group,
#ifdef SYS_epoll_wait
        SYS_epoll_create, SYS_epoll_wait, SYS_dup2, SYS_poll,
#else
        SYS_epoll_pwait,
#endif
    };
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 7}, found[2];
    int set = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create(1), copy = dup(set);
    CHECK(set >= 0 && outer >= 0 && copy >= 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipe_fds[0], &event) == 0);
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0);
    CHECK(epoll_wait(set, found, 2, 0) == 0 && epoll_wait(copy, found, 2, 1) == 0);
    CHECK(write(pipe_fds[1], "x", 1) == 1 && epoll_wait(outer, found, 2, -1) == 1);
    CHECK(epoll_wait(copy, found, 2, -1) == 1 && epoll_wait(set, found, 2, 0) == 0);
    struct pollfd entry = {set, POLLIN, 0};
    char byte;
    CHECK(poll(&entry, 1, 0) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pipe_fds[0], &event) == 0 && poll(&entry, 1, -1) == 1);
    CHECK(epoll_ctl(copy, EPOLL_CTL_DEL, pipe_fds[0], NULL) == 0);
    CHECK(read(pipe_fds[0], &byte, 1) == 1);
    CHECK(dup2(set, 60) == 60 && dup3(set, 61, O_CLOEXEC) == 61);
    CHECK(fcntl(set, F_DUPFD_CLOEXEC, 70) == 70);
    CHECK(close(60) == 0 && close(copy) == 0 && close(set) == 0 && close(outer) == 0);
}

static void sets_with_a_mask(void) {
    const int allowed[] = {SYS_epoll_create1, SYS_epoll_pwait,
#ifdef SYS_epoll_pwait2
        SYS_epoll_pwait2,
#endif
        SYS_exit_group};
    allow_only(allowed, sizeof allowed / sizeof *allowed);
    struct timespec moment = {0, 1000};
    struct epoll_event found[2];
    sigset_t none;
    sigemptyset(&none);
    int set = epoll_create1(0);
    CHECK(epoll_pwait(set, found, 2, 1, &none) == 0);
    CHECK(epoll_pwait2(set, found, 2, &moment, &none) == 0);
}

static void sets_by_their_arguments(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, found[3];
    int set = epoll_create1(0);
    unsigned long fd = (unsigned)set, member = (unsigned)pipe_fds[0];
    const struct exact calls[] = {
        {SYS_epoll_ctl, 4, {fd, EPOLL_CTL_ADD, member, (unsigned long)&event}},
        {SYS_epoll_ctl, 4, {fd, EPOLL_CTL_MOD, member, (unsigned long)&event}},
        {SYS_epoll_ctl, 4, {fd, EPOLL_CTL_DEL, member, 0}},
#ifdef SYS_epoll_wait
        {SYS_epoll_wait, 4, {fd, (unsigned long)found, 3, 11}},
#else
        {SYS_epoll_pwait, 5, {fd, (unsigned long)found, 3, 11, 0}},
#endif
        {SYS_dup, 1, {fd}},
        {SYS_dup3, 3, {fd, 77, O_CLOEXEC}},
        {SYS_fcntl, 3, {fd, F_DUPFD_CLOEXEC, 50}},
        {SYS_close, 1, {77}},
    };
    CHECK(set >= 0);
    allow_exactly(calls, sizeof calls / sizeof *calls);
    for (int round = 0; round < 2; round++) {
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipe_fds[0], &event) == 0);
        CHECK(epoll_wait(set, found, 3, 11) == 0);
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pipe_fds[0], &event) == 0);
        CHECK(epoll_ctl(set, EPOLL_CTL_DEL, pipe_fds[0], NULL) == 0);
        CHECK(dup(set) >= 0 && dup3(set, 77, O_CLOEXEC) == 77 && close(77) == 0);
        CHECK(fcntl(set, F_DUPFD_CLOEXEC, 50) == 50 + round);
    }
}

// Calls on kernel fds have the arguments that the program passed, before it has an object and beside objects.
static void by_their_arguments(void) {
    static char bytes[8];
    static struct iovec part = {bytes, 3};
    static struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    static struct pollfd entries[2];
    static int room;
    static socklen_t size = sizeof room;
    // Other parts have shut down the pair.
    make_pair();
    unsigned long reader = (unsigned)pipe_fds[0], writer = (unsigned)pipe_fds[1];
    unsigned long near = (unsigned)pair[0], far = (unsigned)pair[1];
    unsigned long at = (unsigned long)bytes, list = (unsigned long)&part, mail = (unsigned long)&message;
    const struct exact calls[] = {
        {SYS_read, 3, {reader, at, 5}},
        {SYS_write, 3, {writer, at, 5}},
        {SYS_readv, 3, {far, list, 1}},
        {SYS_writev, 3, {near, list, 1}},
        {SYS_sendto, 6, {near, at, 2, MSG_NOSIGNAL, 0, 0}},
        {SYS_recvfrom, 6, {far, at, 2, MSG_DONTWAIT, 0, 0}},
        {SYS_sendmsg, 3, {near, mail, MSG_NOSIGNAL}},
        {SYS_recvmsg, 3, {far, mail, MSG_DONTWAIT}},
        {SYS_getsockopt, 5, {near, SOL_SOCKET, SO_SNDBUF, (unsigned long)&room, (unsigned long)&size}},
        {SYS_setsockopt, 5, {near, SOL_SOCKET, SO_SNDBUF, (unsigned long)&room, sizeof room}},
        {SYS_shutdown, 2, {near, SHUT_WR}},
        {SYS_dup, 1, {reader}},
        {SYS_dup3, 3, {reader, 61, O_CLOEXEC}},
        {SYS_fcntl, 3, {reader, F_SETFL, O_NONBLOCK}},
        {SYS_fcntl, 3, {reader, F_DUPFD_CLOEXEC, 50}},
        {SYS_ioctl, 3, {reader, FIONREAD, (unsigned long)&room}},
        {SYS_close, 1, {61}},
        {SYS_ppoll, 5, {(unsigned long)entries, 2, 0, 0, 8}},
        // A thread asks once whether the page of the list can be read.
        {SYS_futex, 0, {0}},
#ifdef __x86_64__
        {SYS_poll, 3, {(unsigned long)entries, 2, 7}},
        {SYS_dup2, 2, {reader, 60}},
        {SYS_close, 1, {60}},
#endif
    };
    entries[0] = (struct pollfd){pipe_fds[0], POLLIN, 0};
    entries[1] = (struct pollfd){pair[1], POLLIN, 0};
    allow_exactly(calls, sizeof calls / sizeof *calls);
    for (int round = 0; round < 2; round++) {
#ifdef __x86_64__
        CHECK(poll(entries, 2, 7) == 0 && syscall(SYS_poll, entries, 2, 7) == 0);
        CHECK(dup2(pipe_fds[0], 60) == 60 && close(60) == 0);
        CHECK(syscall(SYS_dup2, pipe_fds[0], 60) == 60 && syscall(SYS_close, 60) == 0);
#endif
        CHECK(write(pipe_fds[1], bytes, 5) == 5 && ppoll(entries, 2, NULL, NULL) == 1);
        CHECK(ioctl(pipe_fds[0], FIONREAD, &room) == 0 && room == 5);
        CHECK(read(pipe_fds[0], bytes, 5) == 5);
        CHECK(syscall(SYS_write, pipe_fds[1], bytes, 5) == 5 && syscall(SYS_read, pipe_fds[0], bytes, 5) == 5);
        CHECK(writev(pair[0], &part, 1) == 3 && readv(pair[1], &part, 1) == 3);
        CHECK(send(pair[0], bytes, 2, MSG_NOSIGNAL) == 2 && recv(pair[1], bytes, 2, MSG_DONTWAIT) == 2);
        CHECK(sendmsg(pair[0], &message, MSG_NOSIGNAL) == 3 && recvmsg(pair[1], &message, MSG_DONTWAIT) == 3);
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, &size) == 0);
        CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
        CHECK(dup(pipe_fds[0]) >= 0 && dup3(pipe_fds[0], 61, O_CLOEXEC) == 61 && close(61) == 0);
        CHECK(fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK) == 0);
        CHECK(fcntl(pipe_fds[0], F_DUPFD_CLOEXEC, 50) == 50 + round);
    }
    CHECK(shutdown(pair[0], SHUT_WR) == 0);
}

static void by_their_arguments_beside_objects(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    uint64_t value = 1;
    int counter = eventfd(0, EFD_NONBLOCK), set = epoll_create1(0);
    CHECK(counter >= 0 && set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipe_fds[0], &event) == 0);
    CHECK(write(counter, &value, 8) == 8 && epoll_wait(set, &event, 1, -1) == 1);
    by_their_arguments();
}

// Returns the handler that the kernel has, which the C library's functions may hide.
static unsigned long kernels_handler(int number) {
    struct { unsigned long handler, flags, restorer, mask; } action = {0, 0, 0, 0};
#ifdef __x86_64__
    register unsigned long size __asm__("r10") = 8;
    long result = SYS_rt_sigaction;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"((long)number), "S"(0L), "d"(&action), "r"(size)
                     : "rcx", "r11", "memory");
    CHECK(result == 0);
    return action.handler;
#else
    (void)number, (void)action;
    return (unsigned long)on_signal;
#endif
}

// A set of kernel fds does not make the library replace the program's handlers.
static void handlers_of_programs_with_sets(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    int set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipe_fds[0], &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0 && close(set) == 0);
    CHECK(kernels_handler(SIGUSR1) == (unsigned long)on_signal);
    CHECK(kernels_handler(SIGUSR2) == (unsigned long)on_signal);
}

static int ends_at_once(void *nothing) {
    (void)nothing;
    syscall(SYS_exit_group, 0);
    return 1;
}

// Children, before the process has a user-level object.
static void children(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    unsigned long top = (unsigned long)(stack + sizeof stack);
    int status;
    const struct exact calls[] = {
#ifdef __x86_64__
        {SYS_vfork, 0, {0}},
        {SYS_fork, 0, {0}},
#else
        {SYS_clone, 2, {CLONE_VM | CLONE_VFORK | SIGCHLD, 0}},
        {SYS_clone, 2, {SIGCHLD, 0}},
#endif
        {SYS_clone, 2, {SIGCHLD, top - 16}},
        {SYS_clone, 2, {CLONE_VM | CLONE_VFORK | SIGCHLD, top - 16}},
        {SYS_wait4, 2, {(unsigned)-1, (unsigned long)&status}},
    };
    allow_exactly(calls, sizeof calls / sizeof *calls);
    for (int round = 0; round < 2; round++) {
        pid_t child = vfork();
        if (child == 0)
            _exit(0);
        CHECK(child > 0 && waitpid(-1, &status, 0) == child && status == 0);
        child = clone(ends_at_once, stack + sizeof stack, SIGCHLD, NULL);
        CHECK(child > 0 && waitpid(-1, &status, 0) == child && status == 0);
        child = clone(ends_at_once, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        CHECK(child > 0 && waitpid(-1, &status, 0) == child && status == 0);
#ifdef __x86_64__
        child = (pid_t)syscall(SYS_fork);
#else
        child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
        if (child == 0)
            syscall(SYS_exit_group, 0);
        CHECK(child > 0 && waitpid(-1, &status, 0) == child && status == 0);
    }
}

// With no kind of objects the library serves no call.
static void no_kinds(void) {
    const char *kinds = getenv("UPOLL_USER");
    if (kinds == NULL || strcmp(kinds, "none") == 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, found;
        const int allowed[] = {SYS_eventfd2, SYS_epoll_create1, SYS_epoll_ctl, SYS_dup, SYS_close, SYS_read,
            SYS_write, SYS_exit_group,
#ifdef __x86_64__
            SYS_eventfd, SYS_pipe, SYS_epoll_wait,
#else
            SYS_epoll_pwait,
#endif
        };
        // Only without the preload.
        if (kinds == NULL && getenv("LD_PRELOAD") != NULL)
            return;
        allow_only(allowed, sizeof allowed / sizeof *allowed);
        uint64_t value = 3;
        int set = epoll_create1(0), counter = eventfd(0, EFD_NONBLOCK), copy = dup(counter);
        CHECK(set >= 0 && counter >= 0 && copy >= 0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
        CHECK(write(copy, &value, 8) == 8 && epoll_wait(set, &found, 1, -1) == 1);
        CHECK(read(counter, &value, 8) == 8 && value == 3 && epoll_wait(set, &found, 1, 0) == 0);
        CHECK(close(set) == 0 && close(counter) == 0 && close(copy) == 0);
#ifdef __x86_64__
        int ends[2];
        CHECK(syscall(SYS_eventfd, 0) >= 0 && syscall(SYS_pipe, ends) == 0);
#endif
    }
}

// All parts but those beside objects and no_kinds use no kind of objects that is served by default. Where all kinds are
// served, the last ones have objects of their own.
static const struct {
    void (*run)(void);
    int needs_kernel_sets;
} parts[] = {{reads_and_writes, 0}, {fds, 0}, {polls, 0}, {polls_with_a_mask, 0}, {beside_objects, 0}, {messages, 0},
    {signals, 0}, {by_their_arguments, 0}, {by_their_arguments_beside_objects, 0}, {children, 0}, {no_kinds, 0},
    {makes, 1}, {sets, 1}, {sets_with_a_mask, 1}, {sets_by_their_arguments, 1}, {handlers_of_programs_with_sets, 1}};

int main(void) {
    const char *kinds = getenv("UPOLL_USER");
    all_are_served = kinds && strcmp(kinds, "all") == 0;
    int is_skipped = 0;
    make_pipe();
    make_pair();
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        if (all_are_served && parts[part].needs_kernel_sets)
            continue;
        pid_t child = fork();
        if (child == 0) {
            parts[part].run();
            syscall(SYS_exit_group, 0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status)) {
            fprintf(stderr, "own_system_calls: part %zu is killed\n", part);
            return 1;
        }
        if (WEXITSTATUS(status) == 77)
            is_skipped = 1;
        else if (status != 0)
            return 1;
    }
    return is_skipped ? 77 : 0;
}
