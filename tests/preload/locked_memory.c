/* A process that locks its memory locks little more of it with this library than without. */
#include "../c/check.h"

static long kilobytes(const char *what)
{
	char line[256];
	long found = -1;
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status);
	while (fgets(line, sizeof line, status))
		if (strncmp(line, what, strlen(what)) == 0)
			found = strtol(line + strlen(what), NULL, 10);
	fclose(status);
	CHECK(found >= 0);
	return found;
}

int main(void)
{
	struct epoll_event event;
	int fd, high, epfd;
	if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
		return 77;
	fd = eventfd(1, 0);
	high = fcntl(fd, F_DUPFD, 900);
	epfd = epoll_create1(0);
	CHECK(fd >= 0 && high >= 900 && epfd >= 0);
	CHECK(add(epfd, high, EPOLLIN, 7) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 1 && event.data.u64 == 7);
	printf("%ld KiB locked\n", kilobytes("VmLck:"));
	/* The C library alone locks about three megabytes. */
	CHECK(kilobytes("VmLck:") < 8 * 1024);
	return 0;
}
