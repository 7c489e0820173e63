/* The address space is used up, and user space would need a block of memory for a long list of fds. The kernel has memory
 * of its own, so poll and ppoll return the same as ever. */
#include "check.h"
#include <sys/resource.h>

enum { ENTRIES = 10000 };

static struct pollfd entries[ENTRIES];

static void use_up_memory(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	struct rlimit limit = {0, RLIM_INFINITY};
	unsigned long pages;
	CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
	fclose(file);
	limit.rlim_cur = (pages + 2) * 4096;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	CHECK(mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
}

int main(void)
{
	struct rlimit limit = {ENTRIES, ENTRIES};
	struct timespec moment = {60, 0};
	int ends[2], counter = eventfd(0, EFD_NONBLOCK);
	uint64_t value = 0;
#ifdef __SANITIZE_ADDRESS__
	/* The sanitizer needs memory of its own. */
	return 77;
#endif
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		return 77;
	CHECK(counter >= 0 && pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	for (int at = 0; at < ENTRIES; at++)
		entries[at] = (struct pollfd){at % 2 ? counter : ends[0], POLLIN | POLLOUT, 0};
	/* A first call takes memory that is kept. */
	CHECK(poll(entries, 2, 0) == 2);
	use_up_memory();

	CHECK(poll(entries, ENTRIES, 0) == ENTRIES);
	CHECK(entries[0].revents == POLLIN && entries[ENTRIES - 1].revents == POLLOUT);
	CHECK(poll(entries, ENTRIES, -1) == ENTRIES);
	for (int at = 0; at < ENTRIES; at++)
		entries[at].events = POLLIN;
	CHECK(ppoll(entries, ENTRIES, &moment, NULL) == ENTRIES / 2);
	CHECK(eventfd_write(counter, 3) == 0);
	CHECK(ppoll(entries, ENTRIES, &moment, NULL) == ENTRIES);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 3);
	return 0;
}
