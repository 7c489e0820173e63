/* A standard stream reads and writes an eventfd that was duplicated to its fd. A stream or folder whose fd was closed
 * closes the file that has the fd by then. */
#include "../c/check.h"
#include <dirent.h>
#include <mqueue.h>
#include <sys/resource.h>

enum { LIMIT = 64 };

static void is_that_of_the_next_file(int fd)
{
	int ends[2];
	char bytes[8];
	FAILS(fcntl(fd, F_GETFD), EBADF);
	CHECK(pipe(ends) == 0 && ends[0] == fd);
	CHECK(write(ends[1], "x", 1) == 1 && read(fd, bytes, sizeof bytes) == 1);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void closes_an_eventfd(FILE *stream, int (*close_stream)(FILE *), int result)
{
	int fd = fileno(stream);
	CHECK(close(fd) == 0 && eventfd(5, 0) == fd);
	CHECK(close_stream(stream) == result);
	is_that_of_the_next_file(fd);
}

static void opens_again_over_an_eventfd(void)
{
	FILE *stream = fopen("/dev/null", "r");
	int fd = fileno(stream);
	char bytes[8];
	CHECK(close(fd) == 0 && eventfd(5, 0) == fd);
	CHECK(freopen("/dev/null", "r", stream) == stream);
	CHECK(fileno(stream) == fd && read(fd, bytes, sizeof bytes) == 0);
	CHECK(fclose(stream) == 0);
}

static void folders_and_queues_close_an_eventfd(void)
{
	DIR *folder = opendir("/");
	int fd = dirfd(folder);
	CHECK(close(fd) == 0 && eventfd(5, 0) == fd);
	CHECK(closedir(folder) == 0);
	is_that_of_the_next_file(fd);
	CHECK(eventfd(5, 0) == fd);
	CHECK(mq_close(fd) == 0);
	is_that_of_the_next_file(fd);
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
	closes_an_eventfd(fopen("/dev/null", "r"), fclose, 0);
	closes_an_eventfd(popen("exit 3", "r"), pclose, 3 << 8);
	opens_again_over_an_eventfd();
	folders_and_queues_close_an_eventfd();
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
