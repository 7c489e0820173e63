/* A user with many pipes gets small ones. No more is written to such a pipe than the kernel's would take, so that a child, or
 * a call that only the kernel serves, finds all of it. */
#include "../c/check.h"
#include <sys/wait.h>

enum { SOFT = 16384, LARGE = 1 << 20, PAGE = 4096 };

int main(void)
{
	char bytes[8 * PAGE] = {0}, text[32] = "", one;
	FILE *limit = fopen("/proc/sys/fs/pipe-user-pages-soft", "r"), *stream;
	int ends[2], many[2], status;
	alarm(300);
	if (!limit || !fgets(text, sizeof text, limit) || atoi(text) != SOFT)
		return 77;
	fclose(limit);
	if (getuid() == 0 && (setgid(65534) || setuid(65534)))
		return 77;
	for (int i = 0; i < SOFT / (LARGE / PAGE); i++)
		if (pipe(many) || fcntl(many[1], F_SETPIPE_SZ, LARGE) != LARGE)
			return 77;
	CHECK(pipe2(ends, O_NONBLOCK) == 0);
	CHECK(fcntl(ends[1], F_GETPIPE_SZ) == 2 * PAGE);
	CHECK(write(ends[1], bytes, sizeof bytes) == 2 * PAGE);
	FAILS(write(ends[1], bytes, 1), EAGAIN);
	if (fork() == 0)
		_exit(read(ends[0], &one, 1) != 1);
	CHECK(wait(&status) > 0 && status == 0);
	CHECK((stream = fdopen(ends[0], "r")) && fgetc(stream) == 0);
	return 0;
}
