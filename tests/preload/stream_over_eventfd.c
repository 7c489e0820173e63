/* A standard stream reads and writes an eventfd that was duplicated to its fd. A stream whose fd was closed closes the file
 * that has the fd by then. */
#include "../c/check.h"
#include <sys/resource.h>

enum { LIMIT = 64 };

/* The fd is that of no eventfd then, but of the next file. */
static void closes_an_eventfd(FILE *(*close_stream)(FILE *))
{
	FILE *stream = fopen("/dev/null", "r"), *left;
	int fd = fileno(stream), ends[2];
	char bytes[8];
	CHECK(close(fd) == 0 && eventfd(5, 0) == fd);
	left = close_stream(stream);
	if (left == NULL) {
		FAILS(fcntl(fd, F_GETFD), EBADF);
		CHECK(pipe(ends) == 0 && ends[0] == fd);
		CHECK(write(ends[1], "x", 1) == 1 && read(fd, bytes, sizeof bytes) == 1);
		CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
		return;
	}
	CHECK(fileno(left) == fd && read(fd, bytes, sizeof bytes) == 0);
	CHECK(fclose(left) == 0);
}

static FILE *closed(FILE *stream)
{
	CHECK(fclose(stream) == 0);
	return NULL;
}

static FILE *opened_again(FILE *stream)
{
	CHECK((stream = freopen("/dev/null", "r", stream)) != NULL);
	return stream;
}

/* The library takes the highest fds for itself. */
static void closes_none_of_the_librarys(void)
{
	struct rlimit limit = {LIMIT, LIMIT};
	struct epoll_event event = {EPOLLIN, {.u32 = 1}};
	FILE *streams[4];
	int set, counter, pair[2];
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int at = 0; at < 4; at++) {
		CHECK(dup2(STDERR_FILENO, LIMIT - 1 - at) == LIMIT - 1 - at);
		CHECK((streams[at] = fdopen(LIMIT - 1 - at, "w")) != NULL);
	}
	for (int at = 0; at < 4; at++)
		CHECK(close(LIMIT - 1 - at) == 0);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, 0)) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
	event.data.u32 = 2;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event) == 0);
	for (int at = 0; at < 4; at++)
		CHECK((errno = 0, fclose(streams[at]) == EOF) && errno == EBADF);
	CHECK(write(pair[1], "x", 1) == 1);
	CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u32 == 2);
	CHECK(close(set) == 0 && close(counter) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
}

int main(void)
{
	uint64_t value = 0;
	closes_an_eventfd(closed);
	closes_an_eventfd(opened_again);
	closes_none_of_the_librarys();
	CHECK(close(STDIN_FILENO) == 0);
	CHECK(eventfd(5, 0) == STDIN_FILENO);
	CHECK(fread(&value, sizeof value, 1, stdin) == 1 && value == 5);
	value = 7;
	CHECK(close(STDOUT_FILENO) == 0);
	CHECK(eventfd(0, EFD_NONBLOCK) == STDOUT_FILENO);
	CHECK(fwrite(&value, sizeof value, 1, stdout) == 1 && fflush(stdout) == 0);
	value = 0;
	CHECK(read(STDOUT_FILENO, &value, sizeof value) == 8 && value == 7);
	return 0;
}
