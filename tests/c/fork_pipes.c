/* fork(2) and pipes: the bytes, the ends and the waiters are the same before and after. */
#include "check.h"
#include <sys/wait.h>

static void joins(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

/* The child reads bytes written before the fork, and the parent those of the child. */
static void bytes_go_along(int fds[2], int back[2])
{
	static char bytes[30000];
	char buffer[30001];
	int count;
	size_t at;
	pid_t child;
	for (at = 0; at < sizeof bytes; at++)
		bytes[at] = (char)(at % 251);
	CHECK(write(fds[1], "xyzzy", 5) == 5);
	CHECK(write(fds[1], bytes, sizeof bytes) == sizeof bytes);
	CHECK(read(fds[0], buffer, 5) == 5);
	CHECK(ioctl(fds[0], FIONREAD, &count) == 0 && count == sizeof bytes);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ioctl(fds[0], FIONREAD, &count) == 0 && count == sizeof bytes);
		for (at = 0; at < sizeof bytes; at += (size_t)count) {
			count = (int)read(fds[0], buffer + at, sizeof buffer - at);
			CHECK(count > 0);
		}
		CHECK(memcmp(bytes, buffer, sizeof bytes) == 0);
		CHECK(write(back[1], "done", 4) == 4);
		_exit(0);
	}
	CHECK(read(back[0], buffer, 8) == 4 && memcmp(buffer, "done", 4) == 0);
	joins(child);
	close(fds[0]), close(fds[1]), close(back[0]), close(back[1]);
}

