/* pipe(2) and socketpair(2): bytes, ends, sizes and signals. */
#include "check.h"

static volatile sig_atomic_t pipes_broken;

/* Checks that SIGPIPE has arrived when the call returns. Only valgrind delivers signals of libupoll
 * late. */
static int are_broken(int times)
{
#ifndef KERNEL_ONLY
	while (pipes_broken < times)
		sleep_ms(1);
#endif
	return pipes_broken == times;
}

static void on_sigpipe(int signal)
{
	(void)signal;
	pipes_broken++;
}

static void *drains(void *fd)
{
	static char buffer[300000];
	size_t count = 0;
	while (count < sizeof buffer) {
		ssize_t more = read(*(int *)fd, buffer + count, sizeof buffer - count);
		CHECK(more > 0);
		count += (size_t)more;
	}
	for (count = 0; count < sizeof buffer; count++)
		CHECK(buffer[count] == (char)(count % 251));
	return NULL;
}

static void ends(int from, int to)
{
	static char bytes[300000];
	pthread_t thread;
	char buffer[8];
	int count = -1;
	size_t at;
	CHECK(write(to, "hello", 5) == 5);
	CHECK(ioctl(from, FIONREAD, &count) == 0 && count == 5);
	FAILS(ioctl(from, FIONREAD, nowhere()), EFAULT);
	CHECK(read(from, buffer, 3) == 3 && memcmp(buffer, "hel", 3) == 0);
	CHECK(read(from, buffer, 8) == 2 && memcmp(buffer, "lo", 2) == 0);
	CHECK(read(from, buffer, 0) == 0);
	for (at = 0; at < sizeof bytes; at++)
		bytes[at] = (char)(at % 251);
	CHECK(pthread_create(&thread, NULL, drains, &from) == 0);
	CHECK(write(to, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	struct sigaction action;
	char buffer[8];
	int fds[2], copy;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_sigpipe;
	CHECK(sigaction(SIGPIPE, &action, NULL) == 0);

	CHECK(pipe(fds) == 0);
	ends(fds[0], fds[1]);
	FAILS(read(fds[1], buffer, 1), EBADF);
	FAILS(write(fds[0], buffer, 1), EBADF);
	FAILS(lseek(fds[0], 0, SEEK_CUR), ESPIPE);
	CHECK(fcntl(fds[0], F_GETPIPE_SZ) == 65536);
	CHECK(fcntl(fds[1], F_SETPIPE_SZ, 5000) == 8192);
	CHECK(fcntl(fds[0], F_GETPIPE_SZ) == 8192);
	copy = dup(fds[1]);
	CHECK(close(fds[1]) == 0);
	CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
	FAILS(read(fds[0], buffer, 8), EAGAIN);
	CHECK(close(copy) == 0);
	CHECK(read(fds[0], buffer, 8) == 0);
	CHECK(close(fds[0]) == 0);
	CHECK(pipe(fds) == 0);
	CHECK(close(fds[0]) == 0);
	FAILS(write(fds[1], "x", 1), EPIPE);
	CHECK(are_broken(1));
	FAILS(pipe2(fds, 1), EINVAL);

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	CHECK(fcntl(fds[0], F_GETFD) == FD_CLOEXEC);
	ends(fds[0], fds[1]);
	ends(fds[1], fds[0]);
	CHECK(write(fds[0], "x", 1) == 1);
	CHECK(shutdown(fds[0], SHUT_WR) == 0);
	CHECK(read(fds[1], buffer, 8) == 1);
	CHECK(read(fds[1], buffer, 8) == 0);
	FAILS(write(fds[0], "x", 1), EPIPE);
	CHECK(are_broken(2));
	CHECK(write(fds[1], "y", 1) == 1);
	CHECK(close(fds[1]) == 0);
	CHECK(read(fds[0], buffer, 8) == 1 && buffer[0] == 'y');
	FAILS(shutdown(eventfd(0, 0), SHUT_WR), ENOTSOCK);
	/* The kernel serves the other kinds. */
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) == 0);
	CHECK(write(fds[0], "abc", 3) == 3 && read(fds[1], buffer, 8) == 3);
	return 0;
}
