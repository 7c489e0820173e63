/* A program defines names of the C library itself, and calls libupoll by its own names. The library
 * never calls a function by a name that the program has replaced. With the shared and with the
 * static library. */
#include "check.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#if defined(KERNEL_ONLY) || defined(__SANITIZE_ADDRESS__)
/* AddressSanitizer replaces these names as well. */
int main(void)
{
	return 77;
}
#else

/* Avoids the C library, whose names may be among the replaced ones. */
static void raw_call(long number, long a, long b, long c)
{
#if defined __x86_64__
	long result = number;
	__asm__ volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
#endif
}

static long fail(const char *name)
{
	raw_call(SYS_write, 2, (long)name, (long)strlen(name));
	raw_call(SYS_write, 2, (long)" was called by the library\n", 27);
	raw_call(SYS_exit_group, 1, 0, 0);
	return -1;
}

#define OWN(name)                                \
	long own_##name(void) __asm__(#name);    \
	long own_##name(void)                    \
	{                                        \
		return fail(#name);              \
	}
/* The header has redirected some of these names. */
#undef close
#undef dup
#undef dup2
#undef dup3
#undef epoll_create1
#undef epoll_ctl
#undef epoll_pwait
#undef epoll_pwait2
#undef epoll_wait
#undef eventfd
#undef fcntl
#undef ioctl
#undef pipe
#undef pipe2
#undef poll
#undef ppoll
#undef pselect
#undef read
#undef readv
#undef select
#undef send
#undef socketpair
#undef write
#undef writev
OWN(_exit)
OWN(close)
OWN(dup)
OWN(dup2)
OWN(dup3)
OWN(epoll_create1)
OWN(epoll_ctl)
OWN(epoll_pwait)
OWN(epoll_pwait2)
OWN(epoll_wait)
OWN(eventfd)
OWN(fcntl)
OWN(gettid)
OWN(ioctl)
OWN(open)
OWN(open64)
OWN(pipe)
OWN(pipe2)
OWN(poll)
OWN(ppoll)
OWN(pselect)
OWN(read)
OWN(readv)
OWN(sched_yield)
OWN(select)
OWN(send)
OWN(sigaction)
OWN(signal)
OWN(socket)
OWN(socketpair)
OWN(syscall)
OWN(write)
OWN(writev)

static int counter, set, kernel_pipe[2];

static void *writes_later(void *unused)
{
	uint64_t one = 1;
	sleep_ms(20);
	CHECK(upoll_write(counter, &one, sizeof one) == sizeof one);
	return unused;
}

/* Several threads wait for locks and for each other. */
static void *makes_and_closes(void *unused)
{
	for (int round = 0; round < 2000; round++) {
		struct epoll_event event = {EPOLLIN, {.u64 = 2}};
		uint64_t value = 1;
		int fd = upoll_eventfd(0, EFD_NONBLOCK), copy = upoll_dup(fd);
		CHECK(fd >= 0 && copy >= 0);
		CHECK(upoll_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
		CHECK(upoll_write(copy, &value, sizeof value) == sizeof value);
		CHECK(upoll_epoll_wait(set, &event, 1, 0) >= 0);
		CHECK(upoll_dup2(counter, copy) == copy);
		CHECK(upoll_close(copy) == 0 && upoll_close(fd) == 0);
	}
	return unused;
}

static void uses_all(void)
{
	struct epoll_event event = {EPOLLIN, {.u64 = 7}};
	struct pollfd entries[2];
	struct timeval limit = {0, 1000};
	pthread_t threads[4];
	uint64_t value = 3;
	int fds[2];
	fd_set in;

	set = upoll_epoll_create1(0), counter = upoll_eventfd(0, EFD_NONBLOCK);
	CHECK(set >= 0 && counter >= 0);
	CHECK(upoll_pipe2(fds, 0) == 0 && upoll_close(fds[0]) == 0 && upoll_close(fds[1]) == 0);
	CHECK(upoll_socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(upoll_send(fds[0], "x", 1, 0) == 1 && upoll_read(fds[1], &value, 1) == 1);
	CHECK(upoll_close(fds[0]) == 0 && upoll_close(fds[1]) == 0);
	CHECK(upoll_epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
	CHECK(upoll_epoll_ctl(set, EPOLL_CTL_ADD, kernel_pipe[0], &event) == 0);
	value = 3;
	CHECK(upoll_write(counter, &value, sizeof value) == sizeof value);
	CHECK(upoll_epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 7);
	CHECK(upoll_read(counter, &value, sizeof value) == sizeof value && value == 3);
	CHECK(upoll_epoll_wait(set, &event, 1, 10) == 0);
	entries[0] = (struct pollfd){counter, POLLIN, 0};
	entries[1] = (struct pollfd){kernel_pipe[0], POLLIN, 0};
	for (nfds_t count = 1; count <= 2; count++) {
		CHECK(pthread_create(&threads[0], NULL, writes_later, NULL) == 0);
		CHECK(upoll_poll(entries, count, -1) == 1 && entries[0].revents == POLLIN);
		CHECK(pthread_join(threads[0], NULL) == 0);
		CHECK(upoll_read(counter, &value, sizeof value) == sizeof value);
	}
	FD_ZERO(&in);
	FD_SET(counter, &in), FD_SET(kernel_pipe[0], &in);
	CHECK(upoll_select(FD_SETSIZE, &in, NULL, NULL, &limit) == 0);
	for (int at = 0; at < 4; at++)
		CHECK(pthread_create(&threads[at], NULL, makes_and_closes, NULL) == 0);
	for (int at = 0; at < 4; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	CHECK(upoll_close(set) == 0 && upoll_close(counter) == 0);
}

int main(void)
{
	int status;
	pid_t child;
	alarm(200);
	raw_call(SYS_pipe2, (long)kernel_pipe, 0, 0);
	CHECK(kernel_pipe[0] > 0);
	uses_all();
	child = fork();
	if (child == 0) {
		uses_all();
		raw_call(SYS_exit_group, 3, 0, 0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
	return 0;
}
#endif
