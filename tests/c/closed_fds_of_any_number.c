/* EPOLL_CTL_ADD of a number that is not open fails, and takes no memory however high the number is. */
#include "check.h"

static long resident_pages(void)
{
	long size, resident;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file != NULL && fscanf(file, "%ld %ld", &size, &resident) == 2 && fclose(file) == 0);
	return resident;
}

int main(void)
{
	static const int numbers[] = {30000, 1000000, 100000000, 700000000, INT32_MAX};
	struct epoll_event event = {EPOLLIN, {.u64 = 1}};
	int set = epoll_create1(0), counter = eventfd(0, 0);
	long before;
	CHECK(set >= 0 && counter >= 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
	before = resident_pages();
	for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++)
		FAILS(epoll_ctl(set, EPOLL_CTL_ADD, numbers[at], &event), EBADF);
	CHECK(resident_pages() - before < 256);
	CHECK(close(set) == 0 && close(counter) == 0);
	return 0;
}
