/* The bytes of a pipe without a reader stay when the pipe is demoted: FIONREAD returns their
 * number, and a reader that opens /proc/self/fd reads them. */
#include "check.h"
#include <sys/wait.h>

int main(void)
{
	int ends[2], there, status, again;
	char path[32], text[16];
	pid_t child;
	alarm(200);
	CHECK(pipe(ends) == 0);
	CHECK(write(ends[1], "left", 4) == 4);
	CHECK(close(ends[0]) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		there = -1;
		CHECK(ioctl(ends[1], FIONREAD, &there) == 0);
		_exit(there);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4);
	CHECK(ioctl(ends[1], FIONREAD, &there) == 0 && there == 4);
	snprintf(path, sizeof path, "/proc/self/fd/%d", ends[1]);
	again = open(path, O_RDONLY);
	CHECK(again >= 0);
	CHECK(read(again, text, sizeof text) == 4 && memcmp(text, "left", 4) == 0);
	CHECK(write(ends[1], "more", 4) == 4);
	CHECK(read(again, text, sizeof text) == 4 && memcmp(text, "more", 4) == 0);
	return 0;
}