/* An end is closed when both processes have closed it. */
static void ends_close(void)
{
	int fds[2], status;
	char buffer[8];
	pid_t child;
	CHECK(pipe(fds) == 0 && write(fds[1], "abc", 3) == 3);
	child = fork();
	if (child == 0) {
		close(fds[1]);
		CHECK(read(fds[0], buffer, 8) == 3);
		/* The parent has closed its end by then. */
		CHECK(read(fds[0], buffer, 8) == 0);
		_exit(0);
	}
	close(fds[0]);
	close(fds[1]);
	joins(child);

	/* The writer closed before the fork: its bytes are there, then the end of the stream. */
	CHECK(pipe(fds) == 0 && write(fds[1], "abcd", 4) == 4 && read(fds[0], buffer, 1) == 1);
	CHECK(fcntl(fds[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
	close(fds[1]);
	child = fork();
	if (child == 0) {
		CHECK(fcntl(fds[0], F_GETFD) == FD_CLOEXEC);
		CHECK(fcntl(fds[0], F_GETFL) & O_NONBLOCK);
		CHECK(read(fds[0], buffer, 8) == 3 && memcmp(buffer, "bcd", 3) == 0);
		_exit(0);
	}
	joins(child);
	CHECK(read(fds[0], buffer, 8) == 0);
	close(fds[0]);

	/* The reader closed before the fork. */
	CHECK(pipe(fds) == 0 && write(fds[1], "abcd", 4) == 4);
	close(fds[0]);
	child = fork();
	if (child == 0) {
		signal(SIGPIPE, SIG_DFL);
		status = (int)write(fds[1], "x", 1);
		_exit(status);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
	FAILS(write(fds[1], "x", 1), EPIPE);
	close(fds[1]);
}

/* Packets stay packets, and the sizes and fill levels of pipes stay the same. */
static void sizes_stay(void)
{
	static char bytes[1 << 16];
	char buffer[8];
	int fds[2], wide[2], count, status;
	pid_t child;
	CHECK(pipe2(fds, O_DIRECT | O_NONBLOCK) == 0);
	CHECK(write(fds[1], "one", 3) == 3 && write(fds[1], "second", 6) == 6);
	CHECK(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
	CHECK(write(fds[1], "stream", 6) == 6 && write(fds[1], "ed", 2) == 2);
	CHECK(pipe2(wide, O_NONBLOCK) == 0);
	CHECK(fcntl(wide[0], F_SETPIPE_SZ, 8192) == 8192);
	/* Two pages are used; the second one has room. */
	CHECK(write(wide[1], bytes, 4096) == 4096 && write(wide[1], bytes, 10) == 10);
	CHECK(read(wide[0], bytes, 100) == 100);
	child = fork();
	if (child == 0) {
		CHECK(read(fds[0], buffer, 8) == 3 && read(fds[0], buffer, 2) == 2);
		CHECK(read(fds[0], buffer, 8) == 8 && memcmp(buffer, "streamed", 8) == 0);
		CHECK(fcntl(wide[1], F_GETPIPE_SZ) == 8192);
		CHECK(write(wide[1], bytes, 4086) == 4086);
		FAILS(write(wide[1], bytes, 1), EAGAIN);
		CHECK(ioctl(wide[0], FIONREAD, &count) == 0 && count == 8192 - 100);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	FAILS(read(fds[0], buffer, 8), EAGAIN);
	FAILS(write(wide[1], bytes, 1), EAGAIN);
	close(fds[0]), close(fds[1]), close(wide[0]), close(wide[1]);

	/* The largest size of a pipe. */
	CHECK(pipe2(wide, O_NONBLOCK) == 0);
	CHECK(fcntl(wide[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
	for (count = 0; count < 16; count++)
		CHECK(write(wide[1], bytes, sizeof bytes) == sizeof bytes);
	child = fork();
	if (child == 0) {
		FAILS(write(wide[1], bytes, 1), EAGAIN);
		for (count = 0; count < 16; count++)
			CHECK(read(wide[0], bytes, sizeof bytes) == sizeof bytes);
		_exit(0);
	}
	joins(child);
	FAILS(read(wide[0], bytes, 1), EAGAIN);
	close(wide[0]), close(wide[1]);
}

static void sockets(void)
{
	static char bytes[50000];
	char buffer[8];
	int fds[2], gone[2], status, count;
	pid_t child;
	/* Bytes in both directions, with one direction shut down. */
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(write(fds[0], bytes, sizeof bytes) == sizeof bytes);
	CHECK(write(fds[1], "reply", 5) == 5 && read(fds[0], buffer, 2) == 2);
	CHECK(shutdown(fds[0], SHUT_WR) == 0);
	/* The peer has closed with unread bytes, and has left some. */
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, gone) == 0);
	CHECK(write(gone[0], "unread", 6) == 6 && write(gone[1], "left", 4) == 4);
	close(gone[1]);
	child = fork();
	if (child == 0) {
		for (count = 0; count < (int)sizeof bytes; count += status) {
			status = (int)read(fds[1], bytes, sizeof bytes);
			CHECK(status > 0);
		}
		CHECK(read(fds[1], bytes, 1) == 0);
		CHECK(read(fds[0], buffer, 8) == 3 && memcmp(buffer, "ply", 3) == 0);
		FAILS(write(fds[0], "x", 1), EPIPE);
		CHECK(write(fds[1], "y", 1) == 1);
		CHECK(read(gone[0], buffer, 8) == 4 && memcmp(buffer, "left", 4) == 0);
		FAILS(read(gone[0], buffer, 8), ECONNRESET);
		_exit(0);
	}
	joins(child);
	CHECK(read(fds[0], buffer, 8) == 1 && buffer[0] == 'y');
	CHECK(read(gone[0], buffer, 8) == 0);
	FAILS(write(gone[0], "x", 1), EPIPE);
	close(fds[0]), close(fds[1]), close(gone[0]);
}

/* A full buffer is full in the child as well. */
static void room_stays(void)
{
	static char bytes[1000];
	int fds[2], sent = 0, read_before = 0;
	ssize_t count;
	pid_t child;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
	while (write(fds[0], bytes, sizeof bytes) == sizeof bytes)
		sent++;
	CHECK(errno == EAGAIN && sent > 20);
	CHECK(read(fds[1], bytes, 900) == 900);
	FAILS(write(fds[0], bytes, 1), EAGAIN);
	child = fork();
	if (child == 0) {
		struct pollfd entry = {fds[0], POLLOUT, 0};
		FAILS(write(fds[0], bytes, 1), EAGAIN);
		CHECK(poll(&entry, 1, 0) == 0);
		CHECK(read(fds[1], bytes, 100) == 100);
		CHECK(write(fds[0], bytes, 1) == 1);
		while ((count = read(fds[1], bytes, sizeof bytes)) > 0)
			read_before += (int)count;
		CHECK(read_before == (sent - 1) * 1000 + 1);
		_exit(0);
	}
	joins(child);
	close(fds[0]), close(fds[1]);
}

struct waiting {
	int fds[2];
	int epfd;
};

static void *reads(void *argument)
{
	struct waiting *waiting = argument;
	char buffer[8];
	CHECK(read(waiting->fds[0], buffer, 8) == 5 && memcmp(buffer, "hello", 5) == 0);
	return NULL;
}

static void *reads_vectors(void *argument)
{
	struct waiting *waiting = argument;
	char one[2], other[6];
	struct iovec list[2] = {{one, 2}, {other, 6}};
	CHECK(readv(waiting->fds[0], list, 2) == 5 && memcmp(other, "llo", 3) == 0);
	return NULL;
}

static void *polls(void *argument)
{
	struct waiting *waiting = argument;
	struct pollfd entry = {waiting->fds[0], POLLIN, 0};
	CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
	return NULL;
}

static void *waits(void *argument)
{
	struct waiting *waiting = argument;
	struct epoll_event event;
	CHECK(epoll_wait(waiting->epfd, &event, 1, 60000) == 1);
	CHECK(event.events == EPOLLIN && event.data.u64 == 8);
	return NULL;
}

/* Larger than a pipe, so a part is written before the fork. */
static char long_bytes[200000];

static void *writes(void *argument)
{
	struct waiting *waiting = argument;
	struct iovec list[2] = {{long_bytes, 150000}, {long_bytes + 150000, 50000}};
	CHECK(writev(waiting->fds[1], list, 2) == sizeof long_bytes);
	return NULL;
}

static void *writes_once(void *argument)
{
	struct waiting *waiting = argument;
	CHECK(write(waiting->fds[1], long_bytes, sizeof long_bytes) == sizeof long_bytes);
	return NULL;
}

static void reads_all(int fd)
{
	static char buffer[sizeof long_bytes];
	size_t at;
	for (at = 0; at < sizeof buffer;) {
		ssize_t count = read(fd, buffer + at, sizeof buffer - at);
		CHECK(count > 0);
		at += (size_t)count;
	}
	CHECK(memcmp(buffer, long_bytes, sizeof buffer) == 0);
}

/* Threads of the parent wait for actions of the child. */
static void waiters_go_on(int of_sockets)
{
	void *(*const calls[])(void *) = {reads, reads_vectors, polls, waits, writes, writes_once};
	enum { COUNT = sizeof calls / sizeof *calls };
	struct waiting waiting[COUNT];
	pthread_t threads[COUNT];
	pid_t child;
	size_t at;
	for (at = 0; at < COUNT; at++) {
		CHECK((of_sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, waiting[at].fds)
				  : pipe(waiting[at].fds)) == 0);
		waiting[at].epfd = epoll_create1(0);
		CHECK(add(waiting[at].epfd, waiting[at].fds[0], EPOLLIN, 8) == 0);
		CHECK(pthread_create(&threads[at], NULL, calls[at], &waiting[at]) == 0);
	}
	sleep_ms(100);
	child = fork();
	if (child == 0) {
		sleep_ms(50);
		for (at = 0; at < 4; at++)
			CHECK(write(waiting[at].fds[1], "hello", 5) == 5);
		reads_all(waiting[4].fds[0]);
		reads_all(waiting[5].fds[0]);
		_exit(0);
	}
	for (at = 0; at < COUNT; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	joins(child);
	for (at = 0; at < COUNT; at++)
		close(waiting[at].fds[0]), close(waiting[at].fds[1]), close(waiting[at].epfd);
}

/* A set in both processes: each waits for the members that the other one adds. */
static void sets_go_along(void)
{
	struct epoll_event event;
	int fds[2], other[2], epfd = epoll_create1(0), copy = dup(epfd);
	pid_t child;
	CHECK(pipe(fds) == 0 && pipe(other) == 0);
	CHECK(add(epfd, fds[0], EPOLLIN, 1) == 0);
	CHECK(add(epfd, other[1], EPOLLOUT | EPOLLONESHOT, 2) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 1 && event.data.u64 == 2);
	child = fork();
	if (child == 0) {
		FAILS(add(copy, fds[0], EPOLLIN, 1), EEXIST);
		CHECK(epoll_wait(copy, &event, 1, 0) == 0);
		CHECK(add(copy, other[0], EPOLLIN, 3) == 0);
		CHECK(write(fds[1], "x", 1) == 1);
		/* The parent reads this. */
		CHECK(read(other[0], &event, 1) == 1);
		_exit(0);
	}
	CHECK(epoll_wait(epfd, &event, 1, 60000) == 1 && event.data.u64 == 1);
	CHECK(read(fds[0], &event, 1) == 1);
	CHECK(write(other[1], "y", 1) == 1);
	joins(child);
	FAILS(add(epfd, other[0], EPOLLIN, 3), EEXIST);
	CHECK(epoll_wait(copy, &event, 1, 0) == 0);
	close(fds[0]), close(fds[1]), close(other[0]), close(other[1]), close(epfd), close(copy);
}

/* A nested set. */
static void nests_go_along(void)
{
	struct epoll_event event;
	int fds[2], counter = eventfd(0, 0), inner = epoll_create1(0), outer = epoll_create1(0);
	pid_t child;
	CHECK(pipe(fds) == 0);
	CHECK(add(inner, fds[0], EPOLLIN, 1) == 0 && add(outer, inner, EPOLLIN, 2) == 0);
	CHECK(add(outer, counter, EPOLLIN, 3) == 0);
	child = fork();
	if (child == 0) {
		CHECK(epoll_wait(outer, &event, 1, 0) == 0);
		CHECK(write(fds[1], "x", 1) == 1);
		CHECK(epoll_wait(outer, &event, 1, 0) == 1 && event.data.u64 == 2);
		_exit(0);
	}
	CHECK(epoll_wait(outer, &event, 1, 60000) == 1 && event.data.u64 == 2);
	CHECK(epoll_wait(inner, &event, 1, 60000) == 1 && event.data.u64 == 1);
	joins(child);
	CHECK(read(fds[0], &event, 1) == 1);
	CHECK(epoll_wait(outer, &event, 1, 0) == 0);
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(epoll_wait(outer, &event, 1, 0) == 1 && event.data.u64 == 3);
	close(fds[0]), close(fds[1]), close(counter), close(inner), close(outer);
}

int main(void)
{
	int fds[2], back[2];
	size_t at;
	for (at = 0; at < sizeof long_bytes; at++)
		long_bytes[at] = (char)(at % 253);
	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	CHECK(pipe(fds) == 0 && pipe(back) == 0);
	bytes_go_along(fds, back);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, back) == 0);
	bytes_go_along(fds, back);
	ends_close();
	sizes_stay();
	sockets();
	room_stays();
	waiters_go_on(0);
	waiters_go_on(1);
	sets_go_along();
	nests_go_along();
	return 0;
}
