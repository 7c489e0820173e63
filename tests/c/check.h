/* The helpers of all tests. Each test is compiled twice: unchanged, against the kernel, and with
 * UPOLL_REDIRECT, against libupoll. Both must pass. Exit status 0: passed, 1: failed, 77: there is
 * nothing to test in this variant. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef UPOLL_REDIRECT
#include <upoll.h>
#else
/* The kernel lacks the extensions of libupoll. */
#define KERNEL_ONLY 1
#endif

#define CHECK(condition)                                                                      \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__,         \
				#condition, errno);                                           \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

/* Checks that the call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (call) == -1) && errno == (error))

/* Returns an address that is not mapped. */
static inline void *nowhere(void)
{
	void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	return page;
}

static inline void sleep_ms(long ms)
{
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&time, NULL);
}

/* Returns the processor time of this process, in milliseconds. */
static inline long cpu_time(void)
{
	struct timespec time;
	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Waits until a process or thread sleeps. On a busy machine this may take some time. One look may
 * meet a short sleep on the way, for a lock. */
static inline void wait_until_asleep(int tid)
{
	char path[64], line[512], *state;
	int looks = 0;
	do {
		FILE *stat;
		sleep_ms(1);
		snprintf(path, sizeof path, "/proc/%d/stat", tid);
		stat = fopen(path, "r");
		CHECK(stat != NULL && fgets(line, sizeof line, stat) != NULL);
		fclose(stat);
		/* The name before the state may contain any character. */
		state = strrchr(line, ')');
		CHECK(state != NULL);
		looks = state[2] == 'S' ? looks + 1 : 0;
	} while (looks < 3);
}

static inline int add(int epfd, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event;
	memset(&event, 0, sizeof event);
	event.events = events;
	event.data.u64 = data;
	return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event);
}

#endif
