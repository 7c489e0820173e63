/* An eventfd with a maximum has its count on a page that parent and child share. A child that
 * overwrites the page may keep its parent's calls on that eventfd from returning, and corrupt the
 * count. It can neither crash its parent, nor change other memory of the parent, nor make the fd stand
 * for another object, nor keep its parent busy after the child has ended. */
#include "check.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifdef KERNEL_ONLY
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#define EFD_IOC_GET_MAXIMUM _IOR('J', 1, uint64_t)
#endif

/* The part of the page that is overwritten, and the time for one value at one place. */
#define LENGTH 256
#define NANOSECONDS 3000000

#define COUNT 512
/* Memory of the parent. The child knows its address. */
static uint64_t canary[COUNT];

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void fill(void)
{
	int at;
	for (at = 0; at < COUNT; at++)
		canary[at] = 0x5555000000000000 + (uint64_t)at;
}

static void is_untouched(void)
{
	int at;
	for (at = 0; at < COUNT; at++)
		CHECK(canary[at] == 0x5555000000000000 + (uint64_t)at);
}

/* Finds the pages that this process shares with others. */
static int shared_pages(volatile char **pages, int most)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char access[8];
		if (sscanf(line, "%lx-%lx %7s", &from, &to, access) == 3 && access[3] == 's' &&
		    access[1] == 'w' && to - from == 4096 && found < most)
			pages[found++] = (volatile char *)from;
	}
	fclose(maps);
	return found;
}

static void write_words(volatile char *page)
{
	const uint64_t values[] = {
		(uint64_t)(uintptr_t)&canary[COUNT / 2],
		(uint64_t)(uintptr_t)&canary[COUNT / 2] | 1,
		UINT64_MAX,
		0x4000000040000000,
		(uint64_t)getppid() << 32 | (uint64_t)getppid(),
		0,
	};
	unsigned which;
	int at;
	for (which = 0; which < sizeof values / sizeof *values; which++) {
		for (at = 0; at < LENGTH; at += 8) {
			volatile uint64_t *word = (volatile uint64_t *)(page + at);
			const uint64_t before = *word, until = now() + NANOSECONDS;
			do {
				int times;
				for (times = 0; times < 1000; times++)
					*word = values[which];
				*word = before;
			} while (now() < until);
			/* The value made the lock look held. */
			*word = 0;
			syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
			syscall(SYS_futex, (volatile uint32_t *)word + 1, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
		}
	}
}

static void hostile(int epfd, int fd)
{
	volatile char *pages[16];
	int found, at;
	close(epfd);
	close(fd);
	found = shared_pages(pages, 16);
	CHECK(found > 0);
	for (at = 0; at < found; at++)
		write_words(pages[at]);
	_exit(0);
}

static void victim(int line)
{
	uint64_t maximum = 1000000, value;
	int fd = eventfd(0, EFD_NONBLOCK), epfd = epoll_create1(0), status, turn;
	pid_t child;
	struct epoll_event event;
	struct pollfd entry = {fd, POLLIN | POLLOUT, 0};
	if (ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum) == -1 && errno == ENOTTY)
		/* The kernel's eventfd has no maximum. */
		exit(77);
	CHECK(add(epfd, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1) == 0);
	fill();
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		hostile(epfd, fd);
	close(line);
	for (turn = 0; waitpid(child, &status, WNOHANG) == 0; turn++) {
		maximum = 1000000 + (uint64_t)(turn % 3);
		eventfd_write(fd, 1);
		poll(&entry, 1, turn % 64 == 0);
		epoll_wait(epfd, &event, 1, turn % 64 == 1);
		eventfd_read(fd, &value);
		if (turn % 16 == 0) {
			ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum);
			CHECK(ioctl(fd, EFD_IOC_GET_MAXIMUM, &value) == 0);
		}
		is_untouched();
	}
	CHECK(status == 0);
	CHECK(ioctl(fd, EFD_IOC_GET_MAXIMUM, &value) == 0);
	is_untouched();
	exit(0);
}

static char state_of(pid_t pid)
{
	char path[64], state = '?';
	FILE *stat;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	stat = fopen(path, "r");
	if (stat) {
		if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
			state = '?';
		fclose(stat);
	}
	return state;
}

int main(void)
{
	int line[2], status, asleep = 0, times;
	char byte;
	pid_t parent;
	alarm(600);
	CHECK(pipe(line) == 0);
	parent = fork();
	CHECK(parent >= 0);
	if (parent == 0) {
		close(line[0]);
		victim(line[1]);
	}
	close(line[1]);
	/* Returns when the child has ended, or the parent has crashed. */
	CHECK(read(line[0], &byte, 1) == 0);
	for (times = 0; times < 12000 && asleep < 100; times++) {
		pid_t ended = waitpid(parent, &status, WNOHANG);
		CHECK(ended >= 0);
		if (ended == parent) {
			CHECK(WIFEXITED(status));
			return WEXITSTATUS(status);
		}
		asleep = state_of(parent) == 'S' ? asleep + 1 : 0;
		sleep_ms(10);
	}
	kill(parent, SIGKILL);
	waitpid(parent, &status, 0);
	/* It waits on the word that the child has overwritten. */
	CHECK(asleep >= 100);
	return 0;
}
