/* A standard stream reads and writes an eventfd that was duplicated to its fd. A stream or folder whose fd was closed
 * closes the file that has the fd by then. */
#include "../c/check.h"
#include <dirent.h>
#include <mqueue.h>

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

int main(void)
{
	uint64_t value = 0;
	closes_an_eventfd(fopen("/dev/null", "r"), fclose, 0);
	closes_an_eventfd(popen("exit 3", "r"), pclose, 3 << 8);
	opens_again_over_an_eventfd();
	folders_and_queues_close_an_eventfd();
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
